"""The documents of a batch measurement: times, accuracy, failures, and a task's predictions and results.

Predictions of a classification are stored with their labels, and those of any other task in columns.

A short column is stored as a list. A long one, such as a map of classes, is split into pieces of at most
``PIECE_BYTES``, far below 16 MB, the size limit of a MongoDB document. Each piece is compressed and stored
in its own document, after the document of its input.
"""

from __future__ import annotations

import base64
import binascii
import json
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import fields
from typing import Any

import numpy as np
from numpy.typing import NDArray

from inferometer.agent.inference.stages import InputFailure
from inferometer.agent.tasks.predictions import Classifications, Predictions
from inferometer.agent.tasks.registry import PREDICTIONS
from inferometer.evaluators.documents import (
    Document,
    Documents,
    Part,
    Stored,
    checked,
    column_part,
    columns_of,
    fields_of,
    record,
    restored,
    storable,
    storable_text,
)
from inferometer.evaluators.evaluation import Evaluation
from inferometer.evaluators.kinds.batches.measurement import BatchMeasurement, BatchTimes, InputPrediction
from inferometer.evaluators.kinds.batches.request import BatchOptions
from inferometer.evaluators.tasks.metric import Accuracy, Score, TaskResult
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
    """Yields the predictions stored in ``input_prediction`` documents, which must be in order.

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
                packed = base64.b64encode(zlib.compress(piece, 1)).decode("ascii")
                yield {"input_index": place, "column": name, "data": packed}


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
    """Returns the number of documents that follow the input's own document."""
    if isinstance(prediction, Classifications):
        return 0
    columns = prediction.columns().values()
    return sum(-(-column.nbytes // PIECE_BYTES) for column in columns if _is_large(column))


def _cut(column: NDArray[Any]) -> Iterator[bytes]:
    if _is_large(column):
        content = column.astype(column.dtype.newbyteorder("<"), copy=False).tobytes()
        for start in range(0, len(content), PIECE_BYTES):
            yield content[start : start + PIECE_BYTES]


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
    """Returns the ``task_result`` documents: the first has the scores; each has a piece of the details."""
    if result is None:
        return []
    text = json.dumps(result.details)
    starts = range(0, len(text), _PIECE_CHARACTERS)
    pieces: list[Document] = [{"details": text[start : start + _PIECE_CHARACTERS]} for start in starts]
    pieces[0] |= {
        "task": storable_text(result.task),
        "definition": storable_text(result.definition),
        "samples": result.samples,
        "scores": list(map(fields_of, result.scores)),
    }
    return pieces


def task_result_from_documents(documents: Sequence[Stored]) -> TaskResult | None:
    """Returns the result stored in ``task_result`` documents; None if there are none.

    Raises:
        KeyError, TypeError, ValueError: The documents are damaged.
    """
    if not documents:
        return None
    head = documents[0]
    details = json.loads("".join(each["details"] for each in documents))
    if not isinstance(details, dict):
        raise TypeError("the details of its task are not an object")
    scores = tuple(record(Score, score) for score in head["scores"])
    return checked(TaskResult(head["task"], head["definition"], int(head["samples"]), scores, details))


_FAILURE_CHARACTERS_PER_DOCUMENT = 1_000_000
_COUNTS = ("top_1_count", "top_5_count", "evaluated_count")
_TIMES = tuple(field.name for field in fields(BatchTimes))


class BatchDocuments:
    """Storage of ``BatchMeasurement`` in documents, for its kind; see ``Kind``."""

    def to_documents(self, evaluation: Evaluation[BatchMeasurement], save_id: str) -> Documents:
        """Returns the documents of the measurement."""
        measured = evaluation.measurement
        accuracy = [accuracy_document(measured.accuracy)] if measured.accuracy else []
        result = task_result_documents(measured.task_result)
        labels = evaluation.system.manifest.output.parameters.labels
        document = {
            "options": fields_of(measured.options),
            "batch_count": len(measured.times.sizes),
            "failure_count": len(measured.failures),
            "model_accuracy_id": f"{save_id}/0" if accuracy else None,
        }
        return document, {
            "performance": column_part([({}, {name: getattr(measured.times, name) for name in _TIMES})]),
            "model_accuracy": Part(len(accuracy), accuracy),
            "input_failure": failure_part(measured.failures),
            "input_prediction": prediction_part(measured.predictions, labels),
            "task_result": Part(len(result), result),
        }

    def from_documents(self, head: Stored, parts: Mapping[str, Sequence[Stored]]) -> BatchMeasurement:
        """Returns the measurement, with the predictions if the parts contain them."""
        stored = head["measurement"]
        times = columns_of(parts["performance"], _TIMES, stored["batch_count"], "batches")
        return BatchMeasurement(
            options=record(BatchOptions, stored["options"]),
            times=BatchTimes(**times),
            elapsed_ns=int(head["elapsed_ns"]),
            accuracy=accuracy_from_documents(parts, stored),
            failures=failures_from_documents(parts, stored),
            predictions=tuple(predictions_from_documents(parts.get("input_prediction", ()))),
            task_result=task_result_from_documents(parts.get("task_result", ())),
        )


def accuracy_document(accuracy: Accuracy) -> Document:
    """Returns the ``model_accuracy`` document for an accuracy."""
    counts = zip(_COUNTS, (accuracy.top1, accuracy.top5, accuracy.evaluated), strict=True)
    return {"top_1": accuracy.top1_share, "top_5": accuracy.top5_share, **dict(counts)}


def accuracy_from_documents(parts: Mapping[str, Sequence[Stored]], stored: Stored) -> Accuracy | None:
    """Returns the accuracy stored in ``model_accuracy``, which has at most one document.

    Raises:
        ValueError: The accuracy is missing, or its counts contradict each other.
    """
    documents = parts["model_accuracy"]
    if (stored["model_accuracy_id"] is None) != (not documents):
        raise ValueError("its accuracy is missing")
    if not documents:
        return None
    top1, top5, evaluated = (
        None if documents[0][name] is None else int(documents[0][name]) for name in _COUNTS
    )
    if top1 is None or evaluated is None or not 0 <= top1 <= (top1 if top5 is None else top5) <= evaluated:
        found = (top1, top5, evaluated)
        raise ValueError(f"its counts {found} of top-1, top-5 and all inputs contradict each other")
    return Accuracy(top1, top5, evaluated)


def failures_from_documents(
    parts: Mapping[str, Sequence[Stored]], stored: Stored
) -> tuple[InputFailure, ...]:
    """Returns the failures stored in ``input_failure`` documents; raises ValueError if some are missing."""
    found = tuple(
        record(InputFailure, failure) for each in parts["input_failure"] for failure in each["failures"]
    )
    if len(found) != stored["failure_count"]:
        raise ValueError(f"{len(found)} of its {stored['failure_count']} failures are present")
    return found


def failure_part(failures: Sequence[InputFailure]) -> Part:
    """Returns the ``input_failure`` documents."""
    documents = [{"failures": chunk} for chunk in _failure_chunks(failures)]
    return Part(len(documents), documents)


def _failure_chunks(failures: Sequence[InputFailure]) -> Iterator[list[Document]]:
    """Yields failures in chunks far below 16 MB, the size limit of a MongoDB document."""
    chunk: list[Document] = []
    characters = 0
    for failure in failures:
        chunk.append(fields_of(failure))
        characters += len(failure.input_id) + len(failure.message) + 100
        if characters >= _FAILURE_CHARACTERS_PER_DOCUMENT:
            yield chunk
            chunk, characters = [], 0
    if chunk:
        yield chunk
