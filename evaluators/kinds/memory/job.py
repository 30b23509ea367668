"""The job that measures memory: a fresh process for each point, and the search for the largest batch."""

from __future__ import annotations

import os
import threading
import time
import uuid
from collections.abc import Generator, Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias, cast

import numpy as np
import psutil

from inferometer.evaluators.datasets.arrays import SyntheticDataset, synthetic_arrays
from inferometer.evaluators.evaluation import Evaluation, Status, utc_now
from inferometer.evaluators.jobs.job import Job, JobCallbacks, JobResources, JobStart, Progress
from inferometer.evaluators.jobs.linked_process import LinkedTask, in_processes
from inferometer.evaluators.kinds.memory.measurement import (
    MIB,
    MemoryMeasurement,
    MemoryRequest,
    Point,
    data_bytes,
    search_largest,
)
from inferometer.manifests import errors

MemoryJob: TypeAlias = Job[Evaluation[MemoryMeasurement]]
_OWN = Path("/proc/self")
_FACTOR, _NEAR, _AGAIN = 8, 0.95, 3
"""Batches grow by at most the factor, to nearly the foretold one; the last few are measured again."""


def memory_job(request: MemoryRequest) -> MemoryJob:
    """Returns the job; raises ConfigurationError if the model is in memory or not on this machine's CPU."""
    system = request.system
    if system.agents or system.session.device.is_gpu:
        raise errors.ConfigurationError(
            "memory is that of a process on this machine's CPU; leave out agent and gpu"
        )
    if system.given is not None and system.given.in_memory is not None:
        raise errors.ConfigurationError("a model in memory is not in fresh processes; save it to a file")
    stops = "stopping after this process"
    return Job(partial(_measured, request), system.model_name, "measuring memory", stops, has_total=False)


def read_memory() -> dict[str, int]:
    """Returns this process's reading, and begins a new stage by resetting the resident peak, where allowed.

    Raises:
        ConfigurationError: This system has no ``/proc/self/status``.
    """
    try:
        lines = (_OWN / "status").read_text(encoding="utf-8").splitlines()
    except OSError as error:
        raise errors.ConfigurationError(
            "memory is read from /proc/self/status, which only Linux has"
        ) from error
    named = (line.partition(":") for line in lines if line.startswith(("Vm", "Rss")))
    found = {name: int(value.split()[0]) * 1024 for name, _, value in named}
    with suppress(OSError):
        (_OWN / "clear_refs").write_text("5", encoding="ascii")
    return found


@contextmanager
def _sampled_data() -> Iterator[list[int]]:
    """Samples this process's data in a thread, about each millisecond; the yielded list has the peak."""
    peak, ended, page_bytes = [0], threading.Event(), os.sysconf("SC_PAGE_SIZE")

    def sample() -> None:
        with (_OWN / "statm").open(encoding="ascii") as file:
            while not ended.wait(0.001):
                file.seek(0)
                peak[0] = max(peak[0], int(file.read().split()[5]) * page_bytes)

    thread = threading.Thread(target=sample, daemon=True)
    thread.start()
    try:
        yield peak
    finally:
        ended.set()
        thread.join()


def available_bytes(proc: Path = Path("/proc"), groups: Path = Path("/sys/fs/cgroup")) -> int:
    """Returns the memory that the machine has available, or its control group if that is less."""
    found = [int(psutil.virtual_memory().available)]
    with suppress(OSError):
        for line in (proc / "self/cgroup").read_text(encoding="utf-8").splitlines():
            _, controllers, path = line.split(":", 2)
            ends = (
                ("limit_in_bytes", "usage_in_bytes") if controllers else ("max", "current")
            )  # version 1, or 2
            group = groups / controllers / path.lstrip("/")
            for folder in (group, *group.parents):
                with suppress(OSError, ValueError):  # "max" is no limit
                    most, used = (int((folder / f"memory.{end}").read_text(encoding="ascii")) for end in ends)
                    found.append(max(0, most - used))
    return min(found)


def _stages(
    request: MemoryRequest,
    resources: JobResources,
    size: int,
    length: int,
    limit_bytes: int | None,
    callbacks: JobCallbacks,
) -> Iterator[tuple[str, Any]]:
    """Runs in the fresh process: yields the reading at the end of each stage, by its name."""
    if limit_bytes is not None:
        import resource  # which Windows lacks

        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        resource.setrlimit(resource.RLIMIT_DATA, (limit_bytes, limit_bytes))
        os.dup2(os.open(os.devnull, os.O_WRONLY), 2)  # where libraries write before they abort
    given, seed = request.system.given, request.system.session.seed
    try:
        yield "baseline", read_memory()
        manifest = given.manifest if given else resources.find_model(request.system)
        resources.registry.find(manifest.framework.name).load()
        yield "framework", read_memory()
        system = resources.open_loadable(request.system, notify=callbacks.on_warning)
        yield "model", read_memory()
        yield "system", system.description
        drawn = synthetic_arrays(system.description.manifest.tensors, seed, size=length or None)
        batch = {name: np.take(each, range(size), 0, mode="wrap") for name, each in drawn.items()}
        del drawn
        read_memory()  # leaves the drawing out of the peak, and the inputs in it
        with _sampled_data() as peak:
            for _ in range(request.predictions):
                if failures := system.predict_tensor(batch).failures:
                    yield "failure", failures[0].message
                    return
        yield "batch", {**read_memory(), "SampledData": peak[0]}
    except MemoryError:
        yield "failure", "out of memory"


@dataclass(eq=False)
class _Run:
    """One run of the job; ``system`` is what the first process with an open model reports."""

    request: MemoryRequest
    resources: JobResources
    callbacks: JobCallbacks
    limit_bytes: int
    points: list[Point] = field(default_factory=list)
    system: Any = None

    def measure(self, size: int, *, length: int, limited: bool = False) -> bool:
        """Measures a point in a fresh process and keeps it, even if memory runs out; returns if it ran."""
        if self.callbacks.stop_requested():
            raise errors.EvaluationInterrupted("stopped before a batch was measured; nothing was published")
        point: dict[str, Any] = {
            "batch_size": size,
            "sequence_length": length,
            "limited": limited,
            "failure": "",
        }
        limit_bytes = self.limit_bytes if limited else None
        work = partial(_stages, self.request, self.resources, size, length, limit_bytes)
        task = LinkedTask(f"the process with batch size {size}", work)
        told = replace(self.callbacks, stop_requested=lambda: False)  # each process is short
        try:
            with closing(in_processes([task], told, errors.OutOfMemoryError)) as stages:
                for name, value in stages:
                    if name != "system":
                        point[name] = value
                    elif self.system is None:
                        self.system = value
                        self.callbacks.on_start(JobStart(value, "synthetic inputs", size, "memory"))
        except errors.InferometerError as error:
            if self.system is None or not (limited or isinstance(error, errors.OutOfMemoryError)):
                raise
            point["failure"] = str(error)
        self.points.append(cast("Point", point))
        now = f"batch size {size}{' under the limit' * limited}"
        self.callbacks.on_progress(Progress(len(self.points), 0, "processes", now))
        return not point["failure"]

    def curve(self, length: int) -> None:
        """Measures batch sizes at one sequence length, and searches the largest batch under the limit."""
        again = self.request.batch_sizes or self._approach(length)[-_AGAIN:]
        for _ in range(self.request.repeat - (self.request.batch_sizes is None)):
            for size in again:
                self.measure(size, length=length)
        if line := MemoryMeasurement(self.points, self.limit_bytes, 0).line(length):
            foretold, _ = line.batch_within(self.limit_bytes)
            search_largest(foretold, partial(self.measure, length=length, limited=True), self.request.tries)

    def _approach(self, length: int) -> list[int]:
        """Measures growing batches, up to nearly the one that the growth foretells; returns their sizes."""
        given = self.request.system.given
        fixed = None if given is None else given.fixed_batch
        following, sizes, least = fixed or 1, [0], 0
        while sizes[-1] < following and self.measure(following, length=length):
            sizes.append(following)
            if fixed is not None:
                break
            found = data_bytes(self.points[-1]["batch"])
            least = found if following == 1 else least
            slope = max(1.0, (found - least) / following)
            foretold = following + (self.limit_bytes - found) / slope
            following = min(int(_NEAR * foretold), _FACTOR * following)
        return sizes[1:]


def _measured(
    request: MemoryRequest, resources: JobResources, callbacks: JobCallbacks
) -> Generator[Evaluation[MemoryMeasurement], None, None]:
    """Measures, and yields the evaluation; after a stop, that of the processes that have ended."""
    _ = resources.catalog  # read once, and not in each process
    created_at, began_ns, whole = utc_now(), time.perf_counter_ns(), True
    limit_mib = request.memory_limit_mib
    run = _Run(request, resources, callbacks, limit_mib * MIB if limit_mib else available_bytes())
    try:
        for length in request.sequence_lengths or (0,):
            run.curve(length)
    except errors.EvaluationInterrupted:
        if not run.points:
            raise
        whole = False
    seed, lengths = request.system.session.seed, request.sequence_lengths
    inputs = SyntheticDataset(run.system.manifest.tensors, 1, seed, lengths[0] if lengths else None)
    elapsed_ns, usable = time.perf_counter_ns() - began_ns, any("batch" in each for each in run.points)
    yield Evaluation(
        id=str(uuid.uuid4()),
        created_at=created_at,
        status=Status.of(whole=whole, usable=usable),
        system=run.system,
        dataset=inputs.identity,
        measurement=MemoryMeasurement(run.points, run.limit_bytes, elapsed_ns, request.given),
    )
