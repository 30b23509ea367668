"""Conversion of evaluations to documents of these collections, which extend MLModelScope's, and back.

| collection | documents |
|---|---|
| ``evaluation`` | one per evaluation: the envelope, and the small values of its measurement |
| ``performance`` | the raw times of batches, at most ``VALUES_PER_DOCUMENT`` per document |
| ``model_accuracy`` | one per evaluation with an accuracy |
| ``input_failure`` | the failed inputs, many per document |
| ``input_prediction`` | one per input, with its best classes or columns; more for large columns |
| ``task_result`` | one per evaluation with a score; more if its details are long |
| ``load_query`` | the queries of its runs under load, in columns |
| ``generation_answer`` | the generated answers of its run, with each chunk, in columns |
| ``generation_score`` | the scored lines of a file of prompts, many per document |
| ``loaded_batch`` | the times of the batches of an ingestion run, in columns |
| ``operator_row`` | the rows of operators, each with its raw times |
| ``training_step`` | the raw times of the steps of each rank, in columns |
| ``training_part`` | the times of the parts of some steps of each rank, in columns |
| ``training_loss`` | the loss of every step of each rank, the warm-up included |
| ``span`` | the spans of its trace in columns, many per document |
| ``dataset_sample`` | the ids of its samples, if it ran over some of a dataset's, many per document |

Every part has ``evaluation_id``, ``save_id``, its ``sequence`` in its collection, and the id
``save_id/sequence``. ``save_id`` identifies one attempt to save: the remains of an interrupted attempt
belong to no ``evaluation`` document. ``evaluation.parts`` counts the documents of each collection. Times
are nanoseconds as 64-bit integers. ``created_at`` is UTC to the millisecond, which is the precision of
BSON.
``documents_v1`` reads the documents of earlier versions.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from datetime import timezone
from functools import cache
from typing import Any

import numpy as np

from inferometer.agent.hardware.environment import Device, Environment, Precision, Weights
from inferometer.agent.inference.stages import SystemDescription
from inferometer.agent.tracing.recorder import (
    COLUMNS,
    NO_BATCH,
    Attributes,
    AttributeValue,
    SpanChunk,
    SpanKind,
    SpanRole,
    TraceLevel,
)
from inferometer.evaluators.conditions.conditions import Conditions
from inferometer.evaluators.datasets.base import DatasetIdentity
from inferometer.evaluators.documents import (
    SAMPLE_IDS,
    SPANS,
    Document,
    Part,
    Stored,
    checked,
    fields_of,
    record,
    restored,
    storable,
    storable_text,
)
from inferometer.evaluators.evaluation import Evaluation, Status, TraceSummary, to_the_millisecond
from inferometer.evaluators.kinds.registry import every_kind, find_kind, kind_of
from inferometer.evaluators.store import documents_v1
from inferometer.evaluators.store.documents_v1 import present_key
from inferometer.manifests.errors import ConfigurationError, StoreError, one_line, printable
from inferometer.manifests.schema import ModelManifest


def span_documents(chunks: Sequence[SpanChunk]) -> Iterator[Document]:
    """Yields the documents of a trace's spans.

    ``start_ns`` is relative to ``epoch_ns``, which counts nanoseconds since 1970, to keep the numbers short.
    ``resource`` is the process that recorded them; documents of earlier versions have none. Kinds of spans
    without a ``role`` are not calls.
    """
    for chunk in chunks:
        epoch_ns = int(chunk.start_ns.min()) if len(chunk) else 0
        columns = {name: getattr(chunk, name).tolist() for name in COLUMNS}
        columns["start_ns"] = (chunk.start_ns - epoch_ns).tolist()
        yield {
            "epoch_ns": epoch_ns,
            "kinds": [
                {
                    "name": storable_text(kind.name),
                    "level": kind.level.name,
                    "attributes": _pairs(kind.attributes),
                    **({} if kind.role is SpanRole.INTERNAL else {"role": kind.role.name}),
                }
                for kind in chunk.kinds
            ],
            **({"resource": _pairs(chunk.resource)} if chunk.resource else {}),
            **columns,
        }


def chunk_from_document(document: Stored) -> SpanChunk:
    """Returns the spans that a document holds.

    Raises:
        KeyError, TypeError, ValueError: The document does not hold spans.
    """
    kinds = tuple(
        checked(
            SpanKind(
                kind["name"],
                TraceLevel[kind["level"]],
                _attributes(kind["attributes"]),
                SpanRole[kind.get("role", SpanRole.INTERNAL.name)],
            )
        )
        for kind in document["kinds"]
    )
    columns = {name: np.array(document[name], np.int64) for name in COLUMNS}
    columns["start_ns"] = columns["start_ns"] + int(document["epoch_ns"])
    if len({column.shape for column in columns.values()}) != 1:
        raise ValueError("the columns of its spans differ in length")
    places = columns["kind"]
    if places.size and not 0 <= places.min() <= places.max() < len(kinds):
        raise ValueError("a span is of no kind")
    if columns["batch"].min(initial=NO_BATCH) < NO_BATCH:
        raise ValueError("a span is of a negative batch")
    resource = _attributes(document.get("resource", ()))
    return SpanChunk(kinds, *(columns[name] for name in COLUMNS), resource=resource)


def _pairs(attributes: Attributes) -> list[Document]:
    return [{"k": storable_text(key), "v": storable(value)} for key, value in attributes]


def _attributes(stored: Sequence[Any]) -> Attributes:
    """Returns attributes stored in MongoDB's attribute pattern, or as the pairs of earlier versions."""
    pairs = ((each["k"], each["v"]) if isinstance(each, dict) else each for each in stored)
    return tuple((present_key(key), _attribute(value)) for key, value in pairs)


def _attribute(stored: Any) -> AttributeValue:
    value = restored(stored)
    return tuple(value) if isinstance(value, list) else value


SCHEMA_VERSION = 3
_WITHOUT_TASKS = 2
"""The version of evaluations that earlier programs can read: two tasks, a whole dataset, not failed."""
_FIRST_TASKS = ("classification", "raw")
_SYSTEM = tuple(
    f.name for f in fields(SystemDescription) if f.name not in {"manifest", "device", "environment"}
)
DAMAGES = (KeyError, IndexError, TypeError, ValueError, AttributeError, OverflowError, ConfigurationError)
"""The exceptions that reading a damaged document raises."""
_IDS_PER_DOCUMENT = 10_000
_MOST_PARTS = 100_000_000
_REMEDY = 'delete its document from the collection "evaluation" and evaluate again'


@dataclass(frozen=True, slots=True)
class Documents:
    """One evaluation's documents: its own, and its parts by collection, generated lazily."""

    evaluation: Document
    parts: Mapping[str, Iterable[Document]]


@cache
def part_collections() -> tuple[str, ...]:
    """Returns the collections that hold parts of evaluations, for all kinds."""
    own = (name for kind in every_kind() for name in kind.collections)
    return (SPANS, SAMPLE_IDS, *dict.fromkeys(own))


def to_documents(evaluation: Evaluation, save_id: str) -> Documents:
    """Returns the documents of an evaluation; the ids of its parts are made from ``save_id``."""
    measurement, parts = kind_of(evaluation).to_documents(evaluation, save_id)
    every = {**parts, SPANS: Part(len(evaluation.spans), span_documents(evaluation.spans))}
    if evaluation.dataset.sample_ids is not None:
        every[SAMPLE_IDS] = _sample_part(evaluation.dataset.sample_ids)
    head = _evaluation_document(evaluation) | {
        "measurement": measurement,
        "save_id": save_id,
        "parts": {name: part.count for name, part in every.items()},
    }
    owner = {"evaluation_id": evaluation.id, "save_id": save_id}
    return Documents(head, {name: _owned(part, owner) for name, part in every.items()})


def _sample_part(ids: Sequence[str]) -> Part:
    starts = range(0, len(ids), _IDS_PER_DOCUMENT)
    pieces = (ids[start : start + _IDS_PER_DOCUMENT] for start in starts)
    return Part(len(starts), ({"ids": list(map(storable_text, piece))} for piece in pieces))


def _owned(part: Part, owner: Document) -> Iterator[Document]:
    for sequence, content in enumerate(part.documents):
        yield {"_id": f"{owner['save_id']}/{sequence}", **owner, "sequence": sequence, **content}


def present_head(head: Document) -> Document:
    """Returns an evaluation's own document in the present schema.

    Raises:
        StoreError: A newer version of the program wrote it, or it is damaged.
    """
    name, version = _name(head), head.get("schema_version")
    if not isinstance(version, int) or isinstance(version, bool) or version < 1:
        raise StoreError(f"{name} is damaged: it has no schema_version; {_REMEDY}")
    if version > SCHEMA_VERSION:
        raise _newer(name, f"schema {version}; this one reads up to {SCHEMA_VERSION}")
    try:
        head = documents_v1.upgraded(head) if version == documents_v1.SCHEMA_VERSION else head
        _check_kind(name, head["kind"])
        _check_frame(head)
    except DAMAGES as error:
        raise _damaged(name, error) from error
    return head


def _check_kind(name: str, kind: str) -> None:
    """Raises StoreError if this program does not know the kind, or cannot import it."""
    try:
        find_kind(kind)
    except ConfigurationError as error:
        raise StoreError(f"{name} cannot be read: {error}") from error
    except KeyError as error:
        raise _newer(name, f"it measured {kind}", ", or with a plug-in that is not installed") from error


def part_ids(head: Stored, but: Collection[str] = ()) -> Mapping[str, Sequence[str]]:
    """Returns the ids of an evaluation's parts in order, by collection, except the collections in ``but``."""
    if known := head.get(documents_v1.PART_IDS):
        return {name: ids for name, ids in known.items() if name not in but}
    return {
        name: [f"{head['save_id']}/{number}" for number in range(count)]
        for name, count in head["parts"].items()
        if name not in but
    }


def _check_frame(head: Stored) -> None:
    """Raises TypeError or ValueError if ids, the measurement or the numbers of parts are invalid."""
    if not all(isinstance(head[name], str) for name in ("_id", "save_id")):
        raise TypeError("its id is not text")
    if not isinstance(head.get("group_id"), str | None):
        raise TypeError("the id of its group is not text")
    if not isinstance(head["measurement"], Mapping):
        raise TypeError("its measurement is not a document")
    if known := head.get(documents_v1.PART_IDS):
        if not all(isinstance(each, str) for ids in known.values() for each in ids):
            raise TypeError("the id of a part is not text")
        return
    for name, count in head["parts"].items():
        if name not in part_collections() or not isinstance(count, int) or not 0 <= count <= _MOST_PARTS:
            raise ValueError(f"it has {count} documents of {name}")


def on_demand(head: Stored) -> tuple[str, ...]:
    """Returns the collections of an evaluation that are read only on demand."""
    return SPANS, *find_kind(head["kind"]).on_demand


def from_documents(documents: Documents, *, partial: bool = False) -> Evaluation:
    """Returns the evaluation of ``documents``.

    Args:
        documents: Its own document, and its parts.
        partial: Whether the parts that are read on demand are omitted.

    Raises:
        StoreError: The documents are from a newer version, are incomplete, or do not form an evaluation.
    """
    head = present_head(documents.evaluation)
    try:
        later = on_demand(head) if partial else ()
        ids = part_ids(head, later)
        parts = {name: list(documents.parts.get(name, ())) for name in (*ids, *later)}
        evaluation = _evaluation(head, parts)  # which says more exactly what is missing, where it can
        for name, part in parts.items():
            if name in ids and len(part) != len(ids[name]):
                raise ValueError(f"{len(part)} of its {len(ids[name])} documents of {name} are there")
        return evaluation
    except DAMAGES as error:
        raise _damaged(_name(head), error) from error


def _name(head: Stored) -> str:
    return f"evaluation {printable(str(head.get('_id', '(without id)')))}"


def _newer(name: str, reason: str, or_else: str = "") -> StoreError:
    return StoreError(
        f"{name} was written by a newer inferometer ({reason}){or_else}; "
        "update with: pip install -U inferometer"
    )


def _damaged(name: str, error: Exception) -> StoreError:
    what = printable(one_line(error, 200))
    return StoreError(f"{name} is damaged: {type(error).__name__}: {what}; {_REMEDY}")


def lookup_key(name: str) -> str:
    """Returns the key for a name in queries, which ignores case.

    The leading ``=`` prevents neosqlite from parsing a text that begins like a date as a time.
    """
    return "=" + storable_text(name.strip().casefold())


def release_of(version: str) -> str:
    """Returns a version without its local part, such as ``2.13.0`` for ``2.13.0+cpu``."""
    return version.partition("+")[0]


def _evaluation_document(evaluation: Evaluation) -> Document:
    system, manifest = evaluation.system, evaluation.system.manifest
    environment, dataset = system.environment, evaluation.dataset
    readable_before = manifest.output.type in _FIRST_TASKS and dataset.sample_ids is None
    readable_before = readable_before and evaluation.status is not Status.FAILED
    return {
        "_id": evaluation.id,
        "schema_version": _WITHOUT_TASKS if readable_before else SCHEMA_VERSION,
        "kind": evaluation.measurement.kind,
        "created_at": to_the_millisecond(evaluation.created_at),
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
        "device": {"kind": system.device.kind.value, "index": system.device.index}
        | ({"others": list(system.device.others)} if system.device.others else {}),
        "using_gpu": system.device.is_gpu,
        "environment": fields_of(environment),
        "machine_architecture": storable_text(environment.architecture),
        "hostname": storable_text(environment.hostname),
        "dataset": _dataset_document(dataset),
        "trace_level": evaluation.trace_level.name,
        "batch_size": evaluation.measurement.batch_size,
        "elapsed_ns": evaluation.measurement.elapsed_ns,
        "trace": storable(evaluation.trace),
        "group_id": evaluation.group_id,
        "conditions": storable(evaluation.conditions),
        "process": evaluation.process,
    }


def _evaluation(head: Stored, parts: Mapping[str, Sequence[Stored]]) -> Evaluation:
    system, trace, conditions = restored(head["system"]), head.get("trace"), head.get("conditions")
    manifest = ModelManifest.model_validate(restored(head["model"]))
    measurement: Any = find_kind(head["kind"]).from_documents(head, parts)
    described = checked(
        SystemDescription(
            manifest=manifest,
            device=record(Device, head["device"]),
            environment=record(Environment, head["environment"]),
            **system
            | {
                "weights": Weights(system.get("weights", Weights.PRETRAINED)),
                "precision": _precision(system, manifest),
            },
        )
    )
    return Evaluation(
        id=head["_id"],
        created_at=head["created_at"].astimezone(timezone.utc),
        status=Status(head["status"]),
        system=described,
        dataset=_dataset(head, parts),
        measurement=checked(measurement),
        trace_level=TraceLevel[head["trace_level"]],
        trace=None if trace is None else record(TraceSummary, trace),
        spans=tuple(map(chunk_from_document, parts[SPANS])),
        group_id=head.get("group_id"),
        conditions=None if conditions is None else record(Conditions, conditions),
        process=None if head.get("process") is None else int(head["process"]),
    )


def _dataset_document(dataset: DatasetIdentity) -> Document:
    document = fields_of(replace(dataset, sample_ids=None))
    del document["sample_ids"]
    if dataset.sample_ids is not None:
        document["sample_ids_checksum"] = dataset.sample_ids_checksum
    return document


def _dataset(head: Stored, parts: Mapping[str, Sequence[Stored]]) -> DatasetIdentity:
    known = restored(head["dataset"])
    checksum = known.pop("sample_ids_checksum", None)
    whole = checked(DatasetIdentity(**known))
    if checksum is None:
        return whole
    ids = tuple(str(each) for document in parts[SAMPLE_IDS] for each in document["ids"])
    dataset = replace(whole, sample_ids=ids)
    if len(ids) != whole.size or dataset.sample_ids_checksum != checksum:
        raise ValueError("the ids of its samples are not those that it was evaluated over")
    return dataset


def _precision(system: Stored, manifest: ModelManifest) -> Precision | None:
    """Returns a model's precision; old records lack it, and models in code then used float32."""
    if "precision" not in system:
        served_by_others = "://" in system.get("agent", "")
        return None if served_by_others or manifest.has_own_precision else Precision.FLOAT32
    name = system["precision"]
    return None if name is None else Precision(name)
