"""The engine of a language model: continuous batching, sampling, stop strings, and the times of each request.

One thread runs the model. Between two steps, requests leave that are finished or cancelled, and waiting ones
join: each is prefilled alone, before the next step of the others. A step computes one token of every request
that has joined. This is a reference whose times are explained, not a fast server: it has neither paged memory
nor cached prefixes.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from inferometer.agent.closeable import Closeable
from inferometer.agent.generation.tokenizers import Tokenizer
from inferometer.agent.hardware.environment import FrameworkDetails
from inferometer.manifests.errors import (
    AgentError,
    InferometerError,
    InputError,
    PredictionError,
    QueueFullError,
)

_LEAVING_S = 2.0


class LanguageModel(Protocol):
    """A model that generates tokens, with its cache. Used by one thread; each call returns synchronised.

    Attributes:
        context_length: The largest number of tokens of a sequence.
        vocabulary_size: The number of tokens.
        end_tokens: The tokens that end a text.
    """

    context_length: int
    vocabulary_size: int
    end_tokens: frozenset[int]

    def prefill(self, tokens: Sequence[int]) -> NDArray[np.float32]:
        """Adds a sequence in a new row; returns the logits after its last token, float32, vocabulary.

        If it fails, the other sequences are unaffected.
        """

    def step(self, tokens: Sequence[int]) -> NDArray[np.float32]:
        """Adds one token to each sequence; returns the logits after it, float32, rows × vocabulary."""

    def remove(self, row: int) -> None:
        """Removes a sequence; the last one takes its row."""

    def details(self) -> FrameworkDetails:
        """Returns the framework's libraries, build and settings."""

    def close(self) -> None:
        """Frees the model."""


@dataclass(frozen=True, slots=True)
class Sampling:
    """How the next token is chosen.

    Attributes:
        temperature: The divisor of the logits; 0 chooses the most probable token.
        top_p: Only the most probable tokens that together have this probability are drawn
            (https://arxiv.org/abs/1904.09751).
        seed: The seed of the draws, which no other request affects; None means a random one.
    """

    temperature: float = 0.0
    top_p: float = 1.0
    seed: int | None = None

    def __post_init__(self) -> None:
        if not 0 <= self.temperature <= 100:
            raise InputError(f"temperature is {self.temperature}; it must be from 0 to 100")
        if not 0 < self.top_p <= 1:
            raise InputError(f"top_p is {self.top_p}; it must be above 0 and at most 1")
        if self.seed is not None and self.seed < 0:
            raise InputError(f"seed is {self.seed}; it must be at least 0")


@dataclass(frozen=True, slots=True)
class GenerationRequest:
    """A request for text.

    Attributes:
        prompt: The tokens of the prompt.
        max_tokens: The largest number of tokens to generate; None means as many as the context has room for.
        sampling: How tokens are chosen.
        stop: The text ends before the first of these strings.
        ignore_eos: Whether generation continues after an end token.
        min_tokens: No end token is chosen before this many tokens.
    """

    prompt: tuple[int, ...]
    max_tokens: int | None = None
    sampling: Sampling = field(default_factory=Sampling)
    stop: tuple[str, ...] = ()
    ignore_eos: bool = False
    min_tokens: int = 0


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


@dataclass(slots=True)
class Times:
    """The times of a request in nanoseconds.

    Attributes:
        queue: From its arrival to the start of its prefill.
        prefill: The model's computation of the prompt, without choosing the first token.
        steps: Each of the model's steps, which computes one token of every request in its batch.
        batch_sizes: The number of requests in each step.
        sampling: Choosing tokens from logits, in sum.
        detokenizing: Converting tokens to text and looking for stop strings, in sum.
    """

    queue: int = 0
    prefill: int = 0
    steps: list[int] = field(default_factory=list)
    batch_sizes: list[int] = field(default_factory=list)
    sampling: int = 0
    detokenizing: int = 0


Deliver = Callable[[Piece], None]
"""Receives each piece in the engine's thread, and returns at once."""


class Generation:
    """A request in progress, from ``Engine.submit``; its tokens and times are final with the last piece.

    Attributes:
        request: The request.
        tokens: The generated tokens, with the end token if there is one.
        times: The times so far.
        is_cancelled: Whether ``cancel`` was called.
    """

    def __init__(
        self, request: GenerationRequest, text: _Text, limit: int, deliver: Deliver, now_ns: int
    ) -> None:
        self.request = request
        self.tokens: list[int] = []
        self.times = Times()
        self.is_cancelled = False
        self._text = text
        self._limit = limit
        self._deliver = deliver
        self._arrived_ns = now_ns
        self._random = np.random.default_rng(request.sampling.seed)

    def cancel(self) -> None:
        """Ends the request before the next step; it delivers no further piece. Thread-safe."""
        self.is_cancelled = True

    def begin(self, now_ns: int) -> None:
        """Called when the prefill begins."""
        self.times.queue = now_ns - self._arrived_ns

    def advance(self, logits: NDArray[np.float32], ends: frozenset[int], clock: Callable[[], int]) -> bool:
        """Chooses the next token and delivers its text; returns whether the request has ended."""
        request, before_ns = self.request, clock()
        if ends and len(self.tokens) < request.min_tokens:
            logits = logits.copy()
            logits[list(ends)] = -np.inf
        token = choose(logits, request.sampling, self._random)
        self.tokens.append(token)
        chosen_ns = clock()
        is_end = token in ends
        text, stopped = self._text.push(None if is_end else token)
        reason = FinishReason.STOP if stopped or (is_end and not request.ignore_eos) else None
        if reason is None and len(self.tokens) >= self._limit:
            reason = FinishReason.LENGTH
        if reason is not None and not stopped:
            rest, stopped = self._text.end()
            text += rest
            reason = FinishReason.STOP if stopped else reason
        self.times.sampling += chosen_ns - before_ns
        self.times.detokenizing += clock() - chosen_ns
        if text or reason:
            self.deliver(Piece(text, reason))
        return reason is not None

    def deliver(self, piece: Piece) -> None:
        """Delivers a piece, unless the request is cancelled."""
        if not self.is_cancelled:
            self._deliver(piece)


def choose(logits: NDArray[np.float32], sampling: Sampling, random: np.random.Generator) -> int:
    """Returns the next token, given the logits of all tokens; draws one number unless it is greedy."""
    if sampling.temperature == 0:
        return int(logits.argmax())
    scaled = logits.astype(np.float64)
    scaled = (scaled - scaled.max()) / sampling.temperature
    weights = np.exp(scaled)
    order = np.argsort(-weights, kind="stable")
    sums = np.cumsum(weights[order])
    # the first tokens whose sum reaches top_p, at least one
    kept = int(np.searchsorted(sums, sampling.top_p * sums[-1])) + 1
    kept = min(kept, len(sums))
    place = int(np.searchsorted(sums[:kept], random.random() * sums[kept - 1], side="right"))
    return int(order[min(place, kept - 1)])


class _Text:
    """The text of a request: withholds what might become a stop string, and ends before one."""

    def __init__(self, tokenizer: Tokenizer, stop: Sequence[str]) -> None:
        self._detokenizer = tokenizer.detokenizer()
        self._stop = stop
        self._withheld = ""

    def push(self, token: int | None) -> tuple[str, bool]:
        """Returns the new text after a token, and whether a stop string ended it; None has no text."""
        return self._released("" if token is None else self._detokenizer.push(token))

    def end(self) -> tuple[str, bool]:
        """Returns the text that is left when no token follows, and whether a stop string ended it."""
        text, stopped = self._released(self._detokenizer.end())
        return (text, True) if stopped else (text + self._withheld, False)

    def _released(self, new: str) -> tuple[str, bool]:
        text = self._withheld + new
        places = [place for each in self._stop if (place := text.find(each)) >= 0]
        if places:
            return text[: min(places)], True
        withheld = max(
            (size for each in self._stop for size in range(1, len(each)) if text.endswith(each[:size])),
            default=0,
        )
        self._withheld = text[len(text) - withheld :]
        return text[: len(text) - withheld], False


class Engine(Closeable):
    """Generates texts with a model, which it closes with itself. Thread-safe.

    Args:
        model: The model, which only the engine's thread uses.
        tokenizer: The model's tokenizer.
        name: The model's name for messages.
        max_batch_size: The largest number of requests in a step.
        max_waiting: The largest number of requests that wait to join.
        clock: A monotonic clock in nanoseconds.
    """

    def __init__(
        self,
        model: LanguageModel,
        tokenizer: Tokenizer,
        name: str,
        *,
        max_batch_size: int = 1,
        max_waiting: int = 1024,
        clock: Callable[[], int] = time.perf_counter_ns,
    ) -> None:
        self.tokenizer = tokenizer
        self.context_length = model.context_length
        self._model = model
        self._name = name
        self._max_batch_size = max_batch_size
        self._max_waiting = max_waiting
        self._clock = clock
        self._changed = threading.Condition()
        self._waiting: deque[Generation] = deque()
        self._running: list[Generation] = []
        self._is_closed = False
        self._thread = threading.Thread(target=self._work, name=f"generate-{name}", daemon=True)
        self._thread.start()

    def submit(self, request: GenerationRequest, deliver: Deliver) -> Generation:
        """Begins a request, whose pieces ``deliver`` receives.

        Raises:
            InputError: The prompt is empty, has an unknown token, or leaves too little room in the context.
            QueueFullError: Too many requests are waiting.
            AgentError: The engine is closed.
        """
        limit = self._limit(request)
        text = _Text(self.tokenizer, request.stop)
        found = Generation(request, text, limit, deliver, self._clock())
        with self._changed:
            if self._is_closed:
                raise AgentError(f"model {self._name} is closed")
            if len(self._waiting) >= self._max_waiting:
                raise QueueFullError(
                    f"model {self._name} has {self._max_waiting} waiting requests, its maximum; try later"
                )
            self._waiting.append(found)
            self._changed.notify()
        return found

    def _limit(self, request: GenerationRequest) -> int:
        """Returns the largest number of tokens that a request may generate."""
        prompt, context, wanted = len(request.prompt), self.context_length, request.max_tokens
        if not prompt:
            raise InputError("the prompt has no tokens")
        if wanted is not None and wanted < 1:
            raise InputError(f"max_tokens is {wanted}; it must be at least 1")
        if prompt + (wanted or 1) > context:
            asked = f" and {wanted} to generate" if wanted else ""
            raise InputError(
                f"the prompt has {prompt} tokens{asked}, but the context of model {self._name} has {context}"
            )
        size = self._model.vocabulary_size
        if not all(0 <= token < size for token in request.prompt):
            raise InputError(f"the prompt has a token that the model lacks; its tokens are 0 to {size - 1}")
        return wanted or context - prompt

    def close(self) -> None:
        """Ends all requests with an error, and frees the model after the current step.

        Waits for that for at most two seconds, because a step cannot be interrupted.
        """
        with self._changed:
            self._is_closed = True
            self._changed.notify()
        self._thread.join(_LEAVING_S)

    def _work(self) -> None:
        try:
            while self._has_work():
                self._drop_cancelled()
                self._join_waiting()
                if self._running:
                    self._step()
        finally:
            self._fail([*self._running, *self._waiting], AgentError(f"model {self._name} has been closed"))
            self._model.close()

    def _has_work(self) -> bool:
        """Waits for a request; returns False once the engine is closed."""
        with self._changed:
            while not (self._is_closed or self._waiting or self._running):
                self._changed.wait()
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
            self._prefill(generation)

    def _prefill(self, generation: Generation) -> None:
        before_ns = self._clock()
        generation.begin(before_ns)
        try:
            logits = self._model.prefill(generation.request.prompt)
        except Exception as error:  # noqa: BLE001 - the thread outlives what a model raises
            self._fail([generation], error)
            return
        generation.times.prefill = self._clock() - before_ns
        self._running.append(generation)
        self._advance(len(self._running) - 1, logits)

    def _step(self) -> None:
        before_ns = self._clock()
        try:
            logits = self._model.step([each.tokens[-1] for each in self._running])
        except Exception as error:  # noqa: BLE001 - the thread outlives what a model raises
            failed = list(self._running)
            for row in reversed(range(len(failed))):
                self._remove(row)
            self._fail(failed, error)
            return
        duration_ns, size = self._clock() - before_ns, len(self._running)
        for row in reversed(range(size)):  # as the last takes the row of one that leaves
            times = self._running[row].times
            times.steps.append(duration_ns)
            times.batch_sizes.append(size)
            self._advance(row, logits[row])

    def _advance(self, row: int, logits: NDArray[np.float32]) -> None:
        generation = self._running[row]
        try:
            has_ended = generation.advance(logits, self._model.end_tokens, self._clock)
        except Exception as error:  # noqa: BLE001 - of a tokenizer, for instance
            self._fail([generation], error)
            has_ended = True
        if has_ended:
            self._remove(row)

    def _remove(self, row: int) -> None:
        self._model.remove(row)
        last = self._running.pop()
        if row < len(self._running):
            self._running[row] = last

    def _fail(self, generations: Sequence[Generation], error: Exception) -> None:
        if not isinstance(error, InferometerError):
            error = PredictionError(f"model {self._name} failed: {type(error).__name__}: {error}")
        for each in generations:
            each.deliver(Piece("", error=error))
