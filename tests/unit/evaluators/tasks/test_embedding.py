"""Cosine similarity to references, and recall among neighbours."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from inferometer.agent.preprocessing.inputs import Text
from inferometer.agent.tasks.predictions import Texts, Values
from inferometer.evaluators.datasets.base import AcceptedAnswers, Sample, TargetValues
from inferometer.evaluators.tasks import vectors as embedding
from inferometer.evaluators.tasks.metric import TaskResult
from inferometer.evaluators.tasks.vectors import EmbeddingMetric
from inferometer.manifests.errors import DatasetError, PredictionError
from inferometer.manifests.schema import ModelManifest


def values(*numbers: float) -> Values:
    return Values(np.array([numbers], np.float32))


def sample(id_: str, label: str | None = None, reference: tuple[float, ...] | None = None) -> Sample:
    truth = None if reference is None else TargetValues(np.asarray(reference, np.float64))
    return Sample(id_, Text("words"), label, truth=truth)


def recalls(manifest: ModelManifest, vectors: NDArray[np.float32], labels: list[str]) -> TaskResult:
    metric = EmbeddingMetric(manifest)
    for number, (vector, label) in enumerate(zip(vectors, labels, strict=True)):
        metric.add(sample(str(number), label), Values(vector[np.newaxis]))
    result = metric.result()
    assert result is not None
    return result


def test_similarity_is_the_mean_cosine_to_the_references(text_model: ModelManifest) -> None:
    metric = EmbeddingMetric(text_model)
    metric.add(sample("0", reference=(2.0, 0.0)), values(5.0, 0.0))  # 1
    metric.add(sample("1", reference=(0.0, 1.0)), values(3.0, 4.0))  # 4/5
    metric.add(sample("2", reference=(0.0, 1.0)), values(0.0, -2.0))  # -1
    metric.add(sample("3"), values(1.0, 1.0))  # has no truth
    result = metric.result()
    assert result is not None
    assert result.samples == 3
    assert result.scores[0].name == "cosine similarity"
    assert result.scores[0].value == pytest.approx((1 + 0.8 - 1) / 3)
    assert {score.value for score in result.scores[1:]} == {None}


def test_recall_counts_the_neighbours_that_have_the_same_label(text_model: ModelManifest) -> None:
    degrees = np.deg2rad([0.0, 10, 25, 27, 90])
    vectors = np.stack([np.cos(degrees), np.sin(degrees)], axis=1).astype(np.float32) * 3
    # nearest: 0 → 1, 1 → 0, 2 → 3, 3 → 2, 4 → 3; c is asked for by nobody
    result = recalls(text_model, vectors, ["a", "b", "b", "a", "c"])
    assert [score.name for score in result.scores[:3]] == ["recall@1", "recall@5", "recall@10"]
    assert [score.value for score in result.scores[:3]] == [0.0, 1.0, 1.0]
    assert result.scores[-1].name == "cosine similarity"
    assert result.scores[-1].value is None
    assert result.details == {"labelled_samples": 5, "queries": 4}
    result = recalls(text_model, vectors, ["a", "a", "b", "b", "b"])
    assert result.score("recall@1") == 1.0
    result = recalls(text_model, vectors, ["a", "b", "b", "b", "a"])
    assert result.score("recall@1") == pytest.approx(2 / 5)


def test_of_equal_neighbours_the_first_is_nearer(text_model: ModelManifest) -> None:
    vectors = np.ones((3, 2), np.float32)
    assert recalls(text_model, vectors, ["a", "b", "b"]).score("recall@1") == 0  # both have 0 before them
    assert recalls(text_model, vectors, ["b", "a", "b"]).score("recall@1") == 1 / 2


def test_recall_in_blocks_is_that_of_all_pairs_at_once(
    text_model: ModelManifest, monkeypatch: pytest.MonkeyPatch
) -> None:
    random = np.random.default_rng(0)
    labels = [str(number) for number in random.integers(0, 12, 90)]
    vectors = random.normal(size=(90, 6)).astype(np.float32)
    unit = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
    similarities = unit @ unit.T
    np.fill_diagonal(similarities, -2)
    order = np.argsort(-similarities, axis=1)
    asked = [place for place in range(90) if labels.count(labels[place]) > 1]
    wanted = [
        np.mean([labels[place] in [labels[near] for near in order[place, :k]] for place in asked])
        for k in (1, 5, 10)
    ]
    monkeypatch.setattr(embedding, "_BLOCK_ELEMENTS", 700)  # seven rows
    result = recalls(text_model, vectors, labels)
    assert [score.value for score in result.scores[:3]] == pytest.approx(wanted)
    assert 0 < wanted[0] < wanted[2] < 1


def test_what_cannot_be_scored_is_named(text_model: ModelManifest) -> None:
    metric = EmbeddingMetric(text_model)
    with pytest.raises(PredictionError, match="its embedding has no direction"):
        metric.add(sample("1", "a"), values(0.0, 0.0))
    with pytest.raises(DatasetError, match="its reference has 3 values; the model gives 2"):
        metric.add(sample("2", reference=(1.0, 2.0, 3.0)), values(1.0, 0.0))
    with pytest.raises(DatasetError, match="input 3: its reference is not a vector"):
        metric.check(sample("3", reference=(0.0, 0.0)))
    with pytest.raises(DatasetError, match="input 4: has no reference vector"):
        metric.check(Sample("4", Text("x"), truth=AcceptedAnswers(())))
    with pytest.raises(PredictionError, match="its prediction is not one embedding"):
        metric.add(sample("5", "a"), Texts.of(["x"]))
    assert metric.result() is None


@pytest.mark.parametrize("size", [1e308, 1e-300])
def test_the_direction_of_a_vector_does_not_depend_on_its_length(
    text_model: ModelManifest, size: float
) -> None:
    metric = EmbeddingMetric(text_model)
    for name, vector in (("0", (3.0, 4.0)), ("1", (3.0, 4.1))):
        prediction = Values(np.array([vector]) * (size / 5))
        metric.add(sample(name, "a", reference=(0.0, size)), prediction)
    result = metric.result()
    assert result is not None
    assert result.score("cosine similarity") == pytest.approx((0.8 + 4.1 / np.hypot(3, 4.1)) / 2)
    assert result.score("recall@1") == 1
