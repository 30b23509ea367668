"""The search for the highest rate at which a percentile of the latencies keeps a bound.

It brackets the rate with short probes that go up and down by a factor of 2, jumps to the single-server
model's estimate as soon as that model fits, and confirms with long probes around the estimate until its
interval is narrow enough or the time is used up. It uses no clocks or threads: the ``LoadSession`` has both.

The search for the largest factor of a mix does the same with a factor in place of the rate: each probe sends
the whole mix with all rates times the factor, and judges each model by its own queries, bound and percentile.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import NormalDist

import numpy as np

from inferometer.evaluators.kinds.load.estimate import (
    CERTAIN,
    Bracket,
    Estimate,
    Estimator,
    Evidence,
    by_late_fraction,
    surely_kept_qps,
    unqueued_late,
)
from inferometer.evaluators.kinds.load.measurement import NEAR, Method, RateAnswer, lag_reason
from inferometer.evaluators.kinds.load.request import MaxQpsRequest
from inferometer.evaluators.kinds.load.single_server import SIMULATED_QUERIES
from inferometer.evaluators.load.arrivals import ConstantArrivals, Extent, Schedule
from inferometer.evaluators.load.load_session import LoadSession, MixSession
from inferometer.evaluators.load.queries import LoadRun, Stop, bound_ns_of
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
_FEW_SHARE = 0.1
_ALONE_QUERIES = 12
_ALONE_GAP = 1.25
_ALONE_PROBES = 3
_LEAST_LATE = 20
_LATE_FACTOR = 5
_LATE_OF_CONFIRMING = 0.25
_INVALID_IN_A_ROW = 3
_LIMIT_AFTER_INVALID = 0.75
_TAIL = 0.025
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
        self._first_qps = request.rate_qps
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
        if bracket.kept_qps is None and (late := self._unqueued_late()):
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

    def _unqueued_late(self) -> str | None:
        return unqueued_late(self._seen, self._request.late_fraction)

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
            if broken and confirming:  # not always at one rate, which a lucky short probe may have kept
                tried = sum(e.confirming for e in self._seen)
                rate_qps *= math.exp(_STEPS[tried % len(_STEPS)] * _STEP)
        else:
            rate_qps, confirming = self._first_qps, False
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
        left_s = self._left_s()
        if left_s < self._request.least_duration_s:
            return False
        # one hiccup of the machine is the p99 of a short probe; in a longer one it may not be
        valid = self._probe(plan, min(plan.duration_s * 2**self._invalid_in_a_row, left_s), left_s)
        self._invalid_in_a_row = self._invalid_in_a_row + 1 if valid is False else 0
        if self._invalid_in_a_row == _INVALID_IN_A_ROW:
            self._invalid_in_a_row = 0
            kept_qps = self._bracket().kept_qps or 0.0
            self._limit_qps = max(_LIMIT_AFTER_INVALID * plan.rate_qps, kept_qps)
        return valid is not None

    def _probe(self, plan: _Plan, duration_s: float, left_s: float) -> bool | None:
        """Runs a probe; returns whether it is valid, or None if no query fits into the remaining time."""
        request, number = self._request, len(self._session.runs) + 1
        extent = Extent(0.0, 1 + int(plan.rate_qps * duration_s))
        process = ConstantArrivals() if plan.alone else request.process
        schedule = _until(Schedule.drawn(process, plan.rate_qps, extent, self._seed(number)), left_s)
        if not len(schedule):
            return None
        if plan.confirming:
            self._session.reconnect()
        max_late = _max_late(len(schedule), request.late_fraction, plan)
        probe = _uninterrupted(self._session.run(schedule, self._bound_ns, max_late, f"probe {number}"))
        return self._judged(probe, plan, self._seen, request)

    def _judged(self, probe: LoadRun, plan: _Plan, seen: list[Evidence], request: MaxQpsRequest) -> bool:
        """Adds a probe to the evidence if it is valid, and returns whether it is."""
        bound_ns = bound_ns_of(request.latency_bound_ms)
        if lag_reason(probe, bound_ns, request.late_fraction):
            return False
        seen.append(Evidence(probe, bound_ns, plan.confirming and not probe.stopped, plan.alone))
        return True

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


def _until(schedule: Schedule, end_s: float) -> Schedule:
    """Returns the queries of a schedule that are due until a time; there may be none."""
    if schedule.duration_ns / _NS_PER_S <= end_s:
        return schedule
    within = schedule.offsets_ns <= end_s * _NS_PER_S
    return Schedule(schedule.offsets_ns[within], schedule.source, schedule.rate_qps, schedule.seed)


def _max_late(queries: int, late_fraction: float, plan: _Plan) -> int:
    """Returns the number of late queries at which a probe is hopeless."""
    hopeless = min(_LATE_FACTOR * late_fraction, (1 + late_fraction) / 2)
    if plan.confirming:
        hopeless = max(hopeless, _LATE_OF_CONFIRMING)
    return max(_LEAST_LATE, math.ceil(hopeless * queries))


def _uninterrupted(probe: LoadRun) -> LoadRun:
    if probe.stop is Stop.INTERRUPTED:
        raise EvaluationInterrupted("stopped during the search; nothing was published")
    return probe


def search_factor(
    models: Mapping[str, MaxQpsRequest], session: MixSession, limit: float | None = None, busy_ms: float = 0.0
) -> tuple[RateAnswer, Mapping[str, RateAnswer], str]:
    """Searches for the largest factor at which every model of a mix keeps its bound.

    Each model's factor comes from the curve of late queries; the single-server model does not apply, because
    other models take part of the server. The answer is the smallest of the factors, and the ends of its
    interval are the smallest of their ends, which have tails of 2.5 % / k for k models (Bonferroni). The
    upper end needs this, because each model could make it too small. The lower end is above the true factor
    only if that of the model which truly limits is; there, it makes up for a part of what the curve's
    intervals are too narrow. A model with too few late queries for a curve has the ends of its bracket, but
    the lower end of ``surely_kept_qps``.

    Args:
        models: The load of each model at the factor 1, with the same options of the search.
        session: Sends the probes.
        limit: The largest factor that this machine can send; None sets no limit.
        busy_ms: How long a query occupies the system, if that is longer than its bound. If it is given,
            probes are as long as 20 queries of each model take, as far as a tenth of the time budget allows.

    Returns:
        The answer, that for the bound of each model alone beside the others, and the name of the model that
        limits the factor, or an empty text. The rates of the answers are factors.

    Raises:
        EvaluationInterrupted: A stop was requested.
    """
    search = _MixSearch(models, session, limit, busy_ms)
    answer = search.answer()
    own = {
        name: RateAnswer(
            rate_qps=each.rate_qps or None,
            low_qps=each.low_qps,
            high_qps=each.high_qps if math.isfinite(each.high_qps) else None,
            method=each.method.value,
            note=each.reason,
        )
        for name, each in search.own().items()
    }
    broken = (name for name, each in own.items() if each.high_qps is not None)
    return answer, own, min(broken, key=lambda name: own[name].rate_qps or 0.0, default="")


class _MixSearch(_Search):
    """A search whose rates are factors, with the evidence of each model, and of all in ``_seen``."""

    def __init__(
        self, models: Mapping[str, MaxQpsRequest], session: MixSession, limit: float | None, busy_ms: float
    ) -> None:
        rates_qps = [each.rate_qps for each in models.values()]
        first, *_ = models.values()
        bound_ms = max(busy_ms, *(each.latency_bound_ms for each in models.values()))
        queries = math.ceil(first.least_queries / min(rates_qps))  # of the slowest, at the factor 1
        whole = replace(first, latency_bound_ms=bound_ms, min_queries=queries, max_rate_qps=limit)
        super().__init__(whole, session)  # type: ignore[arg-type]
        self._first_qps = 1.0
        self._sender = session
        self._unloaded_qps /= sum(rates_qps)
        self._unloaded_s = _UNLOADED_QUERIES / min(rates_qps) / self._unloaded_qps
        self._few_s = _UNLOADED_QUERIES / min(rates_qps) if busy_ms else 0.0
        self._models = {name: (each, list[Evidence]()) for name, each in models.items()}

    def own(self) -> dict[str, Estimate]:
        """Returns the estimate for each model."""
        wider = NormalDist().inv_cdf(_TAIL / len(self._models)) / NormalDist().inv_cdf(_TAIL)
        return {
            name: _own_estimate(seen, each.late_fraction, wider)
            for name, (each, seen) in self._models.items()
        }

    def _estimate(self, before: Estimate | None, simulated: int) -> Estimate | None:
        own = self.own()
        fitted = [each for each in own.values() if each.method is Method.LATE_FRACTION]
        limiting = min(fitted, key=lambda each: each.rate_qps, default=None)
        if not limiting or any(each.high_qps <= limiting.rate_qps for each in own.values()):
            return None
        low = min(each.low_qps for each in own.values())
        high = min(each.high_qps for each in fitted)
        others = [
            f"{name} may limit it as well"
            for name, each in own.items()
            if each is not limiting and each.low_qps <= (limiting.rate_qps if each in fitted else low)
        ]
        return replace(limiting, low_qps=low, high_qps=high, reason="; ".join(others))

    def _bracket(self) -> Bracket:
        """Returns the largest factor that all models kept, and the smallest that one of them did not."""
        found = [Bracket.of(seen, request.late_fraction) for request, seen in self._models.values()]
        kept = [each.kept_qps or 0.0 for each in found if any(each)]  # of models that were sent queries
        broken = [each.broken_qps for each in found if each.broken_qps]
        return Bracket(min(kept, default=None) or None, min(broken, default=None))

    def _unqueued_late(self) -> str | None:
        """Returns the explanation for a model, from probes in which queries hardly meet those of others."""
        for name, (request, seen) in self._models.items():
            alone = [e for e in seen if e.rate_qps <= self._unloaded_qps]
            if late := unqueued_late(alone, request.late_fraction):
                return f"{name}: {late}"
        return None

    def _step_down(self, broken_qps: float) -> _Plan:
        factor, least_s = max(broken_qps / 2, self._unloaded_qps), self._request.least_duration_s
        return _Plan(factor, max(least_s, self._unloaded_s) if factor == self._unloaded_qps else least_s)

    def _confirmed(self, estimate: Estimate) -> int:
        return super()._confirmed(estimate) // len(self._models)

    def _limit(self) -> str:
        return f"no more than {self._limit_qps:.4g} times the rates could be sent on time"

    def _probe(self, plan: _Plan, duration_s: float, left_s: float) -> bool | None:
        """Sends the mix; every search with the same seed sends the same arrivals at the same factors."""
        number = len(self._sender.probes) + 1
        few_s = min(self._few_s / plan.rate_qps, _FEW_SHARE * self._request.time_budget_s)
        duration_s = min(max(duration_s, few_s), left_s)
        schedules, late = [], []
        for place, (request, _) in enumerate(self._models.values()):
            seed = int(np.random.SeedSequence((request.seed, number, place)).generate_state(1)[0])
            rate_qps = plan.rate_qps * request.rate_qps
            drawn = Schedule.drawn(request.process, rate_qps, Extent(duration_s), seed)
            schedules.append(_until(drawn, duration_s))
            most = _max_late(len(schedules[-1]), request.late_fraction, plan)
            late.append((bound_ns_of(request.latency_bound_ms), most))
        if not any(map(len, schedules)):
            return None
        if plan.confirming:
            self._sender.reconnect()
        runs = self._sender.run(schedules, late, f"probe {number}")
        valid = [
            self._judged(replace(_uninterrupted(run), rate_qps=plan.rate_qps), plan, seen, request)
            for run, (request, seen) in zip(runs, self._models.values(), strict=True)
        ]
        self._seen = [e for _, seen in self._models.values() for e in seen]
        return all(valid)


def _own_estimate(seen: Sequence[Evidence], late_fraction: float, wider: float) -> Estimate:
    """Returns the estimate for one model, from its curve or else its bracket; see ``search_factor``."""
    if curve := by_late_fraction(seen, late_fraction):
        ends = (curve.low_qps, curve.high_qps)
        low, high = (curve.rate_qps * (end / curve.rate_qps) ** wider for end in ends)
        return replace(curve, low_qps=low, high_qps=high)
    kept, broken = Bracket.of(seen, late_fraction)
    surely = surely_kept_qps(seen, late_fraction)
    above = [e for e in seen if e.rate_qps >= surely]
    late, queries = int(sum(e.late for e in above)), int(sum(e.queries for e in above))
    note = f"{late} of {queries} queries were late at {surely:.3g} and above"
    if not surely:
        note = "no factor is sure to keep its bound"
    method = Method.BRACKET if broken else Method.AT_LEAST
    return Estimate(kept or 0.0, surely, broken or math.inf, method, reason=note)
