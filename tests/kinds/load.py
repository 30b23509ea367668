"""Workloads."""

from __future__ import annotations

from collections.abc import Sequence

from inferometer.evaluators.evaluation import Evaluation
from tests.reports.loads import calm, closed, overloaded


def reported(three: Sequence[Evaluation]) -> dict[str, list[Evaluation]]:
    """What each report of the kind has something to draw of."""
    workloads = [calm(three[0]), overloaded(three[1]), closed(three[2])]
    return {"workload": workloads, "parts": workloads}
