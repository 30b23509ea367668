"""The process of one run: it waits for its machine, runs the command, and writes the result at once.

    python -m inferometer.evaluators.plans.running.run_process FOLDER

Only one run at a time executes on a machine, or on the host of an agent: each holds a lock, which its
command inherits, so that the lock is free only after all processes of the command have ended. A run that
has a result does not run again. With ``--linked``, the process ends when the other end of its standard
input closes.

A thread of this process monitors the cell: it samples the processes of the command and the GPUs, from
outside. The measured process is not aware of it. The cost is CPU time on this machine, which is measured
and kept below ``MOST_SHARE`` of one core.
"""

from __future__ import annotations

import argparse
import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, closing, suppress
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import psutil

from inferometer.agent.files import lock
from inferometer.agent.hardware.conditions import GpuUseReader, process_tree
from inferometer.evaluators.plans.cell_command import SRUN, container_process
from inferometer.evaluators.plans.running.folder import (
    Ended,
    Result,
    RunFolder,
    RunSpec,
    end_orphan,
    note_command,
    read_result,
    stop_container,
    write_result,
)
from inferometer.manifests.errors import one_line

INTERVAL_S = 1.0
MOST_SHARE = 0.01
"""The maximum CPU time of a sample, as a share of the time until the next one."""
_SHORTEST_PART = 0.5
"""The minimum part of an interval over which a load is reported, as CPU counters have 10 ms steps."""


@dataclass(frozen=True, slots=True)
class Spread:
    """The range of a figure over all samples.

    Attributes:
        min: The lowest sample.
        mean: The mean; that of the CPU load is weighted with the time between samples.
        max: The highest sample.
    """

    min: float
    mean: float
    max: float


@dataclass(frozen=True, slots=True)
class MonitorSummary:
    """The summary of a monitor's samples.

    Attributes:
        samples: How many samples saw at least one process of the tree.
        interval_s: The requested time between samples; 0 for no samples.
        reached_interval_s: The mean time between samples; None with fewer than two.
        slowed: Whether samples were further apart, because one took more than ``MOST_SHARE`` of the interval.
        wall_s: The wall time from start to stop.
        own_cpu_s: The CPU time of the monitor itself.
        cpu_s: The CPU time of all processes of the tree since they began, including children that have ended.
            CPU time after the last sample is missing.
        cpu_percent: The CPU load between two samples, in percent of one core; 200 means two whole cores.
        resident_bytes: The resident memory of the tree; pages that several processes share count for each.
        virtual_bytes: The virtual address space of the tree.
        processes: The number of processes.
        gpus: For each GPU of this machine ``utilization_percent``, ``memory_bytes`` and ``power_watts``, as
            far as the driver reports them. They include all processes on the GPU.
    """

    samples: int
    interval_s: float
    reached_interval_s: float | None
    slowed: bool
    wall_s: float
    own_cpu_s: float
    cpu_s: float
    cpu_percent: Spread | None
    resident_bytes: Spread | None
    virtual_bytes: Spread | None
    processes: Spread | None
    gpus: tuple[Mapping[str, Spread], ...]

    @property
    def own_share(self) -> float:
        """The monitor's CPU time as a fraction of the wall time of one core; 0 if no time has passed."""
        return self.own_cpu_s / self.wall_s if self.wall_s > 0 else 0.0

    def document(self) -> dict[str, Any]:
        """Returns the summary for JSON, with each spread as ``{min, mean, max}``."""
        return {**asdict(self), "own_share": self.own_share}


class Monitor:
    """Samples a process and all its descendants, from ``start`` to ``stop``.

    Args:
        pid: The process.
        interval_s: The time between two samples; 0 for no samples.
        joined: Called before each sample until it returns the id of a second process whose tree belongs to
            the first, such as that of a container, which its engine starts elsewhere. Must not raise.
        clock: Returns the time in seconds.
        cpu_clock: Returns the CPU time of the calling thread in seconds.
        wait: Waits for a number of seconds, or until the event is set; returns whether it is set.
    """

    def __init__(
        self,
        pid: int,
        interval_s: float = INTERVAL_S,
        joined: Callable[[], int | None] | None = None,
        clock: Callable[[], float] = time.monotonic,
        cpu_clock: Callable[[], float] = time.thread_time,
        wait: Callable[[threading.Event, float], bool] = threading.Event.wait,
    ) -> None:
        self._roots = [pid]
        self._interval_s = max(interval_s, 0.0)
        self._joined = joined
        self._clock, self._cpu_clock, self._wait = clock, cpu_clock, wait
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="cell-monitor", daemon=True)
        self._seen = _Seen(self._interval_s * _SHORTEST_PART)
        self._own_cpu_s = 0.0
        self._slowed = False
        self._began_s = clock()
        self._summary: MonitorSummary | None = None

    def start(self) -> None:
        """Starts the sampling thread; the first sample follows at once."""
        self._began_s = self._clock()
        if self._interval_s:
            self._thread.start()

    def stop(self) -> MonitorSummary:
        """Takes a last sample, stops, and returns the summary; another call returns the same."""
        if self._summary is None:
            self._stopping.set()
            if self._thread.ident is not None:
                self._thread.join()
            self._summary = self._seen.summary(
                interval_s=self._interval_s,
                slowed=self._slowed,
                wall_s=self._clock() - self._began_s,
                own_cpu_s=self._own_cpu_s,
            )
        return self._summary

    def close(self) -> None:
        """Stops the monitor; another call does nothing."""
        self.stop()

    def _run(self) -> None:
        began_cpu_s = self._cpu_clock()
        with GpuUseReader() as gpus:
            stopped = False
            while not stopped:
                sample_cpu_s = self._cpu_clock()
                self._sample(gpus)
                now_cpu_s = self._cpu_clock()
                self._own_cpu_s = now_cpu_s - began_cpu_s
                affordable_s = (now_cpu_s - sample_cpu_s) / MOST_SHARE
                self._slowed |= affordable_s > self._interval_s
                stopped = self._wait(self._stopping, max(self._interval_s, affordable_s))
            self._sample(gpus)
        self._own_cpu_s = self._cpu_clock() - began_cpu_s

    def _sample(self, gpus: GpuUseReader) -> None:
        if self._joined is not None and (pid := self._joined()) is not None:
            self._roots.append(pid)
            self._joined = None
        tree = dict.fromkeys(pid for root in self._roots for pid in process_tree(root))
        now_s = self._clock()
        read = [figures for pid in tree if (figures := _read(pid)) is not None]
        if read:
            cpu_s, resident, virtual = (sum(column) for column in zip(*read, strict=True))
            counts = {"resident_bytes": resident, "virtual_bytes": virtual, "processes": len(read)}
            self._seen.add(now_s, cpu_s, counts, gpus.read())


class _Running:
    """A spread that is updated with each sample and does not store samples."""

    def __init__(self) -> None:
        self._total = self._weight = 0.0
        self._min, self._max = float("inf"), float("-inf")

    def add(self, value: float, weight: float = 1.0) -> None:
        self._total += value * weight
        self._weight += weight
        self._min, self._max = min(self._min, value), max(self._max, value)

    def spread(self) -> Spread | None:
        return Spread(self._min, self._total / self._weight, self._max) if self._weight else None


class _Seen:
    """The state of the samples; ``shortest_s`` is the shortest time over which a CPU load is computed."""

    def __init__(self, shortest_s: float) -> None:
        self._shortest_s = shortest_s
        self._samples = 0
        self._first_s = self._last_s = self._load_s = 0.0
        self._cpu_s = self._load_cpu_s = 0.0
        self._spreads: defaultdict[str, _Running] = defaultdict(_Running)
        self._gpus: list[dict[str, _Running]] = []

    def add(
        self, now_s: float, cpu_s: float, counts: Mapping[str, float], gpus: Sequence[Mapping[str, float]]
    ) -> None:
        if not self._samples:
            self._first_s = self._load_s = now_s
            self._load_cpu_s = cpu_s
        self._samples += 1
        self._last_s = now_s
        # a child that ends between the reading of its parent and its own is missing once, and back after that
        self._cpu_s = max(self._cpu_s, cpu_s)
        passed_s = now_s - self._load_s
        if passed_s > 0 and passed_s >= self._shortest_s:
            self._spreads["cpu_percent"].add(100 * (self._cpu_s - self._load_cpu_s) / passed_s, passed_s)
            self._load_s, self._load_cpu_s = now_s, self._cpu_s
        for name, value in counts.items():
            self._spreads[name].add(value)
        for place, figures in enumerate(gpus):
            if place == len(self._gpus):
                self._gpus.append({})
            for name, value in figures.items():
                self._gpus[place].setdefault(name, _Running()).add(value)

    def summary(self, **of_monitor: Any) -> MonitorSummary:
        """Returns the summary with the given figures of the monitor itself."""
        names = ("cpu_percent", "resident_bytes", "virtual_bytes", "processes")
        spreads: dict[str, Any] = {name: self._spreads[name].spread() for name in names}
        reached_s = (self._last_s - self._first_s) / (self._samples - 1) if self._samples > 1 else None
        gpus = (
            {name: spread for name, running in figures.items() if (spread := running.spread())}
            for figures in self._gpus
        )
        return MonitorSummary(
            **of_monitor,
            samples=self._samples,
            reached_interval_s=reached_s,
            cpu_s=self._cpu_s,
            **spreads,
            gpus=tuple(gpus),
        )


def _read(pid: int) -> tuple[float, float, float] | None:
    """Returns the CPU time in seconds, and resident and virtual memory in bytes; None for an ended process.

    The CPU time includes ended children that were waited for, which no longer have entries of their own.
    """
    try:
        process = psutil.Process(pid)
        times, memory = process.cpu_times(), process.memory_info()
    except psutil.Error:
        return None
    cpu_s = times.user + times.system + times.children_user + times.children_system
    return cpu_s, float(memory.rss), float(memory.vms)


_OUT_OF_MEMORY = "out of memory"
_ENDED_BY = "this process was ended by"
_INTERRUPTED = 130
_ENDING_S = 5.0
_TAIL_BYTES = 4096


def main() -> None:
    """Runs the command of the folder that the command line names."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--linked", action="store_true")
    given = parser.parse_args()
    run(RunFolder(given.folder), linked=given.linked)


def run(folder: RunFolder, *, linked: bool) -> Result:
    """Runs the command of a folder, unless it has a result, and returns the result.

    Args:
        folder: The folder of the run.
        linked: Whether this process ends when its standard input closes.
    """
    spec = folder.read()
    end_orphan(folder)
    if spec.argv[0] == SRUN:  # the tasks are not among its processes, so the monitor would not see them
        spec = replace(spec, monitor_s=0.0)
    with ExitStack() as stack:
        # in one order, so that no two runs wait for each other
        names = [Path(spec.locks) / f"{each}.lock" for each in sorted(spec.machines or _machines(spec))]
        locked = [stack.enter_context(lock(each, on_wait=lambda: None)).fileno() for each in names]
        if (known := read_result(folder.result)) is not None:
            return known
        # what an attempt that was lost has published is no result of this one
        shutil.rmtree(folder.data, ignore_errors=True)
        folder.data.mkdir(parents=True)
        result = _run(folder, spec, locked, linked=linked)
        if result.reason.startswith(_ENDED_BY):
            sys.exit(1)  # without a result: whoever ended it decides whether it runs again
        write_result(folder.result, result)
        return result


def _machines(spec: RunSpec) -> Sequence[str]:
    """Returns the names of the machines that a run uses: this one, or all nodes on which srun starts it."""
    if (nodes := os.environ.get("SLURM_JOB_NODELIST")) and spec.argv[0] == SRUN:
        from inferometer.agent.training.rank_environment import expand_hosts  # which loads a trainer

        return tuple(expand_hosts(nodes))
    return (os.environ.get("SLURMD_NODENAME") or socket.gethostname(),)


def step_variables(environ: Mapping[str, str]) -> dict[str, str]:
    """Returns the variables that srun and its tasks need in addition to those of a job.

    Ranks on several nodes meet on the first one, where this process runs: its host name is known to the
    others, but that of the node in Slurm's configuration need not be. srun ignores the cores per task of
    sbatch (its manual, "--cpus-per-task").
    """
    found = {}
    if environ.get("SLURM_JOB_NUM_NODES", "1") != "1":
        found["MASTER_ADDR"] = environ.get("MASTER_ADDR") or socket.gethostname()
    if cores := environ.get("SLURM_CPUS_PER_TASK"):
        found["SRUN_CPUS_PER_TASK"] = cores
    return found


def _run(folder: RunFolder, spec: RunSpec, locked: Sequence[int], *, linked: bool) -> Result:
    step = step_variables(os.environ) if spec.argv[0] == SRUN else {}
    environment = {**os.environ, **step, **folder.variables, **spec.environment}
    host = socket.gethostname()
    with folder.log.open("wb") as log:
        start_ns = time.time_ns()
        try:
            process = subprocess.Popen(  # noqa: S603 - what the plan says
                spec.argv,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env=environment,
                start_new_session=True,
                pass_fds=locked,
            )
        except OSError as error:
            reason = f"{spec.argv[0]}: cannot be run: {error.strerror or error}"
            return Result(spec.key, Ended.FAILED, reason, None, host, start_ns, time.time_ns())
        note_command(folder, process.pid)
        ended_by: list[str] = []
        if linked:
            threading.Thread(target=_end_with_driver, args=(process,), daemon=True).start()
        _forward_signals(process, ended_by)
        joined = partial(container_process, spec.container_pid)
        with closing(Monitor(process.pid, spec.monitor_s, joined)) as monitor:
            monitor.start()
            try:
                process.wait(spec.timeout_s)
            except subprocess.TimeoutExpired:
                ended_by.append(f"it took longer than {spec.timeout_s:g} s")
                _end(process)
            end_ns = time.time_ns()
        if ended_by:
            stop_container(spec.stop)
    how, reason = _judged(folder, process.returncode, ended_by)
    seen = monitor.stop().document() if spec.monitor_s else None
    return Result(spec.key, how, reason, process.returncode, host, start_ns, end_ns, monitor=seen)


def _judged(folder: RunFolder, code: int, ended_by: list[str]) -> tuple[Ended, str]:
    """Returns how the command ended, and the reason."""
    if code == 0:
        return Ended.COMPLETE, ""
    last = _last_line(folder)
    if ended_by:
        timeout = ended_by[0].startswith("it took")
        return (Ended.TIMEOUT if timeout else Ended.INTERRUPTED), ended_by[0]
    if _OUT_OF_MEMORY in last.lower():
        return Ended.OUT_OF_MEMORY, last
    if code == -signal.SIGKILL:
        return Ended.OUT_OF_MEMORY, "it was ended by SIGKILL; the kernel does that when memory runs out"
    if code < 0:
        return Ended.FAILED, f"it was ended by {signal.Signals(-code).name}"
    if code == _INTERRUPTED:
        return Ended.INTERRUPTED, last or "it was interrupted"
    return Ended.FAILED, last or f"it exited with {code}"


def _last_line(folder: RunFolder) -> str:
    with suppress(OSError), folder.log.open("rb") as log:
        log.seek(0, os.SEEK_END)
        log.seek(max(0, log.tell() - _TAIL_BYTES))
        lines = [line for line in log.read().decode("utf-8", "replace").splitlines() if line.strip()]
        told: list[str] = []
        if any(line.startswith("srun: ") for line in lines):
            # srun reports last that a task has failed; before that, other ranks report that they miss it
            told = [line for line in lines if _OUT_OF_MEMORY in line.lower()]
            told = told or [line for line in lines if line.startswith("agent: ")]
        return one_line((told or lines[-1:] or [""])[0])
    return ""


def _forward_signals(process: subprocess.Popen[bytes], ended_by: list[str]) -> None:
    """Ends the command when this process receives SIGINT, or SIGTERM as from a batch queue."""

    def end(number: int, _: object) -> None:
        ended_by.append(f"{_ENDED_BY} {signal.Signals(number).name}")
        _end(process)

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, end)


def _end(process: subprocess.Popen[bytes]) -> None:
    """Ends the command and all processes that it started."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        with suppress(ProcessLookupError):
            os.killpg(process.pid, number)
        with suppress(subprocess.TimeoutExpired):
            process.wait(_ENDING_S)
            return


def _end_with_driver(process: subprocess.Popen[bytes]) -> None:
    """Ends this process, without a result, when the driver has ended."""
    # not by sys.stdin: Python aborts at its end where a thread still reads from that
    while os.read(0, _TAIL_BYTES):
        pass
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    os._exit(1)


if __name__ == "__main__":
    main()
