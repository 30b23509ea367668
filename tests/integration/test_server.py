"""The agent's server, called over a socket by a client that uses only the protocol."""

import io
import logging
import threading
from concurrent.futures import ThreadPoolExecutor

import grpc
import numpy as np
import pytest
from agent_client import as_stream
from fake_framework import MODELS, SIDE, fake_registry, mean_scores, wait_for
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc
from PIL import Image

from inferometer.agent.server.server import AgentServer, ServerOptions
from inferometer.manifests.catalog import Catalog
from inferometer.manifests.errors import ConfigurationError
from inferometer.protos.inferometer.v1 import predict_pb2, registry_pb2, tensor_pb2
from inferometer.protos.inferometer.v1.predict_pb2_grpc import PredictServiceStub
from inferometer.protos.inferometer.v1.registry_pb2_grpc import RegistryServiceStub

TIMEOUT_S = 30
PREDICT = "/inferometer.v1.PredictService"


@pytest.fixture(scope="module")
def agent(start_shared_agent):
    return start_shared_agent(max_sessions=1000)


@pytest.fixture(scope="module")
def channel(agent):
    with grpc.insecure_channel(agent.address) as found:
        yield found


@pytest.fixture
def predict(channel):
    return PredictServiceStub(channel)


def tensor(array):
    return tensor_pb2.Tensor(dtype=array.dtype.name, shape=array.shape, content=array.tobytes())


def png(value):
    file = io.BytesIO()
    Image.new("L", (SIDE, SIDE), value).save(file, "PNG")
    return file.getvalue()


def open_session(stub, model="Mean", **fields):
    return stub.Open(predict_pb2.OpenRequest(model_name=model, **fields), timeout=TIMEOUT_S).session_id


def request(session_id, *inputs):
    return predict_pb2.PredictRequest(session_id=session_id, inputs=inputs)


def input_of(id_, value):
    return predict_pb2.Input(id=id_, tensor=tensor(np.full((1, SIDE, SIDE), value, np.float32)))


def scores(response):
    """The scores of each input's classes 0, 1, 2."""
    found = response.classifications
    indices = np.frombuffer(found.indices.content, np.int64).reshape(found.indices.shape)
    probabilities = np.frombuffer(found.probabilities.content, np.float32).reshape(indices.shape)
    return np.take_along_axis(probabilities, np.argsort(indices, axis=1), axis=1)


def refused(call, *arguments):
    """The code and the message that a call is refused with."""
    with pytest.raises(grpc.RpcError) as error:
        call(*arguments, timeout=TIMEOUT_S)
    details = error.value.details()
    assert "\n" not in details
    assert "Traceback" not in details
    return error.value.code(), details


def test_every_kind_of_input_is_predicted(start_agent, channel_to):
    fetched = []

    def fetch(url):
        fetched.append(url)
        return png(30)

    predict = PredictServiceStub(channel_to(start_agent(parts={"fetch": fetch}).address))
    response = predict.Predict(
        request(
            open_session(predict),
            predict_pb2.Input(id="image", encoded_image=png(10)),
            predict_pb2.Input(id="pixels", pixels=tensor(np.full((SIDE, SIDE), 20, np.uint8))),
            predict_pb2.Input(id="url", url="http://example.org/x.png"),
            input_of("tensor", 40),
        ),
        timeout=TIMEOUT_S,
    )
    assert list(response.input_ids) == ["image", "pixels", "url", "tensor"]
    assert fetched == ["http://example.org/x.png"]
    batch = np.array([10, 20, 30, 40], np.float32)
    np.testing.assert_array_equal(scores(response), mean_scores(batch[:, None]))
    assert response.times.predict_ns > 0


def test_batch_as_one_tensor_is_predicted(predict):
    batch = np.random.default_rng(0).random((3, 1, SIDE, SIDE), np.float32)
    message = predict_pb2.PredictRequest(session_id=open_session(predict), batch=tensor(batch))
    response = predict.Predict(message, timeout=TIMEOUT_S)
    assert list(response.input_ids) == ["0", "1", "2"]
    np.testing.assert_array_equal(scores(response), mean_scores(batch))


def test_open_says_what_the_model_runs_on(predict):
    response = predict.Open(predict_pb2.OpenRequest(model_name="mean"), timeout=TIMEOUT_S)
    assert '"name":"Mean"' in response.manifest_json
    assert '"hostname"' in response.environment_json
    assert response.device.kind == predict_pb2.DEVICE_KIND_CPU


def test_corrupt_image_fails_alone(predict):
    response = predict.Predict(
        request(
            open_session(predict), predict_pb2.Input(id="bad", encoded_image=b"no image"), input_of("good", 1)
        ),
        timeout=TIMEOUT_S,
    )
    assert list(response.input_ids) == ["good"]
    assert [(f.input_id, f.stage) for f in response.failures] == [("bad", predict_pb2.STAGE_PREPROCESS)]


def test_failing_framework_is_told_for_each_input_and_the_session_lives(predict):
    id_ = open_session(predict, "Failing")
    for _ in range(2):
        response = predict.Predict(request(id_, input_of("a", 1)), timeout=TIMEOUT_S)
        assert [(f.input_id, f.message) for f in response.failures] == [("a", "the fake framework failed")]


BAD_TENSOR = tensor_pb2.Tensor(dtype="float32", shape=[1, SIDE, SIDE], content=b"123")
BAD_TYPE = tensor_pb2.Tensor(dtype="object", shape=[1], content=b"12345678")
GOOD = np.zeros((1, 1, SIDE, SIDE), np.float32)
BAD_REQUESTS = [
    ({}, "the batch is empty"),
    ({"batch": tensor(GOOD[:0])}, "the batch is empty"),
    ({"batch": tensor(GOOD), "inputs": [input_of("a", 1)]}, "both inputs and batch"),
    ({"batch": BAD_TENSOR}, "batch: 3 bytes for shape [1, 4, 4] of float32, which requires 64 bytes"),
    ({"batch": BAD_TYPE}, 'batch: element type "object" is not known'),
    ({"inputs": [predict_pb2.Input(id="a", tensor=BAD_TENSOR)]}, "input a: 3 bytes for shape"),
    ({"inputs": [predict_pb2.Input(id="a", pixels=tensor(GOOD))]}, "input a: pixels are uint8"),
    ({"inputs": [predict_pb2.Input(id="a")]}, "input a: has no data"),
]


@pytest.mark.parametrize("streamed", [False, True], ids=["unary", "streamed"])
@pytest.mark.parametrize(("fields", "message"), BAD_REQUESTS, ids=[text for _, text in BAD_REQUESTS])
def test_bad_request_is_an_invalid_argument_and_the_session_lives(predict, fields, message, streamed):
    id_ = open_session(predict)
    bad = predict_pb2.PredictRequest(session_id=id_, **fields)
    if streamed:
        code, details = refused(
            lambda timeout: list(predict.PredictStream(as_stream([bad]), timeout=timeout))
        )
    else:
        code, details = refused(predict.Predict, bad)
    assert code is grpc.StatusCode.INVALID_ARGUMENT
    assert message in details
    assert predict.Predict(request(id_, input_of("a", 1)), timeout=TIMEOUT_S).input_ids == ["a"]


def test_batch_of_another_shape_is_an_invalid_argument(predict):
    bad = predict_pb2.PredictRequest(session_id=open_session(predict), batch=tensor(GOOD[0, 0]))
    code, details = refused(predict.Predict, bad)
    assert code is grpc.StatusCode.INVALID_ARGUMENT
    assert "tensor has shape [4, 4]; the model takes [4, 1, 4, 4]" in details


@pytest.mark.parametrize(
    ("fields", "code", "message"),
    [
        ({"model_name": "Maen"}, grpc.StatusCode.NOT_FOUND, 'did you mean "Mean"'),
        ({"model_name": ""}, grpc.StatusCode.NOT_FOUND, 'unknown model ""'),
        (
            {"model_name": "Mean", "framework_name": "Fak"},
            grpc.StatusCode.NOT_FOUND,
            'unknown framework "Fak"; did you mean "Fake"?',
        ),
        ({"model_name": "Mean", "model_version": "7"}, grpc.StatusCode.NOT_FOUND, "no version 7"),
        ({"model_name": "Mean", "model_version": "?"}, grpc.StatusCode.INVALID_ARGUMENT, "version"),
        ({"model_name": "Mean", "threads": 9999}, grpc.StatusCode.INVALID_ARGUMENT, "threads is 9999"),
        (
            {"model_name": "Mean", "preprocess_threads": 2**32 - 1},
            grpc.StatusCode.INVALID_ARGUMENT,
            "preprocess_threads is 4294967295; at most 1024",
        ),
        (
            {"model_name": "Mean", "device": predict_pb2.Device(kind=predict_pb2.DEVICE_KIND_GPU)},
            grpc.StatusCode.FAILED_PRECONDITION,
            "Fake has no GPU",
        ),
        (
            {"model_name": "Mean", "device": predict_pb2.Device(kind=77)},
            grpc.StatusCode.INVALID_ARGUMENT,
            "device kind 77 is not known",
        ),
    ],
)
def test_model_that_cannot_be_opened_says_why(predict, fields, code, message):
    found, details = refused(predict.Open, predict_pb2.OpenRequest(**fields))
    assert found is code
    assert message in details


def test_session_that_is_not_open_is_not_found(predict):
    id_ = open_session(predict)
    for _ in range(2):
        predict.Close(predict_pb2.CloseRequest(session_id=id_), timeout=TIMEOUT_S)
    for unknown in (id_, "", "x" * 1000):
        code, details = refused(predict.Predict, request(unknown, input_of("a", 1)))
        assert code is grpc.StatusCode.NOT_FOUND
        assert "the session is not open" in details


def test_reset_closes_every_session(start_agent, channel_to):
    predict = PredictServiceStub(channel_to(start_agent().address))
    ids = [open_session(predict) for _ in range(3)]
    assert predict.Reset(predict_pb2.ResetRequest(), timeout=TIMEOUT_S).closed_sessions == 3
    assert refused(predict.Predict, request(ids[0], input_of("a", 1)))[0] is grpc.StatusCode.NOT_FOUND


def test_one_session_too_many_is_refused_until_another_is_closed(start_agent, channel_to):
    predict = PredictServiceStub(channel_to(start_agent(max_sessions=2).address))
    first, _ = open_session(predict), open_session(predict)
    code, details = refused(predict.Open, predict_pb2.OpenRequest(model_name="Mean"))
    assert code is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert "limit of 2 open sessions" in details
    predict.Close(predict_pb2.CloseRequest(session_id=first), timeout=TIMEOUT_S)
    assert open_session(predict)


@pytest.mark.parametrize("method", ["Open", "Close", "Predict", "PredictStream", "Dataset"])
@pytest.mark.parametrize("content", [b"\xff", b"\x0a\xff\xff", b"\x0b\x00", bytes(range(200))])
def test_random_bytes_are_an_invalid_argument(channel, predict, method, content):
    streams = method in {"PredictStream", "Dataset"}
    if streams:
        invoke = channel.stream_stream(f"{PREDICT}/{method}")
        code, details = refused(lambda timeout: list(invoke(iter([content]), timeout=timeout)))
    else:
        code, details = refused(channel.unary_unary(f"{PREDICT}/{method}"), content)
    assert code is grpc.StatusCode.INVALID_ARGUMENT
    assert details == f"the request to inferometer.v1.PredictService/{method} is not a message of its type"
    assert open_session(predict)


def test_too_large_message_is_refused_and_the_agent_lives(start_agent, channel_to):
    predict = PredictServiceStub(channel_to(start_agent(max_message_bytes=10_000).address))
    id_ = open_session(predict)
    large = request(id_, predict_pb2.Input(id="a", encoded_image=b"x" * 20_000))
    code, details = refused(predict.Predict, large)
    assert code is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert "larger than max" in details
    assert predict.Predict(request(id_, input_of("a", 1)), timeout=TIMEOUT_S).input_ids == ["a"]


def test_fault_of_the_program_is_logged_here_and_told_without_details(predict, caplog):
    id_ = open_session(predict, "Crashing")
    with caplog.at_level(logging.ERROR, "inferometer.agent.server"):
        code, details = refused(predict.Predict, request(id_, input_of("a", 1)))
    assert code is grpc.StatusCode.INTERNAL
    assert "secret detail" not in details
    assert "ZeroDivisionError: a secret detail" in caplog.text
    assert open_session(predict)


def test_stream_answers_in_order_whether_the_client_waits_or_not(predict):
    id_ = open_session(predict)
    batches = [request(id_, *(input_of(f"{n}-{i}", n) for i in range(2))) for n in range(20)]
    ahead = [list(r.input_ids) for r in predict.PredictStream(as_stream(batches), timeout=TIMEOUT_S)]
    assert ahead == [[f"{n}-0", f"{n}-1"] for n in range(20)]

    answered = threading.Semaphore(1)

    def one_by_one():
        for batch in batches:
            assert answered.acquire(timeout=TIMEOUT_S)
            yield batch

    waiting = []
    for response in predict.PredictStream(as_stream(one_by_one()), timeout=TIMEOUT_S):
        waiting.append(list(response.input_ids))
        answered.release()
    assert waiting == ahead


def test_stream_of_nothing_answers_nothing(predict):
    assert list(predict.PredictStream(iter([]), timeout=TIMEOUT_S)) == []


def test_stream_stays_with_one_session(predict):
    first, second = open_session(predict), open_session(predict)
    both = [request(first, input_of("a", 1)), request(second, input_of("b", 1))]
    code, details = refused(lambda timeout: list(predict.PredictStream(as_stream(both), timeout=timeout)))
    assert code is grpc.StatusCode.INVALID_ARGUMENT
    assert "the session of the first" in details


def test_eight_clients_at_once_each_get_their_own_answers(agent, channel_to):
    def run(client):
        predict = PredictServiceStub(channel_to(agent.address))
        id_ = open_session(predict)
        values = [client * 100 + n for n in range(20)]
        for value in values[:10]:
            response = predict.Predict(request(id_, input_of("x", value)), timeout=TIMEOUT_S)
            assert scores(response)[0, 0] == value
        stream = predict.PredictStream(
            as_stream([request(id_, input_of(str(value), value)) for value in values]), timeout=TIMEOUT_S
        )
        assert [scores(response)[0, 0] for response in stream] == values
        return True

    with ThreadPoolExecutor(8) as pool:
        assert all(pool.map(run, range(8)))


def test_cancelled_stream_gives_its_session_and_its_place_back(start_agent, channel_to, manifest_folder):
    predict = PredictServiceStub(channel_to(start_agent(workers=2).address))  # one stream at a time
    id_ = open_session(predict)
    more = threading.Event()

    def requests():
        yield request(id_, input_of("a", 1))
        more.wait(TIMEOUT_S)

    stream = predict.PredictStream(as_stream(requests()), timeout=TIMEOUT_S)
    assert next(stream).input_ids == ["a"]
    code, details = refused(
        lambda timeout: list(predict.PredictStream(as_stream([request(id_)]), timeout=timeout))
    )
    assert code is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert "limit of 1 streams" in details
    stream.cancel()
    more.set()

    def is_free():
        try:
            return [r.input_ids for r in predict.PredictStream(as_stream([request(id_, input_of("b", 1))]))]
        except grpc.RpcError as error:
            return error.code() is not grpc.StatusCode.RESOURCE_EXHAUSTED

    wait_for(is_free)
    assert predict.Predict(request(id_, input_of("c", 1)), timeout=TIMEOUT_S).input_ids == ["c"]


def test_lists_frameworks_and_models(channel):
    registry = RegistryServiceStub(channel)
    found = registry.ListFrameworks(registry_pb2.ListFrameworksRequest(), timeout=TIMEOUT_S)
    assert [(f.name, f.installed, f.install) for f in found.frameworks] == [
        ("Fake", True, "pip install fake")
    ]
    models = registry.ListModels(registry_pb2.ListModelsRequest(framework_name="fake"), timeout=TIMEOUT_S)
    assert {m.name for m in models.models} == set(MODELS)
    assert all(m.runnable for m in models.models)
    code, details = refused(registry.ListModels, registry_pb2.ListModelsRequest(framework_name="Fok"))
    assert code is grpc.StatusCode.NOT_FOUND
    assert 'did you mean "Fake"?' in details


def test_reflection_lists_the_services(channel):
    stub = reflection_pb2_grpc.ServerReflectionStub(channel)
    asked = [reflection_pb2.ServerReflectionRequest(list_services="")]
    (answer,) = stub.ServerReflectionInfo(iter(asked), timeout=TIMEOUT_S)
    assert {service.name for service in answer.list_services_response.service} == {
        "inference.GRPCInferenceService",
        "inferometer.v1.PredictService",
        "inferometer.v1.RegistryService",
        "grpc.health.v1.Health",
        "grpc.reflection.v1.ServerReflection",
        "grpc.reflection.v1alpha.ServerReflection",
    }


def test_health_is_serving_until_the_agent_stops(start_agent, channel_to):
    agent = start_agent()
    stub = health_pb2_grpc.HealthStub(channel_to(agent.address))
    for service in ("", "inferometer.v1.PredictService", "inferometer.v1.RegistryService"):
        answer = stub.Check(health_pb2.HealthCheckRequest(service=service), timeout=TIMEOUT_S)
        assert answer.status == health_pb2.HealthCheckResponse.SERVING
    watch = stub.Watch(health_pb2.HealthCheckRequest(service=""), timeout=TIMEOUT_S)
    assert next(watch).status == health_pb2.HealthCheckResponse.SERVING
    assert agent.stop(TIMEOUT_S)
    assert [answer.status for answer in watch] == [health_pb2.HealthCheckResponse.NOT_SERVING]


def test_secret_is_asked_for_everything_but_health(start_agent, channel_to):
    channel = channel_to(start_agent(secret="open sesame").address)
    stub, health = PredictServiceStub(channel), health_pb2_grpc.HealthStub(channel)
    assert health.Check(health_pb2.HealthCheckRequest(), timeout=TIMEOUT_S).status == 1
    asked = predict_pb2.OpenRequest(model_name="Mean")
    for metadata in (None, [("authorization", "Bearer sesame")], [("authorization", "open sesame")]):
        with pytest.raises(grpc.RpcError) as error:
            stub.Open(asked, metadata=metadata, timeout=TIMEOUT_S)
        assert error.value.code() is grpc.StatusCode.UNAUTHENTICATED
    with pytest.raises(grpc.RpcError) as error:  # also before any request of a stream is sent
        list(stub.PredictStream(iter([]), timeout=TIMEOUT_S))
    assert error.value.code() is grpc.StatusCode.UNAUTHENTICATED
    right = [("authorization", "Bearer open sesame")]
    assert stub.Open(asked, metadata=right, timeout=TIMEOUT_S).session_id


@pytest.mark.parametrize("secret", ["", "naïve", "two\nlines"])
def test_secret_that_cannot_be_sent_is_refused(start_agent, secret):
    with pytest.raises(ConfigurationError, match="printable ASCII"):
        start_agent(secret=secret)


def test_second_agent_on_one_port_is_refused(agent, manifest_folder):
    port = int(agent.address.rpartition(":")[2])
    with pytest.raises(ConfigurationError, match=f"cannot listen on 127.0.0.1:{port}: another program"):
        AgentServer(Catalog([manifest_folder]), fake_registry(), ServerOptions(port=port))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"port": 70_000}, "port 70000: a port is 0…65535"),
        ({"metrics_port": 70_000}, "port 70000 for metrics: a port is 0…65535"),
        ({"http_port": -1}, "port -1 for HTTP: a port is 0…65535"),
        ({"host": "no-such-host.invalid"}, "cannot listen on host no-such-host.invalid: Name or service"),
        (
            {"host": "192.0.2.1", "insecure": True},
            "cannot listen on 192.0.2.1:0: Cannot assign requested address",
        ),
    ],
)
def test_address_that_cannot_be_bound_is_refused(manifest_folder, options, message):
    with pytest.raises(ConfigurationError, match=message):
        AgentServer(Catalog([manifest_folder]), fake_registry(), ServerOptions(**{"port": 0, **options}))


def test_unused_session_is_closed_after_a_while(start_agent, channel_to, manifest_folder):
    predict = PredictServiceStub(channel_to(start_agent(session_idle_s=0.05).address))
    id_ = open_session(predict)
    wait_for((manifest_folder / "closed").exists)
    assert refused(predict.Predict, request(id_, input_of("a", 1)))[0] is grpc.StatusCode.NOT_FOUND
