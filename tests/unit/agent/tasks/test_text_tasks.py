"""Answers out of the scores of tokens, and embeddings out of outputs."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from inferometer.agent.preprocessing.inputs import TokenizedText
from inferometer.agent.tasks.predictions import PredictedInputs
from inferometer.agent.tasks.registry import POSTPROCESSORS
from inferometer.agent.tasks.vectors import best_span
from inferometer.manifests.errors import PredictionError
from inferometer.manifests.schema import ModelOutput, OutputParameters

CONTEXT = "In 1984 Ada met the other Ada."
# [CLS] question [SEP] and the words of the context, and [SEP]
OFFSETS = np.array(
    [(-1, -1)] * 3 + [(0, 2), (3, 7), (8, 11), (12, 15), (16, 19), (20, 25), (26, 29)] + [(-1, -1)]
)
TEXT = TokenizedText(CONTEXT, OFFSETS)


def postprocess(
    task: str,
    tensors: dict[str, NDArray[Any]],
    texts: tuple[TokenizedText | None, ...] = (),
    **parameters: Any,
) -> Any:
    output = ModelOutput(type="raw", parameters=OutputParameters(**parameters))
    size = len(texts) or len(next(iter(tensors.values())))
    return POSTPROCESSORS.find(task)(output, 5)(tensors, PredictedInputs(size, texts=texts))


def scores(**at: float) -> NDArray[np.float32]:
    row = np.full((1, 14), -5.0, np.float32)  # three more than the tokens, as in a padded batch
    for token, value in at.items():
        row[0, int(token.removeprefix("t"))] = value
    return row


def answer(start: NDArray[Any], end: NDArray[Any], **parameters: Any) -> str:
    predictions, usable = postprocess("question_answering", {"s": start, "e": end}, (TEXT,), **parameters)
    assert usable.all()
    return str(predictions.text(0))


def test_the_answer_is_the_span_with_the_highest_scores() -> None:
    assert answer(scores(t4=3), scores(t4=2)) == "1984"
    assert answer(scores(t5=3), scores(t8=2)) == "Ada met the other"
    assert answer(scores(t5=3), scores(t8=2, t4=9)) == "Ada met the other"  # an end before the start


def test_a_span_lies_in_the_context_and_not_in_the_padding() -> None:
    assert answer(scores(t1=9, t9=3), scores(t2=9, t9=3)) == "Ada"
    assert answer(scores(t12=9, t9=3), scores(t13=9, t9=3)) == "Ada"


def test_a_span_has_at_most_so_many_tokens() -> None:
    start, end = scores(t3=3), scores(t9=3, t6=2.5)
    assert answer(start, end) == "In 1984 Ada met the other Ada"
    assert answer(start, end, max_answer_length=7) == "In 1984 Ada met the other Ada"
    assert answer(start, end, max_answer_length=6) == "In 1984 Ada met"


def test_of_equal_spans_the_first_and_then_the_shortest_is_taken() -> None:
    assert answer(scores(t4=1, t6=1), scores(t5=1, t7=1)) == "1984 Ada"


def test_the_best_span_is_that_of_all_spans() -> None:
    random = np.random.default_rng(1)
    for _ in range(50):
        start, end = random.integers(0, 6, (2, 9)).astype(float)
        longest = int(random.integers(1, 11))
        spans = [(i, j) for i, j in itertools.product(range(9), repeat=2) if i <= j < i + longest]
        wanted = max(spans, key=lambda span: (start[span[0]] + end[span[1]], -span[0], -span[1]))
        assert best_span(start, end, longest) == (*wanted, start[wanted[0]] + end[wanted[1]])


def test_no_answer_wins_by_more_than_the_threshold() -> None:
    start, end = scores(t0=3, t4=2), scores(t0=3, t4=2)  # 6 and 4
    assert answer(start, end) == "1984"
    assert answer(start, end, no_answer_threshold=2.0) == "1984"
    assert answer(start, end, no_answer_threshold=1.9) == ""


def test_of_several_windows_the_best_span_and_the_lowest_score_of_no_answer_count() -> None:
    windows = TokenizedText(CONTEXT, OFFSETS, (OFFSETS[:8], OFFSETS))
    rows = [scores(t0=2, t5=1), scores(t0=1, t4=1.5, t9=9), scores(t0=3, t9=1)]  # t9 is padding in the second
    both, last = np.concatenate([*rows, scores(t6=1)]), TokenizedText(CONTEXT, OFFSETS)
    for threshold, wanted in ((-1.0, "1984"), (-1.1, ""), (None, "1984")):
        found, usable = postprocess(
            "question_answering", {"s": both, "e": both}, (windows, last), no_answer_threshold=threshold
        )
        assert (usable.tolist(), found.text(0)) == ([True, True], wanted)
        assert found.text(1) == "met"
    both[2, 9] = np.nan
    found, usable = postprocess("question_answering", {"s": both, "e": both}, (windows, last))
    assert (usable.tolist(), found.text(0)) == ([False, True], "met")
    with pytest.raises(PredictionError, match=r"shape \[3, 14\]; scores of tokens are 4 inputs × tokens"):
        postprocess("question_answering", {"s": both[:3], "e": both[:3]}, (windows, last))


def test_a_score_that_is_no_number_fails_one_input_and_padding_none() -> None:
    good, bad = scores(t4=3), scores(t4=np.nan)
    padded = scores(t4=3, t13=np.inf)
    both = {"s": np.concatenate([bad, good, padded]), "e": np.concatenate([good, good, good])}
    predictions, usable = postprocess("question_answering", both, (TEXT, TEXT, TEXT))
    assert usable.tolist() == [False, True, True]
    assert [predictions.text(0), predictions.text(1)] == ["1984", "1984"]


def test_layers_are_found_by_name() -> None:
    tensors = {"other": scores(), "end": scores(t4=3)[..., np.newaxis], "start": scores(t4=3)}
    predictions, _ = postprocess("question_answering", tensors, (TEXT,), start_layer="start", end_layer="end")
    assert predictions.text(0) == "1984"
    with pytest.raises(PredictionError, match='no output "begin"; it has: other, end, start'):
        postprocess("question_answering", tensors, (TEXT,), start_layer="begin")
    unnamed = {"output0": scores(t4=3), "output1": scores(t4=3)}
    with pytest.raises(PredictionError, match="output0 would be the scores of starts and of ends"):
        postprocess("question_answering", unnamed, (TEXT,), start_layer="start", end_layer="end")


@pytest.mark.parametrize(
    ("start", "texts", "message"),
    [
        (scores(), (), "cut out of texts, but the inputs are tensors"),
        (scores()[:, :10], (TEXT,), r"starts have shape \[1, 10\], those of ends \[1, 14\]"),
        (np.zeros((1, 14, 2), np.float32), (TEXT,), "scores of tokens are 1 inputs × tokens"),
    ],
)
def test_scores_that_do_not_fit_are_refused(
    start: NDArray[Any], texts: tuple[TokenizedText, ...], message: str
) -> None:
    with pytest.raises(PredictionError, match=message):
        postprocess("question_answering", {"s": start, "e": scores()}, texts)


def test_scores_of_fewer_tokens_than_the_text_has_are_refused() -> None:
    short = scores()[:, :10]
    with pytest.raises(PredictionError, match="scores for 10 tokens, but the text has 11"):
        postprocess("question_answering", {"s": short, "e": short}, (TEXT,))


def test_an_embedding_is_one_output_of_finite_numbers() -> None:
    vectors = np.array([[1, 2], [np.nan, 1], [3, 4]], np.float64)
    tensors = {"hidden": np.zeros((3, 5, 2)), "pooled": vectors[..., np.newaxis]}
    found, usable = postprocess("embedding", tensors, embedding_layer="pooled")
    assert usable.tolist() == [True, False, True]
    assert found.values.tolist() == [[1, 2], [3, 4]]
    with pytest.raises(PredictionError, match=r"shape \[3, 5, 2\]; embeddings are 3 inputs × values"):
        postprocess("embedding", tensors)
