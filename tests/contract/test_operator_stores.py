"""Every store keeps the rows of operators."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import pytest

from inferometer.evaluators.evaluation import Evaluation
from inferometer.evaluators.kinds.operators.measurement import OperatorMeasurement
from inferometer.evaluators.store.evaluation_store import (
    EvaluationFilter,
    EvaluationStore,
    evaluation_from_json,
    evaluation_to_json,
)
from inferometer.manifests.errors import StoreError
from tests.contract.store_fixtures import make_evaluation
from tests.operator_evaluations import none, several


def plain(evaluation: Evaluation[Any]) -> dict[str, Any]:
    measured = evaluation.measurement
    assert isinstance(measured, OperatorMeasurement)
    found = asdict(measured)
    for row in found["rows"]:
        row["times_ns"] = (row["times_ns"].dtype, row["times_ns"].tolist())
        row["shapes"] = list(row["shapes"].items())
    return found


@pytest.mark.parametrize("kind", [several, none], ids=lambda kind: kind.__name__)
def test_rows_come_back_as_they_were(store: EvaluationStore, kind: Any) -> None:
    evaluation = kind(make_evaluation())
    assert store.save(evaluation)
    assert not store.save(evaluation)

    [found] = store.find(EvaluationFilter(kinds=("operators",)))

    assert plain(found) == plain(evaluation)
    assert [row.key for row in found.measurement.rows] == [row.key for row in evaluation.measurement.rows]


@pytest.mark.parametrize("kind", [several, none], ids=lambda kind: kind.__name__)
def test_as_text_it_is_the_same(kind: Any) -> None:
    evaluation = kind(make_evaluation())

    assert plain(evaluation_from_json(evaluation_to_json(evaluation))) == plain(evaluation)


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (('"row_count": 6', '"row_count": 7'), "6 of its 7 rows are present"),
        (('"status": "wrong"', '"status": "odd"'), "odd"),
        (('"operator": "sub"', '"operator": 5'), "operator is int"),
    ],
)
def test_a_damaged_one_is_refused(damage: tuple[str, str], message: str) -> None:
    text = evaluation_to_json(several(make_evaluation()))
    assert damage[0] in text

    with pytest.raises(StoreError, match=message):
        evaluation_from_json(text.replace(*damage))
