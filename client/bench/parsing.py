"""Turns the options of ``agent bench`` into the parts of requests."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from inferometer.agent.hardware.device import CPU, Device, DeviceKind
from inferometer.agent.inference.predictor import Precision, Weights
from inferometer.agent.inference.session import SessionOptions
from inferometer.agent.tracing.span import TraceLevel
from inferometer.client.api.invocation import Invocation
from inferometer.client.api.model_names import named_model
from inferometer.client.bench.dlbs_lines import Experiment
from inferometer.client.evaluating.parsing import read_precision
from inferometer.evaluators.datasets.detection import BACKENDS
from inferometer.evaluators.jobs.defaults import BENCH_BATCHES, PYTORCH
from inferometer.evaluators.jobs.requests import SystemRequest
from inferometer.evaluators.kinds.ingestion.job import OWN, IngestionRequest
from inferometer.evaluators.kinds.ingestion.run import IngestionLength
from inferometer.evaluators.kinds.training.request import TrainingData
from inferometer.manifests.catalog import Catalog
from inferometer.manifests.errors import ConfigurationError, suggestion
from inferometer.manifests.schema import ModelManifest

Values = Mapping[str, Any]
"""The values of a command's options by name."""
_MOST_GPUS = 1024


@dataclass(frozen=True, slots=True)
class BenchSystem:
    """The model of a benchmark, and the requested devices.

    Attributes:
        request: The request for the model.
        framework: The name of its framework, in lower case.
        devices: The GPUs, or the CPU.
        notes: One line for each accepted option that has no effect.
    """

    request: SystemRequest
    framework: str
    devices: tuple[Device, ...]
    notes: tuple[str, ...] = ()

    @property
    def gpus(self) -> int:
        """The number of GPUs."""
        return sum(device.is_gpu for device in self.devices)


def read_system(
    values: Values, catalog: Catalog, find: Callable[[SystemRequest], ModelManifest]
) -> BenchSystem:
    """Reads the options that select the model and its device.

    Args:
        values: The values of the options.
        catalog: The manifests.
        find: Returns the manifest of a ``SystemRequest``.

    Raises:
        ConfigurationError: An option is not supported here, or two contradict each other.
        UnknownModelError: The catalogue has no such model.
    """
    _refuse_unsupported(values)
    devices = _devices(values)
    name, version = named_model(catalog, values["model"], values["model_version"])
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
    notes = tuple(_without_effect(values, framework.casefold(), devices))
    return BenchSystem(request, framework.casefold(), devices, notes)


def take_tracing(values: dict[str, Any], invocation: Invocation) -> None:
    """Replaces the trace options by the trace level and the address, with defaults from the configuration.

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
    backend = values["data_backend"] or None
    if backend is not None and backend not in BACKENDS:
        raise ConfigurationError(f'unknown data_backend "{backend}"; {suggestion(backend, BACKENDS)}')
    workers = values["num_workers"]
    return TrainingData(
        path=path,
        name=values["dataset_name"],
        backend=backend if path is not None else None,
        on_device=place in {"device", "gpu"},
        workers=workers,
        processes=values["loader"].lower() == "processes" and workers > 0,
        prefetch=values["prefetch"] if workers else 0,
        shuffle=values["data_shuffle"],
        seed=values["seed"],
        drop_cache=values["drop_cache"],
    )


def read_ingestion(values: Values, system: BenchSystem) -> IngestionRequest:
    """Reads the options of a benchmark that only loads data.

    Raises:
        ConfigurationError: No dataset is named, or two options contradict each other.
    """
    batches, epochs = read_length(values)
    return IngestionRequest(
        system=system.request,
        data=read_data(values),
        batch_size=values["batch_size"],
        length=IngestionLength(
            num_batches=batches,
            num_warmup_batches=values["num_warmup_batches"],
            num_epochs=epochs,
        ),
        reader=values.get("reader", OWN).lower(),
        fail_on_error=values["fail_on_error"],
    )


def experiment_of(values: Values, phase: str, gpus: int) -> Experiment:
    """Returns the requested parameters under DLBS's names."""
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
        raise ConfigurationError("device is gpu, and there is to be none; leave out device, or give num_gpus")
    indices = gpus if gpus else range(count or 1)
    return tuple(Device(DeviceKind.GPU, index) for index in indices)


def _without_effect(values: Values, framework: str, devices: tuple[Device, ...]) -> Iterator[str]:
    """Yields one line for each option that is accepted and has no effect."""
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


def _check_model_options(given: Mapping[str, Any], manifest: ModelManifest) -> None:
    """Accepts only the model's own number of classes; the built-in networks have no other options."""
    classes = len(manifest.output.parameters.labels)
    for name, value in given.items():
        if name == "num_classes" and classes and value == classes:
            continue
        has = f"; {manifest.name} has {classes} classes" if name == "num_classes" and classes else ""
        raise ConfigurationError(
            f"model_opts: {name} cannot be set to {value!r}, as the networks of DLBS's ids are fixed{has}; "
            "write an architecture of your own in code instead"
        )


def read_length(values: Values) -> tuple[int | None, int | None]:
    """Returns the number of batches and the number of epochs, one of which ends the run.

    Raises:
        ConfigurationError: Both are set.
    """
    batches, epochs = values["num_batches"], values["num_epochs"]
    if epochs is not None and batches is not None:
        raise ConfigurationError("num_epochs and num_batches both end the run; give one of them")
    return (BENCH_BATCHES, None) if epochs is None and batches is None else (batches, epochs)
