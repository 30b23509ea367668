"""Counting of correct classifications, batch by batch."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

from inferometer.agent.inference.results import BatchResult, Classifications
from inferometer.agent.preprocessing.inputs import Input
from inferometer.evaluators.class_index import ClassIndex
from inferometer.evaluators.datasets.base import Sample
from inferometer.evaluators.measurements.batches import Accuracy
from inferometer.manifests.errors import ConfigurationError, PredictionError
from inferometer.manifests.schema import ModelManifest

_TOP = 5
_UNLABELLED = -1


class AccuracyCounter:
    """Counts correct classifications over batches. Not thread-safe.

    Failed inputs and samples without a label are not counted, and neither are models that do not classify.

    Args:
        manifest: The model; ``ClassIndex`` matches its classes.
        meaningful: Whether the predictions are meaningful; those of random weights are not, and not counted.
    """

    def __init__(self, manifest: ModelManifest, *, meaningful: bool = True) -> None:
        self._classifies = meaningful and manifest.output.type == "classification"
        self._classes = ClassIndex(manifest.output.parameters.labels)
        self._top1 = 0
        self._top5 = 0
        self._evaluated = 0

    def result(self) -> Accuracy | None:
        """Returns the counts so far; None if no labelled input was predicted."""
        return Accuracy(self._top1, self._top5, self._evaluated) if self._evaluated else None

    def check(self, samples: Iterable[Sample]) -> None:
        """Checks, before the model runs, that it has the class of every sample; reads no data.

        Raises:
            DatasetError: The model lacks a class, or has several of that name.
        """
        for sample in samples:
            if self._classifies:
                self._classes.of(sample)

    def add(self, samples: Sequence[Input], result: BatchResult) -> None:
        """Counts one batch.

        Args:
            samples: The batch; an input that is no ``Sample`` has no label.
            result: Its result.

        Raises:
            DatasetError: The model lacks the class of a sample, or has several of that name.
            PredictionError: The result is not for these samples.
            ConfigurationError: The result has too few classes for top-5.
        """
        if not self._classifies or not isinstance(result.outputs, Classifications):
            return
        indices = result.outputs.indices
        if len(indices) != len(result.input_ids):
            raise PredictionError(
                f"{len(result.input_ids)} inputs were predicted, but {len(indices)} answered"
            )
        expected = self._expected(samples, result.input_ids)
        labelled = expected != _UNLABELLED
        if not labelled.any():
            return
        if indices.shape[1] < min(_TOP, len(self._classes) or 1):
            raise ConfigurationError(
                f"top-5 needs the {_TOP} best classes of each input, but {indices.shape[1]} were kept; "
                f"set the feature limit to {_TOP} or more, or to 0 for all"
            )
        hits = indices[labelled, :_TOP] == expected[labelled, np.newaxis]
        self._top1 += int(hits[:, 0].sum())
        self._top5 += int(hits.any(axis=1).sum())
        self._evaluated += len(hits)

    def _expected(self, samples: Sequence[Input], input_ids: Sequence[str]) -> NDArray[np.int64]:
        """The classes of the predicted inputs, int64; -1 for one without a label.

        ``input_ids`` is in the order of ``samples``, without the failed ones.
        """
        expected = np.full(len(input_ids), _UNLABELLED, dtype=np.int64)
        remaining = iter(samples)
        for row, input_id in enumerate(input_ids):
            sample = next((sample for sample in remaining if sample.id == input_id), None)
            if sample is None:
                raise PredictionError(f"input {input_id}: was answered for, but not asked for in this place")
            if isinstance(sample, Sample) and (index := self._classes.of(sample)) is not None:
                expected[row] = index
        return expected
