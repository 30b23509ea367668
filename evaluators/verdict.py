"""Ratios of latency percentiles and of throughput, and the verdict on a ratio for a given threshold.

The ratios are computed from the raw times of runs. This module also names the figures that are compared.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from itertools import combinations

import numpy as np
from numpy.typing import NDArray

from inferometer.evaluators.load.queries import Outcome, Queries
from inferometer.evaluators.statistics import NEVER_NS, percentile_interval, random_state, t_quantile_95
from inferometer.manifests.errors import ConfigurationError

THROUGHPUT = "throughput"
MAX_QPS = "max_qps"
TOP1 = "top1"
TOKENS, GOODPUT = "tokens", "goodput"
FIGURES = ("p50", "p90", "p99", THROUGHPUT)
"""The figures of times that are compared by default, in order."""


_PERCENTILE = re.compile(r"(?:(\w+)_)?p(\d{1,2}(?:\.\d+)?)")


def percent_of(figure: str) -> float | None:
    """Returns the percentile of a figure such as ``p99.9`` or ``ttft_p50``; None for another figure."""
    match = _PERCENTILE.fullmatch(figure)
    return float(match[2]) if match and float(match[2]) > 0 else None


def time_of(figure: str) -> str:
    """Returns the time that a figure is of, such as ``ttft`` of ``ttft_p50``; empty for the only time."""
    match = _PERCENTILE.fullmatch(figure)
    return (match and match[1]) or ""


def higher_is_better(figure: str) -> bool:
    """Returns whether a higher value of a figure is better."""
    return percent_of(figure) is None


def parse_figures(text: str) -> tuple[str, ...]:
    """Returns the distinct names in a comma-separated list of figures; the kind that is compared knows them.

    Raises:
        ConfigurationError: The list is empty.
    """
    names = tuple(dict.fromkeys(name.strip().lower() for name in text.split(",") if name.strip()))
    if not names:
        raise ConfigurationError("figures names none; give some, such as " + ", ".join(FIGURES))
    return names


def listed(figures: Sequence[str]) -> str:
    """Returns names as an enumeration in a sentence."""
    return ", ".join(figures[:-1]) + f" and {figures[-1]}" if len(figures) > 1 else "".join(figures)


class Verdict(str, Enum):
    """The verdict on B compared with A."""

    BETTER = "better"
    """The whole interval is on the good side of the threshold."""
    SAME = "same"
    """The whole interval is within the threshold."""
    WORSE = "worse"
    """The whole interval is on the bad side of the threshold."""
    UNDECIDED = "undecided"
    """The interval crosses the threshold, or there is no interval."""


@dataclass(frozen=True, slots=True)
class Ratio:
    """The ratio of one figure of B to that of A.

    Attributes:
        a: The figure of A: a latency in nanoseconds, inputs or queries per second, or a fraction.
        b: The figure of B.
        value: The ratio; infinite if only B's percentile falls on queries without a correct answer, and NaN
            if both do, nothing was answered, or it is unknown.
        low: The lower end of its 95 % interval; None if there are too few values for one.
        high: The upper end, likewise.
        threshold: The fraction by which the figure may differ.
    """

    figure: str
    a: float
    b: float
    value: float
    low: float | None
    high: float | None
    threshold: float
    verdict: Verdict

    @classmethod
    def judged(
        cls,
        figure: str,
        sides: tuple[float, float],
        value: float,
        interval: tuple[float | None, float | None],
        threshold: float,
    ) -> Ratio:
        """Returns a ratio with the verdict on its interval."""
        low, high = interval
        return cls(figure, *sides, value, low, high, threshold, _verdict(figure, low, high, threshold))


def _verdict(figure: str, low: float | None, high: float | None, threshold: float) -> Verdict:
    if low is None or high is None or not math.isfinite(threshold):
        return Verdict.UNDECIDED
    above, below = Verdict.WORSE, Verdict.BETTER
    if higher_is_better(figure):
        above, below = below, above
    if low > 1 + threshold:
        return above
    if high < 1 / (1 + threshold):
        return below
    within = 1 / (1 + threshold) <= low and high <= 1 + threshold
    return Verdict.SAME if within else Verdict.UNDECIDED


@dataclass(frozen=True, slots=True, eq=False)
class RunTimes:
    """The raw times of one run: of batches one after the other, or of queries under load.

    Attributes:
        latency_ns: int64, n values in the order in which they began; ``NEVER_NS`` for no correct answer.
        elapsed_ns: int64, n values: the time from each to the next; their sum is the run's duration. For
            batches it is their latency, for queries under load the time between arrivals, and for queries
            that were all due at once the time between answers.
        inputs: int64, n values: for each, the number of inputs, or of correct answers under load.

    Raises:
        ValueError: There is no value, or the columns differ in length.
    """

    latency_ns: NDArray[np.int64]
    elapsed_ns: NDArray[np.int64]
    inputs: NDArray[np.int64]

    def __post_init__(self) -> None:
        if not len(self.latency_ns) == len(self.elapsed_ns) == len(self.inputs) > 0:
            raise ValueError("a run needs at least one value, and columns of equal length")

    @classmethod
    def of_batches(cls, latency_ns: NDArray[np.int64], sizes: NDArray[np.int64]) -> RunTimes:
        """Returns the times of at least one batch; ``sizes``, int64, has the number of inputs in each."""
        return cls(latency_ns, latency_ns, sizes)

    @classmethod
    def of_queries(cls, queries: Queries) -> RunTimes:
        """Returns the times of queries under load, from the first arrival to the last answer.

        Queries that were all due at once (``Queries.due_at_once``) have a value for each time at which
        answers arrived, in order, because the time at which they were due carries no information.
        """
        sent = queries.chosen(queries.outcome != Outcome.UNSENT)
        if sent.due_at_once:
            begin_ns = sent.scheduled_ns[0]
            answered = sent.chosen(sent.outcome == Outcome.ANSWERED)
            done_ns, counts = np.unique(answered.done_ns, return_counts=True)
            return cls(done_ns - begin_ns, np.diff(done_ns, prepend=begin_ns), counts.astype(np.int64))
        end_ns = max(int(sent.done_ns.max(initial=0)), int(sent.scheduled_ns.max(initial=0)))
        return cls(
            sent.latency_ns,
            np.diff(sent.scheduled_ns, append=end_ns),
            (sent.outcome == Outcome.ANSWERED).astype(np.int64),
        )


_RESAMPLES = 1000
BLOCKS = 20
"""The number of blocks into which a run is split for resampling."""
_SLICES = 4096
_ROUNDING = 1e-6
_NS_PER_S = 1_000_000_000


class PooledRuns:
    """The runs of one side, as the number of values that each block has in each slice of all sorted values.

    Args:
        runs: The runs, at least one.
        figures: Percentiles, or ``throughput``, in the order of the results.

    Attributes:
        runs: The number of runs.
        values: The number of values in all of them.
    """

    def __init__(self, runs: Sequence[RunTimes], figures: Sequence[str]) -> None:
        self.runs = len(runs)
        self._percents = [percent_of(figure) for figure in figures]
        self._latency_ns = np.concatenate([run.latency_ns for run in runs])
        self.values = len(self._latency_ns)
        self._blocks: list[tuple[int, int]] = []
        blocks, first = [], 0
        for run in runs:
            count = min(BLOCKS, len(run.latency_ns))
            blocks.append(first + np.arange(len(run.latency_ns)) * count // len(run.latency_ns))
            self._blocks.append((first, count))
            first += count
        block = np.concatenate(blocks)
        elapsed_ns, inputs = (
            np.bincount(block, np.concatenate([getattr(run, name) for run in runs]), first)
            for name in ("elapsed_ns", "inputs")
        )
        self._elapsed_s = elapsed_ns / _NS_PER_S
        self._inputs = inputs
        slices = min(self.values, _SLICES)
        order = np.argsort(self._latency_ns, kind="stable")
        slice_of = np.arange(self.values) * slices // self.values
        self._counts = np.zeros((first, slices))
        np.add.at(self._counts, (block[order], slice_of), 1)
        last = np.flatnonzero(np.diff(slice_of, append=slices))
        ordered_ns = self._latency_ns[order][last]
        self._slices_ns = np.where(ordered_ns == NEVER_NS, np.inf, ordered_ns.astype(np.float64))

    def figures(self) -> NDArray[np.float64]:
        """Returns one float64 value per figure: percentiles in nanoseconds, throughput in inputs/s."""
        with np.errstate(divide="ignore", invalid="ignore"):
            throughput = float(self._inputs.sum() / self._elapsed_s.sum())
        known = (None if p is None else percentile_interval(self._latency_ns, p) for p in self._percents)
        return np.asarray([throughput if each is None else each.value_ns for each in known])

    def resampled(self, random: np.random.RandomState) -> NDArray[np.float64]:
        """Returns the figures of all resamples: float64, resamples × figures."""
        weights = self._weights(random)
        up_to = np.cumsum(weights @ self._counts, axis=1)
        columns = []
        for percent in self._percents:
            if percent is None:
                with np.errstate(divide="ignore", invalid="ignore"):
                    columns.append((weights @ self._inputs) / (weights @ self._elapsed_s))
            else:
                wanted = percent / 100 * up_to[:, -1:] - _ROUNDING
                columns.append(self._slices_ns[np.argmax(up_to >= wanted, axis=1)])
        return np.stack(columns, axis=1)

    def _weights(self, random: np.random.RandomState) -> NDArray[np.float64]:
        """Returns the count of each block in each resample: float64, resamples × blocks."""
        firsts, counts = np.asarray(self._blocks).T
        runs = random.randint(0, self.runs, (_RESAMPLES, self.runs))
        drawn = random.random_sample((_RESAMPLES, self.runs, BLOCKS))
        count = counts[runs][:, :, None]
        blocks = firsts[runs][:, :, None] + (drawn * count).astype(np.int64)
        there = np.broadcast_to(np.arange(BLOCKS) < count, blocks.shape)
        rows = np.arange(_RESAMPLES)[:, None, None] * len(self._counts)
        cells = np.bincount((rows + blocks)[there], minlength=_RESAMPLES * len(self._counts))
        weights: NDArray[np.float64] = cells.reshape(_RESAMPLES, -1).astype(np.float64)
        return weights


_LEAST_VALUES = 10
_LEAST_LATER = 2
_LEAST_LATER_OF_ONE_RUN = 20


def compare(
    a: Sequence[RunTimes],
    b: Sequence[RunTimes],
    *,
    thresholds: Mapping[str, float],
    seed: int,
    figures: Sequence[str] = FIGURES,
) -> tuple[Ratio, ...]:
    """Compares runs of B with runs of A.

    Each side's figure covers all of its runs together. Its error is estimated from 1,000 resamples: runs
    are drawn with replacement, and then blocks within each run; a block is a twentieth of a run, so that
    bursts stay together (Künsch, "The jackknife and the bootstrap for general stationary observations",
    Annals of Statistics 17, 1989; for two levels, Davison and Hinkley, "Bootstrap Methods and their
    Application", 1997, 3.8). The interval is that of Student's t distribution around the logarithm of the
    ratio, with degrees of freedom that follow from the number of runs. The error is multiplied by
    √(runs / (runs - 1)) (Hesterberg, "What Teachers Should Know About the Bootstrap", 2015): otherwise, two
    or three runs vary too little, and about one in six comparisons of equal systems reports a regression.

    With one run per side, the interval covers only the variation within that run, not that between runs. Give
    several runs, or a threshold from ``noise``.

    Args:
        a: The runs of A, at least one.
        b: The runs of B, at least one.
        thresholds: The fraction by which each figure may differ, by its name; 0.05 is 5 %.
        seed: The seed of the resampling.
        figures: Percentiles, and ``throughput``.

    Returns:
        One ratio per figure, in the order of ``figures``.

    Raises:
        ValueError: A side has no run, or a figure has no threshold.
    """
    if not a or not b:
        raise ValueError("each side needs at least one run")
    random = random_state(seed)
    sides = [PooledRuns(runs, figures) for runs in (a, b)]
    of_a, of_b = (side.figures() for side in sides)
    with np.errstate(divide="ignore", invalid="ignore"):
        values = of_b / of_a
        resampled = sides[1].resampled(random) / sides[0].resampled(random)
    fewest = min(side.values for side in sides)
    spread = _t_factor([len(a), len(b)])
    found = []
    for place, name in enumerate(figures):
        if name not in thresholds:
            raise ValueError(f"no threshold for {name}")
        value = float(values[place])
        known = fewest >= least_values(name, min(side.runs for side in sides))
        interval = _interval(value, resampled[:, place], spread) if known else (None, None)
        pair = float(of_a[place]), float(of_b[place])
        found.append(Ratio.judged(name, pair, value, interval, thresholds[name]))
    return tuple(found)


def noise(runs: Sequence[RunTimes], figures: Sequence[str] = FIGURES) -> dict[str, float]:
    """Returns the largest relative difference of each figure between two runs of the same system.

    Args:
        runs: At least two, of the same system.
        figures: Percentiles, and ``throughput``.

    Returns:
        Thresholds by figure: 0.05 if the highest is 1.05 times the lowest; infinite if a ratio is not finite.

    Raises:
        ValueError: There are fewer than two runs.
    """
    if len(runs) < 2:
        raise ValueError(f"noise needs at least two runs, but has {len(runs)}")
    rows = [PooledRuns([run], figures).figures() for run in runs]
    with np.errstate(divide="ignore", invalid="ignore"):
        spreads = [np.abs(np.log(one / other)) for one, other in combinations(rows, 2)]
    most = np.exp(np.max(spreads, axis=0)) - 1
    return dict(zip(figures, np.where(np.isnan(most), math.inf, most).tolist(), strict=True))


def least_values(figure: str, runs: int) -> int:
    """Returns how many values a side requires for an interval; ``runs`` is the number on the side with fewer.

    A single run needs more values, because its blocks differ too little if few of its queries are late.
    """
    percent = percent_of(figure)
    if percent is None:
        return _LEAST_VALUES
    least_later = _LEAST_LATER if runs > 1 else _LEAST_LATER_OF_ONE_RUN
    return max(_LEAST_VALUES, round(least_later / (1 - percent / 100)))


def _t_factor(runs: Sequence[int]) -> float:
    """Returns the half-width of an interval, in standard errors of the resampled figures."""
    several = [count for count in runs if count > 1]
    if not several:
        return t_quantile_95(BLOCKS - 1)
    fewest = min(several)
    return t_quantile_95(sum(count - 1 for count in several)) * math.sqrt(fewest / (fewest - 1))


def _interval(
    value: float, resampled: NDArray[np.float64], factor: float
) -> tuple[float | None, float | None]:
    """Returns the 95 % interval of a ratio; the ends may be infinite, and are None if they are unknown."""
    usable = np.isfinite(resampled) & (resampled > 0)
    if usable.all() and math.isfinite(value) and value > 0:
        reach = factor * float(np.log(resampled).std(ddof=1))
        return value * math.exp(-reach), value * math.exp(reach)
    if np.isnan(resampled).any() or math.isnan(value):
        return None, None
    # some resamples fall on queries without an answer: their percentiles are the best estimate
    low, high = np.quantile(resampled, [0.025, 0.975], method="nearest")
    return float(low), float(high)
