"""Every store keeps the conditions of an evaluation, and reads evaluations that have none."""

from __future__ import annotations

import json
from dataclasses import fields
from typing import Any

import pytest

from inferometer.evaluators.conditions.conditions import Conditions, HostConditions, Spread, Stability
from inferometer.evaluators.store.evaluation_store import (
    EvaluationFilter,
    EvaluationStore,
    evaluation_from_json,
    evaluation_to_json,
)
from inferometer.manifests.errors import StoreError
from tests.contract.store_fixtures import make_evaluation

_SPREADS = {name: Spread(1.5, 2.0, 2.5) for name in ("frequency_mhz", "gpu_clock_mhz")}
EVERYTHING = HostConditions(
    **{
        field.name: _SPREADS.get(field.name, "bench-1" if field.name == "hostname" else number)
        for number, field in enumerate(fields(HostConditions), start=2**40)
    }
)
CONDITIONS = [
    None,
    Conditions(Stability.STABLE, note="by the counters only", hosts=(HostConditions("bench-1", 1.0, 0.5),)),
    Conditions(Stability.DISTURBED, ("heat slowed 1 processor down", "$"), hosts=(EVERYTHING, EVERYTHING)),
    Conditions(Stability.UNKNOWN, ("the server's host is not watched",)),
]


@pytest.mark.parametrize("conditions", CONDITIONS, ids=["none", "stable", "everything", "unknown"])
def test_conditions_come_back_as_they_were(store: EvaluationStore, conditions: Conditions | None) -> None:
    evaluation = make_evaluation(conditions=conditions)
    store.save(evaluation)

    [found] = store.find(EvaluationFilter())

    assert found.conditions == conditions
    assert evaluation_from_json(evaluation_to_json(evaluation)).conditions == conditions


def text(evaluation: Any, **changes: Any) -> str:
    """The JSON of an evaluation, with other conditions in it."""
    content = json.loads(evaluation_to_json(evaluation))
    content["evaluation"]["conditions"].update(changes)
    return json.dumps(content)


def test_an_evaluation_of_an_earlier_version_has_none() -> None:
    content = json.loads(evaluation_to_json(make_evaluation(conditions=CONDITIONS[1])))
    del content["evaluation"]["conditions"]

    assert evaluation_from_json(json.dumps(content)).conditions is None


@pytest.mark.parametrize(
    "damage", [{"stability": "lovely"}, {"hosts": [{"hostname": "a"}]}, {"note": 1}, {"reasons": None}]
)
def test_damaged_conditions_are_reported(damage: dict[str, Any]) -> None:
    with pytest.raises(StoreError, match="is damaged"):
        evaluation_from_json(text(make_evaluation(conditions=CONDITIONS[2]), **damage))
