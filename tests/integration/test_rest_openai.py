"""OpenAI's protocol of a served agent, on a real socket, with the shipped model."""

from __future__ import annotations

import http.client
import json
import socket
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from typing import Any

import pytest

from inferometer.agent.frameworks.pytorch.language_model import PyTorchLanguageModel
from inferometer.agent.generation.opening import open_engine
from inferometer.agent.inference.registry import Registry
from inferometer.agent.server.native.call_tracing import ServerTracing
from inferometer.agent.server.server import AgentServer, ServerOptions
from inferometer.agent.serving.batching import BatchingOptions
from inferometer.agent.serving.served_models import ServingOptions
from inferometer.agent.tracing.exporting import TraceAddress, TraceExport
from inferometer.agent.tracing.recorder import TraceLevel
from inferometer.client.remote.connection import RemoteOptions
from inferometer.client.remote.openai.server import open_openai
from inferometer.evaluators.load.arrivals import Extent
from inferometer.evaluators.load.issuer import RunLimits
from inferometer.evaluators.load.load_session import ClosedLoop, run_closed_loop
from inferometer.evaluators.load.local_streams import LocalGeneration
from inferometer.evaluators.load.streams import Answer, GenerationSystem, Prompt
from inferometer.manifests.catalog import Catalog
from tests.integration.trace_collectors import HOST, Seen, otlp_grpc

WAIT_S = 20.0
TRACEPARENT = f"00-{'a' * 32}-{0xB:016x}-01"
COMPLETION = {"model": "ToyLlama", "prompt": "You may", "max_tokens": 20, "temperature": 0}
CHAT = {"model": "ToyLlama", "messages": [{"role": "user", "content": "You may"}], "temperature": 0}


@contextmanager
def started(**options: Any) -> Iterator[AgentServer]:
    serving, tracing = (
        ServingOptions(batching=BatchingOptions(max_batch_size=4)),
        options.pop("tracing", None),
    )
    chosen = ServerOptions(**{"port": 0, "http_port": 0, "grace_s": 10.0, "serving": serving, **options})
    with AgentServer(Catalog(), Registry(), chosen, tracing=tracing) as server:
        yield server


@pytest.fixture(scope="module")
def agent() -> Iterator[AgentServer]:
    with started(metrics_port=0) as server:
        yield server


def connected(agent: AgentServer) -> http.client.HTTPConnection:
    assert agent.http_url is not None
    return http.client.HTTPConnection(agent.http_url.removeprefix("http://"), timeout=WAIT_S)


def ask(
    agent: AgentServer, path: str, body: object = None, headers: Mapping[str, str] | None = None
) -> tuple[int, Any]:
    connection = connected(agent)
    content = body if body is None or isinstance(body, str) else json.dumps(body)
    connection.request("GET" if body is None else "POST", path, content, dict(headers or {}))
    response = connection.getresponse()
    found = json.loads(response.read())
    connection.close()
    return response.status, found


def events(agent: AgentServer, path: str, body: Mapping[str, Any]) -> list[Any]:
    """The objects of a stream; the last event must be ``[DONE]``."""
    connection = connected(agent)
    connection.request("POST", path, json.dumps({**body, "stream": True}))
    response = connection.getresponse()
    assert response.status == 200
    assert response.getheader("content-type") == "text/event-stream; charset=utf-8"
    lines = response.read().decode().split("\n\n")
    connection.close()
    assert lines[-2:] == ["data: [DONE]", ""]
    assert all(line.startswith("data: ") for line in lines[:-1])
    return [json.loads(line.removeprefix("data: ")) for line in lines[:-2]]


def test_the_models_are_those_that_generate(agent: AgentServer) -> None:
    status, found = ask(agent, "/v1/models")
    assert (status, [each["id"] for each in found["data"]]) == (200, ["ToyLlama"])


def test_a_completion_is_what_the_model_generates(agent: AgentServer) -> None:
    status, found = ask(agent, "/v1/completions", COMPLETION)
    assert status == 200
    assert found["object"] == "text_completion"
    choice = {"index": 0, "text": " add Your own attrib", "logprobs": None, "finish_reason": "length"}
    assert found["choices"] == [choice]
    assert found["usage"] == {"prompt_tokens": 7, "completion_tokens": 20, "total_tokens": 27}
    times = found["timings"]
    assert times.pop("steps") == 19
    assert all(value > 0 for value in times.values())


def test_a_stream_has_the_same_text_piece_by_piece(agent: AgentServer) -> None:
    found = events(agent, "/v1/completions", COMPLETION)
    texts = [each["choices"][0]["text"] for each in found]
    assert "".join(texts) == " add Your own attrib"
    assert len(texts) == 20
    reasons = [each["choices"][0]["finish_reason"] for each in found]
    assert reasons == [None] * 19 + ["length"]
    assert len({each["id"] for each in found}) == 1
    assert not any("usage" in each for each in found)


def test_a_chat_is_answered_whole_and_as_a_stream(agent: AgentServer) -> None:
    body = {**CHAT, "max_completion_tokens": 12}
    status, whole = ask(agent, "/v1/chat/completions", body)
    assert (status, whole["object"]) == (200, "chat.completion")
    message = whole["choices"][0]["message"]
    assert message == {"role": "assistant", "content": " add Your ow"}
    first, *found, last = events(
        agent, "/v1/chat/completions", {**body, "stream_options": {"include_usage": True}}
    )
    assert first["object"] == "chat.completion.chunk"
    assert first["choices"][0]["delta"] == {"role": "assistant", "content": ""}
    deltas = [each["choices"][0]["delta"].get("content", "") for each in found]
    assert "".join(deltas) == message["content"]
    assert all(each["usage"] is None for each in (first, *found))
    assert last["choices"] == []
    assert last["usage"] == whole["usage"]
    assert last["usage"]["completion_tokens"] == 12
    assert last["timings"]["steps"] == 11


def test_stop_strings_and_the_end_token_end_a_text(agent: AgentServer) -> None:
    _, stopped = ask(agent, "/v1/completions", {**COMPLETION, "stop": [" own"]})
    assert stopped["choices"][0] | {"logprobs": None} == {
        "index": 0,
        "text": " add Your",
        "logprobs": None,
        "finish_reason": "stop",
    }
    body = {**COMPLETION, "prompt": "END OF TERMS AND ", "max_tokens": 60}
    _, ended = ask(agent, "/v1/completions", body)
    assert ended["choices"][0]["finish_reason"] == "stop"
    assert ended["usage"]["completion_tokens"] < 60
    _, longer = ask(agent, "/v1/completions", {**body, "ignore_eos": True})
    assert longer["usage"]["completion_tokens"] == 60


def test_a_seed_repeats_a_sampled_text(agent: AgentServer) -> None:
    body = {**COMPLETION, "temperature": 2.0, "top_p": 0.9, "seed": 5}
    texts = [ask(agent, "/v1/completions", body)[1]["choices"][0]["text"] for _ in range(2)]
    _, other = ask(agent, "/v1/completions", {**body, "seed": 6})
    assert texts[0] == texts[1]
    assert texts[0] != other["choices"][0]["text"]


def test_tokens_are_a_prompt_too(agent: AgentServer) -> None:
    tokens = [byte + 3 for byte in b"You may"]
    for prompt in (tokens, [tokens], ["You may"]):
        _, found = ask(agent, "/v1/completions", {**COMPLETION, "prompt": prompt})
        assert found["choices"][0]["text"] == " add Your own attrib"


@pytest.mark.parametrize(
    ("path", "change", "status", "message"),
    [
        ("completions", {"model": "ToyLama"}, 404, 'unknown model "ToyLama"; did you mean "ToyLlama"'),
        ("completions", {"model": "DigitsCNN"}, 404, 'unknown model "DigitsCNN"'),
        ("completions", {"model": None}, 400, "model: Field required"),
        ("completions", {"prompt": None}, 400, "prompt must be one string, or one list of tokens"),
        ("completions", {"prompt": ["a", "b"]}, 400, "prompt must be one string"),
        ("completions", {"prompt": ""}, 400, "the prompt has no tokens"),
        ("completions", {"prompt": [384]}, 400, "a token that the model lacks"),
        ("completions", {"prompt": "x" * 2048}, 400, "but the context of model ToyLlama has 2048"),
        (
            "completions",
            {"prompt": "x" * 200_000},
            400,
            "has 200000 characters; at most 131072 are tokenized",
        ),
        ("completions", {"max_tokens": 0}, 400, "max_tokens: Input should be greater than 0"),
        ("completions", {"max_tokens": "5"}, 400, "max_tokens: Input should be a valid integer"),
        ("completions", {"max_tokens": 2.5}, 400, "max_tokens: Input should be a valid integer"),
        ("completions", {"temperature": -1}, 400, "temperature: Input should be greater than or equal to 0"),
        ("completions", {"temperature": True}, 400, "temperature: Input should be a valid number"),
        ("completions", {"top_p": 0}, 400, "top_p: Input should be greater than 0"),
        ("completions", {"seed": -3}, 400, "seed: Input should be greater than or equal to 0"),
        ("completions", {"stop": ""}, 400, "stop.0: String should have at least 1 character"),
        ("completions", {"stop": [1]}, 400, "stop.0: Input should be a valid string"),
        ("completions", {"stop": ["x"] * 17}, 400, "stop: List should have at most 16 items"),
        ("completions", {"stream": 1}, 400, "stream: Input should be a valid boolean"),
        ("completions", {"n": 2}, 400, "n is 2, which this agent does not offer"),
        ("completions", {"logprobs": 3}, 400, "logprobs is 3, which this agent does not offer"),
        ("completions", {"logprobs": 0}, 400, "logprobs is 0, which this agent does not offer"),
        ("completions", {"min_tokens": -1}, 400, "min_tokens: Input should be greater than or equal to 0"),
        ("completions", {"logit_bias": {"5": 1}}, 400, "logit_bias is"),
        ("chat/completions", {"messages": None}, 400, "messages: Field required"),
        ("chat/completions", {"messages": []}, 400, "messages is empty"),
        ("chat/completions", {"messages": "hello"}, 400, "messages: Input should be a valid list"),
        ("chat/completions", {"messages": [{"content": "a"}]}, 400, "messages.0.role: Field required"),
        ("chat/completions", {"messages": [{"role": "user"}]}, 400, "messages.0.content: Field required"),
        (
            "chat/completions",
            {"messages": [{"role": "user", "content": [{"type": "image_url"}]}]},
            400,
            "messages.0.content.0.type: Input should be 'text'",
        ),
        ("chat/completions", {"tools": [{}]}, 400, "tools is [{}], which this agent does not offer"),
    ],
)
def test_wrong_requests_get_an_error_in_openais_form(
    agent: AgentServer, path: str, change: Mapping[str, Any], status: int, message: str
) -> None:
    body = {**(CHAT if path.startswith("chat") else COMPLETION), **change}
    found_status, found = ask(agent, f"/v1/{path}", body)
    assert found_status == status
    error = found["error"]
    assert message in error["message"]
    code = "model_not_found" if status == 404 else None
    assert (error["type"], error["param"], error["code"]) == ("invalid_request_error", None, code)


@pytest.mark.parametrize(
    ("path", "body", "status", "message"),
    [
        ("/v1/completions", "{", 400, "the request is not JSON"),
        ("/v1/completions", "[]", 400, "is not an object"),
        ("/v1/completions", None, 405, "GET is not for this path"),
        ("/v1/embeddings", {}, 404, "the agent has no /v1/embeddings"),
    ],
)
def test_what_is_no_request_gets_one_too(
    agent: AgentServer, path: str, body: object, status: int, message: str
) -> None:
    found_status, found = ask(agent, path, body)
    assert found_status == status
    assert message in found["error"]["message"]


def test_a_parameter_that_changes_nothing_is_accepted(agent: AgentServer) -> None:
    body = {**COMPLETION, "n": 1, "logprobs": None, "presence_penalty": 0.0, "user": "me", "stop": None}
    assert ask(agent, "/v1/completions", body)[0] == 200


def test_the_secret_is_a_key_and_calls_are_counted() -> None:
    with started(secret="hush", metrics_port=0) as server:
        for headers, status in (({}, 401), ({"authorization": "Bearer hush"}, 200)):
            found_status, found = ask(server, "/v1/completions", COMPLETION, headers)
            assert found_status == status
        assert "text" in found["choices"][0]
        counted = {
            (sample.labels["method"], sample.labels["code"], sample.labels["model"]): sample.value
            for family in server.metrics()
            for sample in family.samples
            if sample.name == "inferometer_requests_total"
        }
    assert counted["POST /v1/completions", "OK", "ToyLlama"] == 1
    assert counted["POST /v1/completions", "UNAUTHENTICATED", ""] == 1


def test_the_tokens_and_times_of_requests_are_metrics() -> None:
    with started(metrics_port=0) as server:
        told = [ask(server, "/v1/chat/completions", {**CHAT, "max_tokens": count})[1] for count in (1, 8)]
        events(server, "/v1/completions", {**COMPLETION, "max_tokens": 1})
        assert ask(server, "/v1/completions", {**COMPLETION, "max_tokens": 5000})[0] == 400
        samples = [sample for family in server.metrics() for sample in family.samples]

    def found(name: str, **labels: str) -> float | None:
        return next((s.value for s in samples if s.name == name and s.labels.items() >= labels.items()), None)

    tokens = sum(each["usage"]["prompt_tokens"] for each in told)
    assert found("inferometer_tokens_total", model="ToyLlama", type="input") == tokens + 7
    assert found("inferometer_tokens_total", model="ToyLlama", type="output") == 10
    chat, text = (
        {
            "gen_ai_operation_name": operation,
            "gen_ai_provider_name": "inferometer",
            "gen_ai_request_model": "ToyLlama",
        }
        for operation in ("chat", "text_completion")
    )
    first, later = (f"gen_ai_server_time_{name}_seconds" for name in ("to_first_token", "per_output_token"))
    assert [found(f"{first}_count", **each) for each in (chat, text)] == [2, 1]
    assert [found(f"{later}_count", **each) for each in (chat, text)] == [1, None]
    parts = "inferometer_generation_duration_seconds"
    for part in ("queue", "prefill", "steps", "sampling", "detokenizing"):
        assert found(f"{parts}_count", part=part) == 3
        of_chats = sum(each["timings"][f"{part}_ms"] for each in told) / 1e3
        assert found(f"{parts}_sum", part=part) >= of_chats - 1e-9
    whole_s = found("inferometer_request_duration_seconds_sum", method="POST /v1/chat/completions")
    assert told[1]["timings"]["steps_ms"] / 7e3 < found(f"{later}_sum", **chat) < whole_s
    before_s = sum(each["timings"][f"{part}_ms"] for each in told for part in ("queue", "prefill")) / 1e3
    assert before_s < found(f"{first}_sum", **chat) < whole_s


def until(condition: Callable[[], bool]) -> None:
    end_s = time.monotonic() + WAIT_S
    while not condition():
        assert time.monotonic() < end_s
        time.sleep(0.002)


@pytest.mark.parametrize("stream", [True, False])
def test_a_client_that_leaves_ends_its_request(agent: AgentServer, stream: bool) -> None:
    with agent._v2.repository.lease_engine("ToyLlama") as served:
        engine = served.engine
    body = json.dumps({**COMPLETION, "max_tokens": 2000, "ignore_eos": True, "stream": stream})
    assert agent.http_url is not None
    host, _, port = agent.http_url.removeprefix("http://").rpartition(":")
    with socket.create_connection((host, int(port)), WAIT_S) as client:
        head = f"POST /v1/completions HTTP/1.1\r\nHost: {host}:{port}\r\nContent-Length: {len(body)}\r\n\r\n"
        client.sendall((head + body).encode())
        until(lambda: bool(engine._running))
        running = engine._running[0]
    until(lambda: not engine._running)
    assert running.is_cancelled
    assert len(running.tokens) < 2000


PATH, OF_MODEL = "POST /v1/completions", "text_completion ToyLlama"
PARTS = {"prefill", "step", "sample", "detokenize"}


@pytest.mark.parametrize(
    ("level", "change", "leaves", "names", "status"),
    [
        ("MODEL_TRACE", {}, False, {PATH, OF_MODEL, "queue", *PARTS}, 200),
        ("MODEL_TRACE", {"stream": True}, False, {PATH, OF_MODEL, "queue", *PARTS}, 200),
        ("APPLICATION_TRACE", {}, False, {PATH, OF_MODEL, "queue"}, 200),
        ("MODEL_TRACE", {"model": "Other"}, False, {PATH}, 404),
        ("MODEL_TRACE", {"max_tokens": 0}, False, {PATH}, 400),
        ("MODEL_TRACE", {"max_tokens": 5000}, False, {PATH}, 400),
        ("MODEL_TRACE", {"max_tokens": 2000, "stream": True}, True, {PATH, OF_MODEL, "queue", *PARTS}, 200),
        ("MODEL_TRACE", {"max_tokens": 2000}, True, {PATH, OF_MODEL, "queue", *PARTS}, 499),
    ],
)
def test_a_request_is_traced_for_its_client(
    level: str, change: Mapping[str, Any], leaves: bool, names: set[str], status: int
) -> None:
    seen, body = Seen(), {**COMPLETION, "ignore_eos": True, "stop": "?!", **change}
    with otlp_grpc(seen) as port:
        export = TraceExport.open(TraceAddress.parse(f"{HOST}:{port}"))
        with started(tracing=ServerTracing(export, TraceLevel[level])) as server:
            connection = connected(server)
            connection.request("POST", "/v1/completions", json.dumps(body), {"traceparent": TRACEPARENT})
            if leaves:
                with server._v2.repository.lease_engine("ToyLlama") as served:
                    until(lambda: any(len(each.times_ns[0]) > 2 for each in served.engine._running))
                connection.close()
            else:
                with connection.getresponse() as response:
                    response.read()
            connection.close()
        seen.wait_for(lambda: PATH in {span.name for span in seen.spans.values()})

    assert {span.name for span in seen.spans.values()} == names
    assert {span.trace_id for span in seen.spans.values()} == {"a" * 32}
    [server_span] = (span for span in seen.spans.values() if span.parent_id == 0xB)
    assert (server_span.name, server_span.role) == (PATH, "server")
    assert server_span.attributes["http.response.status_code"] == status
    broke_off = "CANCELLED" if leaves and status == 200 else None
    assert server_span.attributes.get("error.type") == broke_off
    assert server_span.failed == bool(broke_off)
    for span in seen.spans.values():
        if span.name == OF_MODEL:
            reasons = None if leaves else ("length",)
            assert span.attributes.get("gen_ai.response.finish_reasons") == reasons
            assert span.attributes["gen_ai.request.stop_sequences"] == ("?!",)
            steps = [each.name for each in seen.spans.values()].count("step")
            assert span.attributes["gen_ai.usage.output_tokens"] >= steps


@pytest.mark.parametrize(("stream", "status", "fault"), [(True, 200, "INTERNAL"), (False, 500, "500")])
def test_the_span_of_an_answer_that_fails_has_the_status_that_was_sent(
    monkeypatch: pytest.MonkeyPatch, stream: bool, status: int, fault: str
) -> None:
    def broken(model: PyTorchLanguageModel, tokens: Sequence[int]) -> Any:
        raise ZeroDivisionError

    monkeypatch.setattr(PyTorchLanguageModel, "step", broken)
    seen, body = Seen(), {**COMPLETION, "ignore_eos": True, "stream": stream}
    with otlp_grpc(seen) as port:
        export = TraceExport.open(TraceAddress.parse(f"{HOST}:{port}"))
        with started(tracing=ServerTracing(export)) as server:
            connection = connected(server)
            connection.request("POST", "/v1/completions", json.dumps(body), {"traceparent": TRACEPARENT})
            with connection.getresponse() as response:
                assert response.status == status
                assert b"ZeroDivisionError" in response.read()
            connection.close()
        seen.wait_for(lambda: PATH in {span.name for span in seen.spans.values()})
    [found] = (span for span in seen.spans.values() if span.name == PATH)
    assert (found.attributes["http.response.status_code"], found.attributes["error.type"]) == (status, fault)
    assert found.failed


def test_a_stream_under_way_is_finished_by_an_agent_that_stops() -> None:
    with started() as server:
        connection = connected(server)
        body = {**COMPLETION, "max_tokens": 300, "ignore_eos": True, "stream": True}
        connection.request("POST", "/v1/completions", json.dumps(body))
        response = connection.getresponse()
        response.readline()
    content = response.read().decode()
    connection.close()
    assert content.endswith("data: [DONE]\n\n")


def test_a_stream_that_outlasts_the_grace_period_ends_with_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    step = PyTorchLanguageModel.step

    def slow(model: PyTorchLanguageModel, tokens: Sequence[int]) -> Any:
        time.sleep(0.02)  # 2000 steps last much longer than the server needs to cancel a request
        return step(model, tokens)

    monkeypatch.setattr(PyTorchLanguageModel, "step", slow)
    with started(grace_s=0.0) as server:
        connection = connected(server)
        body = {**COMPLETION, "max_tokens": 2000, "ignore_eos": True, "stream": True}
        connection.request("POST", "/v1/completions", json.dumps(body))
        response = connection.getresponse()
        response.readline()
    content = response.read().decode()
    connection.close()
    last = content.rstrip("\n").rpartition("\n\n")[2]
    assert json.loads(last.removeprefix("data: "))["error"]["type"] == "server_error"


def answered(system: GenerationSystem, prompts: list[Prompt]) -> list[Answer]:
    """The answers to the prompts under load, two at a time."""
    target = system.target(prompts, timeout_s=WAIT_S, text=True)
    with closing(target):
        loop = ClosedLoop(2, Extent(0.0, len(prompts), None))
        run_closed_loop(target, loop, RunLimits(WAIT_S * 1e3))
        return [target.answer(n) for n in range(len(prompts))]


def test_an_answer_in_process_is_the_served_one_in_everything_but_its_times(agent: AgentServer) -> None:
    talk = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Licensor shall"}]
    prompts = [
        Prompt("You may", 20),
        Prompt("You may", 20, chat=False),
        Prompt(talk, 9, ignore_eos=True),
        Prompt("the Work", 30, ignore_eos=True),
        Prompt("the Work", 30, temperature=0.9, seed=5, ignore_eos=True),
    ]
    manifest = Catalog().find_model("ToyLlama", None, Registry().versions)
    with closing(LocalGeneration(*open_engine(manifest, Registry()))) as system:
        here = answered(system, prompts)
    address = "openai+" + str(agent.http_url)
    with closing(open_openai(address, "ToyLlama", RemoteOptions(), lambda _: None)) as server:
        there = answered(server, prompts)
    for one, other in zip(here, there, strict=True):
        for name in ("text", "input_tokens", "output_tokens", "finish", "error"):
            assert getattr(one, name) == getattr(other, name)
        assert [chunk[1:] for chunk in one.chunks] == [chunk[1:] for chunk in other.chunks]
    assert here[1].text == " add Your own attrib"
    assert {each.finish for each in here} >= {"length"}
    assert all(each.output_tokens > 0 for each in here)
