"""The log of a served agent: a line per call, in text or JSON, with the client's request id."""

import io
import json
import logging
from contextlib import suppress

import grpc
import pytest
from agent_client import TIMEOUT_S, Client, as_stream, outcome, v1_request
from fake_framework import wait_for
from faulty_framework import faulty_registry, write_faulty_manifests
from grpc_health.v1 import health_pb2

from inferometer.agent.server.observation import LogFormat
from inferometer.protos.inferometer.v1 import predict_pb2, registry_pb2

TRACE = "0af7651916cd43dd8448eb211c80319c"
INFER = "inference.GRPCInferenceService/ModelInfer"


class Log:
    """What the agent logs, in one format."""

    def __init__(self, log_format):
        self.stream = io.StringIO()
        self.handler = logging.StreamHandler(self.stream)
        self.handler.setFormatter(log_format.formatter)

    @property
    def text(self):
        return self.stream.getvalue()

    def documents(self, **wanted):
        found = [json.loads(line) for line in self.text.splitlines()]
        return [line for line in found if wanted.items() <= line.items()]


@pytest.fixture
def log_as():
    logger = logging.getLogger("inferometer.agent")
    before, handlers = logger.level, []

    def begin(log_format):
        log = Log(log_format)
        handlers.append(log.handler)
        logger.addHandler(log.handler)
        logger.setLevel(logging.DEBUG)
        return log

    yield begin
    logger.setLevel(before)
    for handler in handlers:
        logger.removeHandler(handler)


@pytest.fixture
def client(start_agent, channel_to, manifest_folder):
    write_faulty_manifests(manifest_folder)
    return Client(channel_to(start_agent(registry=faulty_registry()).address))


def test_call_is_one_json_line_that_names_request_and_trace(client, log_as):
    log = log_as(LogFormat.JSON)
    metadata = [("x-request-id", "order-7/a"), ("traceparent", f"00-{TRACE}-b7ad6b7169203331-00")]
    _, call = client.v1.Open.with_call(
        predict_pb2.OpenRequest(model_name="Echo"), metadata=metadata, timeout=TIMEOUT_S
    )
    assert ("x-request-id", "order-7/a") in [tuple(pair) for pair in call.trailing_metadata()]
    wait_for(lambda: log.documents(code="OK"))
    [line] = log.documents(code="OK")
    assert line.pop("time").endswith("Z")
    assert 0 < line.pop("duration_s") < TIMEOUT_S
    assert line.pop("message").startswith("inferometer.v1.PredictService/Open OK in ")
    assert line.pop("peer").startswith("ipv4:127.0.0.1:")
    assert line == {
        "level": "INFO",
        "logger": "inferometer.agent.server.observation",
        "request_id": "order-7/a",
        "trace_id": TRACE,
        "method": "inferometer.v1.PredictService/Open",
        "code": "OK",
        "model": "Echo",
    }


def test_request_without_a_name_that_fits_gets_one_of_its_own(client, log_as):
    log = log_as(LogFormat.JSON)
    names = set()
    for asked in ([], [("x-request-id", "two words")], [("x-request-id", "x" * 129)], [("x-request-id", "")]):
        _, call = client.registry.ListModels.with_call(
            registry_pb2.ListModelsRequest(), metadata=asked, timeout=TIMEOUT_S
        )
        names.add(dict(call.trailing_metadata())["x-request-id"])
    assert len(names) == 4
    assert all(name.isascii() and " " not in name and len(name) < 40 for name in names)
    wait_for(lambda: len(log.documents(code="OK")) == 4)
    assert {line["request_id"] for line in log.documents(code="OK")} == names


def test_call_that_fails_has_its_name_in_the_answer_and_its_traceback_in_the_log(client, log_as):
    log = log_as(LogFormat.JSON)
    with pytest.raises(grpc.RpcError) as error:
        client.v1.Open(
            predict_pb2.OpenRequest(model_name="Nowhere"), metadata=[("x-request-id", "a")], timeout=TIMEOUT_S
        )
    trailing = dict(error.value.trailing_metadata())
    assert trailing == {"x-request-id": "a", "inferometer-error": "UnknownModelError"}
    outcome(client, "Broken")
    wait_for(lambda: log.documents(code="INTERNAL"))
    [fault] = [line for line in log.documents(method=INFER) if "exception" in line]
    assert "ZeroDivisionError" in fault["exception"]
    [line] = log.documents(code="INTERNAL")
    assert (line["level"], line["request_id"]) == ("WARNING", fault["request_id"])
    assert log.documents(code="NOT_FOUND")[0]["level"] == "INFO"


def test_checks_of_health_are_told_only_to_who_wants_everything(client, log_as):
    log = log_as(LogFormat.JSON)
    client.health.Check(health_pb2.HealthCheckRequest(), timeout=TIMEOUT_S)
    wait_for(lambda: log.documents(code="OK"))
    assert [line["level"] for line in log.documents(code="OK")] == ["DEBUG"]


def test_stream_is_one_line_at_its_end(client, log_as):
    id_ = client.open("Echo")
    log = log_as(LogFormat.JSON)
    list(client.v1.PredictStream(as_stream([v1_request(id_)] * 3), timeout=TIMEOUT_S))
    wait_for(lambda: log.documents(code="OK"))
    assert [
        line["model"] for line in log.documents(method="inferometer.v1.PredictService/PredictStream")
    ] == ["Echo"]


def test_text_is_one_line_with_the_name_of_the_request(client, log_as):
    log = log_as(LogFormat.TEXT)
    client.v1.Open(
        predict_pb2.OpenRequest(model_name="Echo"), metadata=[("x-request-id", "a")], timeout=TIMEOUT_S
    )
    wait_for(lambda: "\n" in log.text)
    [line] = log.text.splitlines()
    assert line.startswith(
        "INFO inferometer.agent.server.observation: inferometer.v1.PredictService/Open OK in "
    )
    assert line.endswith(" ms [a]")


@pytest.mark.parametrize("log_format", list(LogFormat))
def test_secret_stands_in_no_line(start_agent, channel_to, log_as, log_format):
    log = log_as(log_format)
    channel = channel_to(start_agent(secret="open sesame").address)
    client = Client(channel)
    for secret in ("open sesame", "wrong sesame"):
        metadata = [("authorization", f"Bearer {secret}")]
        for model in ("Echo", "Crashing", "Nowhere"):
            with suppress(grpc.RpcError):
                client.v1.Open(
                    predict_pb2.OpenRequest(model_name=model), metadata=metadata, timeout=TIMEOUT_S
                )
    wait_for(lambda: log.text.count("\n") >= 6)
    assert "UNAUTHENTICATED" in log.text
    assert "sesame" not in log.text
