"""Predictions and results of tasks as documents: small and large columns, and damaged ones."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import bson
import numpy as np
import pytest

from inferometer.agent.tasks.predictions import ClassMaps, Detections, Predictions, Texts, Values
from inferometer.evaluators.kinds.batches.documents import (
    PIECE_BYTES,
    prediction_part,
    predictions_from_documents,
)
from inferometer.evaluators.kinds.batches.measurement import InputPrediction
from inferometer.evaluators.store.evaluation_store import evaluation_from_json, evaluation_to_json
from inferometer.evaluators.tasks.metric import Score, ScoreInterval, TaskResult
from inferometer.manifests.errors import StoreError
from tests.contract.store_fixtures import make_evaluation, make_manifest, make_system

LARGEST = 16_000_000
_SIDE = 1500
NOISE = np.random.default_rng(1).integers(0, 2**31, _SIDE * _SIDE, np.int32)
SMALL: list[Predictions] = [
    Values(np.array([[np.nan, np.inf, 0.1]], np.float32)),
    Texts.of(["zwölf"]),
    Detections(
        np.zeros(1, np.int64), np.zeros((0, 4), np.float32), np.zeros(0, np.float32), np.zeros(0, np.int64)
    ),
    ClassMaps(np.array([[2, 3]], np.int64), np.arange(6, dtype=np.int32)),
]
RESULT = TaskResult(
    "object_detection",
    "COCO AP",
    7,
    (
        Score("AP", 0.5, ScoreInterval(0.25, 0.75)),
        Score("PSNR", float("inf"), None, "dB"),
        Score("AR", None),
        Score("classes", 3.0, is_count=True),
    ),
    {"classes.with$": {"a.b": [1, 2.5, None]}, "long": "é" * 1_500_000},
)


def kept(*predictions: Predictions) -> list[InputPrediction]:
    return [InputPrediction(f"图-{n}", None, each) for n, each in enumerate(predictions)]


def documents_of(predictions: list[InputPrediction]) -> list[dict[str, Any]]:
    part = prediction_part(predictions, ())
    documents = list(part.documents)
    assert len(documents) == part.count
    return documents


def same(one: list[InputPrediction], other: list[InputPrediction]) -> bool:
    assert [each.input_id for each in one] == [each.input_id for each in other]
    for a, b in zip(one, other, strict=True):
        left, right = a.prediction.columns(), b.prediction.columns()
        assert list(left) == list(right)
        for name in left:
            assert left[name].dtype == right[name].dtype
            np.testing.assert_array_equal(left[name], right[name])
    return True


def test_predictions_of_every_size_come_back() -> None:
    large = ClassMaps(np.array([[_SIDE, _SIDE]], np.int64), NOISE)
    predictions = kept(*SMALL, large, *SMALL)
    documents = documents_of(predictions)

    assert max(len(bson.encode(document)) for document in documents) < LARGEST / 4
    assert len(documents) == len(predictions) + -(-NOISE.nbytes // PIECE_BYTES)
    assert same(list(predictions_from_documents(json.loads(json.dumps(documents)))), predictions)


def damage(change: Callable[[list[dict[str, Any]]], object]) -> list[dict[str, Any]]:
    documents = documents_of(kept(ClassMaps(np.array([[50, 50]], np.int64), NOISE[:2500]), SMALL[0]))
    change(documents)
    return documents


@pytest.mark.parametrize(
    "change",
    [
        lambda documents: documents.pop(1),
        lambda documents: documents[0].update(kind="sounds"),
        lambda documents: documents[0]["columns"].pop("sizes"),
        lambda documents: documents[0]["columns"]["sizes"].update(dtype="object"),
        lambda documents: documents[0]["columns"]["sizes"].update(values=[1, 2, 3]),
        lambda documents: documents[1].update(data="no base 64"),
        lambda documents: documents[1].update(data="AAAA"),
        lambda documents: documents[1].update(input_index=7),
    ],
)
def test_damaged_documents_are_refused(change: Callable[[list[dict[str, Any]]], object]) -> None:
    with pytest.raises((KeyError, TypeError, ValueError)):
        list(predictions_from_documents(damage(change)))


def evaluation(**changes: Any) -> Any:
    manifest = make_manifest(output={"type": "regression"})
    return make_evaluation(system=make_system(manifest=manifest), accuracy=None, **changes)


def test_an_evaluation_of_another_task_comes_back_with_its_result_and_its_predictions() -> None:
    before = evaluation(task_result=RESULT, predictions=tuple(kept(*SMALL)))
    found = evaluation_from_json(evaluation_to_json(before))

    assert found.measurement.task_result == RESULT
    assert same(list(found.measurement.predictions), list(before.measurement.predictions))


def test_a_program_without_tasks_is_told_that_it_is_too_old() -> None:
    content = json.loads(evaluation_to_json(evaluation()))
    assert content["evaluation"]["schema_version"] == 3
    content["evaluation"]["schema_version"] = 4
    with pytest.raises(StoreError, match="newer inferometer"):
        evaluation_from_json(json.dumps(content))
