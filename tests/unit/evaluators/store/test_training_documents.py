"""A training as documents, and back."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from inferometer.agent.inference.stages import InputFailure, Stage
from inferometer.evaluators.evaluation import Evaluation
from inferometer.evaluators.store.documents import Documents, from_documents, to_documents
from inferometer.evaluators.store.evaluation_store import read_spool, write_spool
from inferometer.evaluators.tasks.metric import Accuracy
from inferometer.manifests.errors import StoreError
from tests.contract.store_fixtures import make_system
from tests.training_evaluations import make_training


def plain(evaluation: Evaluation[Any]) -> dict[str, Any]:
    found = asdict(evaluation.measurement)
    found["times"] = {name: value.tolist() for name, value in found["times"].items()}
    found["losses"] = [[str(loss) for loss in rank] for rank in found["losses"].tolist()]
    return found


def written(evaluation: Evaluation[Any]) -> Documents:
    found = to_documents(evaluation, "attempt")
    return Documents(found.evaluation, {name: list(part) for name, part in found.parts.items()})


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"ranks": 3, "communicate_ms": 2.0},
        {"losses": np.array([[2.0, math.nan, math.inf, -math.inf, 1e-300]])},
        {
            "accuracy": Accuracy(3, 4, 5),
            "validation": "digits_validation",
            "failures": (InputFailure("a.jpg", Stage.READ, "is broken"),),
        },
        {"steps": 45_000, "losses": np.ones((1, 45_001))},
    ],
    ids=["one rank", "three ranks", "losses without a number", "accuracy and failures", "many steps"],
)
def test_a_training_comes_back_from_documents_and_from_a_file(
    changes: dict[str, Any], tmp_path: Path
) -> None:
    evaluation = make_training(make_system(), **changes)
    assert plain(from_documents(written(evaluation))) == plain(evaluation)
    assert plain(read_spool(write_spool(evaluation, tmp_path))) == plain(evaluation)


def without(collection: str) -> Callable[[Documents], None]:
    def take(documents: Documents) -> None:
        documents.parts[collection].pop()  # type: ignore[attr-defined]  # a list here

    return take


@pytest.mark.parametrize("collection", ["training_step", "training_part", "training_loss"])
def test_a_training_without_a_part_is_damaged(collection: str) -> None:
    documents = written(make_training(make_system(), ranks=2))
    without(collection)(documents)
    with pytest.raises(StoreError, match="is damaged"):
        from_documents(documents)


def test_a_training_with_fewer_steps_than_it_says_is_damaged() -> None:
    documents = written(make_training(make_system()))
    documents.parts["training_step"][0]["whole_ns"].pop()  # type: ignore[index]
    with pytest.raises(StoreError, match="is damaged"):
        from_documents(documents)
