"""Tunings."""

from __future__ import annotations

from collections.abc import Sequence

from inferometer.evaluators.evaluation import Evaluation
from tests.reports.loads import loaded
from tests.tuned_hosts import tuned_host


def reported(three: Sequence[Evaluation]) -> dict[str, list[Evaluation]]:
    """What each report of the kind has something to draw of."""
    return {"tuning": [loaded(three[0], 7, tuned_host()), loaded(three[1], 8, tuned_host(rate_qps=100.0))]}
