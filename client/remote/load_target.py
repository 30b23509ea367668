"""The remote target: a model that an agent has open under load, with many calls in flight."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from functools import partial

import grpc

from agent.closeable import Closeable
from agent.description import SystemDescription
from agent.server.messages import encode_batch_request, encode_inputs_request
from client.remote.agent import RemoteAgent
from evaluators.loadgen.prepared_inputs import LoadInputs, PreparedInputs
from evaluators.loadgen.target import Answers
from manifests.errors import ConfigurationError, InferscopeError, SessionError

MAX_IN_FLIGHT = 10_000
MAX_BYTES_IN_FLIGHT = 512 * 1024 * 1024
"""Requests take their size again while they are in flight, here and at the agent."""
_ID = "0"
_CLOSED = "the load target was closed while the query was in flight"


class RemoteTarget(Closeable):
    """A remote agent under load; satisfies ``evaluators.loadgen.target.LoadTarget``.

    Each query is a call of its own, of one input. The requests are encoded when the target is made. An answer
    is taken, timed and read in the thread of gRPC, so that no query needs a thread; it does not tell how long
    the query waited at the agent.

    The agent stays its owner's: ``close`` cancels what is in flight, and closes nothing else.

    Args:
        agent: The open model.
        inputs: Query n predicts input n modulo their number. Those that are only read are preprocessed by
            the agent.
        max_in_flight: The most queries that may be in flight, one more fails; None means as many as
            ``MAX_BYTES_IN_FLIGHT`` hold, and at most ``MAX_IN_FLIGHT``.
        clock: The clock of the run, in nanoseconds.

    Raises:
        ConfigurationError: ``max_in_flight`` is too small.
        InputError: An input's element type cannot travel.
    """

    def __init__(
        self,
        agent: RemoteAgent,
        inputs: LoadInputs,
        *,
        max_in_flight: int | None = None,
        clock: Callable[[], int] = time.perf_counter_ns,
    ) -> None:
        if max_in_flight is not None and max_in_flight < 1:
            raise ConfigurationError(f"max_in_flight is {max_in_flight}; it must be at least 1")
        self._agent = agent
        self._requests = _encode(agent.session_id, inputs)
        if max_in_flight is None:
            held = MAX_BYTES_IN_FLIGHT // max(map(len, self._requests))
            max_in_flight = max(1, min(MAX_IN_FLIGHT, held))
        self._max_in_flight = max_in_flight
        self._clock = clock
        self._run: _Flight | None = None
        self._closed = False

    @property
    def description(self) -> SystemDescription:
        """The model and what it runs on."""
        return self._agent.description

    def begin(self, answers: Answers) -> None:
        """Is told of a run that begins; one that has not ended is broken off.

        Raises:
            SessionError: The target is closed.
        """
        if self._closed:
            raise SessionError("the load target is closed; make another")
        if self._run is not None:
            self._run.cancel()
        self._run = _Flight(self._agent, answers, self._clock)

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
        run.send(query, self._requests[query % len(self._requests)])

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


class _Flight:
    """The calls of one run."""

    def __init__(self, agent: RemoteAgent, answers: Answers, clock: Callable[[], int]) -> None:
        self.answers = answers
        self._connection = agent.connection
        self._clock = clock
        self._lock = threading.Lock()
        self._calls: dict[int, grpc.Future[bytes]] = {}
        """Those that are in flight, by the number of their query."""
        self._ending = False
        self._idle = threading.Event()

    def __len__(self) -> int:
        """The number of calls in flight."""
        return len(self._calls)

    def send(self, query: int, request: bytes) -> None:
        """Sends a query's request."""
        try:
            call = self._connection.begin_predict(request)
        except SessionError as error:
            self.answers.failed(query, self._clock(), str(error))
            return
        with self._lock:
            self._calls[query] = call
        # called at once, in this thread, where the call is over already
        call.add_done_callback(partial(self._done, query))

    def wait(self, timeout_s: float) -> None:
        """Waits until no call is in flight, or for a time."""
        with self._lock:
            self._ending = True
            if not self._calls:
                return
        self._idle.wait(timeout_s)

    def cancel(self, reason: str = "") -> None:
        """Cancels what is in flight: the queries have failed for a reason; without one nothing is told."""
        with self._lock:
            calls, self._calls = self._calls, {}
        for query, call in calls.items():
            call.cancel()
            if reason:
                self.answers.failed(query, self._clock(), reason)

    def _done(self, query: int, call: grpc.Future[bytes]) -> None:
        """Takes an answer, in the thread of gRPC."""
        done_ns = self._clock()
        predict_ns, reason = self._outcome(call)
        with self._lock:
            if self._calls.pop(query, None) is None:  # the run has ended in the meantime
                return
            if reason:
                self.answers.failed(query, done_ns, reason)
            else:
                self.answers.answered(query, done_ns, predict_ns=predict_ns, batch_size=1)
            if self._ending and not self._calls:
                self._idle.set()

    def _outcome(self, call: grpc.Future[bytes]) -> tuple[int, str]:
        """How long the prediction of an answer took, and why there is none."""
        try:
            result = self._connection.end_predict(call)
        except InferscopeError as error:
            return -1, str(error)
        if result.input_ids == (_ID,):
            return result.times.predict_ns, ""
        failures = [failure.message for failure in result.failures]
        return -1, failures[0] if failures else "the agent gave no answer for the query"


def _encode(session_id: str, inputs: LoadInputs) -> list[bytes]:
    if isinstance(inputs, PreparedInputs):
        tensors = inputs.tensors
        return [encode_batch_request(session_id, tensors[n : n + 1]) for n in range(len(tensors))]
    return [encode_inputs_request(session_id, [(_ID, payload)]) for payload in inputs.payloads]
