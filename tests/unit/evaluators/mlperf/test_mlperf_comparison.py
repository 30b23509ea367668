"""Figures by LoadGen's rules, against numbers derived by hand from its source."""

from __future__ import annotations

import pytest
from load_runs import run_of

from inferometer.evaluators.kinds.load.measurement import MlperfResult, Scenario
from inferometer.evaluators.kinds.load.summary import compared
from inferometer.evaluators.load.queries import Outcome, Queries

MS = 1_000_000


def rate(queries: Queries, scenario: Scenario) -> float | None:
    result = MlperfResult("6", True, (), len(queries), 100.0, None, (), None, True, "logs")
    [figure] = compared(queries, scenario, result)
    assert figure.percent is None
    return figure.ours


def test_of_single_stream_the_time_is_until_the_last_query_is_issued() -> None:
    queries = run_of([0, 100 * MS, 200 * MS], [100 * MS, 100 * MS, 500 * MS])

    assert rate(queries, Scenario.SINGLE_STREAM) == pytest.approx(2 / 0.2)


def test_of_server_the_time_is_until_the_last_issued_query_is_done_though_others_are_done_later() -> None:
    queries = run_of([0, 100 * MS, 200 * MS], [50 * MS, 900 * MS, 300 * MS])

    assert rate(queries, Scenario.SERVER) == pytest.approx(2 / 0.5)


def test_of_offline_all_samples_count_over_the_time_until_the_last_answer() -> None:
    assert rate(run_of([0, 0, 0], [300 * MS, 100 * MS, 200 * MS]), Scenario.OFFLINE) == pytest.approx(3 / 0.3)


@pytest.mark.parametrize("scenario", [Scenario.SINGLE_STREAM, Scenario.SERVER, Scenario.OFFLINE])
def test_where_no_time_is_known_there_is_no_rate(scenario: Scenario) -> None:
    assert rate(run_of([0], [5 * MS], [Outcome.TIMED_OUT]), scenario) is None
    assert rate(run_of([], []), scenario) is None
