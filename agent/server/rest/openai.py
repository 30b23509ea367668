"""Text from language models: OpenAI's protocol, and Triton's generate extension, whole or streamed.

A stream consists of server-sent events, each a JSON object after ``data:``; OpenAI's last is ``[DONE]``. The
formats are those of https://platform.openai.com/docs/api-reference/chat and of Triton's
extension_generate.md, with ``ignore_eos`` and ``min_tokens`` of vLLM. OpenAI's whole answers, and the event
with the usage, also have ``timings``.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, suppress
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any, ClassVar, Literal

from pydantic import BaseModel, BeforeValidator, ValidationError
from typing_extensions import Self

from inferometer.agent.generation.engine import Engine, FinishReason, Generation, GenerationParameters, Piece
from inferometer.agent.open_inference.http_codec import text_of
from inferometer.agent.server.calls import CallContext, Method
from inferometer.agent.server.native.call_tracing import CallTrace, ServerTracing
from inferometer.agent.server.v2.repository import Repository
from inferometer.agent.serving.served_model import Lease, ServedEngine
from inferometer.agent.tracing.recorder import TraceScope
from inferometer.manifests.errors import InputError, UnknownModelError, one_line

PREFIX = "/v1/"
"""The beginning of the paths of this protocol."""
_WITHOUT_EFFECT: Mapping[str, Any] = {
    "n": 1,
    "best_of": 1,
    "echo": False,
    "logprobs": False,
    "top_logprobs": 0,
    "suffix": "",
    "frequency_penalty": 0,
    "presence_penalty": 0,
    "logit_bias": {},
    "tools": [],
    "functions": [],
    "response_format": {"type": "text"},
}
"""The parameters that are not offered, with the value that changes nothing, as null also does."""


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


class _Request(GenerationParameters):
    """What completions and chat completions have in common, and the form of the answers to a completion.

    ``whole`` and ``part`` return what a choice of an answer or of an event has of a text.
    """

    defaults: ClassVar[Mapping[str, Any]] = {}
    id_prefix: ClassVar[str] = ""
    object: ClassVar[str]
    streamed: ClassVar[str]
    opening: ClassVar[Mapping[str, Any] | None] = None
    """What the event before the first text has; None for no such event."""

    model: str
    stream: bool = False
    stream_options: _StreamOptions = _StreamOptions()

    @classmethod
    def read(cls, given: Mapping[str, Any]) -> Self:
        """Reads a request; raises InputError if a parameter is wrong or not offered."""
        given = {key: value for key, value in given.items() if value is not None}
        for key, neutral in _WITHOUT_EFFECT.items():
            value = given.get(key, neutral)
            if value != neutral or isinstance(value, bool) != isinstance(neutral, bool):
                raise InputError(f"{key} is {one_line(text_of(value), 80)}, which this agent does not offer")
        try:
            return cls.model_validate({**cls.defaults, **given})
        except ValidationError as error:
            first = error.errors()[0]
            raise InputError(f"{'.'.join(map(str, first['loc']))}: {first['msg']}") from error

    def tokens(self, engine: Engine) -> Sequence[int]:
        """Returns the tokens of the prompt; raises InputError."""
        raise NotImplementedError

    def whole(self, text: str) -> dict[str, Any]:
        return {"text": text}

    def part(self, text: str) -> dict[str, Any]:
        return {"text": text}


class _Completion(_Request):
    defaults = {"max_tokens": 16}  # noqa: RUF012 - as OpenAI has it
    id_prefix, object, streamed = "cmpl-", "text_completion", "text_completion"

    prompt: Any = None

    def tokens(self, engine: Engine) -> Sequence[int]:
        prompt = self.prompt
        if isinstance(prompt, list) and len(prompt) == 1 and not isinstance(prompt[0], int):
            prompt = prompt[0]
        if isinstance(prompt, str):
            return engine.encode(prompt)
        if isinstance(prompt, list) and all(type(each) is int for each in prompt):
            return prompt
        raise InputError("prompt must be one string, or one list of tokens")


class TextRequest(_Request):
    """A request of the generate extension; ``stream`` of false asks for the text in one answer."""

    stream: bool = True
    text_input: str
    exclude_input_in_output: Literal[True] = True
    """As answers never repeat the prompt; a parameter of Triton's backend for vLLM."""

    @classmethod
    def read(cls, given: Mapping[str, Any]) -> Self:
        """Reads a request, in which ``sampling_parameters`` may have others as JSON, as in that backend."""
        try:
            return super().read({**json.loads(given.get("sampling_parameters") or "{}"), **given})
        except (TypeError, ValueError, RecursionError) as error:
            raise InputError("sampling_parameters must be a string with a JSON object") from error

    def tokens(self, engine: Engine) -> Sequence[int]:  # noqa: D102 - as the base's
        return engine.encode(self.text_input)


class _Chat(_Request):
    id_prefix, object, streamed = "chatcmpl-", "chat.completion", "chat.completion.chunk"
    operation = "chat"
    opening = {"delta": {"role": "assistant", "content": ""}}  # noqa: RUF012

    messages: list[_Message]

    def tokens(self, engine: Engine) -> Sequence[int]:
        if not self.messages:
            raise InputError("messages is empty")
        return engine.encode(
            [
                {"role": each.role, "content": "".join(part.text for part in each.content)}
                for each in self.messages
            ]
        )

    def whole(self, text: str) -> dict[str, Any]:
        return {"message": {"role": "assistant", "content": text}}

    def part(self, text: str) -> dict[str, Any]:
        return {"delta": {"content": text} if text else {}}


@dataclass(frozen=True, slots=True)
class EventStream:
    """The answer to a request that streams; leaving ``under_way`` ends it, in any state."""

    events: AsyncIterator[bytes]
    under_way: AbstractContextManager[object]


def event(content: object) -> bytes:
    """Returns a server-sent event with a JSON value."""
    return f"data: {text_of(content)}\n\n".encode()


def error_object(status: int, message: str, error: Exception | None) -> dict[str, Any]:
    """Returns an error in OpenAI's form."""
    kind = "invalid_request_error" if status < 500 else "server_error"
    code = "model_not_found" if isinstance(error, UnknownModelError) else None
    return {"error": {"message": message, "type": kind, "param": None, "code": code}}


def _choices(content: Mapping[str, Any], reason: FinishReason | None = None) -> list[dict[str, Any]]:
    return [{"index": 0, **content, "logprobs": None, "finish_reason": reason}]


class TextService:
    """Generates texts: the methods of both protocols for the HTTP server, and ``begin`` for other servers.

    Args:
        tracing: Begins the traces of calls.
        generated: Is told the model of each request when it ends.
    """

    def __init__(self, tracing: ServerTracing, generated: Callable[[str, Generation], None]) -> None:
        self.tracing, self._generated = tracing, generated

    def methods(self, repository: Repository) -> list[Method]:
        """The methods, which are given parsed JSON.

        A name means the version that the Open Inference Protocol gives it.
        """
        named: Mapping[str, Callable[[Any, CallContext], Any]] = {
            "ListLanguageModels": partial(self._list, repository),
            "Completions": partial(self._answer, repository, _Completion),
            "ChatCompletions": partial(self._answer, repository, _Chat),
            "Generate": partial(self._generate, repository, False),
            "GenerateStream": partial(self._generate, repository, True),
        }
        return [Method(f"text/{name}", work, bytes, bytes) for name, work in named.items()]

    async def _list(self, repository: Repository, _: object, __: CallContext) -> dict[str, Any]:
        fields = {"object": "model", "created": 0, "owned_by": "inferometer"}
        models = repository.language_models()
        return {"object": "list", "data": [{"id": name, **fields} for name in models]}

    async def begin(
        self,
        request: _Request,
        lease: Callable[[], Lease[ServedEngine]],
        call: CallContext,
        scope: TraceScope | None,
        under_way: ExitStack,
    ) -> tuple[Generation, AsyncIterator[Piece]]:
        """Begins to generate a text; returns its pieces, a single one unless the request streams.

        Leaving ``under_way`` ends it, in any state. Raises what ``lease``, which may load the model,
        and ``Engine.submit`` raise; the iterator raises the error that ends a text.
        """

        def prepare() -> tuple[ServedEngine, Sequence[int]]:
            served = under_way.enter_context(lease())
            return served, request.tokens(served.engine)

        served, prompt = await call.in_thread(prepare)
        engine = served.engine
        call.record.model = engine.name
        loop, delivered = asyncio.get_running_loop(), asyncio.Queue[Piece]()

        def deliver(piece: Piece) -> None:
            with suppress(RuntimeError):  # the loop has been closed
                loop.call_soon_threadsafe(delivered.put_nowait, piece)

        generation = engine.submit(prompt, request, deliver)
        under_way.callback(self._generated, engine.name, generation)
        under_way.callback(served.count, generation)
        if scope is not None:
            record = partial(generation.record, scope, engine.name, _id_of(request, call))
            under_way.callback(lambda: loop.call_soon(record, time.perf_counter_ns()))
        under_way.callback(generation.cancel)
        return generation, _pieces(delivered) if request.stream else _joined(_pieces(delivered))

    def _traced(self, call: CallContext, under_way: ExitStack) -> TraceScope | None:
        trace = self.tracing.begin(call, exported=True)
        if trace is None:
            return None
        under_way.push(partial(_close_later, trace))
        return trace.scope

    async def _answer(
        self, repository: Repository, kind: type[_Request], given: Mapping[str, Any], call: CallContext
    ) -> dict[str, Any] | EventStream:
        with ExitStack() as under_way:
            scope = self._traced(call, under_way)
            request = kind.read(given)
            lease = partial(repository.lease_engine, request.model)
            generation, pieces = await self.begin(request, lease, call, scope, under_way)
            head = {
                "id": _id_of(request, call),
                "created": int(time.time()),
                "model": call.record.model,
                "object": request.streamed if request.stream else request.object,
            }
            if request.stream:
                return EventStream(_events(generation, request, pieces, head), under_way.pop_all())
            piece = await anext(pieces)
        choices = _choices(request.whole(piece.text), piece.finish_reason)
        return {**head, "choices": choices, **_totals(generation)}

    async def _generate(
        self, repository: Repository, streams: bool, given: Mapping[str, Any], call: CallContext
    ) -> dict[str, Any] | EventStream:
        with ExitStack() as under_way:
            scope = self._traced(call, under_way)
            request = TextRequest.read({"stream": streams, **given})
            if request.stream and not streams:
                raise InputError("stream is true, but generate has one answer; use generate_stream")
            version, lease = repository.language_model(request.model, given["version"])
            _, pieces = await self.begin(request, lease, call, scope, under_way)
            head = {"model_name": request.model, "model_version": version}
            answers = ({**head, "text_output": piece.text} async for piece in pieces)
            if streams:
                return EventStream((event(each) async for each in answers), under_way.pop_all())
            return await anext(answers)


def _id_of(request: _Request, call: CallContext) -> str:
    return f"{request.id_prefix}{call.record.request_id}"


def _close_later(trace: CallTrace, *raised: object) -> None:
    """Closes a trace when the rest of the answer, which that would delay, has been sent."""
    asyncio.get_running_loop().call_soon(trace.__exit__, *raised)


async def _pieces(delivered: asyncio.Queue[Piece]) -> AsyncGenerator[Piece, None]:
    is_last = False
    while not is_last:
        piece = await delivered.get()
        if piece.error is not None:
            raise piece.error
        yield piece
        is_last = piece.is_last


async def _joined(pieces: AsyncIterator[Piece]) -> AsyncGenerator[Piece, None]:
    found = [piece async for piece in pieces]
    yield Piece("".join(piece.text for piece in found), found[-1].finish_reason)


async def _events(
    generation: Generation, request: _Request, pieces: AsyncIterator[Piece], head: Mapping[str, Any]
) -> AsyncGenerator[bytes, None]:
    with_usage = request.stream_options.include_usage
    usage = {"usage": None} if with_usage else {}
    content = event({**head, "choices": _choices(request.opening), **usage}) if request.opening else b""
    async for piece in pieces:
        choices = _choices(request.part(piece.text), piece.finish_reason)
        content += event({**head, "choices": choices, **usage})
        if piece.is_last and with_usage:
            content += event({**head, "choices": [], **_totals(generation)})
        yield content + b"data: [DONE]\n\n" * piece.is_last
        content = b""


def _totals(generation: Generation) -> dict[str, Any]:
    """Returns the usage, and the times in milliseconds, of a request that has ended."""
    prompt, tokens = len(generation.prompt), len(generation.tokens)
    spent_ms = {f"{name}_ms": ns / 1e6 for name, ns in generation.spent_ns().items()}
    return {
        "usage": {"prompt_tokens": prompt, "completion_tokens": tokens, "total_tokens": prompt + tokens},
        "timings": {**spent_ms, "steps": tokens - 1},
    }
