"""The evaluations that a person names for one side of a comparison."""

from __future__ import annotations

import click

from client.reports.evaluation_id import whole_id
from evaluators.comparing.sides import Side
from evaluators.evaluation import Evaluation
from evaluators.store.base import EvaluationFilter, EvaluationStore
from manifests.errors import ConfigurationError, StoreError


def chosen_side(store: EvaluationStore, name: str, given: str) -> Side:
    """Returns the evaluations that ids, or their beginnings, name; each once.

    Of a group those that ran under a profiler are left out, which is said: a group of trace levels holds one
    that did not. One that is named itself is not left out.

    Args:
        store: Where they are.
        name: What the side is called.
        given: Ids of evaluations or of groups with commas between.

    Raises:
        ConfigurationError: Nothing is named, or the evaluations are not to be compared.
        StoreError: An id is not there, or several begin so.
    """
    ids = [word.strip() for word in given.split(",") if word.strip()]
    if not ids:
        raise ConfigurationError(f"{name} names no evaluation; give ids with commas between")
    found: dict[str, Evaluation] = {}
    for each in ids:
        found.update({evaluation.id: evaluation for evaluation in _named(store, name, each)})
    return Side(name, tuple(found.values()))


def _named(store: EvaluationStore, name: str, given: str) -> list[Evaluation]:
    evaluation_id = whole_id(store, given)
    found = store.find(EvaluationFilter(evaluation_id=evaluation_id, include_interrupted=True))
    if not found:
        raise StoreError(
            f"{store.location}: holds no evaluation or group {given}; "
            "the reports of agent info evaluation list them"
        )
    if found[0].id == evaluation_id:
        return list(found)
    undisturbed = [evaluation for evaluation in found if not evaluation.profiled]
    if undisturbed and len(undisturbed) < len(found):
        click.echo(
            f"{name}: left out {len(found) - len(undisturbed)} of {len(found)} evaluations of the group "
            f"{evaluation_id}: they ran under a profiler, which slows the model down",
            err=True,
        )
    return undisturbed or list(found)
