"""The verdict on the conditions of a measurement, and the observations behind it.

The observations cover the host, between two readings of its counters, and the stability of a run's times:
pauses, drift and several levels, each by a published test. A watch reads the counters of the model's hosts
before and after a measurement, and judges them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from itertools import pairwise
from typing import Any, Protocol, TypeVar, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from inferometer.agent.closeable import Closeable
from inferometer.agent.hardware.conditions import (
    ConditionCounters,
    ConditionSampler,
    GpuReader,
    ProcessorTimes,
    Sample,
    Samples,
    look,
    process_tree,
    read_counters,
)
from inferometer.agent.inference.stages import SystemDescription, round_size
from inferometer.agent.preprocessing.preprocessor import bytes_ahead

OTHERS_SHARE = 0.05
"""The share of processor time at which other processes count as a disturbance: 10 % of one core of two.

Background processes on a quiet machine take 1 to 2 %.
"""
STEAL_SHARE = 0.02
"""The share of the wanted CPU time at which steal is a disturbance; without other guests, it is below 1 %."""
THROTTLED_SHARE = 0.01
"""The share of time at which a CPU quota or GPU heat is a disturbance; a quota may stall a run for 0.1 s."""
SWAPPED_PAGES = 64
"""The number of swapped-in pages that is a disturbance: a few reads of 32 KiB bring in that many."""
LEAST_S = 0.5
"""The minimum duration, in seconds: CPU time has ticks of 10 ms, too coarse for a 5 % share of less."""
_LEAST_LOOK_S = 0.25
_COUNTED = ("swapped_in_pages", "swapped_out_pages", "involuntary_switches", "major_faults", "minor_faults")
_NS_PER_S = 1_000_000_000
_Number = TypeVar("_Number", int, float)


@dataclass(frozen=True, slots=True)
class Spread:
    """The minimum, the mean and the maximum of some values."""

    low: float
    mean: float
    high: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread | None:
        """Returns the spread of values; None if there are none."""
        return cls(min(values), sum(values) / len(values), max(values)) if values else None


@dataclass(frozen=True, slots=True)
class HostConditions:
    """The conditions on one host during the measured part; unknown values are None.

    Shares are 0 to 1. The CPU time of the measured process includes that of a client on the same machine.

    Attributes:
        hostname: The machine's name.
        duration_s: The time between the two readings.
        processors: The number of processors that the process may run on, to which all CPU times refer.
        own_cpu_s: The CPU time of the process.
        others_share: The share of the processors' time that other processes and interrupts took.
        others_time_share: The share of the sampled intervals in which they took ``OTHERS_SHARE`` or more.
        steal_share: Of the CPU time that programs wanted, the share that this virtual machine's host took.
        throttled_share: The share of the quota periods in which the CPU quota was used up.
        throttled_s: How long the CPU quota withheld processors, summed over the processors.
        heated_processors: The number of processors that heat slowed down.
        swapped_in_pages: The number of pages that were read back from swap.
        swapped_out_pages: The number of pages that were written to swap.
        involuntary_switches: How often the process lost a processor without giving it up.
        major_faults: Its page faults that read from a disk.
        minor_faults: Its other page faults.
        waited_s: How long its threads were ready but waited for a processor, without threads that have ended.
        frequency_mhz: The frequencies of the processors.
        gpu_clock_mhz: The clock of the GPU's multiprocessors.
        gpu_clock_limit_mhz: The maximum clock that the GPU may reach.
        gpu_heat_share: The share of the time in which heat slowed the GPU down.
        gpu_power_share: The share of the time in which the power limit slowed the GPU down.
        gpu_slowdown_share: The share of the samples in which heat or its power supply slowed the GPU down.
        gpu_other_processes: The largest number of other processes that were seen on the GPU.
        looks: The number of samples that the sampler took; 0 without a sampler.
        watching_cpu_s: The sampler's CPU time, which ``own_cpu_s`` includes.
    """

    hostname: str
    duration_s: float
    own_cpu_s: float
    processors: int | None = None
    others_share: float | None = None
    others_time_share: float | None = None
    steal_share: float | None = None
    throttled_share: float | None = None
    throttled_s: float | None = None
    heated_processors: int | None = None
    swapped_in_pages: int | None = None
    swapped_out_pages: int | None = None
    involuntary_switches: int | None = None
    major_faults: int | None = None
    minor_faults: int | None = None
    waited_s: float | None = None
    frequency_mhz: Spread | None = None
    gpu_clock_mhz: Spread | None = None
    gpu_clock_limit_mhz: int | None = None
    gpu_heat_share: float | None = None
    gpu_power_share: float | None = None
    gpu_slowdown_share: float | None = None
    gpu_other_processes: int | None = None
    looks: int = 0
    watching_cpu_s: float = 0.0

    @property
    def is_known(self) -> bool:
        """Whether the use of the processors is known, on which the verdict is mainly based."""
        return self.others_share is not None

    def disturbances(self) -> Iterator[str]:
        """Yields the disturbances of the measurement, each with its figure."""
        if self.others_share is not None and self.others_share >= OTHERS_SHARE:
            times = self.others_time_share
            when = "" if times is None else f", in {_percent(times)} of the time"
            yield f"other processes took {_percent(self.others_share)} of the CPU{when}"
        if self.steal_share is not None and self.steal_share >= STEAL_SHARE:
            yield f"the host took {_percent(self.steal_share)} of the CPU (steal)"
        if self.throttled_share is not None and self.throttled_share >= THROTTLED_SHARE:
            yield f"the CPU quota throttled it {_percent(self.throttled_share)} of the time"
        if self.heated_processors:
            yield f"heat slowed {_counted(self.heated_processors, 'processor')} down"
        if self.swapped_in_pages is not None and self.swapped_in_pages >= SWAPPED_PAGES:
            yield f"{_counted(self.swapped_in_pages, 'page')} came back from swap"
        if self.gpu_other_processes:
            yield f"{_counted(self.gpu_other_processes, 'other process', 'es')} had the GPU open"
        slowed = max(self.gpu_heat_share or 0.0, self.gpu_slowdown_share or 0.0)
        if slowed >= THROTTLED_SHARE:
            yield f"heat or power supply slowed the GPU down {_percent(slowed)} of the time"


def host_conditions(
    begins: Sequence[ConditionCounters], ends: Sequence[ConditionCounters], samples: Samples | None = None
) -> HostConditions:
    """Returns the conditions on one machine between two readings.

    Args:
        begins: The first reading for each measured process on the machine; the model's comes first.
        ends: The second reading for each of them, in the same order.
        samples: The samples taken between the readings.
    """
    begin, end = begins[0], ends[0]
    duration_s = max((end.taken_ns - begin.taken_ns) / _NS_PER_S, 1e-9)
    own_s = sum(last.own_cpu_s - first.own_cpu_s for first, last in zip(begins, ends, strict=True))
    periods = _grown(begin.quota_periods, end.quota_periods)
    throttled = _grown(begin.throttled_periods, end.throttled_periods)
    heats = [last > first for first, last in zip(begin.heat_throttles, end.heat_throttles, strict=False)]
    counted: dict[str, Any] = {name: _grown(getattr(begin, name), getattr(end, name)) for name in _COUNTED}
    looks = samples.looks if samples else ()
    return HostConditions(
        hostname=end.hostname,
        duration_s=duration_s,
        own_cpu_s=own_s,
        **_of_processors(begin.processors, end.processors, own_s, duration_s),
        others_time_share=_others_time_share(looks) if duration_s >= LEAST_S else None,
        throttled_share=throttled / periods if throttled is not None and periods else None,
        throttled_s=_grown(begin.throttled_s, end.throttled_s),
        heated_processors=sum(heats) if heats else None,
        **counted,
        waited_s=_grown(begin.waited_s, end.waited_s),
        frequency_mhz=Spread.of([each for one in looks for each in one.frequencies_mhz]),
        **_of_gpu(begin, end, looks, duration_s),
        looks=len(looks),
        watching_cpu_s=samples.cpu_s if samples else 0.0,
    )


def _of_processors(
    begin: ProcessorTimes | None, end: ProcessorTimes | None, own_s: float, duration_s: float
) -> dict[str, Any]:
    """Returns the number of processors and the shares of their time, if known; no shares for short runs."""
    if begin is None or end is None:
        return {}
    known: dict[str, Any] = {"processors": end.count}
    steal_s = end.steal_s - begin.steal_s
    busy_s = end.busy_s - begin.busy_s
    if duration_s < LEAST_S or end.count != begin.count:
        return known
    # of a process that hardly runs, a single tick of steal would be a large share
    steal = steal_s / (busy_s + steal_s) if steal_s >= 0.01 * duration_s else 0.0
    return known | {"others_share": _others_share(begin, end, own_s), "steal_share": steal}


def _others_share(begin: ProcessorTimes, end: ProcessorTimes, own_s: float) -> float:
    others_s = end.busy_s - begin.busy_s - own_s
    return min(max(others_s / max(end.all_s - begin.all_s, 1e-9), 0.0), 1.0)


def _others_time_share(looks: Sequence[Sample]) -> float | None:
    """Returns the share of the intervals between samples in which others took ``OTHERS_SHARE`` or more."""
    took = []
    for one, two in pairwise(looks):
        if one.processors is not None and two.processors is not None:
            both_s = (two.processors.all_s - one.processors.all_s) / two.processors.count
            if both_s >= _LEAST_LOOK_S:
                share = _others_share(one.processors, two.processors, two.own_cpu_s - one.own_cpu_s)
                took.append(share >= OTHERS_SHARE)
    return sum(took) / len(took) if took else None


def _of_gpu(
    begin: ConditionCounters, end: ConditionCounters, looks: Sequence[Sample], duration_s: float
) -> dict[str, Any]:
    if begin.gpu is None or end.gpu is None:
        return {}
    one, two = begin.gpu, end.gpu
    seen = [one, *(each.gpu for each in looks if each.gpu is not None), two]
    heat_ns = _grown(one.heat_slowed_ns, two.heat_slowed_ns)
    power_ns = _grown(one.power_slowed_ns, two.power_slowed_ns)
    slowdowns = [each.slowdown for each in seen if each.slowdown is not None]
    others = [each.other_processes for each in seen if each.other_processes is not None]
    return {
        "gpu_clock_mhz": Spread.of([float(each.clock_mhz) for each in seen if each.clock_mhz is not None]),
        "gpu_clock_limit_mhz": two.clock_limit_mhz,
        "gpu_heat_share": None if heat_ns is None else heat_ns / _NS_PER_S / duration_s,
        "gpu_power_share": None if power_ns is None else power_ns / _NS_PER_S / duration_s,
        "gpu_slowdown_share": sum(slowdowns) / len(slowdowns) if slowdowns else None,
        "gpu_other_processes": max(others) if others else None,
    }


def _grown(begin: _Number | None, end: _Number | None) -> _Number | None:
    return None if begin is None or end is None else max(end - begin, type(end)(0))


def _percent(share: float) -> str:
    return f"{100 * share:.0f} %" if share >= 0.1 else f"{100 * share:.2g} %"


def _counted(count: int, noun: str, ending: str = "s") -> str:
    return f"{count:,} {noun}{'' if count == 1 else ending}"


LEAST_BATCHES = 60
"""The minimum number of times to judge; with fewer, some of the 20 sections would hold fewer than 3."""
PAUSE_SPREADS = 8.0
"""The minimum excess of a pause over the median, in distances from the median to the 90th percentile.

One in 800,000 exponentially distributed times exceeds it, and practically no normally distributed one.
"""
PAUSE_FACTOR = 2.0
"""The minimum length of a pause, as a multiple of the median, even if the other times hardly vary."""
PAUSES_SHARE = 0.01
"""Pauses are reported if their excess is at least this share of the run; less hardly changes the mean."""
SECTIONS = 20
DRIFT_SHARE = 0.05
"""Drift is reported if the trend changes the times by at least this share of their median over the run."""
DRIFT_Z = 3.29
"""The trend's minimum distance from zero, in standard deviations: a two-sided level of 0.1 %."""
MINOR_SHARE = 0.05
"""The minimum share of the times at each of two levels; fewer times are outliers."""
LEVELS_APART = 0.10
"""The minimum relative difference between two levels."""
ASHMANS_D = 4.5
"""The minimum distance between two levels, in standard deviations of the levels.

A distance of 2 is enough if the two parts are known (Ashman, Bird and Zepf, 1994). Splitting a single level
already gives 2.7 for a normal distribution and 3.5 for a uniform one. Of samples with 60 times, 4 % of the
uniform ones and 2 % of those with a correlation of 0.9 exceed 4.5; longer samples do not.
"""


def instabilities(times_ns: NDArray[np.int64], round_size: int = 1) -> tuple[str, ...]:
    """Returns why the times of equal batches, in the order of the run, are unstable; empty if stable.

    Pauses are found first and left out of the other two tests.

    Args:
        times_ns: int64, at least ``LEAST_BATCHES`` values.
        round_size: The number of batches in a round, whose inputs are prepared together. The first batch of a
            round finds cold caches, so a level that has only first batches is an artefact of measuring.
    """
    times = times_ns.astype(np.float64)
    median, high = np.percentile(times, (50, 90))
    paused = times > max(PAUSE_FACTOR * median, median + PAUSE_SPREADS * (high - median))
    steady = times[~paused]
    return tuple(filter(None, (_pauses(times, paused), _drift(steady), _levels(steady, round_size))))


def _pauses(times: NDArray[np.float64], paused: NDArray[np.bool_]) -> str:
    count = int(np.count_nonzero(paused))
    if not count:
        return ""
    median = float(np.median(times))
    share = float((times[paused] - median).sum() / times.sum())
    if share < PAUSES_SHARE:
        return ""
    batches = "1 batch" if count == 1 else f"{count} batches"
    least = float(times[paused].min()) / median
    return f"pauses: {batches} took at least {least:.3g} times the median, {100 * share:.2g} % of the time"


def _drift(times: NDArray[np.float64]) -> str:
    """Describes a trend of the section medians, by the test of Mann (1945) and Kendall; empty for none.

    The variance for correlated values is that of Yue and Wang (2004). A trend would raise the correlation of
    neighbours, so the trend of Theil (1950) and Sen (1968) is removed from the medians before the correlation
    is computed, which is then corrected for its bias in short series (Kendall, 1954).
    """
    medians = np.array([np.median(section) for section in np.array_split(times, SECTIONS)])
    place = np.arange(SECTIONS)
    low, high = np.triu_indices(SECTIONS, 1)
    differences = medians[high] - medians[low]
    slope = float(np.median(differences / (high - low)))
    median = float(np.median(medians))
    change = slope * (SECTIONS - 1) / median
    if abs(change) < DRIFT_SHARE:
        return ""
    score = float(np.sign(differences).sum())
    variance = SECTIONS * (SECTIONS - 1) * (2 * SECTIONS + 5) / 18 * _inflation(medians - slope * place)
    if abs(score) - 1 < DRIFT_Z * math.sqrt(variance):
        return ""
    return f"drift: the times {'grew' if change > 0 else 'fell'} by {100 * abs(change):.2g} % over the run"


def _inflation(values: NDArray[np.float64]) -> float:
    """Returns the factor by which the correlation of neighbours raises the variance of a sum."""
    centred = values - values.mean()
    spread = float(centred @ centred)
    if not spread:
        return 1.0
    count = len(values)
    found = float(centred[1:] @ centred[:-1]) / spread
    correlation = min(max((count * found + 1) / (count - 4), 0.0), 0.95)
    lags = np.arange(1, count)
    return 1 + 2 * float(((1 - lags / count) * correlation**lags).sum())


def _levels(times: NDArray[np.float64], round_size: int) -> str:
    """Describes two levels of times, by Otsu (1979) on logarithms and Ashman et al. (1994); empty for one."""
    logs = np.sort(np.log(np.maximum(times, 1)))
    count = len(logs)
    sizes = np.arange(1, count)
    sums = np.cumsum(logs)
    below, above = sums[:-1] / sizes, (sums[-1] - sums[:-1]) / (count - sizes)
    split = int(np.argmax(sizes * (count - sizes) * (above - below) ** 2))
    low, high = logs[: split + 1], logs[split + 1 :]
    minor = min(len(low), len(high)) / count
    apart = math.exp(float(np.median(high) - np.median(low))) - 1
    spread = math.sqrt((float(low.var()) + float(high.var())) / 2)
    if minor < MINOR_SHARE or apart < LEVELS_APART or high.mean() - low.mean() < ASHMANS_D * spread:
        return ""
    distances = np.diff(np.flatnonzero(times > math.exp((low[-1] + high[0]) / 2)))
    # nearly all successive times of the high level are one round apart
    if round_size > 1 and float(np.mean(distances == round_size)) >= 0.9:
        return ""
    first, second = (math.exp(float(np.median(part))) / 1e6 for part in (low, high))
    percent = 100 * len(high) / count
    return f"two levels: {first:.3g} ms, and {second:.3g} ms in {percent:.2g} % of the batches"


class Stability(str, Enum):
    """The verdict."""

    STABLE = "stable"
    """No disturbance was observed, and the times are stable."""
    DISTURBED = "disturbed"
    """Something other than the measured program used the machine."""
    UNSTABLE = "unstable"
    """The times are not stable, although no disturbance was observed."""
    UNKNOWN = "not known"
    """The host is not watched, or the measurement was too short."""


@dataclass(frozen=True, slots=True)
class Conditions:
    """The conditions of a measurement.

    Attributes:
        stability: The verdict.
        reasons: Why the verdict is not ``stable``; each reason has its figure.
        note: The aspects that the verdict ignores; empty for none.
        hosts: The observations on each host of the model; empty if none is watched.
    """

    stability: Stability
    reasons: tuple[str, ...] = ()
    note: str = ""
    hosts: tuple[HostConditions, ...] = ()

    def __str__(self) -> str:
        reasons = f": {'; '.join(self.reasons)}" if self.reasons else ""
        note = f" ({self.note})" if self.note else ""
        return f"{self.stability.value}{reasons}{note}"

    @property
    def verdict(self) -> str:
        """The verdict in a word or two: ``stable``, ``disturbed``, ``unstable`` or ``not known``."""
        return self.stability.value

    @property
    def warning(self) -> str:
        """The verdict in one line if it makes the figures untrustworthy; empty otherwise."""
        suspect = self.stability in (Stability.DISTURBED, Stability.UNSTABLE)
        return str(self) if suspect else ""


NOT_WATCHED = "the server's host is not watched"
_TOO_FEW = f"by the counters only: fewer than {LEAST_BATCHES} full batches are too few to judge the times"


def judged(
    hosts: Sequence[HostConditions],
    times_ns: NDArray[np.int64] | None = None,
    round_size: int = 1,
    client: HostConditions | None = None,
) -> Conditions:
    """Returns the verdict; for several hosts, the verdict on the worst one.

    Args:
        hosts: The conditions on each host of the model; empty if none is watched.
        times_ns: int64; the times of equal batches in order; None if they may vary, as under load.
        round_size: The number of batches whose inputs are prepared together; see ``instabilities``.
        client: The conditions on the machine of the client, unless it is one of the hosts.
    """
    several = len(hosts) > 1
    disturbances = [
        f"{host.hostname}: {found}" if several else found for host in hosts for found in host.disturbances()
    ]
    if client is not None:  # a server that reports nothing may be one of its other processes
        own = replace(client, others_share=None).disturbances()
        disturbances += [f"on the machine of the client, {found}" for found in own]
    few = times_ns is None or len(times_ns) < LEAST_BATCHES
    times = None if times_ns is None or few else instabilities(times_ns, round_size)
    hosts = tuple(hosts)
    if disturbances:
        return Conditions(Stability.DISTURBED, (*disturbances, *(times or ())), "", hosts)
    if times:
        return Conditions(Stability.UNSTABLE, times, "", hosts)
    if not hosts:
        return Conditions(Stability.UNKNOWN, (NOT_WATCHED,))
    if unknown := next((host for host in hosts if not host.is_known), None):
        why = f"measured for {unknown.duration_s:.2g} s, but the counters need at least {LEAST_S:g} s"
        if unknown.processors is None:
            why = "this system does not report how its processors are used"
        return Conditions(Stability.UNKNOWN, (why,), "", hosts)
    judged_times = times_ns is None or times is not None
    return Conditions(Stability.STABLE, (), "" if judged_times else _TOO_FEW, hosts)


@runtime_checkable
class WatchedSystem(Protocol):
    """A system on other hosts that report their counters, such as a remote agent."""

    def condition_counters(self) -> Sequence[ConditionCounters]:
        """Reads the counters of each of its processes; empty if a process reports none. Never raises."""


class Watch(Closeable):
    """The watch over the hosts of a system and the machine of its client, from ``begin`` to ``end``.

    For a model in this process, a thread also samples values without counters. ``close`` ends that thread.

    Args:
        description: The open model and what it runs on.
        remote: The system that runs the model on other hosts; None for a model in this process.
        processes: The ids of the system's processes besides this one, such as a loader's workers.
        launcher: The id of the process that has started several ranks, of which this is one; everything that
            it has started by ``begin`` then belongs to the measurement.
    """

    def __init__(
        self,
        description: SystemDescription,
        remote: object | None = None,
        processes: Sequence[int] = (),
        launcher: int | None = None,
    ) -> None:
        self._processes = processes
        self._launcher = launcher
        self._description = description
        self._gpu: GpuReader | None = None
        self._sampler: ConditionSampler | None = None
        self._begins: Sequence[ConditionCounters] = ()
        self._read: Callable[[], Sequence[ConditionCounters]] = lambda: ()
        if remote is None:
            gpu = self._gpu = GpuReader(self._description.device)
            self._sampler = ConditionSampler(lambda: look(gpu.read, self._processes))
            self._read = lambda: [read_counters(gpu.read(), processes=self._processes)]
        elif isinstance(remote, WatchedSystem):
            self._read = remote.condition_counters
        self._elsewhere = remote is not None

    def begin(self) -> None:
        """Begins the watch; to be called right before the measured part."""
        if self._launcher is not None:
            self._processes = process_tree(self._launcher)
        if self._sampler is not None:
            self._sampler.start()
        self._begins = self._counters()

    def end(self, times_ns: NDArray[np.int64] | None = None, batch_size: int = 1) -> Conditions:
        """Ends the watch after the measured part, and returns the verdict.

        Args:
            times_ns: int64; the times of full batches in order; None if they may vary, as under load.
            batch_size: The number of inputs in a full batch.
        """
        ends = self._counters()
        samples = self._sampler.stop() if self._sampler is not None else None
        system, rounds = self._description, 1  # batches whose inputs are prepared together
        if system.preprocess_threads and not system.overlap:
            rounds = round_size(bytes_ahead(system.manifest.tensors), batch_size)
        hosts = _by_host(self._begins, ends, samples)
        told = ({each.machine for each in read[:-1]} for read in (self._begins, ends))
        client = hosts.pop() if self._elsewhere and ends[-1].machine not in set.intersection(*told) else None
        is_timing = times_ns is None or not hosts  # agents time their batches themselves
        return judged(hosts, times_ns, rounds, client if is_timing else None)

    def close(self) -> None:
        """Ends the sampling thread; calling it again does nothing."""
        if self._sampler is not None:
            self._sampler.stop()
        if self._gpu is not None:
            self._gpu.close()

    def _counters(self) -> Sequence[ConditionCounters]:
        """Returns the counters of the system's processes, and of this one, which may share their machine."""
        return [*self._read(), *([read_counters()] if self._elsewhere else [])]


def _by_host(
    begins: Iterable[ConditionCounters], ends: Iterable[ConditionCounters], samples: Samples | None
) -> list[HostConditions]:
    """Returns the conditions of each host, from the processes that were read twice.

    Processes on one machine share their conditions.
    """
    later = {(each.machine, each.process): each for each in ends}
    earlier = {(each.machine, each.process): each for each in begins}
    hosts: dict[str, list[ConditionCounters]] = {}
    for key, each in earlier.items():
        if key in later:
            hosts.setdefault(each.machine, []).append(each)
    return [
        host_conditions(group, [later[each.machine, each.process] for each in group], samples)
        for group in hosts.values()
    ]
