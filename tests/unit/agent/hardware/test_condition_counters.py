"""The counters of a machine, read from made-up trees of /proc and /sys."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from sys import executable

import psutil
import pytest

from inferometer.agent.hardware.conditions import (
    ConditionCounters,
    ProcessorTimes,
    own_cpu_s,
    read_counters,
    read_frequencies_mhz,
    read_processors,
)

TICKS = os.sysconf("SC_CLK_TCK")
STAT = """\
cpu  10 20 30 40 50 60 70 80 0 0
cpu0 1 2 3 4 5 6 7 8 0 0
cpu1 100 200 300 400 500 600 700 800 0 0
cpu2 9 9 9 9 9 9 9 9 0 0
intr 12345 1 2 3
"""


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


@pytest.fixture
def proc(tmp_path: Path) -> Path:
    folder = tmp_path / "proc"
    write(folder / "stat", STAT)
    write(folder / "vmstat", "pgfault 9\npswpin 120\npswpout 7\n")
    write(folder / "sys/kernel/random/boot_id", "1b2c\n")
    for number, wait_ns in ((11, 1_500_000_000), (12, 250_000_000)):
        write(folder / f"self/task/{number}/schedstat", f"999 {wait_ns} 5\n")
    write(folder / "self/cgroup", "0::/shop/till\n")
    return folder


@pytest.fixture
def sys(tmp_path: Path) -> Path:
    folder = tmp_path / "sys"
    for number, counts in enumerate(((0, 0), (3, 2))):
        throttle = folder / f"devices/system/cpu/cpu{number}/thermal_throttle"
        write(throttle / "core_throttle_count", f"{counts[0]}\n")
        write(throttle / "package_throttle_count", f"{counts[1]}\n")
        write(throttle / "core_throttle_total_time_ms", "77\n")
    return folder


def cgroup(folder: Path, **numbers: int) -> None:
    write(folder / "cpu.stat", "".join(f"{name} {value}\n" for name, value in numbers.items()))


def test_the_time_is_that_of_the_usable_processors_alone(proc: Path) -> None:
    times = read_processors(proc, usable={0, 1})

    assert times == ProcessorTimes(
        count=2, busy_s=(101 + 202 + 303 + 606 + 707) / TICKS, idle_s=(404 + 505) / TICKS, steal_s=808 / TICKS
    )
    assert times is not None
    assert times.all_s == pytest.approx(sum(n * 101 for n in range(1, 9)) / TICKS)


def test_processors_under_other_numbers_are_all_taken(proc: Path) -> None:
    times = read_processors(proc, usable={41, 42})

    assert times is not None
    assert times.count == 3


def test_memory_waits_heat_and_machine_are_read(proc: Path, sys: Path) -> None:
    found = read_counters(proc=proc, sys=sys)

    assert (found.machine, found.process) == ("1b2c", os.getpid())
    assert (found.swapped_in_pages, found.swapped_out_pages) == (120, 7)
    assert found.waited_s == 1.75
    assert found.heat_throttles == (0, 5)
    assert found.own_cpu_s <= own_cpu_s()
    assert found.minor_faults is not None
    assert found.minor_faults > 0


def test_the_quota_is_that_of_the_group_that_was_throttled_most(proc: Path, sys: Path) -> None:
    root = sys / "fs/cgroup"
    cgroup(root / "shop/till", nr_periods=10, nr_throttled=0, throttled_usec=0)
    cgroup(root / "shop", nr_periods=100, nr_throttled=12, throttled_usec=1_500_000)

    found = read_counters(proc=proc, sys=sys)

    assert (found.quota_periods, found.throttled_periods, found.throttled_s) == (100, 12, 1.5)


def test_in_a_container_the_quota_is_that_of_the_top(proc: Path, sys: Path) -> None:
    cgroup(sys / "fs/cgroup", nr_periods=50, nr_throttled=5, throttled_usec=10)

    assert read_counters(proc=proc, sys=sys).throttled_periods == 5


def test_version_1_of_cgroups_counts_nanoseconds(proc: Path, sys: Path) -> None:
    write(proc / "self/cgroup", "4:memory:/elsewhere\n3:cpu,cpuacct:/job\n0::/\n")
    cgroup(sys / "fs/cgroup/cpu,cpuacct/job", nr_periods=8, nr_throttled=2, throttled_time=3_000_000_000)

    found = read_counters(proc=proc, sys=sys)

    assert (found.quota_periods, found.throttled_periods, found.throttled_s) == (8, 2, 3.0)


def test_what_a_system_does_not_tell_is_not_known(tmp_path: Path) -> None:
    found = read_counters(proc=tmp_path, sys=tmp_path)

    assert found == ConditionCounters(
        machine=found.hostname,
        hostname=found.hostname,
        process=os.getpid(),
        taken_ns=found.taken_ns,
        own_cpu_s=found.own_cpu_s,
        involuntary_switches=found.involuntary_switches,
        major_faults=found.major_faults,
        minor_faults=found.minor_faults,
    )
    assert found.hostname
    assert read_frequencies_mhz(tmp_path) == []


@pytest.mark.parametrize("text", ["", "cpu0 1 2\n", "cpu0 a b c d e f g h\n"])
def test_a_file_with_other_content_is_not_known(proc: Path, text: str) -> None:
    write(proc / "stat", text)

    assert read_processors(proc, usable={0}) is None


def test_frequencies_are_those_of_the_first_processors_that_tell(tmp_path: Path) -> None:
    usable = sorted(os.sched_getaffinity(0))
    for number in usable:
        write(tmp_path / f"devices/system/cpu/cpu{number}/cpufreq/scaling_cur_freq", "2400500\n")

    assert read_frequencies_mhz(tmp_path, most=1) == [2400.5]


def test_own_time_is_that_of_this_process() -> None:
    before_s = own_cpu_s()
    sum(n * n for n in range(300_000))

    assert 0 < own_cpu_s() - before_s < 5


def test_the_cpu_time_of_children_that_belong_to_it_is_its_own() -> None:
    busy = "import sys\nfor number in range(3_000_000): pass\nprint(flush=True)\nsys.stdin.read()"
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen([executable, "-c", busy], **pipes) as child:
        assert child.stdout is not None
        child.stdout.readline()
        alone_s, together_s = own_cpu_s(), own_cpu_s([child.pid])
        of_the_child = psutil.Process(child.pid).cpu_times()
        child.communicate()
    ended_s = own_cpu_s([child.pid])  # among the children that have ended

    used_s = of_the_child.user + of_the_child.system
    assert used_s > 0.02
    assert together_s - alone_s == pytest.approx(used_s, abs=0.02)
    assert ended_s - alone_s >= used_s - 0.02


class Broken(type(Path())):  # type: ignore[misc]  # the class of this system's paths
    """A path whose files cannot be read because of a mistake in the program."""

    def read_text(self, *_: object, **__: object) -> str:
        return None.splitlines()  # type: ignore[attr-defined,no-any-return]


def test_a_mistake_in_the_program_is_not_taken_for_a_missing_value(proc: Path, sys: Path) -> None:
    with pytest.raises(AttributeError, match="splitlines"):
        read_processors(Broken(proc))
    with pytest.raises(AttributeError, match="splitlines"):
        read_counters(proc=Broken(proc), sys=sys)
