"""What disturbs a measurement on this machine, as counters that only grow.

Two readings give what happened between. Nothing here watches: a reading takes about a millisecond. What a
system does not tell is None.
"""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import psutil

PROC = Path("/proc")
SYS = Path("/sys")
_NS_PER_S = 1_000_000_000
_Read = TypeVar("_Read")


@dataclass(frozen=True, slots=True)
class ProcessorTimes:
    """The time of the processors that this process may run on, since the machine started, in seconds.

    Attributes:
        count: Their number.
        busy_s: What programs, the kernel and interrupts took, of all processes.
        idle_s: Idle, also while waiting for a disk.
        steal_s: What the host of a virtual machine gave to others while this one wanted it.
    """

    count: int
    busy_s: float
    idle_s: float
    steal_s: float

    @property
    def all_s(self) -> float:
        """The whole time."""
        return self.busy_s + self.idle_s + self.steal_s


@dataclass(frozen=True, slots=True)
class GpuCounters:
    """What one GPU's driver tells.

    Attributes:
        clock_mhz: The clock of the multiprocessors now.
        clock_limit_mhz: The highest that it may have.
        slowdown: Whether heat or a fault of the power supply slows the clock down now.
        heat_slowed_ns: How long heat has slowed it down.
        power_slowed_ns: How long the power limit has.
        other_processes: Other processes that compute on it, or are ready to.
    """

    clock_mhz: int | None = None
    clock_limit_mhz: int | None = None
    slowdown: bool | None = None
    heat_slowed_ns: int | None = None
    power_slowed_ns: int | None = None
    other_processes: int | None = None


@dataclass(frozen=True, slots=True)
class ConditionCounters:
    """The counters of a machine and of this process at one time; None or empty for what is not told.

    Attributes:
        machine: The same for processes that share processors, also in different containers.
        hostname: The machine's name.
        process: The process's number.
        taken_ns: When they were read, on a monotonic clock of that machine.
        own_cpu_s: The CPU time of this process: its threads, its children that have ended, and those that
            belong to it.
        processors: The time of the processors.
        involuntary_switches: How often this process lost a processor before it gave it up.
        major_faults: Its page faults that read from a disk.
        minor_faults: Its other page faults.
        waited_s: How long its threads that live were ready to run and waited for a processor.
        swapped_in_pages: The machine's pages that came back from swap.
        swapped_out_pages: The machine's pages that went to swap.
        quota_periods: The periods of its group's CPU quota.
        throttled_periods: Those in which the quota was used up.
        throttled_s: How long processors were withheld for that, summed over them.
        heat_throttles: How often heat slowed each processor, or all of its socket, down.
        gpu: The GPU that the model is on.
    """

    machine: str
    hostname: str
    process: int
    taken_ns: int
    own_cpu_s: float
    processors: ProcessorTimes | None = None
    involuntary_switches: int | None = None
    major_faults: int | None = None
    minor_faults: int | None = None
    waited_s: float | None = None
    swapped_in_pages: int | None = None
    swapped_out_pages: int | None = None
    quota_periods: int | None = None
    throttled_periods: int | None = None
    throttled_s: float | None = None
    heat_throttles: tuple[int, ...] = ()
    gpu: GpuCounters | None = None


def read_counters(
    gpu: GpuCounters | None = None, proc: Path = PROC, sys: Path = SYS, *, processes: Iterable[int] = ()
) -> ConditionCounters:
    """Reads the counters of this machine and this process.

    Args:
        gpu: Those of the GPU, read by ``gpu_conditions.GpuReader``.
        proc: Where the system shows its processes.
        sys: Where the system shows its devices.
        processes: The ids of its children whose CPU time belongs to it.
    """
    memory = _optional(_numbers, proc / "vmstat") or {}
    quota = _optional(_quota, proc, sys) or {}
    faults = _optional(_faults) or (None, None, None)
    machine = _optional((proc / "sys/kernel/random/boot_id").read_text, "ascii")
    return ConditionCounters(
        machine=(machine or socket.gethostname()).strip(),
        hostname=socket.gethostname(),
        process=os.getpid(),
        taken_ns=time.monotonic_ns(),
        own_cpu_s=own_cpu_s(processes),
        processors=read_processors(proc),
        involuntary_switches=faults[0],
        major_faults=faults[1],
        minor_faults=faults[2],
        waited_s=_optional(_waited_s, proc),
        swapped_in_pages=memory.get("pswpin"),
        swapped_out_pages=memory.get("pswpout"),
        quota_periods=quota.get("nr_periods"),
        throttled_periods=quota.get("nr_throttled"),
        throttled_s=_throttled_s(quota),
        heat_throttles=tuple(_heat_throttles(sys)),
        gpu=gpu,
    )


def own_cpu_s(processes: Iterable[int] = ()) -> float:
    """The CPU time of this process, in seconds: its threads, its children that have ended, and ``processes``.

    Args:
        processes: The ids of children that belong to it; one that has ended is among those already.
    """
    times = os.times()
    living_s = 0.0
    for process in processes:
        with suppress(psutil.Error):
            used = psutil.Process(process).cpu_times()
            living_s += used.user + used.system
    return time.process_time() + times.children_user + times.children_system + living_s


def read_processors(proc: Path = PROC, usable: Iterable[int] | None = None) -> ProcessorTimes | None:
    """Reads the time of the processors that this process may run on; None where the system does not tell.

    Args:
        proc: Where the system shows its processes.
        usable: The numbers of the processors; None means those of this process.
    """
    return _optional(_processors, proc, set(_usable() if usable is None else usable))


def read_frequencies_mhz(sys: Path = SYS, most: int = 8) -> list[float]:
    """The frequencies of the first processors that this process may run on now, in MHz; empty if unknown."""
    found = []
    for number in sorted(_usable())[:most]:
        path = sys / f"devices/system/cpu/cpu{number}/cpufreq/scaling_cur_freq"
        if (khz := _optional(_number, path)) is not None:
            found.append(khz / 1000)
    return found


def _optional(read: Callable[..., _Read], *given: object) -> _Read | None:
    """What a system tells, or None where it has no such file, or another content than Linux's."""
    with suppress(OSError, ValueError, IndexError, KeyError, ImportError):
        return read(*given)
    return None


def _usable() -> Iterable[int]:
    try:
        return os.sched_getaffinity(0)
    except AttributeError:  # not every system has processor affinity
        return range(os.cpu_count() or 1)


def _processors(proc: Path, usable: set[int]) -> ProcessorTimes:
    lines = [line.split() for line in (proc / "stat").read_text(encoding="ascii").splitlines()]
    every = {fields[0]: list(map(int, fields[1:9])) for fields in lines if fields[0].startswith("cpu")}
    # a container may be shown fewer processors than there are, under other numbers
    names = {f"cpu{number}" for number in usable} & set(every) or set(every) - {"cpu"}
    user, nice, system, idle, waiting, interrupts, soft_interrupts, steal = (
        sum(column) / os.sysconf("SC_CLK_TCK")
        for column in zip(*(every[name] for name in sorted(names)), strict=True)
    )
    busy_s = user + nice + system + interrupts + soft_interrupts
    return ProcessorTimes(len(names), busy_s, idle + waiting, steal)


def _number(path: Path) -> int:
    return int(path.read_text(encoding="ascii"))


def _faults() -> tuple[int, int, int]:
    import resource  # which not every system has

    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_nivcsw, used.ru_majflt, used.ru_minflt


def _waited_s(proc: Path) -> float:
    """Of each thread, the second number: the time it was ready and waited (Linux's sched-stats.rst)."""
    threads = list((proc / "self/task").iterdir())
    waits = (_optional(_second, each / "schedstat") for each in threads)
    known = [wait for wait in waits if wait is not None]  # a thread may end meanwhile
    if not known:
        raise ValueError("no thread tells")
    return sum(known) / _NS_PER_S


def _second(path: Path) -> int:
    return int(path.read_text(encoding="ascii").split()[1])


def _numbers(path: Path) -> dict[str, int]:
    """A file of lines, each a name and a number."""
    lines = (line.split() for line in path.read_text(encoding="ascii").splitlines())
    return {fields[0]: int(fields[1]) for fields in lines if len(fields) == 2}


def _quota(proc: Path, sys: Path) -> Mapping[str, int]:
    """``cpu.stat`` of this process's group, or of the group above it whose quota withheld the most."""
    found = [numbers for path in _groups(proc, sys) if "nr_throttled" in (numbers := _quota_file(path))]
    return max(found, key=lambda numbers: numbers["nr_throttled"])


def _quota_file(path: Path) -> Mapping[str, int]:
    return _optional(_numbers, path / "cpu.stat") or {}


def _groups(proc: Path, sys: Path) -> Iterator[Path]:
    """The folders of this process's group and those above it, in version 2 and version 1 of cgroups."""
    root = sys / "fs/cgroup"
    for line in (proc / "self/cgroup").read_text(encoding="utf-8").splitlines():
        _, controllers, path = line.split(":", 2)
        tops = [root] if not controllers else [root / controllers, root / "cpu"]
        if controllers and "cpu" not in controllers.split(","):
            continue
        for top in tops:
            group = top / path.lstrip("/")
            # in a container, the path may be that of the host, and the group is the top
            yield from (each for each in (group, *group.parents) if each == top or top in each.parents)


def _throttled_s(quota: Mapping[str, int]) -> float | None:
    if "throttled_usec" in quota:  # version 2
        return quota["throttled_usec"] / 1e6
    return quota["throttled_time"] / _NS_PER_S if "throttled_time" in quota else None


def _heat_throttles(sys: Path) -> Iterator[int]:
    """The sum for each processor, in a fixed order."""
    for folder in sorted((sys / "devices/system/cpu").glob("cpu[0-9]*/thermal_throttle")):
        counts = (
            _optional(lambda each=each: int(each.read_text())) for each in folder.glob("*_throttle_count")
        )
        yield sum(count or 0 for count in counts)
