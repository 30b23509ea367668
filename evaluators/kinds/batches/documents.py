"""The documents of a batch measurement: times, accuracy and failures. ``task_documents`` has the rest."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields

from inferometer.agent.inference.results import InputFailure, Stage
from inferometer.evaluators.evaluation import Evaluation
from inferometer.evaluators.kinds.batches.measurement import (
    Accuracy,
    BatchMeasurement,
    BatchOptions,
    BatchTimes,
)
from inferometer.evaluators.kinds.batches.task_documents import (
    prediction_part,
    predictions_from_documents,
    task_result_documents,
    task_result_from_documents,
)
from inferometer.evaluators.store.measurement_documents import Document, Part, Stored, joined
from inferometer.evaluators.store.values import checked, fields_of, restored

BATCHES_PER_DOCUMENT = 20_000
_FAILURE_CHARACTERS_PER_DOCUMENT = 1_000_000
_COUNTS = ("top_1_count", "top_5_count", "evaluated_count")
_TIMES = tuple(field.name for field in fields(BatchTimes))


class BatchDocuments:
    """Storage of ``BatchMeasurement`` in documents; see ``MeasurementDocuments``."""

    def write(
        self, evaluation: Evaluation[BatchMeasurement], save_id: str
    ) -> tuple[Document, Mapping[str, Part]]:
        """Returns the documents of the measurement."""
        measured = evaluation.measurement
        starts = range(0, len(measured.times.sizes), BATCHES_PER_DOCUMENT)
        pieces = [slice(start, start + BATCHES_PER_DOCUMENT) for start in starts]
        times = [{n: getattr(measured.times, n)[piece].tolist() for n in _TIMES} for piece in pieces]
        accuracy = [accuracy_document(measured.accuracy)] if measured.accuracy else []
        failures = failure_documents(measured.failures)
        result = task_result_documents(measured.task_result)
        labels = evaluation.system.manifest.output.parameters.labels
        document = {
            "options": fields_of(measured.options),
            "batch_count": len(measured.times.sizes),
            "failure_count": len(measured.failures),
            "model_accuracy_id": f"{save_id}/0" if accuracy else None,
        }
        return document, {
            "performance": Part(len(times), times),
            "model_accuracy": Part(len(accuracy), accuracy),
            "input_failure": Part(len(failures), failures),
            "input_prediction": prediction_part(measured.predictions, labels),
            "task_result": Part(len(result), result),
        }

    def read(self, head: Stored, parts: Mapping[str, Sequence[Stored]]) -> BatchMeasurement:
        """Returns the measurement, with the predictions if the parts contain them."""
        stored = head["measurement"]
        columns = {name: joined(each[name] for each in parts["performance"]) for name in _TIMES}
        failures = failures_from_documents(parts["input_failure"])
        if len({len(column) for column in columns.values()}) != 1:
            raise ValueError("the columns of its times differ in length")
        if len(columns["sizes"]) != stored["batch_count"]:
            raise ValueError(
                f"the times of {len(columns['sizes'])} of its {stored['batch_count']} batches are there"
            )
        if len(failures) != stored["failure_count"]:
            raise ValueError(f"{len(failures)} of its {stored['failure_count']} failures are there")
        if (stored["model_accuracy_id"] is None) != (not parts["model_accuracy"]):
            raise ValueError("its accuracy is missing")
        return BatchMeasurement(
            options=checked(BatchOptions(**restored(stored["options"]))),
            times=BatchTimes(**columns),
            elapsed_ns=int(head["elapsed_ns"]),
            accuracy=accuracy_from_documents(parts["model_accuracy"]),
            failures=failures,
            predictions=tuple(predictions_from_documents(parts.get("input_prediction", ()))),
            task_result=task_result_from_documents(parts.get("task_result", ())),
        )


def accuracy_document(accuracy: Accuracy) -> Document:
    """Returns the document of ``model_accuracy``."""
    counts = zip(_COUNTS, (accuracy.top1, accuracy.top5, accuracy.evaluated), strict=True)
    return {"top_1": accuracy.top1_share, "top_5": accuracy.top5_share, **dict(counts)}


def accuracy_from_documents(documents: Sequence[Stored]) -> Accuracy | None:
    """Returns the accuracy that ``model_accuracy`` holds, in one document or none.

    Raises:
        ValueError: The counts contradict each other.
    """
    counts = [tuple(int(each[name]) for name in _COUNTS) for each in documents]
    if any(tuple(sorted(each)) != each or each[0] < 0 for each in counts):
        raise ValueError(f"it counted {counts[0]} of top-1, top-5 and all")
    return Accuracy(*counts[0]) if counts else None


def failures_from_documents(documents: Sequence[Stored]) -> tuple[InputFailure, ...]:
    """Returns the failures of ``input_failure``."""
    return tuple(
        checked(InputFailure(failure["input_id"], Stage(failure["stage"]), failure["message"]))
        for each in documents
        for failure in each["failures"]
    )


def failure_documents(failures: Sequence[InputFailure]) -> list[Document]:
    """Returns the documents of ``input_failure``."""
    return [{"failures": chunk} for chunk in _failure_chunks(failures)]


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
