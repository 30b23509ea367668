"""Generated answers that arrive in pieces: the prompts, each answer's chunks, and the columns of a whole run.

The interface of a system that generates is here too: a model in this process, or a server.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from itertools import accumulate
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from inferometer.evaluators.load.target import LoadTarget

UNKNOWN = -1
"""A time or a count that is not known."""


class ChunkKind(IntEnum):
    """What a chunk has. All three are content; only ``TEXT`` is visible output."""

    TEXT = 0
    REASONING = 1
    TOOL_CALL = 2


@dataclass(frozen=True, slots=True)
class Prompt:
    """What one request asks, and how the answer is to be generated.

    Attributes:
        content: A text, or the messages of a chat.
        output_tokens: The most tokens that the server may generate.
        chat: Whether it goes to the chat endpoint instead of that for completions.
        temperature: The temperature; 0 is greedy.
        seed: The seed of what the server draws.
        ignore_eos: Whether it generates as many tokens as it may, whatever the model says. OpenAI's protocol
            has no such field; vLLM and SGLang have.
    """

    content: str | Sequence[Mapping[str, Any]]
    output_tokens: int
    chat: bool = True
    temperature: float = 0.0
    seed: int = 0
    ignore_eos: bool = False

    @property
    def operation(self) -> str:
        """OpenTelemetry's name of the operation."""
        return "chat" if self.chat else "text_completion"


@dataclass(slots=True)
class Answer:
    """One answer as it arrived; times are in nanoseconds on the clock of the run.

    Attributes:
        first_byte_ns: When the first byte of the response arrived; ``UNKNOWN`` without one, as all counts.
        last_byte_ns: When the last one arrived.
        chunks: Each chunk with content: when it was complete, its kind, and its number of characters.
        input_tokens: The server's number of tokens in the prompt.
        output_tokens: The server's number of generated tokens.
        finish: Why the server stopped generating, such as ``stop`` or ``length``.
        error: Why this is no right answer, in one line; empty if it is one.
        text: All of the content, joined.
        id: The server's id of the answer; empty if it tells none, as ``model``.
        model: The server's name of the model that answered.
        cached_tokens: How many tokens of the prompt the server had in its cache.
    """

    first_byte_ns: int = UNKNOWN
    last_byte_ns: int = UNKNOWN
    chunks: list[tuple[int, ChunkKind, int]] = field(default_factory=list)
    input_tokens: int = UNKNOWN
    output_tokens: int = UNKNOWN
    finish: str = ""
    error: str = ""
    text: str = ""
    id: str = ""
    model: str = ""
    cached_tokens: int = UNKNOWN

    @property
    def visible(self) -> str:
        """The text without reasoning and calls of tools."""
        ends = accumulate(size for _, _, size in self.chunks)
        pieces = zip(self.chunks, ends, strict=True)
        return "".join(
            self.text[end - size : end] for (_, kind, size), end in pieces if kind == ChunkKind.TEXT
        )


@dataclass(frozen=True, slots=True, eq=False)
class Streams:
    """The answers of a run's n requests in columns; times are in nanoseconds since the run began.

    Attributes:
        first_byte_ns: int64, n; see ``Answer``.
        last_byte_ns: int64, n.
        input_tokens: int64, n.
        cached_tokens: int64, n.
        output_tokens: int64, n.
        planned_tokens: int64, n; the most tokens that the request allowed.
        chunk_count: int64, n; the chunks with content of each request.
        finish: n; why the server stopped.
        error: n; why there is no right answer, empty if there is one or none arrived.
        chunk_ns: int64, one for each chunk, those of the first request first.
        chunk_kind: int64; see ``ChunkKind``.
        chunk_characters: int64.
    """

    first_byte_ns: NDArray[np.int64]
    last_byte_ns: NDArray[np.int64]
    input_tokens: NDArray[np.int64]
    cached_tokens: NDArray[np.int64]
    output_tokens: NDArray[np.int64]
    planned_tokens: NDArray[np.int64]
    chunk_count: NDArray[np.int64]
    finish: Sequence[str]
    error: Sequence[str]
    chunk_ns: NDArray[np.int64]
    chunk_kind: NDArray[np.int64]
    chunk_characters: NDArray[np.int64]

    def __post_init__(self) -> None:
        of_requests = {len(getattr(self, name)) for name in (*REQUEST_COLUMNS, *TEXT_COLUMNS)}
        of_chunks = {len(getattr(self, name)) for name in CHUNK_COLUMNS}
        if len(of_requests) > 1 or of_chunks != {int(self.chunk_count.sum())} or (self.chunk_count < 0).any():
            raise ValueError("the columns of its answers have different lengths")

    def __len__(self) -> int:
        """Returns the number of requests."""
        return len(self.chunk_count)

    @classmethod
    def of(cls, answers: Sequence[Answer], planned: Sequence[int], began_ns: int) -> Streams:
        """Returns the columns of answers whose times are on the clock on which the run began."""
        chunks = np.array([c for each in answers for c in each.chunks], np.int64).reshape(-1, 3)
        names = REQUEST_COLUMNS[:-2]  # which an answer has
        found = {name: np.array([getattr(each, name) for each in answers], np.int64) for name in names}
        for name in names[:2]:
            found[name] = np.where(found[name] == UNKNOWN, UNKNOWN, found[name] - began_ns)
        return cls(
            **found,
            planned_tokens=np.array(planned, np.int64),
            chunk_count=np.array([len(each.chunks) for each in answers], np.int64),
            finish=[each.finish for each in answers],
            error=[each.error for each in answers],
            chunk_ns=chunks[:, 0] - began_ns,
            chunk_kind=chunks[:, 1],
            chunk_characters=chunks[:, 2],
        )

    @property
    def request(self) -> NDArray[np.int64]:
        """int64; the number of the request that each chunk belongs to."""
        return np.repeat(np.arange(len(self)), self.chunk_count)

    def first_ns(self, kind: ChunkKind | None = None) -> NDArray[np.int64]:
        """Returns when the first chunk of each request arrived, of a kind or any; ``UNKNOWN`` without one."""
        found = np.full(len(self), UNKNOWN, np.int64)
        wanted = np.ones(len(self.chunk_ns), bool) if kind is None else self.chunk_kind == kind
        found[self.request[wanted][::-1]] = self.chunk_ns[wanted][::-1]  # the last assignment stays
        return found

    def last_ns(self) -> NDArray[np.int64]:
        """Returns when the last chunk of each request arrived; ``UNKNOWN`` without one."""
        found = np.full(len(self), UNKNOWN, np.int64)
        found[self.request] = self.chunk_ns
        return found

    def gaps_ns(self, requests: NDArray[np.bool_]) -> NDArray[np.int64]:
        """Returns the times between two chunks of the same request, for the chosen requests."""
        same = np.diff(self.request) == 0
        gaps: NDArray[np.int64] = np.diff(self.chunk_ns)[same & requests[self.request[1:]]]
        return gaps

    def parts(self) -> Iterator[dict[str, list[Any]]]:
        """Yields the columns in parts of at most 5,000 requests, few enough chunks to store each."""
        ends: NDArray[np.int64] = np.cumsum(self.chunk_count)
        begin = 0
        while begin < len(self):
            before = int(ends[begin - 1]) if begin else 0
            fitting = int(np.searchsorted(ends, before + _CHUNKS_IN_PART, "right"))
            end = min(max(fitting, begin + 1), begin + _REQUESTS_IN_PART, len(self))
            of_requests, of_chunks = slice(begin, end), slice(before, int(ends[end - 1]))
            yield {
                **{name: getattr(self, name)[of_requests].tolist() for name in REQUEST_COLUMNS},
                **{name: list(getattr(self, name)[of_requests]) for name in TEXT_COLUMNS},
                **{name: getattr(self, name)[of_chunks].tolist() for name in CHUNK_COLUMNS},
            }
            begin = end

    @classmethod
    def joined(cls, parts: Sequence[Mapping[str, Any]]) -> Streams:
        """Returns the columns of ``parts``; raises KeyError, TypeError or ValueError if they are damaged."""
        # earlier versions kept no cached_tokens
        parts = [{"cached_tokens": [UNKNOWN] * len(each["chunk_count"]), **each} for each in parts]
        found: dict[str, Any] = {name: [each for part in parts for each in part[name]] for name in _COLUMNS}
        for name in (*REQUEST_COLUMNS, *CHUNK_COLUMNS):
            found[name] = np.array(found[name], np.int64)
        return cls(**found | {name: list(map(str, found[name])) for name in TEXT_COLUMNS})


REQUEST_COLUMNS = (
    *("first_byte_ns", "last_byte_ns", "input_tokens", "cached_tokens", "output_tokens"),
    *("planned_tokens", "chunk_count"),
)
TEXT_COLUMNS = ("finish", "error")
CHUNK_COLUMNS = ("chunk_ns", "chunk_kind", "chunk_characters")
_COLUMNS = (*REQUEST_COLUMNS, *TEXT_COLUMNS, *CHUNK_COLUMNS)
_CHUNKS_IN_PART = 50_000
_REQUESTS_IN_PART = 5_000


class StreamTarget(LoadTarget, Protocol):
    """A load target whose answers arrive in pieces."""

    first: int
    """The number of the prompt that query 0 asks, modulo theirs; to be changed between two runs."""

    def submit(self, query: int, own: Prompt | None = None) -> None:
        """Sends a query, which asks the prompt in turn or one of its own; see ``QueryTarget``."""
        ...

    def answer(self, query: int) -> Answer:
        """Returns the answer to a query of the last run, as far as it arrived."""
        ...


class GenerationSystem(Protocol):
    """An open system that generates text."""

    def ask(self, prompt: Prompt) -> Answer:
        """Asks once, outside of a run, and waits for the whole answer.

        Raises:
            InferometerError: The model or the server refuses or fails, or does not stream.
        """
        ...

    def log_probabilities(self, prompt: Prompt, more: str = "") -> Sequence[float]:
        """Returns that of each token but the first of a prompt with ``more`` after it, given those before.

        Raises InferometerError if the model or the server refuses or fails, or does not tell them.
        """
        ...

    def target(self, prompts: Sequence[Prompt], *, timeout_s: float, text: bool) -> StreamTarget:
        """Returns a target whose query n asks prompt ``first`` + n modulo their number, ``first`` being 0.

        Requests are encoded here, before the clock of a run starts; those to a prompt that cannot be encoded
        fail. Answers keep their ``text`` if asked.
        """
        ...

    def close(self) -> None:
        """Closes the connections; calling it again does nothing."""
        ...
