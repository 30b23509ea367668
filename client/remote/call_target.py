"""Load on a server: each query a call of its own, with many calls in flight."""

from __future__ import annotations

import threading
import time
from abc import abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TypeAlias

import grpc

from agent.closeable import Closeable
from agent.description import SystemDescription
from client.remote.held_call import HeldCall
from evaluators.loadgen.target import Answers
from manifests.errors import ConfigurationError, SessionError

MAX_IN_FLIGHT = 10_000
MAX_BYTES_IN_FLIGHT = 512 * 1024 * 1024
"""Requests take their size again while they are in flight, here and at the server."""
BeginCall: TypeAlias = Callable[[bytes], "grpc.Future[bytes]"]
"""Sends an encoded request and waits for nothing."""
_CLOSED = "the load target was closed while the query was in flight"


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of a call.

    Attributes:
        answers: How many right answers the reply held.
        reason: Why there is none, in one line.
        predict_ns: How long the prediction took at the server; -1 where it does not tell.
        queue_ns: How long the query waited there for its batch to begin; -1 where it does not tell.
        batch_size: The queries in its batch; 0 where it does not tell.
        batch_ns: How long its batch was put together there, until the prediction began; -1 where it does not
            tell.
    """

    answers: int
    reason: str = ""
    predict_ns: int = -1
    queue_ns: int = -1
    batch_size: int = 0
    batch_ns: int = -1


class CallTarget(Closeable):
    """A server under load; satisfies ``evaluators.loadgen.target.LoadTarget``.

    An answer is taken, timed and read in the thread of gRPC, so that no query needs a thread. ``close``
    cancels what is in flight, and closes nothing else.

    Args:
        description: The model and what it runs on.
        request_bytes: The size of the largest request.
        hold: Keeps calls quick until it is closed, with the target.
        max_in_flight: The most queries that may be in flight, one more fails; None means as many as
            ``MAX_BYTES_IN_FLIGHT`` hold, and at most ``MAX_IN_FLIGHT``.
        clock: The clock of the run, in nanoseconds.

    Raises:
        ConfigurationError: ``max_in_flight`` is too small.
    """

    def __init__(
        self,
        description: SystemDescription,
        request_bytes: int,
        hold: Callable[[], HeldCall],
        *,
        max_in_flight: int | None = None,
        clock: Callable[[], int] = time.perf_counter_ns,
    ) -> None:
        if max_in_flight is not None and max_in_flight < 1:
            raise ConfigurationError(f"max_in_flight is {max_in_flight}; it must be at least 1")
        if max_in_flight is None:
            max_in_flight = max(1, min(MAX_IN_FLIGHT, MAX_BYTES_IN_FLIGHT // max(1, request_bytes)))
        self._description = description
        self._max_in_flight = max_in_flight
        self._clock = clock
        self._run: CallFlight | None = None
        self._closed = False
        self._held = hold()

    @abstractmethod
    def send(self, query: int, run: CallFlight) -> None:
        """Sends a query, or sees to it that it is sent: see ``CallFlight``."""

    @abstractmethod
    def outcome(self, call: grpc.Future[bytes]) -> Outcome:
        """Reads the reply of a call that is over."""

    @property
    def description(self) -> SystemDescription:
        """The model and what it runs on."""
        return self._description

    def begin(self, answers: Answers) -> None:
        """Is told of a run that begins; one that has not ended is broken off.

        Raises:
            SessionError: The target is closed.
        """
        if self._closed:
            raise SessionError("the load target is closed; make another")
        if self._run is not None:
            self._run.cancel()
        self._run = CallFlight(answers, self.outcome, self._clock)

    def submit(self, query: int) -> None:
        """Sends a query; where as many are in flight as may be, it has failed.

        Raises:
            SessionError: No run has begun.
        """
        run = self._run
        if run is None:
            raise SessionError("no run has begun; call begin before submit")
        if len(run) >= self._max_in_flight:
            reason = f"as many queries are in flight as may be, {self._max_in_flight}"
            run.answers.failed(query, self._clock(), reason)
            return
        self.send(query, run)

    def end(self, timeout_s: float) -> None:
        """Waits until every query has its outcome, or for that time; what is in flight then is cancelled."""
        run, self._run = self._run, None
        if run is not None:
            run.wait(timeout_s)
            run.cancel()

    def close(self) -> None:
        """Cancels what is in flight, which has failed then; calling it again does nothing."""
        self._closed = True
        run, self._run = self._run, None
        if run is not None:
            run.cancel(_CLOSED)
        self._held.close()


class CallFlight:
    """The queries of one run that are in flight. Thread-safe.

    Args:
        answers: Are told of the outcomes.
        outcome: Reads the reply of a call that is over.
        clock: The clock of the run, in nanoseconds.
    """

    def __init__(
        self, answers: Answers, outcome: Callable[[grpc.Future[bytes]], Outcome], clock: Callable[[], int]
    ) -> None:
        self.answers = answers
        self._outcome = outcome
        self._clock = clock
        self._lock = threading.Lock()
        self._calls: dict[int, grpc.Future[bytes] | None] = {}
        """Those that are in flight, by the number of their query; None is one that is not sent yet."""
        self._ending = False
        self._over = False
        self._idle = threading.Event()

    def __len__(self) -> int:
        """The number of queries in flight."""
        return len(self._calls)

    def announce(self, query: int) -> None:
        """Is told of a query that another thread will send or let fail, after it has prepared it."""
        with self._lock:
            self._calls[query] = None

    def wants(self, query: int) -> bool:
        """Whether a query that was announced is still to be sent."""
        return query in self._calls

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
            self._calls[query] = call
        # called at once, in this thread, where the call is over already
        call.add_done_callback(partial(self._done, query))

    def fail(self, query: int, reason: str) -> None:
        """Is told that a query cannot be sent."""
        with self._lock:
            if self._over:
                return
            self._calls.pop(query, None)
            self.answers.failed(query, self._clock(), reason)
            self._look_whether_idle()

    def wait(self, timeout_s: float) -> None:
        """Waits until no query is in flight, or for a time."""
        with self._lock:
            self._ending = True
            if not self._calls:
                return
        self._idle.wait(timeout_s)

    def cancel(self, reason: str = "") -> None:
        """Cancels what is in flight: the queries have failed for a reason; without one nothing is told."""
        with self._lock:
            self._over = True
            calls, self._calls = self._calls, {}
        for query, call in calls.items():
            if call is not None:
                call.cancel()
            if reason:
                self.answers.failed(query, self._clock(), reason)

    def _done(self, query: int, call: grpc.Future[bytes]) -> None:
        """Takes an answer, in the thread of gRPC."""
        done_ns = self._clock()
        outcome = self._outcome(call)
        with self._lock:
            if self._calls.pop(query, None) is None:  # the run has ended in the meantime
                return
            for _ in range(outcome.answers):
                self.answers.answered(
                    query,
                    done_ns,
                    queue_ns=outcome.queue_ns,
                    batch_ns=outcome.batch_ns,
                    predict_ns=outcome.predict_ns,
                    batch_size=outcome.batch_size,
                )
            if not outcome.answers:
                self.answers.failed(query, done_ns, outcome.reason)
            self._look_whether_idle()

    def _look_whether_idle(self) -> None:
        """Under the lock."""
        if self._ending and not self._calls:
            self._idle.set()
