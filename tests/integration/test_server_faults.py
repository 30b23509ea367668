"""A predictor that fails, hangs or loses its device fails its requests, not the agent."""

import logging
import re
import threading
from concurrent.futures import ThreadPoolExecutor

import grpc
import numpy as np
import pytest
from agent_client import BATCH, TIMEOUT_S, Client, as_stream, outcome, v1_request
from fake_framework import wait_for
from faulty_framework import LOST, faulty_registry, write_faulty_manifests
from grpc_health.v1 import health_pb2

from inferometer.agent import __version__
from inferometer.protos.inference.v2 import grpc_service_pb2 as v2

SERVING = health_pb2.HealthCheckResponse.SERVING
NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING


@pytest.fixture
def start(start_agent, channel_to, manifest_folder):
    """Starts an agent with faulty models, and returns a client of it."""
    write_faulty_manifests(manifest_folder)

    def start_with(**options):
        return Client(channel_to(start_agent(registry=faulty_registry(), **options).address))

    return start_with


FAULTS = [
    ("OutOfMemory", grpc.StatusCode.RESOURCE_EXHAUSTED, "there is not enough memory for the batch"),
    ("OutOfGpuMemory", grpc.StatusCode.RESOURCE_EXHAUSTED, "CUDA out of memory"),
    ("TooFewRows", grpc.StatusCode.INTERNAL, "output data has shape [0, 1, 4, 4] for a batch of 1 inputs"),
    ("NoArray", grpc.StatusCode.INTERNAL, 'output "data" is list, which is not a tensor'),
    ("Nothing", grpc.StatusCode.INTERNAL, "its predictor returned NoneType, not tensors"),
    (
        "Broken",
        grpc.StatusCode.INTERNAL,
        "failed in the agent (ZeroDivisionError); the agent's log says more",
    ),
    ("LostDevice", grpc.StatusCode.UNAVAILABLE, LOST),
]


def test_predictor_that_goes_wrong_fails_its_request_and_not_the_agent(start):
    client = start()
    for model, code, message in FAULTS:
        for _ in range(2):
            found, details = client.refused(model)
            assert found is code, model
            assert message in details
            assert "secret_place" not in details
        assert client.infer("Echo").raw_output_contents == [BATCH.tobytes()], model


def test_input_of_inferometer_v1_fails_with_the_reason(start):
    client = start()
    for model, _, message in FAULTS[:5]:
        answer = client.v1.Predict(v1_request(client.open(model)), timeout=TIMEOUT_S)
        assert [message in failure.message for failure in answer.failures] == [True], model
        assert len(client.v1.Predict(v1_request(client.open("Echo")), timeout=TIMEOUT_S).input_ids) == 1


def test_numbers_that_are_none_come_out_as_the_model_gave_them(start):
    content = start().infer("NotANumber").raw_output_contents[0]
    assert np.isnan(np.frombuffer(content, np.float32)).all()


def test_agent_that_has_lost_its_device_says_so_until_it_is_restarted(start, caplog):
    client = start()
    assert client.checked() == SERVING
    with caplog.at_level(logging.ERROR, "inferometer.agent.server"):
        client.refused("LostDevice")
        client.refused("LostDevice")
    assert [r.getMessage() for r in caplog.records if "is lost" in r.getMessage()] == [
        f"device cpu is lost: model LostDevice 1.0: {LOST}; "
        "this process can no longer use the device: restart it"
    ]
    for service in ("", "inferometer.v1.PredictService", "inference.GRPCInferenceService"):
        assert client.checked(service) == NOT_SERVING
    assert client.checked("inferometer.v1.RegistryService") == SERVING
    assert not client.v2.ServerReady(v2.ServerReadyRequest(), timeout=TIMEOUT_S).ready
    assert client.status().health == "NOT_SERVING"
    assert [LOST in trouble for trouble in client.status().troubles] == [True]


def test_prediction_that_hangs_is_told_and_holds_up_nobody(start, manifest_folder, caplog):
    client = start(predict_timeout_s=1.5, workers=4)
    with caplog.at_level(logging.WARNING, "inferometer.agent.server"), ThreadPoolExecutor(16) as pool:
        hanging = pool.submit(client.refused, "Hanging")
        wait_for((manifest_folder / "begun").exists)
        waiting = [pool.submit(client.refused, "Hanging") for _ in range(15)]
        for future in [hanging, *waiting]:
            code, message = future.result(TIMEOUT_S)
            assert code is grpc.StatusCode.UNAVAILABLE
            assert "model Hanging 1.0: the prediction under way has run for" in message
        wait_for(lambda: client.checked() == NOT_SERVING)
        assert client.checked("inferometer.v1.PredictService") == NOT_SERVING
        assert client.infer("Echo").raw_output_contents == [BATCH.tobytes()]
        [trouble] = client.status().troubles
        assert trouble.startswith("model Hanging: a prediction has run for ")
        (manifest_folder / "go").touch()
        wait_for(lambda: client.checked() == SERVING)
        assert client.infer("Hanging").raw_output_contents == [BATCH.tobytes()]
    told = [record.getMessage() for record in caplog.records if record.name.endswith("prediction_watch")]
    assert len(told) == 2
    assert re.match(r"model Hanging: a prediction has run for \d\.\d s, and may take 1\.5 s", told[0])
    assert told[1] == "model Hanging: its prediction, which had hung, has ended"


def test_session_and_stream_whose_prediction_hangs_are_told(start, manifest_folder):
    client = start(predict_timeout_s=0.3)
    id_ = client.open("Hanging")
    for call in (
        lambda: client.v1.Predict(v1_request(id_), timeout=TIMEOUT_S),
        lambda: list(client.v1.PredictStream(as_stream([v1_request(id_)]), timeout=TIMEOUT_S)),
    ):
        with pytest.raises(grpc.RpcError) as error:
            call()
        assert error.value.code() is grpc.StatusCode.UNAVAILABLE
        assert "prediction under way" in error.value.details()
    (manifest_folder / "go").touch()


def test_streams_that_fail_at_once_are_told_why_while_their_requests_are_received(start, manifest_folder):
    """Each fails in its thread before the next request is waited for, or after."""
    client = start(predict_timeout_s=0.3)
    id_ = client.open("Hanging")
    with pytest.raises(grpc.RpcError):
        client.v1.Predict(v1_request(id_), timeout=TIMEOUT_S)

    for _ in range(100):
        with pytest.raises(grpc.RpcError) as error:
            list(client.v1.PredictStream(as_stream([v1_request(id_)] * 3), timeout=TIMEOUT_S))
        assert error.value.code() is grpc.StatusCode.UNAVAILABLE, error.value.details()
    (manifest_folder / "go").touch()


def test_traced_calls_that_wait_for_a_stream_that_hangs_are_told(start, manifest_folder):
    client = start(predict_timeout_s=0.3)
    id_ = client.open("Hanging")
    traced = (("traceparent", f"00-{'1' * 32}-{'2' * 16}-01"), ("inferometer-trace-level", "MODEL_TRACE"))
    with ThreadPoolExecutor(1) as pool:
        requests = as_stream([v1_request(id_)])
        first = pool.submit(
            lambda: list(client.v1.PredictStream(requests, metadata=traced, timeout=TIMEOUT_S))
        )
        wait_for((manifest_folder / "begun").exists)
        for call in (
            lambda: client.v1.Predict(v1_request(id_), metadata=traced, timeout=TIMEOUT_S),
            lambda: list(
                client.v1.PredictStream(as_stream([v1_request(id_)]), metadata=traced, timeout=TIMEOUT_S)
            ),
        ):
            with pytest.raises(grpc.RpcError) as error:
                call()
            assert error.value.code() is grpc.StatusCode.UNAVAILABLE
            assert "prediction under way has run for 0." in error.value.details()
        (manifest_folder / "go").touch()
        assert len(first.result(TIMEOUT_S)[0].input_ids) == 1


def test_deadline_of_a_request_is_kept_while_a_prediction_hangs(start, manifest_folder):
    client = start(predict_timeout_s=600)
    request = v1_request(client.open("Hanging"))
    with pytest.raises(grpc.RpcError) as error:
        client.v1.Predict(request, timeout=0.3)
    assert error.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED
    (manifest_folder / "go").touch()
    assert len(client.v1.Predict(request, timeout=TIMEOUT_S).input_ids) == 1


def test_draining_agent_refuses_what_is_new_and_finishes_what_it_has(
    start_agent, channel_to, manifest_folder
):
    server = start_agent()
    client = Client(channel_to(server.address))
    watch = client.health.Watch(health_pb2.HealthCheckRequest(), timeout=TIMEOUT_S)
    assert next(watch).status == SERVING
    with ThreadPoolExecutor(2) as pool:
        slow = pool.submit(client.infer, "Waiting")
        wait_for((manifest_folder / "begun").exists)
        stopped = pool.submit(server.stop, TIMEOUT_S)
        assert next(watch).status == NOT_SERVING
        wait_for(lambda: outcome(client, "Echo") is not grpc.StatusCode.OK)
        assert outcome(client, "Echo") is grpc.StatusCode.UNAVAILABLE
        assert not slow.done()
        (manifest_folder / "go").touch()
        assert slow.result(TIMEOUT_S).raw_output_contents == [BATCH.tobytes()]
        assert stopped.result(TIMEOUT_S)


def test_stopped_agent_leaves_no_thread(start_agent):
    before = set(threading.enumerate())
    server = start_agent(predict_timeout_s=600, metrics_port=0)
    assert server.stop(TIMEOUT_S)
    wait_for(lambda: set(threading.enumerate()) <= before)


def test_status_tells_what_is_loaded_and_what_waits(start, manifest_folder):
    client = start()
    id_ = client.open("Waiting")
    with ThreadPoolExecutor(3) as pool:
        calls = [pool.submit(client.v1.Predict, v1_request(id_), timeout=TIMEOUT_S) for _ in range(3)]
        wait_for(lambda: [model.waiting_requests for model in client.status().models] == [2])
        status = client.status()
        (manifest_folder / "go").touch()
        assert all(len(call.result(TIMEOUT_S).input_ids) == 1 for call in calls)
    [model] = status.models
    assert (model.name, model.version, model.framework_name, model.device) == (
        "Waiting",
        "1.0",
        "Fake",
        "cpu",
    )
    assert 0 < model.busy_ns < TIMEOUT_S * 1e9
    assert (status.health, status.open_sessions, status.inferometer_version) == ("SERVING", 1, __version__)
    assert client.status().models[0].predicted_inputs == 3
    assert client.status().uptime_ns > status.uptime_ns
