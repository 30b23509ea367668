"""The figures of a run under load: rates, percentiles with intervals, and the parts of the latency."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType

import numpy as np
from numpy.typing import NDArray

from inferometer.evaluators.load.intervals import PERCENTS, PercentileInterval, percentile_intervals
from inferometer.evaluators.load.queries import Outcome, Queries
from inferometer.evaluators.statistics import percentile

_NS_PER_S = 1_000_000_000


@dataclass(frozen=True, slots=True)
class Spread:
    """Percentiles of one part of the time, in nanoseconds.

    Attributes:
        p50_ns: The median.
        p99_ns: The 99th percentile.
        max_ns: The longest.
    """

    p50_ns: float
    p99_ns: float
    max_ns: int

    @classmethod
    def of(cls, values_ns: NDArray[np.int64]) -> Spread | None:
        """Computes the percentiles; None without values."""
        if not len(values_ns):
            return None
        return cls(percentile(values_ns, 50), percentile(values_ns, 99), int(values_ns.max()))


@dataclass(frozen=True, slots=True)
class LoadSummary:
    """The figures of a run.

    They cover the queries that count: those that were due after the empty start, and were sent before the run
    stopped. Each of them is in one of ``outcomes``.

    Attributes:
        queries: How many count.
        cut_queries: How many were due during the empty start.
        repeated_answers: The number of answers for queries that had one, over the whole run.
        outcomes: How many of those that count had each outcome; ``UNSENT`` is not among them.
        target_qps: The rate at which they were due: the n - 1 gaps between them over their time; None
            for fewer than two.
        achieved_qps: Right answers in a second, from when the first of them was due to the last answer, or to
            the last arrival where that is later. All answers that came in this time are counted, so that
            in a run above the capacity this is the capacity, whatever was waiting. None if no time passed.
        goodput_qps: Of these the answers within the bound; all of them without a bound.
        late_fraction: The fraction of queries without a right answer within the bound (without a bound,
            without a right answer); None without queries.
        percentiles: Of the latency from when a query was due to its answer, ascending: those of ``PERCENTS``
            and the one that the bound is for; empty without queries. Without
            intervals where all queries were due at once; see ``Queries.due_at_once``.
        service: From when a query was sent to its answer, of those with a right answer.
        queue: How long queries waited for their batch to begin; None if unknown.
        batch: How long their batch was assembled, until the prediction began; None if unknown.
        predict: How long the prediction of their batch took; None if unknown.
        batch_sizes: How many answered queries were in batches of which size, by size, if known.
        harness_lag: How late queries were sent, over the whole run; None if none was sent.
    """

    queries: int
    cut_queries: int
    repeated_answers: int
    outcomes: Mapping[Outcome, int]
    target_qps: float | None
    achieved_qps: float | None
    goodput_qps: float | None
    late_fraction: float | None
    percentiles: tuple[PercentileInterval, ...]
    service: Spread | None
    queue: Spread | None
    batch: Spread | None
    predict: Spread | None
    batch_sizes: Mapping[int, int]
    harness_lag: Spread | None

    @classmethod
    def of(
        cls,
        queries: Queries,
        bound_ns: int | None = None,
        cut_ns: int = 0,
        judged_percent: float | None = None,
    ) -> LoadSummary:
        """Computes the figures.

        Args:
            queries: The whole run.
            bound_ns: The latency within which an answer is in time; None if there is no bound.
            cut_ns: From when on queries count; see ``steady_state.steady_from_ns``.
            judged_percent: The percentile that the bound is for, which is added to the others.
        """
        sent = queries.chosen(queries.outcome != Outcome.UNSENT)
        counted = sent.since(cut_ns)
        answered = counted.chosen(counted.outcome == Outcome.ANSWERED)
        right = len(answered)
        in_time = right if bound_ns is None else int(np.count_nonzero(answered.latency_ns <= bound_ns))
        sizes, counts = np.unique(answered.batch_size[answered.batch_size > 0], return_counts=True)
        achieved_qps, goodput_qps = _answered_qps(sent, counted, bound_ns)
        return cls(
            queries=len(counted),
            cut_queries=len(sent) - len(counted),
            repeated_answers=queries.repeated,
            outcomes=MappingProxyType(
                {outcome: counted.count(outcome) for outcome in Outcome if outcome is not Outcome.UNSENT}
            ),
            target_qps=_due_qps(counted),
            achieved_qps=achieved_qps,
            goodput_qps=goodput_qps,
            late_fraction=1 - in_time / len(counted) if len(counted) else None,
            percentiles=_percentiles(counted, judged_percent),
            service=Spread.of(answered.done_ns - answered.sent_ns),
            queue=Spread.of(answered.queue_ns[answered.queue_ns >= 0]),
            batch=Spread.of(answered.batch_ns[answered.batch_ns >= 0]),
            predict=Spread.of(answered.predict_ns[answered.predict_ns >= 0]),
            batch_sizes=MappingProxyType(dict(zip(sizes.tolist(), counts.tolist(), strict=True))),
            harness_lag=Spread.of(queries.lag_ns),
        )

    def percentile(self, percent: float) -> PercentileInterval | None:
        """Returns one of ``percentiles``; None if it is missing."""
        return next((each for each in self.percentiles if each.percent == percent), None)


def _percentiles(queries: Queries, judged_percent: float | None) -> tuple[PercentileInterval, ...]:
    percents = {*PERCENTS, *([] if judged_percent is None else [judged_percent])}
    found = percentile_intervals(queries.latency_ns, sorted(percents))
    if not queries.due_at_once:
        return found
    return tuple(replace(each, low_ns=None, high_ns=None) for each in found)


def _due_qps(queries: Queries) -> float | None:
    """Returns the rate at which queries were due."""
    if len(queries) < 2:
        return None
    span_ns = int(queries.scheduled_ns[-1] - queries.scheduled_ns[0])
    return (len(queries) - 1) * _NS_PER_S / span_ns if span_ns > 0 else None


def _answered_qps(sent: Queries, counted: Queries, bound_ns: int | None) -> tuple[float | None, float | None]:
    """Returns the rates of right answers, and of those in time."""
    if not len(counted):
        return None, None
    begin_ns = int(counted.scheduled_ns[0])
    answered = sent.chosen((sent.outcome == Outcome.ANSWERED) & (sent.done_ns >= begin_ns))
    end_ns = max(int(counted.scheduled_ns[-1]), int(answered.done_ns.max(initial=0)))
    if end_ns == begin_ns:
        return None, None
    per_ns = _NS_PER_S / (end_ns - begin_ns)
    in_time = len(answered) if bound_ns is None else np.count_nonzero(answered.latency_ns <= bound_ns)
    return len(answered) * per_ns, float(in_time) * per_ns
