"""The measurement of a loader alone: batches are read and preprocessed, and no model runs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from inferometer.agent.inference.results import InputFailure
from inferometer.evaluators.intervals import Interval, TimeFigures, figures_of, rate_interval
from inferometer.evaluators.loading.options import DataOptions

_NS_PER_S = 1_000_000_000
_MOST_BUSY = 1.01
"""The maximum share of time that a worker can be busy: 1, plus a margin for clock rounding."""


@dataclass(frozen=True, slots=True, eq=False)
class LoadTimes:
    """The raw times of the measured batches; int64, with one entry per batch.

    Attributes:
        samples: The number of samples that were loaded, without failed ones.
        whole_ns: The time from the end of the previous batch to the end of this one: the wait of a caller
            that does nothing else.
        read_ns: The time to read, summed over the samples and the workers; 0 if the framework's own iterator
            does not report it.
        preprocess_ns: The time to decode and preprocess, summed in the same way.
        read_bytes: The number of bytes in the encoded samples, summed in the same way.
    """

    samples: NDArray[np.int64]
    whole_ns: NDArray[np.int64]
    read_ns: NDArray[np.int64]
    preprocess_ns: NDArray[np.int64]
    read_bytes: NDArray[np.int64]


@dataclass(frozen=True, slots=True, eq=False)
class IngestionMeasurement:
    """One run of a loader.

    Attributes:
        batch_size: The number of samples in a full batch.
        num_warmup_batches: The number of preceding batches, which are not measured.
        data: How batches were loaded.
        times: The raw times of the measured batches.
        elapsed_ns: The duration of the measured batches.
        failures: The samples that failed.
        epochs: The number of passes over the data that were begun.
    """

    kind: ClassVar[str] = "ingestion"

    batch_size: int
    num_warmup_batches: int
    data: DataOptions
    times: LoadTimes
    elapsed_ns: int
    failures: tuple[InputFailure, ...] = ()
    epochs: int = 0

    @property
    def full(self) -> NDArray[np.bool_]:
        """bool, (batches,): whether each batch contained ``batch_size`` samples."""
        full: NDArray[np.bool_] = self.times.samples == self.batch_size
        return full

    @property
    def full_ns(self) -> NDArray[np.int64]:
        """int64; the times of the full batches, in order."""
        times_ns: NDArray[np.int64] = self.times.whole_ns[self.full]
        return times_ns


@dataclass(frozen=True, slots=True, kw_only=True)
class IngestionSummary(TimeFigures):
    """The figures of a loader; None if they are not known.

    The wait is that of a caller that does nothing but wait for the next batch. Its mean, percentiles and
    intervals cover full batches; rates are computed from all batches and the sum of their times.

    Attributes:
        batches: The number of measured batches.
        batches_per_s: Batches per second.
        samples_per_s: Samples per second, without those that failed.
        samples_interval: Its 95 % interval, whose relative width is that of the mean's interval.
        bytes_per_s: Bytes of encoded samples per second; None if the framework's iterator does not report
            them.
        read_ns: The mean time that a thread takes to read a sample; None in the same case.
        preprocess_ns: The mean time that a thread takes to decode and preprocess it; None in the same case.
        cached_before: The share of the dataset's bytes that were in the page cache beforehand, 0…1.
        busy: The share of the workers' time spent on reading and preprocessing, failed samples included; None
            if the framework's iterator does not report it.
    """

    batches: int
    batches_per_s: float | None
    samples_per_s: float | None
    samples_interval: Interval | None
    bytes_per_s: float | None
    read_ns: float | None
    preprocess_ns: float | None
    cached_before: float | None
    busy: float | None = None

    @property
    def contradiction(self) -> str:
        """Why the rate is impossible (more work than the workers had time for); empty if it is possible."""
        if self.busy is None or self.busy <= _MOST_BUSY:
            return ""
        return (
            f"samples took {self.busy:.2f} times the workers' time: some were loaded before the clock started"
        )

    @classmethod
    def of(cls, measurement: IngestionMeasurement) -> IngestionSummary:
        """Computes the figures from the raw times."""
        times, figures = measurement.times, figures_of(measurement.full_ns)
        total_ns, samples = int(times.whole_ns.sum()), int(times.samples.sum())
        samples_per_s = samples * _NS_PER_S / total_ns if total_ns else None
        told, work_ns = bool(times.read_bytes.any()), int((times.read_ns + times.preprocess_ns).sum())
        return cls(
            batches=len(times.whole_ns),
            **figures,
            batches_per_s=len(times.whole_ns) * _NS_PER_S / total_ns if total_ns else None,
            samples_per_s=samples_per_s,
            samples_interval=rate_interval(samples_per_s, figures["mean_ns"], figures["mean_interval_ns"]),
            bytes_per_s=int(times.read_bytes.sum()) * _NS_PER_S / total_ns if told and total_ns else None,
            read_ns=int(times.read_ns.sum()) / samples if told and samples else None,
            preprocess_ns=int(times.preprocess_ns.sum()) / samples if told and samples else None,
            cached_before=measurement.data.cached_before,
            busy=work_ns / (total_ns * max(1, measurement.data.workers)) if told and total_ns else None,
        )
