"""The metrics of classification, of images and of texts, and of question answering.

For images, these are top-1, top-5 and the calibration of the probabilities; for texts, accuracy and F1. For
question answering, they are exact match and F1 as SQuAD's script computes them.
"""

from __future__ import annotations

import re
import string
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from inferometer.agent.tasks.predictions import Classifications, Predictions, Texts
from inferometer.evaluators.datasets.base import AcceptedAnswers, Sample
from inferometer.evaluators.tasks.accuracy import Accuracy, ClassIndex, decimal
from inferometer.evaluators.tasks.metric import (
    MOST_COUNTS,
    Score,
    ScoringFailure,
    TaskMetric,
    TaskResult,
    counted_score,
    mean_score,
    ratio_score,
    share_score,
    truth_of,
)
from inferometer.manifests.errors import ConfigurationError, DatasetError, PredictionError
from inferometer.manifests.schema import ModelManifest, Transform

DEFINITION = "top-k accuracy, Wilson intervals; ECE of 15 bins (Guo et al. 2017)"
_TOP = 5
_UNLABELLED = -1
_BINS = 15
_ROUNDING = 1e-3


class ClassificationMetric(TaskMetric):
    """Counts correct classes, and records the model's confidence in the best class. Not thread-safe.

    A class of the dataset that the model lacks fails the whole evaluation, since every share would be wrong.
    """

    task: ClassVar[str] = "classification"

    def __init__(self, manifest: ModelManifest) -> None:
        super().__init__(manifest)
        self._classes = ClassIndex(manifest.output.parameters.labels)
        self._calibration = _Calibration(manifest)
        self._top1 = self._top5 = self._evaluated = 0

    @property
    def accuracy(self) -> Accuracy | None:
        """The counts so far; None if no labelled input was predicted."""
        return Accuracy(self._top1, self._top5, self._evaluated) if self._evaluated else None

    def check(self, sample: Sample) -> None:
        """Checks that the model has the class of a sample; see ``TaskMetric``."""
        self._classes.of(sample)

    def add(self, sample: Sample, prediction: Predictions) -> None:
        """Adds the prediction for one sample; see ``TaskMetric``."""
        self.add_batch([sample], prediction)

    def add_batch(self, samples: Sequence[Sample], predictions: Predictions) -> Sequence[ScoringFailure]:
        """Adds the predictions for several samples at once; those without a label are not counted.

        Raises:
            DatasetError: The model lacks the class of a sample.
            PredictionError: The predictions are not classifications.
            ConfigurationError: There are too few classes for top-5.
        """
        if not isinstance(predictions, Classifications):
            raise PredictionError(f"the predictions are {predictions.kind}, not classifications")
        found = [self._classes.of(sample) for sample in samples]
        expected = np.array([_UNLABELLED if index is None else index for index in found], np.int64)
        labelled = expected != _UNLABELLED
        if not labelled.any():
            return ()
        indices = predictions.indices
        if indices.shape[1] < min(_TOP, len(self._classes) or 1):
            raise ConfigurationError(
                f"top-5 needs the {_TOP} best classes of each input, but {indices.shape[1]} were kept; "
                f"set the feature limit to {_TOP} or more, or to 0 for all"
            )
        hits: NDArray[np.bool_] = indices[labelled, :_TOP] == expected[labelled, np.newaxis]
        self._top1 += int(hits[:, 0].sum())
        self._top5 += int(hits.any(axis=1).sum())
        self._evaluated += len(hits)
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

    Source: Guo, Pleiss, Sun and Weinberger, "On Calibration of Modern Neural Networks", ICML 2017, equation
    3: the mean of ``|accuracy - confidence|`` over the bins, weighted by their samples; a bin includes its
    upper end. It has no interval, because resampling inflates a sum of absolute values.

    It is defined only for probabilities. Outputs are regarded as such after a softmax here; without one, as
    long as each is in 0…1, and those of an input add up to at most 1, or to 1 if all classes are present.
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
        """Adds the ``labelled`` inputs; ``right`` marks those whose best class is correct."""
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
        """Returns the expected calibration error; None if the outputs are not probabilities."""
        if not self._are_probabilities or not samples:
            return None
        return float(np.abs(self._right - self._confidence).sum() / samples)

    def bins(self) -> list[dict[str, float | int]]:
        """Returns, for each non-empty bin, its samples, mean confidence and share of correct predictions."""
        return [
            {"samples": int(count), "confidence": float(confidence / count), "accuracy": float(right / count)}
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


_MOST_DETAILED_CLASSES = 100


class TextClassificationMetric(TaskMetric):
    """Accuracy and F1 of the best class of each text.

    F1 is the harmonic mean of precision and recall of a class, 2 tp / (2 tp + fp + fn). It is the mean over
    the classes that occur among the labels or the predictions, as in scikit-learn's ``f1_score`` with
    ``average="macro"``. If the model has two labels and the manifest names the ``positive_label``, it is the
    F1 of only the positive class, and undefined while neither labels nor predictions contain it.

    A label of the dataset is matched by the rules of ``ClassIndex``. A whole number is the index of a class
    if no label of the model is a number, as in datasets whose columns hold indices.

    Raises:
        ConfigurationError: ``positive_label`` is not one of the model's two labels.
    """

    task: ClassVar[str] = "text_classification"

    def __init__(self, manifest: ModelManifest) -> None:
        super().__init__(manifest)
        labels = manifest.output.parameters.labels
        self._labels = labels
        self._classes = ClassIndex(labels)
        self._named = not labels or any(decimal(label.strip()) is not None for label in labels)
        self._positive = _positive(manifest.output.parameters.positive_label, labels)
        self._true: list[int] = []
        self._predicted: list[int] = []

    def check(self, sample: Sample) -> None:
        """Checks that the model has the class of a sample; raises DatasetError if it does not."""
        self._class_of(sample)

    def add(self, sample: Sample, prediction: Predictions) -> None:
        """Adds the prediction for one text; see ``TaskMetric``."""
        if not isinstance(prediction, Classifications) or len(prediction) != 1:
            raise PredictionError("its prediction is not a classification of one text")
        index = self._class_of(sample)
        if index is None:
            return
        if not prediction.indices.shape[1]:
            raise PredictionError("its prediction has no class")
        self._true.append(index)
        self._predicted.append(int(prediction.indices[0, 0]))

    def result(self) -> TaskResult | None:
        """Returns accuracy and F1; None if no text with a label was predicted."""
        if not self._true:
            return None
        true, predicted = np.asarray(self._true, np.int64), np.asarray(self._predicted, np.int64)
        classes = max(len(self._labels), int(max(true.max(), predicted.max())) + 1)
        scores = [share_score("accuracy", true == predicted), _f1(true, predicted, classes, self._positive)]
        return TaskResult(
            self.task, self._definition(), len(true), scores, self._details(true, predicted, classes)
        )

    def _definition(self) -> str:
        if self._positive is None:
            return "accuracy; F1, the mean over the classes present (macro)"
        return f"accuracy; F1 of the class {self._labels[self._positive]}"

    def _class_of(self, sample: Sample) -> int | None:
        if sample.label is None or sample.label_is_index or self._named:
            return self._classes.of(sample)
        index = decimal(sample.label.strip())
        if index is None:
            return self._classes.of(sample)
        if index >= len(self._labels):
            raise DatasetError(
                f"the dataset's class {index} is no index of the model's {len(self._labels)} classes"
            )
        return index

    def _details(
        self, true: NDArray[np.int64], predicted: NDArray[np.int64], classes: int
    ) -> Mapping[str, Any]:
        """Returns the confusion matrix, unless there are too many classes to show."""
        if classes > _MOST_DETAILED_CLASSES:
            return {}
        matrix = np.bincount(true * classes + predicted, minlength=classes**2).reshape(classes, classes)
        names = list(self._labels) or [str(index) for index in range(classes)]
        return {"confusion_matrix": {"labels": names, "rows": matrix.tolist()}}


def f1_score(
    true: NDArray[np.int64], predicted: NDArray[np.int64], classes: int, positive: int | None = None
) -> float:
    """Returns F1 as ``TextClassificationMetric`` defines it; NaN if it is undefined.

    Args:
        true: int64, samples; the right class of each.
        predicted: int64, samples.
        classes: The number of classes.
        positive: The only class for which to compute F1; None for the mean over all classes that are present.
    """
    hits = np.bincount(true[true == predicted], minlength=classes)
    counted = np.bincount(true, minlength=classes) + np.bincount(predicted, minlength=classes)
    present = counted > 0
    if positive is not None:
        return float(2 * hits[positive] / counted[positive]) if present[positive] else float("nan")
    return float((2 * hits[present] / counted[present]).mean())


def _f1(true: NDArray[np.int64], predicted: NDArray[np.int64], classes: int, positive: int | None) -> Score:
    """Returns F1 with its interval, which is omitted for more than ``MOST_COUNTS`` samples times classes."""
    value = f1_score(true, predicted, classes, positive)
    if not np.isfinite(value):
        return Score("F1", None)
    columns = np.union1d(true, predicted) if positive is None else np.array([positive])
    if len(true) * len(columns) > MOST_COUNTS:
        return Score("F1", value)
    of_true, of_predicted = (each[:, np.newaxis] == columns for each in (true, predicted))
    parts, wholes = 2.0 * (of_true & of_predicted), of_true.astype(np.float64) + of_predicted
    return ratio_score("F1", value, parts, wholes)


def _positive(label: str, labels: Sequence[str]) -> int | None:
    if not label:
        return None
    if len(labels) != 2 or label not in labels:
        raise ConfigurationError(
            f'field output.parameters.positive_label: found "{label}"; allowed: one of two labels, and the '
            f"model has {', '.join(labels) or 'none'}"
        )
    return labels.index(label)


_ARTICLES = re.compile(r"\b(a|an|the)\b")
_WITHOUT_PUNCTUATION = str.maketrans("", "", string.punctuation)


class QuestionAnsweringMetric(TaskMetric):
    """Exact match and F1 over questions, each the best over the accepted answers.

    Source: ``evaluate-v2.0.py`` of SQuAD 2.0 (Rajpurkar et al., "Know What You Don't Know", 2018), which for
    questions with answers is the script of SQuAD 1.1. Scores are shares, 0…1; the script prints percent.
    """

    task: ClassVar[str] = "question_answering"

    def __init__(self, manifest: ModelManifest) -> None:
        super().__init__(manifest)
        self._scores: list[tuple[float, float, bool]] = []

    def check(self, sample: Sample) -> None:
        """Checks that a truth that is in memory consists of answers; see ``TaskMetric``."""
        if sample.truth is not None and not callable(sample.truth):
            _answers(sample)

    def add(self, sample: Sample, prediction: Predictions) -> None:
        """Adds the answer to one question; see ``TaskMetric``."""
        if not isinstance(prediction, Texts) or len(prediction) != 1:
            raise PredictionError("its prediction is not one answer")
        answers = _answers(sample)
        if answers is None:
            return
        # as in the script, an accepted answer that is nothing but articles and punctuation is none
        accepted = [answer for answer in answers if normalized(answer)]
        predicted = prediction.text(0)
        gold = accepted or [""]
        self._scores.append((exact_match(predicted, gold), _token_f1(predicted, gold), bool(accepted)))

    def result(self) -> TaskResult | None:
        """Returns exact match and F1; None if no question with accepted answers was predicted."""
        if not self._scores:
            return None
        table = np.asarray([scores[:2] for scores in self._scores], np.float64)
        answerable = np.asarray([scores[2] for scores in self._scores], np.bool_)
        exact, overlaps = table.T
        scores = [share_score("exact match", exact == 1), mean_score("F1", overlaps, least=0.0, most=1.0)]
        details = {
            name: {"samples": int(chosen.sum()), "exact_match": found[0], "f1": found[1]}
            for name, chosen in (("with_answer", answerable), ("without_answer", ~answerable))
            if chosen.any() and (found := table[chosen].mean(axis=0).tolist())
        }
        return TaskResult(
            self.task, "exact match and F1 of SQuAD 2.0 (evaluate-v2.0.py)", len(table), scores, details
        )


def normalized(answer: str) -> str:
    """Returns an answer in lower case, without punctuation, articles and superfluous white space."""
    return " ".join(_ARTICLES.sub(" ", answer.lower().translate(_WITHOUT_PUNCTUATION)).split())


def exact_match(predicted: str, answers: Sequence[str]) -> float:
    """Returns 1 if the normalized prediction is one of the normalized answers, else 0."""
    return float(normalized(predicted) in map(normalized, answers))


def _token_f1(predicted: str, answers: Sequence[str]) -> float:
    """Returns the best F1 of the prediction's words over the answers.

    If either has no words, as for a question without an answer, F1 is 1 if both have none, and otherwise 0.
    """
    return max(_answer_f1(normalized(predicted).split(), normalized(answer).split()) for answer in answers)


def _answer_f1(predicted: Sequence[str], answer: Sequence[str]) -> float:
    if not predicted or not answer:
        return float(predicted == answer)
    same = (Counter(predicted) & Counter(answer)).total()
    return 2 * same / (len(predicted) + len(answer))


def _answers(sample: Sample) -> Sequence[str] | None:
    missing = f"input {sample.id}: has no accepted answers, which question answering is scored by"
    truth = truth_of(sample, AcceptedAnswers, missing)
    return None if truth is None else truth.texts
