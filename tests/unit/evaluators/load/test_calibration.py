"""Calibration in virtual time: what a machine with known costs can send, and what is refused."""

import functools
import math

import numpy as np
import pytest
from virtual_system import NS_PER_S, VirtualClock

from inferometer.evaluators.load.arrivals import (
    BurstArrivals,
    ConstantArrivals,
    Extent,
    PoissonArrivals,
    Schedule,
)
from inferometer.evaluators.load.issuer import RunLimits, run_open_loop
from inferometer.evaluators.load.load_session import (
    LAG_P99_NS,
    LEAST_QPS,
    NullTarget,
    calibrate,
    check_load,
    peak_qps,
)
from inferometer.evaluators.statistics import percentile
from inferometer.manifests.errors import ConfigurationError


@functools.cache
def calibrated(reading_ns, oversleep_ns=60_000):
    clock = VirtualClock(reading_ns, oversleep_ns)
    return calibrate(clock, clock.sleep), clock.now_ns


@pytest.mark.parametrize("reading_ns", [2_000, 8_000, 30_000])
def test_the_ceiling_is_what_the_steps_of_a_query_leave_room_for(reading_ns):
    """A query reads the clock at least twice: when it is due, and when it is answered."""
    ceiling_qps, took_ns = calibrated(reading_ns)

    most_qps = NS_PER_S / (2 * reading_ns)
    assert most_qps / 3 < ceiling_qps < most_qps
    assert took_ns < NS_PER_S
    clock = VirtualClock(reading_ns, 60_000)
    schedule = Schedule.drawn(PoissonArrivals(), ceiling_qps, Extent(0.05), 0)
    run = run_open_loop(NullTarget(clock), schedule, RunLimits(1000), clock=clock, sleep=clock.sleep)
    assert percentile(run.queries.lag_ns, 99) < LAG_P99_NS


def test_a_faster_machine_has_a_higher_ceiling():
    rates = [calibrated(reading_ns)[0] for reading_ns in (30_000, 8_000, 2_000)]
    assert rates == sorted(set(rates))


def test_a_machine_that_wakes_up_too_late_has_the_least_ceiling():
    ceiling_qps, took_ns = calibrated(1_000, oversleep_ns=5_000_000)

    assert ceiling_qps == LEAST_QPS
    assert took_ns < 1.2 * NS_PER_S


def test_a_load_above_half_of_the_ceiling_is_refused_unless_forced():
    check_load(10_000, 20_000.0)
    with pytest.raises(ConfigurationError, match="10001 queries/s is more than 10000, half of what this"):
        check_load(10_001, 20_000.0)


def test_a_load_is_judged_by_its_busiest_second():
    steady = Schedule.drawn(ConstantArrivals(), 100.0, Extent(10.0), 0)
    bursts = Schedule.drawn(BurstArrivals(1.0, 3.0), 100.0, Extent(40.0), 0)
    together = Schedule(np.zeros(7, np.int64), "file", 7.0)

    assert peak_qps(steady) == pytest.approx(100, abs=1)
    assert peak_qps(bursts) > 300
    assert peak_qps(together) == 7
    assert math.isclose(peak_qps(Schedule(np.array([0, 10**8]), "file", 1.0)), 10)
