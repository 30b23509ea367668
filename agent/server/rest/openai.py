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
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError

from inferometer.agent.generation.engine import FinishReason, Generation, GenerationRequest, Piece, Sampling
from inferometer.agent.generation.opening import GenerationOptions, Generator, Generators
from inferometer.agent.server.calls import CallContext, Method
from inferometer.agent.serving.served_models import ServedModels
from inferometer.manifests.errors import InputError, UnknownModelError, one_line

PREFIX = "/v1/"
"""The beginning of the paths of this protocol."""
_DEFAULT_TOKENS = 16  # of completions, as OpenAI has it
_NS_PER_MS = 1e6
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


class _Part(BaseModel):
    """A part of a message, which has nothing but text."""

    type: Literal["text"]
    text: str


class _Message(BaseModel):
    """A message; a string is its only part."""

    role: str
    content: Annotated[
        list[_Part],
        BeforeValidator(lambda given: [_Part(type="text", text=given)] if isinstance(given, str) else given),
    ]


class _StreamOptions(BaseModel):
    include_usage: bool = False


class _Body(BaseModel):
    """The parameters of a request; the engine checks the ranges of numbers."""

    model_config = ConfigDict(strict=True)

    model: Annotated[str, Field(min_length=1)]
    prompt: Any = None
    messages: list[_Message] = []
    stream: bool = False
    stream_options: _StreamOptions | None = None
    max_tokens: int | None = None
    max_completion_tokens: int | None = None
    temperature: float = 1.0
    top_p: float = 1.0
    seed: int | None = None
    stop: Annotated[
        list[Annotated[str, Field(min_length=1)]],
        Field(max_length=16),
        BeforeValidator(lambda given: [given] if isinstance(given, str) else given),
    ] = []
    ignore_eos: bool = False
    min_tokens: int = 0

    @classmethod
    def read(cls, given: Mapping[str, Any]) -> _Body:
        """Reads a request; raises InputError if a parameter is wrong or not offered."""
        for key, values in _WITHOUT_EFFECT.items():
            if (value := given.get(key)) is not None and value not in values:
                raise InputError(f"{key} is {one_line(_text(value), 80)}, which this agent does not offer")
        try:
            found = cls.model_validate({key: value for key, value in given.items() if value is not None})
        except ValidationError as error:
            first = error.errors()[0]
            raise InputError(f"{'.'.join(map(str, first['loc']))}: {first['msg']}") from error
        if found.stream_options and not found.stream:
            raise InputError("stream_options requires stream: true")
        return found


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

    async def _complete(self, given: Mapping[str, Any], call: CallContext) -> dict[str, Any] | EventStream:
        return await self._answer(given, call, _COMPLETION, _completion_prompt, _DEFAULT_TOKENS)

    async def _chat(self, given: Mapping[str, Any], call: CallContext) -> dict[str, Any] | EventStream:
        return await self._answer(given, call, _CHAT, _chat_prompt, None)

    async def _answer(
        self,
        given: Mapping[str, Any],
        call: CallContext,
        form: _Form,
        prompt_of: Callable[[_Body, Generator], tuple[int, ...]],
        default_tokens: int | None,
    ) -> dict[str, Any] | EventStream:
        body = _Body.read(given)
        most = body.max_tokens if body.max_completion_tokens is None else body.max_completion_tokens
        most = default_tokens if most is None else most
        sampling = Sampling(body.temperature, body.top_p, body.seed)

        def prepare() -> tuple[Generator, GenerationRequest]:
            generator = self.generators.get(body.model)
            prompt, stop = prompt_of(body, generator), tuple(body.stop)
            return generator, GenerationRequest(
                prompt, most, sampling, stop, body.ignore_eos, body.min_tokens
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
        if body.stream:
            with_usage = body.stream_options is not None and body.stream_options.include_usage
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


def _completion_prompt(body: _Body, generator: Generator) -> tuple[int, ...]:
    prompt = body.prompt
    if isinstance(prompt, list) and len(prompt) == 1 and not isinstance(prompt[0], int):
        prompt = prompt[0]
    if isinstance(prompt, str):
        return generator.tokens(prompt)
    if isinstance(prompt, list) and prompt and all(type(each) is int for each in prompt):
        return tuple(prompt)
    raise InputError("prompt must be one string, or one list of tokens")


def _chat_prompt(body: _Body, generator: Generator) -> tuple[int, ...]:
    if not body.messages:
        raise InputError("messages is missing or empty")
    return generator.chat_tokens(
        [
            {"role": each.role, "content": "".join(part.text for part in each.content)}
            for each in body.messages
        ]
    )
