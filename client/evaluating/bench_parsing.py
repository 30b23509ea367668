"""Turns the options of ``agent bench`` into the parts of requests."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from inferometer.agent.hardware.device import CPU, Device, DeviceKind
from inferometer.agent.inference.predictor import Precision, Weights
from inferometer.agent.inference.session import SessionOptions
from inferometer.agent.tracing.span import TraceLevel
from inferometer.client.cli.invocation import Invocation
from inferometer.client.evaluating.bench_models import named_model
from inferometer.client.evaluating.dlbs_lines import Experiment
from inferometer.client.evaluating.parsing import read_precision
from inferometer.evaluators.jobs.defaults import BENCH_BATCHES
from inferometer.evaluators.jobs.requests import SystemRequest
from inferometer.evaluators.jobs.training_requests import TrainingData, TrainingRequest
from inferometer.evaluators.measurements.training import TrainingOptions
from inferometer.evaluators.training.ranks import RankRequest
from inferometer.manifests.errors import ConfigurationError

Values = Mapping[str, Any]
"""The values of a command's options by name."""
_MXNET, _PYTORCH = "mxnet", "pytorch"
_DISTRIBUTED = ("dist_sync", "dist_device_sync", "dist_async")


@dataclass(frozen=True, slots=True)
class BenchSystem:
    """The model of a benchmark, and the devices that it asks for.

    Attributes:
        request: The model.
        framework: The name of its framework, in small letters.
        devices: The GPUs, or the CPU.
    """

    request: SystemRequest
    framework: str
    devices: tuple[Device, ...]

    @property
    def gpus(self) -> int:
        """The number of GPUs."""
        return sum(device.is_gpu for device in self.devices)


def read_system(values: Values, invocation: Invocation, find: Any) -> BenchSystem:
    """Reads the options of the model and its device.

    Args:
        values: The values.
        invocation: Has the manifests.
        find: Returns the manifest of a ``SystemRequest``.

    Raises:
        ConfigurationError: An option is not supported here, or two contradict each other.
        UnknownModelError: There is no such model.
    """
    _refuse_unsupported(values)
    devices = _devices(values)
    name, version = named_model(invocation.catalog, values["model"], values["model_version"])
    precision = read_precision(values["dtype"]) or Precision.FLOAT32
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
    manifest = find(request)
    framework = manifest.framework.name
    _check_model_options(values["model_opts"], manifest)
    for line in _without_effect(values, framework.casefold(), devices):
        invocation.notify(line)
    return BenchSystem(request, framework.casefold(), devices)


def take_tracing(values: dict[str, Any], invocation: Invocation) -> None:
    """Replaces the options of the trace by the level and the address, where those of the configuration count.

    Raises:
        ConfigurationError: There is no such level.
    """
    tracer = invocation.configuration.tracer
    name = values["trace_level"] or tracer.level
    values["trace_level"] = TraceLevel.named(name) if name else TraceLevel.APPLICATION_TRACE
    values["tracer_address"] = values["tracer_address"] or tracer.address


def read_data(values: Values) -> TrainingData:
    """Reads the options of the data.

    Raises:
        ConfigurationError: Two contradict each other.
    """
    place = values["data"].partition("/")[2]
    path = Path(values["data_dir"]).expanduser() if values["data_dir"] else None
    if path is not None and place:
        raise ConfigurationError(f"data {values['data']} is synthetic; leave out data_dir")
    workers = values["num_workers"]
    return TrainingData(
        path=path,
        backend=values["data_backend"] or None,
        on_device=place in {"device", "gpu"},
        workers=workers,
        processes=values["loader"].lower() == "processes" and workers > 0,
        prefetch=values["prefetch"] if workers else 0,
        shuffle=values["data_shuffle"],
        seed=values["seed"],
        drop_cache=values["drop_cache"],
    )


def read_training(values: Values, system: BenchSystem) -> tuple[TrainingRequest, RankRequest]:
    """Reads the options of training.

    Raises:
        ConfigurationError: Two contradict each other, or a number is out of range.
    """
    ranks = _ranks(values, system)
    per_rank = _devices_of_a_rank(system, ranks)
    epochs, batches = values["num_epochs"], values["num_batches"]
    if epochs is not None and batches is not None:
        raise ConfigurationError("num_epochs and num_batches both end the training; give one of them")
    if epochs is None and batches is None:
        batches = BENCH_BATCHES
    options = TrainingOptions(
        batch_size=values["batch_size"],
        num_batches=batches,
        num_warmup_batches=values["num_warmup_batches"],
        num_epochs=epochs,
        optimizer=values["optimizer"].lower(),
        learning_rate=values["lr"],
        momentum=values["momentum"],
        weight_decay=values["weight_decay"],
        precision=(system.request.session.precision or Precision.FLOAT32).value,
        api=_api(values, system),
        devices=len(per_rank),
        communication=_communication(values, system, ranks, len(per_rank)),
        parts_every=values["parts_every"],
        cudnn_benchmark=values["cudnn_benchmark"],
    )
    request = TrainingRequest(
        system=system.request,
        data=read_data(values),
        options=options,
        devices=per_rank,
        validation=values["validation_dataset"],
        save_path=values["save_weights"],
        fail_on_error=values["fail_on_error"],
        trace_level=values["trace_level"],
        tracer_address=values["tracer_address"],
    )
    return request, ranks


def experiment_of(values: Values, phase: str, gpus: int) -> Experiment:
    """Returns what was asked for, as DLBS names it."""
    return Experiment(
        model=values["model"],
        phase=phase,
        replica_batch=values["batch_size"],
        num_gpus=gpus,
        num_batches=values["num_batches"] or BENCH_BATCHES,
        num_warmup_batches=values["num_warmup_batches"],
        dtype=values["dtype"],
    )


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
    """The GPUs, or the CPU."""
    device, count, gpus = values["device"], values["num_gpus"], values["gpus"]
    if count is not None and gpus is not None and count != len(gpus):
        raise ConfigurationError(f"num_gpus is {count}, but gpus names {len(gpus)}; leave out one of them")
    wanted = device.lower() if device else "gpu" if count or gpus else "cpu"
    if wanted == "cpu":
        return (CPU,)
    if count == 0 or gpus == ():
        raise ConfigurationError("device is gpu, and there is to be none; leave out device, or give num_gpus")
    indices = gpus if gpus else range(count or 1)
    return tuple(Device(DeviceKind.GPU, index) for index in indices)


def _without_effect(values: Values, framework: str, devices: tuple[Device, ...]) -> Iterator[str]:
    """One line for each option that was given, is accepted, and changes nothing here."""
    if values["cudnn_fastest"]:
        yield "cudnn_fastest is a switch of Lua Torch; cudnn_benchmark takes cuDNN's fastest algorithm"
    if values["workspace"] is not None:
        yield "workspace changes nothing: cuDNN's algorithms take the workspace that they need"
    if not devices[0].is_gpu and values["num_gpus"]:
        yield f"num_gpus {values['num_gpus']} changes nothing: the device is the CPU"
    kind = values["data"].partition("/")[2]
    if kind in {"pinned", "pageable"}:
        pinned = "pinned memory" if framework == _PYTORCH else "the framework's own memory"
        where = f"is copied through {pinned}" if devices[0].is_gpu else "is not copied to another device"
        yield f"data {values['data']} is in host memory and {where}; it is measured as synthetic/host"
    if kind in {"device", "gpu"} and not devices[0].is_gpu:
        yield f"data {values['data']} stays in the memory of the device, which is the CPU's"


def _check_model_options(given: Mapping[str, Any], manifest: Any) -> None:
    """Accepts the number of classes that the model has; the networks of the program take no other options."""
    classes = len(manifest.output.parameters.labels)
    for name, value in given.items():
        if name == "num_classes" and classes and value == classes:
            continue
        has = f"; {manifest.name} has {classes} classes" if name == "num_classes" and classes else ""
        raise ConfigurationError(
            f"model_opts: {name} cannot be set to {value!r}, as the networks of DLBS's ids are fixed{has}; "
            "write an architecture of your own in code instead"
        )


def _ranks(values: Values, system: BenchSystem) -> RankRequest:
    """How many processes train together."""
    count, workers = values["num_ranks"], values["kv_num_workers"]
    if count is not None and workers is not None and count != workers:
        raise ConfigurationError(f"num_ranks is {count} and kv_num_workers {workers}; give one of them")
    count = workers if count is None else count
    if count is None and system.framework == _PYTORCH and system.gpus > 1:
        count = system.gpus
    rank = values["rank"]
    return RankRequest(
        num_ranks=count,
        rank=rank,
        rank_address=values["rank_address"],
        # torch.distributed.launch gives it beside the environment, which has it too
        local_rank=values["local_rank"] if rank is not None else 0,
        num_servers=values["kv_num_servers"],
    )


def _devices_of_a_rank(system: BenchSystem, ranks: RankRequest) -> tuple[Device, ...]:
    if system.framework != _PYTORCH or system.gpus < 2:
        return system.devices
    if [device.index for device in system.devices] != list(range(system.gpus)):
        raise ConfigurationError(
            "PyTorch trains with a process for each GPU from 0 on; choose GPUs by CUDA_VISIBLE_DEVICES"
        )
    if ranks.rank is None and ranks.num_ranks != system.gpus:
        raise ConfigurationError(
            f"num_gpus is {system.gpus} and num_ranks {ranks.num_ranks}; PyTorch has one process for each GPU"
        )
    return system.devices[:1]


def _api(values: Values, system: BenchSystem) -> str:
    api = values["api"]
    if api is None:
        return ""
    if system.framework != _MXNET:
        raise ConfigurationError(f"api {api} is one of MXNet's; the framework is {system.framework}")
    return str(api).lower()


def _communication(values: Values, system: BenchSystem, ranks: RankRequest, devices: int) -> str:
    """How gradients are added up; empty where the trainer decides, or nothing is to be added."""
    store, backend = values["kv_store"], values["dist_backend"]
    if system.framework == _MXNET:
        if backend is not None:
            raise ConfigurationError(f"dist_backend {backend} is PyTorch's; MXNet takes kv_store")
        return _store(store.lower() if store else None, ranks, devices)
    if store is not None:
        raise ConfigurationError(
            f"kv_store {store} is MXNet's, and the framework is {system.framework}; use dist_backend"
        )
    if values["kv_num_servers"] is not None:
        raise ConfigurationError("kv_num_servers is for MXNet's kvstore; PyTorch has no servers")
    if backend == "mpi":
        raise ConfigurationError("dist_backend mpi is not in PyTorch's packages; use gloo, or nccl on GPUs")
    return backend.lower() if backend else ""


def _store(store: str | None, ranks: RankRequest, devices: int) -> str:
    several = (ranks.num_ranks or 1) > 1
    if store == "horovod":
        raise ConfigurationError(
            "kv_store horovod needs Horovod, which is not supported; use dist_device_sync"
        )
    if store is None:
        return "dist_sync" if several else "device" if devices > 1 else ""
    if several and store not in _DISTRIBUTED:
        raise ConfigurationError(
            f"kv_store {store} is for one process, and num_ranks is {ranks.num_ranks}; "
            f"use {', '.join(_DISTRIBUTED)}"
        )
    return store
