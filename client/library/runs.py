"""What an evaluation over a dataset gave: its figures, as they are read and shown."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

from inferometer.client.evaluating.summary import full_rows
from inferometer.client.library import html
from inferometer.evaluators.conditions.conditions import Conditions
from inferometer.evaluators.evaluation import Evaluation, Status
from inferometer.evaluators.measurements.batches import BatchMeasurement, LatencySummary

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from inferometer.evaluators.precision.intervals import Interval

_NS_PER_MS = 1_000_000


@dataclass(frozen=True, slots=True)
class Latency:
    """The time of a full batch in milliseconds, as ``LatencySummary`` has it; None for what is not known.

    Attributes:
        batches: The full batches.
        mean_ms: The arithmetic mean.
        p50_ms: The median.
        p90_ms: The 90th percentile.
        p99_ms: The 99th percentile.
        interval_ms: The ends of the 95 % interval of p50.
        mean_interval_ms: Those of the mean.
    """

    batches: int
    mean_ms: float | None
    p50_ms: float | None
    p90_ms: float | None
    p99_ms: float | None
    interval_ms: tuple[float, float] | None
    mean_interval_ms: tuple[float, float] | None


@dataclass(frozen=True, slots=True)
class TopAccuracy:
    """Accuracy as shares, 0…1, of the inputs with a label and a prediction.

    Attributes:
        top1: The share whose most probable class is the label.
        top5: The share whose label is among the five most probable classes.
        evaluated: The inputs.
    """

    top1: float
    top5: float
    evaluated: int


class Run:
    """One evaluation; in a notebook it shows as a table.

    Attributes:
        evaluation: All of it, with the raw times and what it ran on.
    """

    def __init__(self, evaluation: Evaluation[BatchMeasurement]) -> None:
        self.evaluation = evaluation

    @property
    def id(self) -> str:
        """The id, as ``agent info evaluation show`` takes it."""
        return self.evaluation.id

    @property
    def complete(self) -> bool:
        """Whether it ran to its end; Ctrl-C ends it with what was measured."""
        return self.evaluation.status is Status.COMPLETE

    @cached_property
    def latency(self) -> Latency:
        """The latency of a batch."""
        found = self._summary
        return Latency(
            batches=found.measured_batches,
            mean_ms=_ms(found.mean_ns),
            p50_ms=_ms(found.p50_ns),
            p90_ms=_ms(found.p90_ns),
            p99_ms=_ms(found.p99_ns),
            interval_ms=_ends_ms(found.p50_interval_ns),
            mean_interval_ms=_ends_ms(found.mean_interval_ns),
        )

    @property
    def throughput_per_s(self) -> float | None:
        """The inputs of the full batches over the sum of their predict times; None without a full batch."""
        return self._summary.throughput_inputs_per_s

    @property
    def accuracy(self) -> TopAccuracy | None:
        """The accuracy; None without labels, and of random weights."""
        found = self.evaluation.measurement.accuracy
        if found is None or found.top1_share is None or found.top5_share is None:
            return None
        return TopAccuracy(found.top1_share, found.top5_share, found.evaluated)

    @property
    def conditions(self) -> Conditions | None:
        """What disturbed the measurement, with the verdict."""
        return self.evaluation.conditions

    @property
    def times_ms(self) -> NDArray[np.float64]:
        """The predict times of the full batches, in order: float64, n, in milliseconds."""
        return self.evaluation.measurement.full_ns / _NS_PER_MS

    @cached_property
    def _summary(self) -> LatencySummary:
        return LatencySummary.of(self.evaluation.measurement)

    def __repr__(self) -> str:
        return "\n".join(f"{name:<12}{value}" for name, value in self._rows())

    def _repr_html_(self) -> str:
        return html.table([], self._rows())

    def _rows(self) -> Sequence[tuple[str, str]]:
        system = self.evaluation.system
        manifest = system.manifest
        on = f"{manifest.framework.name} {system.framework_version} ({system.device}, {system.agent})"
        return (("model", f"{manifest.name} {manifest.version} on {on}"), *full_rows(self.evaluation))


def _ms(duration_ns: float | None) -> float | None:
    return None if duration_ns is None else duration_ns / _NS_PER_MS


def _ends_ms(interval: Interval | None) -> tuple[float, float] | None:
    return None if interval is None else (interval.low / _NS_PER_MS, interval.high / _NS_PER_MS)
