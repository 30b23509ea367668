"""Arrival processes, and the schedule, which determines when each query of a run is due.

Times are drawn from a seed and fixed before the run; a schedule is identified by its hash.
"""

from __future__ import annotations

import csv
import hashlib
import io
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import MISSING, dataclass, fields
from pathlib import Path
from types import MappingProxyType
from typing import ClassVar, TypeVar

import numpy as np
from numpy.typing import NDArray

from inferometer.evaluators.statistics import random_state
from inferometer.manifests.errors import ConfigurationError, suggestion

_NS_PER_S = 1_000_000_000
_LONGEST_S = 7 * 24 * 3600.0
_MOST_QUERIES = 100_000_000
_BLOCK = 4096
_BISECTIONS = 40
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Extent:
    """The length of a schedule: it ends with the first arrival at which all minimums are reached.

    Attributes:
        min_duration_s: The earliest time of the last arrival.
        min_queries: The minimum number of arrivals.
        max_duration_s: The latest time for an arrival, which overrides the minimums; None sets no limit.

    Raises:
        ConfigurationError: A number is out of range.
    """

    min_duration_s: float = 0.0
    min_queries: int = 1
    max_duration_s: float | None = None

    def __post_init__(self) -> None:
        for name in ("min_duration_s", "max_duration_s"):
            value = getattr(self, name)
            if value is not None and not 0 <= value <= _LONGEST_S:
                raise ConfigurationError(f"{name} is {value}; allowed: 0…{_LONGEST_S:.0f} s")
        if not 1 <= self.min_queries <= _MOST_QUERIES:
            raise ConfigurationError(f"min_queries is {self.min_queries}; allowed: 1…{_MOST_QUERIES}")


@dataclass(frozen=True, slots=True)
class ArrivalProcess:
    """A point process with a mean rate.

    Its arrivals are those of a renewal process of rate 1 on a changed time scale: an arrival at u on that
    scale is one at the time t up to which the integral of the rate is u.
    """

    name: ClassVar[str]

    def offsets_ns(self, rate_qps: float, extent: Extent, seed: int) -> NDArray[np.int64]:
        """Draws arrivals: int64, ascending, nanoseconds since the beginning of the schedule.

        The generator is NumPy's ``RandomState`` (MT19937), whose stream NumPy has frozen: the same seed, at
        least 0, gives the same arrivals.

        Raises:
            ConfigurationError: The rate is not above 0, or there would be too many arrivals or none.
        """
        if not (math.isfinite(rate_qps) and rate_qps > 0):
            raise ConfigurationError(f"the rate is {rate_qps:g} queries/s; it must be above 0")
        least_s, most_s = extent.min_duration_s, extent.max_duration_s
        if self._time_s(2 * _MOST_QUERIES, rate_qps) < least_s:
            count = self.mean_qps(rate_qps, least_s) * least_s
            raise ConfigurationError(
                f"{rate_qps:g} queries/s for {least_s:g} s are some {count:.2g} queries; at most "
                f"{_MOST_QUERIES} are allowed; ask for less"
            )
        random = random_state(seed)
        pieces: list[NDArray[np.float64]] = []
        count, unit = 0, 0.0
        while True:
            units = unit + np.cumsum(self._gaps(random, _BLOCK))
            unit = float(units[-1])
            times_s = self.times_s(units, rate_qps)
            pieces.append(times_s)
            count += len(times_s)
            last_s = float(times_s[-1])
            if (last_s >= least_s and count >= extent.min_queries) or (
                most_s is not None and last_s > most_s
            ):
                break
            if count > _MOST_QUERIES or last_s > 2 * _LONGEST_S:
                raise ConfigurationError(
                    f"{rate_qps:g} queries/s for {least_s:g} s and {extent.min_queries} queries is more than "
                    f"{_MOST_QUERIES} queries or {_LONGEST_S:.0f} s; ask for less"
                )
        return self._cut(np.concatenate(pieces), extent)

    def _cut(self, times_s: NDArray[np.float64], extent: Extent) -> NDArray[np.int64]:
        enough = max(int(np.searchsorted(times_s, extent.min_duration_s)) + 1, extent.min_queries)
        times_s = times_s[:enough]
        if extent.max_duration_s is not None:
            times_s = times_s[times_s <= extent.max_duration_s]
        if not len(times_s):
            raise ConfigurationError(f"no query arrives within {extent.max_duration_s:g} s; make it longer")
        offsets: NDArray[np.int64] = np.rint(times_s * _NS_PER_S).astype(np.int64)
        return offsets

    def mean_qps(self, rate_qps: float, duration_s: float) -> float:
        """Returns the mean rate up to a time, without drawing; during a ramp, it differs from ``rate_qps``.

        Up to a time of 0, it is 0.
        """
        if not duration_s > 0:
            return 0.0
        # bisection of the arrivals' times, which are monotone
        low, high = 0.0, 1.0
        while self._time_s(high, rate_qps) < duration_s:
            low, high = high, 2 * high
        for _ in range(_BISECTIONS):
            middle = (low + high) / 2
            low, high = (middle, high) if self._time_s(middle, rate_qps) < duration_s else (low, middle)
        return low / duration_s

    def _time_s(self, unit: float, rate_qps: float) -> float:
        # a rate beyond all reason is refused for its number
        with np.errstate(over="ignore", invalid="ignore"):
            return float(self.times_s(np.array([unit]), rate_qps)[0])

    def units(self, count: int, seed: int) -> NDArray[np.float64]:
        """Draws arrivals at rate 1. Returns float64, ascending; ``times_s`` scales them to a rate."""
        units: NDArray[np.float64] = np.cumsum(self._gaps(random_state(seed), count))
        return units

    def _gaps(self, random: np.random.RandomState, count: int) -> NDArray[np.float64]:
        """Returns gaps between arrivals at rate 1, whose mean is 1: by default those of a Poisson process."""
        return random.standard_exponential(count)

    def times_s(self, units: NDArray[np.float64], rate_qps: float) -> NDArray[np.float64]:
        """Converts times of arrivals at rate 1 to this process's time scale, in seconds."""
        return units / rate_qps

    def __str__(self) -> str:
        """Returns the text from which ``arrival_process`` builds the process."""
        values = {field.name: float(getattr(self, field.name)) for field in fields(self)}
        text = ",".join(f"{name}={value!r}".removesuffix(".0") for name, value in values.items())
        return f"{self.name}:{text}" if text else self.name


@dataclass(frozen=True, slots=True)
class ConstantArrivals(ArrivalProcess):
    """Arrivals at equal intervals."""

    name: ClassVar[str] = "constant"

    def _gaps(self, random: np.random.RandomState, count: int) -> NDArray[np.float64]:
        return np.ones(count)


@dataclass(frozen=True, slots=True)
class PoissonArrivals(ArrivalProcess):
    """Independent arrivals, whose gaps are exponentially distributed."""

    name: ClassVar[str] = "poisson"


@dataclass(frozen=True, slots=True)
class GammaArrivals(ArrivalProcess):
    """Gaps from a gamma distribution: burstier than Poisson if the coefficient of variation is above 1.

    Attributes:
        cv: The standard deviation of the gaps divided by their mean; 1 gives Poisson arrivals.
    """

    name: ClassVar[str] = "gamma"
    cv: float = 2.0

    def __post_init__(self) -> None:
        if not 0.01 <= self.cv <= 100:
            raise ConfigurationError(f"arrival gamma: cv is {self.cv:g}; allowed: 0.01…100")

    def _gaps(self, random: np.random.RandomState, count: int) -> NDArray[np.float64]:
        shape = 1 / self.cv**2
        return random.standard_gamma(shape, count) / shape


@dataclass(frozen=True, slots=True)
class BurstArrivals(ArrivalProcess):
    """Poisson arrivals that are switched on and off; the requested rate is the mean over both phases.

    Attributes:
        on_s: The duration of the phase with arrivals, which comes first, in seconds.
        off_s: The duration of the phase without arrivals, in seconds.
    """

    name: ClassVar[str] = "bursts"
    on_s: float = 1.0
    off_s: float = 1.0

    def __post_init__(self) -> None:
        if not (0 < self.on_s <= _LONGEST_S and 0 <= self.off_s <= _LONGEST_S):
            raise ConfigurationError("arrival bursts: on_s must be above 0 and off_s at least 0")

    def times_s(self, units: NDArray[np.float64], rate_qps: float) -> NDArray[np.float64]:
        """See ``ArrivalProcess``."""
        on_rate = rate_qps * (self.on_s + self.off_s) / self.on_s
        switched_on_s = units / on_rate
        times_s: NDArray[np.float64] = switched_on_s + np.floor(switched_on_s / self.on_s) * self.off_s
        return times_s


@dataclass(frozen=True, slots=True)
class RampArrivals(ArrivalProcess):
    """Poisson arrivals whose rate changes linearly and then stays at its last value.

    Attributes:
        from_share: The rate at the beginning, as a fraction of the requested rate.
        to_share: The rate after the ramp, likewise.
        over_s: The duration of the ramp, in seconds.
    """

    name: ClassVar[str] = "ramp"
    from_share: float = 0.1
    to_share: float = 1.0
    over_s: float = 60.0

    def __post_init__(self) -> None:
        if not (self.from_share >= 0 and self.to_share > 0 and 0 < self.over_s <= _LONGEST_S):
            raise ConfigurationError(
                "arrival ramp: from_share must be at least 0, to_share and over_s above 0"
            )

    def times_s(self, units: NDArray[np.float64], rate_qps: float) -> NDArray[np.float64]:
        """See ``ArrivalProcess``."""
        first, last = rate_qps * self.from_share, rate_qps * self.to_share
        in_ramp = (first + last) / 2 * self.over_s
        inside = np.minimum(units, in_ramp)
        # inside = first t + (last - first) t² / (2 over_s), solved for t without losing digits
        slope = (last - first) / self.over_s
        root = np.sqrt(np.maximum(first * first + 2 * slope * inside, 0.0))
        ramp_s = 2 * inside / np.maximum(first + root, np.finfo(np.float64).tiny)
        after_s: NDArray[np.float64] = np.where(
            units > in_ramp, self.over_s + (units - in_ramp) / last, np.minimum(ramp_s, self.over_s)
        )
        return after_s


ARRIVALS: Mapping[str, Callable[..., ArrivalProcess]] = MappingProxyType(
    {
        kind.name: kind
        for kind in (ConstantArrivals, PoissonArrivals, GammaArrivals, BurstArrivals, RampArrivals)
    }
)


def arrival_process(text: str) -> ArrivalProcess:
    """Returns the process that a text describes: ``poisson``, ``gamma:cv=3``, ``bursts:on_s=0.5,off_s=2``.

    Raises:
        ConfigurationError: The name is unknown, or a parameter is invalid.
    """
    return of_text(text, ARRIVALS, "arrival", "process")


def of_text(text: str, kinds: Mapping[str, Callable[..., T]], what: str, noun: str) -> T:
    """Returns what a text such as ``gamma:cv=3`` describes: one of the dataclasses, whose fields are numbers.

    ``what`` is the option that has the text, and ``noun`` what it chooses, for messages. Raises
    ConfigurationError if the name is unknown, or a parameter is missing, unknown or no finite number.
    """
    name, _, given = text.strip().partition(":")
    kind = kinds.get(name.strip().casefold())
    if kind is None:
        raise ConfigurationError(f'unknown {what} {noun} "{name}"; {suggestion(name, kinds)}')
    values: dict[str, float] = {}
    known = {field.name: field.default for field in fields(kind)}  # type: ignore[arg-type] # each is a dataclass
    for item in filter(None, given.split(",")):
        key, _, value = (part.strip() for part in item.partition("="))
        if key not in known:
            allowed = f"it has {', '.join(known)}" if known else "it has none"
            raise ConfigurationError(f'{what} {name}: unknown parameter "{key}"; {allowed}')
        try:
            values[key] = float(value)
        except ValueError:
            raise ConfigurationError(f'{what} {name}: {key} is "{value}"; it must be a number') from None
        if not math.isfinite(values[key]):
            raise ConfigurationError(f"{what} {name}: {key} is {value}; it must be finite")
    if missing := [key for key, default in known.items() if default is MISSING and key not in values]:
        raise ConfigurationError(f"{what} {name}: give {' and '.join(missing)}")
    return kind(**values)


_UNITS_NS = {"offset_ns": 1, "offset_us": 1_000, "offset_ms": 1_000_000, "offset_s": _NS_PER_S}
_LATEST_NS = 7 * 24 * 3600 * _NS_PER_S


@dataclass(frozen=True, slots=True, eq=False)
class Schedule:
    """The schedule of a run: when its queries are due.

    Attributes:
        offsets_ns: int64, ascending, not negative; nanoseconds from the beginning of the run.
        source: Its source: an arrival process or a file.
        rate_qps: The requested rate; for a file, the mean rate from its first to its last arrival.
        seed: The seed that it was drawn from; None for a file.
    """

    offsets_ns: NDArray[np.int64]
    source: str
    rate_qps: float
    seed: int | None = None

    @classmethod
    def drawn(cls, process: ArrivalProcess, rate_qps: float, extent: Extent, seed: int) -> Schedule:
        """Returns a schedule drawn from an arrival process; see ``ArrivalProcess.offsets_ns``."""
        return cls(process.offsets_ns(rate_qps, extent, seed), str(process), rate_qps, seed)

    @classmethod
    def read(cls, path: Path) -> Schedule:
        """Reads a schedule from a file.

        The file has one offset per line, in seconds, or is a csv with a column ``offset_ns``, ``offset_us``,
        ``offset_ms`` or ``offset_s``. Empty lines and lines that begin with ``#`` are skipped.

        Raises:
            ConfigurationError: The file cannot be read; the message gives the line.
        """
        try:
            text = path.read_text(encoding="utf-8-sig")
        except (OSError, UnicodeDecodeError) as error:
            reason = error.strerror if isinstance(error, OSError) else "it is not text in UTF-8"
            raise ConfigurationError(f"schedule {path}: cannot be read: {reason}") from error
        offsets = np.fromiter(_offsets_ns(text, path), np.int64)
        if not len(offsets):
            raise ConfigurationError(f"schedule {path}: has no offset; give one per line, in seconds")
        if len(unsorted := np.flatnonzero(np.diff(offsets) < 0)):
            number = int(unsorted[0]) + 2
            raise ConfigurationError(
                f"schedule {path}: offset {number} comes before the one above it; sort them"
            )
        return cls.given(offsets, f"file {path.name}")

    @classmethod
    def given(cls, offsets_ns: NDArray[np.int64], source: str) -> Schedule:
        """Returns the schedule of given offsets, of which there is at least one; the rate is their mean."""
        span_ns = int(offsets_ns[-1] - offsets_ns[0])
        rate = (len(offsets_ns) - 1) * _NS_PER_S / span_ns if span_ns else float(len(offsets_ns))
        return cls(offsets_ns, source, rate)

    def text(self) -> str:
        """Returns the schedule as the content of a file, from which ``read`` recovers the same offsets."""
        head = f"# {self.source}, {self.rate_qps:g} queries/s, seed {self.seed}, {self.checksum}\noffset_ns\n"
        return head + "".join(f"{offset}\n" for offset in self.offsets_ns.tolist())

    @property
    def checksum(self) -> str:
        """``sha256:…`` of the offsets as 64-bit little-endian integers: equal if the times are equal."""
        return "sha256:" + hashlib.sha256(self.offsets_ns.astype("<i8").tobytes()).hexdigest()

    @property
    def duration_ns(self) -> int:
        """The last offset, in nanoseconds."""
        return int(self.offsets_ns[-1])

    def __len__(self) -> int:
        """Returns the number of queries."""
        return len(self.offsets_ns)


def _offsets_ns(text: str, path: Path) -> Iterator[int]:
    """Yields the offsets in a file of either format."""
    lines = [
        (number, line)
        for number, line in enumerate(io.StringIO(text), start=1)
        if line.strip() and not line.lstrip().startswith("#")
    ]
    if not lines:
        return
    column, unit_ns = 0, _NS_PER_S
    header = _cells(lines[0][1], path)
    if known := [name for name in header if name in _UNITS_NS]:
        if len(known) > 1:
            raise ConfigurationError(f"schedule {path}: has columns {' and '.join(known)}; keep only one")
        column, unit_ns = header.index(known[0]), _UNITS_NS[known[0]]
        lines = lines[1:]
    for number, line in lines:
        cells = _cells(line, path)
        cell = cells[column] if column < len(cells) else ""
        try:
            offset_ns = int(cell) if unit_ns == 1 else round(float(cell) * unit_ns)
        except (ValueError, OverflowError):
            columns = ", ".join(_UNITS_NS)
            raise ConfigurationError(
                f'schedule {path}, line {number}: "{cell[:40]}" is not an offset; '
                f"give seconds, or a csv with one of the columns {columns}"
            ) from None
        if not 0 <= offset_ns <= _LATEST_NS:
            raise ConfigurationError(
                f"schedule {path}, line {number}: {cell} is not within 0…{_LATEST_NS // _NS_PER_S} s"
            )
        yield offset_ns


def _cells(line: str, path: Path) -> Sequence[str]:
    try:
        return [cell.strip() for cell in next(csv.reader([line]), [])]
    except csv.Error as error:
        raise ConfigurationError(
            f'schedule {path}: "{line[:40].strip()}…" is not a line of a csv: {error}'
        ) from error
