"""What a probe of a search amounts to, over the queries that the search judges it by."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

import numpy as np

from evaluators.loadgen.intervals import PercentileInterval, percentile_intervals
from evaluators.loadgen.probe import Probe
from evaluators.loadgen.record import LoadOptions, LoadRun

_MEDIAN, _FAR_TAIL, _FAR_TAIL_QUERIES = 50.0, 99.9, 1000


@dataclass(frozen=True, slots=True)
class ProbeSummary:
    """The figures of a probe.

    Attributes:
        judged: How many queries the search judged, without the empty start; see ``Probe.judged``.
        late_share: The share of them that were later than the bound, or had no right answer; None where no
            query was judged.
        percentiles: Of their latency by percent, ascending: the median, the percentile that the bound is for,
            and 99.9 where there are 1,000 queries; empty where no query was judged.
    """

    judged: int
    late_share: float | None
    percentiles: Mapping[float, PercentileInterval]

    @classmethod
    def of(cls, run: LoadRun, options: LoadOptions) -> ProbeSummary:
        """Computes the figures of a run of a search.

        Raises:
            ValueError: The options have no bound, so that they are not those of a search.
        """
        bound_ns = options.latency_bound_ns
        if bound_ns is None:
            raise ValueError("a probe is judged by a latency bound, and the options have none")
        probe = Probe(run.rate_qps, run.seed or 0, run.queries, bool(run.stopped), run.invalid or None)
        latency_ns = probe.judged(bound_ns).latency_ns
        count = len(latency_ns)
        percents = {_MEDIAN, options.percentile, *([_FAR_TAIL] if count >= _FAR_TAIL_QUERIES else [])}
        found = percentile_intervals(latency_ns, sorted(percents))
        return cls(
            judged=count,
            late_share=float(np.mean(latency_ns > bound_ns)) if count else None,
            percentiles=MappingProxyType({each.percent: each for each in found}),
        )


def load_s(run: LoadRun) -> float:
    """Returns how long there was load: from the begin of a run to its last arrival or answer, in seconds."""
    queries = run.queries
    return max(int(queries.scheduled_ns.max(initial=0)), int(queries.done_ns.max(initial=0))) / 1e9
