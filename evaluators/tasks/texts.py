"""Scores of a language model over the lines of a file of prompts: right answers, choices, and perplexity."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Annotated, Any

import numpy as np
from numpy.typing import NDArray
from pydantic import AliasChoices, BaseModel, BeforeValidator, Field, model_validator
from typing_extensions import Self

from inferometer.evaluators.tasks.classification import best_match
from inferometer.evaluators.tasks.metric import Score, ScoreInterval, mean_score, share_score
from inferometer.manifests.errors import InferometerError, InputError, one_line

_MOST_LOSS = 700.0
_Texts = Annotated[list[Annotated[str, Field(pattern=r"\S")]], Field(min_length=1)]
Row = Mapping[str, Any]
"""A scored line: its number with ``answer``, ``exact_match`` and ``f1``; ``log_likelihood`` (nats) and
``tokens`` of a text; ``log_likelihoods`` of choices and whether the best is right; or the ``error``."""


class Truth(BaseModel, strict=True):
    """What a line knows beside its prompt; ``correct`` is the index of the right one of its ``choices``."""

    line: int
    answers: Annotated[
        _Texts | None, BeforeValidator(lambda given: [given] if isinstance(given, str) else given)
    ] = Field(None, validation_alias=AliasChoices("answer", "answers"))
    choices: _Texts | None = None
    correct: int = Field(-1, ge=0)
    text: str | None = Field(None, min_length=1)

    @model_validator(mode="after")
    def _together(self) -> Self:
        if (self.correct < 0) is not (self.choices is None) or self.correct >= len(self.choices or " "):
            raise ValueError("correct is the index of the right one of choices, which are counted from 0")
        if self.text is not None and (self.answers or self.choices):
            raise ValueError("text has a perplexity only; give a prompt instead")
        return self


def scored(
    truths: Sequence[Truth],
    answers: Mapping[int, str],
    told: Callable[[int, str], Sequence[float]],
    stopped: Callable[[], bool],
) -> list[Row]:
    """Returns a row for each line with an answer to judge, with choices, or with a text.

    Args:
        truths: The lines.
        answers: The right answers of the run, by the index of their line.
        told: Returns the log-probability of each token but the first of the prompt at an index, with a text
            that follows it.
        stopped: Whether to leave out the likelihoods that remain.
    """
    rows = list[Row]()
    for index, truth in enumerate(truths):
        row: dict[str, Any] = {"line": truth.line}
        if truth.answers and index in answers:
            exact, f1, _ = best_match(answers[index], truth.answers)
            row |= {"answer": answers[index], "exact_match": exact, "f1": f1}
        if (truth.text or truth.choices) and not stopped():
            try:
                own = told(index, "")
                sums = [math.fsum(told(index, each)) - math.fsum(own) for each in truth.choices or ()]
                if not np.isfinite([*own, *sums]).all():
                    raise InputError("a log-likelihood is not finite")
                row |= _likely(truth, own, sums)
            except InferometerError as error:
                row["error"] = one_line(error)
        rows += [row] if len(row) > 1 else []
    return rows


def _likely(truth: Truth, own: Sequence[float], sums: Sequence[float]) -> Row:
    if not truth.choices:
        return {"log_likelihood": math.fsum(own), "tokens": len(own)}
    by_byte = [each / len(choice.encode()) for each, choice in zip(sums, truth.choices, strict=True)]
    best = {"choice": int(np.argmax(sums)), "choice_by_byte": int(np.argmax(by_byte))}
    return {"log_likelihoods": sums} | {name: float(n == truth.correct) for name, n in best.items()}


def scores_of(rows: Sequence[Row]) -> list[tuple[Score, int]]:
    """Returns the scores that the rows have, each with its number of lines, which are the samples.

    Perplexity is exp(-Σ log-likelihood / Σ tokens) over the texts (Jelinek et al., "Perplexity - a measure of
    the difficulty of speech recognition tasks", 1977).
    """

    def column(name: str) -> NDArray[np.float64]:
        return np.array([row[name] for row in rows if name in row], np.float64)

    losses, f1 = -column("log_likelihood"), column("f1")
    loss = mean_score("perplexity", losses, wholes=column("tokens"), least=0.0, most=_MOST_LOSS)
    ends = ScoreInterval(*map(math.exp, loss.interval)) if loss.interval else None
    perplexity = None if loss.value is None else math.exp(loss.value)
    shares = {name: column(name.replace(" ", "_")) for name in ("exact match", "choice", "choice by byte")}
    found = [(share_score(name, each == 1), len(each)) for name, each in shares.items()]
    found[1:1] = [(mean_score("F1", f1, least=0.0, most=1.0), len(f1))]
    found += [(Score(loss.name, perplexity, ends), len(losses))]
    return [each for each in found if each[0].value is not None]


def score_rows(rows: Sequence[Row]) -> Iterator[tuple[str, str]]:
    """Yields the name and the text of each score, and how many lines have no likelihood."""
    for score, lines in scores_of(rows):
        value, *ends = map(score.text, (score.value or 0.0, *(score.interval or ())))
        over = f"over {lines} line{'s' * (lines > 1)}"
        yield score.name, f"{value} [{', '.join(ends)}] {over}" if ends else f"{value} {over}"
    if failed := [row for row in rows if "error" in row]:
        first = f"line {failed[0]['line']}: {failed[0]['error']}"
        yield "likelihood", f"not known for {len(failed)} of {len(rows)} lines; {first}"
