"""Searches for the factor of a mix."""

from __future__ import annotations

from collections.abc import Sequence

from inferometer.evaluators.evaluation import Evaluation
from tests.reports.loads import interrupted, limiting, unlimiting


def reported(three: Sequence[Evaluation]) -> dict[str, list[Evaluation]]:
    """What each report of the kind has something to draw of."""
    return {"mix_search": [limiting(three[0]), unlimiting(three[1]), interrupted(three[2])]}
