"""The Python functions that evaluate models over datasets, run plug-ins' kinds, and score predictions."""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import closing
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

from typing_extensions import Unpack

from inferometer.client.api import results
from inferometer.client.api.arguments import EvaluateArguments, SweepArguments
from inferometer.client.api.invocation import Invocation, library_invocation
from inferometer.client.api.requests import SystemArguments, evaluation_request
from inferometer.client.api.results import Rows
from inferometer.client.api.runner import Door, Runner, measured, measured_group
from inferometer.client.api.runs import Run, Runs
from inferometer.evaluators.evaluation import Evaluation
from inferometer.evaluators.jobs.job import DatasetChoice, Job
from inferometer.evaluators.jobs.options import MODEL, check_options, needs_system, options_of, values_of
from inferometer.evaluators.kinds.batches.job import SweepCell, evaluation_job, sweep_job
from inferometer.evaluators.kinds.batches.plot import drawing_of
from inferometer.evaluators.kinds.registry import find_kind, measured_kinds
from inferometer.evaluators.scoring.rows import COLUMNS, rows_of
from inferometer.evaluators.scoring.score import ScoredPredictions, ScoreRequest
from inferometer.evaluators.scoring.score import score as score_job
from inferometer.evaluators.tasks.metric import ScoreInterval, TaskResult
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
    """Runs a kind of measurement, such as that of a plug-in, like ``agent measure``; returns the evaluation.

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
    if kind not in measured_kinds():
        raise ConfigurationError(f'unknown kind "{kind}"; {suggestion(kind, measured_kinds())}')
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
    return measured(invocation, found.job(request), publish=publish)


_Path = str | os.PathLike[str]


class Scores(Rows):
    """The scores of predictions, one row per score; a notebook also shows their picture.

    Attributes:
        result: The scores and their definitions.
        failures: The ids of the samples that could not be scored, each with the reason.
    """

    def __init__(self, found: ScoredPredictions, name: str) -> None:
        super().__init__(COLUMNS, rows_of(found.result, len(found.failures), found.dataset.name))
        self.result: TaskResult = found.result
        self.failures = {each.input_id: each.message for each in found.failures}
        self._name = name

    @property
    def samples(self) -> int:
        """The number of scored samples."""
        return self.result.samples

    def value(self, name: str) -> float | None:
        """Returns a score, such as ``AP50``; None if it is undefined or no score has this name."""
        return self.result.score(name)

    def interval(self, name: str) -> ScoreInterval | None:
        """Returns the 95 % interval of a score; None if there is none."""
        return next((each.interval for each in self.result.scores if each.name == name), None)

    def _repr_html_(self) -> str:
        return results.with_drawing(super()._repr_html_(), drawing_of(self.result, self._name))


def score(
    predictions: _Path,
    *,
    task: str,
    dataset_path: _Path | None = None,
    dataset_name: str | None = None,
    data_backend: str | None = None,
    sample_ids: Sequence[str] | None = None,
    labels: Sequence[str] = (),
    score_border: int = 0,
    score_channels: str = "RGB",
    average_precision: str | None = None,
    fail_on_error: bool = False,
) -> Scores:
    """Scores another tool's predictions against a dataset, like ``agent score``; runs no model.

    Args:
        predictions: The file or the folder.
        task: The task, such as ``detection``; see ``docs/tasks.md``.
        dataset_path: The path of the dataset.
        dataset_name: The dataset's name in its manifest.
        data_backend: The format of ``dataset_path``; None detects it.
        sample_ids: The ids of the samples to score; None means all samples of the dataset.
        labels: The class names in the order in which the predictions number them; empty means the dataset's.
        score_border: The number of pixels at each edge of an enhanced image that are ignored.
        score_channels: ``RGB``, or ``Y`` for the luma alone.
        average_precision: The definition of the AP of objects: ``coco``, ``lvis`` or ``voc``; None means
            LVIS's for a dataset of LVIS, and COCO's otherwise.
        fail_on_error: Whether the first sample that cannot be scored ends the call with an error.

    Raises:
        ConfigurationError: A value is invalid, or no dataset is named.
        DatasetError: The dataset or the predictions cannot be read, or do not match.
        EvaluationFailed: A sample failed, and ``fail_on_error`` is set.
    """
    invocation = library_invocation()
    choice = DatasetChoice(
        name=dataset_name,
        path=None if dataset_path is None else Path(dataset_path),
        backend=data_backend,
        sample_ids=None if sample_ids is None else tuple(map(str, sample_ids)),
    )
    request = ScoreRequest(
        task=task,
        predictions=Path(predictions),
        dataset=choice,
        labels=tuple(labels),
        parameters={
            "score_border": score_border,
            "score_channels": score_channels,
            "average_precision": average_precision,
        },
        fail_on_error=fail_on_error,
    )
    return Scores(score_job(request, invocation.catalog, invocation.cache), Path(predictions).name)
