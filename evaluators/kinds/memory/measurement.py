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
from typing_extensions import NotRequired, TypedDict

from inferometer.evaluators.jobs import options
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
    batch_sizes: tuple[int, ...] | None = options.declared(
        None, "Batch sizes to measure, such as 1,8,16.", "SIZES", default_text="up to nearly the limit"
    )
    sequence_lengths: tuple[int, ...] | None = options.declared(
        None,
        "Sizes of dynamic axes, each measured on its own, such as 32,128.",
        "SIZES",
        default_text="128; of images, max_dimension or 224",
    )
    memory_limit_mib: int | None = options.declared(
        None,
        "Limit of a process's data (RLIMIT_DATA), into which the largest batch is to fit.",
        "MIB",
        within=options.COUNT,
        flags=("--memory_limit",),
        argument="memory_limit",
        default_text="the memory that the machine or its control group has available",
    )
    repeat: int = options.declared(
        2, "Fresh processes for each measured batch size.", "N", within=options.COUNT
    )
    predictions: int = options.declared(3, "Predictions in each process.", "N", within=options.COUNT)
    tries: int = options.declared(
        8, "Most batch sizes to try under the limit.", "N", within=options.NOT_NEGATIVE
    )

    def __post_init__(self) -> None:
        options.check_options(self)
        for length in self.sequence_lengths or ():
            options.check_number("sequence_lengths", length, options.COUNT)
        for size in self.batch_sizes or ():
            options.check_number("batch_sizes", size, options.COUNT)
            self.system.check_batches(size)

    @property
    def given(self) -> dict[str, Any]:
        """The options that differ from their defaults."""
        return options.given_options(self)


class Reading(TypedDict):
    """The fields of ``/proc/self/status`` that figures are made of; others are kept beside them."""

    VmRSS: int
    VmHWM: int
    VmData: int
    RssAnon: int
    RssFile: int
    SampledData: NotRequired[int]


class Point(TypedDict):
    """A process: ``sequence_length`` is 0 for the model's own, and ``failure`` empty if it predicted."""

    batch_size: int
    sequence_length: int
    limited: bool
    failure: str
    baseline: NotRequired[Reading]
    framework: NotRequired[Reading]
    model: NotRequired[Reading]
    batch: NotRequired[Reading]


def data_bytes(reading: Reading) -> int:
    """Returns the peak of a process's data in a stage, of which the kernel keeps none.

    It is the highest sample, or the data at the end and the resident memory that was freed since its peak.
    Samples miss short peaks, and the sum misses what was freed untouched, so the larger one is taken.
    """
    freed = reading["VmHWM"] - reading["VmRSS"]
    return max(reading["VmData"] + freed, reading.get("SampledData", 0))


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

    ``options`` are those that differ from their defaults. A process that predicted has readings of all
    stages; ValueError otherwise.
    """

    kind: ClassVar[str] = "memory"

    points: Sequence[Point]
    limit_bytes: int
    elapsed_ns: int
    options: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for each in self.points:
            if "batch" in each and not {"baseline", "framework", "model"} <= set(each):
                raise ValueError("a process that predicted lacks a reading")

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
        columns = ("foretold_batch", "foretold_low", "foretold_high", "largest_batch", "error_percent")
        found: dict[str, float | None] = {**dict.fromkeys(columns), "largest_batch": largest}
        if line := self.line(length):
            foretold, reach = line.batch_within(self.limit_bytes)
            found["foretold_batch"] = foretold
            if reach is not None:
                found |= {"foretold_low": max(0.0, foretold - reach), "foretold_high": foretold + reach}
            if largest and failed:
                found["error_percent"] = 100 * (foretold - largest) / largest
        return found
