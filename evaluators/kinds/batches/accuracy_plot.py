"""The plot of the accuracy report: scores with their intervals, curves and confusion matrices."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from inferometer.evaluators.drawing.charts import (
    Bar,
    BarChart,
    BarRow,
    Chart,
    Drawing,
    Label,
    MatrixChart,
    PointChart,
    Series,
)
from inferometer.evaluators.evaluation import Evaluation
from inferometer.evaluators.kinds.batches.measurement import BatchMeasurement
from inferometer.evaluators.plots.base import Chosen, Plot, label_of, number, plural
from inferometer.evaluators.reports.base import Row
from inferometer.evaluators.tasks.scores import Score, TaskResult

_KEYS = {"top-1": "top1_accuracy", "top-5": "top5_accuracy"}
_SCORE, _CURVE = "score", "precision"
_CLASSIFICATION, _REGRESSION = "classification", "regression"
_MOST_CLASSES = 20
_OTHERS = "others"
_WHISKERS = "Whiskers are 95 % intervals."
_MATRIX = "A row of a matrix is a class of the truth, a cell the percent of it that was taken for a class."


class AccuracyPlot(Plot[BatchMeasurement]):
    """Bars of each evaluation's scores; below them the curves and confusion matrices of tasks that have them.

    A classification has two bars, in percent of the evaluated inputs.
    """

    def shows(self, row: Row) -> bool:
        """Returns whether the row has a score."""
        return row["top1_accuracy"] is not None or row["score"] is not None

    def drawing(self, chosen: Chosen[BatchMeasurement], notes: Sequence[str]) -> Drawing:
        """Returns the bars, with the number of inputs."""
        of_classes = [(each, rows[0]) for each, rows in chosen if rows[0]["top1_accuracy"] is not None]
        others = [(each, rows) for each, rows in chosen if rows[0]["top1_accuracy"] is None]
        charts: list[Chart] = []
        if of_classes:
            lines = tuple(_line(evaluation, row) for evaluation, row in of_classes)
            charts.append(BarChart(Label(""), "evaluated inputs that were right (%)", lines, whole=100))
        results = [(label_of(each), each.measurement.task_result) for each, _ in others]
        charts += _charts([(label, result) for label, result in results if result is not None])
        said = ["Counted over the inputs with a label and a prediction."] if of_classes else []
        return _drawing("Scores" if others else "Accuracy", charts, (*said, *notes), classes=bool(of_classes))


def drawing_of(result: TaskResult, name: str) -> Drawing | None:
    """Returns the drawing of one result; None if it has nothing to draw.

    Args:
        result: The scores.
        name: What was scored.
    """
    charts = list(_charts([(Label(name, result.definition), result)], tops=True))
    return _drawing("Scores", charts, (), classes=False) if charts else None


def _drawing(title: str, charts: Sequence[Chart], notes: Sequence[str], *, classes: bool) -> Drawing:
    bars = [bar for chart in charts if isinstance(chart, BarChart) for row in chart.rows for bar in row.bars]
    said = [_WHISKERS] * any(bar.ends for bar in bars)
    said += [_MATRIX] * any(isinstance(chart, MatrixChart) for chart in charts)
    groups = [*(_KEYS if classes else ()), *([_SCORE] * any(bar.group == _SCORE for bar in bars))]
    groups += [_CURVE] * any(isinstance(chart, PointChart) for chart in charts)
    return Drawing(title=title, charts=tuple(charts), groups=tuple(groups), notes=(*said, *notes))


def _line(evaluation: Evaluation, row: Row) -> BarRow:
    inputs = f"{row['evaluated_inputs']:,} inputs"
    failed = f"; {row['failed_inputs']:,} failed" if row["failed_inputs"] else ""
    whose = f"{evaluation.system.manifest.name}, {evaluation.id}"
    bars = []
    for group, key in _KEYS.items():
        percent = 100 * number(row[key])
        low, high = row[f"{key}_low"], row[f"{key}_high"]
        bars.append(
            Bar(
                percent,
                group,
                f"{percent:.2f} % of {inputs}{failed}",
                f"{whose}: {group} {percent:.4f} % of {inputs} of {row['dataset_name']}{failed}",
                (100 * number(low), 100 * number(high)) if low is not None and high is not None else None,
            )
        )
    return BarRow(label_of(evaluation), tuple(bars))


_Labelled = tuple[Label, TaskResult]


def _charts(labelled: Sequence[_Labelled], *, tops: bool = False) -> Iterator[Chart]:
    """Yields bars, then curves and matrices; shares of classifications have no bars unless ``tops``."""
    for label, result in labelled:
        shares = [score for score in result.scores if _is_share(result, score)]
        if shares and (tops or result.task != _CLASSIFICATION):
            rows = tuple(BarRow(Label(each.name), (_bar(each, result),)) for each in shares)
            yield BarChart(label, "score", rows, whole=1)
    yield from _by_unit(labelled)
    for label, result in labelled:
        yield from _curve(label, result.details)
        yield from _matrix(label, result.details)


def _is_share(result: TaskResult, score: Score) -> bool:
    """Returns whether a score is a fraction. Counts have no interval, even where other scores have one."""
    known = score.interval is not None or not any(each.interval for each in result.scores)
    plain = result.task != _REGRESSION and not score.unit
    return known and plain and score.value is not None and 0 <= score.value <= 1


def _by_unit(labelled: Sequence[_Labelled]) -> Iterator[BarChart]:
    """Yields a chart for each score that is not a fraction, with the evaluations as its rows."""
    found: dict[tuple[str, str], list[BarRow]] = {}
    for label, result in labelled:
        for score in result.scores:
            wanted = score.unit or result.task == _REGRESSION
            if wanted and score.value is not None:
                rows = found.setdefault((score.name, score.unit), [])
                rows.append(BarRow(label, (_bar(score, result),)))
    for (name, unit), rows in found.items():
        yield BarChart(Label(""), f"{name} ({unit})" if unit else name, tuple(rows))


def _bar(score: Score, result: TaskResult) -> Bar:
    value = score.value or 0.0
    unit = f" {score.unit}" if score.unit else ""
    ends = score.interval
    shown = f" [{ends.low:.4g}, {ends.high:.4g}]" if ends else ""
    text = f"{value:.4g}{shown}{unit}"
    drawn = (max(0.0, ends.low), max(0.0, ends.high)) if ends else None
    inputs = plural(result.samples, "input")
    return Bar(max(0.0, value), _SCORE, text, f"{score.name} {text} over {inputs}", drawn)


def _curve(label: Label, details: Mapping[str, Any]) -> Iterator[PointChart]:
    """Yields the precision-recall curve, if the task has one."""
    curve = details.get("curve")
    if not isinstance(curve, Mapping):
        return
    points = [
        (recall, precision)
        for recall, precision in zip(curve["recall"], curve["precision"], strict=True)
        if precision is not None and precision >= 0
    ]
    if not points:
        return
    x, y = zip(*points, strict=True)
    axis = f"precision at IoU {curve['iou']:g}"
    series = Series(_CURVE, x, y, line=True, tooltip="mean over the classes", size=2)
    yield PointChart(Label(label.name, label.detail), "recall", axis, (series,))


def _matrix(label: Label, details: Mapping[str, Any]) -> Iterator[MatrixChart]:
    """Yields the confusion matrix, if the task has one; of many classes, those with the most samples."""
    found = details.get("confusion_matrix")
    rows = found["rows"] if isinstance(found, Mapping) else found
    names = found["labels"] if isinstance(found, Mapping) else details.get("classes")
    if not rows or not names or len(rows) != len(names):
        return
    counts = np.asarray(rows, np.int64)
    counts = np.pad(counts, ((0, 0), (0, len(names) + 1 - counts.shape[1])))  # the last is none of them
    if not counts.sum():
        return
    kept = np.arange(len(names))
    if len(names) > _MOST_CLASSES:
        kept = np.sort(np.argsort(-counts.sum(axis=1), kind="stable")[:_MOST_CLASSES])
    shown = [f"{place}  {names[place]}" for place in kept]
    rest = counts.sum(axis=1) - counts[:, kept].sum(axis=1)
    table = np.column_stack([counts[:, kept], rest])[kept]
    columns = (*map(str, kept), _OTHERS)
    if not table[:, -1].any():
        columns, table = columns[:-1], table[:, :-1]
    yield _matrix_chart(label, shown, columns, table)


def _matrix_chart(
    label: Label, rows: Sequence[str], columns: tuple[str, ...], table: NDArray[np.int64]
) -> MatrixChart:
    sums = np.maximum(table.sum(axis=1, keepdims=True), 1)
    tooltips = tuple(
        tuple(f"{row}, taken for {column}: {count:,}" for column, count in zip(columns, counts, strict=True))
        for row, counts in zip(rows, table.tolist(), strict=True)
    )
    shares = tuple(tuple(each) for each in (table / sums).tolist())
    return MatrixChart(label, "predicted class", tuple(rows), columns, shares, tooltips)
