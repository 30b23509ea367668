"""The figures of an operator's rows."""

from __future__ import annotations

import numpy as np
import pytest

from inferometer.evaluators.kinds.operators.report import Bound, OperatorSummary
from tests.operator_rows import PEAK, noisy, row


def test_the_figures_of_one_process() -> None:
    times = noisy(1e6, seed=1, count=600)
    found = OperatorSummary.of([row(times)], PEAK)
    assert found is not None
    assert found.p50_ns == np.percentile(times, 50)
    assert found.mean_ns == pytest.approx(np.mean(times))
    assert (found.p90_ns, found.p99_ns) == (np.percentile(times, 90), np.percentile(times, 99))
    assert found.interval is not None
    assert found.interval.low < found.p50_ns < found.interval.high
    assert found.interval.high - found.interval.low < 0.01 * found.p50_ns
    assert (found.runs, found.processes, found.near_floor) == (600, 1, False)


def test_rates_and_the_roofline() -> None:
    found = OperatorSummary.of([row([1_000_000] * 100)], PEAK)
    assert found is not None
    assert found.flops_per_s == pytest.approx(1024**2 * 1000)
    assert found.bytes_per_s == pytest.approx(12_582_912_000)
    assert found.flops_share == pytest.approx(1024**2 * 1000 / 100e9)
    assert found.bytes_share == pytest.approx(1.2582912)
    assert (found.arithmetic_intensity, found.bound) == (pytest.approx(1 / 12), Bound.MEMORY)
    dense = OperatorSummary.of([row([1000] * 100, flops=12_582_912 * 10, floor_ns=10.0)], PEAK)
    assert dense is not None
    assert dense.bound is Bound.COMPUTE, "on the ridge"


def test_what_is_not_known_is_none() -> None:
    found = OperatorSummary.of([row([1000] * 5, flops=None, moved_bytes=None)])
    assert found is not None
    assert found.interval is None, "five times are too few"
    assert (found.p90_ns, found.flops_per_s, found.bytes_per_s, found.bound) == (None, None, None, None)
    assert OperatorSummary.of([row()]) is None
    moves = OperatorSummary.of([row([1000] * 5, flops=0)], PEAK)
    assert moves is not None
    assert (moves.flops_per_s, moves.bound) == (None, Bound.MEMORY)


def test_times_of_blocks_are_divided() -> None:
    found = OperatorSummary.of([row(noisy(1e6, seed=1), block=1000)])
    assert found is not None
    assert found.p50_ns == pytest.approx(1000, rel=0.01)
    assert found.interval is not None
    assert found.interval.covers(found.p50_ns)
    assert (found.runs, found.block) == (200_000, 1000)


def test_a_time_below_three_floors_is_flagged() -> None:
    flags = [OperatorSummary.of([row([time_ns] * 30, floor_ns=100.0)]) for time_ns in (299, 300)]
    assert [each.near_floor for each in flags if each] == [True, False]


def test_over_processes_the_processes_are_what_varies() -> None:
    rows = [row(noisy(mean, seed=at), process=at) for at, mean in enumerate([1e6, 1.1e6, 1.2e6], start=1)]
    found = OperatorSummary.of([*rows, row(process=4)])
    assert found is not None
    assert found.processes == 3
    assert found.p50_ns == pytest.approx(1.1e6, rel=0.01)
    assert found.interval is not None
    # Student's t of two degrees of freedom, times 0.1 / √3
    assert found.interval.high == pytest.approx(1.1e6 + 4.303 * 1e5 / 3**0.5, rel=0.02)
