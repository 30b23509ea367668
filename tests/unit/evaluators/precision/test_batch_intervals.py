"""Autocorrelation times, intervals over processes, and who counts as a process."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from inferometer.agent.tracing.recorder import TraceLevel
from inferometer.evaluators.evaluation import Evaluation, Status, processes_of
from inferometer.evaluators.kinds.batches.measurement import BatchMeasurement
from inferometer.evaluators.kinds.batches.run import DatasetRun
from inferometer.evaluators.kinds.summary import process_groups
from inferometer.evaluators.statistics import (
    autocorrelation_time,
    batches_for_interval,
    carried_percentile,
    interval_over,
    mean_interval,
    values_for_percentile,
)
from tests.contract.store_fixtures import make_evaluation
from tests.known_times import KNOWN
from tests.unit.evaluators.dataset_run_fakes import FakeSystem, Numbered, options


@pytest.mark.parametrize(("rho", "known"), [("0.5", 3), ("0.9", 19)])
def test_the_autocorrelation_time_is_that_of_the_process(rho: str, known: float) -> None:
    """(1 + rho) / (1 - rho), by its geometric series."""
    times_ms = KNOWN[f"correlated_{rho}"].draw(np.random.RandomState(1), 100_000)

    assert autocorrelation_time((times_ms * 1e6).astype(np.int64)) == pytest.approx(known, rel=0.15)


@pytest.mark.parametrize(
    "times", [[7] * 100, list(range(0, 100_000, 1000)), [1_000, 9_000] * 50, [5], [5, 900]]
)
def test_equal_drifting_and_alternating_times_are_not_correlated(times: list[int]) -> None:
    assert autocorrelation_time(np.array(times, np.int64)) == 1
    assert batches_for_interval(np.array(times, np.int64)) == 50


def test_the_interval_of_equal_times_is_that_time_and_of_skewed_ones_reaches_up() -> None:
    assert mean_interval(np.full(100, 7, np.int64)) == (7, 7)

    rare = np.full(200, 1_000_000, np.int64)
    rare[[17, 60, 61, 121, 180]] = 20_000_000
    low, high = mean_interval(rare)
    assert high - rare.mean() > 1.5 * (rare.mean() - low) > 0


def test_the_interval_of_the_mean_of_independent_times_is_students() -> None:
    low, high = mean_interval(np.arange(0, 100_000, 1_000))
    # 49,500 ± 2.262 · 9,574, the error of ten means that are 10,000 apart, by a table with 9 degrees of
    # freedom; wider by 1 / √(1 - 5.5 / 100), as ten stretches of 100 times are not quite independent
    assert (low, high) == pytest.approx((49_500 - 22_278, 49_500 + 22_278), abs=5)


def test_an_interval_over_processes_is_students() -> None:
    low, high = interval_over([1.0, 2.0, 3.0, 4.0, 5.0])
    # 3 ± 2.776 √(2.5 / 5), by a table of the t distribution with 4 degrees of freedom
    assert (low, high) == pytest.approx((1.0370, 4.9630), abs=1e-4)
    with pytest.raises(ValueError, match="at least two values; found 1"):
        interval_over([1.0])


@pytest.mark.parametrize(
    ("percent", "needed"), [(50, 10), (90, 50), (10, 50), (95, 100), (99, 500), (99.9, 5000)]
)
def test_five_values_lie_beyond_a_percentile(percent: float, needed: int) -> None:
    assert values_for_percentile(percent) == needed
    assert carried_percentile(range(needed - 1), percent) is None
    assert carried_percentile(range(needed), percent) is not None


@pytest.mark.parametrize("percent", [0, 100, -1, float("nan")])
def test_a_percentile_beyond_all_values_needs_what_there_is_not(percent: float) -> None:
    with pytest.raises(ValueError, match="above 0 and below 100"):
        values_for_percentile(percent)


def evaluation(**changes: object) -> Evaluation[BatchMeasurement]:
    run = DatasetRun(FakeSystem(), Numbered(80), options())
    measured: Evaluation[BatchMeasurement] = make_evaluation(measurement=run.run().measurement, **changes)
    return measured


def test_processes_are_grouped_by_level_without_the_interrupted_ones() -> None:
    shallow = [evaluation(process=number) for number in (1, 3, 5)]
    deep = [evaluation(process=2, trace_level=TraceLevel.FULL_TRACE)]
    broken = evaluation(process=7, status=Status.INTERRUPTED)
    alone = evaluation()

    [group] = process_groups([*shallow, *deep, broken, alone])

    assert (group.trace_level, group.processes, group.remote) == (TraceLevel.MODEL_TRACE, 3, False)
    assert [(each.name, each.value_ns) for each in group.figures] == [("p50", 1000), ("mean", 1000)]


def test_what_ran_in_one_process_counts_once() -> None:
    fresh = [evaluation(process=number, group_id="g") for number in (1, 2)]
    older = [evaluation(group_id="h"), evaluation(group_id="h")]
    served = [replace(each, system=replace(each.system, agent="host:1")) for each in fresh]

    assert processes_of(fresh) == processes_of([evaluation(), evaluation()]) == 2
    assert processes_of(older) == processes_of(served) == 1
