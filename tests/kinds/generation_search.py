"""Searches for the highest rate of generated answers."""

from __future__ import annotations

from collections.abc import Sequence

from inferometer.evaluators.evaluation import Evaluation
from tests.reports.loads import bounded


def reported(three: Sequence[Evaluation]) -> dict[str, list[Evaluation]]:
    """What each report of the kind has something to draw of."""
    return {"generation_search": [bounded(three[0], "TTFT"), bounded(three[1], "TPOT")]}
