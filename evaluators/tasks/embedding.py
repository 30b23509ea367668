"""The metric of embeddings: similarity to reference vectors, and recall among nearest neighbours."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from inferometer.agent.tasks.predictions import Predictions, Values
from inferometer.evaluators.datasets.base import Sample
from inferometer.evaluators.datasets.truths import TargetValues
from inferometer.evaluators.tasks.bootstrap import mean_score, share_score
from inferometer.evaluators.tasks.metric import Score, TaskMetric, TaskResult
from inferometer.manifests.errors import DatasetError, PredictionError
from inferometer.manifests.schema import ModelManifest

RECALL_RANKS = (1, 5, 10)
"""The numbers of neighbours of the recall."""
_BLOCK_ELEMENTS = 2**21
"""The most similarities in memory at once: 16 MiB of float64."""
_DECIMALS = 6
"""Similarities are rounded, so that equal vectors tie whatever the order of a sum."""


class EmbeddingMetric(TaskMetric):
    """Cosine similarity to reference vectors, and recall at 1, 5 and 10.

    The similarity is the mean over the samples with a ``TargetValues``. The recall at k is the share of the
    labelled samples that have one of their own label among their k nearest neighbours by cosine, where the
    neighbours are the other labelled samples of the evaluation (Jégou et al., "Product Quantization for
    Nearest Neighbor Search", 2011; by class as in Oh Song et al., "Deep Metric Learning via Lifted Structured
    Feature Embedding", 2016). A sample whose label no other has is a neighbour, but not asked for. Of
    neighbours with the same similarity, to six decimals, the one that was added first is nearer.

    A vector of zeros has no direction, and is not a prediction.
    """

    task: ClassVar[str] = "embedding"

    def __init__(self, manifest: ModelManifest) -> None:
        super().__init__(manifest)
        self._similarities: list[float] = []
        self._vectors: list[NDArray[np.floating[Any]]] = []
        self._labels: list[str] = []
        self._samples = 0

    def check(self, sample: Sample) -> None:
        """Checks that a truth in memory is a vector; see ``TaskMetric``."""
        if sample.truth is not None and not callable(sample.truth):
            _reference(sample)

    def add(self, sample: Sample, prediction: Predictions) -> None:
        """Takes the embedding of one sample; see ``TaskMetric``."""
        if not isinstance(prediction, Values) or len(prediction) != 1:
            raise PredictionError("its prediction is not one embedding")
        vector = prediction.values[0]
        direction = _direction(vector)
        if direction is None:
            raise PredictionError("its embedding has no direction: it is zeros, or not finite")
        reference = _reference(sample)
        if reference is None and sample.label is None:
            return
        if reference is not None and len(reference) != len(vector):
            raise DatasetError(f"its reference has {len(reference)} values; the model gives {len(vector)}")
        if self._vectors and len(self._vectors[0]) != len(vector):
            raise PredictionError(
                f"its embedding has {len(vector)} values; others have {len(self._vectors[0])}"
            )
        self._samples += 1
        if reference is not None:
            self._similarities.append(float(direction @ reference))
        if sample.label is not None:
            self._vectors.append(direction.astype(vector.dtype))
            self._labels.append(sample.label)

    def result(self) -> TaskResult | None:
        """Returns the scores; None if no sample with a reference or a label was predicted."""
        if not self._samples:
            return None
        scores: list[Score] = []
        details: Mapping[str, Any] = {}
        similarities = np.asarray(self._similarities, np.float64)
        scores.append(mean_score("cosine similarity", similarities, least=-1.0, most=1.0))
        ranks = np.empty(0, np.int64)
        if self._labels:
            ranks = nearest_ranks(np.stack(self._vectors), self._labels)
            details = _details(ranks, len(self._labels))
        scores += [share_score(f"recall@{k}", ranks < k) for k in RECALL_RANKS]
        if not len(similarities):
            scores.append(scores.pop(0))
        return TaskResult(
            self.task,
            "cosine similarity to the reference; recall@k among the other samples, by label",
            self._samples,
            scores,
            details,
        )


def nearest_ranks(vectors: NDArray[np.floating[Any]], labels: list[str]) -> NDArray[np.int64]:
    """Returns how many neighbours are nearer than the nearest of the same label, for each sample.

    Memory is bounded: similarities are computed in blocks of samples.

    Args:
        vectors: float32 or float64, samples × k, each of length 1.
        labels: One for each sample.

    Returns:
        int64; one rank, from 0, for each sample that has another one with its label, in their order.
    """
    numbers = {label: number for number, label in enumerate(dict.fromkeys(labels))}
    classes = np.asarray([numbers[label] for label in labels], np.int64)
    asked = np.flatnonzero(np.bincount(classes)[classes] > 1)
    double = vectors.astype(np.float64)
    ranks = np.empty(len(asked), np.int64)
    rows = max(1, _BLOCK_ELEMENTS // len(labels))
    for start in range(0, len(asked), rows):
        block = asked[start : start + rows]
        similarities = np.round(double[block] @ double.T, _DECIMALS)
        similarities[np.arange(len(block)), block] = -np.inf
        same = classes[block, np.newaxis] == classes
        nearest = np.where(same, similarities, -np.inf).argmax(axis=1)
        best = similarities[np.arange(len(block)), nearest, np.newaxis]
        before = np.arange(len(labels)) < nearest[:, np.newaxis]
        ranks[start : start + rows] = ((similarities > best) | ((similarities == best) & before)).sum(axis=1)
    return ranks


def _details(ranks: NDArray[np.int64], labelled: int) -> Mapping[str, Any]:
    return {"labelled_samples": labelled, "queries": len(ranks)}


def _direction(vector: NDArray[Any]) -> NDArray[np.float64] | None:
    """Returns a vector of length 1, float64, k; None for zeros, and for what is not finite."""
    largest = float(np.abs(vector).max()) if vector.size else 0.0
    if not largest or not np.isfinite(largest):
        return None
    exponent = np.frexp(largest)[1] - 1  # exact, and no square overflows
    scaled = vector.astype(np.float64) / np.ldexp(1.0, exponent)
    direction: NDArray[np.float64] = scaled / np.linalg.norm(scaled)
    return direction


def _reference(sample: Sample) -> NDArray[np.float64] | None:
    """Returns the direction of a sample's reference vector; None without one."""
    truth = sample.read_truth()
    if truth is None:
        return None
    if not isinstance(truth, TargetValues):
        raise DatasetError(f"input {sample.id}: has no reference vector, which embeddings are scored by")
    direction = _direction(truth.values) if truth.values.ndim == 1 else None
    if direction is None:
        raise DatasetError(
            f"input {sample.id}: its reference is no vector of finite numbers with a direction"
        )
    return direction
