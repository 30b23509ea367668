"""How many batches a plan asks for, from what is measured until then."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from inferometer.evaluators.kinds.batches.measurement import LengthPlan, reached
from tests.unit.evaluators.dataset_run_fakes import options


def independent_ns(count: int, spread: float = 0.1) -> NDArray[np.int64]:
    values = np.random.RandomState(4).standard_normal(count)
    return np.rint(1e7 * (1 + spread * values)).astype(np.int64)


def more(count: int, elapsed_s: float, spread: float = 0.1, **given: Any) -> int:
    return LengthPlan(options(**given)).more(independent_ns(count, spread), elapsed_s)


def test_without_a_wish_there_is_no_more() -> None:
    assert more(20, 0.2) == 0


def test_the_pilot_lasts_a_second_and_twice_the_batches_of_an_interval() -> None:
    assert more(20, 0.2, target_ci_percent=5.0) >= 80
    quick = more(400, 0.1, spread=0.001, target_ci_percent=5.0)
    assert 3500 < quick <= 3600, "4,000 batches take a second"
    assert more(400, 4.0, spread=0.001, target_ci_percent=5.0) == 0


def test_the_length_follows_from_the_pilot_and_stays() -> None:
    plan = LengthPlan(options(target_ci_percent=1.0, time_budget_s=1e6))
    first = plan.more(independent_ns(400), 4.0)
    # half the interval of p50 is about 2.26 · 1.25 · 0.1 / √n
    assert 400 < first + 400 < 4 * (2.26 * 1.25 * 0.1 / 0.01) ** 2
    assert plan.more(independent_ns(400 + first, spread=0.9), 9.0) == 0, "whatever comes later"
    assert plan.more(independent_ns(400 + first - 7, spread=0.9), 9.0) == 7


def test_a_target_has_thirty_seconds_and_a_least_length_all_the_time() -> None:
    assert more(400, 30.0, spread=0.9, target_ci_percent=0.1) == 0
    assert more(400, 20.0, spread=0.9, target_ci_percent=0.1) == 200, "as many as fit into 10 s"
    assert more(400, 31.0, min_batches=1000) == 600
    assert more(400, 31.0, min_duration_s=62.0) == 400
    assert more(400, 31.0, min_batches=1000, time_budget_s=31.0) == 0


def test_a_budget_is_spent_when_its_time_is_over() -> None:
    plan = LengthPlan(options(min_batches=1000, time_budget_s=5.0))
    plan.more(independent_ns(10), 0.1)
    assert (plan.spent(4.9), plan.spent(5.0)) == (False, True)
    unlimited = LengthPlan(options(min_batches=1000))
    unlimited.more(independent_ns(10), 0.1)
    assert not unlimited.spent(1e9)


def test_no_full_batch_is_no_reason_to_go_on() -> None:
    assert more(0, 0.1, min_batches=10, min_duration_s=5.0) == 0


@pytest.mark.parametrize(("count", "expected"), [(40, False), (400, True)])
def test_a_target_is_reached_by_an_interval_that_is_there(count: int, expected: bool) -> None:
    assert reached(independent_ns(count), 5.0) is expected
    assert not reached(independent_ns(count), 0.01)
