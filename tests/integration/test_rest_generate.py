"""The generate extension of a served agent over HTTP, on a real socket, with the shipped model."""

from __future__ import annotations

import http.client
import json
from collections.abc import Iterator, Mapping
from typing import Any

import pytest
from test_rest_openai import PARTS, TRACEPARENT, ask, connected, started, until

from inferometer.agent.server.native.call_tracing import ServerTracing
from inferometer.agent.server.server import AgentServer
from inferometer.agent.tracing.exporting import TraceAddress, TraceExport
from inferometer.agent.tracing.recorder import TraceLevel
from tests.integration.trace_collectors import HOST, Seen, otlp_grpc

MODEL = "/v2/models/ToyLlama"
GREEDY = {"text_input": "You may", "parameters": {"max_tokens": 20, "temperature": 0}}
TEXT = " add Your own attrib"


@pytest.fixture(scope="module")
def agent() -> Iterator[AgentServer]:
    with started(secret="hush", metrics_port=0) as server:
        yield server


def generate(agent: AgentServer, body: object, path: str = f"{MODEL}/generate") -> tuple[int, Any]:
    return ask(agent, path, body, {"authorization": "Bearer hush"})


def begin(agent: AgentServer, body: object, path: str = MODEL) -> http.client.HTTPConnection:
    connection = connected(agent)
    headers = {"authorization": "Bearer hush"}
    connection.request("POST", f"{path}/generate_stream", json.dumps(body), headers)
    return connection


def events(agent: AgentServer, body: object, path: str = MODEL) -> list[Any]:
    connection = begin(agent, body, path)
    response = connection.getresponse()
    assert response.status == 200
    assert response.getheader("content-type") == "text/event-stream; charset=utf-8"
    *lines, rest = response.read().decode().split("\n\n")
    connection.close()
    assert rest == ""
    assert all(line.startswith("data: ") for line in lines)
    return [json.loads(line.removeprefix("data: ")) for line in lines]


@pytest.mark.parametrize("version", ["", "/versions/1", "/versions/1.0"])
def test_a_text_has_the_name_and_the_version_of_its_model(agent: AgentServer, version: str) -> None:
    head = {"model_name": "ToyLlama", "model_version": "1"}
    status, found = generate(agent, GREEDY, f"{MODEL}{version}/generate")
    assert (status, found) == (200, {**head, "text_output": TEXT})
    parts = events(agent, GREEDY, MODEL + version)
    assert [{**part, "text_output": ""} for part in parts] == [{**head, "text_output": ""}] * 20
    assert "".join(part["text_output"] for part in parts) == TEXT


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"max_tokens": 4}, " add"),
        ({"max_tokens": 4, "parameters": {"max_tokens": 9}}, " add"),
        ({"parameters": {"max_tokens": 20, "temperature": 0, "stop": [" own"]}}, " add Your"),
        ({"exclude_input_in_output": True, "stream": False, "temperature": 0.0}, TEXT),
        ({"seed": None, "user": "me"}, TEXT),
    ],
)
def test_parameters_stand_in_the_request_or_in_its_parameters(
    agent: AgentServer, change: Mapping[str, Any], text: str
) -> None:
    body = {**GREEDY, "parameters": {**GREEDY["parameters"], **change.get("parameters", {})}}  # type: ignore[dict-item]
    assert generate(agent, {**body, **{k: v for k, v in change.items() if k != "parameters"}})[1] == {
        "model_name": "ToyLlama",
        "model_version": "1",
        "text_output": text,
    }


def test_a_stream_may_have_the_whole_text_in_one_event(agent: AgentServer) -> None:
    [found] = events(agent, {**GREEDY, "stream": False})
    assert found["text_output"] == TEXT


@pytest.mark.parametrize(
    ("path", "body", "status", "message"),
    [
        ("/v2/models/ToyLama/generate", GREEDY, 404, 'unknown model "ToyLama"; did you mean "ToyLlama"'),
        ("/v2/models/ToyLlama/versions/7/generate", GREEDY, 404, "7"),
        ("/v2/models/DigitsCNN/generate", GREEDY, 400, "model DigitsCNN generates no text: its task is"),
        (f"{MODEL}/generate", {}, 400, "text_input: Field required"),
        (f"{MODEL}/generate", {"text_input": 5}, 400, "text_input: Input should be a valid string"),
        (f"{MODEL}/generate", {"text_input": ""}, 400, "the prompt has no tokens"),
        (f"{MODEL}/generate", {"text_input": "x" * 2048}, 400, "but the context of model ToyLlama has 2048"),
        (f"{MODEL}/generate", {**GREEDY, "max_tokens": 5000}, 400, "and 5000 to generate, but the context"),
        (f"{MODEL}/generate", {**GREEDY, "parameters": 5}, 400, "the request: parameters is not an object"),
        (f"{MODEL}/generate", {**GREEDY, "stream": True}, 400, "use generate_stream"),
        (f"{MODEL}/generate", {**GREEDY, "exclude_input_in_output": False}, 400, "exclude_input_in_output"),
        (f"{MODEL}/generate", {**GREEDY, "parameters": {"seed": -1}}, 400, "seed: Input should be greater"),
        (f"{MODEL}/generate", "{", 400, "the request is not JSON"),
        (f"{MODEL}/generate", None, 405, "GET is not for this path"),
        (f"{MODEL}/generate_stream", {**GREEDY, "max_tokens": 0}, 400, "max_tokens: Input should be"),
        (
            f"{MODEL}/infer",
            {"inputs": [{"name": "text_input", "datatype": "BYTES", "shape": [1], "data": ["a"]}]},
            400,
            "model ToyLlama 1.0 generates text; ask for it with generate over HTTP",
        ),
    ],
)
def test_wrong_requests_get_an_error_in_the_protocols_form(
    agent: AgentServer, path: str, body: object, status: int, message: str
) -> None:
    found_status, found = generate(agent, body, path)
    assert (found_status, list(found)) == (status, ["error"])
    assert message in found["error"]


def test_the_secret_is_required(agent: AgentServer) -> None:
    assert ask(agent, f"{MODEL}/generate", GREEDY)[0] == 401


def test_a_language_model_is_described(agent: AgentServer) -> None:
    headers = {"authorization": "Bearer hush"}
    _, found = ask(agent, MODEL, headers=headers)
    tensor = {"datatype": "BYTES", "shape": [1]}
    assert found == {
        "name": "ToyLlama",
        "versions": ["1"],
        "platform": "pytorch",
        "inputs": [{"name": "text_input", **tensor}],
        "outputs": [{"name": "text_output", **tensor}],
    }
    _, config = ask(agent, f"{MODEL}/config", headers=headers)
    assert config["model_transaction_policy"] == {"decoupled": True}
    assert config["max_batch_size"] == 0
    assert "dynamic_batching" not in config
    assert "generate" in ask(agent, "/v2", headers=headers)[1]["extensions"]


def test_a_language_model_is_ready_once_it_is_open() -> None:
    with started() as server:
        statuses = []
        for _ in range(2):
            connection = connected(server)
            connection.request("GET", f"{MODEL}/ready")
            statuses.append(connection.getresponse().status)
            connection.close()
            ask(server, f"{MODEL}/generate", GREEDY)
    assert statuses == [400, 200]


@pytest.mark.parametrize("stream", [True, False])
def test_a_client_that_leaves_ends_its_request(agent: AgentServer, stream: bool) -> None:
    with agent._v2.repository.lease_engine("ToyLlama") as served:
        engine = served.engine
    body = {"text_input": "You may", "max_tokens": 2000, "ignore_eos": True, "stream": stream}
    connection = begin(agent, body)
    until(lambda: bool(engine._running))
    running = engine._running[0]
    connection.close()
    until(lambda: not engine._running)
    assert running.is_cancelled
    assert len(running.tokens) < 2000


def test_a_failure_in_the_middle_is_the_last_event(
    agent: AgentServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    with agent._v2.repository.lease_engine("ToyLlama") as served:
        engine = served.engine

    def fail(_: object) -> Any:
        raise RuntimeError("no more")

    monkeypatch.setattr(engine._model, "step", fail)
    first, last = events(agent, GREEDY)
    assert first["text_output"] == " "
    assert list(last) == ["error"]
    assert "no more" in last["error"]


def test_requests_are_counted_and_traced_as_those_of_openais_protocol() -> None:
    seen, name = Seen(), "POST /v2/models/{model}/generate_stream"
    with otlp_grpc(seen) as port:
        tracing = ServerTracing(
            TraceExport.open(TraceAddress.parse(f"{HOST}:{port}")), TraceLevel.MODEL_TRACE
        )
        with started(metrics_port=0, tracing=tracing) as server:
            connection = connected(server)
            headers = {"traceparent": TRACEPARENT}
            connection.request("POST", f"{MODEL}/generate_stream", json.dumps(GREEDY), headers)
            connection.getresponse().read()
            connection.close()
            samples = {
                (each.name, each.labels.get("type", each.labels.get("part"))): each.value
                for family in server.metrics()
                for each in family.samples
            }
        seen.wait_for(lambda: name in {span.name for span in seen.spans.values()})
    assert {span.name for span in seen.spans.values()} == {name, "text_completion ToyLlama", "queue", *PARTS}
    assert samples["inferometer_tokens_total", "input"] == 7
    assert samples["inferometer_tokens_total", "output"] == 20
    assert samples["inferometer_generation_duration_seconds_count", "prefill"] == 1
