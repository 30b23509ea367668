"""What the probes of a search say so far about the highest rate that keeps the bound."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from evaluators.loadgen.arrivals import ArrivalProcess
from evaluators.loadgen.intervals import t_quantile_95
from evaluators.loadgen.late_share import Counts, LateShareRoot, late_share_root, monotone_shares
from evaluators.loadgen.max_qps_answer import Method
from evaluators.loadgen.probe import Probe
from evaluators.loadgen.queries import Outcome
from evaluators.loadgen.single_server import GROUPS, ServiceTimes, SingleServer, SolvedRate, service_times

NEAR = 1.25
"""Probes tell of the answer where their rate is within this factor of it."""
_NEARER = 1.1
_ENOUGH_NEARER = 4
_ENOUGH_NEAR_QUERIES = 1000
_DISAGREEMENT_ERRORS = 3.0
_FAILED_SHARE = 0.1
_LEAST_UNQUEUED = 10
CERTAIN = 0.001
"""A chance below which something is not put down to chance."""


class Evidence:
    """A probe and what a search takes from it.

    Args:
        probe: A valid probe.
        bound_ns: The latency bound.
        confirming: Whether it was a long one, near the answer.
        alone: Whether its queries were spaced out, which says nothing of how many are late at a rate.
    """

    def __init__(self, probe: Probe, bound_ns: int, confirming: bool, alone: bool = False) -> None:
        self.rate_qps = probe.rate_qps
        self.confirming = confirming
        self.alone = alone
        self.counts = Counts.joined([]) if alone else Counts.of(probe, bound_ns)
        self.queries = float(self.counts.queries.sum())
        self.late = float(self.counts.late.sum())
        self.service: ServiceTimes = service_times(probe.queries)
        outcome = probe.queries.outcome
        self.sent = int(np.count_nonzero(outcome != Outcome.UNSENT))
        unanswered = [Outcome.FAILED, Outcome.TIMED_OUT, *([] if probe.stopped else [Outcome.WAITING])]
        self.unanswered = int(np.isin(outcome, unanswered).sum())
        unqueued = probe.queries.chosen(probe.unqueued() & (outcome != Outcome.UNSENT))
        unqueued = unqueued.chosen(unqueued.outcome != Outcome.WAITING) if probe.stopped else unqueued
        self.unqueued = len(unqueued)
        # from when they were sent: what the harness's lag adds is not the system's
        served_ns = unqueued.done_ns - unqueued.sent_ns
        unanswered_alone = unqueued.outcome != Outcome.ANSWERED
        self.unqueued_late = int(np.count_nonzero((served_ns > bound_ns) | unanswered_alone))
        self.unqueued_s = float(served_ns[~unanswered_alone].max(initial=0)) / 1e9

    def near(self, rate_qps: float, factor: float = NEAR) -> bool:
        """Whether its rate is within a factor of another."""
        return rate_qps / factor <= self.rate_qps <= rate_qps * factor


@dataclass(frozen=True, slots=True)
class Bracket:
    """The highest rate that kept the bound and the lowest that did not, by monotone late shares."""

    kept_qps: float | None
    broken_qps: float | None

    @classmethod
    def of(cls, seen: Sequence[Evidence], late_share: float) -> Bracket:
        """Returns the bracket of some probes."""
        judged = [e for e in seen if e.queries]
        rates = np.unique([e.rate_qps for e in judged])
        if not len(rates):
            return cls(None, None)
        place = np.searchsorted(rates, [e.rate_qps for e in judged])
        queries = np.bincount(place, [e.queries for e in judged]).astype(np.float64)
        late = np.bincount(place, [e.late for e in judged]).astype(np.float64)
        kept = monotone_shares(queries, late) <= late_share
        return cls(
            kept_qps=float(rates[kept][-1]) if kept.any() else None,
            broken_qps=float(rates[~kept][0]) if not kept.all() else None,
        )


@dataclass(frozen=True, slots=True)
class Estimate:
    """The highest rate that keeps the bound, as far as it is known.

    Attributes:
        rate_qps: The rate.
        low_qps: The lower end of its 95 % interval.
        high_qps: The upper end.
        method: What it rests on.
        slope: By how much the log of the late share grows with the log of the rate; 0 where it is not needed.
        reason: Why it rests on that, in one line.
    """

    rate_qps: float
    low_qps: float
    high_qps: float
    method: Method
    slope: float = 0.0
    reason: str = ""

    @property
    def tolerance(self) -> float:
        """Half the width of the interval, as a share of the rate."""
        return (self.high_qps - self.low_qps) / 2 / self.rate_qps


class Estimator:
    """Estimates the rate from probes.

    Args:
        process: How queries arrive.
        bound_s: The latency bound.
        late_share: The share of queries that may be later.
        seed: Of the simulation of a single server.
    """

    def __init__(self, process: ArrivalProcess, bound_s: float, late_share: float, seed: int) -> None:
        self._process = process
        self._bound_s = bound_s
        self._late_share = late_share
        self._seed = seed

    def estimate(self, seen: Sequence[Evidence], near_qps: float | None, simulated: int) -> Estimate | None:
        """Returns what the probes say; None where that is not yet a rate.

        Args:
            seen: The valid probes so far.
            near_qps: What was estimated before.
            simulated: How many queries are simulated.
        """
        solved = self._single_server(seen, near_qps, simulated)
        if solved is None:
            root = self._late_share_root(seen)
            reason = "the system does not behave like one server that serves query after query"
            return _of_root(root, reason) if root else None
        if self._refuted(solved, seen) and (root := self._late_share_root(seen)):
            reason = (
                f"the single-server model says {solved.rate_qps:.4g} queries/s, "
                "which the late queries do not bear out"
            )
            return _of_root(root, reason)
        half = t_quantile_95(GROUPS - 1) * solved.error_qps
        low_qps = max(solved.rate_qps - half, 0.0)
        return Estimate(solved.rate_qps, low_qps, solved.rate_qps + half, Method.SINGLE_SERVER)

    def _single_server(
        self, seen: Sequence[Evidence], near_qps: float | None, simulated: int
    ) -> SolvedRate | None:
        chosen = [e for e in seen if near_qps is not None and e.near(near_qps)]
        if sum(len(e.service.service_s) for e in chosen) < _ENOUGH_NEAR_QUERIES:
            chosen = [e for e in seen if len(e.service.service_s)]
        if not chosen:
            return None
        unanswered = sum(e.unanswered for e in chosen)
        if unanswered > _FAILED_SHARE * self._late_share * sum(e.sent for e in chosen):
            return None
        model = SingleServer.fitted([e.service for e in chosen], self._process, self._seed, simulated)
        return model.solve(self._bound_s, self._late_share, near_qps) if model else None

    def _refuted(self, solved: SolvedRate, seen: Sequence[Evidence]) -> bool:
        """Whether more or fewer queries were late near the rate than the model and chance explain.

        The counts are compared as roots, which vary alike whatever is expected.
        """
        confirming = [e for e in seen if e.confirming and e.near(solved.rate_qps, _NEARER)]
        if len(confirming) < _ENOUGH_NEARER:
            return False
        queries = sum(e.queries for e in confirming)
        expected = sum(
            e.queries * self._late_share * (e.rate_qps / solved.rate_qps) ** solved.slope for e in confirming
        )
        late = sum(e.late for e in confirming)
        errors = math.hypot(
            solved.spread / math.sqrt(queries), solved.error_qps / solved.rate_qps * solved.slope
        )
        return 2 * abs(math.sqrt(late / expected) - 1) > _DISAGREEMENT_ERRORS * errors

    def _late_share_root(self, seen: Sequence[Evidence]) -> LateShareRoot | None:
        bracket = Bracket.of(seen, self._late_share)
        kept, broken = bracket.kept_qps, bracket.broken_qps
        if kept is None or broken is None or broken > kept * NEAR:
            return None
        centre_qps = math.sqrt(kept * broken)
        nearer = [e for e in seen if e.near(centre_qps, _NEARER)]
        enough = sum(e.confirming for e in nearer) >= _ENOUGH_NEARER
        chosen = nearer if enough else [e for e in seen if e.near(centre_qps)]
        return late_share_root(Counts.joined([e.counts for e in chosen]), self._late_share)


def _of_root(root: LateShareRoot, reason: str) -> Estimate:
    spread = root.t_quantile * root.log_error
    return Estimate(
        rate_qps=root.rate_qps,
        low_qps=root.rate_qps * math.exp(-spread),
        high_qps=root.rate_qps * math.exp(min(spread, 50.0)),
        method=Method.LATE_SHARE,
        slope=root.slope,
        reason=reason,
    )


def unqueued_late(seen: Sequence[Evidence], late_share: float) -> str | None:
    """Says that queries are too often late even where none is before them; None where that is not so.

    It takes ten such queries in one probe, and in all probes together more late ones than chance would make
    (one in a thousand) if they were as often late as is allowed.
    """
    chosen = [e for e in seen if e.unqueued >= _LEAST_UNQUEUED]
    queries, late = sum(e.unqueued for e in chosen), sum(e.unqueued_late for e in chosen)
    if not chosen or late <= late_share * queries or _binomial_tail(late, queries, late_share) > CERTAIN:
        return None
    return f"{late} of {queries} queries were late that had none before them"


def _binomial_tail(least: int, count: int, share: float) -> float:
    """The chance of at least so many of ``count`` where each comes with a chance of ``share``."""
    if least <= 0:
        return 1.0
    log_odds = math.log(share / (1 - share))
    log_term = count * math.log1p(-share)
    terms = []
    for k in range(count + 1):
        if k >= least:
            terms.append(math.exp(log_term))
        if k < count:
            log_term += math.log((count - k) / (k + 1)) + log_odds
    return math.fsum(terms)
