"""The engine of a language model: continuous batching, sampling, stop strings, and the times of each request.

One thread runs the model. Between two steps, requests leave that are finished or cancelled, and waiting ones
join: each is prefilled alone, before the next step of the others. A step computes one token of every request
that has joined. This is a reference whose times are explained, not a fast server: it has neither paged memory
nor cached prefixes.
"""

from __future__ import annotations

import threading
import time
from array import array
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from enum import Enum
from typing import Annotated, ClassVar, Protocol

import numpy as np
from numpy.typing import NDArray
from pydantic import AliasChoices, BaseModel, BeforeValidator, ConfigDict, Field, NonNegativeInt, PositiveInt

from inferometer.agent.generation.tokenizers import ChatTemplate, Detokenizer, Tokenizer
from inferometer.agent.hardware.environment import FrameworkDetails, Precision
from inferometer.agent.tracing.recorder import AttributeValue, SpanKind, TraceLevel, TraceScope
from inferometer.manifests.errors import (
    AgentError,
    InferometerError,
    InputError,
    PredictionError,
    QueueFullError,
    one_line,
)

PROVIDER = "inferometer"
"""OpenTelemetry's name of who generates."""
_QUEUE = SpanKind("queue", TraceLevel.APPLICATION_TRACE)
_PREFILL, _STEP, _SAMPLE, _DETOKENIZE = (
    SpanKind(name, TraceLevel.MODEL_TRACE) for name in ("prefill", "step", "sample", "detokenize")
)
_TIMES = 5
_MOST_CHARACTERS = 64  # of a token


class LanguageModel(Protocol):
    """A model that generates tokens, with its cache. Used by one thread; each call returns synchronised.

    Attributes:
        context_length: The largest number of tokens of a sequence.
        vocabulary_size: The number of tokens.
        end_tokens: The tokens that end a text.
        precision: The numeric type that was asked for; None for a graph, which has its own.
    """

    context_length: int
    vocabulary_size: int
    end_tokens: frozenset[int]
    precision: Precision | None

    def prefill(self, tokens: Sequence[int]) -> NDArray[np.float32]:
        """Adds a sequence in a new row; returns the logits after its last token, float32, vocabulary.

        If it fails, the other sequences are unaffected.
        """

    def step(self, tokens: Sequence[int]) -> NDArray[np.float32]:
        """Adds one token to each sequence; returns the logits after it, float32, rows × vocabulary."""

    def log_probabilities(self, tokens: Sequence[int]) -> NDArray[np.float32]:
        """Returns that of each token but the first, given those before; needs a free row, keeps none."""

    def remove(self, row: int) -> None:
        """Removes a sequence; the last one takes its row."""

    def details(self) -> FrameworkDetails:
        """Returns the framework's libraries, build and settings."""

    def close(self) -> None:
        """Frees the model."""


class GenerationParameters(BaseModel):
    """How a text is generated; the names are OpenAI's, with vLLM's ``ignore_eos`` and ``min_tokens``.

    Attributes:
        max_tokens: The largest number of tokens to generate; None means as many as the context has room for.
        temperature: The divisor of the logits; 0 chooses the most probable token.
        top_p: Only the most probable tokens that together have this probability are drawn
            (https://arxiv.org/abs/1904.09751).
        seed: The seed of the draws, which no other request affects; None means a random one.
        stop: The text ends before the first of these strings.
        ignore_eos: Whether generation continues after an end token.
        min_tokens: These first tokens end no text: none is an end token, and none completes a stop string.
        operation: OpenTelemetry's name of what is asked.
    """

    operation: ClassVar[str] = "text_completion"

    model_config = ConfigDict(strict=True, allow_inf_nan=False)

    max_tokens: PositiveInt | None = Field(
        default=None, validation_alias=AliasChoices("max_completion_tokens", "max_tokens")
    )
    temperature: float = Field(default=1.0, ge=0, le=100)
    top_p: float = Field(default=1.0, gt=0, le=1)
    seed: NonNegativeInt | None = None
    stop: Annotated[
        list[Annotated[str, Field(min_length=1)]],
        Field(max_length=16),
        BeforeValidator(lambda given: [given] if isinstance(given, str) else given),
    ] = []
    ignore_eos: bool = False
    min_tokens: NonNegativeInt = 0


_NOTHING = GenerationParameters()
"""Of a request for the log-probabilities of its prompt instead of a text."""


class FinishReason(str, Enum):
    """Why a text ends; the names are OpenAI's."""

    STOP = "stop"
    """By an end token or a stop string."""
    LENGTH = "length"
    """By ``max_tokens``."""


@dataclass(frozen=True, slots=True)
class Piece:
    """A part of a generated text; the last one has either a ``finish_reason`` or an ``error``.

    Several tokens are one piece if only together they are text, or might be a stop string.
    """

    text: str
    finish_reason: FinishReason | None = None
    error: InferometerError | None = None

    @property
    def is_last(self) -> bool:
        """Whether nothing follows."""
        return self.finish_reason is not None or self.error is not None


Deliver = Callable[[Piece], None]
"""Receives each piece in the engine's thread, and returns at once."""


class Generation:
    """A request in progress, from ``Engine.submit``; its tokens and times are final with the last piece.

    Attributes:
        prompt: The tokens of the prompt.
        parameters: How its text is generated.
        arrived_ns: When it arrived.
        joined_ns: When its prefill began; None before.
        tokens: The generated tokens, with the end token if there is one.
        is_cancelled: Whether ``cancel`` was called.
        is_answered: Whether its text is whole.
        latest: The piece that was delivered last.
        log_probabilities: Those of the tokens of the prompt, if they were asked for.
    """

    def __init__(
        self,
        prompt: Sequence[int],
        parameters: GenerationParameters,
        tokenizer: Tokenizer,
        deliver: Deliver,
        arrived_ns: int,
    ) -> None:
        self.prompt = prompt
        self.parameters = parameters
        self.arrived_ns = arrived_ns
        self.joined_ns: int | None = None
        self.tokens: list[int] = []
        self._times = array("q")  # flat: in this process, all requests of a run keep theirs
        self.is_cancelled = self.is_answered = False
        self.latest: Piece | None = None
        self.log_probabilities: Sequence[float] = ()
        self._text = Detokenizer(tokenizer, parameters.stop)
        self._deliver = deliver
        self._random = np.random.default_rng(parameters.seed)

    @property
    def times_ns(self) -> Sequence[Sequence[int]]:
        """Five times of each token, on the engine's clock.

        The model began and ended its computation, for the first token the prefill; the token began to be
        chosen from the logits, and was; and it was detokenized, with the search for stop strings.
        """
        times = self._times[:]  # to which the engine may add
        return [times[number::_TIMES] for number in range(_TIMES)]

    def cancel(self) -> None:
        """Ends the request before the next step; it delivers no further piece. Thread-safe."""
        self.is_cancelled = True

    def advance(
        self,
        logits: NDArray[np.float32],
        model: LanguageModel,
        clock: Callable[[], int],
        computed: tuple[int, int],
    ) -> bool:
        """Chooses the next token and delivers its text; returns whether the request has ended.

        ``computed`` is when the model's computation of the logits began and ended.
        """
        parameters, ends, choosing_ns = self.parameters, model.end_tokens, clock()
        if ends and len(self.tokens) < parameters.min_tokens:
            logits = logits.copy()
            logits[list(ends)] = -np.inf
        token = choose(logits, parameters, self._random)
        self.tokens.append(token)
        chosen_ns, count = clock(), len(self.tokens)
        most = parameters.max_tokens or model.context_length - len(self.prompt)
        has_ended = token in ends and not parameters.ignore_eos
        text, stopped = self._text.push(
            [] if token in ends else [token],
            is_last=has_ended or count >= most,
            may_stop=count > parameters.min_tokens,
        )
        reason = FinishReason.STOP if stopped or has_ended else FinishReason.LENGTH if count >= most else None
        self._times.extend((*computed, choosing_ns, chosen_ns, clock()))
        self.is_answered = reason is not None
        if text or reason:
            self.deliver(Piece(text, reason))
        return self.is_answered

    def spent_ns(self) -> dict[str, int]:
        """Returns the time of each part of the request in nanoseconds, in sum over its tokens.

        The queue is from its arrival to its prefill; ``steps`` are the model's steps after that.
        """
        begun, computed, choosing, chosen, ended = self.times_ns
        return {
            "queue": (self.joined_ns or self.arrived_ns) - self.arrived_ns,
            "prefill": sum(computed[:1]) - sum(begun[:1]),
            "steps": sum(computed[1:]) - sum(begun[1:]),
            "sampling": sum(chosen) - sum(choosing),
            "detokenizing": sum(ended) - sum(chosen),
        }

    def deliver(self, piece: Piece) -> None:
        """Delivers a piece, unless the request is cancelled."""
        if not self.is_cancelled:
            self.latest = piece
            self._deliver(piece)

    def record(self, scope: TraceScope, model: str, response_id: str | None, ended_ns: int) -> None:
        """Records the spans of a request that ended at a time on the engine's clock, from its other times.

        The first one has the names of OpenTelemetry's conventions for generative AI; those of its parts are
        below it.
        """
        parameters, latest = self.parameters, self.latest or Piece("")
        reason = latest.finish_reason
        attributes: dict[str, AttributeValue | None] = {
            "gen_ai.operation.name": parameters.operation,
            "gen_ai.provider.name": PROVIDER,
            "gen_ai.request.model": model,
            "gen_ai.request.max_tokens": parameters.max_tokens,
            "gen_ai.request.temperature": parameters.temperature,
            "gen_ai.request.top_p": parameters.top_p,
            "gen_ai.request.seed": parameters.seed,
            "gen_ai.request.stop_sequences": tuple(parameters.stop) or None,
            "gen_ai.response.id": response_id,
            "gen_ai.response.model": model,
            "gen_ai.response.finish_reasons": None if reason is None else (reason.value,),
            "gen_ai.usage.input_tokens": len(self.prompt),
            "gen_ai.usage.output_tokens": len(self.tokens),
            "error.type": None if latest.error is None else type(latest.error).__name__,
        }
        kind = SpanKind.of(f"{parameters.operation} {model}", TraceLevel.APPLICATION_TRACE, **attributes)
        inner = scope.add(kind, self.arrived_ns, ended_ns)
        inner.add(_QUEUE, self.arrived_ns, min(self.joined_ns or ended_ns, ended_ns))
        times = zip(*self.times_ns, strict=False) if scope.recorder.wants(TraceLevel.MODEL_TRACE) else ()
        for number, (begun, computed, choosing, chosen, ended) in enumerate(times):
            if ended <= ended_ns:  # of one that timed out, the engine may compute another
                inner.add(_STEP if number else _PREFILL, begun, computed)
                inner.add(_SAMPLE, choosing, chosen)
                inner.add(_DETOKENIZE, chosen, ended)


def choose(logits: NDArray[np.float32], parameters: GenerationParameters, random: np.random.Generator) -> int:
    """Returns the next token, given the logits of all tokens; draws one number unless it is greedy."""
    if parameters.temperature == 0:
        return int(logits.argmax())
    order = np.argsort(-logits, kind="stable")
    scaled = logits[order].astype(np.float64)
    sums = np.cumsum(np.exp((scaled - scaled[0]) / parameters.temperature))
    # of the first tokens whose sum reaches top_p, at least one
    sums = sums[: np.searchsorted(sums, parameters.top_p * sums[-1]) + 1]
    place = np.searchsorted(sums, random.random() * sums[-1], side="right")
    return int(order[min(place, len(sums) - 1)])


class Engine:
    """Generates texts with a model, which it closes with itself. Thread-safe.

    Args:
        model: The model, which only the engine's thread uses.
        tokenizer: The model's tokenizer.
        name: The model's name.
        template: The model's chat template; without one, each message is a line such as ``user: hello``.
        max_batch_size: The largest number of requests in a step.
        max_waiting: The largest number of requests that wait to join.
        clock: A monotonic clock in nanoseconds.
        on_closed: Called when the model has been freed.
    """

    def __init__(
        self,
        model: LanguageModel,
        tokenizer: Tokenizer,
        name: str,
        template: ChatTemplate | None = None,
        *,
        max_batch_size: int = 1,
        max_waiting: int = 1024,
        clock: Callable[[], int] = time.perf_counter_ns,
        on_closed: Callable[[], None] = lambda: None,
    ) -> None:
        self._model = model
        self._tokenizer = tokenizer
        self._template = template
        self.name = name
        self._max_batch_size = max_batch_size
        self._max_waiting = max_waiting
        self._clock = clock
        self._on_closed = on_closed
        self._began_ns: int | None = None
        self._changed = threading.Condition()
        self._waiting: deque[Generation] = deque()
        self._running: list[Generation] = []
        self._is_closed = False
        self._thread = threading.Thread(target=self._work, name=f"generate-{name}", daemon=True)
        self._thread.start()

    def encode(self, prompt: str | Sequence[Mapping[str, str]], more: str = "") -> tuple[int, ...]:
        """Returns the tokens of a prompt, a chat up to its next message, and ``more``; raises InputError."""
        is_rendered = not isinstance(prompt, str) and self._template is not None
        if not isinstance(prompt, str):
            lines = [f"{message['role']}: {message['content']}\n" for message in prompt]
            prompt = self._template(prompt) if self._template else "".join([*lines, "assistant:"])
        prompt += more
        if len(prompt) > (most := _MOST_CHARACTERS * self._model.context_length):
            raise InputError(f"the prompt has {len(prompt)} characters; at most {most} are tokenized")
        return self._tokenizer.encode(prompt, special=not is_rendered)

    def submit(self, prompt: Sequence[int], parameters: GenerationParameters, deliver: Deliver) -> Generation:
        """Begins a request, whose pieces ``deliver`` receives.

        Raises:
            InputError: The prompt is empty, has an unknown token, or leaves too little room in the context.
            QueueFullError: Too many requests are waiting.
            AgentError: The engine is closed.
        """
        wanted, size, context = parameters.max_tokens, self._model.vocabulary_size, self._model.context_length
        if not prompt:
            raise InputError("the prompt has no tokens")
        if len(prompt) + (wanted or 1) > context:
            asked = f"{len(prompt)} tokens" + (f" and {wanted} to generate" if wanted else "")
            raise InputError(f"the prompt has {asked}, but the context of model {self.name} has {context}")
        if not all(0 <= token < size for token in prompt):
            raise InputError(f"the prompt has a token that the model lacks; its tokens are 0 to {size - 1}")
        found = Generation(prompt, parameters, self._tokenizer, deliver, self._clock())
        with self._changed:
            if self._is_closed:
                raise AgentError(f"model {self.name} is closed")
            if len(self._running) + len(self._waiting) >= self._max_batch_size + self._max_waiting:
                raise QueueFullError(
                    f"model {self.name} has {self._max_waiting} waiting requests, its maximum; try later"
                )
            self._waiting.append(found)
            self._changed.notify()
        return found

    def log_probabilities(self, tokens: Sequence[int]) -> Sequence[float]:
        """Waits for the log-probability of each token but the first, given those before it.

        Raises what ``submit`` raises, or PredictionError if the model fails.
        """
        last = Future[Piece]()
        asked = self.submit(tokens, _NOTHING, last.set_result)
        if (error := last.result().error) is not None:
            raise error
        return asked.log_probabilities

    @property
    def waiting(self) -> int:
        """The number of requests that have not joined."""
        return len(self._waiting)

    @property
    def busy_ns(self) -> int:
        """How long the present prefill or step has run, in nanoseconds; 0 if there is none."""
        began_ns = self._began_ns
        return 0 if began_ns is None else self._clock() - began_ns

    @property
    def is_alive(self) -> bool:
        """Whether it has not been closed and freed."""
        return self._thread.is_alive()

    def close(self) -> None:
        """Ends all requests with an error, and frees the model after the current step. Returns at once."""
        with self._changed:
            self._is_closed = True
            self._changed.notify()

    def wait_closed(self, timeout_s: float | None = None) -> bool:
        """Waits until the model has been freed; returns False if a step takes longer."""
        self._thread.join(timeout_s)
        return not self.is_alive

    def _work(self) -> None:
        try:
            while self._has_work():
                self._drop_cancelled()
                self._join_waiting()
                if self._running:
                    self._step()
                self._began_ns = None
        finally:
            self.close()  # an error that no request has caused ends the engine, too
            self._fail([*self._running, *self._waiting], AgentError(f"model {self.name} has been closed"))
            self._model.close()
            self._on_closed()

    def _has_work(self) -> bool:
        """Waits for a request; returns False once the engine is closed."""
        with self._changed:
            self._changed.wait_for(lambda: self._is_closed or self._waiting or self._running)
            return not self._is_closed

    def _drop_cancelled(self) -> None:
        with self._changed:
            self._waiting = deque(each for each in self._waiting if not each.is_cancelled)
        for row in reversed(range(len(self._running))):
            if self._running[row].is_cancelled:
                self._remove(row)

    def _join_waiting(self) -> None:
        while len(self._running) < self._max_batch_size:
            with self._changed:
                if not self._waiting or self._is_closed:
                    return
                generation = self._waiting.popleft()
                self._running.append(generation)
            before_ns = self._began_ns = generation.joined_ns = self._clock()
            try:
                if generation.parameters is _NOTHING:
                    generation.log_probabilities = self._model.log_probabilities(generation.prompt).tolist()
                    self._running.pop().deliver(Piece("", FinishReason.LENGTH))
                    continue
                logits = self._model.prefill(generation.prompt)
            except Exception as error:  # noqa: BLE001 - the thread outlives what a model raises
                self._running.pop()
                self._fail([generation], error)
                continue
            self._advance(len(self._running) - 1, logits, (before_ns, self._clock()))

    def _step(self) -> None:
        before_ns = self._began_ns = self._clock()
        try:
            logits = self._model.step([each.tokens[-1] for each in self._running])
        except Exception as error:  # noqa: BLE001 - the thread outlives what a model raises
            self._fail(self._running, error)
            for row in reversed(range(len(self._running))):
                self._remove(row)
            return
        computed = before_ns, self._clock()
        for row in reversed(range(len(self._running))):  # as the last takes the row of one that leaves
            self._advance(row, logits[row], computed)

    def _advance(self, row: int, logits: NDArray[np.float32], computed: tuple[int, int]) -> None:
        generation = self._running[row]
        try:
            has_ended = generation.advance(logits, self._model, self._clock, computed)
        except Exception as error:  # noqa: BLE001 - of a tokenizer, for instance
            self._fail([generation], error)
            has_ended = True
        if has_ended:
            self._remove(row)

    def _remove(self, row: int) -> None:
        last = self._running.pop()
        if row < len(self._running):
            self._running[row] = last
        self._model.remove(row)

    def _fail(self, generations: Sequence[Generation], error: Exception) -> None:
        if not isinstance(error, InferometerError):
            error = PredictionError(f"model {self.name} failed: {type(error).__name__}: {one_line(error)}")
        for each in generations:
            each.deliver(Piece("", error=error))
