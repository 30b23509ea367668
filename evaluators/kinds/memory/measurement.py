"""The request and the measurement of memory: readings of fresh processes, and the figures made of them.

A reading is what Linux has in ``/proc/self/status``, in bytes, at the end of a stage: ``baseline`` (without
the framework), ``framework`` (imported), ``model`` (loaded) or ``batch`` (predicted). ``VmHWM`` is the peak
of resident memory in the stage. The limit is that of a process's *data*: private writable memory, touched or
not (RLIMIT_DATA, setrlimit(2)), without mapped files, which the system can drop and read again.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np

from inferometer.evaluators.jobs.options import (
    COUNT,
    NOT_NEGATIVE,
    check_number,
    check_options,
    declared,
    given_options,
)
from inferometer.evaluators.jobs.request import default_system
from inferometer.evaluators.statistics import t_quantile_95

MIB = 1 << 20
_BEND = 0.005
"""The deviation from a straight line, in shares of the points' range, from which it is a bend."""
_CLOSE, _STEPS = 200, 50
"""The largest batch is known to one part in the former; the search for it begins with steps of the latter."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryRequest:
    """A model whose memory is measured; raises ConfigurationError if an option is invalid."""

    system: Any = field(default_factory=default_system)  # a SystemRequest, whose import takes long
    batch_sizes: tuple[int, ...] | None = declared(
        None, "Batch sizes to measure, such as 1,8,16.", "SIZES", default_text="up to nearly the limit"
    )
    sequence_lengths: tuple[int, ...] | None = declared(
        None,
        "Sizes of dynamic axes, each measured on its own, such as 32,128.",
        "SIZES",
        default_text="128; of images, max_dimension or 224",
    )
    memory_limit_mib: int | None = declared(
        None,
        "Limit of a process's data (RLIMIT_DATA), into which the largest batch is to fit.",
        "MIB",
        within=COUNT,
        flags=("--memory_limit",),
        argument="memory_limit",
        default_text="the memory that the machine or its control group has available",
    )
    repeat: int = declared(2, "Fresh processes for each measured batch size.", "N", within=COUNT)
    predictions: int = declared(3, "Predictions in each process.", "N", within=COUNT)
    tries: int = declared(8, "Most batch sizes to try under the limit.", "N", within=NOT_NEGATIVE)

    def __post_init__(self) -> None:
        check_options(self)
        for length in self.sequence_lengths or ():
            check_number("sequence_lengths", length, COUNT)
        for size in self.batch_sizes or ():
            check_number("batch_sizes", size, COUNT)
            self.system.check_batches(size)

    @property
    def given(self) -> dict[str, Any]:
        """The options that differ from their defaults."""
        return given_options(self)


def data_bytes(reading: Mapping[str, int]) -> int:
    """Returns the peak of a process's data in a stage, of which the kernel keeps none.

    It is the data at the end, and the resident memory that was freed since its peak, taken to be data.
    """
    return reading["VmData"] + reading["VmHWM"] - reading["VmRSS"]


@dataclass(frozen=True, slots=True)
class Line:
    """Memory in bytes as a linear function of the batch size.

    ``error`` is the residual standard deviation, None for only two points; ``sizes`` are the batch sizes on
    the line, one for each process.
    """

    base: float
    slope: float
    error: float | None
    sizes: tuple[int, ...]

    @classmethod
    def of(cls, points: Sequence[tuple[int, float]]) -> Line | None:
        """Fits a line by least squares to the batch size and the bytes of each process.

        While three or more sizes deviate from it by more than their processes differ, it leaves out the
        smallest. It is None if there are fewer than two sizes, or if it does not rise.
        """
        distinct = np.unique([size for size, _ in points])
        if len(distinct) < 2:
            return None
        sizes, values = np.array(points, np.float64).T
        slope, base = np.polyfit(sizes, values, 1)
        means = np.array([values[sizes == size].mean() for size in distinct])
        spread = max(float(np.ptp(values[sizes == size])) for size in distinct)
        off = float(np.abs(means - base - slope * distinct).max())
        if len(distinct) > 2 and off > max(_BEND * float(np.ptp(means)), spread):
            return cls.of([point for point in points if point[0] > distinct[0]])
        squares = float(((values - base - slope * sizes) ** 2).sum())
        error = math.sqrt(squares / (len(sizes) - 2)) if len(sizes) > 2 else None
        return cls(float(base), float(slope), error, tuple(map(int, sizes))) if slope > 0 else None

    def batch_within(self, limit_bytes: float) -> tuple[int, float | None]:
        """Returns the largest batch that fits, and half the 95 % interval of that of one more process.

        The interval, None without an error, is that of linear calibration (Draper and Smith, "Applied
        Regression Analysis", 3rd edition, 1998, 3.2): t · s / b · √(1 + 1 / n + (x - x̄)² / Σ(xᵢ - x̄)²).
        """
        batch = round((limit_bytes - self.base) / self.slope, 6)
        if self.error is None:
            return max(0, math.floor(batch)), None
        sizes = np.array(self.sizes, np.float64)
        spread = 1 + 1 / len(sizes) + (batch - sizes.mean()) ** 2 / float(np.var(sizes) * len(sizes))
        reach = t_quantile_95(len(sizes) - 2) * self.error / self.slope * math.sqrt(spread)
        return max(0, math.floor(batch)), reach


def search_largest(foretold: int, fits: Callable[[int], bool], tries: int) -> None:
    """Tries the foretold batch, then others up and down until the largest is known, at most ``tries``."""
    low, high, size = 0, math.inf, max(1, foretold)
    step = max(1, size // _STEPS)
    for _ in range(tries):
        low, high = (size, high) if fits(size) else (low, size)
        if high - low <= max(1, low // _CLOSE):
            return
        if high < math.inf and low:
            size = (low + int(high)) // 2
        else:
            size, step = max(1, size + (step if low else -step)), 2 * step


@dataclass(frozen=True, slots=True, eq=False)
class MemoryMeasurement:
    """Readings of fresh processes, in the order in which they ran.

    Each of the ``points`` is a process: its ``batch_size``, ``sequence_length`` (0 for the model's own),
    ``limited`` (whether it ran under the limit), ``failure`` (empty if it predicted) and, for each stage that
    it reached, the reading. ``options`` are those that differ from their defaults.
    """

    kind: ClassVar[str] = "memory"

    points: Sequence[Mapping[str, Any]]
    limit_bytes: int
    elapsed_ns: int
    options: Mapping[str, Any] = field(default_factory=dict)

    @property
    def batch_size(self) -> int:
        """The largest batch size that predicted."""
        return max((each["batch_size"] for each in self.points if "batch" in each), default=1)

    @property
    def lengths(self) -> Sequence[int]:
        """The sequence lengths, in order."""
        return list(dict.fromkeys(each["sequence_length"] for each in self.points))

    def line(self, length: int) -> Line | None:
        """Returns the line of data by batch size at a sequence length; None if there is none."""
        points = (each for each in self.points if each["sequence_length"] == length and not each["limited"])
        return Line.of(
            [(each["batch_size"], data_bytes(each["batch"])) for each in points if "batch" in each]
        )

    def capacity(self, length: int) -> dict[str, float | None]:
        """Returns the largest batch at a sequence length, as columns of the report.

        ``foretold_batch`` is that of the line, ``largest_batch`` the largest that was tried and fit: 0 if a
        batch of 1 did not, None if it is not known. ``error_percent`` is by how much the first is off.
        """
        tried = [each for each in self.points if each["sequence_length"] == length and each["limited"]]
        failed = [each["batch_size"] for each in tried if each["failure"]]
        fit = [each["batch_size"] for each in tried if not each["failure"]]
        largest = max(fit, default=0 if 1 in failed else None)
        line = self.line(length)
        foretold, reach = line.batch_within(self.limit_bytes) if line else (None, None)
        ends = (None, None) if line is None or reach is None else (max(0, foretold - reach), foretold + reach)
        known = foretold is not None and largest and failed
        return {
            "foretold_batch": foretold,
            "foretold_low": ends[0],
            "foretold_high": ends[1],
            "largest_batch": largest,
            "error_percent": 100 * (foretold - largest) / largest if known else None,
        }
