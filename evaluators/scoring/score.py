"""The job behind ``agent score``: a task's metric over the predictions of another tool, and its rows."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from inferometer.agent.artifacts.files import ArtifactCache
from inferometer.evaluators.datasets.base import Dataset, DatasetIdentity, Subset
from inferometer.evaluators.jobs.job import DatasetChoice, Progress
from inferometer.evaluators.jobs.request import ScoreOptions
from inferometer.evaluators.reports.base import Column, Row, row_of
from inferometer.evaluators.scoring import prediction_files
from inferometer.evaluators.scoring.prediction_files import PredictionFile
from inferometer.evaluators.tasks.metric import METRICS, ScoringFailure, TaskMetric, TaskResult
from inferometer.manifests.catalog import Catalog
from inferometer.manifests.errors import (
    ConfigurationError,
    DatasetError,
    EvaluationFailed,
    PredictionError,
    one_line,
    suggestion,
)
from inferometer.manifests.fields import OUTPUT_TYPES
from inferometer.manifests.schema import ModelManifest

_FILES: Mapping[str, Callable[[Path, Dataset, Sequence[str]], PredictionFile]] = {
    "classification": prediction_files.probabilities_or("label", prediction_files.LabelsFile),
    "object_detection": prediction_files.ObjectsFile,
    "instance_segmentation": prediction_files.MasksOfObjectsFile,
    "semantic_segmentation": prediction_files.MaskFiles,
    "image_enhancement": prediction_files.EnhancedFiles,
    "regression": prediction_files.NumbersFile,
    "text_classification": prediction_files.probabilities_or("label", prediction_files.TextLabelsFile),
    "multilabel_classification": prediction_files.probabilities_or("labels", prediction_files.LabelListsFile),
    "question_answering": prediction_files.AnswersFile,
    "embedding": prediction_files.NumbersFile,
}
TASKS = tuple(_FILES)
"""The tasks whose predictions can be read from files."""
_WITHOUT_CLASSES = {"image_enhancement", "regression", "question_answering", "embedding"}
_SHORT = {
    "detection": "object_detection",
    "segmentation": "semantic_segmentation",
    "enhancement": "image_enhancement",
    "image_classification": "classification",
    "multilabel": "multilabel_classification",
    "qa": "question_answering",
    "embeddings": "embedding",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class ScoreRequest:
    """The predictions to score, and the dataset with the ground truths.

    Attributes:
        task: The name of a task, or a shorter or older one; see ``task_named``.
        predictions: The file, or the folder, of the predictions.
        dataset: The dataset. All of its samples are scored, or only those in ``sample_ids``.
        labels: The names of the classes in the order of their indices in the predictions; empty means the
            dataset's.
        per_class: Whether the figures of each class are wanted.
        options: How the task counts predictions.
        fail_on_error: Whether the first sample that cannot be scored ends the scoring with an error.
    """

    task: str
    predictions: Path
    dataset: DatasetChoice
    labels: tuple[str, ...] = ()
    per_class: bool = False
    options: ScoreOptions = ScoreOptions()  # noqa: RUF009 - frozen
    fail_on_error: bool = False


@dataclass(frozen=True, slots=True)
class ScoredPredictions:
    """The scores of predictions.

    Attributes:
        result: The scores.
        dataset: The samples that were to be scored, some of which may have failed.
        failures: The samples that could not be scored, or have no prediction; the scores do not include them.
    """

    result: TaskResult
    dataset: DatasetIdentity
    failures: Sequence[ScoringFailure]


def task_named(name: str) -> str:
    """Returns the ``output.type`` for a name: its own, MLModelScope's, or a short one such as ``detection``.

    Raises:
        ConfigurationError: The task does not exist, or its predictions cannot be read.
    """
    folded = name.strip().casefold().replace("-", "_")
    found = _SHORT.get(folded) or OUTPUT_TYPES.get(folded, folded)
    if found not in _FILES or found not in METRICS:
        known = [task for task in (*TASKS, *_SHORT) if _SHORT.get(task, task) in METRICS]
        raise ConfigurationError(f'unknown task "{name}"; {suggestion(folded, known)}')
    return found


def score(
    request: ScoreRequest,
    catalog: Catalog,
    cache: ArtifactCache | None,
    on_progress: Callable[[Progress], None] = lambda _: None,
) -> ScoredPredictions:
    """Scores predictions against the truths of a dataset, using the metric of their task; runs no model.

    Every sample of the dataset counts: one without a prediction is a failure, except in COCO's results, where
    it counts as a prediction of no objects and so misses those of the truth.

    Raises:
        ConfigurationError: The task does not exist, or an option is invalid or for other tasks.
        DatasetError: The dataset or the predictions cannot be read, or do not fit each other.
        EvaluationFailed: A sample failed, and the request requires stopping on failures.
    """
    task = task_named(request.task)
    parameters = request.options.parameters(task)
    for name in ("labels", "per_class"):
        if task in _WITHOUT_CLASSES and getattr(request, name):
            raise ConfigurationError(f"{name} is for tasks with classes; leave it out for {task}")
    if not request.predictions.exists():
        raise DatasetError(f"{request.predictions}: cannot be read: No such file or folder")
    opened = replace(request.dataset, sample_ids=None).open(catalog, cache)
    if opened is None:
        raise ConfigurationError("no dataset is named; give dataset_path or dataset_name")
    with closing(opened) as whole:
        file = _FILES[task](request.predictions, whole, request.labels)
        file.check(whole)
        ids = request.dataset.sample_ids
        chosen = whole if ids is None else Subset(whole, ids)
        metric = METRICS.find(task)(_manifest(task, file.labels, parameters))
        failures = []
        for failure in _add_all(metric, file, chosen, on_progress):
            if request.fail_on_error:
                raise EvaluationFailed(
                    f"{failure.input_id}: {failure.message}; stopped because of fail_on_error"
                )
            failures.append(failure)
        result = metric.result()
        if result is None or not result.samples:
            raise DatasetError(_nothing(request.predictions, chosen, failures))
        return ScoredPredictions(_told(result, file), chosen.identity, tuple(failures))


def _add_all(
    metric: TaskMetric, file: PredictionFile, dataset: Dataset, on_progress: Callable[[Progress], None]
) -> Iterator[ScoringFailure]:
    """Adds every sample to the metric, and yields those that cannot be scored."""
    for sample in dataset:
        metric.check(sample)
    for place, sample in enumerate(dataset, start=1):
        try:
            metric.add(sample, file.read(sample))
        except (DatasetError, PredictionError) as error:
            yield ScoringFailure(sample.id, str(error))
        on_progress(Progress(place, len(dataset)))


def _nothing(path: Path, dataset: Dataset, failures: Sequence[ScoringFailure]) -> str:
    if failures:
        return f"{path}: no prediction could be scored; {failures[0].input_id}: {failures[0].message}"
    return f"{path}: dataset {dataset.identity.name} has no truth for this task"


def _told(result: TaskResult, file: PredictionFile) -> TaskResult:
    """Returns the result with only the scores that the predictions determine."""
    kept = [each for each in result.scores if each.name not in file.unknown]
    of_classes = result.details.get("per_class", {}).items()
    known = {name: values for name, values in of_classes if name not in file.unknown}
    return replace(
        result, scores=kept, details={**result.details, "per_class": known} if known else result.details
    )


def _manifest(task: str, labels: Sequence[str], parameters: Mapping[str, Any]) -> ModelManifest:
    """Returns the manifest of a model that would make such predictions, as the metric requires it."""
    try:
        return ModelManifest.model_validate(
            {
                "name": "predictions",
                "framework": {"name": "none"},
                "inputs": [{"type": "tensor", "parameters": {"dimensions": [1]}}],
                "output": {"type": task, "parameters": {**parameters, "labels": list(labels)}},
                "model": {"graph_path": "none"},
            }
        )
    except ValidationError as error:
        found = error.errors()[0]
        field = str(found["loc"][-1]) if found["loc"] else "parameters"
        raise ConfigurationError(f"{field}: {one_line(found['msg'])}; found {found['input']!r}") from error


COLUMNS = (
    Column("task", "task"),
    Column("score_name", "score", value="name"),
    Column("score", "value", decimals=4, stays=True, value="value"),
    Column("score_low", "low", decimals=4, stays=True, value="interval.0"),
    Column("score_high", "high", decimals=4, stays=True, value="interval.1"),
    Column("score_unit", "unit"),
    Column("evaluated_inputs", "evaluated inputs"),
    Column("failed_inputs", "failed inputs"),
    Column("dataset_name", "dataset"),
    Column("definition", "definition", detail=3),
)
"""Columns like those of the report on accuracy, which instead has one row per evaluation."""


def rows_of(result: TaskResult, failed: int, dataset: str) -> Iterator[Row]:
    """Yields a row for each score."""
    for score in result.scores:
        yield {
            "task": result.task,
            **row_of(COLUMNS, score),
            "score_unit": score.unit or None,
            "evaluated_inputs": result.samples,
            "failed_inputs": failed,
            "dataset_name": dataset,
            "definition": result.definition,
        }
