"""Measurements of memory."""

from __future__ import annotations

from collections.abc import Sequence

from inferometer.evaluators.evaluation import Evaluation
from tests.evaluations import changed
from tests.memory_points import MEASURED


def reported(three: Sequence[Evaluation]) -> dict[str, list[Evaluation]]:
    """What each report of the kind has something to draw of."""
    return {"memory": [changed(evaluation, measurement=MEASURED) for evaluation in three[:2]]}
