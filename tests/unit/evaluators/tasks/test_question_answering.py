"""Exact match and F1 of answers, as SQuAD's script defines them."""

from __future__ import annotations

import collections
import re
import string
from fractions import Fraction

import numpy as np
import pytest

from inferometer.agent.preprocessing.inputs import Text
from inferometer.agent.tasks.predictions import Texts, Values
from inferometer.evaluators.datasets.base import AcceptedAnswers, Sample, TargetValues
from inferometer.evaluators.tasks.classification import QuestionAnsweringMetric
from inferometer.manifests.errors import DatasetError, PredictionError
from inferometer.manifests.schema import ModelManifest

# prediction, accepted answers, exact match, F1; worked out by hand from the definitions
CASES: list[tuple[str, tuple[str, ...], int, str]] = [
    # equal after normalisation
    ("Paris", ("Paris",), 1, "1"),
    ("paris", ("PARIS",), 1, "1"),
    ("the Eiffel Tower", ("Eiffel Tower",), 1, "1"),
    ("an apple", ("the apple",), 1, "1"),
    ("A theory", ("theory",), 1, "1"),
    ("Saint-Denis", ("SaintDenis",), 1, "1"),
    ("U.S.A.", ("USA",), 1, "1"),
    ("  New   York\n", ("New York",), 1, "1"),
    ("$5,000", ("5000",), 1, "1"),
    ("don't", ("dont",), 1, "1"),
    ("(1984)", ("1984",), 1, "1"),
    ("New\tYork", ("New York.",), 1, "1"),
    # the order of words matters to exact match alone
    ("York New", ("New York",), 0, "1"),
    ("one two three", ("three two one",), 0, "1"),
    # part of the words: 2·same / (words + words)
    ("New York City", ("New York",), 0, "4/5"),
    ("New York", ("New York City",), 0, "4/5"),
    ("in the city of Paris", ("Paris",), 0, "2/5"),
    ("Paris", ("in the city of Paris",), 0, "2/5"),
    ("Denver Broncos won", ("Denver Broncos",), 0, "4/5"),
    ("golden anniversary", ("gold anniversary",), 0, "1/2"),
    ("10 points", ("10",), 0, "2/3"),
    ("24 to 10", ("24–10",), 0, "0"),
    ("a cat and a dog", ("cat dog",), 0, "4/5"),
    ("red green blue", ("blue yellow",), 0, "2/5"),
    ("one two three four", ("three four five six",), 0, "1/2"),
    # words count as often as they occur
    ("no no no", ("no",), 0, "1/2"),
    ("no", ("no no no",), 0, "1/2"),
    ("very very good", ("very good good",), 0, "2/3"),
    ("a a a dog", ("dog dog",), 0, "2/3"),
    # nothing in common
    ("London", ("Paris",), 0, "0"),
    ("Londons", ("London",), 0, "0"),
    ("saint denis", ("Saint-Denis",), 0, "0"),
    ("café", ("cafe",), 0, "0"),
    ("another", ("other",), 0, "0"),
    ("theater", ("ater",), 0, "0"),
    # the best of several answers, for each figure by itself
    ("Santa Clara", ("Levi's Stadium", "Santa Clara", "in Santa Clara, California"), 1, "1"),
    ("Santa Clara, California", ("Levi's Stadium", "Santa Clara", "in California"), 0, "4/5"),
    ("Clara Santa", ("Santa Clara", "Paris"), 0, "1"),
    ("gold", ("golden", "gold color", "the color gold"), 0, "2/3"),
    ("x y", ("x", "y z"), 0, "2/3"),
    # no answer is right
    ("", (), 1, "1"),
    ("the", (), 1, "1"),
    ("...", (), 1, "1"),
    ("Paris", (), 0, "0"),
    ("a Paris", (), 0, "0"),
    # there is an answer, and none is given
    ("", ("Paris",), 0, "0"),
    ("an", ("Paris",), 0, "0"),
    # answers that are nothing but articles and punctuation do not count beside others, and are none alone
    ("", ("the", "Paris"), 0, "0"),
    ("", ("the",), 1, "1"),
    ("Paris", ("?!", "Paris"), 1, "1"),
]


def peer(predicted: str, answers: tuple[str, ...]) -> tuple[float, float]:
    """Another implementation of the definitions: character by character, with fractions."""

    def words(text: str) -> list[str]:
        kept = "".join(character for character in text.lower() if character not in set(string.punctuation))
        return [word for word in re.split(r"\s+", kept) if word not in {"", "a", "an", "the"}]

    accepted = [each for each in map(words, answers) if each] or [[]]
    found = words(predicted)
    best = Fraction(0)
    for answer in accepted:
        left, same = collections.Counter(answer), 0
        for word in found:
            if left[word]:
                left[word] -= 1
                same += 1
        if not answer or not found:
            best = max(best, Fraction(int(answer == found)))
        elif same:
            precision, recall = Fraction(same, len(found)), Fraction(same, len(answer))
            best = max(best, 2 * precision * recall / (precision + recall))
    return float(found in accepted), float(best)


@pytest.fixture
def metric(text_model: ModelManifest) -> QuestionAnsweringMetric:
    return QuestionAnsweringMetric(text_model)


def question(id_: str, answers: tuple[str, ...] | None) -> Sample:
    truth = None if answers is None else AcceptedAnswers(answers)
    return Sample(id_, Text("which?", "this one"), truth=truth)


@pytest.mark.parametrize(("predicted", "answers", "exact", "f1"), CASES)
def test_one_answer_is_scored_as_by_hand_and_by_another_implementation(
    metric: QuestionAnsweringMetric, predicted: str, answers: tuple[str, ...], exact: int, f1: str
) -> None:
    metric.add(question("q", answers), Texts.of([predicted]))
    result = metric.result()
    assert result is not None
    found = result.score("exact match"), result.score("F1")
    assert found == (exact, pytest.approx(float(Fraction(f1)), abs=1e-12))
    assert found == pytest.approx(peer(predicted, answers), abs=1e-12)


def test_there_are_fifty_cases() -> None:
    assert len(CASES) == len({(predicted, answers) for predicted, answers, _, _ in CASES}) == 50


def test_the_scores_are_means_over_the_questions_with_intervals_and_parts(
    metric: QuestionAnsweringMetric,
) -> None:
    for number, (predicted, answers, _, _) in enumerate(CASES):
        metric.add(question(str(number), answers), Texts.of([predicted]))
    result = metric.result()
    assert result is not None
    assert result.samples == 50
    assert result.score("exact match") == pytest.approx(sum(case[2] for case in CASES) / 50)
    assert result.score("F1") == pytest.approx(float(sum(Fraction(case[3]) for case in CASES)) / 50)
    exact, overlap = result.scores
    assert exact.interval is not None
    assert exact.value is not None
    assert exact.interval.low < exact.value < exact.interval.high
    assert overlap.interval is None  # of 50 questions
    # the answer "the" alone is none
    assert result.details["without_answer"]["samples"] == 6
    assert result.details["without_answer"]["exact_match"] == pytest.approx(4 / 6)
    assert result.details["with_answer"]["samples"] == 44


def test_a_question_without_a_truth_is_not_counted(metric: QuestionAnsweringMetric) -> None:
    metric.add(question("q", None), Texts.of(["Paris"]))
    assert metric.result() is None


def test_another_truth_or_prediction_is_named(metric: QuestionAnsweringMetric) -> None:
    vector = Sample("q7", Text("x"), truth=TargetValues(np.ones(2)))
    with pytest.raises(DatasetError, match="input q7: has no accepted answers"):
        metric.check(vector)
    with pytest.raises(PredictionError, match="its prediction is not one answer"):
        metric.add(question("q8", ("x",)), Values(np.ones((1, 2), np.float32)))
