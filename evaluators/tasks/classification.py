"""The metrics of classification, of images and of texts, and of question answering.

For images, these are top-1 and top-5; for texts, accuracy; for both, F1, precision, recall, and the quality
of the probabilities. For question answering, they are exact match and F1 as SQuAD's script computes them.
"""

from __future__ import annotations

import re
import string
from array import array
from collections import Counter
from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from inferometer.agent.tasks.predictions import Classifications, Predictions, Texts
from inferometer.evaluators.datasets.base import AcceptedAnswers, Sample
from inferometer.evaluators.tasks.metric import (
    MOST_DRAWN_COUNTS,
    Accuracy,
    ClassCounts,
    ClassIndex,
    Score,
    ScoringFailure,
    TaskMetric,
    TaskResult,
    counted_score,
    decimal,
    mean_score,
    share_score,
    truth_of,
)
from inferometer.manifests.errors import ConfigurationError, DatasetError, PredictionError
from inferometer.manifests.schema import ModelManifest, Transform

_CALIBRATION = "ECE of 15 bins (Guo et al. 2017)"
_MACRO = f"F1, precision and recall, means over the classes present (macro); {_CALIBRATION}"
DEFINITION = f"top-k accuracy, Wilson intervals; {_MACRO}"
_TOP = 5
_UNLABELLED = -1
_BINS = 15
_EDGES = np.linspace(0, 1, _BINS + 1)[1:-1]
_ROUNDING = 1e-3


class ClassificationMetric(TaskMetric):
    """Counts correct classes, and records the best class and the model's confidence. Not thread-safe.

    A class of the dataset that the model lacks fails the whole evaluation, since every share would be wrong.
    A model that names only the best class (``classes_layer``) has neither top-5 nor calibration.
    """

    task: ClassVar[str] = "classification"

    def __init__(self, manifest: ModelManifest) -> None:
        super().__init__(manifest)
        self._classes = ClassIndex(manifest.output.parameters.labels)
        self._confusion = _Confusion(manifest.output.parameters.labels)
        self._probabilities = _Probabilities(manifest)
        self._top1 = self._top5 = self._evaluated = 0
        self._names_only = manifest.output.parameters.classes_layer is not None

    @property
    def accuracy(self) -> Accuracy | None:
        """The counts so far; None if no labelled input was predicted."""
        top5 = None if self._names_only else self._top5
        return Accuracy(self._top1, top5, self._evaluated) if self._evaluated else None

    def check(self, sample: Sample) -> None:
        """Checks that the model has the class of a sample; see ``TaskMetric``."""
        self._classes.of(sample)

    def add(self, sample: Sample, prediction: Predictions) -> None:
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
        if not self._names_only and indices.shape[1] < min(_TOP, len(self._classes) or 1):
            raise ConfigurationError(
                f"top-5 needs the {_TOP} best classes of each input, but {indices.shape[1]} were kept; "
                f"set the feature limit to {_TOP} or more, or to 0 for all"
            )
        hits: NDArray[np.bool_] = indices[labelled, :_TOP] == expected[labelled, np.newaxis]
        self._top1 += int(hits[:, 0].sum())
        self._top5 += int(hits.any(axis=1).sum())
        self._evaluated += len(hits)
        self._confusion.add(expected[labelled], indices[labelled, 0])
        self._probabilities.add(indices[labelled], predictions.probabilities[labelled], expected[labelled])
        return ()

    def result(self) -> TaskResult | None:
        found = self.accuracy
        if found is None:
            return None
        scores = [
            counted_score("top-1", found.top1, found.evaluated),
            Score("top-5", None)
            if found.top5 is None
            else counted_score("top-5", found.top5, found.evaluated),
            *self._probabilities.scores(),
        ]
        more, details = self._confusion.result(self._probabilities)
        return TaskResult(self.task, DEFINITION, found.evaluated, (*scores, *more), details)


class _Probabilities:
    """The calibration error, over bins of equal width, and the log loss and the Brier score.

    The expected calibration error is that of Guo, Pleiss, Sun and Weinberger, "On Calibration of Modern
    Neural Networks", ICML 2017, equation 3: the mean of ``|accuracy - confidence|`` over the bins, weighted
    by their samples; a bin includes its upper end. It has no interval, because resampling inflates a sum of
    absolute values. That of a class compares its probability, of every input, with how often it is right
    (Kull et al., "Beyond Temperature Scaling", NeurIPS 2019, class-wise). Log loss and Brier score are those
    of scikit-learn's ``log_loss`` and ``brier_score_loss``; like the calibration of classes, they are defined
    only if the probabilities of all of the model's labels are kept.

    All are defined only for probabilities. Outputs are regarded as such after a softmax here; without one, as
    long as each is in 0…1, and those of an input add up to at most 1, or to 1 if all classes are present.
    """

    def __init__(self, manifest: ModelManifest) -> None:
        parameters = manifest.output.parameters
        self._trusted = parameters.probabilities_transform is Transform.SOFTMAX
        self._classes = len(parameters.labels)
        self._names_only = parameters.classes_layer is not None
        self._are_probabilities, self._are_all = not self._names_only, self._classes > 0
        self._counts = np.zeros(_BINS, np.int64)
        self._confidence = np.zeros(_BINS)
        self._right = np.zeros(_BINS, np.int64)
        self._excess = np.zeros((self._classes, _BINS))
        """The inputs of each class minus its probabilities, by the bin of the probability."""
        self._losses, self._squares = array("d"), array("d")

    def add(self, indices: NDArray[np.int64], given: NDArray[Any], true: NDArray[np.int64]) -> None:
        """Adds inputs.

        Args:
            indices: int64, inputs × k.
            given: float, inputs × k; the outputs of these classes.
            true: int64, inputs; the right classes.
        """
        if not self._are_probabilities:
            return
        probabilities = given.astype(np.float64)
        if not self._plausible(probabilities):
            self._are_probabilities = False
            return
        best, hits = probabilities[:, 0], indices == true[:, np.newaxis]
        bins = _bins_of(best)
        self._counts += np.bincount(bins, minlength=_BINS)
        self._confidence += np.bincount(bins, best, minlength=_BINS)
        self._right += np.bincount(bins[hits[:, 0]], minlength=_BINS)
        self._are_all = self._are_all and indices.shape[1] == self._classes
        if self._are_all and (np.sort(indices) == np.arange(self._classes)).all():
            self._add_all(indices, probabilities, hits, float(np.finfo(given.dtype).eps))
        else:
            self._are_all = False

    def _add_all(
        self,
        indices: NDArray[np.int64],
        probabilities: NDArray[np.float64],
        hits: NDArray[np.bool_],
        epsilon: float,
    ) -> None:
        own = probabilities[hits]
        self._losses.extend((-np.log(np.clip(own, epsilon, 1 - epsilon))).tolist())
        squares = np.square(probabilities).sum(axis=1) - 2 * own + 1
        self._squares.extend((squares / 2 if self._classes == 2 else squares).tolist())
        places = (indices * _BINS + _bins_of(probabilities)).ravel()
        excess = np.bincount(places, (hits - probabilities).ravel(), self._excess.size)
        self._excess += excess.reshape(self._excess.shape)

    def scores(self) -> list[Score]:
        """Returns the scores that are defined."""
        samples = int(self._counts.sum())
        if not self._are_probabilities or not samples:
            return [Score("ECE", None)] if self._names_only else []
        found = [Score("ECE", float(np.abs(self._right - self._confidence).sum() / samples))]
        if self._are_all:
            found.append(mean_score("log loss", np.array(self._losses), least=0.0))
            found.append(mean_score("Brier", np.array(self._squares), least=0.0))
        return found

    def class_errors(self) -> NDArray[np.float64] | None:
        """Returns the calibration error of each of the model's classes; None if it is not defined."""
        if not self._are_probabilities or not self._are_all or not self._losses:
            return None
        errors: NDArray[np.float64] = np.abs(self._excess).sum(axis=1) / len(self._losses)
        return errors

    def details(self) -> dict[str, Any]:
        """Returns, for each non-empty bin, its samples, mean confidence and share of correct predictions."""
        bins = [
            {"samples": int(count), "confidence": float(confidence / count), "accuracy": float(right / count)}
            for count, confidence, right in zip(self._counts, self._confidence, self._right, strict=True)
            if count
        ]
        return {"calibration": bins} if self._are_probabilities and bins else {}

    def _plausible(self, probabilities: NDArray[np.float64]) -> bool:
        sums = probabilities.sum(axis=1)
        every = probabilities.shape[1] == self._classes
        in_range = self._trusted or (
            (sums <= 1 + _ROUNDING).all() and (not every or (sums >= 1 - _ROUNDING).all())
        )
        return bool((probabilities >= 0).all() and in_range)


def _bins_of(probabilities: NDArray[np.float64]) -> NDArray[np.int64]:
    """Returns the bin of each probability, int64; a bin includes its upper end."""
    bins: NDArray[np.int64] = np.searchsorted(_EDGES, probabilities)
    return bins


_MOST_DETAILED_CLASSES = 100


class _Confusion:
    """The true and the predicted class of each input.

    F1, precision and recall are means over the classes that occur among either, as in scikit-learn with
    ``average="macro"``, or those of one ``positive`` class, undefined if it does not occur. The precision of
    a class that is never predicted is 0, and so is the recall of a class that is never true.
    """

    def __init__(self, labels: Sequence[str], positive: int | None = None) -> None:
        self._labels, self._positive = labels, positive
        self._true, self._predicted = array("q"), array("q")

    def add(self, true: NDArray[np.int64], predicted: NDArray[np.int64]) -> None:
        """Adds inputs, int64 each."""
        self._true.extend(true.tolist())
        self._predicted.extend(predicted.tolist())

    def result(self, probabilities: _Probabilities) -> tuple[list[Score], dict[str, Any]]:
        """Returns F1, precision and recall with intervals, and the details with the figures of each class.

        The details of up to 100 classes contain the confusion matrix; those of probabilities, their bins.
        """
        true, predicted = np.array(self._true, np.int64), np.array(self._predicted, np.int64)
        present = np.union1d(true, predicted)
        size = max(len(self._labels), int(present[-1]) + 1)
        names = dict(enumerate(self._labels))
        details = probabilities.details()
        if size <= _MOST_DETAILED_CLASSES and present[0] >= 0:
            rows = np.bincount(true * size + predicted, minlength=size**2).reshape(size, size).tolist()
            shown = [names.get(index, str(index)) for index in range(size)]
            details["confusion_matrix"] = {"labels": shown, "rows": rows}
        true, predicted = np.searchsorted(present, true), np.searchsorted(present, predicted)
        sides = (true[true == predicted], true, predicted)
        counts = ClassCounts(*(np.bincount(side, minlength=len(present)) for side in sides))
        labels = [names.get(index, str(index)) for index in present.tolist()]
        details["per_class"] = {"labels": labels, **counts.details()}
        if (errors := probabilities.class_errors()) is not None:
            details["per_class"]["ECE"] = errors[present].tolist()
        return self._scores(counts, present, true * len(present) + predicted), details

    def _scores(
        self, counts: ClassCounts, present: NDArray[np.int64], pairs: NDArray[np.int64]
    ) -> list[Score]:
        """Returns the scores; inputs with equal pairs of a right and a predicted class are drawn together."""
        kept = np.flatnonzero((self._positive is None) | (present == self._positive))
        if not len(kept):
            return [Score(name, None) for name in counts.figures()]
        pairs, times = np.unique(pairs, return_counts=True)
        each = None
        if len(pairs) * len(kept) <= MOST_DRAWN_COUNTS:
            sides = (pairs // len(present), pairs % len(present))
            each = ClassCounts.of_each(*(side[:, np.newaxis] == kept for side in sides))
        chosen = ClassCounts(counts.hits[kept], counts.true[kept], counts.predicted[kept])
        return [chosen.macro_score(name, each, times) for name in counts.figures()]


class TextClassificationMetric(TaskMetric):
    """Accuracy, F1, precision and recall of the best class of each text, and the quality of probabilities.

    If the model has two labels and the manifest names the ``positive_label``, F1, precision and recall are
    those of only the positive class.

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
        self._confusion = _Confusion(labels, self._positive)
        self._probabilities = _Probabilities(manifest)
        self._samples = self._right = 0

    def check(self, sample: Sample) -> None:
        """Checks that the model has the class of a sample; raises DatasetError if it does not."""
        self._class_of(sample)

    def add(self, sample: Sample, prediction: Predictions) -> None:
        if not isinstance(prediction, Classifications) or len(prediction) != 1:
            raise PredictionError("its prediction is not a classification of one text")
        index = self._class_of(sample)
        if index is None:
            return
        if not prediction.indices.shape[1]:
            raise PredictionError("its prediction has no class")
        true = np.array([index], np.int64)
        self._confusion.add(true, prediction.indices[:, 0])
        self._probabilities.add(prediction.indices, prediction.probabilities, true)
        self._samples += 1
        self._right += int(prediction.indices[0, 0] == index)

    def result(self) -> TaskResult | None:
        """Returns the scores; None if no text with a label was predicted."""
        if not self._samples:
            return None
        scores, details = self._confusion.result(self._probabilities)
        accuracy = counted_score("accuracy", self._right, self._samples)
        scores = [accuracy, *scores, *self._probabilities.scores()]
        return TaskResult(self.task, self._definition(), self._samples, scores, details)

    def _definition(self) -> str:
        if self._positive is None:
            return f"accuracy; {_MACRO}"
        return (
            f"accuracy; F1, precision and recall of the class {self._labels[self._positive]}; {_CALIBRATION}"
        )

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
        if not isinstance(prediction, Texts) or len(prediction) != 1:
            raise PredictionError("its prediction is not one answer")
        answers = _answers(sample)
        if answers is None:
            return
        self._scores.append(best_match(prediction.text(0), answers))

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


def best_match(predicted: str, answers: Sequence[str]) -> tuple[float, float, bool]:
    """Returns exact match and F1 of the words, each the best over the answers; and whether any is accepted.

    As in the script, an accepted answer that is nothing but articles and punctuation is none. Without
    accepted answers, both are 1 if the prediction has no words, and otherwise 0.
    """
    own, *others = (normalized(text).split() for text in (predicted, *answers))
    accepted = [words for words in others if words]
    same = [2 * (Counter(own) & Counter(words)).total() / (len(own) + len(words)) for words in accepted]
    return float(own in (accepted or [[]])), max(same, default=float(not own)), bool(accepted)


def _answers(sample: Sample) -> Sequence[str] | None:
    missing = f"input {sample.id}: has no accepted answers, which question answering is scored by"
    truth = truth_of(sample, AcceptedAnswers, missing)
    return None if truth is None else truth.texts
