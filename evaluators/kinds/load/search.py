"""The search for the highest rate at which a percentile of the latencies keeps a bound.

It brackets the rate with short probes that go up and down by a factor of 2, jumps to the single-server
model's estimate as soon as that model fits, and confirms with long probes around the estimate until its
interval is narrow enough or the time is used up. It uses no clocks or threads: the ``LoadSession`` has both.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from inferometer.evaluators.kinds.load.estimate import (
    CERTAIN,
    Bracket,
    Estimate,
    Estimator,
    Evidence,
    unqueued_late,
)
from inferometer.evaluators.kinds.load.measurement import NEAR, Method, RateAnswer, lag_reason
from inferometer.evaluators.kinds.load.request import MaxQpsRequest
from inferometer.evaluators.kinds.load.single_server import SIMULATED_QUERIES
from inferometer.evaluators.load.arrivals import ConstantArrivals, Extent, Schedule
from inferometer.evaluators.load.load_session import LoadSession
from inferometer.evaluators.load.queries import Stop, bound_ns_of
from inferometer.manifests.errors import EvaluationInterrupted

_SIMULATED_MEANWHILE = 40_000
_CONFIRMING = 4
_NEW_FACTOR = 1.5
_CONFIRMING_SHARE = 0.05
_CONFIRMING_BOUNDS = 50
"""The duration of a confirming probe, in bounds: its queue is empty at first and takes time to fill."""
_STEPS = (0.0, -1.0, 1.0)
_STEP = 0.03
_STEP_ODDS = 0.7
_STEPS_ALLOWED = (0.01, 0.08)
_UNLOADED_BOUNDS = 10
_UNLOADED_QUERIES = 20
_ALONE_QUERIES = 12
_ALONE_GAP = 1.25
_ALONE_PROBES = 3
_LEAST_LATE = 20
_LATE_FACTOR = 5
_LATE_OF_CONFIRMING = 0.25
_INVALID_IN_A_ROW = 3
_LIMIT_AFTER_INVALID = 0.75
_NS_PER_S = 1_000_000_000


def search_max_qps(request: MaxQpsRequest, session: LoadSession) -> RateAnswer:
    """Searches for the highest rate that keeps the bound.

    The answer is the same for the same request and the same behaviour of the system. No probe is started if
    its schedule would end after the time budget.

    Raises:
        EvaluationInterrupted: A stop was requested.
    """
    return _Search(request, session).answer()


@dataclass(frozen=True, slots=True)
class _Plan:
    """The next probe: its rate and duration, and whether it is a long one near the answer (``confirming``).

    The queries of an ``alone`` probe are evenly spaced, so that none has to wait for another; how many of
    them are late says nothing about a rate.
    """

    rate_qps: float
    duration_s: float
    confirming: bool = False
    alone: bool = False


class _Search:
    def __init__(self, request: MaxQpsRequest, session: LoadSession) -> None:
        self._request = request
        self._session = session
        self._bound_ns = bound_ns_of(request.latency_bound_ms)
        self._bound_s = request.latency_bound_ms / 1e3
        self._limit_qps = request.max_rate_qps or math.inf
        self._unloaded_qps = 1 / (_UNLOADED_BOUNDS * self._bound_s)
        self._estimator = Estimator(request.process, self._bound_s, request.late_fraction, self._seed(0))
        self._seen: list[Evidence] = []
        self._invalid_in_a_row = 0
        self._estimated_sent = 0

    def answer(self) -> RateAnswer:
        """Runs probes until the answer is known or the time is used up."""
        estimate: Estimate | None = None
        while True:
            if self._much_is_new(estimate):
                estimate = self._estimate(estimate, _SIMULATED_MEANWHILE)
                if found := self._settled(estimate):
                    return found
            plan = self._confirmation(estimate) if estimate else self._step()
            if not self._run(plan):
                return self._final(self._estimate(estimate, SIMULATED_QUERIES), "the time budget was used up")

    def _estimate(self, before: Estimate | None, simulated: int) -> Estimate | None:
        return self._estimator.estimate(self._seen, before.rate_qps if before else None, simulated)

    def _much_is_new(self, estimate: Estimate | None) -> bool:
        """Returns whether enough new queries were sent since the last estimate to change it."""
        sent = sum(e.sent for e in self._seen)
        if estimate and estimate.method is Method.SINGLE_SERVER and sent < _NEW_FACTOR * self._estimated_sent:
            return False
        self._estimated_sent = sent
        return True

    def _settled(self, estimate: Estimate | None) -> RateAnswer | None:
        bracket, tolerance = self._bracket(), self._request.tolerance
        if bracket.kept_qps is None and (late := unqueued_late(self._seen, self._request.late_fraction)):
            return RateAnswer(None, None, None, Method.NONE.value, late)
        at_limit = any(e.confirming and e.rate_qps >= self._limit_qps for e in self._seen)
        kept_there = (bracket.broken_qps or math.inf) > self._limit_qps
        if at_limit and kept_there and (not estimate or estimate.rate_qps >= self._limit_qps):
            return self._final(self._estimate(estimate, SIMULATED_QUERIES), "")
        if not estimate or self._confirmed(estimate) < _CONFIRMING:
            return None
        if estimate.method is Method.SINGLE_SERVER:
            # as much narrower as the interval gets at best, were all of its width from the simulation
            tolerance *= math.sqrt(SIMULATED_QUERIES / _SIMULATED_MEANWHILE)
        if estimate.tolerance > tolerance:
            return None
        final = self._estimate(estimate, SIMULATED_QUERIES)
        return self._final(final, "") if final and final.tolerance <= self._request.tolerance else None

    def _confirmed(self, estimate: Estimate) -> int:
        return sum(e.confirming and e.near(estimate.rate_qps) for e in self._seen)

    def _bracket(self) -> Bracket:
        return Bracket.of(self._seen, self._request.late_fraction)

    def _step(self) -> _Plan:
        """Returns the next probe if there is no estimate: one at a higher or a lower rate."""
        kept, broken = self._bracket()
        if not kept and broken:
            return self._step_down(broken)
        if kept:
            rate_qps = math.sqrt(kept * broken) if broken else 2 * kept
            confirming = kept >= self._limit_qps or (broken or math.inf) <= kept * NEAR
        else:
            rate_qps, confirming = self._request.rate_qps, False
        rate_qps = min(rate_qps, self._limit_qps)
        duration_s = self._confirming_s(rate_qps) if confirming else self._request.least_duration_s
        return _Plan(rate_qps, duration_s, confirming)

    def _step_down(self, broken_qps: float) -> _Plan:
        """Plans spaced-out queries if even queries without a queue were late, or else halves the rate.

        If queries rarely queue and are late for other reasons, a lower rate does not help: longer and longer
        probes follow.
        """
        if alone := self._alone():
            return alone
        duration_s = self._request.least_duration_s
        if broken_qps > self._unloaded_qps:
            return _Plan(max(broken_qps / 2, self._unloaded_qps), duration_s)
        lowest = [e for e in self._seen if e.rate_qps == broken_qps and e.queries]
        if 2 * sum(e.unqueued_late for e in lowest) < sum(e.late for e in lowest):
            return _Plan(broken_qps / 2, max(duration_s, 2 * _UNLOADED_QUERIES / broken_qps))
        sent = sum(e.sent for e in self._seen if e.rate_qps <= broken_qps)
        return _Plan(broken_qps, max(duration_s, max(sent, _UNLOADED_QUERIES) / broken_qps))

    def _alone(self) -> _Plan | None:
        """Plans spaced-out queries if most queries without a queue were late: is any rate possible?

        Each query is due slightly after the slowest one before it would have been done. This takes a fraction
        of the time that the requested arrivals need to leave as many queries alone.
        """
        share = self._request.late_fraction
        unqueued, late = sum(e.unqueued for e in self._seen), sum(e.unqueued_late for e in self._seen)
        slowest_s = max((e.unqueued_s for e in self._seen), default=0.0)
        tried = sum(e.alone for e in self._seen)
        if tried == _ALONE_PROBES or not slowest_s or late <= (1 + share) / 2 * unqueued:
            return None
        queries = max(_ALONE_QUERIES, math.ceil(2 * math.log(CERTAIN) / math.log(share)))
        gap_s = _ALONE_GAP * slowest_s
        return _Plan(1 / gap_s, queries * gap_s, alone=True)

    def _confirmation(self, estimate: Estimate) -> _Plan:
        """Plans a probe at an estimate or on either side of it; the first such probe is short."""
        centre_qps, step = estimate.rate_qps, _STEP
        if estimate.method is Method.LATE_FRACTION:
            step = float(np.clip(_STEP_ODDS / estimate.slope, *_STEPS_ALLOWED))
            kept, broken = self._bracket()
            # a curve through few late queries may cross the share where no probe was near
            if kept and broken:
                ends = kept * math.exp(-step), broken * math.exp(step)
                centre_qps = float(np.clip(centre_qps, *ends))
        confirmed = self._confirmed(estimate)
        rate_qps = min(centre_qps, self._limit_qps)
        if not any(e.near(rate_qps) for e in self._seen):
            return _Plan(rate_qps, self._request.least_duration_s)
        rate_qps = min(centre_qps * math.exp(_STEPS[confirmed % len(_STEPS)] * step), self._limit_qps)
        return _Plan(rate_qps, self._confirming_s(rate_qps, _CONFIRMING - confirmed), confirming=True)

    def _confirming_s(self, rate_qps: float, missing: int = _CONFIRMING) -> float:
        request = self._request
        filled_s = _CONFIRMING_BOUNDS * self._bound_s
        least_s = max(request.least_duration_s, request.least_queries / rate_qps, filled_s)
        wanted_s = max(least_s, _CONFIRMING_SHARE * request.time_budget_s)
        left_s = self._left_s()
        if missing > 0:
            return max(min(wanted_s, left_s / missing), request.least_duration_s)
        return left_s if left_s < wanted_s + least_s else wanted_s

    def _left_s(self) -> float:
        """Returns the remaining time budget, minus the time that a probe's last answers may take."""
        return self._request.time_budget_s - self._session.elapsed_s - 2 * self._bound_s

    def _run(self, plan: _Plan) -> bool:
        """Runs a probe; returns False if it does not fit into the remaining time."""
        request = self._request
        number = len(self._session.runs) + 1
        left_s = self._left_s()
        if left_s < request.least_duration_s:
            return False
        # one hiccup of the machine is the p99 of a short probe; in a longer one it may not be
        duration_s = min(plan.duration_s * 2**self._invalid_in_a_row, left_s)
        extent = Extent(0.0, 1 + int(plan.rate_qps * duration_s))
        process = ConstantArrivals() if plan.alone else request.process
        schedule = Schedule.drawn(process, plan.rate_qps, extent, self._seed(number))
        if schedule.duration_ns / _NS_PER_S > left_s:
            within = schedule.offsets_ns <= left_s * _NS_PER_S
            if not within.any():
                return False
            schedule = Schedule(
                schedule.offsets_ns[within], schedule.source, schedule.rate_qps, schedule.seed
            )
        if plan.confirming:
            self._session.reconnect()
        max_late = self._max_late(len(schedule), plan)
        probe = self._session.run(schedule, self._bound_ns, max_late, f"probe {number}")
        if probe.stop is Stop.INTERRUPTED:
            raise EvaluationInterrupted("stopped during the search; nothing was published")
        if not lag_reason(probe, self._bound_ns, request.late_fraction):
            self._invalid_in_a_row = 0
            confirming = plan.confirming and not probe.stopped
            self._seen.append(Evidence(probe, self._bound_ns, confirming, plan.alone))
        else:
            self._invalid_in_a_row += 1
            if self._invalid_in_a_row == _INVALID_IN_A_ROW:
                self._invalid_in_a_row = 0
                kept_qps = self._bracket().kept_qps or 0.0
                self._limit_qps = max(_LIMIT_AFTER_INVALID * plan.rate_qps, kept_qps)
        return True

    def _max_late(self, queries: int, plan: _Plan) -> int:
        """Returns the number of late queries at which a probe is hopeless."""
        share = self._request.late_fraction
        hopeless = min(_LATE_FACTOR * share, (1 + share) / 2)
        if plan.confirming:
            hopeless = max(hopeless, _LATE_OF_CONFIRMING)
        return max(_LEAST_LATE, math.ceil(hopeless * queries))

    def _seed(self, number: int) -> int:
        return int(np.random.SeedSequence((self._request.seed, number)).generate_state(1)[0])

    def _final(self, estimate: Estimate | None, reason: str) -> RateAnswer:
        """Returns the answer after the last probe."""
        if estimate:
            # the next search finds the machine as different as the probes of this one did, however many
            rate_qps, between_qps = estimate.rate_qps, estimate.between_qps
            high_qps = rate_qps + math.hypot(estimate.high_qps - rate_qps, between_qps)
            low_qps = max(rate_qps - math.hypot(rate_qps - estimate.low_qps, between_qps), 0.0)
            if rate_qps < self._limit_qps:
                wide = reason if estimate.tolerance > self._request.tolerance else ""
                reason = "; ".join(filter(None, [estimate.reason, wide]))
                return RateAnswer(rate_qps, low_qps, high_qps, estimate.method.value, reason)
            least_qps = min(low_qps, self._limit_qps)
            return RateAnswer(least_qps, least_qps, None, Method.AT_LEAST.value, self._limit())
        kept, broken = self._bracket()
        if kept and kept >= self._limit_qps:
            reason = self._limit()
        if kept and not broken:
            return RateAnswer(kept, kept, None, Method.AT_LEAST.value, reason)
        if not self._seen and self._session.runs:
            reason = "no probe was valid"
        return RateAnswer(kept, kept, broken, Method.BRACKET.value, reason)

    def _limit(self) -> str:
        return f"no more than {self._limit_qps:.4g} queries/s could be sent on time"
