"""Searches for the highest rate."""

from __future__ import annotations

from collections.abc import Sequence

from inferometer.evaluators.evaluation import Evaluation
from tests.reports.loads import hopeless, searched, unlimited


def reported(three: Sequence[Evaluation]) -> dict[str, list[Evaluation]]:
    """What each report of the kind has something to draw of."""
    return {"max_qps": [searched(three[0]), hopeless(three[1]), unlimited(three[2])]}
