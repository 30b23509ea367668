"""The summary of a search's probe."""

from __future__ import annotations

import numpy as np
import pytest
from load_runs import run_of

from inferometer.evaluators.kinds.load.measurement import LoadOptions
from inferometer.evaluators.kinds.load.summary import LoadSummary
from inferometer.evaluators.load.queries import LoadRun

MS = 1_000_000


def judged(count: int) -> LoadSummary:
    """That of a probe of which so many queries are judged."""
    for queries in range(count, 2 * count):
        run = LoadRun(100.0, "constant", 1, "", run_of(np.arange(queries) * 10 * MS, [MS] * queries))
        summary = LoadSummary.of_probe(run, LoadOptions("constant", 100.0, latency_bound_ms=100.0))
        if summary.queries == count:
            return summary
    raise AssertionError(f"no run has {count} queries that are judged")


@pytest.mark.parametrize(("count", "percents"), [(999, [50, 99]), (1000, [50, 99, 99.9])])
def test_p99_9_takes_a_thousand_queries(count: int, percents: list[float]) -> None:
    assert [each.percent for each in judged(count).percentiles] == percents
