"""Mixes of models."""

from __future__ import annotations

from collections.abc import Sequence

from inferometer.evaluators.evaluation import Evaluation
from tests.reports.loads import silenced, slowed, unjudged


def reported(three: Sequence[Evaluation]) -> dict[str, list[Evaluation]]:
    """What each report of the kind has something to draw of."""
    return {"mix": [slowed(three[0]), silenced(three[1]), unjudged(three[2])]}
