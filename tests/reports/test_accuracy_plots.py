"""The picture of the report on accuracy, for each kind of score and of detail."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from inferometer.evaluators.drawing import canvas
from inferometer.evaluators.drawing.charts import BarChart, Drawing, MatrixChart, PointChart
from inferometer.evaluators.evaluation import Evaluation
from inferometer.evaluators.kinds.batches.plot import drawing_of
from inferometer.evaluators.tasks.metric import Score, ScoreInterval, TaskResult
from tests.evaluations import changed
from tests.reports.pictures import HOSTILE, picture, rows_of, texts

HALF = ScoreInterval(0.4, 0.6)


def result(task: str, *scores: Score, **details: object) -> TaskResult:
    return TaskResult(task, f"{task}, version 1", 7, scores, details)


def drawing(*results: TaskResult) -> Drawing:
    found = drawing_of(results[0], "results.json")
    assert found is not None
    return found


def test_shares_are_bars_with_whiskers_and_a_curve() -> None:
    curve = {"iou": 0.5, "recall": [0.0, 0.5, 1.0], "precision": [1.0, 0.5, -1]}
    found = drawing(result("object_detection", Score("AP", 0.5, HALF), Score("AP_small", None), curve=curve))
    bars, points = found.charts
    assert isinstance(bars, BarChart)
    [row] = bars.rows
    assert (row.label.name, row.bars[0].value, row.bars[0].ends) == ("AP", 0.5, (0.4, 0.6))
    assert row.bars[0].text == "0.5 [0.4, 0.6]"
    assert bars.whole == 1
    assert isinstance(points, PointChart)
    [series] = points.series
    assert (series.x, series.y) == ((0.0, 0.5), (1.0, 0.5)), "a precision of -1 is none"
    assert points.y_axis == "precision at IoU 0.5"
    assert "Whiskers are 95 % intervals." in found.notes


def test_counts_are_no_shares_and_units_have_a_chart_of_their_own() -> None:
    scores = Score("PSNR", 30.0, ScoreInterval(29, 31), "dB"), Score("SSIM", 0.5, HALF), Score("same", 0.0)
    shares, decibels = drawing(result("image_enhancement", *scores)).charts
    assert isinstance(shares, BarChart)
    assert isinstance(decibels, BarChart)
    assert [row.label.name for row in shares.rows] == ["SSIM"]
    assert (decibels.axis, decibels.whole, decibels.rows[0].bars[0].value) == ("PSNR (dB)", None, 30.0)


def test_a_regression_has_a_chart_for_each_figure() -> None:
    charts = drawing(result("regression", Score("MAE", 0.5, HALF), Score("R2", -0.5))).charts
    assert [chart.axis for chart in charts if isinstance(chart, BarChart)] == ["MAE", "R2"]
    negative = charts[1]
    assert isinstance(negative, BarChart)
    assert (negative.rows[0].bars[0].value, negative.rows[0].bars[0].text) == (0.0, "-0.5")


def test_the_confusion_matrix_has_the_shares_of_each_row() -> None:
    rows = [[3, 1], [0, 0]]
    matrix = drawing(
        result(
            "text_classification",
            Score("F1", 0.5, HALF),
            confusion_matrix={"labels": ["no", "yes"], "rows": rows},
        )
    ).charts[-1]
    assert isinstance(matrix, MatrixChart)
    assert (matrix.rows, matrix.columns) == (("0  no", "1  yes"), ("0", "1"))
    assert matrix.shares == ((0.75, 0.25), (0.0, 0.0))
    assert matrix.tooltips[0] == ("0  no, taken for 0: 3", "0  no, taken for 1: 1")


def test_of_many_classes_those_with_most_truths_are_shown() -> None:
    counts = np.ones((30, 31), int)
    counts[25, 25] = 100
    details = {"classes": [f"c{place}" for place in range(30)], "confusion_matrix": counts.tolist()}
    matrix = drawing(result("semantic_segmentation", Score("mean_IoU", 0.5, HALF), **details)).charts[-1]
    assert isinstance(matrix, MatrixChart)
    assert len(matrix.rows) == 20
    assert "25  c25" in matrix.rows
    assert matrix.columns[-1] == "others"
    place = matrix.rows.index("25  c25")
    assert matrix.shares[place][place] == pytest.approx(100 / 130)
    assert matrix.shares[place][-1] == pytest.approx(11 / 130)  # of 31 columns, 20 are shown
    assert all(sum(row) == pytest.approx(1) for row in matrix.shares)


def test_scores_of_other_tasks_are_beside_those_of_classifications(evaluations: list[Evaluation]) -> None:
    other = changed(
        evaluations[1], accuracy=None, task_result=result("object_detection", Score("AP", 0.5, HALF))
    )
    found = picture("accuracy", [evaluations[0], other])
    first, second = found.charts
    assert isinstance(first, BarChart)
    assert isinstance(second, BarChart)
    assert [row.bars[0].ends for row in first.rows] == [pytest.approx((93, 99.45))]
    assert second.heading.name == "DigitsCNN 1.0, batch size 8"
    assert (found.title, found.groups) == ("Scores", ("top-1", "top-5", "score"))


def test_the_matrix_of_a_classification_has_the_names_of_its_classes(evaluations: list[Evaluation]) -> None:
    details = {"confusion_matrix": {"labels": ["cat", "dog"], "rows": [[3, 1], [0, 2]]}}
    scored = result("classification", Score("top-1", 5 / 6, HALF), **details)
    found = picture("accuracy", [changed(evaluations[0], task_result=scored)])
    bars, matrix = found.charts
    assert {"top-1", "75.0"} <= set(texts(canvas.svg(found))), "bars have a legend, which a matrix lacks"
    assert isinstance(bars, BarChart)
    assert isinstance(matrix, MatrixChart)
    assert (matrix.rows, matrix.shares) == (("0  cat", "1  dog"), ((0.75, 0.25), (0.0, 1.0)))


@pytest.mark.parametrize(
    ("details", "expected"),
    [
        (
            {"per_class": {"labels": ["a", "b"], "F1": [1.0, 0.5], "ECE": [0.1, 0.2], "true": [3, 4]}},
            [("a", 1.0, None, None, 3), ("b", 0.5, None, None, 4)],
        ),
        (
            {"classes": ["a", "b"], "class_iou": [0.5, None]},
            [("a", None, None, 0.5, None), ("b",) + (None,) * 4],
        ),
        (
            {"classes": [{"name": "a", "objects": 2, "predictions": 3, "AP": 0.5, "AP50": 1.0}]},
            [("a", None, 0.5, None, 2)],
        ),
        ({}, []),
    ],
)
def test_each_class_of_every_task_has_a_row(
    evaluations: list[Evaluation], details: dict[str, Any], expected: list[tuple[Any, ...]]
) -> None:
    evaluation = changed(evaluations[0], task_result=result("any", Score("F1", 0.5), **details))
    rows = rows_of("classes", [evaluation, evaluations[1]])
    keys = ("class", "f1", "average_precision", "iou", "true_count")
    assert [tuple(row[key] for key in keys) for row in rows] == expected


def test_of_many_classes_the_lowest_are_drawn(evaluations: list[Evaluation]) -> None:
    each = {"labels": [f"c{place}" for place in range(25)], "F1": [place / 25 for place in range(25)]}
    scored = result("classification", Score("F1", 0.5), per_class=each)
    [chart] = picture("classes", [changed(evaluations[0], task_result=scored)]).charts
    assert isinstance(chart, BarChart)
    assert (chart.axis, [row.label.name for row in chart.rows]) == (
        "F1",
        [f"c{place}" for place in range(20)],
    )


def test_nothing_is_drawn_of_no_score() -> None:
    assert drawing_of(result("object_detection", Score("AP", None)), "x") is None


def test_hostile_names_are_painted_as_they_are() -> None:
    details = {"classes": [HOSTILE, "b"], "confusion_matrix": [[1, 2, 0], [0, 1, 0]]}
    found = drawing(result("semantic_segmentation", Score(HOSTILE, 0.5, HALF), **details))
    svg = canvas.svg(found)
    assert canvas.png(found).startswith(b"\x89PNG")
    assert any("\\frac" in text for text in texts(svg))
    assert {"33.3", "66.7", "100.0"} <= set(texts(svg))
