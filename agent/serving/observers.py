"""Calls, observers of predictions and queues, and the statistics of a served model since it was loaded.

An observer must not raise and must be fast.
"""

from __future__ import annotations

import itertools
import re
import secrets
import threading
from collections.abc import Callable, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from typing import Protocol

from inferometer.agent.tracing.recorder import TraceContext

REQUEST_ID_KEY = "x-request-id"
"""The metadata key of the request id, which the client sends or the agent generates."""
_USABLE = re.compile(r"[\w.:/+=@-]{1,128}", re.ASCII)
_CURRENT: ContextVar[Call | None] = ContextVar("call", default=None)


@dataclass(slots=True)
class Call:
    """A call of a method ``package.Service/Method``.

    ``request_id`` comes from the client or is generated here. ``trace`` is the client's position in its
    trace, None if there is none; ``peer`` is in gRPC's notation, or "unknown" if the client left before the
    call began. ``model`` is set once it is known, and is always a name of one of the agent's models.
    """

    method: str
    request_id: str
    trace: TraceContext | None = None
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


@dataclass(slots=True)
class BatchTotals:
    """The number of batches of one size, and the total times of their assembly, prediction and splitting."""

    batches: int = 0
    assemble_ns: int = 0
    predict_ns: int = 0
    split_ns: int = 0


@dataclass(slots=True)
class Totals:
    """The statistics of a model.

    ``requests`` counts the answered requests, and ``failures`` those that were refused, failed or cancelled.
    ``queue_ns`` is the total waiting time of the answered requests; ``assemble_ns``, ``predict_ns`` and
    ``split_ns`` add the times of a batch once for each of its requests. ``by_size`` groups the batches by
    number of inputs. ``last_unix_ns`` is the time of the last answer; 0 for never.
    """

    requests: int = 0
    queue_ns: int = 0
    assemble_ns: int = 0
    predict_ns: int = 0
    split_ns: int = 0
    failures: int = 0
    failures_ns: int = 0
    last_unix_ns: int = 0
    by_size: dict[int, BatchTotals] = field(default_factory=dict)

    @property
    def inputs(self) -> int:
        """The number of predicted inputs."""
        return sum(size * each.batches for size, each in self.by_size.items())

    @property
    def batches(self) -> int:
        """The number of predictions."""
        return sum(each.batches for each in self.by_size.values())


class ModelStatistics:
    """Counts the batches and requests of a model. Thread-safe."""

    def __init__(self, unix_ns: Callable[[], int]) -> None:
        self._unix_ns = unix_ns
        self._lock = threading.Lock()
        self._totals = Totals()

    @property
    def totals(self) -> Totals:
        """A copy of the totals so far."""
        with self._lock:
            by_size = {size: replace(each) for size, each in self._totals.by_size.items()}
            return replace(self._totals, by_size=by_size)

    def answered(
        self, requests: int, inputs: int, *, queue_ns: int, assemble_ns: int, predict_ns: int, split_ns: int
    ) -> None:
        """Counts a batch; ``queue_ns`` is the sum over its requests."""
        with self._lock:
            totals = self._totals
            batches = totals.by_size.get(inputs)
            if batches is None:
                batches = totals.by_size[inputs] = BatchTotals()
            batches.batches += 1
            batches.assemble_ns += assemble_ns
            batches.predict_ns += predict_ns
            batches.split_ns += split_ns
            totals.requests += requests
            totals.queue_ns += queue_ns
            totals.assemble_ns += requests * assemble_ns
            totals.predict_ns += requests * predict_ns
            totals.split_ns += requests * split_ns
            totals.last_unix_ns = self._unix_ns()

    def failed(self, time_ns: int) -> None:
        """Counts a request without an answer, and adds its time."""
        with self._lock:
            self._totals.failures += 1
            self._totals.failures_ns += time_ns
