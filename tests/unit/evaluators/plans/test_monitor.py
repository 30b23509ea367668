"""The monitor of a cell, on processes that the tests start and with clocks that they turn."""

from __future__ import annotations

import itertools
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager

import psutil
import pynvml
import pytest

from inferometer.evaluators.plans.running.run_process import Monitor, Spread

TREE = """
import os, sys
for _ in range({children}):
    if os.fork() == 0:
        break
print(os.getpid(), flush=True)
sys.stdin.read()
"""
BUSY_CHILD = """
import os, sys, time
if os.fork() == 0:
    while time.process_time() < 0.3:
        pass
    os._exit(0)
os.wait()
print("waited", flush=True)
sys.stdin.read()
"""


@contextmanager
def started(program: str, lines: int) -> Iterator[int]:
    """A process, after it has printed a number of lines."""
    with subprocess.Popen(
        [sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        for _ in range(lines):
            process.stdout.readline()
        yield process.pid


def samples(count: int) -> Callable[[threading.Event, float], bool]:
    """A wait that ends at once, and the monitor after a number of samples, the last one included."""
    left = itertools.count(count - 2, -1)
    return lambda *_: next(left) <= 0


@pytest.fixture(autouse=True)
def no_driver(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail() -> None:
        raise pynvml.NVMLError(pynvml.NVML_ERROR_LIBRARY_NOT_FOUND)

    monkeypatch.setattr(pynvml, "nvmlInit", fail)


def test_memory_and_number_of_a_tree() -> None:
    with started(TREE.format(children=3), lines=4) as pid:
        tree = [psutil.Process(pid), *psutil.Process(pid).children()]
        resident = sum(each.memory_info().rss for each in tree)
        virtual = sum(each.memory_info().vms for each in tree)
        monitor = Monitor(pid, wait=samples(3))
        monitor.start()
        seen = monitor.stop()
    assert seen.samples == 3
    assert seen.processes == Spread(4, 4, 4)
    assert seen.resident_bytes is not None
    assert seen.resident_bytes.mean == pytest.approx(resident, rel=0.05)
    assert seen.virtual_bytes is not None
    assert seen.virtual_bytes.mean == pytest.approx(virtual, rel=0.05)
    assert seen.gpus == ()
    assert monitor.stop() is seen


def test_a_child_that_has_ended_counts() -> None:
    with started(BUSY_CHILD, lines=1) as pid:
        monitor = Monitor(pid, wait=samples(2))
        monitor.start()
        seen = monitor.stop()
    assert seen.processes == Spread(1, 1, 1)
    assert 0.28 <= seen.cpu_s < 1.0


def test_the_load_is_of_one_core(monkeypatch: pytest.MonkeyPatch) -> None:
    """Three samples 2 s apart, in which the process takes 1 s and 4 s: 50 % and 200 % of one core."""
    taken = iter([10.0, 11.0, 15.0])
    monkeypatch.setattr(
        psutil.Process, "cpu_times", lambda _: psutil._ntp.pcputimes(next(taken), 0.0, 0.0, 0.0, 0.0)
    )
    times = iter([0.0, 0.0, 1.0, 3.0, 5.0, 6.0])
    with started(TREE.format(children=0), lines=1) as pid:
        monitor = Monitor(pid, 2.0, clock=lambda: next(times), wait=samples(3))
        monitor.start()
        seen = monitor.stop()
    assert seen.cpu_percent == Spread(50.0, 125.0, 200.0)
    assert seen.cpu_s == 15.0
    assert seen.reached_interval_s == 2.0
    assert seen.wall_s == 6.0


def test_a_sample_that_costs_much_lengthens_the_interval() -> None:
    waits: list[float] = []
    cpu = itertools.count(0.0, 0.03)

    def wait(_: threading.Event, seconds: float) -> bool:
        waits.append(seconds)
        return len(waits) == 3

    with started(TREE.format(children=0), lines=1) as pid:
        monitor = Monitor(pid, 1.0, cpu_clock=lambda: next(cpu), wait=wait)
        monitor.start()
        seen = monitor.stop()
    assert waits == pytest.approx([3.0, 3.0, 3.0])  # 30 ms are 1 % of 3 s
    assert seen.slowed
    assert seen.own_cpu_s == pytest.approx(0.03 * 7)


def test_no_samples_are_taken_at_an_interval_of_0() -> None:
    monitor = Monitor(os.getppid(), 0)
    monitor.start()
    seen = monitor.stop()
    assert (seen.samples, seen.own_cpu_s, seen.interval_s, seen.cpu_percent) == (0, 0.0, 0.0, None)


def test_a_process_that_is_gone_gives_no_samples() -> None:
    with subprocess.Popen([sys.executable, "-c", ""]) as ended:
        ended.wait()
    monitor = Monitor(ended.pid, wait=samples(3))
    monitor.start()
    seen = monitor.stop()
    assert (seen.samples, seen.cpu_s, seen.resident_bytes) == (0, 0.0, None)


def test_a_process_that_is_killed_meanwhile_ends_the_samples_and_no_more() -> None:
    with started(TREE.format(children=0), lines=1) as pid:
        killed = threading.Event()

        def wait(event: threading.Event, _: float) -> bool:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
            killed.set()
            return event.wait(10)

        monitor = Monitor(pid, wait=wait)
        monitor.start()
        assert killed.wait(10)
        seen = monitor.stop()
    assert seen.samples == 1


def test_a_tree_elsewhere_joins_as_soon_as_it_is_known() -> None:
    with started(TREE.format(children=0), lines=1) as pid, started(TREE.format(children=1), lines=2) as other:
        known = iter([None, other])
        monitor = Monitor(pid, joined=lambda: next(known), wait=samples(3))
        monitor.start()
        seen = monitor.stop()
    assert seen.processes is not None
    assert (seen.processes.min, seen.processes.max) == (1, 3)


def test_it_becomes_json() -> None:
    with started(TREE.format(children=0), lines=1) as pid, closing(Monitor(pid, wait=samples(2))) as monitor:
        monitor.start()
        document = json.loads(json.dumps(monitor.stop().document()))
    assert document["samples"] == 2
    assert document["processes"] == {"min": 1, "mean": 1, "max": 1}
    assert document["gpus"] == []
    assert document["own_share"] == pytest.approx(document["own_cpu_s"] / document["wall_s"])


@pytest.mark.real_time
def test_it_takes_less_than_one_percent_of_a_core() -> None:
    with started(TREE.format(children=19), lines=20) as pid:
        monitor = Monitor(pid)
        monitor.start()
        threading.Event().wait(3.5)
        seen = monitor.stop()
    assert seen.samples >= 3
    assert seen.own_share < 0.01
