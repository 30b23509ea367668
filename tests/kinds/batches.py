"""Evaluations of datasets, traced for the reports on traces."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from inferometer.agent.tracing.recorder import TraceLevel
from inferometer.evaluators.evaluation import Evaluation
from inferometer.evaluators.tasks.metric import Score, TaskResult
from tests.evaluations import changed
from tests.reports.pictures import SHALLOW, traced


def reported(three: Sequence[Evaluation]) -> dict[str, list[Evaluation]]:
    """What each report of the kind has something to draw of."""
    both = [three[0], replace(three[1], trace_level=TraceLevel.MODEL_TRACE)]
    each = {"labels": ["cat", "dog"], "F1": [0.5, 0.25], "true": [3, 1], "predicted": [2, 2]}
    scores = TaskResult("classification", "F1", 4, (Score("F1", 0.375),), {"per_class": each})
    deep = [traced(evaluation) for evaluation in both]
    return {
        "classes": [changed(evaluation, task_result=scores) for evaluation in both],
        **dict.fromkeys(SHALLOW, both),
        **dict.fromkeys(("layers", "layer_tree", "cuda_launch", "eventflow"), deep),
    }
