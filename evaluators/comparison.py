"""Whether one set of runs is slower than another: ratios with intervals, and a verdict on each."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from itertools import combinations

import numpy as np
from numpy.typing import NDArray

from evaluators.loadgen.intervals import percentile_intervals, t_quantile_95
from evaluators.loadgen.queries import NEVER_NS, Outcome, Queries

PERCENTS = (50.0, 90.0, 99.0)
"""The percentiles of latency that are compared."""
_RESAMPLES = 1000
_BLOCKS = 20
_SLICES = 4096
_ROUNDING = 1e-6
_LEAST_VALUES = 10
_LEAST_LATER = 2
_LEAST_LATER_OF_ONE_RUN = 20
_NS_PER_S = 1_000_000_000


class Verdict(Enum):
    """What a ratio says of B beside A, given by how much they may differ."""

    BETTER = "better"
    """The whole interval is on the good side of the threshold."""
    SAME = "same"
    """The whole interval is within the threshold."""
    WORSE = "worse"
    """The whole interval is on the bad side of the threshold."""
    UNDECIDED = "undecided"
    """The interval reaches over the threshold, or there is none."""


@dataclass(frozen=True, slots=True, eq=False)
class RunTimes:
    """The raw times of one run: of batches one after the other, or of queries under load.

    Attributes:
        latency_ns: int64, n values in the order in which they began; ``NEVER_NS`` without a right answer.
        elapsed_ns: int64, n values: how far each took the run; their sum is the run's duration. Of batches
            one after the other it is their latency, of queries under load the time to the next one.
        inputs: int64, n values: the right answers in each.

    Raises:
        ValueError: There is no value, or the columns differ in length.
    """

    latency_ns: NDArray[np.int64]
    elapsed_ns: NDArray[np.int64]
    inputs: NDArray[np.int64]

    def __post_init__(self) -> None:
        if not len(self.latency_ns) == len(self.elapsed_ns) == len(self.inputs) > 0:
            raise ValueError("a run needs at least one value, and columns of one length")

    @classmethod
    def of_batches(cls, latency_ns: NDArray[np.int64], sizes: NDArray[np.int64]) -> RunTimes:
        """Returns the times of batches that ran one after the other: at least one.

        Args:
            latency_ns: int64, n.
            sizes: int64, n; the inputs in each.
        """
        return cls(latency_ns, latency_ns, sizes)

    @classmethod
    def of_queries(cls, queries: Queries) -> RunTimes:
        """Returns the times of queries under load, from the first arrival to the last answer."""
        sent = queries.chosen(queries.outcome != Outcome.UNSENT)
        end_ns = max(int(sent.done_ns.max(initial=0)), int(sent.scheduled_ns.max(initial=0)))
        return cls(
            sent.latency_ns,
            np.diff(sent.scheduled_ns, append=end_ns),
            (sent.outcome == Outcome.ANSWERED).astype(np.int64),
        )


@dataclass(frozen=True, slots=True)
class Ratio:
    """One figure of B over that of A.

    Attributes:
        figure: ``p50``, ``p90``, ``p99`` (of latency) or ``throughput``.
        value: The ratio; infinite where only B's percentile falls on queries without a right answer, and not
            a number where both do or nothing was answered.
        low: The lower end of its 95 % interval; None where there are too few values for one.
        high: The upper end, likewise.
        threshold: The share by which the figure may differ.
        verdict: What follows.
    """

    figure: str
    value: float
    low: float | None
    high: float | None
    threshold: float
    verdict: Verdict


FIGURES = (*(f"p{percent:g}" for percent in PERCENTS), "throughput")
"""The names of what is compared, in order."""


def compare(
    a: Sequence[RunTimes], b: Sequence[RunTimes], *, thresholds: dict[str, float], seed: int
) -> tuple[Ratio, ...]:
    """Compares runs of B with runs of A.

    Each side's figure is over all of its runs together. Its error is found by resampling, 1,000 times: first
    runs, with replacement, then blocks within each, where a block is a twentieth of a run, so that what is
    slow together stays together (Künsch, "The jackknife and the bootstrap for general stationary
    observations", Annals of Statistics 17, 1989; in two levels by Davison and Hinkley, "Bootstrap Methods and
    their Application", 1997, 3.8). The interval is that of Student's t distribution around the logarithm of
    the ratio, with the number of runs for its degrees of freedom, and the error of few runs made larger by
    √(runs / (runs - 1)) (Hesterberg, "What Teachers Should Know About the Bootstrap", 2015): two or three
    runs resampled alone would vary too little, and every sixth comparison of like with like be a regression.

    One run a side tells nothing of how runs differ; its interval is that of the run. Give several, or a
    threshold from ``noise``.

    Args:
        a: At least one.
        b: At least one.
        thresholds: The share by which each figure may differ, by its name; 0.05 is 5 %.
        seed: Of the resampling.

    Returns:
        One ratio a figure, in the order of ``FIGURES``.

    Raises:
        ValueError: A side has no run, or a figure no threshold.
    """
    if not a or not b:
        raise ValueError("each side needs at least one run")
    random = np.random.RandomState(np.random.MT19937(np.random.SeedSequence(seed)))
    sides = [_Side(runs) for runs in (a, b)]
    with np.errstate(divide="ignore", invalid="ignore"):
        values = sides[1].figures() / sides[0].figures()
        resampled = sides[1].resampled(random) / sides[0].resampled(random)
    fewest = min(side.values for side in sides)
    spread = _t_factor([len(a), len(b)])
    found = []
    for name, value, column in zip(FIGURES, values.tolist(), resampled.T, strict=True):
        if name not in thresholds:
            raise ValueError(f"no threshold for {name}")
        known = fewest >= _least_values(name, sides)
        low, high = _interval(value, column, spread) if known else (None, None)
        verdict = _verdict(name, low, high, thresholds[name])
        found.append(Ratio(name, value, low, high, thresholds[name], verdict))
    return tuple(found)


def noise(runs: Sequence[RunTimes]) -> dict[str, float]:
    """Returns by how much the figures of like runs differ at the most, between any two of them.

    Args:
        runs: At least two, of the same system.

    Returns:
        A threshold for each figure: 0.05 where one run had up to 1.05 times that of another. Infinite where
        a figure of a run is.

    Raises:
        ValueError: There are fewer than two.
    """
    if len(runs) < 2:
        raise ValueError(f"noise needs at least two runs, and has {len(runs)}")
    rows = [_Side([run]).figures() for run in runs]
    with np.errstate(divide="ignore", invalid="ignore"):
        spreads = [np.abs(np.log(one / other)) for one, other in combinations(rows, 2)]
    most = np.exp(np.max(spreads, axis=0)) - 1
    return dict(zip(FIGURES, np.where(np.isnan(most), math.inf, most).tolist(), strict=True))


class _Side:
    """The runs of one side: how many values of each block lie in which slice of all values in order."""

    def __init__(self, runs: Sequence[RunTimes]) -> None:
        self.runs = len(runs)
        self._latency_ns = np.concatenate([run.latency_ns for run in runs])
        self.values = len(self._latency_ns)
        self._blocks: list[tuple[int, int]] = []
        blocks, first = [], 0
        for run in runs:
            count = min(_BLOCKS, len(run.latency_ns))
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
        """float64, one value a figure: percentiles in nanoseconds, then inputs per second."""
        percentiles = [found.value_ns for found in percentile_intervals(self._latency_ns, PERCENTS)]
        with np.errstate(divide="ignore", invalid="ignore"):
            return np.asarray([*percentiles, self._inputs.sum() / self._elapsed_s.sum()])

    def resampled(self, random: np.random.RandomState) -> NDArray[np.float64]:
        """float64, resamples × figures."""
        weights = self._weights(random)
        up_to = np.cumsum(weights @ self._counts, axis=1)
        columns = []
        for percent in PERCENTS:
            wanted = percent / 100 * up_to[:, -1:] - _ROUNDING
            columns.append(self._slices_ns[np.argmax(up_to >= wanted, axis=1)])
        with np.errstate(divide="ignore", invalid="ignore"):
            columns.append((weights @ self._inputs) / (weights @ self._elapsed_s))
        return np.stack(columns, axis=1)

    def _weights(self, random: np.random.RandomState) -> NDArray[np.float64]:
        """How often each resample holds each block: float64, resamples × blocks."""
        firsts, counts = np.asarray(self._blocks).T
        runs = random.randint(0, self.runs, (_RESAMPLES, self.runs))
        drawn = random.random_sample((_RESAMPLES, self.runs, _BLOCKS))
        count = counts[runs][:, :, None]
        blocks = firsts[runs][:, :, None] + (drawn * count).astype(np.int64)
        there = np.broadcast_to(np.arange(_BLOCKS) < count, blocks.shape)
        rows = np.arange(_RESAMPLES)[:, None, None] * len(self._counts)
        cells = np.bincount((rows + blocks)[there], minlength=_RESAMPLES * len(self._counts))
        weights: NDArray[np.float64] = cells.reshape(_RESAMPLES, -1).astype(np.float64)
        return weights


def _least_values(figure: str, sides: Sequence[_Side]) -> int:
    """How many values a side needs for an interval: blocks of one run with few late queries are too alike."""
    if figure == "throughput":
        return _LEAST_VALUES
    least_later = _LEAST_LATER if min(side.runs for side in sides) > 1 else _LEAST_LATER_OF_ONE_RUN
    return max(_LEAST_VALUES, round(least_later / (1 - float(figure[1:]) / 100)))


def _t_factor(runs: Sequence[int]) -> float:
    """By how much an interval reaches to each side, in standard errors of the resampled."""
    several = [count for count in runs if count > 1]
    if not several:
        return t_quantile_95(_BLOCKS - 1)
    fewest = min(several)
    return t_quantile_95(sum(count - 1 for count in several)) * math.sqrt(fewest / (fewest - 1))


def _interval(
    value: float, resampled: NDArray[np.float64], factor: float
) -> tuple[float | None, float | None]:
    """The 95 % interval of a ratio; the ends may be infinite, and are None where they cannot be told."""
    usable = np.isfinite(resampled) & (resampled > 0)
    if usable.all() and math.isfinite(value) and value > 0:
        reach = factor * float(np.log(resampled).std(ddof=1))
        return value * math.exp(-reach), value * math.exp(reach)
    if np.isnan(resampled).any() or math.isnan(value):
        return None, None
    # some resamples fall on queries without an answer: their own percentiles are all there is
    low, high = np.quantile(resampled, [0.025, 0.975], method="nearest")
    return float(low), float(high)


def _verdict(figure: str, low: float | None, high: float | None, threshold: float) -> Verdict:
    if low is None or high is None:
        return Verdict.UNDECIDED
    above, below = Verdict.WORSE, Verdict.BETTER
    if figure == "throughput":
        above, below = below, above
    if low > 1 + threshold:
        return above
    if high < 1 / (1 + threshold):
        return below
    within = 1 / (1 + threshold) <= low and high <= 1 + threshold
    return Verdict.SAME if within else Verdict.UNDECIDED
