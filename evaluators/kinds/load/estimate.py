"""The estimate, from the probes so far, of the highest rate that keeps the bound.

If the single-server model fits, it gives the estimate. Otherwise the fraction of late queries as a function
of the rate is estimated without a model of the system.

Late queries are bursty, so their number varies more than it would by chance. They are counted in slices of
time that are longer than most bursts, and a logistic curve of the share against ln(rate) is fitted to the
counts (quasi-binomial regression by iteratively reweighted least squares, McCullagh and Nelder 1989). The
rate is where the curve crosses the allowed share; the curve's error is carried over to the rate by the delta
method. It is the largest of three estimates: a common overdispersion of all slices; the sandwich, which lets
slices at high rates vary more; and the sandwich over whole probes (Liang and Zeger, "Longitudinal data
analysis using generalized linear models", Biometrika 73, 1986), whose slices share a connection, a state of
the machine, and the queue that one leaves to the next.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from inferometer.evaluators.kinds.load.measurement import NEAR, Method, from_sending, judged_queries
from inferometer.evaluators.kinds.load.single_server import (
    ServedQueries,
    SingleServer,
    SolvedRate,
    served_queries,
)
from inferometer.evaluators.load.arrivals import ArrivalProcess
from inferometer.evaluators.load.queries import LoadRun, Outcome
from inferometer.evaluators.statistics import t_quantile_95

_MOST_SLICES = 8
_SLICE_BOUNDS = 10
_LEAST_SLOPE = 1.0
# what is held of the slope where the probes hardly tell: queues that serve one by one have 5…20 at p99
_USUAL_SLOPE = 12.0
_USUAL_SLOPE_SD = 12.0
_ROUNDS = 60
_PARAMETERS = 2
_CLOSE = 1e-9
_FARTHEST_LOG = math.log(1.5)


@dataclass(frozen=True, slots=True)
class Counts:
    """The counts of late queries in slices of time.

    Attributes:
        rate_qps: float64, one per slice; the requested rate.
        queries: float64; the number of queries due in each slice, above 0.
        late: float64; the number of them that were later than the bound, or had no correct answer.
        probe: int64; the number of each slice's probe. None if each slice is a probe of its own.
    """

    rate_qps: NDArray[np.float64]
    queries: NDArray[np.float64]
    late: NDArray[np.float64]
    probe: NDArray[np.int64] | None = None

    @classmethod
    def of(cls, probe: LoadRun, bound_ns: int) -> Counts:
        """Counts a probe's judged queries in at most eight equal slices, each of at least ten bounds."""
        judged = judged_queries(probe, bound_ns)
        if not len(judged):
            return cls(np.empty(0), np.empty(0), np.empty(0))
        first, last = int(judged.scheduled_ns.min()), int(judged.scheduled_ns.max()) + 1
        slices = min(max((last - first) // (_SLICE_BOUNDS * bound_ns), 1), _MOST_SLICES)
        place = (judged.scheduled_ns - first) * slices // (last - first)
        queries = np.bincount(place, minlength=slices).astype(np.float64)
        late = np.bincount(place, judged.latency_ns > bound_ns, slices).astype(np.float64)
        some = queries > 0
        return cls(np.full(int(some.sum()), probe.rate_qps), queries[some], late[some])

    @classmethod
    def joined(cls, several: Sequence[Counts]) -> Counts:
        """Returns the slices of several counts as one, which is empty if there are none."""
        none = np.empty(0)
        rate_qps, queries, late = (
            np.concatenate([none, *(getattr(each, name) for each in several)])
            for name in ("rate_qps", "queries", "late")
        )
        probe = np.repeat(np.arange(len(several)), [len(c.late) for c in several])
        return cls(rate_qps, queries, late, probe)

    def without_bursts(self) -> Iterator[Counts]:
        """Yields the counts without one probe, for each probe that has late queries."""
        probe = np.arange(len(self.late)) if self.probe is None else self.probe
        for burst in np.unique(probe[self.late > 0]).tolist():
            kept = probe != burst
            yield Counts(self.rate_qps[kept], self.queries[kept], self.late[kept], probe[kept])


def late_fraction_root(counts: Counts, late_fraction: float) -> Estimate | None:
    """Fits the curve through counts near a rate, and returns the rate at which it crosses a share in (0, 1).

    Returns None if the counts do not determine it: too few slices, none or all of the queries late, or a
    crossing far outside their rates.
    """
    slices = len(counts.queries)
    if slices < 3 or not 0 < counts.late.sum() < counts.queries.sum():
        return None
    centre = math.exp(float(np.average(np.log(counts.rate_qps), weights=counts.queries)))
    x = np.column_stack([np.ones(slices), np.log(counts.rate_qps / centre)])
    beta, curvature = _fitted(x, counts)
    share = _shares(x @ beta)
    missing = counts.late - counts.queries * share
    intercept, slope = float(beta[0]), float(beta[1])
    wanted = math.log(late_fraction / (1 - late_fraction))
    at = (wanted - intercept) / slope
    if not abs(at) <= _FARTHEST_LOG + float(np.ptp(x[:, 1])) / 2:
        return None
    gradient = _solved(curvature, -1 / slope, -at / slope)
    influence = missing * (x @ gradient)
    overdispersed = float(gradient @ curvature @ gradient) * _spread(
        missing, counts.queries * share * (1 - share)
    )
    halves = [t_quantile_95(slices - 2) * math.sqrt(overdispersed), _sandwich_half(influence)]
    if counts.probe is not None and len(sums := _sums(influence, counts.probe)) > _PARAMETERS:
        halves.append(_sandwich_half(sums))
    rate_qps, half = centre * math.exp(at), max(halves)
    ends = rate_qps * math.exp(-half), rate_qps * math.exp(min(half, 50.0))
    return Estimate(rate_qps, *ends, Method.LATE_FRACTION, slope=slope)


def _sandwich_half(influence: NDArray[np.float64]) -> float:
    """Returns half of a 95 % interval, from the influence of each of n independent parts on the result."""
    degrees = len(influence) - _PARAMETERS
    return t_quantile_95(degrees) * math.sqrt(float((influence**2).sum()) * len(influence) / degrees)


def _sums(values: NDArray[np.float64], groups: NDArray[np.int64]) -> NDArray[np.float64]:
    """Returns the sum of the values in each non-empty group."""
    return np.bincount(groups, values)[np.bincount(groups) > 0].astype(np.float64)


def _fitted(x: NDArray[np.float64], counts: Counts) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Returns the coefficients, with a slope of at least ``_LEAST_SLOPE``, and their curvature (2 × 2)."""
    overall = float(counts.late.sum() / counts.queries.sum())
    beta = np.array([math.log(overall / (1 - overall)), _USUAL_SLOPE])
    expected = counts.queries * overall
    spread = _spread(counts.late - expected, expected * (1 - overall))
    for _ in range(_ROUNDS):
        share = _shares(x @ beta)
        missing, weight = counts.late - counts.queries * share, counts.queries * share * (1 - share)
        spread = min(spread, _spread(missing, weight))
        prior = spread / _USUAL_SLOPE_SD**2
        curvature = x.T * weight @ x
        curvature[1, 1] += prior
        gradient = x.T @ missing
        gradient[1] -= prior * (beta[1] - _USUAL_SLOPE)
        step = _solved(curvature, *gradient.tolist())
        step *= min(1.0, 2.0 / max(abs(step[0]), abs(step[1]) / 5, 1e-12))
        beta = beta + step
        beta[1] = max(beta[1], _LEAST_SLOPE)
        if max(abs(step[0]), abs(step[1])) < _CLOSE:
            break
    return beta, curvature


def _solved(matrix: NDArray[np.float64], first: float, second: float) -> NDArray[np.float64]:
    """Returns the solution of two linear equations, which takes NumPy's solver ten times as long."""
    (a, b), (c, d) = matrix.tolist()
    det = a * d - b * c
    return np.array([(d * first - b * second) / det, (a * second - c * first) / det])


def _shares(logits: NDArray[np.float64]) -> NDArray[np.float64]:
    shares: NDArray[np.float64] = 1 / (1 + np.exp(-logits.clip(-30, 30)))
    return shares


def _spread(missing: NDArray[np.float64], variances: NDArray[np.float64]) -> float:
    """Returns Pearson's overdispersion: the counts' variance relative to that of single queries."""
    squares = missing * missing / np.maximum(variances, 1e-9)
    return max(1.0, float(squares.sum()) / (len(squares) - 2))


def monotone_shares(queries: NDArray[np.float64], late: NDArray[np.float64]) -> NDArray[np.float64]:
    """Returns late fractions that never decrease with the rate; rates at which they would are pooled.

    This is isotonic regression by pooling adjacent violators (Ayer et al. 1955). Both arguments are float64,
    n, by ascending rate: the numbers of queries, above 0, and of late ones.
    """
    pools: list[tuple[float, float, int]] = []
    for total, bad in zip(queries.tolist(), late.tolist(), strict=True):
        pool = (total, bad, 1)
        while pools and pools[-1][1] * pool[0] > pool[1] * pools[-1][0]:
            before = pools.pop()
            pool = (before[0] + pool[0], before[1] + pool[1], before[2] + pool[2])
        pools.append(pool)
    return np.concatenate([np.full(count, bad / total) for total, bad, count in pools])


_NEARER = 1.1
_ENOUGH_NEARER = 4
_ENOUGH_NEAR_QUERIES = 1000
_DISAGREEMENT_ERRORS = 3.0
_FAILED_SHARE = 0.1
_LEAST_UNQUEUED = 10
_SURE_LATE = 10
"""Queries of which this many may be late cannot keep the bound by chance at far too high a rate."""
CERTAIN = 0.001
"""The probability below which an event is not attributed to chance."""


class Evidence:
    """A valid probe, and the figures that a search derives from it.

    ``counts`` measures latency from when queries were due, ``from_sending`` from when they were sent. A
    ``confirming`` probe was a long one, near the answer. The queries of an ``alone`` probe were spaced out,
    which says nothing about lateness at a rate.
    """

    def __init__(self, probe: LoadRun, bound_ns: int, confirming: bool, alone: bool = False) -> None:
        self.rate_qps = probe.rate_qps
        self.confirming = confirming
        self.alone = alone
        self.counts = Counts.joined([]) if alone else Counts.of(probe, bound_ns)
        self.from_sending = self.counts if alone else Counts.of(from_sending(probe), bound_ns)
        self.queries = float(self.counts.queries.sum())
        self.late = float(self.counts.late.sum())
        self.served: ServedQueries = served_queries(probe.queries)
        outcome = probe.queries.outcome
        self.sent = int(np.count_nonzero(outcome != Outcome.UNSENT))
        unanswered = [Outcome.FAILED, Outcome.TIMED_OUT, *([] if probe.stopped else [Outcome.WAITING])]
        self.unanswered = int(np.isin(outcome, unanswered).sum())
        unqueued = probe.queries.chosen(probe.queries.unqueued & (outcome != Outcome.UNSENT))
        unqueued = unqueued.chosen(unqueued.outcome != Outcome.WAITING) if probe.stopped else unqueued
        self.unqueued = len(unqueued)
        # from when they were sent: the harness's lag is not the system's
        served_ns = unqueued.done_ns - unqueued.sent_ns
        unanswered_alone = unqueued.outcome != Outcome.ANSWERED
        self.unqueued_late = int(np.count_nonzero((served_ns > bound_ns) | unanswered_alone))
        self.unqueued_s = float(served_ns[~unanswered_alone].max(initial=0)) / 1e9

    def near(self, rate_qps: float, factor: float = NEAR) -> bool:
        """Returns whether the probe's rate is within a factor of another rate."""
        return rate_qps / factor <= self.rate_qps <= rate_qps * factor


class Bracket(NamedTuple):
    """The highest rate that kept the bound and the lowest that did not, based on monotone late fractions."""

    kept_qps: float | None
    broken_qps: float | None

    @classmethod
    def of(cls, seen: Sequence[Evidence], late_fraction: float) -> Bracket:
        """Returns the bracket derived from several probes."""
        judged = [e for e in seen if e.queries]
        rates = np.unique([e.rate_qps for e in judged])
        if not len(rates):
            return cls(None, None)
        place = np.searchsorted(rates, [e.rate_qps for e in judged])
        queries = np.bincount(place, [e.queries for e in judged]).astype(np.float64)
        late = np.bincount(place, [e.late for e in judged]).astype(np.float64)
        kept = monotone_shares(queries, late) <= late_fraction
        return cls(
            kept_qps=float(rates[kept][-1]) if kept.any() else None,
            broken_qps=float(rates[~kept][0]) if not kept.all() else None,
        )


@dataclass(frozen=True, slots=True)
class Estimate:
    """An estimate of the highest rate that keeps the bound.

    Attributes:
        rate_qps: The rate.
        low_qps: The lower end of its 95 % interval.
        high_qps: The upper end.
        method: The basis of the estimate.
        between_qps: Half of the 95 % interval for the rate of one more probe, due to differences between
            probes beyond those of their queries; 0 if the interval already covers whole probes.
        slope: The slope of the log odds of a late query against the log of the rate; 0 if not needed.
        reason: Why this basis was used, in one line.
    """

    rate_qps: float
    low_qps: float
    high_qps: float
    method: Method
    between_qps: float = 0.0
    slope: float = 0.0
    reason: str = ""

    @property
    def tolerance(self) -> float:
        """Half the width of the interval, as a fraction of the rate."""
        return (self.high_qps - self.low_qps) / 2 / self.rate_qps


@dataclass(frozen=True, slots=True)
class Estimator:
    """Estimates the rate from probes; ``seed`` is the seed for simulating a single server."""

    process: ArrivalProcess
    bound_s: float
    late_fraction: float
    seed: int

    def estimate(self, seen: Sequence[Evidence], near_qps: float | None, simulated: int) -> Estimate | None:
        """Returns the estimate from the probes; None if they do not yet determine a rate.

        Args:
            seen: The valid probes so far.
            near_qps: The previous estimate.
            simulated: How many queries are simulated.
        """
        solved = self._single_server(seen, near_qps, simulated)
        if solved is None:
            reason = "the system does not behave like one server that serves query after query"
            return by_late_fraction(seen, self.late_fraction, reason)
        sure = [e for e in seen if e.queries * self.late_fraction >= _SURE_LATE]
        kept_qps = Bracket.of(sure, self.late_fraction).kept_qps
        below_kept = kept_qps is not None and solved.rate_qps * NEAR < kept_qps
        if below_kept or self._refuted(solved, seen):
            reason = (
                f"the single-server model says {solved.rate_qps:.4g} queries/s, "
                "which the late queries do not bear out"
            )
            found = by_late_fraction(seen, self.late_fraction, reason)
            if below_kept or found:
                return found
        ends = solved.low_qps, solved.high_qps
        return Estimate(solved.rate_qps, *ends, Method.SINGLE_SERVER, between_qps=solved.between_qps)

    def _single_server(
        self, seen: Sequence[Evidence], near_qps: float | None, simulated: int
    ) -> SolvedRate | None:
        chosen = [e for e in seen if near_qps is not None and e.near(near_qps)]
        if sum(len(e.served) for e in chosen) < _ENOUGH_NEAR_QUERIES:
            chosen = [e for e in seen if len(e.served)]
        if not chosen:
            return None
        unanswered = sum(e.unanswered for e in chosen)
        if unanswered > _FAILED_SHARE * self.late_fraction * sum(e.sent for e in chosen):
            return None
        model = SingleServer.fitted([e.served for e in chosen], self.process, self.seed, simulated)
        return model.solve(self.bound_s, self.late_fraction, near_qps) if model else None

    def _refuted(self, solved: SolvedRate, seen: Sequence[Evidence]) -> bool:
        """Returns whether the late queries near the rate differ from the model by more than chance.

        The counts' square roots are compared, because their variance hardly depends on the mean.
        """
        confirming = [e for e in seen if e.confirming and e.near(solved.rate_qps, _NEARER)]
        if len(confirming) < _ENOUGH_NEARER:
            return False
        queries = sum(e.queries for e in confirming)
        expected = sum(
            e.queries * self.late_fraction * (e.rate_qps / solved.rate_qps) ** solved.slope
            for e in confirming
        )
        counted = (sum(e.late for e in confirming), sum(float(e.from_sending.late.sum()) for e in confirming))
        errors = math.hypot(
            solved.spread / math.sqrt(queries), solved.error_qps / solved.rate_qps * solved.slope
        )
        difference = min(abs(math.sqrt(late / expected) - 1) for late in counted)
        return 2 * difference > _DISAGREEMENT_ERRORS * errors


def by_late_fraction(seen: Sequence[Evidence], late_fraction: float, reason: str = "") -> Estimate | None:
    """Returns the estimate from the curve of late fractions; None if the probes do not determine a rate yet.

    Its interval covers those of the curves through both counts and without any one probe that has late
    queries, the highest rate that kept the bound, and the lowest that did not.
    """
    kept, broken = Bracket.of(seen, late_fraction)
    if kept is None or broken is None or broken > kept * NEAR:
        return None
    centre_qps = math.sqrt(kept * broken)
    nearer = [e for e in seen if e.near(centre_qps, _NEARER)]
    enough = sum(e.confirming for e in nearer) >= _ENOUGH_NEARER
    chosen = nearer if enough else [e for e in seen if e.near(centre_qps)]
    counts = Counts.joined([e.counts for e in chosen])
    as_due = late_fraction_root(counts, late_fraction)
    if as_due is None:
        return None
    # late queries come in rare bursts: no answer may rest on the one probe that had one
    sets = (*counts.without_bursts(), Counts.joined([e.from_sending for e in chosen]))
    roots = [late_fraction_root(each, late_fraction) for each in sets]
    ends = [(broken / NEAR, kept * NEAR) if root is None else (root.low_qps, root.high_qps) for root in roots]
    return replace(
        as_due,
        low_qps=min(as_due.low_qps, kept, *(low for low, _ in ends)),
        high_qps=max(as_due.high_qps, broken, *(high for _, high in ends)),
        reason=reason,
    )


def unqueued_late(seen: Sequence[Evidence], late_fraction: float) -> str | None:
    """Returns an explanation if queries are late too often even without a queue; None otherwise.

    Only probes with at least ten such queries are used, and the number of late ones among these must be so
    high that the allowed fraction would explain it at most once in a thousand times.
    """
    chosen = [e for e in seen if e.unqueued >= _LEAST_UNQUEUED]
    queries, late = sum(e.unqueued for e in chosen), sum(e.unqueued_late for e in chosen)
    if (
        not chosen
        or late <= late_fraction * queries
        or _binomial_tail(late, queries, late_fraction) > CERTAIN
    ):
        return None
    return f"{late} of {queries} queries with no queue before them were late"


def surely_kept_qps(seen: Sequence[Evidence], late_fraction: float) -> float:
    """Returns the highest rate of a probe at which enough queries kept the bound; 0 if there is none.

    Enough are so many, at this rate and above together, that ten of them may be late.
    """
    for rate_qps in sorted({e.rate_qps for e in seen}, reverse=True):
        above = [e for e in seen if e.rate_qps >= rate_qps]
        allowed = late_fraction * sum(e.queries for e in above)
        if allowed >= _SURE_LATE and sum(e.late for e in above) <= allowed:
            return rate_qps
    return 0.0


def _binomial_tail(least: int, count: int, share: float) -> float:
    """Returns the probability that at least ``least`` of ``count`` events of probability ``share`` occur."""
    log_odds, log_all = math.log(share / (1 - share)), math.lgamma(count + 1) + count * math.log1p(-share)
    logs = (
        log_all + k * log_odds - math.lgamma(k + 1) - math.lgamma(count - k + 1)
        for k in range(max(least, 0), count + 1)
    )
    return math.fsum(map(math.exp, logs))
