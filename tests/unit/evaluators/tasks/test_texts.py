"""The scores of texts, with numbers by hand, and the damaged lines of a file."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from inferometer.evaluators.kinds.generation.prompts import read_prompts
from inferometer.evaluators.load.streams import Answer, ChunkKind
from inferometer.evaluators.score_intervals import ratio_interval
from inferometer.evaluators.tasks.texts import Truth, score_rows, scored, scores_of
from inferometer.manifests.errors import ConfigurationError, InputError

LOGS = {
    "": [-1.0, -2.0],
    "yes": [-1.0, -2.0, -0.9],
    " certainly": [-1.0, -2.0, -0.5, -0.5],
    "no": [-1.0, -5.0],
}


def told(_: int, more: str) -> Sequence[float]:
    return LOGS[more]


def values_of(rows: Any) -> dict[str, float | None]:
    return {score.name: score.value for score, _ in scores_of(rows)}


def test_answers_are_scored_as_squads_script_does() -> None:
    truths = [
        Truth(line=1, answer="The Eiffel Tower!"),
        Truth(line=2, answers=["red apple", "green"]),
        Truth(line=3, answer="never answered"),
        Truth(line=4),
    ]
    rows = scored(truths, {0: "eiffel  tower", 1: "a green apple", 3: "x"}, told, lambda: False)

    assert [row["line"] for row in rows] == [1, 2]
    assert values_of(rows) == {"exact match": 0.5, "F1": pytest.approx((1 + 2 / 3) / 2)}
    assert dict(score_rows(rows)) == {
        "exact match": "0.5000 [0.0945, 0.9055] over 2 lines",
        "F1": "0.8333 over 2 lines",
    }


def test_a_choice_is_the_likeliest_given_the_prompt_in_all_or_for_each_byte() -> None:
    rows = scored(
        [Truth(line=7, choices=["yes", " certainly", "no"], correct=right) for right in range(3)],
        {},
        told,
        lambda: False,
    )

    assert [row["log_likelihoods"] for row in rows] == [pytest.approx([-0.9, -1.0, -3.0])] * 3
    assert [(row["choice"], row["choice_by_byte"]) for row in rows] == [(1, 0), (0, 1), (0, 0)]
    assert values_of(rows) == {"choice": pytest.approx(1 / 3), "choice by byte": pytest.approx(1 / 3)}


def test_perplexity_is_of_all_tokens_with_an_interval_over_the_texts() -> None:
    random = np.random.default_rng(1)
    tokens = random.integers(1, 30, 300)
    losses = [random.gamma(2.0, 1.0, count) for count in tokens]
    rows = scored([Truth(line=n, text="t") for n in range(300)], {}, lambda n, _: -losses[n], lambda: False)

    [(perplexity, lines)] = scores_of(rows)
    assert perplexity.value == pytest.approx(math.exp(np.concatenate(losses).mean()))
    wanted = ratio_interval(np.array([[each.sum()] for each in losses]), tokens[:, None].astype(float))
    assert wanted is not None
    assert perplexity.interval == pytest.approx([math.exp(each) for each in wanted])
    assert lines == 300


def test_few_or_empty_texts() -> None:
    one = scored([Truth(line=1, text="t")], {}, told, lambda: False)
    none = scored([Truth(line=1, text="t")], {}, lambda *_: [], lambda: False)

    assert values_of(one) == {"perplexity": pytest.approx(math.exp(1.5))}
    assert values_of(none) == {}  # a single token
    assert scored([Truth(line=1, text="t")], {}, told, lambda: True) == []


@pytest.mark.parametrize("logs", [[-math.inf, -1.0], [math.nan], InputError("too long")])
def test_a_line_without_a_likelihood_is_counted_and_told(logs: Any) -> None:
    def of(n: int, _: str) -> Sequence[float]:
        if n == 0:
            return [-1.0]
        if isinstance(logs, Exception):
            raise logs
        return logs

    rows = scored([Truth(line=4, text="a"), Truth(line=9, text="b")], {}, of, lambda: False)

    reason = str(logs) if isinstance(logs, Exception) else "a log-likelihood is not finite"
    assert dict(score_rows(rows)) == {
        "perplexity": "2.7183 over 1 line",
        "likelihood": f"not known for 1 of 2 lines; line 9: {reason}",
    }


def test_an_answer_shows_neither_its_reasoning_nor_its_calls() -> None:
    kinds = (ChunkKind.REASONING, ChunkKind.TEXT, ChunkKind.TOOL_CALL, ChunkKind.TEXT)
    chunks = [(0, kind, len(text)) for kind, text in zip(kinds, ("hm…", " é", "f()", "s"), strict=True)]

    assert Answer(chunks=chunks, text="hm… éf()s").visible == " és"


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ({"prompt": "a", "answer": 3}, "answer"),
        ({"prompt": "a", "answers": []}, "answers: List should have at least 1 item"),
        ({"prompt": "a", "answers": ["b", 3]}, "answers: 1: Input should be a valid string"),
        ({"prompt": "a", "answer": "\ud800"}, "answer: 0: Input should be a valid string"),
        ({"prompt": "a", "choices": ["b", " "], "correct": 0}, "choices: 1: String should match"),
        ({"prompt": "a", "choices": ["b", "c"], "correct": 2}, "correct is the index of the right one"),
        ({"prompt": "a", "choices": ["b", "c"], "correct": -1}, "correct: Input should be greater than"),
        ({"prompt": "a", "choices": ["b", "c"], "correct": "0"}, "correct: Input should be a valid integer"),
        ({"prompt": "a", "choices": ["b", "c"]}, "correct is the index of the right one of choices"),
        ({"prompt": "a", "correct": 0}, "correct is the index of the right one of choices"),
        ({"text": "a", "answer": "b"}, "text has a perplexity only; give a prompt instead"),
        ({"text": ""}, "text: String should have at least 1 character"),
    ],
)
def test_a_damaged_line_is_refused(line: object, message: str, tmp_path: Path) -> None:
    file = tmp_path / "lines.jsonl"
    file.write_text('{"prompt": "a", "answer": "b"}\n\n' + json.dumps(line) + "\n")

    with pytest.raises(ConfigurationError, match=f"prompts {file}: line 3: {message}"):
        read_prompts(file)


@pytest.mark.parametrize(("answer", "value"), [("The...", 1.0), ("an eel", 0.0)])
def test_an_accepted_answer_of_articles_alone_is_met_by_no_words(answer: str, value: float) -> None:
    rows = scored([Truth(line=1, answer="the!")], {0: answer}, told, lambda: False)

    assert values_of(rows) == {"exact match": value, "F1": value}
