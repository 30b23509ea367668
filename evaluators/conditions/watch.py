"""Watches a measurement: reads the counters of the model's hosts before and after it, and judges them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from inferometer.agent.closeable import Closeable
from inferometer.agent.hardware.conditions import (
    ConditionCounters,
    ConditionSampler,
    GpuReader,
    Samples,
    look,
    process_tree,
    read_counters,
)
from inferometer.agent.inference.preparation import round_size
from inferometer.agent.inference.results import SystemDescription
from inferometer.agent.preprocessing.preprocessor import bytes_ahead
from inferometer.evaluators.conditions.conditions import Conditions, HostConditions, host_conditions, judged


@runtime_checkable
class WatchedSystem(Protocol):
    """A system on other hosts that report their counters, such as a remote agent."""

    def condition_counters(self) -> Sequence[ConditionCounters]:
        """Reads the counters of each of its processes; empty if a process reports none. Never raises."""


class Watch(Closeable):
    """The watch over the hosts of a system, from ``begin`` to ``end``.

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
        ends = self._counters() if self._begins else ()
        samples = self._sampler.stop() if self._sampler is not None else None
        system, rounds = self._description, 1  # batches whose inputs are prepared together
        if system.preprocess_threads and not system.overlap:
            rounds = round_size(bytes_ahead(system.manifest.tensors), batch_size)
        return judged(_by_host(self._begins, ends, samples), times_ns, rounds)

    def close(self) -> None:
        """Ends the sampling thread; calling it again does nothing."""
        if self._sampler is not None:
            self._sampler.stop()
        if self._gpu is not None:
            self._gpu.close()

    def _counters(self) -> Sequence[ConditionCounters]:
        """Returns the counters of the model's processes, and of this one if it shares a machine with any.

        The CPU time of this process then belongs to the measurement, as with a model in this process.
        """
        found = list(self._read())
        if self._elsewhere and found:
            own = read_counters()
            found += [own] * (own.machine in {each.machine for each in found})
        return found


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
