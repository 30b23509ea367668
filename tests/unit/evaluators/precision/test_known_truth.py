"""Intervals cover what is known to be right, at the moment at which measuring ends by itself."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from inferometer.agent.inference.stages import BatchResult, StageTimes
from inferometer.agent.preprocessing.inputs import Input
from inferometer.agent.tracing.recorder import TraceScope
from inferometer.evaluators.datasets.base import Sample
from inferometer.evaluators.kinds.batches.measurement import BatchMeasurement, LatencySummary
from inferometer.evaluators.kinds.batches.run import DatasetRun
from inferometer.evaluators.statistics import Interval, batches_for_interval, interval_over
from tests.known_times import BASE_MS, KNOWN, PROCESS_SPREAD, KnownTimes
from tests.unit.evaluators.dataset_run_fakes import Clock, FakeSystem, Numbered, options

RUNS = 100
COVERED = 90
MS = 1_000_000
MOST_BATCHES = 20_000


class Known(FakeSystem):
    """Predicts batches of one input in known times, which is all the time that passes."""

    def __init__(self, times_ms: NDArray[np.float64]) -> None:
        super().__init__(Clock(), kind="raw")
        self.times_ns = np.rint(np.asarray(times_ms) * MS).astype(np.int64).tolist()
        self.count = 0

    def predict_batches(
        self, batches: Iterable[Sequence[Input]], trace: TraceScope | None = None
    ) -> Iterator[BatchResult]:
        for batch in batches:
            time_ns = self.times_ns[self.count]
            self.count += 1
            self.clock.now_ns += time_ns
            yield BatchResult((batch[0].id,), None, (), StageTimes(0, 0, time_ns, 0))


class Few(Numbered):
    """The same few samples each time, which costs little."""

    def __init__(self) -> None:
        super().__init__(20)
        self._samples = tuple(super().__iter__())

    def __iter__(self) -> Iterator[Sample]:
        return iter(self._samples)


def measured(times_ms: NDArray[np.float64], **given: Any) -> BatchMeasurement:
    system = Known(times_ms)
    run = DatasetRun(system, Few(), options(1, 1, **given), clock=system.clock)
    return run.run().measurement


def runs_of(known: KnownTimes, seed: int, **given: Any) -> Iterator[LatencySummary]:
    for run in range(RUNS):
        times_ms = known.draw(np.random.RandomState(seed * RUNS + run), MOST_BATCHES)
        yield LatencySummary.of(measured(times_ms, **given))


def covers(interval: Interval | None, truth_ms: float) -> bool:
    """Whether the interval is there and holds the truth, which times in whole nanoseconds have within one."""
    return interval is not None and interval.low - 1 <= truth_ms * MS <= interval.high + 1


@pytest.mark.parametrize("name", KNOWN)
def test_intervals_cover_the_truth_when_the_default_ends_the_run(name: str) -> None:
    known = KNOWN[name]
    found = list(runs_of(known, seed=2, target_ci_percent=5.0))

    means = sum(covers(each.mean_interval_ns, known.mean_ms(each.measured_batches)) for each in found)
    medians = sum(covers(each.p50_interval_ns, known.p50_ms(each.measured_batches)) for each in found)
    assert (means >= COVERED, medians >= COVERED) == (True, True), (means, medians)
    assert sum(each.measured_batches for each in found) * BASE_MS < RUNS * 31_000


def test_intervals_cover_the_truth_when_a_target_ends_a_correlated_run() -> None:
    known = KNOWN["correlated_0.9"]
    found = list(runs_of(known, seed=2, target_ci_percent=2.0, time_budget_s=1000.0))

    means = sum(covers(each.mean_interval_ns, known.mean_ms(0)) for each in found)
    medians = sum(covers(each.p50_interval_ns, known.p50_ms(0)) for each in found)
    assert (means >= COVERED, medians >= COVERED) == (True, True), (means, medians)
    widths = [max(p50 - low, high - p50) / p50 for p50, (low, high) in map(_p50, found)]
    assert np.median(widths) <= 0.02


def _p50(summary: LatencySummary) -> tuple[float, Interval]:
    assert summary.p50_ns is not None
    assert summary.p50_interval_ns is not None
    return summary.p50_ns, summary.p50_interval_ns


@pytest.mark.parametrize("batches", [30, 60, 100, 200, 400])
def test_few_correlated_batches_give_no_interval_rather_than_a_narrow_one(batches: int) -> None:
    known = KNOWN["correlated_0.9"]
    draws = (known.draw(np.random.RandomState(run), batches) for run in range(RUNS))
    measurements = [measured(times_ms, min_batches=batches) for times_ms in draws]
    found = [LatencySummary.of(each) for each in measurements]

    wrong = [
        each
        for each in found
        if each.mean_interval_ns and not covers(each.mean_interval_ns, known.mean_ms(0))
    ]
    assert {each.measured_batches for each in found} == {batches}
    assert len(wrong) <= RUNS - COVERED
    without = [of for of, each in zip(measurements, found, strict=True) if each.mean_interval_ns is None]
    assert all(batches_for_interval(each.full_ns) > batches for each in without)
    assert batches > 100 or len(without) > COVERED


def test_several_processes_cover_what_one_does_not() -> None:
    """Each process is faster or slower by about 1 %, as the layout of its memory makes it."""
    random = np.random.RandomState(3)
    of_one = of_five = 0
    for _ in range(RUNS):
        medians_ns = []
        for process in range(5):
            offset = 1 + PROCESS_SPREAD * random.standard_normal()
            times_ms = offset * BASE_MS * (1 + 0.01 * random.standard_normal(200))
            summary = LatencySummary.of(measured(times_ms, min_batches=200))
            medians_ns.append(_p50(summary)[0])
            of_one += process == 0 and covers(summary.p50_interval_ns, BASE_MS)
        of_five += covers(interval_over(medians_ns), BASE_MS)

    assert of_five >= COVERED
    assert of_one <= RUNS / 2
