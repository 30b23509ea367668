"""When the answer of a search cannot be trusted."""

from __future__ import annotations

import numpy as np
import pytest
from load_runs import run_of

from inferometer.evaluators.kinds.load.measurement import (
    LoadOptions,
    Method,
    RateAnswer,
    RateSearchMeasurement,
    invalid_reason,
)
from inferometer.evaluators.load.queries import LoadRun

LAG = "the harness lags"


def probe(rate_qps: float, invalid: bool, queries: int = 100) -> LoadRun:
    due = np.arange(queries, dtype=np.int64)
    return LoadRun(rate_qps, "poisson", 1, "", run_of(due, due + 1), invalid=LAG if invalid else "")


def search(
    *probes: LoadRun,
    method: Method = Method.SINGLE_SERVER,
    rate_qps: float | None = 100.0,
    high_qps: float | None = None,
) -> RateSearchMeasurement:
    answer = RateAnswer(rate_qps, rate_qps, high_qps or rate_qps, method.value)
    return RateSearchMeasurement(LoadOptions("poisson", 10.0, latency_bound_ms=100), probes, 1, answer)


def test_an_answer_is_invalid_where_most_queries_near_it_are_of_invalid_probes() -> None:
    found = search(probe(10, False, 1000), probe(95, True), probe(100, True), probe(105, False))

    assert invalid_reason(found) == f"2 of 3 probes near the answer are invalid; the last: {LAG}"


@pytest.mark.parametrize(
    "probes",
    [
        (probe(95, True), probe(100, False), probe(105, False)),
        (probe(95, True, 10), probe(96, True, 10), probe(105, False, 100)),
        (probe(100, False), probe(200, True, 1000), probe(400, True, 1000)),
    ],
    ids=["few probes", "short probes", "far ones"],
)
def test_an_answer_is_valid_where_most_queries_near_it_are(probes: tuple[LoadRun, ...]) -> None:
    assert invalid_reason(search(*probes)) == ""


def test_an_answer_rests_on_all_probes_of_its_interval() -> None:
    probes = probe(28, False, 100), probe(66, True, 1000)

    assert invalid_reason(search(*probes, rate_qps=28)) == ""
    assert invalid_reason(search(*probes, rate_qps=28, high_qps=63)).startswith("1 of 2 probes")


def test_what_could_not_be_sent_does_not_make_what_could_invalid() -> None:
    probes = probe(100, False), probe(110, True, 1000)

    assert invalid_reason(search(*probes, method=Method.AT_LEAST)) == ""
    assert invalid_reason(search(*probes, method=Method.SINGLE_SERVER)) != ""


def test_all_probes_bear_an_answer_without_a_rate() -> None:
    probes = probe(1, True), probe(2, True), probe(4, False)

    assert invalid_reason(search(*probes, method=Method.NONE, rate_qps=None)).startswith("2 of 3 probes")


def test_a_search_without_an_answer_has_none_to_doubt() -> None:
    stopped = RateSearchMeasurement(LoadOptions("poisson", 10.0), (probe(1, True),), 1, None)

    assert invalid_reason(stopped) == ""
