"""Texts of a served agent over ``ModelStreamInfer``, asked for with Triton's client."""

from __future__ import annotations

import json
import queue
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import pytest
import tritonclient.grpc as triton
from test_rest_openai import TRACEPARENT, WAIT_S, started, until

from inferometer.agent.frameworks.pytorch.language_model import PyTorchLanguageModel
from inferometer.agent.server.native.call_tracing import ServerTracing
from inferometer.agent.server.server import AgentServer
from inferometer.agent.tracing.exporting import TraceAddress, TraceExport
from inferometer.agent.tracing.recorder import TraceLevel
from tests.integration.trace_collectors import HOST, Seen, otlp_grpc

TEXT = " add Your own attrib"
GREEDY = {"max_tokens": 20, "temperature": 0}
LONG = {"max_tokens": 2000, "ignore_eos": True}


@pytest.fixture(scope="module")
def agent() -> Iterator[AgentServer]:
    with started(metrics_port=0) as server:
        yield server


def tensor(name: str, value: object, datatype: str = "BYTES") -> triton.InferInput:
    found = triton.InferInput(name, [1], datatype)
    found.set_data_from_numpy(np.array([value], object if datatype == "BYTES" else bool))
    return found


PROMPT = [tensor("text_input", "You may")]


class Stream:
    """A stream of Triton's client; ``next`` returns the next response, or the message of an error."""

    def __init__(self, agent: AgentServer, headers: dict[str, str] | None = None) -> None:
        self._answers: queue.SimpleQueue[tuple[Any, Any]] = queue.SimpleQueue()
        self._client = triton.InferenceServerClient(agent.address)
        self._client.start_stream(lambda result, error: self._answers.put((result, error)), headers=headers)

    def ask(self, parameters: dict[str, Any] | None, id_: str = "", **options: Any) -> None:
        options = {"model_name": "ToyLlama", "inputs": PROMPT, **options}
        self._client.async_stream_infer(request_id=id_, parameters=parameters, **options)

    def next(self) -> Any:
        result, error = self._answers.get(timeout=WAIT_S)
        return result.get_response() if error is None else error.message()

    def whole(self) -> list[Any]:
        found = [self.next()]
        while not isinstance(found[-1], str) and not is_final(found[-1]):
            found.append(self.next())
        return found

    def leave(self) -> None:
        self._client.stop_stream(cancel_requests=True)

    def close(self) -> None:
        self._client.close()
        assert self._answers.empty()


@pytest.fixture
def stream(agent: AgentServer) -> Iterator[Stream]:
    found = Stream(agent)
    yield found
    found.close()


def is_final(response: Any) -> bool:
    return bool(response.parameters["triton_final_response"].bool_param)


def text_of(responses: Sequence[Any]) -> str:
    [parts] = zip(*(triton.InferResult(each).as_numpy("text_output") for each in responses), strict=True)
    return b"".join(parts).decode()


@pytest.mark.parametrize("version", ["", "1"])
@pytest.mark.parametrize("empty", [False, True])
def test_a_text_comes_in_parts_of_which_the_last_is_final(stream: Stream, version: str, empty: bool) -> None:
    stream.ask(GREEDY, "a", model_version=version, enable_empty_final_response=empty)
    found = stream.whole()
    assert text_of(found) == TEXT
    assert [is_final(each) for each in found] == [False] * 19 + [True]
    assert {(each.model_name, each.model_version, each.id) for each in found} == {("ToyLlama", "1", "a")}


@pytest.mark.parametrize(
    ("parameters", "inputs", "count", "text"),
    [
        ({**GREEDY, "stream": False}, [], 1, TEXT),
        (GREEDY, [tensor("stream", False, "BOOL")], 1, TEXT),
        (GREEDY, [tensor("sampling_parameters", "")], 20, TEXT),
        (GREEDY, [tensor("exclude_input_in_output", True, "BOOL")], 20, TEXT),
        ({**GREEDY, "stop": " own"}, [], 8, " add Your"),
        ({"sampling_parameters": json.dumps({**GREEDY, "stop": [" own"]})}, [], 8, " add Your"),
        ({}, [tensor("sampling_parameters", json.dumps({**GREEDY, "max_tokens": 4}))], 4, " add"),
        ({"temperature": 0.0, "max_tokens": 4}, [], 4, " add"),
    ],
)
def test_parameters_are_those_of_the_request_or_inputs(
    stream: Stream, parameters: dict[str, Any], inputs: list[triton.InferInput], count: int, text: str
) -> None:
    stream.ask(parameters, inputs=PROMPT + inputs)
    found = stream.whole()
    assert (len(found), text_of(found)) == (count, text)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"model_name": "ToyLama"}, 'did you mean "ToyLlama"'),
        ({"model_version": "7"}, "7"),
        ({"inputs": []}, 'found 0 inputs "text_input"; it takes one'),
        ({"inputs": [tensor("text", "a")]}, 'has no input "text"; did you mean "text_input"'),
        ({"inputs": [tensor("text_input", "")]}, "the prompt has no tokens"),
        ({"inputs": [tensor("text_input", "x" * 2048)]}, "but the context of model ToyLlama has 2048"),
        ({"inputs": [*PROMPT, tensor("stream", "yes")]}, 'input "stream": found datatype BYTES'),
        ({"parameters": {"max_tokens": "5"}}, "max_tokens: Input should be a valid integer"),
        ({"parameters": {"seed": -1}}, "seed: Input should be greater than or equal to 0"),
        ({"parameters": {"sampling_parameters": "[1]"}}, "sampling_parameters must be a string with a JSON"),
        ({"parameters": {"sampling_parameters": 5}}, "sampling_parameters must be a string with a JSON"),
        ({"outputs": [triton.InferRequestedOutput("text")]}, 'has no output "text"'),
    ],
)
def test_a_request_that_fails_is_told_and_the_stream_goes_on(
    stream: Stream, change: dict[str, Any], message: str
) -> None:
    stream.ask(**{"parameters": GREEDY, **change})
    assert message in stream.next()
    stream.ask(GREEDY)
    assert text_of(stream.whole()) == TEXT


def test_parts_of_several_texts_and_other_answers_share_a_stream(stream: Stream) -> None:
    image = triton.InferInput("data", [1, 1, 16, 16], "FP32")
    image.set_data_from_numpy(np.zeros((1, 1, 16, 16), np.float32))
    stream.ask(LONG, "long")
    assert stream.next().id == "long"
    stream.ask({**GREEDY, "max_tokens": 5}, "short")
    stream.ask(None, "image", model_name="DigitsCNN", inputs=[image])
    found = [stream.next()]
    while [each.id for each in found if is_final(each)] not in (["short", "image"], ["image", "short"]):
        found.append(stream.next())
    assert sum(each.id == "long" for each in found) < 1900
    assert len([each for each in found if each.id == "short"]) == 5
    rest = stream.whole()
    assert {each.id for each in rest} == {"long"}


def test_a_single_inference_of_a_text_is_refused(agent: AgentServer) -> None:
    with triton.InferenceServerClient(agent.address) as client:
        with pytest.raises(triton.InferenceServerException, match="or with ModelStreamInfer") as error:
            client.infer("ToyLlama", PROMPT)
        assert error.value.status() == "StatusCode.INVALID_ARGUMENT"
        [listed] = (each for each in client.get_model_repository_index().models if each.name == "ToyLlama")
        assert (listed.state, client.is_model_ready("ToyLlama")) == ("READY", True)
        assert client.get_model_config("ToyLlama").config.model_transaction_policy.decoupled


def counted(agent: AgentServer) -> dict[str, float]:
    return {
        each.labels["type"]: each.value
        for family in agent.metrics()
        for each in family.samples
        if each.name == "inferometer_tokens_total"
    }


def test_a_client_that_leaves_ends_its_requests(
    agent: AgentServer, stream: Stream, monkeypatch: pytest.MonkeyPatch
) -> None:
    with agent._v2.repository.lease_engine("ToyLlama") as served:
        engine = served.engine
    steps = slowed(monkeypatch)
    for _ in range(3):
        stream.ask(LONG)
    until(lambda: len(engine._running) == 3)
    running = list(engine._running)
    stream.leave()
    until(lambda: all(each.is_cancelled for each in running))
    left = steps()
    until(lambda: not engine._running)
    assert steps() <= left + 1
    while not stream._answers.empty():
        stream._answers.get()


def slowed(monkeypatch: pytest.MonkeyPatch) -> Callable[[], int]:
    """Makes each step last; returns what tells their number."""
    step, count = PyTorchLanguageModel.step, [0]

    def slow(model: PyTorchLanguageModel, tokens: Sequence[int]) -> Any:
        time.sleep(0.02)
        count[0] += 1
        return step(model, tokens)

    monkeypatch.setattr(PyTorchLanguageModel, "step", slow)
    return lambda: count[0]


def test_a_failure_in_the_middle_ends_the_text_and_not_the_stream(
    agent: AgentServer, stream: Stream, monkeypatch: pytest.MonkeyPatch
) -> None:
    with agent._v2.repository.lease_engine("ToyLlama") as served:
        engine = served.engine

    def fail(_: object) -> Any:
        raise RuntimeError("no more")

    with monkeypatch.context() as patch:
        patch.setattr(engine._model, "step", fail)
        stream.ask(GREEDY)
        _, error = stream.whole()
    assert "no more" in error
    stream.ask(GREEDY)
    assert text_of(stream.whole()) == TEXT


def test_the_requests_of_a_stream_are_counted_and_traced_one_by_one() -> None:
    seen, name = Seen(), "inference.GRPCInferenceService/ModelStreamInfer"
    with otlp_grpc(seen) as port:
        export = TraceExport.open(TraceAddress.parse(f"{HOST}:{port}"))
        tracing = ServerTracing(export, TraceLevel.MODEL_TRACE)
        with started(metrics_port=0, tracing=tracing) as server:
            stream = Stream(server, {"traceparent": TRACEPARENT})
            for _ in range(2):
                stream.ask(GREEDY)
                stream.whole()
            assert counted(server) == {"input": 14, "output": 40}
            stream.close()
        seen.wait_for(lambda: name in {span.name for span in seen.spans.values()})
    names = [span.name for span in seen.spans.values()]
    assert [names.count(each) for each in (name, "request", "text_completion ToyLlama", "step")] == [
        1,
        2,
        2,
        38,
    ]
    parents = {span.name: seen.spans.get(span.parent_id) for span in seen.spans.values()}
    assert parents["text_completion ToyLlama"].name == "request"
