"""Spans as documents of the collection ``span``: each holds one chunk of a trace, in columns."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from inferometer.agent.tracing.span import (
    COLUMNS,
    NO_BATCH,
    Attributes,
    AttributeValue,
    SpanChunk,
    SpanKind,
    SpanRole,
    TraceLevel,
)
from inferometer.evaluators.store.documents_v1 import present_key
from inferometer.evaluators.store.measurement_documents import Document, Stored
from inferometer.evaluators.store.values import checked, restored, storable, storable_text


def span_documents(chunks: Sequence[SpanChunk]) -> Iterator[Document]:
    """Yields the documents of a trace's spans.

    ``start_ns`` counts from ``epoch_ns``, which is nanoseconds since 1970, so that the numbers stay short.
    ``resource`` is the process that recorded them; documents of earlier versions have none, and kinds without
    ``role`` are no calls.
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
        KeyError, TypeError, ValueError: It holds none.
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
    """Returns attributes, each by MongoDB's attribute pattern, or as a pair in earlier versions."""
    pairs = ((each["k"], each["v"]) if isinstance(each, dict) else each for each in stored)
    return tuple((present_key(key), _attribute(value)) for key, value in pairs)


def _attribute(stored: Any) -> AttributeValue:
    value = restored(stored)
    return tuple(value) if isinstance(value, list) else value
