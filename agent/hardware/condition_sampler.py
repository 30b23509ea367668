"""A thread that looks now and then at what has no counter: clocks, and when others took the processors."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from inferometer.agent.hardware.conditions import (
    GpuCounters,
    ProcessorTimes,
    own_cpu_s,
    read_frequencies_mhz,
    read_processors,
)

INTERVAL_S = 0.5
MOST_SHARE = 0.0025
"""The share of the process's CPU time that the thread takes; where a look takes more, it looks less often."""
_LONGEST_PAUSE_S = 3600.0
_LEAVING_S = 5.0


@dataclass(frozen=True, slots=True)
class Sample:
    """One look.

    Attributes:
        own_cpu_s: The CPU time of this process so far.
        processors: The time of the processors so far; None if unknown.
        frequencies_mhz: The frequencies of some processors now; empty if unknown.
        gpu: What the GPU's driver tells now; None without a GPU.
    """

    own_cpu_s: float
    processors: ProcessorTimes | None = None
    frequencies_mhz: tuple[float, ...] = ()
    gpu: GpuCounters | None = None


@dataclass(frozen=True, slots=True)
class Samples:
    """What a sampler saw, in order, and the CPU time of its thread in seconds."""

    looks: tuple[Sample, ...] = ()
    cpu_s: float = 0.0


def look(read_gpu: Callable[[], GpuCounters | None] = lambda: None, processes: Iterable[int] = ()) -> Sample:
    """Looks once; ``processes`` are children whose CPU time belongs to this process."""
    return Sample(own_cpu_s(processes), read_processors(), tuple(read_frequencies_mhz()), read_gpu())


@dataclass(eq=False)
class ConditionSampler:
    """Looks every ``interval_s`` from ``start`` to ``stop``, in a thread that measures its own CPU time.

    A process that hardly runs, because others have the processors or the model is on a GPU, is looked at less
    often.
    """

    look: Callable[[], Sample] = look
    interval_s: float = INTERVAL_S
    _looks: list[Sample] = field(default_factory=list)
    _cpu_s: float = 0.0
    _ended: threading.Event = field(default_factory=threading.Event)
    _thread: threading.Thread | None = None

    def start(self) -> None:
        """Begins to look."""
        self._thread = threading.Thread(target=self._run, name="watch-conditions", daemon=True)
        self._thread.start()

    def stop(self) -> Samples:
        """Ends the looking, and returns what was seen; calling it again returns the same."""
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
