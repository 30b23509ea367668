"""Turns the options of ``agent bench`` into requests, and prints results in DLBS's format.

Inference runs a fixed number of batches of random tensors or of a dataset. Training also has a length, ranks,
and a method of summing gradients. Results are lines ``__key__=JSON``, which DLBS's log parser reads.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from inferometer.agent.artifacts.files import with_labels
from inferometer.agent.hardware.environment import CPU, Device, DeviceKind, Weights
from inferometer.agent.inference.session import SessionOptions
from inferometer.agent.tracing.recorder import TraceLevel
from inferometer.client.api.invocation import Invocation
from inferometer.client.api.runner import Systems
from inferometer.evaluators.evaluation import Evaluation
from inferometer.evaluators.jobs.job import DatasetChoice, SystemRequest
from inferometer.evaluators.jobs.options import BENCH_BATCHES, PYTORCH, values_of
from inferometer.evaluators.jobs.request import read_precision
from inferometer.evaluators.kinds.batches.request import BatchOptions, EvaluationRequest
from inferometer.evaluators.kinds.registry import kind_of
from inferometer.evaluators.kinds.training.request import RankRequest, TrainingData, TrainingRequest
from inferometer.manifests.errors import ConfigurationError

_NS_PER_MS = 1_000_000


Values = Mapping[str, Any]
"""The values of a command's options by name."""


def experiment_of(values: Values, phase: str, gpus: int) -> Mapping[str, Any]:
    """Returns the parameters of a benchmark by DLBS's keys; the output contains them even if it fails.

    ``phase`` is ``training``, ``inference`` or ``data_ingestion``; ``gpus`` is 0 on a CPU.
    """
    return {
        "exp.model": values["model"],
        "exp.phase": phase,
        "exp.replica_batch": values["batch_size"],
        "exp.num_gpus": gpus,
        "exp.device_type": "gpu" if gpus else "cpu",
        "exp.num_batches": values["num_batches"] or BENCH_BATCHES,
        "exp.num_warmup_batches": values["num_warmup_batches"],
        "exp.dtype": values["dtype"],
    }


def result_lines(experiment: Mapping[str, Any], evaluation: Evaluation) -> Iterator[str]:
    """Yields the result lines of a benchmark. Times cover all measured batches and are in milliseconds."""
    system, kind, measured = evaluation.system, kind_of(evaluation), evaluation.measurement
    times_ns, samples = kind.batch_times(measured)
    times_ms, framework = times_ns / _NS_PER_MS, system.manifest.framework.name.casefold()
    yield from _lines(
        {
            **experiment,
            "exp.framework": framework,
            "exp.framework_ver": system.framework_version,
            f"{framework}.version": system.framework_version,
            "exp.model_title": system.manifest.name,
            "exp.effective_batch": kind.effective_batch(measured, experiment["exp.replica_batch"]),
            "exp.id": evaluation.id,
            "results.time": float(times_ms.mean()),
            "results.time_std": float(times_ms.std()),
            "results.throughput": 1000 * samples / float(times_ms.sum()),
            "results.time_data": times_ms.tolist(),
            "results.status": "ok" if evaluation.status.value == "complete" else evaluation.status.value,
        }
    )


def failure_lines(experiment: Mapping[str, Any], message: str) -> Iterator[str]:
    """Yields the result lines of a failed benchmark."""
    return _lines({**experiment, "results.status": "failure", "results.status_msg": message})


def _lines(values: Mapping[str, Any]) -> Iterator[str]:
    for key, value in values.items():
        yield f"__{key}__={json.dumps(value)}"


_MOST_GPUS = 1024


@dataclass(frozen=True, slots=True)
class BenchSystem:
    """The model of a benchmark, and the requested devices.

    ``framework`` is in lower case; ``notes`` has a line for each accepted option without effect.
    """

    request: SystemRequest
    framework: str
    devices: tuple[Device, ...]
    notes: tuple[str, ...] = ()

    @property
    def gpus(self) -> int:
        """The number of GPUs."""
        return sum(device.is_gpu for device in self.devices)


def read_system(values: Values, invocation: Invocation) -> BenchSystem:
    """Reads the options that select the model and its device.

    Raises:
        ConfigurationError: An option is not supported here, or two contradict each other.
        UnknownModelError: The catalogue has no such model.
    """
    _refuse_unsupported(values)
    devices = _devices(values)
    name, version = invocation.catalog.named(values["model"], values["model_version"])
    precision = read_precision(values["dtype"])
    request = SystemRequest(
        model_name=name,
        model_version=version,
        framework_name=values["framework_name"] or ("MXNet" if values.get("kv_store") else None),
        session=SessionOptions(
            device=devices[0],
            threads=values["threads"],
            weights=Weights(values["weights"].lower()),
            seed=values["seed"],
            precision=precision,
            cudnn_benchmark=values["cudnn_benchmark"],
        ),
    )
    manifest = with_labels(Systems(invocation).find_model(request), needed=False)
    framework = manifest.framework.name
    _check_model_options(values["model_opts"], manifest.name, len(manifest.output.parameters.labels))
    notes = tuple(_without_effect(values, framework.casefold(), devices))
    return BenchSystem(request, framework.casefold(), devices, notes)


def take_tracing(values: dict[str, Any], invocation: Invocation) -> None:
    """Converts the trace level, and fills in defaults for the trace options from the configuration.

    Raises:
        ConfigurationError: The trace level is unknown.
    """
    tracer = invocation.configuration.tracer
    name = values["trace_level"] or tracer.level
    values["trace_level"] = TraceLevel.named(name) if name else TraceLevel.APPLICATION_TRACE
    values["tracer_address"] = values["tracer_address"] or tracer.address
    values["trace_url"] = values["trace_url"] or tracer.url


def read_data(values: Values) -> TrainingData:
    """Reads the options that select the data.

    Raises:
        ConfigurationError: Two options contradict each other.
    """
    place = values["data"].partition("/")[2]
    path = Path(values["data_dir"]).expanduser() if values["data_dir"] else None
    if place and (path is not None or values["dataset_name"]):
        raise ConfigurationError(f"data {values['data']} is synthetic; leave out the dataset")
    return TrainingData.of(values, path, values["dataset_name"], on_device=place in {"device", "gpu"})


def _refuse_unsupported(values: Values) -> None:
    for name in ("input_layout", "model_layout"):
        if values[name].upper() != "NCHW":
            raise ConfigurationError(
                f"{name} {values[name]} is not supported: the networks are NCHW; leave it out"
            )
    if values["nvidia_layers"]:
        raise ConfigurationError(
            "nvidia_layers needs NVIDIA's build of MXNet; MXNet's own has no such layers"
        )
    if values["use_dali"]:
        raise ConfigurationError("use_dali is not supported; data_backend recordio reads the same files")


def _devices(values: Values) -> tuple[Device, ...]:
    """Returns the GPUs, or the CPU."""
    device, count, gpus = values["device"], values["num_gpus"], values["gpus"]
    if count is not None and count > _MOST_GPUS:
        raise ConfigurationError(f"num_gpus is {count}; at most {_MOST_GPUS}")
    if count is not None and gpus is not None and count != len(gpus):
        raise ConfigurationError(f"num_gpus is {count}, but gpus names {len(gpus)}; leave out one of them")
    wanted = device.lower() if device else "gpu" if count or gpus else "cpu"
    if wanted == "cpu":
        return (CPU,)
    if count == 0 or gpus == ():
        raise ConfigurationError("device is gpu, but no GPU is selected; leave out device, or give num_gpus")
    indices = gpus if gpus else range(count or 1)
    return tuple(Device(DeviceKind.GPU, index) for index in indices)


def _without_effect(values: Values, framework: str, devices: tuple[Device, ...]) -> Iterator[str]:
    """Yields one line for each option that is accepted but has no effect."""
    if values["cudnn_fastest"]:
        yield "cudnn_fastest is a switch of Lua Torch; cudnn_benchmark takes cuDNN's fastest algorithm"
    if values["data_backend"] and not values["data_dir"]:
        yield f"data_backend {values['data_backend']} changes nothing: without data_dir the data is synthetic"
    if values["workspace"] is not None:
        yield "workspace changes nothing: cuDNN's algorithms take the workspace that they need"
    if not devices[0].is_gpu and values["num_gpus"]:
        yield f"num_gpus {values['num_gpus']} changes nothing: the device is the CPU"
    kind = values["data"].partition("/")[2]
    if kind in {"pinned", "pageable"}:
        pinned = "pinned memory" if framework == PYTORCH else "the framework's own memory"
        where = f"is copied through {pinned}" if devices[0].is_gpu else "is not copied to another device"
        yield f"data {values['data']} is in host memory and {where}; it is measured as synthetic/host"
    if kind in {"device", "gpu"} and not devices[0].is_gpu:
        yield f"data {values['data']} stays in the memory of the device, which is the CPU's"


def _check_model_options(given: Mapping[str, Any], model: str, classes: int) -> None:
    """Accepts only the model's own number of classes; the built-in networks have no other options."""
    for name, value in given.items():
        if name == "num_classes" and classes and value == classes:
            continue
        has = f"; {model} has {classes} classes" if name == "num_classes" and classes else ""
        raise ConfigurationError(
            f"model_opts: {name} cannot be set to {value!r}, as the networks of DLBS's ids are fixed{has}; "
            "write an architecture of your own in code instead"
        )


def inference_notes(values: Mapping[str, Any]) -> Iterator[str]:
    """Yields one line for each data option that has no effect on inference."""
    if values["shuffle"]:
        yield "data_shuffle changes nothing: inference takes the samples in their order"
    if values["data_dir"] and values["loader"].lower() == "processes":
        yield "loader processes changes nothing: inference reads by threads"
    if values["data_dir"] and values["drop_cache"]:
        yield "drop_cache changes nothing in inference; bench training and bench ingestion drop it"


def read_inference(
    values: Mapping[str, Any], system: BenchSystem, given_workers: int | None = None
) -> EvaluationRequest:
    """Returns the request for ``num_batches`` full batches after ``num_warmup_batches`` warm-up batches.

    From a larger dataset, only this many batches are read; a smaller dataset is repeated. ``given_workers``
    threads read and preprocess; None means the default of ``agent predict dataset``.

    Raises:
        ConfigurationError: An option does not apply to inference.
    """
    if len(system.devices) > 1:
        raise ConfigurationError(
            f"inference runs on one GPU, and {len(system.devices)} are named; bench training uses several"
        )
    size, batches = values["batch_size"], values["num_batches"] or BENCH_BATCHES
    warm_up, data = values["num_warmup_batches"], read_data(values)
    if data.on_device:
        raise ConfigurationError(
            f"data {values['data']}: inference is measured from host memory to host memory; use synthetic"
        )
    common = {"warmup_num_file_parts": warm_up, "fail_on_error": values["fail_on_error"]}
    if data.is_synthetic:
        needed = max(batches, warm_up) * size
        choice = DatasetChoice(synthetic=needed, seed=values["seed"])
        options = BatchOptions(size, size, batches, **common)
    else:
        choice = DatasetChoice(path=data.path, name=data.name, backend=data.backend)
        options = BatchOptions(size, size, batches, min_batches=batches, **common)
    request = system.request
    if given_workers is not None:
        request = replace(request, session=replace(request.session, preprocess_threads=given_workers))
    return EvaluationRequest(
        system=request,
        dataset=choice,
        options=options,
        measure_enough=False,
        repeat=values["repeat"],
        trace_level=values["trace_level"],
        tracer_address=values["tracer_address"],
        trace_url=values["trace_url"],
    )


def read_training(values: Values, system: BenchSystem) -> tuple[TrainingRequest, RankRequest]:
    """Reads the options of training.

    Raises:
        ConfigurationError: Two options contradict each other, or a number is out of range.
    """
    ranks = _ranks(values, system)
    devices = _devices_of_a_rank(system, ranks)
    data = read_data(values)
    return TrainingRequest.of(system.request, system.framework, values, data, ranks, devices), ranks


def _ranks(values: Values, system: BenchSystem) -> RankRequest:
    """Returns the number of processes that train together, and the rank of this one."""
    count, workers = values["num_ranks"], values["kv_num_workers"]
    if count is not None and workers is not None and count != workers:
        raise ConfigurationError(f"num_ranks is {count} and kv_num_workers {workers}; give one of them")
    count = workers if count is None else count
    several = count is None and values["rank"] is None and system.framework == PYTORCH and system.gpus > 1
    if several and RankRequest().of_this_process(os.environ) is None:
        count = system.gpus
    # torch.distributed.launch passes the local rank as an option, in addition to the environment
    local_rank = values["local_rank"] if values["rank"] is not None else 0
    return RankRequest(**values_of(RankRequest, {**values, "num_ranks": count, "local_rank": local_rank}))


def _devices_of_a_rank(system: BenchSystem, ranks: RankRequest) -> tuple[Device, ...]:
    if system.framework != PYTORCH or system.gpus < 2:
        return system.devices
    if [device.index for device in system.devices] != list(range(system.gpus)):
        raise ConfigurationError(
            "PyTorch trains with one process per GPU, from GPU 0 on; choose GPUs with CUDA_VISIBLE_DEVICES"
        )
    if ranks.rank is None:
        launched = ranks.of_this_process(os.environ)
        here = ranks.num_ranks if launched is None else launched.local_count
        if here != system.gpus:
            raise ConfigurationError(
                f"num_gpus is {system.gpus}, but this host has {here} ranks; PyTorch needs one per GPU"
            )
    return system.devices[:1]
