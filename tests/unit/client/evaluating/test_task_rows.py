"""The scores of a task in the summary and in the report: counts, and scores that are not defined."""

from __future__ import annotations

from inferometer.evaluators.kinds.batches.report import AccuracyReport, accuracy_rows
from inferometer.evaluators.kinds.summary import name_width
from inferometer.evaluators.tasks.metric import Score, ScoreInterval, TaskResult
from tests.contract.store_fixtures import make_evaluation
from tests.evaluations import changed

SCORES = (
    Score("mean_IoU", 0.5, ScoreInterval(0.25, 0.75)),
    Score("small", None),
    Score("classes", 11.0, is_count=True),
    Score("large objects", None),
    Score("pixel accuracy", 0.125, unit="x"),
)
EVALUATION = changed(
    make_evaluation(), accuracy=None, task_result=TaskResult("semantic_segmentation", "IoU", 7, SCORES)
)


def test_counts_are_whole_and_undefined_scores_are_one_row() -> None:
    rows = accuracy_rows(EVALUATION)
    assert rows == (
        ("mean_IoU", "0.5000 [0.2500, 0.7500]"),
        ("classes", "11"),
        ("pixel accuracy", "0.1250 x"),
        ("undefined", "small, large objects: not defined for these inputs"),
        ("metric", "IoU, over 7 inputs"),
    )
    assert name_width(rows) == len("pixel accuracy ")
    assert name_width(rows[:1]) == 12


def test_the_table_of_a_task_has_its_known_scores_and_the_file_has_numbers() -> None:
    [table] = AccuracyReport().tables([EVALUATION])
    columns = {column.key: column for column in table.columns}
    assert columns["classes"].decimals == 0
    assert columns["mean_IoU"].decimals == 4
    assert "small" not in columns
    [row] = AccuracyReport().rows([EVALUATION])
    assert row["other_scores"] == "classes=11.0 pixel_accuracy=0.125"
