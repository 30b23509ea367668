"""The Python functions for benchmarks of training and of data loading."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from typing_extensions import Unpack

from inferometer.agent.tracing.recorder import TraceLevel
from inferometer.client.api.arguments import (
    DeclaredDataArguments,
    DeclaredIngestionArguments,
    DeclaredTrainingArguments,
)
from inferometer.client.api.invocation import Invocation, library_invocation
from inferometer.client.api.requests import SystemArguments, dataset_choice, named_model, refuse_unknown
from inferometer.client.api.runner import Systems, measured
from inferometer.client.api.runs import Ingestion, Training
from inferometer.evaluators.jobs.job import SystemRequest
from inferometer.evaluators.jobs.options import (
    BENCH_BATCH_SIZE,
    COUNT,
    DIST_BACKENDS,
    KV_STORES,
    MODEL,
    MXNET,
    check_value,
    options_of,
)
from inferometer.evaluators.kinds.ingestion.job import ingestion_job
from inferometer.evaluators.kinds.ingestion.request import OWN, IngestionRequest
from inferometer.evaluators.kinds.training.job import training_job
from inferometer.evaluators.kinds.training.request import (
    RankRequest,
    TrainingData,
    TrainingOptions,
    TrainingRequest,
)
from inferometer.manifests.errors import ConfigurationError, suggestion


class DataArguments(DeclaredDataArguments, total=False):
    """Further arguments of ``ingest`` and ``train``, in addition to those of ``DeclaredDataArguments``.

    Attributes:
        data_backend: The format of a path; detected by default.
        loader: The kind of workers: ``threads``, the default, or ``processes``.
    """

    data_backend: str | None
    loader: str


class IngestionArguments(DataArguments, DeclaredIngestionArguments, total=False):
    """Further arguments of ``ingest``, in addition to those of ``DataArguments``."""


class TrainingArguments(DataArguments, DeclaredTrainingArguments, total=False):
    """Further arguments of ``train``, besides those of ``DataArguments`` and ``DeclaredTrainingArguments``.

    Attributes:
        version: A version or a constraint; by default the highest.
        weights: The initial weights: ``random``, the default, or ``pretrained``.
        on_device: Whether one synthetic batch stays on the device, instead of being copied in each step.
        cudnn_benchmark: Whether cuDNN times its algorithms; by default it does.
        trace_level: The trace level, such as ``FRAMEWORK_TRACE``; by default APPLICATION_TRACE.
    """

    version: str | None
    weights: str
    on_device: bool
    cudnn_benchmark: bool
    trace_level: str | None


_OF_THE_SESSION = {"cudnn_benchmark": True, "weights": "random"}
"""Further arguments of ``train`` that concern how the model is opened, with their defaults."""


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
    """Trains a model like ``agent bench training``, and returns the measurements.

    Ctrl-C ends the training after the current step, and the measurements up to then are returned.

    Args:
        model: A DLBS id, such as ``resnet50`` or ``deep_mnist``, or the name in a manifest.
        framework: The framework; None means the first installed one that has the model.
        data: The name of a dataset, or a path; None means synthetic data.
        batch_size: Samples per batch on each device.
        num_batches: Measured steps; None means 100, unless ``num_epochs`` ends the training.
        num_warmup_batches: Warm-up steps, which train the model and are not measured.
        num_epochs: Passes over the data, instead of ``num_batches``.
        optimizer: ``sgd``, ``nag``, ``adam``, ``adamw`` or ``rmsprop``.
        learning_rate: The learning rate.
        momentum: The momentum of SGD, NAG and RMSProp.
        weight_decay: The L2 penalty.
        precision: ``float32``, ``bfloat16``, or, on a GPU, ``float16`` with loss scaling.
        validation: The name of a dataset that the trained model is evaluated on.
        save_weights: The new file that the trained weights are written to.
        ranks: The number of processes that train together on this machine; with ``gpu``, each uses one GPU.
        communication: How to sum gradients: ``gloo`` or ``nccl``; for MXNet, a kvstore such as ``dist_sync``.
        seed: The seed for the weights, the synthetic data and the sample order.
        threads: CPU threads per operator and rank; None means the default.
        gpu: Whether to run on the GPU.
        publish: Whether to store the evaluation in the configured database.
        more: See ``TrainingArguments``.

    Raises:
        InferometerError: The model cannot be trained, the data cannot be opened, or a value is invalid.
        EvaluationInterrupted: Ctrl-C before a step was measured.
        StoreError: The evaluation was not published; the message names the file that holds it.
    """
    _refuse_unknown("train", more, TrainingArguments, TrainingData, TrainingOptions)
    together = _together(ranks)
    values = {
        **more,
        "seed": seed,
        "batch_size": batch_size,
        "num_batches": num_batches,
        "num_epochs": num_epochs,
        "num_warmup_batches": num_warmup_batches,
        "optimizer": optimizer,
        "momentum": momentum,
        "learning_rate": learning_rate,
        "weight_decay": weight_decay,
        "validation": validation,
        "save_path": Path(save_weights) if save_weights else None,
    }
    invocation = library_invocation()
    session: dict[str, Any] = {"seed": seed, "threads": threads, "gpu": gpu, "precision": precision}
    session |= {name: more.get(name, default) for name, default in _OF_THE_SESSION.items()}
    system = _system(invocation, model, more.get("version"), framework, **session)
    request = _training_request(invocation, system, values, data, together, communication)
    return Training(measured(invocation, training_job(request, together), publish=publish))


def _together(ranks: int) -> RankRequest:
    """Returns the request for ``ranks`` that this process starts."""
    check_value("ranks", ranks, "int", COUNT)
    together = RankRequest(num_ranks=ranks if ranks > 1 else None)
    if (found := together.of_this_process(os.environ)) is not None and found.count > 1:
        raise ConfigurationError(
            f"a launcher has started this process as {found}; the library starts ranks itself; "
            "with a launcher, use agent bench training"
        )
    return together


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
    **more: Unpack[IngestionArguments],
) -> Ingestion:
    """Loads the batches of a dataset without loading the model, like ``agent bench ingestion``.

    Ctrl-C ends the run after the current batch, and the measurements up to then are returned; a second Ctrl-C
    raises KeyboardInterrupt.

    Args:
        model: A DLBS id or the name in a manifest; it determines the preprocessing.
        data: The name of a dataset, or a path.
        version: A version or a constraint; None means the highest.
        framework: The framework; None means the first installed one that has the model.
        reader: ``own``, or ``framework`` for the framework's own iterator of the format.
        batch_size: Samples per batch.
        num_batches: Measured batches; None means 100, unless ``num_epochs`` ends the run.
        num_warmup_batches: Warm-up batches, which are not measured.
        num_epochs: Passes over the data, instead of ``num_batches``.
        seed: The seed for the sample order.
        fail_on_error: Whether the first sample that fails ends the run.
        publish: Whether to store the evaluation in the configured database.
        more: See ``IngestionArguments``.

    Raises:
        InferometerError: The model is unknown, the data cannot be loaded, or a value is invalid.
        EvaluationInterrupted: Ctrl-C before a batch was measured.
        StoreError: The evaluation was not published; the message names the file that holds it.
    """
    _refuse_unknown("ingest", more, IngestionArguments, TrainingData, IngestionRequest)
    if data is None:
        raise ConfigurationError("ingestion reads a dataset; give its name or its path as data")
    session = {"weights": "random", "seed": seed, "gpu": False, "threads": None, "precision": "float32"}
    invocation = library_invocation()
    values = {
        **more,
        "seed": seed,
        "batch_size": batch_size,
        "num_batches": num_batches,
        "num_epochs": num_epochs,
        "num_warmup_batches": num_warmup_batches,
        "reader": reader,
        "fail_on_error": fail_on_error,
    }
    system = _system(invocation, model, version, framework, **session)
    request = IngestionRequest.of(system, values, _data(data, values))
    return Ingestion(measured(invocation, ingestion_job(request), publish=publish))


def _refuse_unknown(
    function: str, given: Mapping[str, Any], arguments: type[Any], *requests: type[Any]
) -> None:
    """Rejects arguments that neither the argument class nor the requests define."""
    known = {each.argument for request in requests for each in options_of(request)}
    known.update(arguments.__annotations__)
    refuse_unknown(function, {name: value for name, value in given.items() if name not in known})


def _system(
    invocation: Invocation, model: object, version: str | None, framework: str | None, **session: Any
) -> SystemRequest:
    """Returns the request for a model, named by its DLBS id or by its manifest."""
    if not isinstance(model, str):
        raise ConfigurationError(
            f"model is {type(model).__name__}; give the name of a model with an architecture in code"
        )
    name, version = named_model(invocation.catalog, model, version)
    given = {"version": version, "framework": framework, "agent": None, **session}
    return SystemArguments(given).request(invocation, name)


def _training_request(
    invocation: Invocation,
    system: SystemRequest,
    values: dict[str, Any],
    data: str | os.PathLike[str] | None,
    ranks: RankRequest,
    communication: str | None,
) -> TrainingRequest:
    framework = Systems(invocation).find_model(system).framework.name.casefold()
    level = values.get("trace_level")
    values["trace_level"] = TraceLevel.named(level) if level else TraceLevel.APPLICATION_TRACE
    values["kv_store" if framework == MXNET else "dist_backend"] = _communication(communication, framework)
    read = _data(data, values, on_device=values.get("on_device", False))
    return TrainingRequest.of(system, framework, values, read, ranks, (system.session.device,))


def _data(
    data: str | os.PathLike[str] | None, values: Mapping[str, Any], *, on_device: bool = False
) -> TrainingData:
    choice, backend = dataset_choice(data), values.get("data_backend")
    if backend is not None and choice.path is None:
        raise ConfigurationError(f"data_backend {backend} requires a path; give one as data")
    return TrainingData.of(values, choice.path, choice.name, on_device=on_device)


def _communication(name: str | None, framework: str) -> str | None:
    """Returns the name of the method of summing gradients, after checking that the framework has it."""
    known = KV_STORES if framework == MXNET else DIST_BACKENDS
    if name is not None and name.lower() not in known:
        raise ConfigurationError(f'unknown communication "{name}"; {suggestion(name, known)}')
    return name
