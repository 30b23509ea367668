"""The summary of a workload: how it kept its bound, to the nanosecond, with confidence."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from inferometer.evaluators.kinds.load.measurement import LoadMeasurement, LoadOptions
from inferometer.evaluators.kinds.load.summary import run_rows
from inferometer.evaluators.load.queries import LoadRun, Outcome, Queries

OPTIONS = LoadOptions("poisson", 100.0)
MS = 1_000_000


def rows(latency_ns: np.ndarray, options: LoadOptions) -> dict[str, str]:
    due = np.arange(len(latency_ns), dtype=np.int64) * 10 * MS
    none = np.full(len(due), -1, np.int64)
    outcome = np.full(len(due), int(Outcome.ANSWERED))
    queries = Queries(due, due, due + latency_ns, outcome, none, none, none + 1)
    return dict(run_rows(LoadMeasurement(options, LoadRun(100.0, "poisson", 0, "", queries), 0)))


def test_an_answer_on_a_bound_that_binary_has_not_is_within_it() -> None:
    # 2.01 * 1,000,000 is 2009999.9999999998
    shown = rows(np.full(40, 2_010_000), replace(OPTIONS, latency_bound_ms=2.01))

    assert shown["bound"] == "p99 kept 2.01 ms"
    assert not shown["goodput"].startswith("0.00 ")


@pytest.mark.parametrize(
    ("bound_ms", "verdict"),
    [
        (5.0, "p90 missed 5 ms"),
        (9.0, "p90 missed 9 ms, which is within its interval"),
        (9.02, "p90 kept 9.02 ms, which is within its interval"),
        (9.9, "p90 kept 9.9 ms"),
    ],
)
def test_whether_the_percentile_kept_the_bound_is_said_with_how_sure_that_is(
    bound_ms: float, verdict: str
) -> None:
    latency_ns = np.random.RandomState(3).permutation(np.arange(1, 2001)) * 5_000 + 10_000

    shown = rows(latency_ns, replace(OPTIONS, percentile=90.0, latency_bound_ms=bound_ms))

    assert shown["bound"] == verdict


def test_without_a_bound_nothing_is_judged() -> None:
    assert "bound" not in rows(np.full(40, MS), OPTIONS)
