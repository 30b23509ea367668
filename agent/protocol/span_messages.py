"""Conversion of spans to and from messages: columns as bytes, kinds as JSON."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from inferometer.agent.tracing.span import (
    COLUMNS,
    Attributes,
    AttributeValue,
    SpanChunk,
    SpanKind,
    SpanRole,
    TraceLevel,
)
from inferometer.protos.inferometer.v1 import predict_pb2

_INT64 = np.dtype("<i8")


@dataclass(frozen=True, slots=True)
class TracePart:
    """The spans that a call has recorded since the last part.

    ``dropped`` counts those for which there was no room; ``notes`` say, in a line each, what a trace lacks.
    ``resource`` is the process that recorded the spans of the call, in one of the call's parts.
    """

    chunks: Sequence[SpanChunk] = ()
    dropped: int = 0
    notes: Sequence[str] = ()
    resource: Attributes = ()

    def __bool__(self) -> bool:
        """Returns whether the part has any content."""
        return bool(self.chunks or self.dropped or self.notes)


def trace_part_message(part: TracePart) -> predict_pb2.TracePart:
    """Returns the message of a part."""
    return predict_pb2.TracePart(
        spans=[
            predict_pb2.SpanChunk(
                kinds_json=json.dumps([_kind_object(kind) for kind in chunk.kinds]),
                columns=b"".join(getattr(chunk, name).astype(_INT64).tobytes() for name in COLUMNS),
            )
            for chunk in part.chunks
        ],
        dropped=part.dropped,
        notes=part.notes,
        resource_json=json.dumps(part.resource) if part.resource else "",
    )


def read_trace_part(message: predict_pb2.TracePart) -> TracePart:
    """Returns the part that a message holds; raises ValueError if its spans are not valid."""
    return TracePart(
        [_chunk(chunk) for chunk in message.spans],
        message.dropped,
        tuple(message.notes),
        _resource(message.resource_json) if message.resource_json else (),
    )


def _resource(text: str) -> Attributes:
    try:
        return tuple((str(name), _attribute(value)) for name, value in json.loads(text))
    except (TypeError, ValueError, RecursionError) as error:
        raise ValueError(f"the resource cannot be read: {type(error).__name__}: {error}") from error


def _kind_object(kind: SpanKind) -> dict[str, object]:
    role = {} if kind.role is SpanRole.INTERNAL else {"role": kind.role.name}
    return {"name": kind.name, "level": kind.level.name, "attributes": kind.attributes, **role}


def _chunk(message: predict_pb2.SpanChunk) -> SpanChunk:
    try:
        kinds = tuple(
            SpanKind(
                str(kind["name"]),
                TraceLevel[kind["level"]],
                tuple((str(name), _attribute(value)) for name, value in kind["attributes"]),
                SpanRole[kind.get("role", SpanRole.INTERNAL.name)],
            )
            for kind in json.loads(message.kinds_json)
        )
    except (AttributeError, KeyError, TypeError, ValueError, RecursionError) as error:
        raise ValueError(f"the kinds of its spans cannot be read: {type(error).__name__}: {error}") from error
    values = np.frombuffer(message.columns, _INT64)  # raises ValueError for a truncated number
    if len(values) % len(COLUMNS):
        raise ValueError("the columns of its spans differ in length")
    columns = dict(zip(COLUMNS, values.astype(np.int64).reshape(len(COLUMNS), -1), strict=True))
    places = columns["kind"]
    if len(places) and not 0 <= places.min() <= places.max() < len(kinds):
        raise ValueError("a span is of no kind")
    return SpanChunk(kinds, *(columns[name] for name in COLUMNS))


def _attribute(value: object) -> AttributeValue:
    if isinstance(value, list):
        return tuple(value)
    if isinstance(value, str | bool | int | float):
        return value
    raise TypeError(f"an attribute is {type(value).__name__}")
