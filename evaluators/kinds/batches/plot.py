"""The plots of the latency, duration and accuracy reports.

The accuracy plot shows scores with their intervals, curves and confusion matrices.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from inferometer.evaluators.drawing.charts import (
    Bar,
    BarChart,
    BarRow,
    Box,
    BoxChart,
    Chart,
    Chosen,
    Drawing,
    Label,
    MatrixChart,
    Plot,
    PointChart,
    Series,
    label_of,
    number,
    plural,
    readable,
    time_unit,
)
from inferometer.evaluators.evaluation import Evaluation
from inferometer.evaluators.kinds.batches.measurement import BatchMeasurement
from inferometer.evaluators.reports.base import Row
from inferometer.evaluators.statistics import (
    carried_percentile,
    percentile,
    trimmed_mean,
    values_for_percentile,
)
from inferometer.evaluators.tasks.metric import Score, TaskResult

_NS_PER_MS = 1_000_000
_NS_PER_US = 1000


class LatencyPlot(Plot[BatchMeasurement]):
    """A box plot of full batches, in milliseconds, with a box for each evaluation that has a latency."""

    def shows(self, row: Row) -> bool:
        return row["latency_ms_mean"] is not None

    def drawing(self, chosen: Chosen[BatchMeasurement], notes: Sequence[str]) -> Drawing:
        boxes = tuple(_box(evaluation) for evaluation, _ in chosen)
        return Drawing(
            title="Latency of a batch",
            charts=(BoxChart(Label(""), "latency of a batch (ms)", boxes),),
            notes=(
                "Box: 25th to 75th percentile; line: median; whiskers: 5th to 95th percentile, of fewer than "
                f"{values_for_percentile(95)} batches the shortest and the longest; diamond: trimmed mean.",
                "From host memory to host memory, synchronised with the device, over the full batches.",
                *notes,
            ),
        )


def _box(evaluation: Evaluation[BatchMeasurement]) -> Box:
    times_ms = evaluation.measurement.full_ns / _NS_PER_MS
    carried = len(times_ms) >= values_for_percentile(95)
    ends = (5, 95) if carried else (0, 100)
    low, first, middle, third, high = (percentile(times_ms, each) for each in (ends[0], 25, 50, 75, ends[1]))
    mean = trimmed_mean(times_ms)
    whiskers = ("5th percentile", "95th") if carried else ("shortest", "longest")
    p50 = carried_percentile(times_ms, 50)
    known = f"mean {readable(float(times_ms.mean()))}" if p50 is None else readable(p50)
    count = plural(len(times_ms), "batch", "es")
    return Box(
        label=label_of(evaluation, evaluation.trace_level.name),
        low=low,
        first=first,
        middle=middle,
        third=third,
        high=high,
        mark=mean,
        text=f"{known} ms, {count}",
        tooltip=(
            f"{evaluation.system.manifest.name}, {evaluation.id}: {whiskers[0]} {low:.6g} ms, "
            f"25th {first:.6g}, median {middle:.6g}, 75th {third:.6g}, {whiskers[1]} {high:.6g}, "
            f"trimmed mean {mean:.6g}; {count}"
        ),
    )


MOST_POINTS = 1000
"""The maximum number of points drawn for one evaluation."""
_FULL = "full batch"
_OTHER = "smaller batch"


class DurationPlot(Plot):
    """A chart for each evaluation, with a point per batch; long runs show only the extremes of each stretch.

    Args:
        most_points: The number of points per evaluation above which batches are left out.
    """

    def __init__(self, most_points: int = MOST_POINTS) -> None:
        self._most_points = most_points

    def drawing(self, chosen: Chosen, notes: Sequence[str]) -> Drawing:
        thinned = any(len(of_one) > self._most_points for _, of_one in chosen)
        smaller = any(
            number(row["inputs"]) != e.measurement.batch_size for e, of_one in chosen for row in of_one
        )
        return Drawing(
            title="Predict time of each batch",
            charts=tuple(_chart(evaluation, of_one, self._most_points) for evaluation, of_one in chosen),
            groups=(_FULL, _OTHER) if smaller else (_FULL,),
            notes=(
                *(("Of many batches, the shortest and the longest of each stretch are shown.",) * thinned),
                *notes,
            ),
        )


def _chart(evaluation: Evaluation, rows: Sequence[Row], most_points: int) -> PointChart:
    scale, unit = time_unit(max(number(row["predict_us"]) for row in rows))
    series = []
    full = evaluation.measurement.batch_size
    for group, wanted in ((_FULL, True), (_OTHER, False)):
        points = [
            (number(row["batch"]), number(row["predict_us"]) / scale)
            for row in rows
            if (row["inputs"] == full) is wanted
        ]
        if points:
            kept = thinned(points, most_points)
            mean = sum(y for _, y in points) / len(points)
            tooltip = f"{evaluation.id}: {len(points):,} × {group}, {readable(mean)} {unit} on average"
            x, y = zip(*kept, strict=True)
            series.append(Series(group, x, y, line=wanted, tooltip=tooltip))
    heading = label_of(evaluation, evaluation.trace_level.name)
    return PointChart(heading, "batch", f"predict ({unit})", tuple(series))


def thinned(points: list[tuple[float, float]], most_points: int) -> list[tuple[float, float]]:
    """Returns all points or, if there are many, the lowest and highest of each stretch, to keep outliers."""
    if len(points) <= most_points:
        return points
    kept = []
    stretches = most_points // 2
    for place in range(stretches):
        stretch = points[place * len(points) // stretches : (place + 1) * len(points) // stretches]
        lowest, highest = (pick(stretch, key=lambda point: point[1]) for pick in (min, max))
        kept += sorted({lowest, highest})
    return kept


_KEYS = {"top-1": "top1_accuracy", "top-5": "top5_accuracy"}
_CLASS_KEYS = {"f1": "F1", "average_precision": "AP", "iou": "IoU"}
_SCORE, _CURVE = "score", "precision"
_CLASSIFICATION, _REGRESSION = "classification", "regression"
_MOST_CLASSES = 20
_OTHERS = "others"
_WHISKERS = "Whiskers are 95 % intervals."
_MATRIX = "A row of a matrix is a class of the truth, a cell the percent of it that was taken for a class."


class AccuracyPlot(Plot[BatchMeasurement]):
    """Bars of each evaluation's scores; below them, curves and confusion matrices for tasks that have them.

    A classification has two bars, top-1 and top-5, in percent of the evaluated inputs, and its matrix.
    """

    def shows(self, row: Row) -> bool:
        return row["top1_accuracy"] is not None or row["score"] is not None

    def drawing(self, chosen: Chosen[BatchMeasurement], notes: Sequence[str]) -> Drawing:
        of_classes = [(each, rows[0]) for each, rows in chosen if rows[0]["top1_accuracy"] is not None]
        others = [(each, rows) for each, rows in chosen if rows[0]["top1_accuracy"] is None]
        charts: list[Chart] = []
        if of_classes:
            lines = tuple(_line(evaluation, row) for evaluation, row in of_classes)
            charts.append(BarChart(Label(""), "evaluated inputs that were right (%)", lines, whole=100))
        results = [(label_of(each), each.measurement.task_result) for each, _ in others]
        charts += _charts([(label, result) for label, result in results if result is not None])
        for evaluation, _ in of_classes:
            if (result := evaluation.measurement.task_result) is not None:
                charts += _matrix(label_of(evaluation), result.details)
        said = ["Counted over the inputs with a label and a prediction."] if of_classes else []
        return _drawing("Scores" if others else "Accuracy", charts, (*said, *notes), classes=bool(of_classes))


class ClassesPlot(Plot[BatchMeasurement]):
    """Bars of the F1, average precision or IoU of each class; of many classes, the lowest."""

    def shows(self, row: Row) -> bool:
        return any(row[key] is not None for key in _CLASS_KEYS)

    def drawing(self, chosen: Chosen[BatchMeasurement], notes: Sequence[str]) -> Drawing:
        charts = []
        for evaluation, rows in chosen:
            key = next(key for key in _CLASS_KEYS if rows[0][key] is not None)
            known = [(number(row[key]), str(row["class"])) for row in rows if row[key] is not None]
            bars = tuple(
                BarRow(Label(name), (Bar(value, _SCORE, f"{value:.4f}", f"{name}: {value:.6g}"),))
                for value, name in sorted(known, key=lambda each: each[0])[:_MOST_CLASSES]
            )
            charts.append(BarChart(label_of(evaluation), _CLASS_KEYS[key], bars, whole=1))
        said = f"If there are more than {_MOST_CLASSES} classes, those with the lowest scores are shown."
        return Drawing(
            title="Scores of the classes", charts=tuple(charts), groups=(_SCORE,), notes=(said, *notes)
        )


def drawing_of(result: TaskResult, name: str) -> Drawing | None:
    """Returns the drawing of one result; None if there is nothing to draw.

    Args:
        result: The scores.
        name: The heading for the scores, such as the name of a results file.
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
        if row[key] is None:
            continue
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
    """Yields bars, then curves and matrices; fractions of classifications have bars only with ``tops``."""
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
    """Returns whether a score is a fraction. Counts have no interval, even if other scores have one."""
    known = score.interval is not None or not any(each.interval for each in result.scores)
    plain = result.task != _REGRESSION and not score.unit
    return known and plain and score.value is not None and 0 <= score.value <= 1


def _by_unit(labelled: Sequence[_Labelled]) -> Iterator[BarChart]:
    """Yields a chart for each score that is not a fraction, with one row per evaluation."""
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
    """Yields the confusion matrix, if the task has one; if there are many classes, the most frequent ones."""
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


def compared_times(
    a: Evaluation[BatchMeasurement], b: Evaluation[BatchMeasurement], most_points: int
) -> PointChart | None:
    """Returns the predict times of the full batches of two evaluations; None if either has no full batch.

    Args:
        a: The baseline.
        b: The evaluation compared with it.
        most_points: The number of batches per side above which only the shortest and the longest of each
            stretch are shown.
    """
    sides = {"A": a.measurement.full_ns, "B": b.measurement.full_ns}
    if not all(len(full_ns) for full_ns in sides.values()):
        return None
    scale, unit = time_unit(max(int(full_ns.max()) for full_ns in sides.values()) / _NS_PER_US)
    series = []
    for name, full_ns in sides.items():
        times = (full_ns / _NS_PER_US / scale).tolist()
        x, y = zip(*thinned(list(enumerate(times)), most_points), strict=True)
        mean = readable(sum(times) / len(times))
        series.append(
            Series(name, x, y, line=True, tooltip=f"{name}: {len(times):,} batches, {mean} {unit} on average")
        )
    return PointChart(label_of(a), "full batch", f"predict ({unit})", tuple(series))
