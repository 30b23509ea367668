"""The remote agent against a served session, and against missing agents."""

import io
import itertools
import socket
import threading
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from fake_framework import SIDE, mean_scores, wait_for
from PIL import Image

from inferometer.agent.hardware.environment import Device, DeviceKind
from inferometer.agent.inference.registry import Registry
from inferometer.agent.inference.session import SessionOptions, open_session
from inferometer.agent.inference.stages import Stage
from inferometer.agent.preprocessing.inputs import EncodedImage, Input, Pixels, Tensor, Url
from inferometer.client.remote.address import AgentAddress
from inferometer.client.remote.connection import RemoteOptions
from inferometer.client.remote.native import agent as native_agent
from inferometer.client.remote.native.agent import open_remote_agent
from inferometer.client.remote.native.calls import translate_errors
from inferometer.client.remote.native.connection import Connection
from inferometer.evaluators.datasets.opening import open_dataset
from inferometer.manifests.catalog import Catalog
from inferometer.manifests.errors import (
    AgentError,
    ConfigurationError,
    DeviceError,
    InputError,
    SessionError,
    SessionLimitError,
    UnknownFrameworkError,
    UnknownModelError,
)
from inferometer.protos.inferometer.v1 import predict_pb2, registry_pb2
from inferometer.protos.inferometer.v1.predict_pb2_grpc import PredictServiceStub

FRAMEWORKS = ["PyTorch", "MXNet", "ONNXRuntime"]


@pytest.fixture(scope="module")
def agent(start_shared_agent):
    return start_shared_agent(parts={"fetch": lambda url: png(len(url))})


@pytest.fixture
def remote(agent):
    with open_remote_agent(agent.address, "Mean", options=SessionOptions(feature_limit=0)) as remote:
        yield remote


def png(value):
    file = io.BytesIO()
    Image.new("L", (SIDE, SIDE), value).save(file, "PNG")
    return file.getvalue()


def tensor_input(id_, value):
    return Input(id_, Tensor(np.full((1, SIDE, SIDE), value, np.float32)))


def unreadable(id_):
    return Input(id_, lambda: EncodedImage(Path(f"/nowhere/{id_}.png").read_bytes()))


def scores(result):
    order = np.argsort(result.outputs.indices, axis=1)
    return np.take_along_axis(result.outputs.probabilities, order, axis=1)


def expected(*values):
    return mean_scores(np.array(values, np.float32)[:, None])


def test_every_kind_of_input_makes_the_round_trip(remote):
    result = remote.predict(
        [
            Input("image", EncodedImage(png(10))),
            Input("lazy image", lambda: EncodedImage(png(20))),
            Input("pixels", Pixels(np.full((SIDE, SIDE, 3), 30, np.uint8))),
            tensor_input("tensor", 40),
            Input("url", Url("http://h/12")),
        ]
    )
    assert result.input_ids == ("image", "lazy image", "pixels", "tensor", "url")
    np.testing.assert_array_equal(scores(result), expected(10, 20, 30, 40, 11))
    assert result.failures == ()
    assert result.times.read_ns > 0
    assert result.times.predict_ns > 0


def test_tensor_batch_makes_the_round_trip(agent):
    batch = np.random.default_rng(0).random((3, 1, SIDE, SIDE), np.float32)
    with open_remote_agent(agent.address, "Echo") as remote:
        result = remote.predict_tensor(batch)
    assert result.input_ids == ("0", "1", "2")
    np.testing.assert_array_equal(result.outputs.tensors["data"], batch, strict=True)


def test_description_is_that_of_the_agent(agent, remote, shared_folder):
    description = remote.description
    assert description.agent == agent.address
    assert description.manifest.name == "Mean"
    manifest = Catalog([shared_folder]).find_model("Mean", None, {"Fake": "1"})
    assert description.manifest.model_dump() == manifest.model_dump()
    assert description.environment.hostname == socket.gethostname()
    assert description.environment.libraries == {"BLAS": "NumPy's"}
    assert description.environment.build == "no features"
    assert description.environment.settings == {"memory allocator": "default", "inter-op threads": "1"}
    assert description.device == Device(DeviceKind.CPU)
    assert description.threads is None


def test_failures_here_and_there_come_in_the_order_of_the_batch(remote):
    result = remote.predict(
        [
            Input("corrupt", EncodedImage(b"no image")),
            unreadable("gone"),
            tensor_input("good", 5),
            Input("corrupt too", EncodedImage(b"")),
        ]
    )
    assert result.input_ids == ("good",)
    assert [(f.input_id, f.stage) for f in result.failures] == [
        ("corrupt", Stage.PREPROCESS),
        ("gone", Stage.READ),
        ("corrupt too", Stage.PREPROCESS),
    ]
    assert "No such file" in result.failures[1].message


def test_batches_come_back_in_order_with_every_failure_in_its_place(remote):
    batches = [
        [tensor_input("a", 1), tensor_input("b", 2)],
        [unreadable("c"), unreadable("d")],
        [unreadable("e"), tensor_input("f", 3)],
        [unreadable("g")],
        [tensor_input("h", 4)],
    ]
    results = list(remote.predict_batches(batches))
    assert [r.input_ids for r in results] == [("a", "b"), (), ("f",), (), ("h",)]
    assert [[f.input_id for f in r.failures] for r in results] == [[], ["c", "d"], ["e"], ["g"], []]
    assert [r.outputs is None for r in results] == [False, True, False, True, False]
    np.testing.assert_array_equal(scores(results[4]), expected(4))


def test_nothing_is_predicted_when_nothing_can_be_read(remote):
    assert list(remote.predict_batches([[unreadable("a")]] * 10))[9].failures[0].input_id == "a"
    assert list(remote.predict_batches([])) == []


def test_number_of_batches_in_flight_is_bounded(agent, monkeypatch):
    monkeypatch.setattr(native_agent, "BATCHES_IN_FLIGHT", 3)
    read = itertools.count()

    def batches():
        for n in range(30):
            next(read)
            yield [tensor_input(str(n), n)]

    with open_remote_agent(agent.address, "Mean", options=SessionOptions(overlap=True)) as remote:
        for done, result in enumerate(remote.predict_batches(batches())):
            assert result.input_ids == (str(done),)
            taken = next(read)
            assert taken - done <= done + 3  # every look at the counter counts too
    assert done == 29


def test_rounds_are_answered_whole_before_more_is_taken(remote):
    taken = []

    def batches():
        for n in range(7):
            taken.append(n)
            inputs = [unreadable("x")] if n == 3 else [tensor_input(f"{n}-{i}", n) for i in range(100)]
            yield inputs * 100 if n == 3 else inputs

    for done, result in enumerate(remote.predict_batches(batches())):
        assert len(result.input_ids) == (0 if done == 3 else 100)
        assert len(taken) == min(7, done // 2 * 2 + 2)
    assert done == 6


def test_error_of_the_batches_themselves_comes_through(remote):
    def batches():
        yield [tensor_input("a", 1)]
        raise KeyError("the caller's own")

    with pytest.raises(KeyError, match="the caller's own"):
        list(remote.predict_batches(batches()))
    assert remote.predict([tensor_input("b", 1)]).input_ids == ("b",)


def test_fault_in_reading_is_raised_and_does_not_hang(remote):
    def fault():
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        list(remote.predict_batches([[tensor_input("a", 1)], [Input("b", fault)], [tensor_input("c", 1)]]))
    [result] = remote.predict_batches([[Input("a", Tensor(np.zeros((1, SIDE, SIDE), np.complex64)))]])
    assert [(f.input_id, f.stage) for f in result.failures] == [("a", Stage.PREPROCESS)]
    assert "tensor has element type complex64; the model takes float32" in result.failures[0].message
    assert remote.predict([tensor_input("b", 1)]).input_ids == ("b",)


def test_iterator_that_is_closed_early_stops_the_agents_work(start_agent, manifest_folder):
    with open_remote_agent(start_agent().address, "Waiting") as remote:
        results = remote.predict_batches([tensor_input(str(n), n)] for n in itertools.count())
        (manifest_folder / "go").touch()
        assert next(results).input_ids == ("0",)
        results.close()
    # The session is only closed when its stream has ended.
    wait_for((manifest_folder / "closed").exists)


@pytest.mark.parametrize("call", [lambda r: r.predict([]), lambda r: list(r.predict_batches([[]]))])
def test_empty_batch_is_refused(remote, call):
    with pytest.raises(InputError, match="the batch is empty"):
        call(remote)


def test_errors_of_the_agent_come_as_their_own_classes(start_agent):
    address = start_agent(max_sessions=1).address
    with pytest.raises(UnknownModelError, match='did you mean "Mean"'):
        open_remote_agent(address, "Maen")
    with pytest.raises(UnknownFrameworkError, match='unknown framework "Fak"'):
        open_remote_agent(address, "Mean", None, "Fak")
    with pytest.raises(ConfigurationError, match="version"):
        open_remote_agent(address, "Mean", "?")
    with pytest.raises(DeviceError, match="Fake has no GPU"):
        open_remote_agent(address, "Mean", options=SessionOptions(device=Device(DeviceKind.GPU)))
    with open_remote_agent(address, "Mean") as remote:
        with pytest.raises(SessionLimitError, match="limit of 1 open sessions"):
            open_remote_agent(address, "Mean")
        with pytest.raises(InputError, match=r"tensor has shape \[1, 2\]"):
            remote.predict_tensor(np.zeros((1, 2), np.float32))


def test_closing_twice_does_nothing_and_a_closed_one_says_so(remote):
    remote.close()
    remote.close()
    for call in (remote.predict, lambda batch: list(remote.predict_batches([batch]))):
        with pytest.raises(SessionError, match="is closed"):
            call([tensor_input("a", 1)])


def test_batches_of_a_remote_that_is_closed_meanwhile_say_so(remote):
    def batches():
        yield [tensor_input("0", 0)]
        remote.close()
        yield [unreadable("1")]

    with pytest.raises(SessionError, match="is closed"):
        list(remote.predict_batches(batches()))


def test_closing_after_the_agent_has_gone_raises_nothing(start_agent):
    agent = start_agent()
    remote = open_remote_agent(agent.address, "Mean")
    agent.stop(5)
    told = f"agent {agent.address}: cannot be reached any more: connection refused; was it stopped"
    with pytest.raises(AgentError, match=told):
        remote.predict([tensor_input("a", 1)])
    remote.close()


def test_session_that_the_agent_has_closed_is_a_session_error(agent, remote, channel_to):
    PredictServiceStub(channel_to(agent.address)).Reset(predict_pb2.ResetRequest(), timeout=30)
    with pytest.raises(SessionError, match="the session is not open"):
        remote.predict([tensor_input("a", 1)])
    with pytest.raises(SessionError, match="the session is not open"):
        list(remote.predict_batches([[tensor_input("a", 1)]]))


@pytest.mark.parametrize("streamed", [False, True], ids=["unary", "streamed"])
def test_message_larger_than_the_agent_accepts_names_the_options(start_agent, streamed):
    address = start_agent(max_message_bytes=100_000).address
    with open_remote_agent(address, "Large") as remote:
        batch = [Input("a", Tensor(np.zeros((1, 512, 512), np.float32)))]
        with pytest.raises(AgentError) as error:
            list(remote.predict_batches([batch])) if streamed else remote.predict(batch)
    assert "larger than its limit of 100000" in str(error.value)
    assert "--batch_size" in str(error.value)
    assert "--max_message_mb" in str(error.value)


def test_prediction_that_takes_too_long_is_an_agent_error(start_agent, manifest_folder):
    agent = start_agent()
    with open_remote_agent(agent.address, "Waiting", remote=RemoteOptions(call_timeout_s=0.1)) as remote:
        with pytest.raises(AgentError, match=f"agent {agent.address}: did not answer in time"):
            remote.predict([tensor_input("a", 1)])
        (manifest_folder / "go").touch()


def test_unreachable_agents_are_one_clear_line():
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))  # bound and not listening: refuses
        address = f"127.0.0.1:{unused.getsockname()[1]}"
        with pytest.raises(
            AgentError, match=f"^agent {address}: cannot be reached: connection refused"
        ) as error:
            open_remote_agent(address, "Mean")
    assert "\n" not in str(error.value)
    with pytest.raises(AgentError, match=r"^agent no-such-host\.invalid:1: .* the host's name"):
        open_remote_agent("no-such-host.invalid:1", "Mean")


def frameworks_of(address: str, secret: str | None = None) -> Sequence[registry_pb2.Framework]:
    with Connection(AgentAddress.parse(address), secret) as connection, translate_errors(address):
        request = registry_pb2.ListFrameworksRequest()
        return connection.registry.ListFrameworks(request, metadata=connection.metadata).frameworks


def test_server_that_is_no_agent_is_an_agent_error():
    with socket.create_server(("127.0.0.1", 0)) as server:

        def answer():
            connection, _ = server.accept()
            with connection:
                connection.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")

        thread = threading.Thread(target=answer)
        thread.start()
        address = f"127.0.0.1:{server.getsockname()[1]}"
        with pytest.raises(AgentError, match=f"^agent {address}: "):
            frameworks_of(address)
        thread.join(30)


def test_secret_is_shown(start_agent):
    address = start_agent(secret="s3cret").address
    for secret in (None, "wrong"):
        with pytest.raises(AgentError, match=f"agent {address}: requires a secret; .* --secret"):
            open_remote_agent(address, "Mean", remote=RemoteOptions(secret=secret))
    with open_remote_agent(address, "Mean", remote=RemoteOptions(secret="s3cret")) as remote:
        assert remote.predict([tensor_input("a", 1)]).input_ids == ("a",)
        assert [r.input_ids for r in remote.predict_batches([[tensor_input("b", 1)]])] == [("b",)]
    assert [f.name for f in frameworks_of(address, "s3cret")] == ["Fake"]


def test_what_an_agent_can_run_is_listed(agent):
    assert [(f.name, f.install) for f in frameworks_of(agent.address)] == [("Fake", "pip install fake")]
    with Connection(AgentAddress.parse(agent.address)) as connection:
        assert {"Mean", "Echo"} <= {m.name for m in models_of(connection) if m.runnable}
        assert {m.framework_name for m in models_of(connection, "Fake")} == {"Fake"}
        with (
            pytest.raises(UnknownFrameworkError, match='did you mean "Fake"'),
            translate_errors(agent.address),
        ):
            models_of(connection, "Fok")


def models_of(connection, framework_name=""):
    request = registry_pb2.ListModelsRequest(framework_name=framework_name)
    return connection.registry.ListModels(request).models


@pytest.mark.parametrize("text", ["127.0.0.1:50051", "host_1.example.org:1", "[::1]:65535", " unix:123 "])
def test_address_of_host_and_port_is_read(text):
    assert str(AgentAddress.parse(text)) == text.strip()


@pytest.mark.parametrize(
    "text",
    [
        "",
        "localhost",
        "localhost:",
        ":50051",
        "host:0",
        "host:65536",
        "host:x",
        "::1:50051",
        "http://h:1",
        "a b:1",
    ],
)
def test_what_is_no_address_is_refused(text):
    with pytest.raises(ConfigurationError, match="is not host:port"):
        open_remote_agent(text, "Mean")


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_digits_are_classified_over_grpc_as_they_are_in_this_process(start_agent, framework):
    registry, catalog = Registry.discover(), Catalog()
    if registry.find(framework).installed_version is None:
        pytest.skip(f"{framework} is not installed")
    manifest = catalog.find_model("DigitsCNN", None, {framework: registry.versions[framework]})
    dataset = open_dataset(catalog.find_dataset("digits_validation"))
    samples = list(itertools.islice(dataset, 96))
    batches = [samples[start : start + 20] for start in range(0, 96, 20)]
    with open_session(manifest, SessionOptions(), registry) as session:
        local = list(session.predict_batches(batches))
    address = start_agent(registry=registry).address
    with open_remote_agent(address, "digitscnn", None, framework) as remote:
        assert remote.description.checksums == session.description.checksums
        far = list(remote.predict_batches(batches))
        one = remote.predict(batches[0])
    assert [r.input_ids for r in far] == [r.input_ids for r in local]
    assert [len(r.input_ids) for r in far] == [20, 20, 20, 20, 16]
    for here, there in zip(local, far, strict=True):
        np.testing.assert_array_equal(here.outputs.indices, there.outputs.indices)
        np.testing.assert_allclose(here.outputs.probabilities, there.outputs.probabilities, rtol=1e-6)
    np.testing.assert_array_equal(one.outputs.indices, local[0].outputs.indices)
    right = sum(
        manifest.output.parameters.labels[row[0]] == sample.label
        for result, batch in zip(far, batches, strict=True)
        for row, sample in zip(result.outputs.indices, batch, strict=True)
    )
    assert right >= 90
