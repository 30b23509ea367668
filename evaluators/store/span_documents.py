"""Spans as documents of the collection ``span``: each holds one chunk of a trace, in columns."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from agent.trace_level import TraceLevel
from agent.tracing.span import COLUMNS, AttributeValue, SpanChunk, SpanKind
from evaluators.store.values import restored, storable, storable_text


def span_documents(chunks: Sequence[SpanChunk], owner: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Yields the documents of a trace's spans.

    ``start_ns`` counts from ``epoch_ns``, which is nanoseconds since 1970, so that the numbers stay short.

    Args:
        chunks: The spans.
        owner: ``evaluation_id`` and ``save_id``.
    """
    for sequence, chunk in enumerate(chunks):
        epoch_ns = int(chunk.start_ns.min()) if len(chunk) else 0
        columns = {name: getattr(chunk, name).tolist() for name in COLUMNS}
        columns["start_ns"] = (chunk.start_ns - epoch_ns).tolist()
        yield {
            "_id": span_document_id(owner["save_id"], sequence),
            **owner,
            "sequence": sequence,
            "epoch_ns": epoch_ns,
            "kinds": [
                {
                    "name": storable_text(kind.name),
                    "level": kind.level.name,
                    "attributes": [[storable_text(key), storable(value)] for key, value in kind.attributes],
                }
                for kind in chunk.kinds
            ],
            **columns,
        }


def span_document_id(save_id: str, sequence: int) -> str:
    """Returns the id of a trace's document."""
    return f"{save_id}/span/{sequence}"


def chunk_from_document(document: Mapping[str, Any]) -> SpanChunk:
    """Returns the spans that a document holds.

    Raises:
        KeyError, TypeError, ValueError: It holds none.
    """
    kinds = tuple(
        SpanKind(
            kind["name"],
            TraceLevel[kind["level"]],
            tuple((key, _attribute(value)) for key, value in kind["attributes"]),
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
    return SpanChunk(kinds, **columns)


def _attribute(stored: Any) -> AttributeValue:
    value = restored(stored)
    return tuple(value) if isinstance(value, list) else value
