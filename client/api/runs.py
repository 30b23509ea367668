"""The results of evaluations over datasets, and of benchmarks of training and of data loading."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, TypeVar

from inferometer.client.api import results
from inferometer.client.api.results import Items, Result, Rows
from inferometer.evaluators.kinds.batches import job as sweep
from inferometer.evaluators.kinds.batches.job import SweepCell
from inferometer.evaluators.kinds.batches.measurement import BatchMeasurement, LatencySummary
from inferometer.evaluators.kinds.batches.plot import drawing_of
from inferometer.evaluators.kinds.batches.report import DurationReport, LatencyReport
from inferometer.evaluators.kinds.ingestion.kind import IngestionMeasurement, IngestionSummary
from inferometer.evaluators.kinds.training.measurement import StepTimes, TrainingMeasurement, TrainingSummary
from inferometer.evaluators.kinds.training.report import TrainingStepsReport
from inferometer.evaluators.reports.base import Row, in_ms
from inferometer.evaluators.scoring.score import COLUMNS, ScoredPredictions, rows_of
from inferometer.evaluators.tasks.metric import ScoreInterval, TaskResult

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from inferometer.evaluators.kinds.ingestion.kind import LoadTimes
    from inferometer.evaluators.statistics import Interval, TimeFigures


_NS_PER_MS = 1_000_000


@dataclass(frozen=True, slots=True)
class Latency:
    """The time of a full batch in milliseconds, from ``TimeFigures``; unknown values are None.

    Attributes:
        batches: The number of full batches.
        mean_ms: The arithmetic mean.
        p50_ms: The median.
        p90_ms: The 90th percentile.
        p99_ms: The 99th percentile.
        interval_ms: The ends of the 95 % interval of p50.
        mean_interval_ms: The ends of the 95 % interval of the mean.
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
    """Top-1 and top-5 accuracy as shares, 0…1, of the inputs that have a label and a prediction.

    Attributes:
        top1: The share of inputs whose most probable class is the label.
        top5: The share of inputs whose label is among the five most probable classes; None if the model names
            only the best class.
        evaluated: The number of inputs that have a label and a prediction.
    """

    top1: float
    top5: float | None
    evaluated: int


_Timed = TypeVar("_Timed", BatchMeasurement, TrainingMeasurement, IngestionMeasurement)


class _TimedResult(Result[_Timed]):
    @property
    def summary(self) -> Any:
        """Every figure."""
        raise NotImplementedError

    @cached_property
    def latency(self) -> Latency:
        """The time of a full batch: its prediction, its step on the slowest rank, or the wait for it."""
        return _latency(self.summary, len(self.evaluation.measurement.full_ns))

    @property
    def times_ms(self) -> NDArray[np.float64]:
        """The times of the full batches in milliseconds, in order, as float64 of shape (n,).

        They are those of predictions, of a training's steps on the slowest rank, or of waits for data.
        """
        return self.evaluation.measurement.full_ns / _NS_PER_MS


class Run(_TimedResult[BatchMeasurement]):
    """One evaluation over a dataset; in a notebook it displays as a table with its picture."""

    _pictured = DurationReport

    @property
    def throughput_per_s(self) -> float | None:
        """The inputs of all full batches divided by their total predict time; None if there are none."""
        return self.summary.throughput_inputs_per_s

    @property
    def accuracy(self) -> TopAccuracy | None:
        """The accuracy; None if there are no labels or the weights are random."""
        return _accuracy(self.evaluation.measurement)

    @cached_property
    def summary(self) -> LatencySummary:
        """Every figure, in nanoseconds and inputs per second; see ``LatencySummary``."""
        return LatencySummary.of(self.evaluation.measurement)


class Runs(Items[Run]):
    """The evaluations of a sweep, in order; displayed as a table, which a notebook shows with its picture.

    The table also has a row for each evaluation that failed.

    Attributes:
        failures: Why evaluations failed, keyed by their settings: ``DigitsCNN on MXNet, batch size 8``.
        complete: Whether the sweep ran to the end; after Ctrl-C, it contains the measurements up to then.
    """

    _columns = sweep.COLUMNS

    def __init__(self, cells: Sequence[SweepCell], *, complete: bool = True) -> None:
        self._cells = tuple(cells)
        self._items = tuple(Run(cell.evaluation) for cell in cells if cell.evaluation is not None)
        self.failures = {cell.name: cell.error for cell in cells if cell.error is not None}
        self.complete = complete and all(run.complete for run in self._items)

    @cached_property
    def _table(self) -> Sequence[Row]:
        return tuple(sweep.rows_of(self._cells))

    def __repr__(self) -> str:
        """Returns the table, as wide as the terminal, followed by the reasons why evaluations failed."""
        failed = (f"{name} failed: {error}" for name, error in self.failures.items())
        return "\n".join((super().__repr__(), *failed))

    def _repr_html_(self) -> str:
        pictured = [run.evaluation for run in self._items if not run.evaluation.profiled]
        return results.with_picture(super()._repr_html_(), LatencyReport(), pictured)


def _ends_ms(interval: Interval | None) -> tuple[float, float] | None:
    return None if interval is None else (interval.low / _NS_PER_MS, interval.high / _NS_PER_MS)


@dataclass(frozen=True, slots=True)
class StepPartTimes:
    """The mean times of the parts of a step in milliseconds, on the slowest rank; None if not measured.

    Attributes:
        wait_ms: The wait for data.
        copy_ms: The copy to the device.
        compute_ms: Forward, backward, communication and update.
        forward_ms: The forward pass and the loss, in the steps that were timed in parts.
        backward_ms: The backward pass, in the same steps.
        communicate_ms: The summing of gradients over devices and ranks, in the same steps.
        update_ms: The update of the parameters, in the same steps.
    """

    wait_ms: float | None
    copy_ms: float | None
    compute_ms: float | None
    forward_ms: float | None
    backward_ms: float | None
    communicate_ms: float | None
    update_ms: float | None


class Training(_TimedResult[TrainingMeasurement]):
    """One training; in a notebook it displays as a table with the picture of its step times and losses."""

    _pictured = TrainingStepsReport

    @cached_property
    def summary(self) -> TrainingSummary:
        """Every figure, in nanoseconds and samples per second; see ``TrainingSummary``."""
        return TrainingSummary.of(self.evaluation.measurement)

    @property
    def throughput_per_s(self) -> float | None:
        """The number of samples divided by the sum of the steps' times; None if no step was measured."""
        return self.summary.throughput_samples_per_s

    @property
    def throughput_interval_per_s(self) -> tuple[float, float] | None:
        """The ends of the 95 % interval of ``throughput_per_s``."""
        found = self.summary.throughput_interval
        return None if found is None else (found.low, found.high)

    @cached_property
    def parts(self) -> StepPartTimes:
        """The mean times of the parts of a step."""
        names = StepPartTimes.__dataclass_fields__
        return StepPartTimes(
            **{name: in_ms(getattr(self.summary, f"{name.removesuffix('_ms')}_ns")) for name in names}
        )

    @property
    def bound(self) -> str | None:
        """The part that limits a step: ``loader``, ``copy``, ``compute`` or ``communication``."""
        return None if self.summary.bound is None else self.summary.bound.value

    @property
    def accuracy(self) -> TopAccuracy | None:
        """The accuracy of the trained model on the validation dataset; None if there is no such dataset."""
        return _accuracy(self.evaluation.measurement)

    @property
    def losses(self) -> NDArray[np.float64]:
        """The mean loss of each step, including warm-up steps, as a float64 array of shape (ranks, steps)."""
        return self.evaluation.measurement.losses

    @property
    def times(self) -> StepTimes:
        """The raw times of the measured steps of each rank in nanoseconds, as NumPy arrays."""
        return self.evaluation.measurement.times

    @cached_property
    def steps(self) -> Rows:
        """A row for each measured step of each rank, as in ``agent info evaluation training_steps``."""
        return Rows(TrainingStepsReport.columns, TrainingStepsReport().rows([self.evaluation]))


class Ingestion(_TimedResult[IngestionMeasurement]):
    """One run of a data loader alone; in a notebook it displays as a table with its picture."""

    @cached_property
    def summary(self) -> IngestionSummary:
        """Every figure, in nanoseconds and per second; see ``IngestionSummary``."""
        return IngestionSummary.of(self.evaluation.measurement)

    @property
    def throughput_per_s(self) -> float | None:
        """The number of samples divided by the sum of the batches' times; None if no batch was measured."""
        return self.summary.samples_per_s

    @property
    def bytes_per_s(self) -> float | None:
        """The bytes of encoded samples per second; None if the framework's iterator does not report them."""
        return self.summary.bytes_per_s

    @property
    def cached_before(self) -> float | None:
        """The share of the dataset's bytes, 0…1, that was in the page cache before the run."""
        return self.summary.cached_before

    @property
    def times(self) -> LoadTimes:
        """The raw times of the measured batches in nanoseconds, as NumPy arrays."""
        return self.evaluation.measurement.times


def _accuracy(measurement: BatchMeasurement | TrainingMeasurement) -> TopAccuracy | None:
    found = measurement.accuracy
    if found is None or found.top1_share is None:
        return None
    return TopAccuracy(found.top1_share, found.top5_share, found.evaluated)


def _latency(found: TimeFigures, full: int) -> Latency:
    return Latency(
        batches=full,
        mean_ms=in_ms(found.mean_ns),
        p50_ms=in_ms(found.p50_ns),
        p90_ms=in_ms(found.p90_ns),
        p99_ms=in_ms(found.p99_ns),
        interval_ms=_ends_ms(found.p50_interval_ns),
        mean_interval_ms=_ends_ms(found.mean_interval_ns),
    )


class Scores(Rows):
    """The scores of predictions, one row per score; a notebook also shows their picture.

    Attributes:
        result: The scores and their definitions.
        failures: The ids of the samples that could not be scored, each with the reason.
    """

    def __init__(self, found: ScoredPredictions, name: str) -> None:
        super().__init__(COLUMNS, rows_of(found.result, len(found.failures), found.dataset.name))
        self.result: TaskResult = found.result
        self.failures = {each.input_id: each.message for each in found.failures}
        self._name = name

    @property
    def samples(self) -> int:
        """The number of scored samples."""
        return self.result.samples

    def value(self, name: str) -> float | None:
        """Returns a score, such as ``AP50``; None if it is undefined or no score has this name."""
        return self.result.score(name)

    def interval(self, name: str) -> ScoreInterval | None:
        """Returns the 95 % interval of a score; None if there is none."""
        return next((each.interval for each in self.result.scores if each.name == name), None)

    def _repr_html_(self) -> str:
        return results.with_drawing(super()._repr_html_(), drawing_of(self.result, self._name))
