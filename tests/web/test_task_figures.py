"""The figures and charts of tasks beyond classification on the page."""

from __future__ import annotations

from inferometer.client.web.documents import (
    evaluation_document,
    overview_columns,
    overview_rows,
    page_reports,
)
from inferometer.evaluators.tasks.metric import Score, ScoreInterval, TaskResult
from tests.contract.store_fixtures import make_evaluation
from tests.evaluations import changed

CURVE = {"iou": 0.5, "recall": [0.0, 0.5, 1.0], "precision": [1.0, 0.75, 0.5]}


def test_the_scores_of_a_task_are_figures_and_its_curve_a_chart() -> None:
    scores = Score("AP", 0.5, ScoreInterval(0.25, 0.75)), Score("PSNR", 30.5, None, "dB")
    result = TaskResult("object_detection", "COCO AP", 7, scores, {"curve": CURVE})
    evaluation = changed(make_evaluation(), accuracy=None, task_result=result)
    document = evaluation_document(evaluation, [], page_reports(), lambda _: iter(()))
    figures = {each["key"]: each for each in document["figures"] if each["report"] == "accuracy"}
    assert (figures["AP"]["value"], figures["AP"]["low"], figures["AP"]["high"]) == (0.5, 0.25, 0.75)
    assert figures["AP"]["headline"] is not None
    assert (figures["PSNR"]["label"], figures["PSNR"]["headline"]) == ("PSNR (dB)", None)
    assert "top1_accuracy" not in figures
    curve = next(each for each in document["charts"] if each["y_axis"] == "precision at IoU 0.5")
    assert curve["notes"] == []


def test_the_table_has_the_first_score_of_a_task_with_its_name() -> None:
    result = TaskResult("object_detection", "COCO AP", 7, (Score("AP", 0.5, None),), {})
    detected = changed(make_evaluation(), accuracy=None, task_result=result)
    place = [column["key"] for column in overview_columns()].index("score")
    detection, classification = overview_rows([detected, make_evaluation()])
    assert (detection["values"][place], detection["texts"][place]) == (0.5, "0.5000 AP")
    assert classification["values"][place] is None
