"""The evaluations of a run, from the database of its own into that of the plan."""

from __future__ import annotations

from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from inferometer.evaluators.kinds.registry import kind_of
from inferometer.evaluators.store.evaluation_store import EvaluationFilter
from inferometer.evaluators.store.opening import open_store

if TYPE_CHECKING:
    from inferometer.evaluators.store.evaluation_store import EvaluationStore


def imported(data: Path, store: EvaluationStore) -> tuple[str, ...]:
    """Copies what a run has published, with predictions and spans, and returns the ids in order.

    What is there already stays as it is, so that it may be called again after an interruption.

    Args:
        data: The data directory of the run.
        store: The database of the plan.

    Raises:
        StoreError: One of the two databases cannot be read or written.
    """
    found = list(data.glob("*.db"))
    if not found:
        return ()
    with closing(open_store(None, found[0].stem, data)) as source:
        evaluations = list(source.find(EvaluationFilter(limit=None, include_interrupted=True)))[::-1]
        for evaluation in evaluations:
            measurement = evaluation.measurement
            kind = kind_of(evaluation)
            if kind.has_predictions:
                predictions = tuple(source.predictions(evaluation.id))
                measurement = kind.with_predictions(measurement, predictions)
            spans = tuple(source.spans(evaluation.id))
            store.save(replace(evaluation, measurement=measurement, spans=spans))
    return tuple(each.id for each in evaluations)
