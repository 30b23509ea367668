"""The documents of a task's result: its scores, and its details as text in pieces."""

from __future__ import annotations

import json
from collections.abc import Sequence

from inferometer.evaluators.store.measurement_documents import Document, Stored
from inferometer.evaluators.store.values import checked, restored, storable, storable_text
from inferometer.evaluators.tasks.scores import Score, ScoreInterval, TaskResult

_PIECE_CHARACTERS = 1_000_000


def task_result_documents(result: TaskResult | None) -> list[Document]:
    """Returns the documents of ``task_result``: the first has the scores; all have a piece of the details."""
    if result is None:
        return []
    text = json.dumps(result.details)
    starts = range(0, len(text), _PIECE_CHARACTERS)
    pieces: list[Document] = [{"details": text[start : start + _PIECE_CHARACTERS]} for start in starts]
    pieces[0] |= {
        "task": storable_text(result.task),
        "definition": storable_text(result.definition),
        "samples": result.samples,
        "scores": [_score_document(score) for score in result.scores],
    }
    return pieces


def task_result_from_documents(documents: Sequence[Stored]) -> TaskResult | None:
    """Returns the result of ``task_result``, which has no document where there is none.

    Raises:
        KeyError, TypeError, ValueError: The documents are damaged.
    """
    if not documents:
        return None
    head = documents[0]
    details = json.loads("".join(each["details"] for each in documents))
    if not isinstance(details, dict):
        raise TypeError("the details of its task are no object")
    scores = tuple(map(_score, head["scores"]))
    return checked(TaskResult(head["task"], head["definition"], int(head["samples"]), scores, details))


def _score_document(score: Score) -> Document:
    interval = None if score.interval is None else [storable(float(end)) for end in score.interval]
    return {
        "name": storable_text(score.name),
        "value": None if score.value is None else storable(float(score.value)),
        "interval": interval,
        "unit": storable_text(score.unit),
    }


def _score(document: Stored) -> Score:
    value, interval = restored(document["value"]), document["interval"]
    ends = None if interval is None else ScoreInterval(*(float(restored(end)) for end in interval))
    return checked(Score(document["name"], None if value is None else float(value), ends, document["unit"]))
