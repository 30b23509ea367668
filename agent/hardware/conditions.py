"""Disturbances of a measurement on this machine: other processes, clocks, heat, and the load of GPUs.

Counters only grow: two readings give what happened between, and a reading takes about a millisecond. What
a system or NVIDIA's driver does not tell is None. ``ConditionSampler`` is a thread that looks now and
then at what has no counter: clocks, and when others took the processors. ``GpuReader`` reads the GPU of a
model, ``GpuUseReader`` how busy every GPU is.
"""

from __future__ import annotations

import os
import socket
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import psutil
import pynvml

from inferometer.agent.closeable import Closeable
from inferometer.agent.hardware.environment import Device, usable_processors

PROC = Path("/proc")
SYS = Path("/sys")
_NS_PER_S = 1_000_000_000
_Read = TypeVar("_Read")


@dataclass(frozen=True, slots=True)
class ProcessorTimes:
    """The time of the processors that this process may run on, since the machine started, in seconds.

    Attributes:
        count: Their number.
        busy_s: The time of programs, the kernel and interrupts, for all processes.
        idle_s: The idle time, including waits for a disk.
        steal_s: The time that the host of a virtual machine gave to others while this one wanted it.
    """

    count: int
    busy_s: float
    idle_s: float
    steal_s: float

    @property
    def all_s(self) -> float:
        """The total time."""
        return self.busy_s + self.idle_s + self.steal_s


@dataclass(frozen=True, slots=True)
class GpuCounters:
    """The counters that the driver of one GPU reports.

    Attributes:
        clock_mhz: The clock of the multiprocessors now.
        clock_limit_mhz: The maximum of that clock.
        slowdown: Whether heat or a fault of the power supply slows the clock down now.
        heat_slowed_ns: How long heat has slowed it down.
        power_slowed_ns: How long the power limit has slowed it down.
        other_processes: The number of other processes that compute on it or are ready to.
    """

    clock_mhz: int | None = None
    clock_limit_mhz: int | None = None
    slowdown: bool | None = None
    heat_slowed_ns: int | None = None
    power_slowed_ns: int | None = None
    other_processes: int | None = None


@dataclass(frozen=True, slots=True)
class ConditionCounters:
    """The counters of a machine and of this process at one time; None or empty if not reported.

    Attributes:
        machine: An id that processes share if they share processors, even in different containers.
        hostname: The machine's name.
        process: The process's id.
        taken_ns: When they were read, on a monotonic clock of that machine.
        own_cpu_s: The CPU time of this process: its threads, its children that have ended, and those that
            belong to it.
        processors: The time of the processors.
        involuntary_switches: How often this process was preempted.
        major_faults: Its page faults that read from a disk.
        minor_faults: Its other page faults.
        waited_s: How long its live threads were ready to run and waited for a processor.
        swapped_in_pages: The machine's pages that were read back from swap.
        swapped_out_pages: The machine's pages that were written to swap.
        quota_periods: The periods of its group's CPU quota.
        throttled_periods: The periods in which the quota was used up.
        throttled_s: How long processors were withheld for that, summed over them.
        heat_throttles: How often heat slowed down each processor or its whole socket.
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
        gpu: The counters of the GPU, read by ``GpuReader``.
        proc: The folder of the ``proc`` file system.
        sys: The folder of the ``sys`` file system.
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
    """Returns the CPU time of this process in seconds: its threads, its ended children, and ``processes``.

    Args:
        processes: The ids of children that belong to it; those that have ended are included anyway.
    """
    times = os.times()
    living_s = 0.0
    for process in processes:
        with suppress(psutil.Error):
            used = psutil.Process(process).cpu_times()
            living_s += used.user + used.system
    return time.process_time() + times.children_user + times.children_system + living_s


def read_processors(proc: Path = PROC, usable: Iterable[int] | None = None) -> ProcessorTimes | None:
    """Reads the time of the processors that this process may run on; None if the system does not report it.

    Args:
        proc: The folder of the ``proc`` file system.
        usable: The numbers of the processors; None means those of this process.
    """
    return _optional(_processors, proc, set(usable_processors() if usable is None else usable))


def read_frequencies_mhz(sys: Path = SYS, most: int = 8) -> list[float]:
    """Returns the current frequencies, in MHz, of the first processors of this process; empty if unknown."""
    found = []
    for number in sorted(usable_processors())[:most]:
        path = sys / f"devices/system/cpu/cpu{number}/cpufreq/scaling_cur_freq"
        if (khz := _optional(_number, path)) is not None:
            found.append(khz / 1000)
    return found


def _optional(read: Callable[..., _Read], *given: object) -> _Read | None:
    """Returns a value of the system, or None where it has no such file, or one that differs from Linux's."""
    with suppress(OSError, ValueError, IndexError, KeyError, ImportError):
        return read(*given)
    return None


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


def _number(path: Path, place: int = 0) -> int:
    """Returns one of the numbers in a file."""
    return int(path.read_text(encoding="ascii").split()[place])


def _faults() -> tuple[int, int, int]:
    import resource  # which not every system has

    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_nivcsw, used.ru_majflt, used.ru_minflt


def _waited_s(proc: Path) -> float:
    """The time that all threads were ready and waited, each one's second number (Linux's sched-stats.rst)."""
    threads = list((proc / "self/task").iterdir())
    waits = (_optional(_number, each / "schedstat", 1) for each in threads)
    known = [wait for wait in waits if wait is not None]  # a thread may end meanwhile
    if not known:
        raise ValueError("no thread reports its waits")
    return sum(known) / _NS_PER_S


def _numbers(path: Path) -> dict[str, int]:
    """Reads a file of lines, each with a name and a number."""
    lines = (line.split() for line in path.read_text(encoding="ascii").splitlines())
    return {fields[0]: int(fields[1]) for fields in lines if len(fields) == 2}


def _quota(proc: Path, sys: Path) -> Mapping[str, int]:
    """Returns ``cpu.stat`` of the group, this process's or one above it, with the most throttled periods."""
    files = (_optional(_numbers, path / "cpu.stat") or {} for path in _groups(proc, sys))
    found = [numbers for numbers in files if "nr_throttled" in numbers]
    return max(found, key=lambda numbers: numbers["nr_throttled"])


def _groups(proc: Path, sys: Path) -> Iterator[Path]:
    """Yields the folders of this process's group and of those above it, in cgroups version 2 and 1."""
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
    """Yields the sum for each processor, in a fixed order."""
    for folder in sorted((sys / "devices/system/cpu").glob("cpu[0-9]*/thermal_throttle")):
        counts = (_optional(_number, each) for each in folder.glob("*_throttle_count"))
        yield sum(count or 0 for count in counts)


INTERVAL_S = 0.5
MOST_SHARE = 0.0025
"""The thread's maximum share of the process's CPU time; if a sample costs more, it samples less often."""
_LONGEST_PAUSE_S = 3600.0
_LEAVING_S = 5.0


@dataclass(frozen=True, slots=True)
class Sample:
    """One sample.

    Attributes:
        own_cpu_s: The CPU time of this process so far.
        processors: The time of the processors so far; None if unknown.
        frequencies_mhz: The frequencies of some processors now; empty if unknown.
        gpu: The counters of the GPU now; None without a GPU.
    """

    own_cpu_s: float
    processors: ProcessorTimes | None = None
    frequencies_mhz: tuple[float, ...] = ()
    gpu: GpuCounters | None = None


@dataclass(frozen=True, slots=True)
class Samples:
    """The samples of a sampler, in order, and the CPU time of its thread in seconds."""

    looks: tuple[Sample, ...] = ()
    cpu_s: float = 0.0


def look(read_gpu: Callable[[], GpuCounters | None] = lambda: None, processes: Iterable[int] = ()) -> Sample:
    """Takes one sample; ``processes`` are children whose CPU time belongs to this process."""
    return Sample(own_cpu_s(processes), read_processors(), tuple(read_frequencies_mhz()), read_gpu())


@dataclass(eq=False)
class ConditionSampler:
    """Samples every ``interval_s`` from ``start`` to ``stop``, in a thread that measures its own CPU time.

    A process that hardly runs, because others have the processors or the model is on a GPU, is sampled less
    often.
    """

    look: Callable[[], Sample] = look
    interval_s: float = INTERVAL_S
    _looks: list[Sample] = field(default_factory=list)
    _cpu_s: float = 0.0
    _ended: threading.Event = field(default_factory=threading.Event)
    _thread: threading.Thread | None = None

    def start(self) -> None:
        """Starts sampling."""
        self._thread = threading.Thread(target=self._run, name="watch-conditions", daemon=True)
        self._thread.start()

    def stop(self) -> Samples:
        """Stops sampling and returns the samples; calling it again returns the same."""
        self._ended.set()
        if self._thread is not None:
            self._thread.join(_LEAVING_S)
        return Samples(tuple(self._looks), self._cpu_s)

    def _run(self) -> None:
        began_s, cpu_at_start_s = time.monotonic(), time.process_time()
        pause_s = self.interval_s
        while not self._ended.wait(pause_s):
            before_s = time.thread_time()
            self._looks.append(self.look())
            self._cpu_s = time.thread_time()
            running = (time.process_time() - cpu_at_start_s) / max(time.monotonic() - began_s, 1e-9)
            wanted_s = (self._cpu_s - before_s) / MOST_SHARE / max(running, 1e-6)
            pause_s = min(max(self.interval_s, wanted_s), _LONGEST_PAUSE_S)


_SLOWDOWN = (
    pynvml.nvmlClocksThrottleReasonHwSlowdown
    | pynvml.nvmlClocksThrottleReasonHwThermalSlowdown
    | pynvml.nvmlClocksThrottleReasonHwPowerBrakeSlowdown
    | pynvml.nvmlClocksThrottleReasonSwThermalSlowdown
)
"""The power limit is not included: under full load it is the usual state."""
_MILLIWATTS = 1000.0
_FIGURES: Mapping[str, Callable[[Any], float]] = {
    "utilization_percent": lambda gpu: int(pynvml.nvmlDeviceGetUtilizationRates(gpu).gpu),
    "memory_bytes": lambda gpu: int(pynvml.nvmlDeviceGetMemoryInfo(gpu).used),
    "power_watts": lambda gpu: pynvml.nvmlDeviceGetPowerUsage(gpu) / _MILLIWATTS,
    "sm_clock_mhz": lambda gpu: int(pynvml.nvmlDeviceGetClockInfo(gpu, pynvml.NVML_CLOCK_SM)),
    "temperature_celsius": lambda gpu: int(pynvml.nvmlDeviceGetTemperature(gpu, pynvml.NVML_TEMPERATURE_GPU)),
}
_USE = ("utilization_percent", "memory_bytes", "power_watts")
_Told = TypeVar("_Told")


class _Driver(Closeable):
    """NVIDIA's driver and the GPUs that ``find`` returns; if there are none, ``error`` may say why."""

    def __init__(self, find: Callable[[], list[Any]] | None) -> None:
        self.error: Exception | None = None
        self._gpus: list[Any] = []
        self._open = False
        if find is None:
            return
        try:
            pynvml.nvmlInit()
            self._open = True
            self._gpus = find()
        except (pynvml.NVMLError, ValueError) as error:  # ValueError: a name that is no text
            self.error = error

    def close(self) -> None:
        """Releases the driver; calling it again does nothing."""
        if self._open:
            self._open, self._gpus = False, []
            with suppress(pynvml.NVMLError):
                pynvml.nvmlShutdown()


class GpuReader(_Driver):
    """Reads the GPU that a model is on; without a GPU or a driver, there is nothing to read.

    If GPUs differ, CUDA puts the fastest first unless ``CUDA_DEVICE_ORDER`` is ``PCI_BUS_ID``; this order is
    not reproduced here.

    Args:
        device: The device of the model, whose process has the GPU open.
    """

    def __init__(self, device: Device) -> None:
        super().__init__((lambda: [_gpu_of_index(device.index)]) if device.is_gpu else None)

    def read(self) -> GpuCounters | None:
        """Reads the counters; None without a GPU."""
        gpu = next(iter(self._gpus), None)
        if gpu is None:
            return None
        reasons = _told_by_driver(lambda: int(pynvml.nvmlDeviceGetCurrentClocksThrottleReasons(gpu)))
        return GpuCounters(
            clock_mhz=_told_by_driver(lambda: pynvml.nvmlDeviceGetClockInfo(gpu, pynvml.NVML_CLOCK_SM)),
            clock_limit_mhz=_told_by_driver(
                lambda: pynvml.nvmlDeviceGetMaxClockInfo(gpu, pynvml.NVML_CLOCK_SM)
            ),
            slowdown=None if reasons is None else bool(reasons & _SLOWDOWN),
            heat_slowed_ns=_slowed_ns(gpu, pynvml.NVML_PERF_POLICY_THERMAL),
            power_slowed_ns=_slowed_ns(gpu, pynvml.NVML_PERF_POLICY_POWER),
            other_processes=_told_by_driver(lambda: _others(gpu)),
        )

    def figures(self) -> dict[str, float]:
        """Reads use, memory, power, clock and temperature, if the driver reports them, as ``gpu_…``."""
        return {f"gpu_{name}": found for gpu in self._gpus for name, found in _figures(gpu, _FIGURES).items()}


class GpuUseReader(_Driver):
    """Reads utilization, memory and power of every GPU of this machine; of none without a GPU or a driver.

    ``CUDA_VISIBLE_DEVICES`` does not matter: the order is the driver's, and the work of other processes on
    a GPU counts too.
    """

    def __init__(self) -> None:
        super().__init__(
            lambda: list(map(pynvml.nvmlDeviceGetHandleByIndex, range(pynvml.nvmlDeviceGetCount())))
        )

    def read(self) -> tuple[dict[str, float], ...]:
        """Reads the figures of each GPU, as far as its driver reports them.

        They are ``utilization_percent`` (the part of the driver's last period in which a kernel ran),
        ``memory_bytes`` (of all processes) and ``power_watts``.
        """
        return tuple(
            {name: float(found) for name, found in _figures(gpu, _USE).items()} for gpu in self._gpus
        )


def _told_by_driver(read: Callable[[], _Told]) -> _Told | None:
    """Returns a value that the driver reports, or None where it does not."""
    try:
        return read()
    except (pynvml.NVMLError, AttributeError, IndexError, ValueError):
        return None


def _gpu_of_index(index: int) -> Any:
    """Returns the GPU with this index in a framework, which sees those in ``CUDA_VISIBLE_DEVICES``."""
    visible = [name.strip() for name in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if name.strip()]
    if visible and index >= len(visible):
        raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_FOUND)
    name = visible[index] if visible else str(index)
    if name.isdecimal():
        return pynvml.nvmlDeviceGetHandleByIndex(int(name))
    return pynvml.nvmlDeviceGetHandleByUUID(name)


def _slowed_ns(gpu: Any, policy: int) -> int | None:
    return _told_by_driver(lambda: int(pynvml.nvmlDeviceGetViolationStatus(gpu, policy).violationTime))


def _others(gpu: Any) -> int:
    """Counts the other processes that compute on the GPU; in a container, this one's id may differ there."""
    processes = {process.pid for process in pynvml.nvmlDeviceGetComputeRunningProcesses(gpu)}
    return len(processes - {os.getpid()}) if os.getpid() in processes else max(len(processes) - 1, 0)


def _figures(gpu: Any, names: Iterable[str]) -> dict[str, float]:
    told = {name: _told_by_driver(partial(_FIGURES[name], gpu)) for name in names}
    return {name: found for name, found in told.items() if found is not None}


def process_tree(root: int) -> tuple[int, ...]:
    """Returns the ids of a process and of all its descendants, except this process.

    A process that no longer exists has none.
    """
    with suppress(psutil.Error):
        process = psutil.Process(root)
        every = (process, *process.children(recursive=True))
        return tuple(each.pid for each in every if each.pid != os.getpid())
    return ()
