"""The metric of question answering: exact match and F1 as SQuAD's script computes them."""

from __future__ import annotations

import re
import string
from collections import Counter
from collections.abc import Sequence
from typing import ClassVar

import numpy as np

from inferometer.agent.tasks.predictions import Predictions, Texts
from inferometer.evaluators.datasets.base import Sample
from inferometer.evaluators.datasets.truths import AcceptedAnswers
from inferometer.evaluators.tasks.bootstrap import mean_score, share_score
from inferometer.evaluators.tasks.metric import TaskMetric, TaskResult
from inferometer.manifests.errors import DatasetError, PredictionError
from inferometer.manifests.schema import ModelManifest

_ARTICLES = re.compile(r"\b(a|an|the)\b")
_WITHOUT_PUNCTUATION = str.maketrans("", "", string.punctuation)


class QuestionAnsweringMetric(TaskMetric):
    """Exact match and F1 over questions, each the best over the accepted answers.

    Source: ``evaluate-v2.0.py`` of SQuAD 2.0 (Rajpurkar et al., "Know What You Don't Know", 2018), which for
    questions with answers is that of SQuAD 1.1. Scores are shares, 0…1, where the script prints percent.
    """

    task: ClassVar[str] = "question_answering"

    def __init__(self, manifest: ModelManifest) -> None:
        super().__init__(manifest)
        self._scores: list[tuple[float, float, bool]] = []

    def check(self, sample: Sample) -> None:
        """Checks that a truth in memory is one of answers; see ``TaskMetric``."""
        if sample.truth is not None and not callable(sample.truth):
            _answers(sample)

    def add(self, sample: Sample, prediction: Predictions) -> None:
        """Takes the answer to one question; see ``TaskMetric``."""
        if not isinstance(prediction, Texts) or len(prediction) != 1:
            raise PredictionError("its prediction is not one answer")
        answers = _answers(sample)
        if answers is None:
            return
        # as in the script, an accepted answer that is nothing but articles and punctuation is none
        accepted = [answer for answer in answers if normalized(answer)]
        predicted = prediction.text(0)
        gold = accepted or [""]
        self._scores.append((exact_match(predicted, gold), token_f1(predicted, gold), bool(accepted)))

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


def token_f1(predicted: str, answers: Sequence[str]) -> float:
    """Returns the best F1 of the prediction's words over the answers.

    Where one of both has no words, as where there is no answer, it is 1 if both have none, and else 0.
    """
    return max(_f1(normalized(predicted).split(), normalized(answer).split()) for answer in answers)


def _f1(predicted: Sequence[str], answer: Sequence[str]) -> float:
    if not predicted or not answer:
        return float(predicted == answer)
    same = (Counter(predicted) & Counter(answer)).total()
    return 2 * same / (len(predicted) + len(answer))


def _answers(sample: Sample) -> Sequence[str] | None:
    truth = sample.read_truth()
    if truth is None:
        return None
    if not isinstance(truth, AcceptedAnswers):
        raise DatasetError(
            f"input {sample.id}: has no accepted answers, which question answering is scored by"
        )
    return truth.texts
