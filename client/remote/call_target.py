"""A load target that sends each query as a separate call, with many calls in flight."""

from __future__ import annotations

import threading
import time
from abc import abstractmethod
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import TypeAlias

import grpc

from inferometer.agent.closeable import Closeable
from inferometer.agent.inference.stages import SystemDescription
from inferometer.agent.tracing.recorder import TRACEPARENT_KEY, SpanKind
from inferometer.evaluators.load.load_session import QuerySample
from inferometer.evaluators.load.target import Answers, CheckedAnswers
from inferometer.manifests.errors import InferometerError, SessionError

MAX_IN_FLIGHT = 10_000
MAX_BYTES_IN_FLIGHT = 512 * 1024 * 1024
"""The limits of the requests in flight; each occupies its size again, here and at the server."""
MAX_KEPT_BYTES = 256 * 1024 * 1024
"""The total size of replies to keep for parsing after the run; later replies are parsed on arrival."""
MOST_KEPT_BYTES = 64 * 1024
"""Larger replies are parsed on arrival, because keeping each one would page in new memory."""
TRUST_NS = 200_000_000
"""The time after a right reply in which others are kept unparsed; wrong ones are detected this late."""
_KEPT_BYTES = 200
"""The approximate memory overhead of a kept reply, in bytes."""
BeginCall: TypeAlias = Callable[[bytes], "grpc.Future[bytes]"]
"""Sends an encoded request without waiting."""
_CLOSED = "the load target was closed while the query was in flight"


@dataclass(frozen=True, slots=True)
class Outcome:
    """The outcome of a call.

    ``reason`` says in one line why there is no answer; see ``Answers.answered`` for ``times``.
    """

    answers: int
    reason: str = ""
    times: Mapping[str, int] = field(default_factory=dict)


class CallTarget(Closeable):
    """A server under load; satisfies ``evaluators.load.target.LoadTarget``.

    gRPC's thread receives and times each reply, so that no query needs its own thread. If the receiver of the
    outcomes allows it, replies are parsed after the run; see ``CallFlight``. ``close`` only cancels the calls
    in flight.

    Args:
        description: The model and the system that it runs on.
        request_bytes: The size of the largest request. The queries in flight are limited to
            ``MAX_BYTES_IN_FLIGHT`` together, and to ``MAX_IN_FLIGHT`` in number; a further query fails.
        hold: Opens a connection for the calls, and returns a function that closes it; see
            ``ServerConnection.hold``.
        reply: Returns the reply of a call that has ended.
    """

    in_process = False

    def __init__(
        self,
        description: SystemDescription,
        request_bytes: int,
        hold: Callable[[], Callable[[], object]],
        reply: Callable[[grpc.Future[bytes]], bytes],
    ) -> None:
        self.description = description
        """The model and the system that it runs on."""
        self.served_name = description.manifest.name
        """The server's name of the model."""
        self._max_in_flight = max(1, min(MAX_IN_FLIGHT, MAX_BYTES_IN_FLIGHT // max(1, request_bytes)))
        self._run: CallFlight | None = None
        self._closed = False
        self.sample: QuerySample | None = None
        """The queries whose calls propagate their trace; None if there are none."""
        self._reply = reply
        self._hold = hold
        self._release = hold()

    @abstractmethod
    def send(self, query: int, run: CallFlight) -> None:
        """Sends a query, or has a thread send it; see ``CallFlight``."""

    @abstractmethod
    def answered(self, reply: bytes) -> Outcome:
        """Reads a reply; raises InferometerError if it is not a right answer."""

    def outcome(self, call: grpc.Future[bytes]) -> Outcome | bytes:
        """Returns the reply, for ``read``, of a call that has ended, or the reason why there is none."""
        try:
            return self._reply(call)
        except InferometerError as error:
            return Outcome(0, str(error))

    def read(self, reply: bytes) -> Outcome:
        """Reads a reply that ``outcome`` returned."""
        try:
            return self.answered(reply)
        except InferometerError as error:
            return Outcome(0, str(error))

    @abstractmethod
    def call_of(self, query: int) -> SpanKind:
        """Returns the span of a query's call; see ``load_session.StampingTarget``."""

    def stamp(self, sample: QuerySample | None) -> None:
        """Sends the trace with these queries from now on; see ``load_session.StampingTarget``."""
        self.sample = sample

    def traced_metadata(self, query: int) -> tuple[tuple[str, str], ...]:
        """Returns the trace context of a query's call as metadata; empty if the query is not traced."""
        sample = self.sample
        if sample is None or query not in sample:
            return ()
        return ((TRACEPARENT_KEY, sample.traceparent(query)),)

    def reconnect(self) -> None:
        """Makes the next runs use a new connection; see ``LoadTarget``."""
        self._release()
        self._release = self._hold()

    def begin(self, answers: Answers) -> None:
        """Begins a run, and cancels a previous run that has not ended.

        Raises:
            SessionError: The target is closed.
        """
        if self._closed:
            raise SessionError("the load target is closed; make another")
        if self._run is not None:
            self._run.cancel()
        self._run = CallFlight(answers, self.outcome, self.read)

    def submit(self, query: int) -> None:
        """Sends a query; the query fails if too many are in flight.

        Raises:
            SessionError: No run has begun.
        """
        run = self._run
        if run is None:
            raise SessionError("no run has begun; call begin before submit")
        if len(run.calls) >= self._max_in_flight:
            reason = f"the limit of {self._max_in_flight} queries in flight is reached"
            run.answers.failed(query, time.perf_counter_ns(), reason)
            return
        self.send(query, run)

    def end(self, timeout_s: float) -> None:
        """Waits until every query has an outcome or the timeout expires; then cancels the calls in flight."""
        run, self._run = self._run, None
        if run is not None:
            run.wait(timeout_s)
            run.cancel()

    def close(self) -> None:
        """Cancels the calls in flight, whose queries fail; calling it again does nothing."""
        self._closed = True
        run, self._run = self._run, None
        if run is not None:
            run.cancel(_CLOSED)
        self._release()


class CallFlight:
    """The queries of one run that are in flight. Thread-safe.

    Parsing a reply takes as long as a call, and would delay later replies. Therefore a reply is first treated
    as a right answer, and parsed after the run. One reply per ``TRUST_NS`` is parsed on arrival; if it is
    wrong, all are until one is right, so that a server without right answers is detected during the run.
    Replies are also parsed on arrival if ``answers`` is not a ``CheckedAnswers``, if they are larger than
    ``MOST_KEPT_BYTES``, or if the kept replies exceed ``MAX_KEPT_BYTES``. ``outcome`` returns the outcome of
    a call that has ended, or its reply, which ``read`` reads.
    """

    def __init__(
        self,
        answers: Answers,
        outcome: Callable[[grpc.Future[bytes]], Outcome | bytes],
        read: Callable[[bytes], Outcome],
    ) -> None:
        self.answers = answers
        self._outcome = outcome
        self._read = read
        self._checked = answers if isinstance(answers, CheckedAnswers) else None
        self._trusted_until_ns = 0
        """The time until which replies are treated as right answers, because one was right."""
        self._kept: list[tuple[int, bytes]] = []
        self._kept_bytes = 0
        self._lock = threading.Lock()
        self.calls: dict[int, grpc.Future[bytes] | None] = {}
        """The calls in flight by query number; None stands for a call that has not been sent yet."""
        self._ending = False
        self._over = False
        self._idle = threading.Event()

    def announce(self, query: int) -> None:
        """Registers a query that another thread prepares, and then sends or fails."""
        with self._lock:
            self.calls[query] = None

    def wants(self, query: int) -> bool:
        """Returns whether an announced query is still to be sent."""
        return query in self.calls

    def send(self, query: int, request: bytes, begin: BeginCall) -> None:
        """Sends a query's request."""
        try:
            call = begin(request)
        except SessionError as error:
            self.fail(query, str(error))
            return
        with self._lock:
            if self._over:
                call.cancel()
                return
            self.calls[query] = call
        # called at once, in this thread, where the call is over already
        call.add_done_callback(partial(self._done, query))

    def fail(self, query: int, reason: str) -> None:
        """Reports that a query cannot be sent."""
        with self._lock:
            if self._over:
                return
            self.calls.pop(query, None)
            self.answers.failed(query, time.perf_counter_ns(), reason)
            self._check_idle()

    def wait(self, timeout_s: float) -> None:
        """Waits until no query is in flight or the timeout expires."""
        with self._lock:
            self._ending = True
            if not self.calls:
                return
        self._idle.wait(timeout_s)

    def cancel(self, reason: str = "") -> None:
        """Cancels the calls in flight. With a reason, their queries fail; without one, they are not reported.

        Also parses the kept replies.
        """
        with self._lock:
            self._over = True
            calls, self.calls = self.calls, {}
            kept, self._kept = self._kept, []
        for query, call in calls.items():
            if call is not None:
                call.cancel()
            if reason:
                self.answers.failed(query, time.perf_counter_ns(), reason)
        self._check(kept)

    def _done(self, query: int, call: grpc.Future[bytes]) -> None:
        """Receives a reply, in gRPC's thread."""
        done_ns = time.perf_counter_ns()
        outcome = self._outcome(call)
        if isinstance(outcome, bytes) and not (
            done_ns < self._trusted_until_ns
            and self._kept_bytes < MAX_KEPT_BYTES
            and len(outcome) <= MOST_KEPT_BYTES
        ):
            outcome = self._read(outcome)
            is_right = outcome.answers == 1 and self._checked is not None
            self._trusted_until_ns = done_ns + TRUST_NS if is_right else 0
        with self._lock:
            if self.calls.pop(query, None) is None:  # the run has ended in the meantime
                return
            if isinstance(outcome, bytes):
                self._kept.append((query, outcome))
                self._kept_bytes += len(outcome) + _KEPT_BYTES
                self.answers.answered(query, done_ns)
            else:
                for _ in range(outcome.answers):
                    self.answers.answered(query, done_ns, **outcome.times)
                if not outcome.answers:
                    self.answers.failed(query, done_ns, outcome.reason)
            self._check_idle()

    def _check(self, kept: Iterable[tuple[int, bytes]]) -> None:
        """Reads the kept replies, which have been treated as right answers."""
        checked = self._checked
        if checked is None:
            return
        for query, reply in kept:
            outcome = self._read(reply)
            if not outcome.answers:
                checked.refuted(query, outcome.reason)
                continue
            checked.confirmed(query, **outcome.times)
            for _ in range(outcome.answers - 1):
                checked.answered(query, 0)

    def _check_idle(self) -> None:
        """Sets the idle event if the run is ending and no query is in flight. The caller holds the lock."""
        if self._ending and not self.calls:
            self._idle.set()
