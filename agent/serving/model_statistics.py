"""Statistics of a served model since it was loaded."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace


@dataclass(frozen=True, slots=True)
class Total:
    """How often something was done, and how long that took in all, in nanoseconds."""

    count: int = 0
    total_ns: int = 0

    def plus(self, time_ns: int, count: int = 1) -> Total:
        """Returns the total with some more."""
        return Total(self.count + count, self.total_ns + time_ns)


@dataclass(frozen=True, slots=True)
class BatchTotals:
    """The batches of one size: putting them together, predicting them, and taking them apart."""

    assemble: Total = Total()
    predict: Total = Total()
    split: Total = Total()


@dataclass(frozen=True, slots=True)
class Totals:
    """The statistics of a model.

    ``success`` times the requests that were answered, from when each was ready for the model, ``failure``
    those that were refused, failed or cancelled. Each answered request also counts in ``queue``, and with its
    batch in ``assemble``, ``predict`` and ``split``. ``batches`` are predictions, in ``by_size`` by their
    number of inputs. ``last_unix_ms`` is when the last request was answered; 0 for never.
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


class ModelStatistics:
    """Counts what a model does. Thread-safe."""

    def __init__(self, unix_ns: Callable[[], int]) -> None:
        self._unix_ns = unix_ns
        self._lock = threading.Lock()
        self._totals = Totals()

    @property
    def totals(self) -> Totals:
        """What it has done until now."""
        with self._lock:
            return self._totals

    def answered(
        self, requests: int, inputs: int, *, queue_ns: int, assemble_ns: int, predict_ns: int, split_ns: int
    ) -> None:
        """Counts a batch; ``queue_ns`` is the sum over its requests."""
        each = assemble_ns + predict_ns + split_ns
        with self._lock:
            old = self._totals
            size = old.by_size.get(inputs, BatchTotals())
            size = BatchTotals(
                size.assemble.plus(assemble_ns), size.predict.plus(predict_ns), size.split.plus(split_ns)
            )
            self._totals = replace(
                old,
                inputs=old.inputs + inputs,
                batches=old.batches + 1,
                last_unix_ms=self._unix_ns() // 1_000_000,
                success=old.success.plus(queue_ns + requests * each, requests),
                queue=old.queue.plus(queue_ns, requests),
                assemble=old.assemble.plus(requests * assemble_ns, requests),
                predict=old.predict.plus(requests * predict_ns, requests),
                split=old.split.plus(requests * split_ns, requests),
                by_size={**old.by_size, inputs: size},
            )

    def failed(self, time_ns: int) -> None:
        """Counts a request without an answer, and how long it took."""
        with self._lock:
            self._totals = replace(self._totals, failure=self._totals.failure.plus(time_ns))
