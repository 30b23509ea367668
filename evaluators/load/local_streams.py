"""A language model in this process under load: its engine's pieces become the chunks of answers."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypeAlias

from inferometer.agent.generation.engine import Engine, Generation, GenerationParameters, Piece
from inferometer.agent.inference.stages import SystemDescription
from inferometer.agent.tracing.recorder import TraceScope
from inferometer.evaluators.load.streams import UNKNOWN, Answer, ChunkKind, Prompt
from inferometer.evaluators.load.target import Answers
from inferometer.manifests.errors import InferometerError, InputError, one_line

_GRACE_S = 1.0
"""How much longer than its query a request may take, so that the query has timed out before it fails."""
_LEAVING_S = 2.0
_SWITCH_INTERVAL_S = 1e-4
"""How long the engine's thread may keep the interpreter from the thread that sends; see ``LocalTarget``."""


Asked: TypeAlias = tuple[tuple[int, ...], GenerationParameters]
"""The tokens of a prompt, and how its answer is generated."""


class _Chat(GenerationParameters):
    operation = "chat"


class LocalGeneration:
    """A language model in this process; satisfies ``streams.GenerationSystem``. Owns the engine."""

    def __init__(self, engine: Engine, description: SystemDescription) -> None:
        self.engine = engine
        """The model, which this owns."""
        self.description = description
        """The model, and the system that runs it."""

    def ask(self, prompt: Prompt) -> Answer:
        """Generates one whole answer; raises InputError if the model refuses the prompt or fails."""
        with closing(self.target([prompt], timeout_s=threading.TIMEOUT_MAX, text=True)) as target:
            target.submit(0)
            target.end(threading.TIMEOUT_MAX)
            answer = target.answer(0)
        if answer.error:
            raise InputError(f"model {self.engine.name}: {answer.error}")
        return answer

    def encode(self, prompt: Prompt) -> Asked:
        """Returns what is asked of the engine for a prompt; raises InputError."""
        most = prompt.output_tokens
        return self._tokens(prompt), (_Chat if prompt.chat else GenerationParameters)(
            max_tokens=most,
            temperature=prompt.temperature,
            seed=prompt.seed,
            ignore_eos=prompt.ignore_eos,
            min_tokens=most * prompt.ignore_eos,
        )

    def _tokens(self, prompt: Prompt, more: str = "") -> tuple[int, ...]:
        content = prompt.content
        if not prompt.chat:
            return self.engine.encode(str(content), more)
        messages = [{"role": "user", "content": content}] if isinstance(content, str) else content
        return self.engine.encode(list(map(_message, messages)), more)

    def log_probabilities(self, prompt: Prompt, more: str = "") -> Sequence[float]:
        """Returns those of each token but the first, by one forward pass; see ``GenerationSystem``."""
        return self.engine.log_probabilities(self._tokens(prompt, more))

    def target(self, prompts: Sequence[Prompt], *, timeout_s: float, text: bool) -> LocalStreams:
        """Returns a target whose query n asks prompt n modulo their number; see ``GenerationSystem``."""
        return LocalStreams(self, list(map(self._encoded, prompts)), timeout_s, text=text)

    def _encoded(self, prompt: Prompt) -> Asked | Prompt:
        with suppress(InputError):
            return self.encode(prompt)
        return prompt

    def close(self) -> None:
        """Frees the model, for which it waits for two seconds; calling it again does nothing."""
        self.engine.close()
        self.engine.wait_closed(_LEAVING_S)


def _message(given: Mapping[str, Any]) -> dict[str, str]:
    """Returns a message with its parts joined, as a server of OpenAI's protocol reads it."""
    role, content = given.get("role"), given.get("content")
    parts = content if isinstance(content, list) else [{"text": content}]
    texts = [part.get("text") if isinstance(part, Mapping) else None for part in parts]
    if not isinstance(role, str) or not all(isinstance(text, str) for text in texts):
        raise InputError(f"a message lacks its role, or its content is no text: {one_line(str(given), 80)}")
    return {"role": role, "content": "".join(map(str, texts))}


@dataclass(slots=True, eq=False)
class _Stream:
    """A request, and its answer so far."""

    began_ns: int
    answer: Answer = field(default_factory=Answer)
    generation: Generation | None = None


class LocalStreams:
    """A language model in this process under load; satisfies ``streams.StreamTarget``.

    A piece is stamped in the engine's thread as soon as the engine has its text. During a run, the
    interpreter switches threads every 0.1 ms, so that the thread that sends the queries gets its turn.

    Args:
        system: The model, which the target does not close.
        requests: What the queries ask, in turn; prompts that could not be encoded, whose queries fail.
        timeout_s: How long an answer may take before its request is dropped, as a server drops a lost one.
        text: Whether answers keep their text.
    """

    in_process = True
    first = 0

    def __init__(
        self, system: LocalGeneration, requests: Sequence[Asked | Prompt], timeout_s: float, *, text: bool
    ) -> None:
        self.description = system.description
        self._system, self._requests, self._text = system, requests, text
        self._timeout_ns = round((timeout_s + _GRACE_S) * 1e9)
        self._changed = threading.Condition()
        self._streams: dict[int, _Stream] = {}  # all of the run
        self._open: dict[int, _Stream] = {}  # those in progress, the oldest first
        self._log: Answers | None = None
        self._interval_s = sys.getswitchinterval()

    def reconnect(self) -> None:
        """Does nothing: a model in this process has no connection."""

    def begin(self, answers: Answers) -> None:
        """Begins a run, and cancels one that has not ended."""
        self.end(0.0)
        self._log, self._streams = answers, {}
        sys.setswitchinterval(_SWITCH_INTERVAL_S)

    def submit(self, query: int, own: Prompt | None = None) -> None:
        """Begins a query's request, which fails if the engine refuses it; see ``StreamTarget``."""
        stream = _Stream(time.perf_counter_ns())
        with self._changed:
            self._drop_late(stream.began_ns)
            self._streams[query] = self._open[query] = stream
            try:
                asked = own or self._requests[(self.first + query) % len(self._requests)]
                asked = self._system.encode(asked) if isinstance(asked, Prompt) else asked
                stream.generation = self._system.engine.submit(*asked, partial(self._receive, query, stream))
            except InferometerError as error:
                self._settle(query, time.perf_counter_ns(), one_line(error))

    def _receive(self, query: int, stream: _Stream, piece: Piece) -> None:
        now_ns, answer = time.perf_counter_ns(), stream.answer
        with self._changed:  # so ``submit`` has returned
            self._drop_late(now_ns)
            if self._open.get(query) is not stream:
                return
            answer.first_byte_ns = now_ns if answer.first_byte_ns == UNKNOWN else answer.first_byte_ns
            answer.last_byte_ns = now_ns
            if piece.text:
                answer.chunks.append((now_ns, ChunkKind.TEXT, len(piece.text)))
                answer.text += piece.text if self._text else ""
            if piece.finish_reason and stream.generation:
                answer.finish = piece.finish_reason.value
                answer.input_tokens = len(stream.generation.prompt)
                answer.output_tokens = len(stream.generation.tokens)
            if piece.is_last:
                self._settle(query, now_ns, one_line(piece.error) if piece.error else "")

    def _drop_late(self, now_ns: int) -> None:
        """Drops the requests that have timed out; the caller holds the lock, as for ``_settle``."""
        while self._open:
            query, oldest = next(iter(self._open.items()))
            if now_ns - oldest.began_ns <= self._timeout_ns:
                return
            if oldest.generation is not None:
                oldest.generation.cancel()
            self._settle(query, now_ns, "no answer within the timeout")

    def _settle(self, query: int, now_ns: int, error: str) -> None:
        """Reports an outcome."""
        self._open.pop(query).answer.error = error
        if self._log is not None:
            if error:
                self._log.failed(query, now_ns, error)
            else:
                self._log.answered(query, now_ns)
        self._changed.notify_all()

    def end(self, timeout_s: float) -> None:
        """Waits until every query has its outcome, or for ``timeout_s``; then cancels the others."""
        with self._changed:
            self._changed.wait_for(lambda: not self._open, timeout_s)
            for stream in self._open.values():
                if stream.generation is not None:
                    stream.generation.cancel()
            self._open, self._log = {}, None
        sys.setswitchinterval(self._interval_s)

    def answer(self, query: int) -> Answer:
        """Returns the answer to a query of the last run; see ``StreamTarget``."""
        return self._streams[query].answer if query in self._streams else Answer()

    def record(self, query: int, scope: TraceScope, ended_ns: int) -> None:
        """Records the spans of a query's request; see ``load_session.RecordingTarget``."""
        generation = self._streams[query].generation
        if generation is not None:  # else the engine refused the request
            generation.record(scope, self._system.engine.name, None, ended_ns)

    def close(self) -> None:
        """Cancels the requests in progress; calling it again does nothing."""
        self.end(0.0)
