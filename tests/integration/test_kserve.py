"""Models on a server of the Open Inference Protocol as systems under test, over real sockets."""

import dataclasses
import itertools
import time
from contextlib import closing, contextmanager

import grpc
import numpy as np
import pytest
from fake_framework import DEADLINE_S, SIDE, mean_scores
from kserve_server import Served, Tensor, running

from inferometer.agent.hardware.environment import Device, DeviceKind, Precision, Weights
from inferometer.agent.inference.registry import Registry
from inferometer.agent.inference.session import SessionOptions, open_session, select_model
from inferometer.agent.preprocessing.inputs import Input
from inferometer.agent.preprocessing.inputs import Tensor as TensorInput
from inferometer.agent.tracing.recorder import SpanRecorder, SpanRole, TraceContext, TraceLevel, TraceScope
from inferometer.client.remote.connection import RemoteOptions
from inferometer.client.remote.kserve.opening import ModelChoice, open_kserve
from inferometer.evaluators.datasets.opening import open_dataset
from inferometer.evaluators.kinds.batches.request import BatchOptions
from inferometer.evaluators.kinds.batches.run import DatasetRun
from inferometer.manifests.catalog import Catalog
from inferometer.manifests.errors import AgentError, ConfigurationError, UnknownModelError

IMAGE = (1, SIDE, SIDE)
PIXELS = Tensor("pixels", "FP32", (-1, *IMAGE))
SCORES = Tensor("scores", "FP32", (-1, 3))


def means(batch):
    return {"scores": mean_scores(batch)}


def served(**changes):
    return Served(**{"model": means, "inputs": (PIXELS,), "outputs": (SCORES,), **changes})


@pytest.fixture
def catalog(manifest_folder):
    return Catalog([manifest_folder])


@pytest.fixture
def opened(catalog):
    """Opens the model of a server, by the name ``Mean`` unless there is another."""
    sessions = []

    def open_one(address, name="Mean", options=SessionOptions(), **remote):  # noqa: B008 - frozen
        sessions.append(open_kserve(address, catalog, ModelChoice(name), options, RemoteOptions(**remote)))
        return sessions[-1]

    yield open_one
    for session in sessions:
        session.close()


def tensors(count):
    values = np.arange(count, dtype=np.float32) - 1
    return np.broadcast_to(values[:, None, None, None], (count, *IMAGE)).copy()


def batches(count, size=2):
    arrays = tensors(count * size)
    inputs = [Input(str(place), TensorInput(array)) for place, array in enumerate(arrays)]
    return [inputs[start : start + size] for start in range(0, len(inputs), size)]


@pytest.mark.parametrize("typed", [False, True], ids=["raw", "typed"])
def test_accuracy_on_digits_is_that_of_this_process(typed):
    registry, catalog = Registry(), Catalog()
    manifest = select_model(catalog, registry, "DigitsCNN")
    options = BatchOptions(64, 64)
    with open_session(manifest, SessionOptions(), registry) as local:

        def model(batch):
            [scores] = local.infer({manifest.tensors[0].name: batch}).outputs.values()
            return {"logits": scores, "unused": scores[:, :1]}

        digits = served(
            model=model,
            inputs=(Tensor("x", "FP32", (-1, 1, 16, 16)),),
            outputs=(Tensor("logits", "FP32", (-1, 10)),),
            model_name="DigitsCNN",
            typed=typed,
        )
        dataset = open_dataset(catalog.find_dataset("digits_validation"))
        with closing(dataset), running(digits) as server:
            expected = DatasetRun(local, dataset, options, keep_most=None).run()
            with open_kserve(server.address, catalog, ModelChoice("DigitsCNN")) as session:
                found = DatasetRun(session, dataset, options, keep_most=None).run()

    assert found.measurement.accuracy == expected.measurement.accuracy
    assert found.measurement.failures == ()
    assert [p.input_id for p in found.measurement.predictions] == [
        p.input_id for p in expected.measurement.predictions
    ]
    for ours, theirs in zip(found.measurement.predictions, expected.measurement.predictions, strict=True):
        assert np.array_equal(ours.indices, theirs.indices)
        assert np.allclose(ours.probabilities, theirs.probabilities, atol=1e-6)
    assert [output.name for output in digits.calls[0][1].outputs] == ["logits"]


def test_a_system_says_what_the_server_tells_and_invents_nothing(opened):
    with running(served()) as server:
        description = opened(server.address).description

    assert description.agent == f"{server.address}/Mean"
    assert (description.manifest.name, description.manifest.framework.name) == ("Mean", "testserver")
    assert description.framework_version == "9.8"
    assert description.device == Device(DeviceKind.REMOTE)
    assert (description.threads, dict(description.checksums)) == (None, {})
    assert (description.precision, description.cudnn_benchmark) == (None, None)
    machine = description.environment
    assert not machine.is_known
    assert (machine.hostname, machine.cpu_model, machine.memory_bytes, machine.gpus) == ("", "", 0, ())
    assert machine.frameworks == {"any_platform": ""}


def test_a_configuration_that_tells_the_weights_and_the_framework_is_believed(opened):
    told = {"weights": "random", "seed": "7", "framework": "PyTorch", "framework_version": "2.1"}
    with running(served(max_batch_size=4, config_parameters=told)) as server:
        description = opened(server.address).description

    assert (description.weights, description.seed) == (Weights.RANDOM, 7)
    assert description.environment.frameworks == {"PyTorch": "2.1"}


def test_a_model_may_have_another_name_and_a_version_at_the_server(opened):
    with running(served(model_name="a-mean")) as server:
        session = opened(f"{server.address}/a-mean/3")
        session.predict_tensor(tensors(1))

    assert session.description.agent == f"{server.address}/a-mean/3"


@pytest.mark.parametrize(("versions", "asked"), [(("2.0", "1.0"), "1.0"), (("2", "1"), "1")])
def test_of_several_versions_that_of_the_manifest_is_asked_for(opened, versions, asked):
    mean = served(versions=versions)
    with running(mean) as server:
        opened(server.address).predict_tensor(tensors(1))

    assert mean.calls[0][1].model_version == asked


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        (
            {"inputs": (Tensor("pixels", "UINT8", (-1, *IMAGE)),)},
            'input "pixels": is UINT8 at the server, but FP32 in the manifest of Mean 1.0',
        ),
        (
            {"inputs": (Tensor("pixels", "FP32", (-1, 1, 4, 5)),)},
            'input "pixels": has shape [-1, 1, 4, 5] at the server, but [-1, 1, 4, 4] in the manifest',
        ),
        ({"inputs": (Tensor("pixels", "FP32", IMAGE),)}, 'input "pixels": has shape [1, 4, 4] at the server'),
        (
            {"inputs": (PIXELS, PIXELS)},
            'takes 2 inputs, "pixels", "pixels"; the manifest of Mean 1.0 has one',
        ),
        ({"outputs": (Tensor("scores", "BYTES", (-1, 3)),)}, 'output "scores": is BYTES at the server'),
        ({"outputs": (Tensor("scores", "FP32", (-1,)),)}, 'output "scores": has shape [-1] at the server'),
    ],
)
def test_a_model_that_does_not_fit_the_manifest_is_refused_with_the_difference(opened, changes, said):
    with running(served(**changes)) as server, pytest.raises(ConfigurationError) as error:
        opened(server.address)

    assert str(error.value).startswith(f"server {server.address}/Mean: {said}")
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    "changes",
    [
        {"inputs": (Tensor("pixels", "FP32", (-1, -1, 4, -1)),)},
        {"inputs": (), "outputs": ()},
        {"outputs": (Tensor("other", "FP32", (-1, 3)), SCORES), "model": lambda b: {**means(b), "other": 0}},
    ],
    ids=["any size", "nothing told", "several outputs"],
)
def test_what_the_server_leaves_open_is_taken_as_the_manifest_says(manifest_folder, changes):
    path = manifest_folder / "Mean.yml"
    named = "{type: classification, parameters: {probabilities_layer: scores}}"
    path.write_text(path.read_text().replace("{type: classification}", named))
    with (
        running(served(**changes)) as server,
        open_kserve(server.address, Catalog([manifest_folder]), ModelChoice("Mean")) as session,
    ):
        result = session.predict_tensor(tensors(3))

    assert result.failures == ()
    assert result.outputs.indices[:, 0].tolist() == np.argmax(mean_scores(tensors(3)), axis=1).tolist()


def test_a_batch_that_the_server_does_not_take_is_said_with_the_one_that_it_takes(opened):
    with running(served(max_batch_size=4)) as server:
        session = opened(server.address)
        assert len(session.predict_tensor(tensors(4)).input_ids) == 4
        with pytest.raises(ConfigurationError, match=r"takes at most 4 inputs in a request.*--batch_size=4"):
            session.predict_tensor(tensors(5))
    with running(served(inputs=(Tensor("pixels", "FP32", (2, *IMAGE)),))) as server:
        session = opened(server.address)
        assert len(session.predict_tensor(tensors(2)).input_ids) == 2
        with pytest.raises(ConfigurationError, match=r"takes 2 inputs in a request.*--batch_size=2"):
            session.predict_tensor(tensors(1))


UNSERVED = pytest.mark.parametrize(
    ("changes", "error", "said"),
    [
        ({"server_ready": False}, AgentError, "is not ready; wait until it has loaded its models"),
        ({"model_ready": False}, AgentError, 'model "Mean" is not ready; load it there'),
        ({"model_name": "Other"}, UnknownModelError, 'model "Mean": not found: no model Mean here'),
        (
            {"fails": {"ServerReady": (grpc.StatusCode.UNAUTHENTICATED, "who?")}},
            AgentError,
            "refuses the call: who?; a secret is given with --secret",
        ),
        (
            {"fails": {"ServerReady": (grpc.StatusCode.UNIMPLEMENTED, "not here")}},
            AgentError,
            "does not speak the Open Inference Protocol over {door} (not here)",
        ),
        (
            {"holds": {"ModelMetadata"}},
            AgentError,
            'model "Mean": did not answer in time; give it longer with --open_timeout',
        ),
    ],
)
"""Servers that do not serve the model, and what is said of them, whatever the door."""


@contextmanager
def said_in_one_line(error, said, door):
    with pytest.raises(error) as raised:
        yield
    assert said.format(door=door) in str(raised.value)
    assert str(raised.value).startswith("server 127.0.0.1:")
    assert "\n" not in str(raised.value)


@UNSERVED
def test_a_server_that_cannot_serve_the_model_is_said_in_one_line(opened, changes, error, said):
    with running(served(**changes)) as server, said_in_one_line(error, said, "gRPC"):
        opened(server.address, open_timeout_s=1.5)


def test_a_server_without_metadata_of_its_own_is_spoken_to_all_the_same(opened):
    bare = served(fails={"ServerMetadata": (grpc.StatusCode.UNIMPLEMENTED, "no")})
    with running(bare) as server:
        description = opened(server.address).description

    assert description.manifest.framework.name == "server without a name"
    assert description.framework_version == ""


def test_an_address_where_nobody_listens_is_said(opened):
    with running(served()) as server:
        pass
    with pytest.raises(AgentError, match="cannot be reached: connection refused"):
        opened(server.address)


def test_what_the_server_refuses_fails_its_batch_and_no_other(opened):
    def model(batch):
        if batch.min() < 0:
            raise ValueError("negative")
        return means(batch)

    with running(served(model=model)) as server:
        results = list(opened(server.address).predict_batches(batches(3)))

    assert [len(result.input_ids) for result in results] == [0, 2, 2]
    assert [failure.input_id for failure in results[0].failures] == ["0", "1"]
    assert all("negative" in failure.message for failure in results[0].failures)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda r: r.raw_output_contents.pop(), "0 bytes for shape [2, 3]"),
        (lambda r: r.raw_output_contents.append(b""), "2 raw_output_contents for 1 outputs"),
        (
            lambda r: setattr(r.outputs[0], "name", "others"),
            'did not return the requested output "scores"; it returned: "o',
        ),
        (lambda r: setattr(r.outputs[0], "datatype", "BF16"), "datatype BF16 is neither numeric nor BYTES"),
        (lambda r: r.outputs[0].shape.append(2), "24 bytes for shape"),
        (lambda r: r.outputs[0].shape.__setitem__(slice(None), [3, 2]), "for a batch of 2 inputs"),
    ],
)
def test_an_answer_that_makes_no_sense_fails_the_batch(opened, change, said):
    with running(served(change=change)) as server:
        result = opened(server.address).predict_tensor(tensors(2))

    assert result.input_ids == ()
    assert len(result.failures) == 2
    assert said in result.failures[0].message


def test_scores_that_are_no_numbers_fail_their_input_alone(opened):
    def model(batch):
        scores = mean_scores(batch)
        scores[batch.reshape(len(batch), -1).mean(axis=1) < 0] = np.nan
        return {"scores": scores}

    with running(served(model=model)) as server:
        result = opened(server.address).predict_tensor(tensors(3))

    assert result.input_ids == ("1", "2")
    assert [failure.input_id for failure in result.failures] == ["0"]


def test_a_server_that_hangs_is_lost_after_the_time_allowed(opened):
    with running(served(holds={"ModelInfer"})) as server:
        session = opened(server.address, call_timeout_s=0.3)
        began_s = time.monotonic()
        with pytest.raises(AgentError, match="did not answer in time"):
            session.predict_tensor(tensors(1))

    assert time.monotonic() - began_s < DEADLINE_S


def test_a_server_that_dies_ends_the_run_with_an_error(opened):
    dying = served()
    with running(dying) as server:
        results = opened(server.address).predict_batches(batches(400))
        assert len(next(results).input_ids) == 2
        server.server.stop(0).wait()
        with pytest.raises(AgentError, match=r"server 127.0.0.1:\d+: "):
            list(results)


def test_the_secret_and_the_place_in_the_trace_go_with_the_requests(opened):
    mean = served()
    with running(mean) as server:
        session = opened(server.address, secret="open sesame")
        recorder = SpanRecorder(TraceContext.new(), TraceLevel.MODEL_TRACE)
        scope = TraceScope.top(recorder)
        results = list(session.predict_batches(batches(2), scope))
        session.predict_tensor(tensors(1))

    [first, second, untraced] = [metadata for metadata, _ in mean.calls]
    assert first["authorization"] == second["authorization"] == "Bearer open sesame"
    sent = [TraceContext.parse(metadata["traceparent"]) for metadata in (first, second)]
    assert {context.trace_id for context in sent} == {scope.context.trace_id}
    assert "traceparent" not in untraced
    assert len(results) == 2
    chunks = recorder.take()
    kinds = list(itertools.chain.from_iterable(map(_kinds, chunks)))
    names = [recorded.name for recorded in kinds]
    assert names.count("predict") == names.count("predict_step") == 2
    calls = [recorded for recorded in kinds if recorded.role is SpanRole.CLIENT]
    assert [recorded.name for recorded in calls] == ["inference.GRPCInferenceService/ModelInfer"] * 2
    assert dict(calls[0].attributes)["server.port"] == int(server.address.rpartition(":")[2])
    assert {context.span_id for context in sent} <= {int(each) for chunk in chunks for each in chunk.span_id}


def _kinds(chunk):
    return [chunk.kinds[number] for number in chunk.kind]


@pytest.mark.parametrize(
    "options", [SessionOptions(threads=2), SessionOptions(device=Device(DeviceKind.GPU))]
)
def test_what_the_server_decides_cannot_be_asked_for(opened, options):
    with (
        running(served()) as server,
        pytest.raises(ConfigurationError, match="leave out --gpu and --threads"),
    ):
        opened(server.address, options=options)


@pytest.mark.parametrize(
    "options", [SessionOptions(precision=Precision.FLOAT32), SessionOptions(cudnn_benchmark=False)]
)
def test_the_precision_and_cudnn_are_the_servers(opened, options):
    with (
        running(served()) as server,
        pytest.raises(ConfigurationError, match="leave out --dtype and --cudnn_benchmark") as caught,
    ):
        opened(server.address, options=options)
    assert "\n" not in str(caught.value)


def test_the_time_of_a_batch_holds_the_way_to_the_server(opened):
    def slow(batch):
        time.sleep(0.05)
        return means(batch)

    with running(served(model=slow)) as server:
        session = opened(server.address)
        times = session.predict_tensor(tensors(1)).times

    assert times.predict_ns >= 50_000_000
    assert dataclasses.asdict(times)["postprocess_ns"] < times.predict_ns
