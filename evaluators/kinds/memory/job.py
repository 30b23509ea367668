"""The job that measures memory: a fresh process for each point, and the search for the largest batch."""

from __future__ import annotations

import os
import time
import uuid
from collections.abc import Generator, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import psutil

from inferometer.agent.hardware.conditions import control_groups, process_tree, read_gpu_memory
from inferometer.agent.hardware.environment import Device
from inferometer.agent.inference.predictor import Predictor
from inferometer.agent.serving.batch_worker import open_instances
from inferometer.evaluators.datasets.arrays import SyntheticDataset, synthetic_arrays
from inferometer.evaluators.evaluation import Evaluation, Status, TensorSystem, utc_now
from inferometer.evaluators.jobs.job import Job, JobCallbacks, JobResources, JobStart, Progress
from inferometer.evaluators.jobs.linked_process import LinkedTask, in_processes
from inferometer.evaluators.kinds.memory.measurement import (
    MIB,
    MemoryMeasurement,
    MemoryRequest,
    Point,
    data_bytes,
    search_largest,
    together,
)
from inferometer.manifests import errors

MemoryJob: TypeAlias = Job[Evaluation[MemoryMeasurement]]
_OWN = Path("/proc/self")
_FACTOR, _NEAR, _LEAST_FACTOR = 8, 0.95, 1.2
"""Batches grow by at most the first factor, to nearly the estimated one, until by less than the last."""


def memory_job(request: MemoryRequest) -> MemoryJob:
    """Returns the job; raises ConfigurationError if the model's memory cannot be measured on this machine."""
    system = request.system
    if not _OWN.exists():
        raise errors.ConfigurationError("memory is read from /proc/self/status, which only Linux has")
    if system.agents or len(set(system.session.device.indices)) > 1:
        raise errors.ConfigurationError(
            "memory is that of this machine's CPU or one GPU; give one, and no agent"
        )
    if system.given is not None and system.given.in_memory is not None:
        raise errors.ConfigurationError("a model in memory is not in fresh processes; save it to a file")
    session = system.session.divided_by(request.instances)
    request = replace(request, system=replace(system, session=session))
    stops = "stopping after this process"
    return Job(partial(_measured, request), system.model_name, "measuring memory", stops, has_total=False)


def read_memory(process: Path = _OWN) -> dict[str, int]:
    """Returns a process's reading, and resets the peak for the next stage, where allowed."""
    lines = (process / "status").read_text(encoding="utf-8").splitlines()
    named = (line.partition(":") for line in lines if line.startswith(("Vm", "Rss")))
    found = {name: int(value.split()[0]) * 1024 for name, _, value in named}
    with suppress(OSError):
        (process / "clear_refs").write_text("5", encoding="ascii")
    return found


def read_all_memory() -> dict[str, int]:
    """Returns the reading of this process and its children together; see ``read_memory``."""
    found = []
    for process in (os.getpid(), *process_tree(os.getpid())):
        with suppress(OSError):  # it has ended meanwhile
            found.append(read_memory(_OWN.parent / str(process)))
    return together(found) if found else {}


def read_peak_bytes() -> int:
    """Returns the peak of resident memory, of this process and its children, since the last call."""
    return read_all_memory().get("VmHWM", 0)


def available_bytes(proc: Path = Path("/proc"), sys: Path = Path("/sys")) -> int:
    """Returns the memory that the machine has available, or its control group if that is less."""
    found = [int(psutil.virtual_memory().available)]
    with suppress(OSError):
        for group in control_groups(proc, sys, "memory"):
            for ends in (("max", "current"), ("limit_in_bytes", "usage_in_bytes")):  # version 2, and 1
                with suppress(OSError, ValueError):  # "max" is no limit
                    most, used = (int((group / f"memory.{end}").read_text(encoding="ascii")) for end in ends)
                    found.append(max(0, most - used))
    return min(found)


def _read_device(device: Device, predictor: type[Predictor] | None = None) -> dict[str, int]:
    """Returns the reading of a GPU, without that of the framework before it has loaded; nothing for a CPU."""
    if not device.is_gpu:
        return {}
    if not (found := read_gpu_memory(device.index)):
        raise errors.DeviceError(f"{device}: NVML finds no such GPU, or no driver; measure on the CPU")
    if predictor and not (counted := predictor.read_device_memory(device.index)):
        raise errors.ConfigurationError("this framework does not count its memory of a GPU; use PyTorch")
    return {**found, **counted} if predictor else found


def _stages(
    request: MemoryRequest, resources: JobResources, point: Point, limit_bytes: int, callbacks: JobCallbacks
) -> Iterator[tuple[str, Any]]:
    """Runs in the fresh process: yields the reading at the end of each stage, by its name."""
    device = request.system.session.device
    yield "baseline", read_memory() | _read_device(device)
    on_cpu = point["limited"] and not device.is_gpu
    if on_cpu:
        import resource  # which Windows lacks

        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        resource.setrlimit(resource.RLIMIT_DATA, (limit_bytes, limit_bytes))
        os.dup2(os.open(os.devnull, os.O_WRONLY), 2)  # where libraries write before they abort
    given, seed = request.system.given, request.system.session.seed
    try:
        manifest = given.manifest if given else resources.find_model(request.system)
        predictor = resources.registry.find(manifest.framework.name).load()
        if point["limited"] and device.is_gpu:
            predictor.limit_device_memory(device.index, limit_bytes)
        yield "framework", read_memory()
        system = resources.open_loadable(request.system, notify=callbacks.on_warning)
        with ExitStack() as opened:
            systems = open_instances(system, request.instances, getattr(system, "open_another", None))
            for each in (further := systems[1:]):
                opened.enter_context(closing(each))
            yield "model", read_all_memory() | _read_device(device, predictor)
            yield "system", system.description
            tensors, size = system.description.manifest.tensors, range(point["batch_size"])
            drawn = synthetic_arrays(tensors, seed, size=point["sequence_length"] or None)
            batches = [{name: np.take(a, size, 0, mode="wrap") for name, a in drawn.items()} for _ in systems]
            del drawn
            threads = [opened.enter_context(ThreadPoolExecutor(1)) for _ in further]
            read_all_memory()  # leaves the drawing out of the peak, and the inputs in it
            for _ in range(request.predictions):
                _predict(systems, batches, threads)
            reading = read_all_memory() | _read_device(device, predictor)
            data = data_bytes(reading) if on_cpu and process_tree(os.getpid()) else 0
            if data > limit_bytes:  # which bounds each process alone
                raise errors.OutOfMemoryError(f"{data / MIB:,.0f} MiB of data in all processes")
            yield "batch", reading
    except MemoryError as error:
        raise errors.OutOfMemoryError("out of memory") from error


def _predict(
    systems: Sequence[TensorSystem], batches: Sequence[dict[str, Any]], threads: Sequence[ThreadPoolExecutor]
) -> None:
    """Has each instance predict its batch at the same time: the first one here, and the others in threads."""
    waiting = zip(threads, systems[1:], batches[1:], strict=True)
    others = [thread.submit(each.predict_tensor, batch) for thread, each, batch in waiting]
    found = (systems[0].predict_tensor(batches[0]).failures, *(each.result().failures for each in others))
    for failures in filter(None, found):
        raise errors.PredictionError(failures[0].message)


@dataclass(eq=False)
class _Run:
    """One run of the job; ``system`` is what the first process with an open model reports."""

    request: MemoryRequest
    resources: JobResources
    callbacks: JobCallbacks
    found: MemoryMeasurement
    system: Any = None

    def measure(self, size: int, *, length: int, limited: bool = False) -> bool:
        """Measures a point in a fresh process and keeps it, even if memory runs out; returns if it ran."""
        if self.callbacks.stop_requested():
            raise errors.EvaluationInterrupted("stopped before a batch was measured; nothing was published")
        point = Point(batch_size=size, sequence_length=length, limited=limited, failure="", readings={})
        limit_bytes = self.found.limit_bytes - self.found.outside_bytes
        work = partial(_stages, self.request, self.resources, point, limit_bytes)
        task = LinkedTask(f"the process with batch size {size}", work)
        told = replace(self.callbacks, stop_requested=lambda: False)  # each process is short
        try:
            with closing(in_processes([task], told, errors.OutOfMemoryError)) as stages:
                for name, value in stages:
                    if name != "system":
                        point["readings"][name] = value
                    elif self.system is None:
                        self.system = value
                        self.callbacks.on_start(JobStart(value, "synthetic inputs", size, "memory"))
        except errors.InferometerError as error:
            began = self.system is not None and "baseline" in point["readings"]
            if not began or not (limited or isinstance(error, errors.PredictionError)):
                raise
            point["failure"] = str(error)
        self.found.points.append(point)
        now = f"batch size {size}{' under the limit' * limited}"
        self.callbacks.on_progress(Progress(len(self.found.points), 0, "processes", now))
        return not point["failure"]

    def curve(self, length: int) -> None:
        """Measures batch sizes at one sequence length, and searches the largest batch under the limit."""
        for size in self.request.batch_sizes or self._growing(length):
            self.measure(size, length=length)
        estimated = self.found.estimated(length)
        if estimated is not None:
            search_largest(estimated, partial(self.measure, length=length, limited=True), self.request.tries)

    def _growing(self, length: int) -> Iterator[int]:
        """Yields growing batch sizes, each after the one before ran, up to nearly the estimated one."""
        given = self.request.system.given
        fixed = None if given is None else given.fixed_batch
        size, following = 0, fixed or 1
        while following > _LEAST_FACTOR * size:
            size = following
            yield size
            if fixed is not None or self.found.points[-1]["failure"]:
                return
            estimated, following = self.found.estimated(length), _FACTOR * size
            if estimated is not None:
                following = min(int(_NEAR * estimated), following)


def _measured(
    request: MemoryRequest, resources: JobResources, callbacks: JobCallbacks
) -> Generator[Evaluation[MemoryMeasurement], None, None]:
    """Measures, and yields the evaluation; after a stop, that of the processes that have ended."""
    _ = resources.catalog  # read once, and not in each process
    created_at, began_ns, whole = utc_now(), time.perf_counter_ns(), True
    limit_mib, lengths = request.memory_limit_mib, request.sequence_lengths or (0,)
    free_bytes = _read_device(request.system.session.device).get("DeviceFree") or available_bytes()
    limit_bytes = limit_mib * MIB if limit_mib else free_bytes
    found = MemoryMeasurement([], limit_bytes, 0, request.given)
    run = _Run(request, resources, callbacks, found)
    try:
        for length in lengths:
            run.curve(length)
    except errors.EvaluationInterrupted:
        if not found.points:
            raise
        whole = False
    usable = any("batch" in each["readings"] for each in found.points)
    inputs = SyntheticDataset(run.system.manifest.tensors, 1, request.system.session.seed, lengths[0] or None)
    yield Evaluation(
        id=str(uuid.uuid4()),
        created_at=created_at,
        status=Status.of(whole=whole, usable=usable),
        system=run.system,
        dataset=inputs.identity,
        measurement=replace(found, elapsed_ns=time.perf_counter_ns() - began_ns),
    )
