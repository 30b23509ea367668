"""The metric of classification: top-1, top-5, and how well the probabilities are calibrated."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from inferometer.agent.tasks.predictions import Classifications, Predictions
from inferometer.evaluators.datasets.base import Sample
from inferometer.evaluators.kinds.batches.accuracy import AccuracyCounter
from inferometer.evaluators.kinds.batches.measurement import Accuracy
from inferometer.evaluators.tasks.metric import Score, ScoringFailure, TaskMetric, TaskResult, counted_score
from inferometer.manifests.errors import PredictionError
from inferometer.manifests.schema import ModelManifest, Transform

DEFINITION = "top-k accuracy, Wilson intervals; ECE of 15 bins (Guo et al. 2017)"
_BINS = 15
_ROUNDING = 1e-3


class ClassificationMetric(TaskMetric):
    """Counts right classes, and collects how certain the model was of the best one. Not thread-safe.

    A class of the dataset that the model lacks fails the whole evaluation, since every share would be wrong.
    """

    task: ClassVar[str] = "classification"

    def __init__(self, manifest: ModelManifest) -> None:
        super().__init__(manifest)
        self._counter = AccuracyCounter(manifest)
        self._calibration = _Calibration(manifest)

    @property
    def accuracy(self) -> Accuracy | None:
        """The counts so far; None if no labelled input was predicted."""
        return self._counter.result()

    def check(self, sample: Sample) -> None:
        """Checks that the model has the class of a sample; see ``TaskMetric``."""
        self._counter.check([sample])

    def add(self, sample: Sample, prediction: Predictions) -> None:
        """Takes the prediction of one sample; see ``TaskMetric``."""
        self.add_batch([sample], prediction)

    def add_batch(self, samples: Sequence[Sample], predictions: Predictions) -> Sequence[ScoringFailure]:
        """Takes the predictions of several samples at once.

        Raises:
            DatasetError: The model lacks the class of a sample.
            PredictionError: The predictions are no classes.
            ConfigurationError: There are too few classes for top-5.
        """
        if not isinstance(predictions, Classifications):
            raise PredictionError(f"a classification was answered with {predictions.kind}")
        counted = self._counter.count(samples, predictions)
        if counted is not None:
            labelled, hits = counted
            self._calibration.add(predictions, labelled, hits[:, 0])
        return ()

    def result(self) -> TaskResult | None:
        """Returns the scores; see ``TaskMetric``."""
        found = self.accuracy
        if found is None:
            return None
        scores = [
            counted_score("top-1", found.top1, found.evaluated),
            counted_score("top-5", found.top5, found.evaluated),
        ]
        error = self._calibration.error(found.evaluated)
        if error is not None:
            scores.append(Score("ECE", error))
        details = {} if error is None else {"calibration": self._calibration.bins()}
        return TaskResult(self.task, DEFINITION, found.evaluated, tuple(scores), details)


class _Calibration:
    """The expected calibration error, over bins of equal width, in constant memory.

    Source: Guo, Pleiss, Sun and Weinberger, "On Calibration of Modern Neural Networks", ICML 2017,
    equation 3: the mean of ``|accuracy - confidence|`` over the bins, weighted by their samples; a bin holds
    its upper end. It has no interval, because resampling adds to a sum of absolute values.

    It is defined for probabilities only. They are such after a softmax here; without one, while each is in
    0…1, those of an input add up to at most 1, and to 1 where all classes are there.
    """

    def __init__(self, manifest: ModelManifest) -> None:
        parameters = manifest.output.parameters
        self._trusted = parameters.probabilities_transform is Transform.SOFTMAX
        self._classes = len(parameters.labels)
        self._are_probabilities = True
        self._counts = np.zeros(_BINS, np.int64)
        self._confidence = np.zeros(_BINS)
        self._right = np.zeros(_BINS, np.int64)

    def add(
        self, predictions: Classifications, labelled: NDArray[np.bool_], right: NDArray[np.bool_]
    ) -> None:
        """Takes the inputs that are ``labelled``, of which the best class is ``right`` in some."""
        if not self._are_probabilities:
            return
        probabilities = predictions.probabilities[labelled].astype(np.float64)
        if not self._trusted and not self._plausible(probabilities):
            self._are_probabilities = False
            return
        best = probabilities[:, 0]
        bins = np.clip(np.ceil(best * _BINS).astype(np.int64) - 1, 0, _BINS - 1)
        self._counts += np.bincount(bins, minlength=_BINS)
        self._confidence += np.bincount(bins, best, minlength=_BINS)
        self._right += np.bincount(bins[right], minlength=_BINS)

    def error(self, samples: int) -> float | None:
        """Returns the expected calibration error; None where the outputs are no probabilities."""
        if not self._are_probabilities or not samples:
            return None
        return float(np.abs(self._right - self._confidence).sum() / samples)

    def bins(self) -> list[dict[str, float | int]]:
        """Returns each bin with its samples, the mean confidence and the fraction of correct predictions."""
        return [
            {
                "samples": int(count),
                "confidence": float(confidence / count),
                "accuracy": float(right / count),
            }
            for count, confidence, right in zip(self._counts, self._confidence, self._right, strict=True)
            if count
        ]

    def _plausible(self, probabilities: NDArray[np.float64]) -> bool:
        sums = probabilities.sum(axis=1)
        every = probabilities.shape[1] == self._classes
        return bool(
            (probabilities >= 0).all()
            and (sums <= 1 + _ROUNDING).all()
            and (not every or (sums >= 1 - _ROUNDING).all())
        )
