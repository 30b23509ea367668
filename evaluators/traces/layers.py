"""The layers of a traced model, summed up over the batches."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from agent.trace_level import TraceLevel
from agent.tracing.span import NO_BATCH, SpanChunk, SpanKind

_MEMORY = ("allocated_bytes", "peak_bytes")


@dataclass(slots=True, eq=False)
class Layer:
    """What the spans of one layer have in common, and how long each took.

    Attributes:
        index: The place in the order of execution, from 0.
        name: The layer.
        type: The operator; empty where the framework does not tell.
        input_shapes: Texts such as ``8x3x224x224``; empty where the framework does not tell.
        output_shapes: The same of what it gave.
        durations_ns: int64; one for each time that it ran, in the order in which the spans are kept.
        allocated_bytes: The largest that was seen; None where the framework does not tell.
        peak_bytes: The largest that was seen; None where the framework does not tell.
    """

    index: int
    name: str
    type: str
    input_shapes: tuple[str, ...]
    output_shapes: tuple[str, ...]
    durations_ns: NDArray[np.int64]
    allocated_bytes: int | None
    peak_bytes: int | None


@dataclass(slots=True, eq=False)
class _Collected:
    durations_ns: array[int] = field(default_factory=lambda: array("q"))
    memory: dict[str, int] = field(default_factory=dict)


def layers(chunks: Iterable[SpanChunk], batches: NDArray[np.bool_] | None = None) -> list[Layer]:
    """Returns the layers in the order in which they ran.

    Memory: eight bytes for each span of a layer, and one chunk.

    Args:
        chunks: The spans; only those of level FRAMEWORK_TRACE that belong to a batch are layers.
        batches: bool; by the number of a batch, whether it counts. None means that all do.
    """
    found: dict[tuple[int, str, str, tuple[str, ...], tuple[str, ...]], _Collected] = {}
    for chunk in chunks:
        for kind, durations_ns in _by_kind(chunk, batches):
            collected = found.setdefault(_key(kind), _Collected())
            collected.durations_ns.frombytes(durations_ns.tobytes())
            for name in _MEMORY:
                value = kind.attribute(name)
                if isinstance(value, int):
                    collected.memory[name] = max(value, collected.memory.get(name, value))
    return [
        Layer(*key, np.frombuffer(c.durations_ns, np.int64), *(c.memory.get(name) for name in _MEMORY))
        for key, c in sorted(found.items(), key=lambda item: item[0])
    ]


def traced_batches_ns(
    chunks: Iterable[SpanChunk], batches: NDArray[np.bool_] | None = None
) -> NDArray[np.int64]:
    """Returns how long the traced ``predict`` spans that layers hang under took, in nanoseconds.

    Args:
        chunks: The spans.
        batches: As for ``layers``.
    """
    parents: list[NDArray[np.int64]] = []
    predicted: list[tuple[NDArray[np.int64], NDArray[np.int64]]] = []
    for chunk in chunks:
        layer = _of_level(chunk, TraceLevel.FRAMEWORK_TRACE) & _counted(chunk, batches)
        parents.append(np.unique(chunk.parent_id[layer]))
        model = _of_level(chunk, TraceLevel.MODEL_TRACE)
        predicted.append((chunk.span_id[model], chunk.duration_ns[model]))
    if not predicted:
        return np.empty(0, np.int64)
    ids, durations_ns = (np.concatenate(column) for column in zip(*predicted, strict=True))
    traced: NDArray[np.int64] = durations_ns[np.isin(ids, np.concatenate(parents))]
    return traced


def _by_kind(
    chunk: SpanChunk, batches: NDArray[np.bool_] | None
) -> Iterator[tuple[SpanKind, NDArray[np.int64]]]:
    """The durations of each kind of layer in a chunk."""
    places = np.flatnonzero(_of_level(chunk, TraceLevel.FRAMEWORK_TRACE) & _counted(chunk, batches))
    if not len(places):
        return
    order = places[np.argsort(chunk.kind[places], kind="stable")]
    kinds, starts = np.unique(chunk.kind[order], return_index=True)
    for kind, durations_ns in zip(
        kinds.tolist(), np.split(chunk.duration_ns[order], starts[1:]), strict=True
    ):
        yield chunk.kinds[kind], durations_ns


def _of_level(chunk: SpanChunk, level: TraceLevel) -> NDArray[np.bool_]:
    wanted = np.array([kind.level is level for kind in chunk.kinds], np.bool_)
    chosen: NDArray[np.bool_] = wanted[chunk.kind]
    return chosen


def _counted(chunk: SpanChunk, batches: NDArray[np.bool_] | None) -> NDArray[np.bool_]:
    in_batch: NDArray[np.bool_] = chunk.batch != NO_BATCH
    if batches is None:
        return in_batch
    known = in_batch & (chunk.batch < len(batches))
    counted: NDArray[np.bool_] = known & np.append(batches, False)[np.where(known, chunk.batch, len(batches))]
    return counted


def _key(kind: SpanKind) -> tuple[int, str, str, tuple[str, ...], tuple[str, ...]]:
    index, type_ = kind.attribute("layer_index"), kind.attribute("layer_type")
    return (
        index if isinstance(index, int) else -1,
        kind.name,
        type_ if isinstance(type_, str) else "",
        _texts(kind.attribute("input_shapes")),
        _texts(kind.attribute("output_shapes")),
    )


def _texts(value: object) -> tuple[str, ...]:
    return tuple(map(str, value)) if isinstance(value, tuple) else ()
