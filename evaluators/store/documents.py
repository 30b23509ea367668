"""Evaluations as documents: what stands in which collection, and how it is read back.

The collections are those of MLModelScope, and one for failures:

| collection | documents |
|---|---|
| ``evaluation`` | one an evaluation: what ran, on what, and which of the others belong to it |
| ``performance`` | the raw times, at most ``BATCHES_PER_DOCUMENT`` batches a document |
| ``model_accuracy`` | one an evaluation with an accuracy |
| ``input_failure`` | the inputs that were not predicted, many a document |
| ``input_prediction`` | one an input, with the best classes |
| ``load_query`` | the queries of its runs under load, in columns; see ``load_documents`` |
| ``span`` | the spans of its trace in columns, many a document; see ``span_documents`` |

Every part carries ``evaluation_id``, and ``save_id``, which stands for one attempt to save: what an attempt
that was cut off has left behind belongs to no ``evaluation`` document, and so to no evaluation. Times are
nanoseconds as 64-bit integers. ``created_at`` is UTC to the millisecond, which is what BSON keeps.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from datetime import datetime, timezone
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from agent.description import SystemDescription
from agent.device import Device, DeviceKind
from agent.environment import Environment, Gpu
from agent.predictor import Weights
from agent.results import InputFailure, Stage
from agent.trace_level import TraceLevel
from evaluators.datasets.base import DatasetIdentity
from evaluators.evaluation import (
    Accuracy,
    BatchTimes,
    Evaluation,
    EvaluationOptions,
    Status,
    TraceSummary,
)
from evaluators.store.load_documents import load_documents, load_head, load_record
from evaluators.store.prediction_documents import prediction_documents, prediction_from_document
from evaluators.store.span_documents import chunk_from_document, span_documents
from evaluators.store.values import restored, storable, storable_text
from manifests.errors import ConfigurationError, StoreError
from manifests.schema import ModelManifest

SCHEMA_VERSION = 1
BATCHES_PER_DOCUMENT = 20_000
_FAILURE_CHARACTERS_PER_DOCUMENT = 1_000_000
_TIMES = tuple(field.name for field in fields(BatchTimes))
_SYSTEM = tuple(
    f.name for f in fields(SystemDescription) if f.name not in {"manifest", "device", "environment"}
)

Document: TypeAlias = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Documents:
    """One evaluation's documents, by their collections; predictions may be made as they are read."""

    evaluation: Document
    performance: Sequence[Document] = ()
    model_accuracy: Sequence[Document] = ()
    input_failure: Sequence[Document] = ()
    input_prediction: Iterable[Document] = ()
    span: Iterable[Document] = ()
    load_query: Iterable[Document] = ()


PARTS = tuple(field.name for field in fields(Documents) if field.name != "evaluation")
"""The collections that hold the parts of an evaluation."""


def to_documents(evaluation: Evaluation, save_id: str) -> Documents:
    """Returns the documents of an evaluation; the ids of its parts are made from ``save_id``."""
    owner = {"evaluation_id": evaluation.id, "save_id": save_id}
    performance = _performance_documents(evaluation.batches, owner)
    failures = _failure_documents(evaluation.failures, owner)
    accuracy = [_accuracy_document(evaluation.accuracy, owner)] if evaluation.accuracy else []
    head = _evaluation_document(evaluation) | {
        "save_id": save_id,
        "performance_ids": [document["_id"] for document in performance],
        "model_accuracy_id": accuracy[0]["_id"] if accuracy else None,
        "input_failure_ids": [document["_id"] for document in failures],
    }
    predictions = prediction_documents(evaluation, owner)
    spans = span_documents(evaluation.spans, owner)
    queries = load_documents(evaluation.load, owner)
    return Documents(head, performance, accuracy, failures, predictions, spans, queries)


def from_documents(documents: Documents) -> Evaluation:
    """Returns the evaluation that ``documents`` are of, with the predictions that are among them.

    Raises:
        StoreError: A newer version of the program wrote it, parts are missing, or it is no evaluation.
    """
    head = documents.evaluation
    name = f"evaluation {head.get('_id', '(without id)')}"
    _check_version(head, name)
    try:
        evaluation = _evaluation(head, documents)
        missing = _missing_parts(evaluation, documents)
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError, ConfigurationError) as error:
        what = " ".join(str(error).split())[:200]
        raise StoreError(f"{name} is damaged: {type(error).__name__}: {what}; {_REMEDY}") from error
    if missing:
        raise StoreError(f"{name} is damaged: {missing}; {_REMEDY}")
    return evaluation


_REMEDY = 'delete its document from the collection "evaluation" and evaluate again'


def lookup_key(name: str) -> str:
    """Returns what a name is found by: without case.

    The ``=`` in front is for neosqlite, which takes a text that begins like a date for a time, and then finds
    nothing.
    """
    return "=" + storable_text(name.strip().casefold())


def release_of(version: str) -> str:
    """Returns a version without its local part: ``2.13.0`` of ``2.13.0+cpu``."""
    return version.partition("+")[0]


def _evaluation_document(evaluation: Evaluation) -> Document:
    system, manifest, dataset = evaluation.system, evaluation.system.manifest, evaluation.dataset
    environment = system.environment
    return {
        "_id": evaluation.id,
        "schema_version": SCHEMA_VERSION,
        "created_at": _milliseconds(evaluation.created_at),
        "status": evaluation.status.value,
        "model_key": lookup_key(manifest.name),
        "model_version_key": lookup_key(manifest.version),
        "framework_key": lookup_key(manifest.framework.name),
        "framework_version_key": lookup_key(system.framework_version),
        "framework_release_key": lookup_key(release_of(system.framework_version)),
        "machine_architecture_key": lookup_key(environment.architecture),
        "hostname_key": lookup_key(environment.hostname),
        "model": storable(manifest.model_dump(mode="python")),
        "framework": storable({"name": manifest.framework.name, "version": system.framework_version}),
        "system": {name: storable(getattr(system, name)) for name in _SYSTEM},
        "device": {"kind": system.device.kind.value, "index": system.device.index},
        "using_gpu": system.device.is_gpu,
        "environment": _fields_of(environment) | {"gpus": [_fields_of(gpu) for gpu in environment.gpus]},
        "machine_architecture": storable_text(environment.architecture),
        "hostname": storable_text(environment.hostname),
        "dataset": _fields_of(dataset),
        "options": _fields_of(evaluation.options) | {"trace_level": evaluation.options.trace_level.name},
        "batch_size": evaluation.options.batch_size,
        "elapsed_ns": evaluation.elapsed_ns,
        "batch_count": len(evaluation.batches.sizes),
        "failure_count": len(evaluation.failures),
        "input_prediction_count": len(evaluation.predictions),
        "trace": _fields_of(evaluation.trace) if evaluation.trace else None,
        "span_document_count": len(evaluation.spans),
        "group_id": evaluation.group_id,
        "load": load_head(evaluation.load) if evaluation.load else None,
    }


def _evaluation(head: Mapping[str, Any], documents: Documents) -> Evaluation:
    """The evaluation, whether or not all of its parts are there."""
    options = restored(head["options"])
    environment = restored(head["environment"])
    system = restored(head["system"])
    return Evaluation(
        id=str(head["_id"]),
        created_at=head["created_at"].astimezone(timezone.utc),
        status=Status(head["status"]),
        system=SystemDescription(
            manifest=ModelManifest.model_validate(restored(head["model"])),
            device=Device(DeviceKind(head["device"]["kind"]), int(head["device"]["index"])),
            environment=Environment(**environment | {"gpus": tuple(Gpu(**g) for g in environment["gpus"])}),
            **system | {"weights": Weights(system.get("weights", Weights.PRETRAINED))},
        ),
        dataset=DatasetIdentity(**restored(head["dataset"])),
        options=EvaluationOptions(**options | {"trace_level": TraceLevel[options["trace_level"]]}),
        batches=_batches(documents.performance),
        elapsed_ns=int(head["elapsed_ns"]),
        accuracy=_accuracy(documents.model_accuracy[0]) if documents.model_accuracy else None,
        failures=tuple(
            InputFailure(failure["input_id"], Stage(failure["stage"]), failure["message"])
            for document in _in_sequence(documents.input_failure)
            for failure in document["failures"]
        ),
        predictions=tuple(
            prediction_from_document(document)
            for document in sorted(documents.input_prediction, key=lambda d: int(d["input_index"]))
        ),
        trace=_trace(head.get("trace")),
        spans=tuple(
            chunk_from_document(document)
            for document in sorted(documents.span, key=lambda d: int(d["sequence"]))
        ),
        group_id=head.get("group_id"),
        load=load_record(head, list(documents.load_query)),
    )


def _trace(stored: Any) -> TraceSummary | None:
    if stored is None:
        return None
    fields_of = restored(stored)
    return TraceSummary(**fields_of | {"notes": tuple(fields_of["notes"])})


def _missing_parts(evaluation: Evaluation, documents: Documents) -> str:
    """What is not there although the evaluation's own document counts it; empty when nothing is missing."""
    head = documents.evaluation
    batches, failures = len(evaluation.batches.sizes), len(evaluation.failures)
    if batches != head["batch_count"] or len(documents.performance) != len(head["performance_ids"]):
        return f"the times of {batches} of its {head['batch_count']} batches are there"
    if (head["model_accuracy_id"] is None) != (evaluation.accuracy is None):
        return "its accuracy is missing"
    if failures != head["failure_count"]:
        return f"{failures} of its {head['failure_count']} failures are there"
    return ""


def _check_version(head: Mapping[str, Any], name: str) -> None:
    version = head.get("schema_version")
    if not isinstance(version, int) or isinstance(version, bool) or version < 1:
        raise StoreError(f"{name} is damaged: it has no schema_version; {_REMEDY}")
    if version > SCHEMA_VERSION:
        raise StoreError(
            f"{name} was written by a newer inferscope (schema {version}; this one reads up to "
            f"{SCHEMA_VERSION}); update with: pip install -U inferscope"
        )


def _performance_documents(batches: BatchTimes, owner: Document) -> list[Document]:
    return [
        {"_id": f"{owner['save_id']}/{sequence}", **owner, "sequence": sequence}
        | {name: getattr(batches, name)[start : start + BATCHES_PER_DOCUMENT].tolist() for name in _TIMES}
        for sequence, start in enumerate(range(0, len(batches.sizes), BATCHES_PER_DOCUMENT))
    ]


def _batches(documents: Sequence[Document]) -> BatchTimes:
    chunks = _in_sequence(documents)
    columns = {name: _joined(document[name] for document in chunks) for name in _TIMES}
    if len({len(column) for column in columns.values()}) != 1:
        raise ValueError("the columns of its times differ in length")
    return BatchTimes(**columns)


def _joined(parts: Iterable[Sequence[int]]) -> NDArray[np.int64]:
    return np.concatenate([np.empty(0, np.int64), *(np.array(part, np.int64) for part in parts)])


def _accuracy_document(accuracy: Accuracy, owner: Document) -> Document:
    return {
        "_id": owner["save_id"],
        **owner,
        "top_1": accuracy.top1_share,
        "top_5": accuracy.top5_share,
        "top_1_count": accuracy.top1,
        "top_5_count": accuracy.top5,
        "evaluated_count": accuracy.evaluated,
    }


def _accuracy(document: Mapping[str, Any]) -> Accuracy:
    return Accuracy(*(int(document[name]) for name in ("top_1_count", "top_5_count", "evaluated_count")))


def _failure_documents(failures: Sequence[InputFailure], owner: Document) -> list[Document]:
    return [
        {"_id": f"{owner['save_id']}/{sequence}", **owner, "sequence": sequence, "failures": chunk}
        for sequence, chunk in enumerate(_failure_chunks(failures))
    ]


def _failure_chunks(failures: Sequence[InputFailure]) -> Iterator[list[Document]]:
    """Failures in pieces that stay far below the 16 MB that MongoDB allows a document."""
    chunk: list[Document] = []
    characters = 0
    for failure in failures:
        chunk.append(_fields_of(failure))
        characters += len(failure.input_id) + len(failure.message) + 100
        if characters >= _FAILURE_CHARACTERS_PER_DOCUMENT:
            yield chunk
            chunk, characters = [], 0
    if chunk:
        yield chunk


def _in_sequence(documents: Sequence[Document]) -> list[Document]:
    """The pieces in their order; a piece that is missing in between is a damage."""
    ordered = sorted(documents, key=lambda document: int(document["sequence"]))
    if [document["sequence"] for document in ordered] != list(range(len(ordered))):
        raise ValueError("a piece in the middle is missing")
    return ordered


def _fields_of(record: Any) -> Document:
    """A dataclass's fields, as they can be stored."""
    return {field.name: storable(getattr(record, field.name)) for field in fields(record)}


def _milliseconds(moment: datetime) -> datetime:
    moment = moment.astimezone(timezone.utc)
    return moment.replace(microsecond=moment.microsecond // 1000 * 1000)
