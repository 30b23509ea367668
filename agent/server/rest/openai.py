"""OpenAI's protocol: the language models, completions, and chat completions, whole or streamed.

A stream consists of server-sent events, each a JSON object after ``data:``; ``data: [DONE]`` is the last one.
The format is that of https://platform.openai.com/docs/api-reference/chat, with ``ignore_eos`` and
``min_tokens`` of vLLM. Whole answers, and the event with the usage, also have ``timings``.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from inferometer.agent.generation.engine import FinishReason, Generation, GenerationRequest, Piece, Sampling
from inferometer.agent.generation.opening import GenerationOptions, Generator, Generators
from inferometer.agent.server.calls import CallContext, Method
from inferometer.agent.serving.served_models import ServedModels
from inferometer.manifests.errors import InputError, UnknownModelError, one_line

PREFIX = "/v1/"
"""The beginning of the paths of this protocol."""
_DEFAULT_TOKENS = 16  # of completions, as OpenAI has it
_MOST_STOPS = 16
_NS_PER_MS = 1e6
_Value = TypeVar("_Value")
_WITHOUT_EFFECT: Mapping[str, tuple[Any, ...]] = {
    "n": (1,),
    "best_of": (1,),
    "echo": (False,),
    "logprobs": (False,),
    "top_logprobs": (0,),
    "suffix": ("",),
    "frequency_penalty": (0,),
    "presence_penalty": (0,),
    "logit_bias": ({},),
    "tools": ([],),
    "functions": ([],),
    "response_format": ({"type": "text"},),
}
"""The parameters that are not offered, with the values that change nothing, as null also does."""


@dataclass(frozen=True, slots=True)
class EventStream:
    """The answer to a request that streams; ``close`` ends it early, in any state."""

    events: AsyncIterator[bytes]
    close: Callable[[], None]


def _text(value: object) -> str:
    return json.dumps(value, separators=(",", ":"))


def event(content: object) -> bytes:
    """Returns a server-sent event with a JSON value."""
    return f"data: {_text(content)}\n\n".encode()


def error_object(status: int, message: str, error: Exception | None) -> dict[str, Any]:
    """Returns an error in OpenAI's form."""
    kind = "invalid_request_error" if status < 500 else "server_error"
    code = "model_not_found" if isinstance(error, UnknownModelError) else None
    return {"error": {"message": message, "type": kind, "param": None, "code": code}}


@dataclass(frozen=True, slots=True)
class _Form:
    """The form of the answers to one kind of request.

    ``whole`` and ``part`` return what a choice of an answer or of an event has of a text; ``opening`` is that
    of the event before the first text.
    """

    prefix: str
    object: str
    streamed: str
    whole: Callable[[str], dict[str, Any]]
    part: Callable[[str], dict[str, Any]]
    opening: Mapping[str, Any] | None = None


def _as_text(text: str) -> dict[str, Any]:
    return {"text": text}


_COMPLETION = _Form("cmpl-", "text_completion", "text_completion", _as_text, _as_text)
_CHAT = _Form(
    "chatcmpl-",
    "chat.completion",
    "chat.completion.chunk",
    lambda text: {"message": {"role": "assistant", "content": text}},
    lambda text: {"delta": {"content": text} if text else {}},
    {"delta": {"role": "assistant", "content": ""}},
)


def _choices(content: Mapping[str, Any], reason: FinishReason | None = None) -> list[dict[str, Any]]:
    finish_reason = reason.value if reason else None
    return [{"index": 0, **content, "logprobs": None, "finish_reason": finish_reason}]


class OpenAiService:
    """The protocol's methods, for the HTTP server only.

    Args:
        served: The models of the agent that predict; language models have the same options, batch sizes,
            queues and threads.
        opening: The first arguments of ``Generators``.
    """

    def __init__(self, served: ServedModels, *opening: Any) -> None:
        def options_of(manifest: Any) -> GenerationOptions:
            settings = served.settings_of(manifest)
            predictor = replace(served.options.session.predictor, threads=settings.threads)
            return GenerationOptions(predictor, settings.batching.max_batch_size, settings.batching.max_queue)

        self.generators = Generators(*opening, options_of=options_of)

    def methods(self) -> list[Method]:
        """The methods, which are given parsed JSON."""
        named = {
            "ListLanguageModels": self._list,
            "Completions": self._complete,
            "ChatCompletions": self._chat,
        }
        return [Method(f"openai/{name}", work, bytes, bytes) for name, work in named.items()]

    async def _list(self, _: object, __: CallContext) -> dict[str, Any]:
        models = [
            {"id": model.name, "object": "model", "created": 0, "owned_by": "inferometer"}
            for model in self.generators.models()
        ]
        return {"object": "list", "data": models}

    async def _complete(self, body: Mapping[str, Any], call: CallContext) -> dict[str, Any] | EventStream:
        return await self._answer(body, call, _COMPLETION, _completion_prompt, _DEFAULT_TOKENS)

    async def _chat(self, body: Mapping[str, Any], call: CallContext) -> dict[str, Any] | EventStream:
        return await self._answer(body, call, _CHAT, _chat_prompt, None)

    async def _answer(
        self,
        body: Mapping[str, Any],
        call: CallContext,
        form: _Form,
        prompt_of: Callable[[Mapping[str, Any], Generator], tuple[int, ...]],
        default_tokens: int | None,
    ) -> dict[str, Any] | EventStream:
        _check_effects(body)
        if not (name := _given(body, "model", str, "")):
            raise InputError("model is missing; GET /v1/models lists the models")
        stream = _given(body, "stream", bool, False)
        options = _given(body, "stream_options", dict, {})
        with_usage = _given(options, "include_usage", bool, False)
        if options and not stream:
            raise InputError("stream_options requires stream: true")
        sampling = _sampling(body)

        def prepare() -> tuple[Generator, GenerationRequest]:
            generator = self.generators.get(name)
            return generator, GenerationRequest(
                prompt_of(body, generator),
                _most_tokens(body, default_tokens),
                sampling,
                _stops(body),
                _given(body, "ignore_eos", bool, False),
                _given(body, "min_tokens", int, 0),
            )

        generator, request = await call.in_thread(prepare)  # it may load the model
        call.record.model = generator.manifest.name
        head = {
            "id": f"{form.prefix}{call.record.request_id}",
            "created": int(time.time()),
            "model": generator.manifest.name,
        }
        loop, pieces = asyncio.get_running_loop(), asyncio.Queue[Piece]()

        def deliver(piece: Piece) -> None:
            with suppress(RuntimeError):  # the loop has been closed
                loop.call_soon_threadsafe(pieces.put_nowait, piece)

        generation = generator.engine.submit(request, deliver)
        if stream:
            head["object"] = form.streamed
            return EventStream(
                _events(generation, pieces, head, form, with_usage=with_usage), generation.cancel
            )
        try:
            text = ""
            while True:
                piece = await pieces.get()
                if piece.error is not None:
                    raise piece.error
                text += piece.text
                if piece.is_last:
                    choices = _choices(form.whole(text), piece.finish_reason)
                    return {**head, "object": form.object, "choices": choices, **_totals(generation)}
        finally:
            generation.cancel()


async def _events(
    generation: Generation,
    pieces: asyncio.Queue[Piece],
    head: Mapping[str, Any],
    form: _Form,
    *,
    with_usage: bool,
) -> AsyncGenerator[bytes, None]:
    """Yields the events of a stream; those of pieces that are there already are sent together."""
    usage = {"usage": None} if with_usage else {}
    content = event({**head, "choices": _choices(form.opening), **usage}) if form.opening else b""
    while True:
        piece = await pieces.get()
        if piece.error is not None:
            if content:
                yield content
            raise piece.error
        choices = _choices(form.part(piece.text), piece.finish_reason)
        content += event({**head, "choices": choices, **usage})
        if piece.is_last:
            totals = event({**head, "choices": [], **_totals(generation)}) if with_usage else b""
            yield content + totals + b"data: [DONE]\n\n"
            return
        if pieces.empty():
            yield content
            content = b""


def _totals(generation: Generation) -> dict[str, Any]:
    """Returns the usage, and the times in milliseconds, of a request that has ended."""
    prompt, tokens, times = len(generation.request.prompt), len(generation.tokens), generation.times
    spent = {
        "queue_ms": times.queue,
        "prefill_ms": times.prefill,
        "steps_ms": sum(times.steps),
        "sampling_ms": times.sampling,
        "detokenizing_ms": times.detokenizing,
    }
    return {
        "usage": {"prompt_tokens": prompt, "completion_tokens": tokens, "total_tokens": prompt + tokens},
        "timings": {**{name: ns / _NS_PER_MS for name, ns in spent.items()}, "steps": len(times.steps)},
    }


def _given(body: Mapping[str, Any], key: str, kind: type[_Value], default: _Value) -> _Value:
    """Returns a parameter, or the default if it is missing or null; raises InputError for another type."""
    value = body.get(key)
    if value is None:
        return default
    if kind is float and type(value) is int:
        value = float(value)
    if type(value) is not kind:
        raise InputError(f"{key} is {one_line(_text(value), 80)}; it must be {_KINDS[kind]}")
    return value


_KINDS: Mapping[type, str] = {
    str: "a string",
    bool: "true or false",
    int: "a whole number",
    float: "a number",
    dict: "an object",
    list: "a list",
}


def _check_effects(body: Mapping[str, Any]) -> None:
    for key, values in _WITHOUT_EFFECT.items():
        if (value := body.get(key)) is not None and value not in values:
            raise InputError(f"{key} is {one_line(_text(value), 80)}, which this agent does not offer")


def _sampling(body: Mapping[str, Any]) -> Sampling:
    seed = None if body.get("seed") is None else _given(body, "seed", int, 0)
    return Sampling(_given(body, "temperature", float, 1.0), _given(body, "top_p", float, 1.0), seed)


def _most_tokens(body: Mapping[str, Any], default: int | None) -> int | None:
    names = [name for name in ("max_completion_tokens", "max_tokens") if body.get(name) is not None]
    return _given(body, names[0], int, 0) if names else default


def _stops(body: Mapping[str, Any]) -> tuple[str, ...]:
    given = body.get("stop")
    stops = [given] if isinstance(given, str) else [] if given is None else given
    if not isinstance(stops, list) or not all(isinstance(each, str) and each for each in stops):
        raise InputError("stop must be a string or a list of strings, none of them empty")
    if len(stops) > _MOST_STOPS:
        raise InputError(f"stop has {len(stops)} strings; at most {_MOST_STOPS} are looked for")
    return tuple(stops)


def _completion_prompt(body: Mapping[str, Any], generator: Generator) -> tuple[int, ...]:
    prompt = body.get("prompt")
    if isinstance(prompt, list) and len(prompt) == 1 and not isinstance(prompt[0], int):
        prompt = prompt[0]
    if isinstance(prompt, str):
        return generator.tokens(prompt)
    if isinstance(prompt, list) and prompt and all(type(each) is int for each in prompt):
        return tuple(prompt)
    raise InputError("prompt must be one string, or one list of tokens")


def _chat_prompt(body: Mapping[str, Any], generator: Generator) -> tuple[int, ...]:
    messages = [_message(each) for each in _given(body, "messages", list, [])]
    if not messages:
        raise InputError("messages is missing or empty")
    return generator.chat_tokens(messages)


def _message(given: object) -> dict[str, str]:
    """Returns a message whose content is text; parts of text are joined."""
    role = given.get("role") if isinstance(given, dict) else None
    if not isinstance(given, dict) or not isinstance(role, str):
        raise InputError("each of messages must be an object with role and content")
    content = given.get("content")
    parts = content if isinstance(content, list) else [{"type": "text", "text": content}]
    texts = [part.get("text") if isinstance(part, dict) else None for part in parts]
    if not all(isinstance(text, str) for text in texts):
        raise InputError("the content of each of messages must be text")
    return {"role": role, "content": "".join(map(str, texts))}
