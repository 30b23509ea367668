"""LoadGen's figures beside ours, of the same queries: they differ only by the clocks."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from inferometer.evaluators.kinds.load.measurement import MlperfResult, Scenario
from inferometer.evaluators.load.queries import NEVER_NS, Outcome, Queries

_NS_PER_S = 1_000_000_000


@dataclass(frozen=True, slots=True)
class ComparedFigure:
    """One figure of both.

    Attributes:
        percent: Of a latency percentile; None for the rate.
        loadgen: LoadGen's, in nanoseconds or queries/s.
        ours: Ours, by LoadGen's rule; None if there is none, as for a percentile that falls on a query
            without a right answer.
    """

    percent: float | None
    loadgen: float
    ours: float | None

    @property
    def difference(self) -> float | None:
        """The relative difference of ours from LoadGen's; None if there is none."""
        if self.ours is None or not self.loadgen:
            return None
        return self.ours / self.loadgen - 1


def compared(queries: Queries, scenario: Scenario, result: MlperfResult) -> tuple[ComparedFigure, ...]:
    """Returns the rate and the percentiles that LoadGen gives, beside ours.

    Ours are by LoadGen's rules: of n latencies in order, the percentile of a share p is number floor(n · p),
    counted from 0; a query of multi_stream takes as long as the slowest of its samples. The rate of n queries
    is n - 1 over the time until the last one was issued (single_stream) or until the last one that was issued
    was done, whatever was done after it (server); of offline it is all samples over the time until the last
    answer (``PerformanceSummary::LogDetail`` in LoadGen's ``results.cc``).
    """
    latency_ns = _query_latency_ns(queries, scenario)
    figures = [] if result.rate_qps is None else [_rate(queries, scenario, result.rate_qps)]
    for percent, loadgen_ns in result.percentiles_ns:
        place = int(len(latency_ns) * percent / 100)
        ours_ns = int(latency_ns[place]) if place < len(latency_ns) else NEVER_NS
        figures.append(ComparedFigure(percent, loadgen_ns, None if ours_ns == NEVER_NS else ours_ns))
    return tuple(figures)


def _query_latency_ns(queries: Queries, scenario: Scenario) -> NDArray[np.int64]:
    """Returns the latencies of LoadGen's queries, ascending."""
    samples = scenario.samples_per_query
    whole = len(queries) - len(queries) % samples
    slowest: NDArray[np.int64] = queries.latency_ns[:whole].reshape(-1, samples).max(axis=1)
    return np.sort(slowest)


def _rate(queries: Queries, scenario: Scenario, loadgen_qps: float) -> ComparedFigure:
    answered = queries.outcome == Outcome.ANSWERED
    count, until_ns = int(np.count_nonzero(answered)), 0
    if scenario is Scenario.OFFLINE:
        until_ns = int(queries.done_ns[answered].max(initial=0))
    elif len(queries):  # these are in the order in which they were issued
        count -= 1
        until_ns = int((queries.done_ns if scenario is Scenario.SERVER else queries.sent_ns)[-1])
    return ComparedFigure(None, loadgen_qps, count * _NS_PER_S / until_ns if until_ns > 0 else None)
