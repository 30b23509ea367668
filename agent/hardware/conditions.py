"""Disturbances of a measurement on this machine: other processes, clocks, heat, and the load of GPUs.

Counters only grow: two readings show what happened between them. A reading takes about a millisecond. Values
that the system or NVIDIA's driver does not report are None. ``ConditionSampler`` is a thread that samples
what has no counter: clocks, and when other processes used the processors. ``GpuReader`` reads the GPU of a
model, ``EnergyMeter`` the power of its device, and ``GpuUseReader`` how busy every GPU is.
"""

from __future__ import annotations

import math
import os
import socket
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
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
_UNREPORTED = (OSError, ValueError, LookupError, ImportError, pynvml.NVMLError)
_Read = TypeVar("_Read")


@dataclass(frozen=True, slots=True)
class ProcessorTimes:
    """Times of the processors that this process may use, since the machine started, in seconds.

    Attributes:
        count: The number of processors.
        busy_s: The time spent in programs, the kernel and interrupts, for all processes.
        idle_s: The idle time, including waits for a disk.
        steal_s: The time that a virtual machine's host gave to other machines while this one wanted to run.
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
    """The counters that the driver reports for one GPU, or for several together: see ``_COUNTERS``.

    Attributes:
        clock_mhz: The current clock of the multiprocessors.
        clock_limit_mhz: The maximum clock of the multiprocessors.
        slowdown: Whether heat or a power-supply fault is slowing the clock down now.
        heat_slowed_ns: How long heat has slowed the clock down.
        power_slowed_ns: How long the power limit has slowed the clock down.
        other_processes: The number of other processes that compute on the GPU or are ready to.
    """

    clock_mhz: int | None = None
    clock_limit_mhz: int | None = None
    slowdown: bool | None = None
    heat_slowed_ns: int | None = None
    power_slowed_ns: int | None = None
    other_processes: int | None = None


@dataclass(frozen=True, slots=True)
class ConditionCounters:
    """The counters of a machine and of this process at one time; None or empty if they are not reported.

    Attributes:
        machine: An id that is the same for all processes that share processors, even across containers.
        hostname: The machine's name.
        process: The id of this process.
        taken_ns: When the counters were read, on a monotonic clock of the machine.
        own_cpu_s: The CPU time of this process: its threads, its ended children, and the running children
            that belong to it.
        processors: The times of the processors.
        involuntary_switches: How often this process was preempted.
        major_faults: The page faults of this process that read from a disk.
        minor_faults: The other page faults of this process.
        waited_s: How long its live threads were ready to run but waited for a processor.
        swapped_in_pages: The number of pages that the machine read back from swap.
        swapped_out_pages: The number of pages that the machine wrote to swap.
        quota_periods: The number of periods of its control group's CPU quota.
        throttled_periods: The number of periods in which the quota was used up.
        throttled_s: How long processors were withheld for this reason, summed over the processors.
        heat_throttles: How many times heat slowed down each processor or its whole socket.
        gpu: The counters of the model's GPU.
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
    """Reads the counters of this machine and this process, beside those of the GPU from ``GpuReader``.

    The CPU time of the children ``processes`` is counted as this process's.
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
    """Returns this process's CPU time in seconds: its threads, ended children, and running ``processes``."""
    times = os.times()
    living_s = 0.0
    for process in processes:
        with suppress(psutil.Error):
            used = psutil.Process(process).cpu_times()
            living_s += used.user + used.system
    return time.process_time() + times.children_user + times.children_system + living_s


def read_processors(proc: Path = PROC, usable: Iterable[int] | None = None) -> ProcessorTimes | None:
    """Reads the times of the ``usable`` processors, by default those that this process may use.

    None if they are not reported.
    """
    return _optional(_processors, proc, set(usable_processors() if usable is None else usable))


def read_frequencies_mhz(sys: Path = SYS, most: int = 8) -> list[float]:
    """Returns the current frequencies, in MHz, of this process's first processors; empty if unknown."""
    found = []
    for number in sorted(usable_processors())[:most]:
        path = sys / f"devices/system/cpu/cpu{number}/cpufreq/scaling_cur_freq"
        if (khz := _optional(_number, path)) is not None:
            found.append(khz / 1000)
    return found


def _optional(read: Callable[..., _Read], *given: object) -> _Read | None:
    """Returns a value; None if the system or the driver lacks it, or has it in a form other than Linux's."""
    with suppress(*_UNREPORTED):
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
    """Returns the number at one position in a file."""
    return int(path.read_text(encoding="ascii").split()[place])


def _faults() -> tuple[int, int, int]:
    import resource  # which not every system has

    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_nivcsw, used.ru_majflt, used.ru_minflt


def _waited_s(proc: Path) -> float:
    """Sums the times all threads waited ready to run, each one's second number (Linux's sched-stats.rst)."""
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
    """Returns ``cpu.stat`` of the most throttled group among this process's group and those above it."""
    files = (_optional(_numbers, path / "cpu.stat") or {} for path in control_groups(proc, sys, "cpu"))
    found = [numbers for numbers in files if "nr_throttled" in numbers]
    return max(found, key=lambda numbers: numbers["nr_throttled"])


def control_groups(proc: Path, sys: Path, controller: str) -> Iterator[Path]:
    """Yields the folders of this process's group and the groups above it, for cgroups versions 2 and 1.

    Raises:
        OSError: The system has no control groups.
    """
    root = sys / "fs/cgroup"
    for line in (proc / "self/cgroup").read_text(encoding="utf-8").splitlines():
        _, controllers, path = line.split(":", 2)
        tops = [root] if not controllers else [root / controllers, root / controller]
        if controllers and controller not in controllers.split(","):
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
"""The sampling thread's maximum share of the process's CPU time; it samples less often to stay below it."""
_LONGEST_PAUSE_S = 3600.0
_LEAVING_S = 5.0


@dataclass(frozen=True, slots=True)
class Sample:
    """One sample of the conditions.

    Attributes:
        own_cpu_s: The CPU time of this process so far.
        processors: The times of the processors so far; None if unknown.
        frequencies_mhz: The current frequencies of some processors; empty if unknown.
        gpu: The current counters of the GPU; None if there is no GPU.
    """

    own_cpu_s: float
    processors: ProcessorTimes | None = None
    frequencies_mhz: tuple[float, ...] = ()
    gpu: GpuCounters | None = None


@dataclass(frozen=True, slots=True)
class Samples:
    """A sampler's samples, in order, and the CPU time of its thread in seconds."""

    looks: tuple[Sample, ...] = ()
    cpu_s: float = 0.0


def look(read_gpu: Callable[[], GpuCounters | None] = lambda: None, processes: Iterable[int] = ()) -> Sample:
    """Takes one sample; the CPU time of the children ``processes`` is counted as this process's."""
    return Sample(own_cpu_s(processes), read_processors(), tuple(read_frequencies_mhz()), read_gpu())


@dataclass(eq=False)
class ConditionSampler:
    """Samples every ``interval_s`` from ``start`` to ``stop``, in a thread that measures its own CPU time.

    A process that hardly runs, because others occupy the processors or the model is on a GPU, is sampled less
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
        """Stops sampling and returns the samples; further calls return the same samples."""
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
"""The power limit is not included, because under full load it is normally reached."""
_MILLIWATTS = 1000.0
_FIGURES: Mapping[str, Callable[[Any], float]] = {
    "utilization_percent": lambda gpu: int(pynvml.nvmlDeviceGetUtilizationRates(gpu).gpu),
    "memory_bytes": lambda gpu: int(pynvml.nvmlDeviceGetMemoryInfo(gpu).used),
    "power_watts": lambda gpu: pynvml.nvmlDeviceGetPowerUsage(gpu) / _MILLIWATTS,
    "sm_clock_mhz": lambda gpu: int(pynvml.nvmlDeviceGetClockInfo(gpu, pynvml.NVML_CLOCK_SM)),
    "temperature_celsius": lambda gpu: int(pynvml.nvmlDeviceGetTemperature(gpu, pynvml.NVML_TEMPERATURE_GPU)),
}
_USE = ("utilization_percent", "memory_bytes", "power_watts")


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
    """Reads the GPUs on which a model runs; without a GPU or a driver, it reads nothing.

    If the GPUs differ, CUDA numbers the fastest one first unless ``CUDA_DEVICE_ORDER`` is ``PCI_BUS_ID``;
    that order is not reproduced here.
    """

    def __init__(self, device: Device) -> None:
        super().__init__((lambda: list(map(gpu_of_index, set(device.indices)))) if device.is_gpu else None)

    def read(self) -> GpuCounters | None:
        """Reads the counters of the GPUs together; returns None if there is no GPU."""
        found: dict[str, Any] = {}
        for name, (read, together) in _COUNTERS.items():
            told = [_optional(read, gpu) for gpu in self._gpus]
            if known := [value for value in told if value is not None]:
                found[name] = together(known)
        return GpuCounters(**found) if self._gpus else None

    def figures(self) -> dict[str, float]:
        """Returns the figures of a single GPU: use, memory, power, clock and temperature, named ``gpu_…``."""
        return {f"gpu_{name}": found for gpu in self._gpus for name, found in _figures(gpu, _FIGURES).items()}


class EnergyMeter(_Driver):
    """Measures the mean power of a model's device, for all processes, by counters of energy.

    For a GPU, it is NVML's counter of the whole card (Volta and later). For a CPU, it is RAPL's counter of
    each package (Linux's powercap.rst), without memory and the rest of the host; only root may read it.

    Attributes:
        metered: Whose power it is; empty if there is no counter, or it may not be read.
    """

    def __init__(self, device: Device, sys: Path = SYS) -> None:
        super().__init__((lambda: [gpu_of_index(device.index)]) if device.is_gpu else None)
        # others are parts of a package, or the whole platform
        names = [] if device.is_gpu else (sys / "class/powercap").glob("intel-rapl:*/name")
        self._packages = [name.parent for name in names if name.read_bytes().startswith(b"package")]
        self._before: tuple[int, list[tuple[float, float]]] = (0, [])
        self.read_watts()
        whose = "whole GPU" if device.is_gpu else f"{len(self._packages)} CPU packages"
        self.metered = f"{whose}, all processes" if self._before[1] else ""

    def read_watts(self) -> float:
        """Returns the mean power since the last call, in watts; 0 if a counter was reset or is not read."""
        before_ns, before = self._before
        self._before = now_ns, now = time.monotonic_ns(), _optional(self._joules) or []
        pairs = list(zip(before, now, strict=False))
        spent_j = [(end - start) % wrap for (start, _), (end, wrap) in pairs]
        if any(end < start and end + wrap / 2 >= start for (start, _), (end, wrap) in pairs):  # a reset
            return 0.0
        return sum(spent_j) * _NS_PER_S / max(now_ns - before_ns, 1)

    def _joules(self) -> list[tuple[float, float]]:
        """Returns what each counter shows, and where it wraps around."""
        found = [(pynvml.nvmlDeviceGetTotalEnergyConsumption(gpu) / 1e3, math.inf) for gpu in self._gpus]
        files = [(each / "energy_uj", each / "max_energy_range_uj") for each in self._packages]
        return found + [(_number(shown) / 1e6, _number(most) / 1e6) for shown, most in files]


class GpuUseReader(_Driver):
    """Reads the utilization, memory and power of every GPU of this machine, if a driver is installed.

    ``CUDA_VISIBLE_DEVICES`` has no effect: the order is the driver's, and the work of other processes on a
    GPU is included.
    """

    def __init__(self) -> None:
        super().__init__(
            lambda: list(map(pynvml.nvmlDeviceGetHandleByIndex, range(pynvml.nvmlDeviceGetCount())))
        )

    def read(self) -> tuple[dict[str, float], ...]:
        """Returns the figures of each GPU, as far as its driver reports them.

        They are ``utilization_percent`` (the part of the driver's last period in which a kernel ran),
        ``memory_bytes`` (of all processes) and ``power_watts``.
        """
        return tuple(
            {name: float(found) for name, found in _figures(gpu, _USE).items()} for gpu in self._gpus
        )


def gpu_of_index(index: int) -> Any:
    """Returns NVML's GPU with this index in a framework, which sees only ``CUDA_VISIBLE_DEVICES``."""
    visible = [name.strip() for name in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if name.strip()]
    if visible and index >= len(visible):
        raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_FOUND)
    name = visible[index] if visible else str(index)
    if name.isdecimal():
        return pynvml.nvmlDeviceGetHandleByIndex(int(name))
    return pynvml.nvmlDeviceGetHandleByUUID(name)


def read_gpu_memory(index: int) -> dict[str, int]:
    """Returns the memory of a GPU in bytes, as NVML reports it; nothing without a driver or such a GPU.

    ``DeviceUsed`` and ``DeviceFree`` are of the whole GPU, and ``DeviceProcess`` is that of this process and
    its descendants, which is missing if NVML knows none of them, as in a container.
    """
    with _Driver(lambda: [gpu_of_index(index)]) as driver, suppress(pynvml.NVMLError):
        for gpu in driver._gpus:
            memory, own = pynvml.nvmlDeviceGetMemoryInfo(gpu), {os.getpid(), *process_tree(os.getpid())}
            running = pynvml.nvmlDeviceGetComputeRunningProcesses(gpu)
            used = sum(each.usedGpuMemory or 0 for each in running if each.pid in own)
            found = {"DeviceUsed": int(memory.used), "DeviceFree": int(memory.free)}
            return {**found, "DeviceProcess": used} if used else found
    return {}


def _slowed_ns(policy: int, gpu: Any) -> int:
    return int(pynvml.nvmlDeviceGetViolationStatus(gpu, policy).violationTime)


def _others(gpu: Any) -> int:
    """Counts the other processes that compute on the GPU; a container may give this process another id."""
    processes = {process.pid for process in pynvml.nvmlDeviceGetComputeRunningProcesses(gpu)}
    own = {os.getpid(), *process_tree(os.getpid())}  # with the processes of instances
    return len(processes - own) if processes & own else max(len(processes) - 1, 0)


def _mean(values: Sequence[int]) -> int:
    return sum(values) // len(values)


_COUNTERS: Mapping[str, tuple[Callable[[Any], int], Callable[[Sequence[int]], int]]] = {
    "clock_mhz": (lambda gpu: pynvml.nvmlDeviceGetClockInfo(gpu, pynvml.NVML_CLOCK_SM), min),
    "clock_limit_mhz": (lambda gpu: pynvml.nvmlDeviceGetMaxClockInfo(gpu, pynvml.NVML_CLOCK_SM), min),
    "slowdown": (lambda gpu: pynvml.nvmlDeviceGetCurrentClocksThrottleReasons(gpu) & _SLOWDOWN != 0, max),
    "heat_slowed_ns": (partial(_slowed_ns, pynvml.NVML_PERF_POLICY_THERMAL), _mean),
    "power_slowed_ns": (partial(_slowed_ns, pynvml.NVML_PERF_POLICY_POWER), _mean),
    "other_processes": (_others, max),
}
"""What reads each counter of a GPU, and how those of several become one: of the worst, but the mean time."""


def _figures(gpu: Any, names: Iterable[str]) -> dict[str, float]:
    told = {name: _optional(partial(_FIGURES[name], gpu)) for name in names}
    return {name: found for name, found in told.items() if found is not None}


def process_tree(root: int) -> tuple[int, ...]:
    """Returns the ids of a process and all its descendants, excluding this process.

    There are none for a process that no longer exists.
    """
    with suppress(psutil.Error):
        process = psutil.Process(root)
        every = (process, *process.children(recursive=True))
        return tuple(each.pid for each in every if each.pid != os.getpid())
    return ()
