"""The Python functions that evaluate, train and measure models, time loaders, and score predictions."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from contextlib import closing
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

from typing_extensions import Unpack

from inferometer.agent.tracing.recorder import TraceLevel
from inferometer.client.api.arguments import (
    DeclaredDataArguments,
    DeclaredIngestionArguments,
    DeclaredTrainingArguments,
    EvaluateArguments,
    ScoreArguments,
    SweepArguments,
)
from inferometer.client.api.invocation import Invocation, library_invocation
from inferometer.client.api.requests import (
    SystemArguments,
    dataset_choice,
    evaluation_request,
    refuse_unknown,
    scoring_of,
)
from inferometer.client.api.runner import Door, Runner, Systems, measured, measured_group
from inferometer.client.api.runs import Ingestion, Run, Runs, Scores, Training
from inferometer.evaluators.evaluation import Evaluation
from inferometer.evaluators.jobs.job import DatasetChoice, Job, SystemRequest
from inferometer.evaluators.jobs.options import (
    BENCH_BATCH_SIZE,
    COUNT,
    DIST_BACKENDS,
    KV_STORES,
    MODEL,
    MXNET,
    check_options,
    check_value,
    needs_system,
    options_of,
    values_of,
)
from inferometer.evaluators.kinds.batches.job import SweepCell, evaluation_job, sweep_job
from inferometer.evaluators.kinds.ingestion.job import ingestion_job
from inferometer.evaluators.kinds.ingestion.request import OWN, IngestionRequest
from inferometer.evaluators.kinds.registry import every_kind, find_kind, known_kinds
from inferometer.evaluators.kinds.training.job import training_job
from inferometer.evaluators.kinds.training.request import (
    RankRequest,
    TrainingData,
    TrainingOptions,
    TrainingRequest,
)
from inferometer.evaluators.scoring.score import ScoreRequest
from inferometer.evaluators.scoring.score import score as score_job
from inferometer.manifests.errors import ConfigurationError, EvaluationInterrupted, suggestion

if TYPE_CHECKING:
    from numpy.typing import NDArray


_Value = TypeVar("_Value")
OneOrSeveral: TypeAlias = _Value | Sequence[_Value]
"""One value, or several values."""


def evaluate(
    model: str | os.PathLike[str] | object = MODEL,
    *,
    dataset: str | os.PathLike[str] | None = None,
    inputs: NDArray[Any] | None = None,
    publish: bool = True,
    **more: Unpack[EvaluateArguments],
) -> Run:
    """Evaluates a model over a dataset, like ``agent predict dataset``, and returns the measurements.

    With ``repeat`` or ``leveled``, the last result is returned, and its ``group`` contains all of them.
    Ctrl-C ends the evaluation after the current batch, and the measurements up to then are returned; a
    second Ctrl-C raises KeyboardInterrupt.

    Args:
        model: The name in its manifest; or a file (.onnx, .pt2, .pt, MXNet's symbol) or an object in memory
            (``torch.nn.Module``, ``mxnet.gluon.HybridBlock``, ``onnxruntime.InferenceSession``); files and
            objects need no manifest and run in this process.
        dataset: A name, or a path as for ``--dataset_path``; None means the dataset that the model names.
        inputs: An array of samples instead of a dataset: (samples, …), where … is the model's input shape.
        publish: Whether to store the evaluation in the configured database.
        more: See ``EvaluateArguments``.

    Raises:
        InferometerError: The model or the dataset cannot be opened, or a value is invalid.
        EvaluationInterrupted: Ctrl-C before a batch was measured.
        StoreError: The database cannot be reached, or the evaluation was not published; the message names
            the file that holds it.
    """
    invocation = library_invocation()
    request = evaluation_request(invocation, "evaluate", model, dataset, inputs, dict(more))
    return Run.last_of(measured_group(invocation, evaluation_job(request), publish=publish))


def sweep(
    model: OneOrSeveral[str | os.PathLike[str] | object] = MODEL,
    *,
    dataset: str | os.PathLike[str] | None = None,
    inputs: NDArray[Any] | None = None,
    framework: OneOrSeveral[str | None] = None,
    batch_size: OneOrSeveral[int | None] = None,
    gpu: OneOrSeveral[bool] = False,
    threads: OneOrSeveral[int | None] = None,
    precision: OneOrSeveral[str | None] = None,
    publish: bool = True,
    **more: Unpack[SweepArguments],
) -> Runs:
    """Evaluates every combination of several values, and returns the results as a table.

    The evaluations run sequentially and are published as one group. The row of a failed evaluation shows the
    reason. Ctrl-C ends the sweep with the results so far; a second Ctrl-C raises KeyboardInterrupt.

    Args:
        model: A name, a file or an object, or several.
        dataset: See ``evaluate``.
        inputs: See ``evaluate``.
        framework: A framework, or several.
        batch_size: Inputs per batch; one number, or several.
        gpu: Whether to run on the GPU; ``[False, True]`` compares both.
        threads: CPU threads per operator; one number, or several.
        precision: The precision of a model that is defined in code; one name, or several.
        publish: See ``evaluate``.
        more: See ``SweepArguments``; the measuring time applies to each evaluation.

    Raises:
        InferometerError: A value is invalid, or every evaluation failed; the first failure is then raised.
        EvaluationInterrupted: Ctrl-C before a batch was measured.
        StoreError: The database cannot be reached, or an evaluation was not published but kept in a file.
    """
    invocation = library_invocation()
    several = {
        "model": model,
        "framework": framework,
        "gpu": gpu,
        "threads": threads,
        "precision": precision,
        "batch_size": batch_size,
    }
    names = tuple(several)[1:]
    requests = [
        evaluation_request(
            invocation, "sweep", name, dataset, inputs, {**more, **dict(zip(names, values, strict=True))}
        )
        for name, *values in product(*(_values(name, given) for name, given in several.items()))
    ]
    return _swept(invocation, sweep_job(requests), len(requests), publish=publish)


def _swept(invocation: Invocation, job: Job[SweepCell], count: int, *, publish: bool) -> Runs:
    """Runs a sweep. Ctrl-C while a model opens also ends it; if nothing was measured, the error is raised."""
    cells: list[SweepCell] = []
    runner = Runner(invocation, Door(), publish=publish)
    try:
        with closing(runner.run(job)) as found:
            for cell in found:
                if cell.evaluation is None:
                    runner.say(f"{cell.name} failed: {cell.error}")
                cells.append(cell)
    except (EvaluationInterrupted, KeyboardInterrupt) as error:
        again = isinstance(error, KeyboardInterrupt) and runner.stop()
        if again or not any(cell.evaluation for cell in cells):
            raise
    if not any(cell.evaluation for cell in cells) and cells[0].error is not None:
        raise cells[0].error
    return Runs(cells, complete=len(cells) == count)


def _values(name: str, given: Any) -> list[Any]:
    """Returns the values of an argument as a list; raises ConfigurationError if a value occurs twice."""
    values = list(given) if isinstance(given, Sequence) and not isinstance(given, str) else [given]
    if not values:
        raise ConfigurationError(f"{name} is empty; give one value, or several")
    for place, value in enumerate(values):
        if value in values[:place]:
            raise ConfigurationError(f"{name} names {value} twice; leave out one")
    return values


def measure(
    kind: str, model: str | os.PathLike[str] | object = MODEL, *, publish: bool = True, **options: Any
) -> Evaluation[Any]:
    """Runs a kind of measurement, like ``agent measure``, and returns its only or last evaluation.

    The arguments and the errors are those of ``measure_group``.
    """
    return measure_group(kind, model, publish=publish, **options)[-1]


def measure_group(
    kind: str, model: str | os.PathLike[str] | object = MODEL, *, publish: bool = True, **options: Any
) -> Sequence[Evaluation[Any]]:
    """Runs a kind of measurement, like ``agent measure``, and returns its evaluations.

    The kind ``mix`` has one evaluation for each model of its file, and ``memory`` has one.

    Args:
        kind: The name of the kind.
        model: The name in its manifest, or a file or an object as in ``evaluate``.
        publish: Whether to store the evaluation in the configured database.
        options: The options that the kind's request declares, and ``SystemArguments`` if it uses a model.

    Raises:
        ConfigurationError: There is no such kind or option, or a value is invalid.
        InferometerError: The model cannot be opened.
        StoreError: The evaluation was not published; the message names the file that holds it.
    """
    if kind not in known_kinds():
        known = [each.name for each in every_kind() if each.request is not None]
        raise ConfigurationError(f'unknown kind "{kind}"; {suggestion(kind, known)}')
    found = find_kind(kind)
    if found.request is None:
        raise ConfigurationError(f"kind {kind} declares no request, so it has no function")
    needs, invocation = needs_system(found.request), library_invocation()
    known = [each.argument for each in options_of(found.request)]
    values = values_of(found.request, options, arguments=True)
    system = SystemArguments(options) if needs else None
    for name in options:
        raise ConfigurationError(f'unknown option "{name}" of {kind}; {suggestion(name, known)}')
    if system is not None:
        values["system"] = system.request(invocation, model)
    request = found.request(**values)
    check_options(request)
    return measured_group(invocation, found.job(request), publish=publish)


_Path = str | os.PathLike[str]


def score(
    predictions: _Path,
    *,
    task: str,
    dataset_path: _Path | None = None,
    dataset_name: str | None = None,
    dataset_category: str | None = None,
    data_backend: str | None = None,
    sample_ids: Sequence[str] | None = None,
    labels: Sequence[str] = (),
    fail_on_error: bool = False,
    **more: Unpack[ScoreArguments],
) -> Scores:
    """Scores another tool's predictions against a dataset, like ``agent score``; runs no model.

    Args:
        predictions: The file or the folder.
        task: The task, such as ``detection``; see ``docs/tasks.md``.
        dataset_path: The path of the dataset.
        dataset_name: The dataset's name in its manifest.
        dataset_category: The dataset's category; None means any.
        data_backend: The format of ``dataset_path``; None detects it.
        sample_ids: The ids of the samples to score; None means all samples of the dataset.
        labels: The class names in the order in which the predictions number them; empty means the dataset's.
        fail_on_error: Whether the first sample that cannot be scored ends the call with an error.
        more: See ``ScoreArguments``.

    Raises:
        ConfigurationError: A value is invalid or for other tasks, or no dataset is named.
        DatasetError: The dataset or the predictions cannot be read, or do not match.
        EvaluationFailed: A sample failed, and ``fail_on_error`` is set.
    """
    invocation, given = library_invocation(), dict[str, Any](more)
    options = scoring_of(given, arguments=True)
    refuse_unknown("score", given)
    choice = DatasetChoice(
        name=dataset_name,
        path=None if dataset_path is None else Path(dataset_path),
        category=dataset_category,
        backend=data_backend,
        sample_ids=None if sample_ids is None else tuple(map(str, sample_ids)),
    )
    request = ScoreRequest(
        task=task,
        predictions=Path(predictions),
        dataset=choice,
        labels=tuple(labels),
        options=options,
        fail_on_error=fail_on_error,
    )
    return Scores(score_job(request, invocation.catalog, invocation.cache), Path(predictions).name)


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
    if not isinstance(model, str):
        raise ConfigurationError(
            f"model is {type(model).__name__}; give the name of a model with an architecture in code"
        )
    name, version = invocation.catalog.named(model, version)
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
    option, known = ("kv_store", KV_STORES) if framework == MXNET else ("dist_backend", DIST_BACKENDS)
    if communication is not None and communication.lower() not in known:
        raise ConfigurationError(
            f'unknown communication "{communication}"; {suggestion(communication, known)}'
        )
    values[option] = communication
    read = _data(data, values, on_device=values.get("on_device", False))
    return TrainingRequest.of(system, framework, values, read, ranks, (system.session.device,))


def _data(
    data: str | os.PathLike[str] | None, values: Mapping[str, Any], *, on_device: bool = False
) -> TrainingData:
    choice, backend = dataset_choice(data), values.get("data_backend")
    if backend is not None and choice.path is None:
        raise ConfigurationError(f"data_backend {backend} requires a path; give one as data")
    return TrainingData.of(values, choice.path, choice.name, on_device=on_device)
