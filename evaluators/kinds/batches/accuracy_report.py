"""The report on the accuracy of models, by the metric of their task."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from inferometer.evaluators.evaluation import Evaluation
from inferometer.evaluators.kinds.batches.measurement import BatchMeasurement
from inferometer.evaluators.reports.base import (
    CONDITIONS_COLUMN,
    EVALUATION_COLUMNS,
    STATUS_COLUMN,
    Column,
    Report,
    Row,
    Table,
    Value,
    describe,
)
from inferometer.evaluators.tasks.scores import Score, TaskResult

CLASSIFICATION = "classification"
_TOP1 = (
    Column("top1_accuracy", "top-1 (share)", decimals=4, stays=True),
    Column("top5_accuracy", "top-5 (share)", decimals=4, stays=True),
)
_COUNTS = (
    Column("evaluated_inputs", "evaluated inputs"),
    Column("failed_inputs", "failed inputs"),
    Column("dataset_name", "dataset"),
)
_ENDS = (STATUS_COLUMN, CONDITIONS_COLUMN)
_OF_CLASSES = (
    Column("top1_accuracy_low", "top-1 low", decimals=4, detail=3),
    Column("top1_accuracy_high", "top-1 high", decimals=4, detail=3),
    Column("top5_accuracy_low", "top-5 low", decimals=4, detail=3),
    Column("top5_accuracy_high", "top-5 high", decimals=4, detail=3),
    Column("calibration_error", "calibration error", decimals=4, detail=2),
)
_OF_ANY_TASK = (
    Column("task", "task", detail=3),
    Column("definition", "definition", detail=3),
    Column("score_name", "score name", detail=3),
    Column("score", "score", decimals=4, detail=3),
    Column("score_low", "low", decimals=4, detail=3),
    Column("score_high", "high", decimals=4, detail=3),
    Column("score_unit", "unit", detail=3),
    Column("other_scores", "other scores", detail=3),
)


class AccuracyReport(Report[BatchMeasurement]):
    """One row for each evaluation, with its scores over the evaluated inputs.

    An evaluated input has a ground truth, such as a label, and a prediction that could be scored. Scores are
    empty if no input was evaluated. Files have the same columns for every task: ``score`` is the most
    important score, and ``other_scores`` has the rest as ``name=value``, separated by blanks; a blank in a
    name becomes ``_``. Console output has one table for each task, with a column for each of its scores.
    """

    name = "accuracy"
    summary = "accuracy, or the scores of other tasks, with the inputs they are counted over"
    takes = (BatchMeasurement,)
    has_tables = True
    columns = (*EVALUATION_COLUMNS, *_TOP1, *_COUNTS, *_ENDS, *_OF_CLASSES, *_OF_ANY_TASK)

    def rows(self, evaluations: Sequence[Evaluation[BatchMeasurement]]) -> Iterator[Row]:
        """Yields one row for each evaluation."""
        for evaluation in evaluations:
            yield {
                **_described(evaluation),
                **_class_values(evaluation),
                **_task_values(evaluation),
            }

    def tables(self, evaluations: Sequence[Evaluation[BatchMeasurement]]) -> Sequence[Table]:
        """Returns a table for each task, classification first."""
        of_task: dict[str, list[Evaluation[BatchMeasurement]]] = {}
        for evaluation in evaluations:
            of_task.setdefault(_table_of(evaluation), []).append(evaluation)
        tables = [
            _class_table(self, of_one) if task == CLASSIFICATION else _score_table(task, of_one)
            for task, of_one in sorted(of_task.items(), key=lambda each: each[0] != CLASSIFICATION)
        ]
        return tables or [_class_table(self, [])]


def score_values(result: TaskResult | None) -> dict[str, Value]:
    """Returns the values of ``SCORE_COLUMNS``; they are empty for a classification."""
    first = None if result is None or result.task == CLASSIFICATION else result.first
    return {"score_name": first.name if first else None, "score": first.value if first else None}


def _table_of(evaluation: Evaluation[BatchMeasurement]) -> str:
    """Returns the task whose table lists the evaluation: classification if it has no scores."""
    result = evaluation.measurement.task_result
    return CLASSIFICATION if result is None else result.task


def _described(evaluation: Evaluation[BatchMeasurement]) -> dict[str, Value]:
    measured = evaluation.measurement
    accuracy, result = measured.accuracy, measured.task_result
    counted = accuracy.evaluated if accuracy else result.samples if result else 0
    return {
        **describe(evaluation),
        "evaluated_inputs": counted,
        "failed_inputs": len(measured.failures),
        "dataset_name": evaluation.dataset.name,
    }


def _class_values(evaluation: Evaluation[BatchMeasurement]) -> dict[str, Value]:
    """Returns the values of ``_TOP1`` and ``_OF_CLASSES``."""
    accuracy, result = evaluation.measurement.accuracy, evaluation.measurement.task_result
    classes = result if result is not None and result.task == CLASSIFICATION else None
    ends = {name: _ends(classes, name) for name in ("top-1", "top-5")}
    return {
        "top1_accuracy": accuracy.top1_share if accuracy else None,
        "top5_accuracy": accuracy.top5_share if accuracy else None,
        "top1_accuracy_low": ends["top-1"][0],
        "top1_accuracy_high": ends["top-1"][1],
        "top5_accuracy_low": ends["top-5"][0],
        "top5_accuracy_high": ends["top-5"][1],
        "calibration_error": classes.score("ECE") if classes else None,
    }


def _ends(result: TaskResult | None, name: str) -> tuple[float | None, float | None]:
    scores = result.scores if result else ()
    return next((each.interval for each in scores if each.name == name and each.interval), (None, None))


def _task_values(evaluation: Evaluation[BatchMeasurement]) -> dict[str, Value]:
    """Returns the values of ``_OF_ANY_TASK``."""
    result = evaluation.measurement.task_result
    first = result.first if result else None
    low, high = (first.interval if first else None) or (None, None)
    others = [each for each in (result.scores if result else ()) if each is not first]
    return {
        "task": evaluation.system.manifest.output.type,
        "definition": result.definition if result else None,
        "score_name": first.name if first else None,
        "score": first.value if first else None,
        "score_low": low,
        "score_high": high,
        "score_unit": (first.unit or None) if first else None,
        "other_scores": " ".join(map(_pair, (e for e in others if e.value is not None))) or None,
    }


def _pair(score: Score) -> str:
    """Returns ``name=value``. Blanks in the name become ``_``, because blanks separate pairs."""
    return f"{score.name.replace(' ', '_')}={score.value!r}"


def _class_table(report: AccuracyReport, evaluations: Sequence[Evaluation[BatchMeasurement]]) -> Table:
    columns = (*EVALUATION_COLUMNS, *_TOP1, *_COUNTS, *_OF_CLASSES, *_ENDS)
    return Table(CLASSIFICATION, columns, report.rows(evaluations))


def _score_table(task: str, evaluations: Sequence[Evaluation[BatchMeasurement]]) -> Table:
    """Returns a table with a column for each known score of a task and for the ends of its interval."""
    results = [each.measurement.task_result for each in evaluations]
    scores: dict[str, Score] = {}
    for score in (each for result in results if result for each in result.scores if each.value is not None):
        if score.name not in scores or (score.interval and not scores[score.name].interval):
            scores[score.name] = score
    columns = [column for score in scores.values() for column in _score_columns(score)]
    rows = [
        _described(evaluation) | _score_values(result, scores)
        for evaluation, result in zip(evaluations, results, strict=True)
    ]
    return Table(task, (*EVALUATION_COLUMNS, *columns, *_COUNTS, *_ENDS), iter(rows))


def _score_columns(score: Score) -> Iterator[Column]:
    unit = f" ({score.unit})" if score.unit else ""
    yield Column(score.name, f"{score.name}{unit}", decimals=score.decimals, stays=True)
    if score.interval:
        yield Column(f"{score.name}_low", f"{score.name} low", decimals=score.decimals, detail=3)
        yield Column(f"{score.name}_high", f"{score.name} high", decimals=score.decimals, detail=3)


def _score_values(result: TaskResult | None, names: Iterable[str]) -> dict[str, Value]:
    values: dict[str, Value] = {}
    for name in names:
        low, high = _ends(result, name)
        values |= {name: result.score(name) if result else None, f"{name}_low": low, f"{name}_high": high}
    return values
