"""Benchmarks of operators."""

from __future__ import annotations

from collections.abc import Sequence

from inferometer.evaluators.evaluation import Evaluation
from tests.reported_operators import operators_in, several


def reported(three: Sequence[Evaluation]) -> dict[str, list[Evaluation]]:
    """What each report of the kind has something to draw of."""
    return {"operators": [several(three[0]), operators_in("MXNet", three[0])]}
