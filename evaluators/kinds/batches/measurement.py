"""The measurement of batches that run one after the other: raw times, accuracy, failures.

``LengthPlan`` gives the number of batches to measure: the requested number, or one that is enough for the
target, estimated from a pilot.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from inferometer.agent.inference.stages import InputFailure
from inferometer.agent.tasks.predictions import Classifications, Predictions
from inferometer.evaluators.kinds.batches.request import BatchOptions
from inferometer.evaluators.statistics import (
    AUTOCORRELATION_TIMES,
    Interval,
    TimeFigures,
    batches_for_interval,
    figures_of,
    half_width,
    serial_percentile_interval,
    trimmed_mean,
)
from inferometer.evaluators.tasks.metric import Accuracy, TaskResult

_NS_PER_S = 1_000_000_000


@dataclass(frozen=True, slots=True, eq=False)
class BatchTimes:
    """The raw times of the measured batches in nanoseconds, with one entry per batch, as in ``StageTimes``.

    Attributes:
        sizes: int64; the number of inputs that were predicted, without failed ones.
        read_ns: int64; summed over the inputs.
        preprocess_ns: int64; summed over the inputs.
        predict_ns: int64; measured from host memory to host memory, synchronised with the device.
        postprocess_ns: int64.
    """

    sizes: NDArray[np.int64]
    read_ns: NDArray[np.int64]
    preprocess_ns: NDArray[np.int64]
    predict_ns: NDArray[np.int64]
    postprocess_ns: NDArray[np.int64]

    def full(self, batch_size: int) -> NDArray[np.int64]:
        """Returns the predict times, in nanoseconds, of the batches that contained ``batch_size`` inputs.

        Smaller batches, such as the last one or those with failed inputs, are not included in the latency.
        """
        full: NDArray[np.int64] = self.predict_ns[self.sizes == batch_size]
        return full


@dataclass(frozen=True, slots=True, eq=False)
class InputPrediction:
    """The prediction for one input, as ``--publish_predictions`` stores it.

    Attributes:
        expected_label: The class of the input, if the dataset has labels.
        prediction: The prediction for the input, as a ``Predictions`` object of one row.
    """

    input_id: str
    expected_label: str | None
    prediction: Predictions

    @property
    def indices(self) -> NDArray[np.int64]:
        """The best classes, most probable first: int64, (k,); empty unless the model is a classifier."""
        found = self.prediction
        return found.indices[0] if isinstance(found, Classifications) else np.empty(0, np.int64)

    @property
    def probabilities(self) -> NDArray[np.float32]:
        """The probabilities of ``indices``: float32, (k,)."""
        found = self.prediction
        return found.probabilities[0] if isinstance(found, Classifications) else np.empty(0, np.float32)


@dataclass(frozen=True, slots=True, eq=False)
class BatchMeasurement:
    """The measurement of a run over a dataset, batch by batch.

    Attributes:
        elapsed_ns: From the first measured batch's reading to the last one's postprocessing.
        accuracy: Top-1 and top-5 counts; None if the dataset has no labels or the model does not classify.
        task_result: The scores of the model at its task, classification included; None if no sample has a
            ground truth, the weights are random, the task has no metric, or the evaluation is from an earlier
            version.
        failures: The failed inputs.
        predictions: The inputs' predictions; empty unless requested, and in an evaluation from the store.
    """

    kind: ClassVar[str] = "batches"

    options: BatchOptions
    times: BatchTimes
    elapsed_ns: int
    accuracy: Accuracy | None
    failures: tuple[InputFailure, ...] = ()
    predictions: tuple[InputPrediction, ...] = ()
    task_result: TaskResult | None = None

    @property
    def batch_size(self) -> int:
        """The number of inputs in a full batch."""
        return self.options.batch_size

    @property
    def full_ns(self) -> NDArray[np.int64]:
        """The predict times of the full batches, in nanoseconds; see ``BatchTimes.full``."""
        return self.times.full(self.options.batch_size)

    @property
    def full(self) -> NDArray[np.bool_]:
        """bool, (batches,): whether each batch was full."""
        full: NDArray[np.bool_] = self.times.sizes == self.options.batch_size
        return full

    @property
    def traced_sizes(self) -> NDArray[np.int64]:
        """int64, (batches,): the number of inputs in each batch."""
        return self.times.sizes

    @property
    def predicted_inputs(self) -> int:
        """The number of inputs that were predicted, without failed ones."""
        return int(self.times.sizes.sum())


@dataclass(frozen=True, slots=True, kw_only=True)
class LatencySummary(TimeFigures):
    """The latency of one evaluation, in nanoseconds per batch, and its throughput.

    The latency of a batch is its predict time: from host memory to host memory, synchronised with the device,
    without reading, preprocessing and postprocessing. Only full batches count. Intervals are 95 % confidence
    intervals within the process that ran the model.

    Attributes:
        measured_batches: The number of full batches, over which latency and throughput are computed.
        trimmed_mean_ns: The mean without the lowest and highest fifth of values; see ``trimmed_mean``.
        p90_interval_ns: The interval of the 90th percentile.
        throughput_inputs_per_s: The number of inputs in full batches, divided by the sum of their predict
            times; None if there was no full batch.
        throughput_interval: The interval of the throughput, derived from that of the mean.
        end_to_end_inputs_per_s: The number of predicted inputs, divided by the time from the first batch's
            reading to the last one's postprocessing; None if no input was predicted.
    """

    measured_batches: int
    trimmed_mean_ns: float | None
    p90_interval_ns: Interval | None
    throughput_inputs_per_s: float | None
    throughput_interval: Interval | None
    end_to_end_inputs_per_s: float | None

    @classmethod
    def of(cls, measurement: BatchMeasurement, *, intervals: bool = True) -> LatencySummary:
        """Computes the figures from the raw times; the intervals take half of the computing time."""
        batch_size, full_ns = measurement.batch_size, measurement.full_ns
        figures = figures_of(full_ns, intervals=intervals)
        mean_ns: Interval | None = figures["mean_interval_ns"]
        per_s: Interval | None = None
        if mean_ns is not None and mean_ns.low > 0:
            per_s = Interval(batch_size * _NS_PER_S / mean_ns.high, batch_size * _NS_PER_S / mean_ns.low)
        return cls(
            **figures,
            measured_batches=len(full_ns),
            trimmed_mean_ns=trimmed_mean(full_ns) if len(full_ns) else None,
            p90_interval_ns=None if mean_ns is None else serial_percentile_interval(full_ns, 90),
            throughput_inputs_per_s=_per_second(batch_size * len(full_ns), int(full_ns.sum())),
            throughput_interval=per_s,
            end_to_end_inputs_per_s=_per_second(measurement.predicted_inputs, measurement.elapsed_ns),
        )


def _per_second(inputs: int, duration_ns: int) -> float | None:
    """Returns inputs per second; None if there were no inputs, or the clock measured no time."""
    return inputs * _NS_PER_S / duration_ns if inputs and duration_ns > 0 else None


TIME_BUDGET_S = 30.0
"""The default time budget for reaching a target, in seconds."""
_PILOT_S = 1.0
_PILOT_MARGIN = 3
_LENGTH_MARGIN = 1.3


class LengthPlan:
    """The plan for how many more batches to measure until the target or the minimum is reached.

    For a target, the number of batches is fixed after a pilot (Stein, "A Two-Sample Test for a Linear
    Hypothesis Whose Power is Independent of the Variance", Annals of Mathematical Statistics 16, 1945): an
    interval that is checked repeatedly until it is narrow covers less than its nominal level. The pilot lasts
    at least one second, and three times as many batches as an interval needs. Its interval of p50, which
    shrinks with the square root of the number of batches, gives the number, to which a factor of 1.3² is
    applied for the pilot's own error.

    Args:
        options: The requested minimums, target and time budget.
    """

    def __init__(self, options: BatchOptions) -> None:
        self._options = options
        self._planned: int | None = None
        self._until_s = math.inf

    def spent(self, elapsed_s: float) -> bool:
        """Returns whether the time budget for the current target or minimum is spent."""
        return elapsed_s >= self._until_s

    def more(self, full_ns: NDArray[np.int64], elapsed_s: float) -> int:
        """Returns how many more batches to measure now; 0 if there are enough or the time budget is spent.

        Args:
            full_ns: The predict times of the full batches so far, in order.
            elapsed_s: The time since the first batch was read.
        """
        options, count = self._options, len(full_ns)
        if not count:
            return 0
        budget_s, per_s = options.time_budget_s, count / max(elapsed_s, 1e-9)
        least = options.min_batches
        if elapsed_s < options.min_duration_s:
            least = max(least, count + 1, math.ceil(options.min_duration_s * per_s))
        if count < least:  # which was asked for, however long it takes
            self._until_s = math.inf if budget_s is None else budget_s
            wanted = least
        else:
            self._until_s = TIME_BUDGET_S if budget_s is None else budget_s
            wanted = self._for_target(full_ns, elapsed_s, per_s)
        left = (self._until_s - elapsed_s) * per_s
        return max(0, wanted - count if left > wanted - count else math.ceil(left))

    def _for_target(self, full_ns: NDArray[np.int64], elapsed_s: float, per_s: float) -> int:
        """Returns the total number of batches for the target, or for its pilot; 0 if there is no target."""
        target_percent, count = self._options.target_ci_percent, len(full_ns)
        if target_percent is None:
            return 0
        if self._planned is None:
            pilot = _PILOT_MARGIN * batches_for_interval(full_ns)
            if count < pilot:
                # few looks, as each may take a correlation for shorter than it is
                return max(pilot, 2 * count if count > AUTOCORRELATION_TIMES else 0)
            if elapsed_s < _PILOT_S:
                return max(count + 1, math.ceil(_PILOT_S * per_s))
            self._planned = _length(full_ns, target_percent / 100)
        return self._planned


def reached(full_ns: NDArray[np.int64], target_percent: float) -> bool:
    """Returns whether the half-width of p50's interval is within a target, in percent of p50."""
    share = half_width(full_ns)
    return share is not None and 100 * share <= target_percent


def _length(full_ns: NDArray[np.int64], target: float) -> int:
    share = half_width(full_ns) or 0.0
    return max(len(full_ns), math.ceil(len(full_ns) * (_LENGTH_MARGIN * share / target) ** 2))
