"""Calls, observers of predictions and queues, and the statistics of a served model since it was loaded.

An observer must not raise and must be fast.
"""

from __future__ import annotations

import itertools
import re
import secrets
import threading
from collections.abc import Callable, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Protocol

REQUEST_ID_KEY = "x-request-id"
"""The metadata key of the request id, which the client sends or the agent generates."""
_USABLE = re.compile(r"[\w.:/+=@-]{1,128}", re.ASCII)
_CURRENT: ContextVar[Call | None] = ContextVar("call", default=None)


@dataclass(slots=True)
class Call:
    """A call of a method ``package.Service/Method``.

    ``request_id`` comes from the client or is generated here. ``trace_id`` is the id of the client's trace,
    None if there is none; ``peer`` is in gRPC's notation, or "unknown" if the client left before the call
    began. ``model`` is set once it is known, and is always a name of one of the agent's models.
    """

    method: str
    request_id: str
    trace_id: str | None = None
    peer: str = ""
    model: str = ""


class RequestIds:
    """Generates ids for requests without one: unique in this process, and almost certainly worldwide."""

    def __init__(self) -> None:
        self._prefix = secrets.token_hex(6)
        self._numbers = itertools.count(1)

    def name(self, given: str | bytes | None) -> str:
        """Returns the id that the client sent if it is fit for a log line; otherwise a new one."""
        if isinstance(given, str) and _USABLE.fullmatch(given):
            return given
        return f"{self._prefix}-{next(self._numbers):x}"


def enter_call(call: Call) -> None:
    """Makes this the call of the current context; each call has its own task, and so its own context."""
    _CURRENT.set(call)


def current_call() -> Call | None:
    """Returns the call of the current context; None outside of calls."""
    return _CURRENT.get()


def is_about(model: str) -> None:
    """Sets the model of the call in this context; the name comes from the manifest, never from a client."""
    if (call := _CURRENT.get()) is not None:
        call.model = model


class PredictionObserver(Protocol):
    """Observes every prediction, in the thread that runs it."""

    def predicted(self, model: str, inputs: int, duration_ns: int) -> None:
        """Called when a model has run on a batch of ``inputs`` inputs."""

    def prediction_failed(self, model: str, error: BaseException) -> None:
        """Called when a model has failed on a batch."""

    def prediction_hangs(self, model: str) -> None:
        """Called once for each prediction that takes too long."""


class QueueObserver(Protocol):
    """Observes how long requests wait for their batch to begin."""

    def waited(self, model: str, queue_ns: Sequence[int]) -> None:
        """Called when a batch begins, with the waiting time of each of its requests in nanoseconds."""


@dataclass(frozen=True, slots=True)
class Total:
    """The number of occurrences of an operation and their total time in nanoseconds."""

    count: int = 0
    total_ns: int = 0


@dataclass(frozen=True, slots=True)
class BatchTotals:
    """The totals of the batches of one size: their assembly, prediction, and splitting."""

    assemble: Total = Total()
    predict: Total = Total()
    split: Total = Total()


@dataclass(frozen=True, slots=True)
class Totals:
    """The statistics of a model.

    ``success`` times the answered requests, each from when it was ready for the model; ``failure`` times
    those that were refused, failed or cancelled. Each answered request is also counted in ``queue``, and with
    its batch in ``assemble``, ``predict`` and ``split``. ``batches`` counts predictions; ``by_size`` groups
    them by number of inputs. ``last_unix_ms`` is the time of the last answer; 0 for never.
    """

    inputs: int = 0
    batches: int = 0
    last_unix_ms: int = 0
    success: Total = Total()
    failure: Total = Total()
    queue: Total = Total()
    assemble: Total = Total()
    predict: Total = Total()
    split: Total = Total()
    by_size: Mapping[int, BatchTotals] = field(default_factory=dict)


@dataclass(slots=True, eq=False)
class _Sums:
    """The number of batches of one size and their total times in nanoseconds."""

    batches: int = 0
    assemble: int = 0
    predict: int = 0
    split: int = 0

    @property
    def totals(self) -> BatchTotals:
        return BatchTotals(
            Total(self.batches, self.assemble),
            Total(self.batches, self.predict),
            Total(self.batches, self.split),
        )


class ModelStatistics:
    """Counts the batches and requests of a model. Thread-safe.

    It adds up plain numbers, once for each batch; ``totals``, which is rarely read, derives the rest.
    """

    def __init__(self, unix_ns: Callable[[], int]) -> None:
        self._unix_ns = unix_ns
        self._lock = threading.Lock()
        self._by_size: dict[int, _Sums] = {}
        self._requests = 0
        self._queue_ns = 0
        # each batch once for each of its requests
        self._assemble_ns = self._predict_ns = self._split_ns = 0
        self._last_unix_ns = 0
        self._failures = 0
        self._failures_ns = 0

    @property
    def totals(self) -> Totals:
        """The totals so far."""
        with self._lock:
            requests, batches = self._requests, sum(each.batches for each in self._by_size.values())
            assemble, predict, split = self._assemble_ns, self._predict_ns, self._split_ns
            return Totals(
                inputs=sum(size * each.batches for size, each in self._by_size.items()),
                batches=batches,
                last_unix_ms=self._last_unix_ns // 1_000_000,
                success=Total(requests, self._queue_ns + assemble + predict + split),
                failure=Total(self._failures, self._failures_ns),
                queue=Total(requests, self._queue_ns),
                assemble=Total(requests, assemble),
                predict=Total(requests, predict),
                split=Total(requests, split),
                by_size={size: each.totals for size, each in self._by_size.items()},
            )

    def answered(
        self, requests: int, inputs: int, *, queue_ns: int, assemble_ns: int, predict_ns: int, split_ns: int
    ) -> None:
        """Counts a batch; ``queue_ns`` is the sum over its requests."""
        with self._lock:
            sums = self._by_size.get(inputs)
            if sums is None:
                sums = self._by_size[inputs] = _Sums()
            sums.batches += 1
            sums.assemble += assemble_ns
            sums.predict += predict_ns
            sums.split += split_ns
            self._requests += requests
            self._queue_ns += queue_ns
            self._assemble_ns += requests * assemble_ns
            self._predict_ns += requests * predict_ns
            self._split_ns += requests * split_ns
            self._last_unix_ns = self._unix_ns()

    def failed(self, time_ns: int) -> None:
        """Counts a request without an answer, and adds its time."""
        with self._lock:
            self._failures += 1
            self._failures_ns += time_ns
