"""The figures of one operator's rows: times of a run with their interval, rates, and the roofline."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

import numpy as np
from numpy.typing import NDArray

from inferometer.evaluators.kinds.operators.measurement import MachinePeak, OperatorRow, RowStatus
from inferometer.evaluators.precision.intervals import (
    Interval,
    batches_for_interval,
    serial_percentile_interval,
)
from inferometer.evaluators.precision.processes import interval_over
from inferometer.evaluators.statistics import carried_percentile, percentile

_NEAR = 3.0
"""The multiple of the floor below which a time is reported to be mostly the harness's own."""


class Bound(str, Enum):
    """The limit of an operator, by the roofline."""

    MEMORY = "memory"
    COMPUTE = "compute"


@dataclass(frozen=True, slots=True)
class OperatorSummary:
    """The figures of the rows of one key and form, of one or several processes.

    Over several processes, a time is the mean of the processes' own. Times of blocks are divided by the runs
    in a block, so that their percentiles are those of means over a block.

    Attributes:
        p50_ns: The median of a run.
        mean_ns: The mean of a run.
        p90_ns: The percentile; None of fewer times than it needs.
        p99_ns: Likewise.
        interval: The 95 % interval of p50: of one process that of its times in a row, of several that of
            their p50; None of too few times.
        runs: The runs that were measured, in all processes.
        processes: The processes.
        block: The runs in a time; the most of any process.
        floor_ns: The time of a run that does nothing.
        near_floor: Whether p50 is below three times of that.
        flops_per_s: Floating-point operations a second at p50; None if they are not stated, or are none.
        bytes_per_s: Bytes of inputs and outputs a second at p50; None if they are not known. Above the
            machine's peak for what fits into the caches.
        flops_share: ``flops_per_s`` over the machine's peak.
        bytes_share: ``bytes_per_s`` over the machine's peak.
        arithmetic_intensity: Floating-point operations for each byte moved.
        bound: Whether the intensity is left or right of the ridge of the roofline (Williams, Waterman and
            Patterson, "Roofline: An Insightful Visual Performance Model", 2009); None without a peak.
        peak_memory_bytes: The most of any process.
    """

    p50_ns: float
    mean_ns: float
    p90_ns: float | None
    p99_ns: float | None
    interval: Interval | None
    runs: int
    processes: int
    block: int
    floor_ns: float
    near_floor: bool
    flops_per_s: float | None
    bytes_per_s: float | None
    flops_share: float | None
    bytes_share: float | None
    arithmetic_intensity: float | None
    bound: Bound | None
    peak_memory_bytes: int | None

    @classmethod
    def of(cls, rows: Sequence[OperatorRow], peak: MachinePeak | None = None) -> OperatorSummary | None:
        """Returns the figures; None if no row has times.

        Args:
            rows: The rows of one key and form, one for each process.
            peak: The peak of the machine.
        """
        measured = [row for row in rows if row.status is RowStatus.MEASURED and len(row.times_ns)]
        if not measured:
            return None
        times = [run_times(row) for row in measured]
        p50_ns = float(np.mean([percentile(each, 50) for each in times]))
        floor_ns = float(np.mean([row.floor_ns for row in measured]))
        first, seconds = measured[0], p50_ns / 1e9
        flops_per_s = first.flops / seconds if first.flops and seconds else None
        bytes_per_s = first.moved_bytes / seconds if first.moved_bytes and seconds else None
        intensity = first.flops / first.moved_bytes if first.flops is not None and first.moved_bytes else None
        memory = [row.peak_memory_bytes for row in measured if row.peak_memory_bytes is not None]
        return cls(
            p50_ns=p50_ns,
            mean_ns=float(np.mean([each.mean() for each in times])),
            p90_ns=_over(times, 90),
            p99_ns=_over(times, 99),
            interval=p50_interval(measured),
            runs=sum(len(row.times_ns) * row.block for row in measured),
            processes=len(measured),
            block=max(row.block for row in measured),
            floor_ns=floor_ns,
            near_floor=p50_ns < _NEAR * floor_ns,
            flops_per_s=flops_per_s,
            bytes_per_s=bytes_per_s,
            flops_share=flops_per_s / peak.flops_per_s if flops_per_s and peak else None,
            bytes_share=bytes_per_s / peak.bytes_per_s if bytes_per_s and peak else None,
            arithmetic_intensity=intensity,
            bound=_bound(intensity, peak),
            peak_memory_bytes=max(memory, default=None),
        )


def run_times(row: OperatorRow) -> NDArray[np.float64]:
    """Returns float64; nanoseconds a run."""
    return row.times_ns / row.block


def p50_interval(rows: Sequence[OperatorRow]) -> Interval | None:
    """Returns the 95 % interval of p50 in nanoseconds a run; see ``OperatorSummary``."""
    if len(rows) > 1:
        return interval_over([percentile(run_times(row), 50) for row in rows])
    (row,) = rows
    if len(row.times_ns) < batches_for_interval(row.times_ns):
        return None
    found = serial_percentile_interval(row.times_ns, 50)
    return None if found is None else Interval(found.low / row.block, found.high / row.block)


def _over(times: Sequence[NDArray[np.float64]], percent: float) -> float | None:
    found = [carried_percentile(each, percent) for each in times]
    known = [each for each in found if each is not None]
    return float(np.mean(known)) if len(known) == len(found) else None


def _bound(intensity: float | None, peak: MachinePeak | None) -> Bound | None:
    if intensity is None or peak is None:
        return None
    return Bound.COMPUTE if intensity * peak.bytes_per_s >= peak.flops_per_s else Bound.MEMORY
