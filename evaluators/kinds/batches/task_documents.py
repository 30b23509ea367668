"""The documents of a task: its predictions and its result.

Predictions of a classification are stored with their labels, and those of any other task in columns.

A short column is stored as a list. A long one, such as a map of classes, is split into pieces of at most
``PIECE_BYTES``, far below 16 MB, the size limit of a MongoDB document. Each piece is compressed and stored in
its own document, after the document of its input.
"""

from __future__ import annotations

import base64
import binascii
import json
import zlib
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from inferometer.agent.tasks.predictions import Classifications, Predictions
from inferometer.agent.tasks.registry import PREDICTIONS
from inferometer.evaluators.kinds.batches.measurement import InputPrediction
from inferometer.evaluators.store.measurement_documents import Document, Part, Stored
from inferometer.evaluators.store.values import checked, restored, storable, storable_text
from inferometer.evaluators.tasks.scores import Score, ScoreInterval, TaskResult
from inferometer.manifests.errors import ConfigurationError

PIECE_BYTES = 1_500_000
_LISTED = 1000
_KINDS_OF_NUMBERS = "biuf"
_PIECE_CHARACTERS = 1_000_000


def prediction_part(predictions: Sequence[InputPrediction], labels: Sequence[str]) -> Part:
    """Returns the documents of predictions."""
    count = sum(1 + _pieces(each.prediction) for each in predictions)
    return Part(count, _documents(predictions, labels))


def predictions_from_documents(documents: Iterable[Stored]) -> Iterator[InputPrediction]:
    """Yields the predictions that documents of ``input_prediction`` hold; the documents must be in order.

    Raises:
        KeyError, TypeError, ValueError: The documents are damaged.
    """
    head: Stored | None = None
    pieces: list[Stored] = []
    for document in documents:
        if "data" in document:
            pieces.append(document)
            continue
        if head is not None:
            yield _prediction(head, pieces)
        head, pieces = document, []
    if head is not None:
        yield _prediction(head, pieces)


def _documents(predictions: Sequence[InputPrediction], labels: Sequence[str]) -> Iterator[Document]:
    for place, each in enumerate(predictions):
        head = {
            "input_id": storable_text(each.input_id),
            "input_index": place,
            "expected_label": storable(each.expected_label),
        }
        if isinstance(each.prediction, Classifications):
            yield head | {"features": _features(each, labels)}
            continue
        columns = each.prediction.columns()
        described = {name: _column(column) for name, column in columns.items()}
        yield head | {"kind": each.prediction.kind, "columns": described}
        for name, column in columns.items():
            for piece in _cut(column):
                yield {"input_index": place, "column": name, "data": _packed(piece)}


def _features(prediction: InputPrediction, labels: Sequence[str]) -> list[Document]:
    best = zip(prediction.indices.tolist(), prediction.probabilities.tolist(), strict=True)
    return [
        {
            "index": index,
            "label": labels[index] if 0 <= index < len(labels) else None,
            "probability": storable(probability),
        }
        for index, probability in best
    ]


def _column(column: NDArray[Any]) -> Document:
    described: Document = {"dtype": column.dtype.name, "shape": list(column.shape)}
    return described if _is_large(column) else described | {"values": storable(column.ravel().tolist())}


def _is_large(column: NDArray[Any]) -> bool:
    return column.size > _LISTED


def _pieces(prediction: Predictions) -> int:
    """Returns the number of documents that follow that of the input."""
    if isinstance(prediction, Classifications):
        return 0
    columns = prediction.columns().values()
    return sum(-(-column.nbytes // PIECE_BYTES) for column in columns if _is_large(column))


def _cut(column: NDArray[Any]) -> Iterator[bytes]:
    if _is_large(column):
        content = column.astype(column.dtype.newbyteorder("<"), copy=False).tobytes()
        for start in range(0, len(content), PIECE_BYTES):
            yield content[start : start + PIECE_BYTES]


def _packed(piece: bytes) -> str:
    return base64.b64encode(zlib.compress(piece, 1)).decode("ascii")


def _prediction(head: Stored, pieces: Sequence[Stored]) -> InputPrediction:
    return checked(InputPrediction(head["input_id"], head["expected_label"], _predicted(head, pieces)))


def _predicted(head: Stored, pieces: Sequence[Stored]) -> Predictions:
    if "features" in head:
        best = head["features"]
        return Classifications(
            np.array([[feature["index"] for feature in best]], np.int64).reshape(1, -1),
            np.array([[restored(feature["probability"]) for feature in best]], np.float32).reshape(1, -1),
        )
    if any(piece["input_index"] != head["input_index"] for piece in pieces):
        raise ValueError("a piece of a column belongs to another input")
    columns = {
        name: _read_column(described, [piece["data"] for piece in pieces if piece["column"] == name])
        for name, described in head["columns"].items()
    }
    try:
        return PREDICTIONS.find(head["kind"]).of_columns(columns)
    except ConfigurationError as error:
        raise ValueError(str(error)) from error


def _read_column(described: Stored, pieces: Sequence[str]) -> NDArray[Any]:
    dtype, shape = np.dtype(described["dtype"]), tuple(map(int, described["shape"]))
    if dtype.kind not in _KINDS_OF_NUMBERS:
        raise ValueError(f"a column of {dtype}")
    if "values" in described:
        return np.array(restored(described["values"]), dtype).reshape(shape)
    try:
        content = b"".join(_unpacked(piece) for piece in pieces)
    except (binascii.Error, zlib.error) as error:
        raise ValueError(f"a column cannot be unpacked: {error}") from error
    return np.frombuffer(content, dtype.newbyteorder("<")).astype(dtype, copy=False).reshape(shape)


def _unpacked(piece: str) -> bytes:
    packed, unpacking = base64.b64decode(piece, validate=True), zlib.decompressobj()
    content = unpacking.decompress(packed, PIECE_BYTES)
    if unpacking.unconsumed_tail:
        raise ValueError(f"a piece of a column has more than {PIECE_BYTES} bytes")
    return content


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
    """Returns the result that ``task_result`` holds; None if it has no document.

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
        "is_count": score.is_count,
    }


def _score(document: Stored) -> Score:
    value, interval = restored(document["value"]), document["interval"]
    ends = None if interval is None else ScoreInterval(*(float(restored(end)) for end in interval))
    known = None if value is None else float(value)
    return checked(Score(document["name"], known, ends, document["unit"], document.get("is_count", False)))
