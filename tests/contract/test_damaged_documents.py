"""One damaged document of a database is named and left out; every other evaluation is there."""

from __future__ import annotations

import uuid
from typing import Any

import pytest

from inferometer.evaluators.kinds.registry import find_report
from inferometer.evaluators.store.evaluation_store import EvaluationFilter
from tests.contract.store_fixtures import StoreBackend, make_evaluation
from tests.reports.pictures import REPORTS


@pytest.mark.parametrize(
    ("place", "value"),
    [
        ("_id", {"a": 1}),
        ("_id", 7),
        ("save_id", None),
        ("schema_version", "2"),
        ("kind", ["batches"]),
        ("parts", {"performance": -1}),
        ("parts", {"performance": 10**12}),
        ("parts", {"performance": "1"}),
        ("parts", []),
        ("environment.architecture", 5),
        ("environment.gpus", 1),
        ("environment.usable_cores", "many"),
        ("dataset.name", None),
        ("dataset.size", "all"),
        ("measurement.options.batch_size", -1),
        ("measurement.options.batch_size", "8"),
        ("measurement.failure_count", -1),
        ("elapsed_ns", {}),
        ("created_at", "yesterday"),
        ("model.name", 5),
        ("status", None),
    ],
)
def test_a_damaged_document_is_named_and_left_out(backend: StoreBackend, place: str, value: object) -> None:
    name = f"test_{uuid.uuid4().hex}"
    damaged, whole = make_evaluation(), make_evaluation()
    store = backend.open(name)
    store.save(damaged)
    store.save(whole)
    with backend.documents(name) as documents:
        head: dict[str, Any] = documents["evaluation"].find_one({"_id": damaged.id})
        documents["evaluation"].delete_one({"_id": damaged.id})
        *above, last = place.split(".")
        inside = head
        for key in above:
            inside = inside[key]
        inside[last] = value
        documents["evaluation"].insert_one(head)

    errors: list[Exception] = []
    found = store.find(EvaluationFilter(), errors.append)
    ids = store.ids("")
    store.close()

    assert [evaluation.id for evaluation in found] == [whole.id]
    assert whole.id in ids
    if errors:  # what no query finds any more is not there either
        [error] = errors
        assert "damaged" in str(error) or "newer" in str(error)
        assert str(error).isprintable()
    else:
        assert place in {"status", "created_at"}
    for report in map(find_report, REPORTS):
        report.taken(found)


def test_a_negative_count_is_damage(backend: StoreBackend) -> None:
    name = f"test_{uuid.uuid4().hex}"
    evaluation = make_evaluation()
    store = backend.open(name)
    store.save(evaluation)
    with backend.documents(name) as documents:
        accuracy: dict[str, Any] = documents["model_accuracy"].find_one({"evaluation_id": evaluation.id})
        documents["model_accuracy"].delete_one({"_id": accuracy["_id"]})
        documents["model_accuracy"].insert_one(accuracy | {"top_1_count": -3})
    errors: list[Exception] = []
    assert store.find(EvaluationFilter(), errors.append) == []
    store.close()
    [error] = errors
    assert f"evaluation {evaluation.id} is damaged: ValueError: its counts (-3, " in str(error)
