"""The Python functions for benchmarks of training and of data loading."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, TypedDict

from typing_extensions import Unpack

from inferometer.agent.hardware.environment import Precision
from inferometer.agent.tracing.recorder import TraceLevel
from inferometer.client.api.invocation import Invocation, library_invocation
from inferometer.client.api.requests import dataset_choice, named_model, system_request
from inferometer.client.api.runner import Systems, measured
from inferometer.client.api.runs import Ingestion, Training
from inferometer.evaluators.jobs import options as ranges
from inferometer.evaluators.jobs.job import SystemRequest
from inferometer.evaluators.jobs.options import (
    BENCH_BATCH_SIZE,
    BENCH_BATCHES,
    BENCH_PREFETCH,
    BENCH_WORKERS,
    DIST_BACKENDS,
    KV_STORES,
    MODEL,
    MXNET,
)
from inferometer.evaluators.kinds.ingestion.job import OWN, IngestionLength, IngestionRequest, ingestion_job
from inferometer.evaluators.kinds.training.job import training_job
from inferometer.evaluators.kinds.training.measurement import TrainingOptions
from inferometer.evaluators.kinds.training.ranks import RankRequest, read_communication
from inferometer.evaluators.kinds.training.request import TrainingData, TrainingRequest
from inferometer.manifests.errors import ConfigurationError, suggestion

_LOADERS = ("threads", "processes")
_RANGES = {
    "batch_size": ranges.COUNT,
    "num_batches": ranges.COUNT,
    "num_warmup_batches": ranges.NOT_NEGATIVE,
    "num_epochs": ranges.COUNT,
    "parts_every": ranges.NOT_NEGATIVE,
    "learning_rate": ranges.NOT_NEGATIVE,
    "momentum": ranges.NOT_NEGATIVE,
    "weight_decay": ranges.NOT_NEGATIVE,
    "workers": ranges.NOT_NEGATIVE,
    "prefetch": ranges.NOT_NEGATIVE,
    "seed": ranges.SEED,
    "ranks": ranges.COUNT,
}
_WHOLE = {name for name in _RANGES if name not in {"learning_rate", "momentum", "weight_decay"}}


class DataArguments(TypedDict, total=False):
    """Further arguments of ``ingest``, and of ``train``.

    Attributes:
        data_backend: The format of a path; detected by default.
        workers: The workers that load the dataset, by default 4; 0 loads in the thread of the steps.
        loader: The kind of the workers: ``threads``, the default, or ``processes``.
        prefetch: Batches to load ahead; by default 10.
        shuffle: Whether the order is drawn anew for each epoch.
        drop_cache: Whether the dataset is dropped from the page cache first.
    """

    data_backend: str | None
    workers: int
    loader: str
    prefetch: int
    shuffle: bool
    drop_cache: bool


class TrainingArguments(DataArguments, total=False):
    """Further arguments of ``train``, beside those of ``DataArguments``.

    Attributes:
        version: A version or a constraint; by default the highest.
        weights: The weights to begin with: ``random``, the default, or ``pretrained``.
        on_device: Whether one synthetic batch stays on the device, instead of a copy for each step.
        cudnn_benchmark: Whether cuDNN times its algorithms; by default it does.
        api: ``gluon`` or ``module``, of MXNet.
        parts_every: The interval, in steps, at which the parts of a step are timed; by default 10; 0: never.
        fail_on_error: Whether the first sample that fails ends the training.
        trace_level: How deep it is traced, such as ``FRAMEWORK_TRACE``; by default APPLICATION_TRACE.
    """

    version: str | None
    weights: str
    on_device: bool
    cudnn_benchmark: bool
    api: str | None
    parts_every: int
    fail_on_error: bool
    trace_level: str | None


def train(
    model: str = MODEL,
    *,
    framework: str | None = None,
    data: str | os.PathLike[str] | None = None,
    batch_size: int = BENCH_BATCH_SIZE,
    num_batches: int | None = None,
    num_warmup_batches: int = 1,
    num_epochs: int | None = None,
    optimizer: str = "sgd",
    learning_rate: float = 0.01,
    momentum: float = 0.9,
    weight_decay: float = 1e-4,
    precision: str = "float32",
    validation: str | None = None,
    save_weights: str | os.PathLike[str] | None = None,
    ranks: int = 1,
    communication: str | None = None,
    seed: int = 0,
    threads: int | None = None,
    gpu: bool = False,
    publish: bool = True,
    **more: Unpack[TrainingArguments],
) -> Training:
    """Trains a model, as ``agent bench training`` does, and returns what was measured.

    Ctrl-C ends the training after the current step, and the measurements up to then are returned.

    Args:
        model: An id of DLBS, such as ``resnet50`` or ``deep_mnist``, or the name in a manifest.
        framework: The framework; None means the first installed one that has the model.
        data: The name of a dataset, or a path; None means synthetic data.
        batch_size: Samples in a batch of each device.
        num_batches: Measured steps; None means 100, unless ``num_epochs`` ends the training.
        num_warmup_batches: Warm-up steps, which train the model and are not measured.
        num_epochs: Passes over the data, instead of ``num_batches``.
        optimizer: ``sgd``, ``nag``, ``adam``, ``adamw`` or ``rmsprop``.
        learning_rate: The learning rate.
        momentum: The momentum of SGD, NAG and RMSProp.
        weight_decay: The L2 penalty.
        precision: ``float32``, ``bfloat16``, or on a GPU ``float16``, whose loss is scaled.
        validation: The name of a dataset that the trained model classifies.
        save_weights: A new file for the trained weights.
        ranks: The processes that train together on this machine; with ``gpu``, each has a GPU.
        communication: How gradients are summed: ``gloo`` or ``nccl``; for MXNet a kvstore, as ``dist_sync``.
        seed: The seed of weights, of synthetic data and of the order.
        threads: CPU threads of an operator and rank; None means the default.
        gpu: Whether to run on the GPU.
        publish: Whether to store the evaluation in the configured database.
        more: See ``TrainingArguments``.

    Raises:
        InferometerError: The model cannot be trained, the data cannot be opened, or a value is invalid.
        EvaluationInterrupted: Ctrl-C before a step was measured.
        StoreError: The database lost the evaluation; the message names the file that keeps it.
    """
    _refuse_unknown("train", more, TrainingArguments)
    numbers = {"batch_size": batch_size, "num_batches": num_batches, "num_epochs": num_epochs}
    numbers |= {"num_warmup_batches": num_warmup_batches, "parts_every": more.get("parts_every", 10)}
    rates = {"learning_rate": learning_rate, "momentum": momentum, "weight_decay": weight_decay}
    _check({**numbers, **rates, "ranks": ranks})
    together = RankRequest(num_ranks=ranks if ranks > 1 else None)
    _refuse_launcher(together)
    session = {"seed": seed, "threads": threads, "gpu": gpu, "precision": precision}
    invocation = library_invocation()
    request = _training_request(
        invocation,
        _trained_system(invocation, model, framework, session, more),
        _data(data, seed, more, on_device=more.get("on_device", False)),
        together,
        communication,
        {**numbers, **rates, "optimizer": optimizer.lower()},
        more,
    )
    request = replace(request, validation=validation, save_path=Path(save_weights) if save_weights else None)
    return Training(measured(invocation, training_job(request, together), publish=publish))


def ingest(
    model: str = MODEL,
    *,
    data: str | os.PathLike[str],
    version: str | None = None,
    framework: str | None = None,
    reader: str = OWN,
    batch_size: int = BENCH_BATCH_SIZE,
    num_batches: int | None = None,
    num_warmup_batches: int = 1,
    num_epochs: int | None = None,
    seed: int = 0,
    fail_on_error: bool = False,
    publish: bool = True,
    **more: Unpack[DataArguments],
) -> Ingestion:
    """Loads the batches of a dataset without loading the model, as ``agent bench ingestion`` does.

    Ctrl-C ends the run after the current batch, and the measurements up to then are returned; a second Ctrl-C
    raises KeyboardInterrupt.

    Args:
        model: An id of DLBS or the name in a manifest; it gives the preprocessing.
        data: The name of a dataset, or a path.
        version: A version or a constraint; None means the highest.
        framework: The framework; None means the first installed one that has the model.
        reader: ``own``, or ``framework`` for the framework's own iterator of the format.
        batch_size: Samples in a batch.
        num_batches: Measured batches; None means 100, unless ``num_epochs`` ends the run.
        num_warmup_batches: Warm-up batches, which are not measured.
        num_epochs: Passes over the data, instead of ``num_batches``.
        seed: The seed of the order.
        fail_on_error: Whether the first sample that fails ends the run.
        publish: Whether to store the evaluation in the configured database.
        more: See ``DataArguments``.

    Raises:
        InferometerError: The model is unknown, the data cannot be loaded, or a value is invalid.
        EvaluationInterrupted: Ctrl-C before a batch was measured.
        StoreError: The database lost the evaluation; the message names the file that keeps it.
    """
    _refuse_unknown("ingest", more, DataArguments)
    warm_up = num_warmup_batches
    _check({"batch_size": batch_size, "num_batches": num_batches, "num_epochs": num_epochs})
    _check({"num_warmup_batches": warm_up})
    if data is None:
        raise ConfigurationError("ingestion reads a dataset; give its name or its path as data")
    session = {"weights": "random", "seed": seed, "gpu": False, "threads": None, "precision": "float32"}
    invocation = library_invocation()
    system = _system(invocation, model, version, framework, **session)
    batches = _batches(num_batches, num_epochs)
    request = IngestionRequest(
        system=system,
        data=_data(data, seed, more),
        batch_size=batch_size,
        length=IngestionLength(num_batches=batches, num_warmup_batches=warm_up, num_epochs=num_epochs),
        reader=reader.lower(),
        fail_on_error=fail_on_error,
    )
    return Ingestion(measured(invocation, ingestion_job(request), publish=publish))


def _refuse_unknown(function: str, given: DataArguments, known: type[DataArguments]) -> None:
    for name in given:
        if name not in known.__annotations__:
            raise TypeError(f"{function}() got an unexpected keyword argument {name!r}")


def _check(numbers: dict[str, Any]) -> None:
    """Checks the type and the range of numbers."""
    for name, value in numbers.items():
        wanted = int if name in _WHOLE else (int, float)
        if value is not None and (isinstance(value, bool) or not isinstance(value, wanted)):
            kind = "a whole number" if name in _WHOLE else "a number"
            raise ConfigurationError(f"{name} is {value!r}; it must be {kind}")
        ranges.check_number(name, value, _RANGES[name])


def _refuse_launcher(ranks: RankRequest) -> None:
    found = ranks.of_this_process(os.environ)
    if found is not None and found.count > 1:
        raise ConfigurationError(
            f"a launcher has started this process as {found}; the library starts ranks itself, "
            "and agent bench training is for a launcher"
        )


def _system(
    invocation: Invocation, model: object, version: str | None, framework: str | None, **session: Any
) -> SystemRequest:
    """Returns the request for a model, named by its DLBS id or by its manifest."""
    if not isinstance(model, str):
        raise ConfigurationError(
            f"model is {type(model).__name__}; give the name of a model with an architecture in code"
        )
    name, version = named_model(invocation.catalog, model, version)
    return system_request(invocation, name, version=version, framework=framework, agent=None, **session)


def _trained_system(
    invocation: Invocation,
    model: object,
    framework: str | None,
    session: Mapping[str, Any],
    more: TrainingArguments,
) -> SystemRequest:
    benchmark, weights = more.get("cudnn_benchmark", True), more.get("weights", "random")
    rest = {"cudnn_benchmark": benchmark, "weights": weights}
    return _system(invocation, model, more.get("version"), framework, **session, **rest)


def _training_request(
    invocation: Invocation,
    system: SystemRequest,
    data: TrainingData,
    ranks: RankRequest,
    communication: str | None,
    options: Mapping[str, Any],
    more: TrainingArguments,
) -> TrainingRequest:
    framework, level = _framework(invocation, system), more.get("trace_level")
    batches = _batches(options["num_batches"], options["num_epochs"])
    rest = {**options, "num_batches": batches, "api": more.get("api")}
    return TrainingRequest(
        system=system,
        data=data,
        options=_options(system, framework, ranks, communication, **rest),
        devices=(system.session.device,),
        fail_on_error=more.get("fail_on_error", False),
        trace_level=TraceLevel.named(level) if level else TraceLevel.APPLICATION_TRACE,
    )


def _framework(invocation: Invocation, system: SystemRequest) -> str:
    """Returns the name of the framework, in lower case."""
    return Systems(invocation).find_model(system).framework.name.casefold()


def _options(
    system: SystemRequest,
    framework: str,
    ranks: RankRequest,
    communication: str | None,
    *,
    api: str | None,
    **options: Any,
) -> TrainingOptions:
    session = system.session
    return TrainingOptions(
        api=_api(api, framework),
        communication=_communication(communication, framework, system, ranks),
        precision=(session.precision or Precision.FLOAT32).value,
        cudnn_benchmark=session.cudnn_benchmark,
        **options,
    )


def _data(
    data: str | os.PathLike[str] | None, seed: int, more: DataArguments, *, on_device: bool = False
) -> TrainingData:
    workers, prefetch = more.get("workers", BENCH_WORKERS), more.get("prefetch", BENCH_PREFETCH)
    _check({"workers": workers, "prefetch": prefetch, "seed": seed})
    loader, backend = more.get("loader", _LOADERS[0]), more.get("data_backend")
    if loader not in _LOADERS:
        raise ConfigurationError(f'unknown loader "{loader}"; give {" or ".join(_LOADERS)}')
    choice = dataset_choice(data)
    if backend is not None and choice.path is None:
        raise ConfigurationError(f"data_backend {backend} is the format of a path; give one as data")
    return TrainingData(
        path=choice.path,
        name=choice.name,
        backend=backend,
        on_device=on_device,
        workers=workers,
        processes=loader == "processes" and workers > 0,
        prefetch=prefetch if workers else 0,
        shuffle=more.get("shuffle", False),
        seed=seed,
        drop_cache=more.get("drop_cache", False),
    )


def _batches(batches: int | None, epochs: int | None) -> int | None:
    if batches is not None and epochs is not None:
        raise ConfigurationError("num_epochs and num_batches both end the run; give one of them")
    return BENCH_BATCHES if batches is None and epochs is None else batches


def _api(api: str | None, framework: str) -> str:
    if api is not None and framework != MXNET:
        raise ConfigurationError(f"api {api} is one of MXNet's; the framework is {framework}")
    return api.lower() if api else ""


def _communication(name: str | None, framework: str, system: SystemRequest, ranks: RankRequest) -> str:
    """Returns the method of summing gradients, by the framework's name for it."""
    known = KV_STORES if framework == MXNET else DIST_BACKENDS
    if name is not None and name.lower() not in known:
        raise ConfigurationError(f'unknown communication "{name}"; {suggestion(name, known)}')
    chosen: dict[str, str | None] = {"kv_store": None, "dist_backend": None, "kv_num_servers": None}
    chosen["kv_store" if framework == MXNET else "dist_backend"] = name
    return read_communication(chosen, framework, int(system.session.device.is_gpu), ranks, 1)
