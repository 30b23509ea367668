"""Every store keeps what loaders alone did."""

from __future__ import annotations

from dataclasses import asdict, replace
from typing import Any

import numpy as np
import pytest

from inferometer.evaluators.documents import VALUES_PER_DOCUMENT
from inferometer.evaluators.evaluation import Evaluation
from inferometer.evaluators.kinds.ingestion.kind import IngestionMeasurement, LoadTimes
from inferometer.evaluators.store.evaluation_store import (
    EvaluationFilter,
    EvaluationStore,
    evaluation_from_json,
    evaluation_to_json,
)
from inferometer.manifests.errors import StoreError
from tests.contract.store_fixtures import make_evaluation
from tests.ingestion_evaluations import few, many, untold


def plain(evaluation: Evaluation[Any]) -> dict[str, Any]:
    measured = evaluation.measurement
    assert isinstance(measured, IngestionMeasurement)
    times = {name: (each.dtype, each.tolist()) for name, each in asdict(measured.times).items()}
    return {**asdict(replace(measured, times=None)), "times": times}


def long() -> Evaluation[IngestionMeasurement]:
    evaluation = few(make_evaluation())
    columns = (np.arange(VALUES_PER_DOCUMENT + 3) * 2**40 + place for place in range(5))
    return replace(evaluation, measurement=replace(evaluation.measurement, times=LoadTimes(*columns)))


@pytest.mark.parametrize("kind", [few, many, untold], ids=lambda kind: kind.__name__)
def test_runs_of_loaders_come_back_as_they_were(store: EvaluationStore, kind: Any) -> None:
    evaluation = kind(make_evaluation())
    assert store.save(evaluation)
    assert not store.save(evaluation)

    [found] = store.find(EvaluationFilter(kinds=("ingestion",)))

    assert plain(found) == plain(evaluation)
    assert found.system.manifest.model_dump() == evaluation.system.manifest.model_dump()
    assert found.dataset == evaluation.dataset


def test_a_long_run_is_kept_in_several_documents(store: EvaluationStore) -> None:
    evaluation = long()
    store.save(evaluation)

    [found] = store.find(EvaluationFilter())

    assert plain(found) == plain(evaluation)


def test_as_text_it_is_the_same() -> None:
    evaluation = long()

    assert plain(evaluation_from_json(evaluation_to_json(evaluation))) == plain(evaluation)


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (('"batch_count": 12', '"batch_count": 13'), "12 of its 13 batches are present"),
        (('"failure_count": 1', '"failure_count": 2'), "1 of its 2 failures are present"),
        (('"dropped": true', '"dropped": 5'), "dropped is int"),
    ],
)
def test_a_damaged_one_is_refused(damage: tuple[str, str], message: str) -> None:
    text = evaluation_to_json(few(make_evaluation()))
    assert damage[0] in text

    with pytest.raises(StoreError, match=message):
        evaluation_from_json(text.replace(*damage))
