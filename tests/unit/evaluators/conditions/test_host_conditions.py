"""What happened on a host between two readings, and which of it disturbs."""

from __future__ import annotations

from dataclasses import replace

import pytest

from inferometer.agent.hardware.conditions import (
    ConditionCounters,
    GpuCounters,
    ProcessorTimes,
    Sample,
    Samples,
)
from inferometer.evaluators.conditions.conditions import HostConditions, Spread, host_conditions

BEGIN = ConditionCounters(
    machine="boot",
    hostname="bench-1",
    process=17,
    taken_ns=10**9,
    own_cpu_s=50.0,
    processors=ProcessorTimes(2, busy_s=100.0, idle_s=1000.0, steal_s=10.0),
    involuntary_switches=5,
    major_faults=1,
    minor_faults=1000,
    waited_s=2.0,
    swapped_in_pages=100,
    swapped_out_pages=0,
    quota_periods=1000,
    throttled_periods=10,
    throttled_s=1.0,
    heat_throttles=(3, 0),
)


def later(
    seconds: float, own_s: float, busy_s: float, steal_s: float = 0.0, **changes: object
) -> ConditionCounters:
    """The counters after some seconds of two processors."""
    assert BEGIN.processors is not None
    times = BEGIN.processors
    return replace(
        BEGIN,
        taken_ns=BEGIN.taken_ns + round(seconds * 1e9),
        own_cpu_s=BEGIN.own_cpu_s + own_s,
        processors=ProcessorTimes(
            2, times.busy_s + busy_s, times.idle_s + 2 * seconds - busy_s - steal_s, times.steal_s + steal_s
        ),
        **changes,  # type: ignore[arg-type] # a field's value
    )


def between(end: ConditionCounters, samples: Samples | None = None) -> HostConditions:
    return host_conditions([BEGIN], [end], samples)


def test_others_took_what_was_busy_without_this_process() -> None:
    found = between(later(10.0, own_s=7.0, busy_s=16.6))

    assert found.own_cpu_s == 7.0
    assert found.others_share == pytest.approx(9.6 / 20)
    assert list(found.disturbances()) == ["other processes took 48 % of the CPU"]


def test_what_several_measured_processes_took_is_not_that_of_others() -> None:
    end = later(10.0, own_s=7.0, busy_s=16.6)
    one, two = replace(BEGIN, process=18, own_cpu_s=1.0), replace(end, process=18, own_cpu_s=10.5)

    assert host_conditions([BEGIN, one], [end, two]).others_share == pytest.approx(0.1 / 20)


@pytest.mark.parametrize(("busy_s", "disturbed"), [(7.9, False), (8.1, True)])
def test_others_disturb_from_a_twentieth_on(busy_s: float, disturbed: bool) -> None:
    assert bool(list(between(later(10.0, 7.0, busy_s)).disturbances())) is disturbed


def test_the_host_took_steal() -> None:
    found = between(later(10.0, own_s=6.9, busy_s=6.9, steal_s=3.1))

    assert found.steal_share == pytest.approx(0.31)
    assert list(found.disturbances()) == ["the host took 31 % of the CPU (steal)"]


def test_a_tick_of_steal_beside_an_idle_process_is_nothing() -> None:
    assert between(later(10.0, own_s=0.05, busy_s=0.05, steal_s=0.03)).steal_share == 0.0


def test_in_a_short_run_the_ticks_tell_nothing() -> None:
    found = between(later(0.4, own_s=0.1, busy_s=0.8))

    assert (found.others_share, found.steal_share, found.processors) == (None, None, 2)
    assert not found.is_known


@pytest.mark.parametrize(
    ("changes", "line"),
    [
        ({"quota_periods": 1100, "throttled_periods": 22}, "the CPU quota throttled it 12 % of the time"),
        ({"heat_throttles": (4, 1)}, "heat slowed 2 processors down"),
        ({"heat_throttles": (3, 1)}, "heat slowed 1 processor down"),
        ({"swapped_in_pages": 220}, "120 pages came back from swap"),
    ],
)
def test_other_disturbances_name_their_figure(changes: dict[str, object], line: str) -> None:
    assert list(between(later(10.0, 7.0, 7.0, **changes)).disturbances()) == [line]


def test_a_quiet_host_disturbs_nothing() -> None:
    quiet = {"quota_periods": 1100, "swapped_in_pages": 110, "involuntary_switches": 900, "major_faults": 50}
    found = between(later(10.0, 7.0, 7.2, steal_s=0.05, **quiet))

    assert list(found.disturbances()) == []
    assert (found.involuntary_switches, found.major_faults, found.throttled_share) == (895, 49, 0.0)


def test_the_share_of_the_time_is_that_of_the_looks() -> None:
    looks = [Sample(0.0, ProcessorTimes(2, 0.0, 0.0, 0.0), (1000.0, 3000.0))]
    for others_s in (0.5, 0.5, 0.0, 0.01):  # of 1 s each time
        last = looks[-1].processors
        assert last is not None
        times = ProcessorTimes(2, last.busy_s + 0.5 + others_s, last.idle_s + 0.5 - others_s, 0.0)
        looks.append(Sample(looks[-1].own_cpu_s + 0.5, times, (2000.0, 2000.0)))

    found = between(later(10.0, 7.0, 16.6), Samples(tuple(looks), cpu_s=0.001))

    assert found.others_time_share == 0.5
    assert list(found.disturbances()) == ["other processes took 48 % of the CPU, in 50 % of the time"]
    assert found.frequency_mhz == Spread(1000.0, 2000.0, 3000.0)
    assert (found.looks, found.watching_cpu_s) == (5, 0.001)


def test_a_gpu_that_others_use_or_heat_slows_disturbs() -> None:
    begin = replace(BEGIN, gpu=GpuCounters(1980, 1980, False, 0, 0, 0))
    end = replace(later(10.0, 1.0, 1.0), gpu=GpuCounters(1200, 1980, False, 3 * 10**9, 10**9, 1))
    looks = (Sample(0.0, gpu=GpuCounters(1500, 1980, True)),)

    found = host_conditions([begin], [end], Samples(looks))

    assert found.gpu_clock_mhz == Spread(1200.0, 1560.0, 1980.0)
    assert (found.gpu_heat_share, found.gpu_power_share, found.gpu_clock_limit_mhz) == (0.3, 0.1, 1980)
    assert list(found.disturbances()) == [
        "1 other process had the GPU open",
        "heat or power supply slowed the GPU down 33 % of the time",
    ]


def test_what_is_not_told_is_not_known() -> None:
    begin = ConditionCounters("boot", "mac", 1, 0, 1.0)

    found = host_conditions([begin], [replace(begin, taken_ns=2 * 10**9, own_cpu_s=2.5)])

    assert found == HostConditions(hostname="mac", duration_s=2.0, own_cpu_s=1.5)
    assert list(found.disturbances()) == []
