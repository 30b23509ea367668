"""Aggregation of the layers of a traced model over its batches."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from inferometer.agent.tracing.recorder import NO_BATCH, SpanChunk, SpanKind, TraceLevel

_Key: TypeAlias = tuple[int, str, str, tuple[str, ...], tuple[str, ...], str, tuple[str, ...]]
_MEMORY = ("allocated_bytes", "peak_bytes")


@dataclass(slots=True, eq=False)
class Layer:
    """What the spans of one layer have in common, and their durations.

    Fields that the framework does not report are empty or None.

    Attributes:
        index: The position in the order of execution, from 0.
        name: The layer.
        type: The operator.
        input_shapes: Texts such as ``8x3x224x224``.
        output_shapes: The shapes of the outputs, in the same form.
        phase: In a training step, ``forward``, ``loss``, ``backward`` or ``update``; empty in inference.
        arguments: The parameters as the framework reports them; see ``agent.tracing.recorder``.
        durations_ns: int64; one for each execution, in the stored order of the spans.
        allocated_bytes: The largest value that was recorded for any execution.
        peak_bytes: The largest value that was recorded for any execution.
    """

    index: int
    name: str
    type: str
    input_shapes: tuple[str, ...]
    output_shapes: tuple[str, ...]
    phase: str
    arguments: tuple[str, ...]
    durations_ns: NDArray[np.int64]
    allocated_bytes: int | None
    peak_bytes: int | None


@dataclass(slots=True, eq=False)
class _Collected:
    durations_ns: array[int] = field(default_factory=lambda: array("q"))
    memory: dict[str, int] = field(default_factory=dict)


def layers(chunks: Iterable[SpanChunk], batches: NDArray[np.bool_] | None = None) -> list[Layer]:
    """Returns the layers in the order of execution.

    Memory: eight bytes for each span of a layer, and one chunk.

    Args:
        chunks: The spans; those of level FRAMEWORK_TRACE in a batch are layers.
        batches: bool, by batch number; whether a batch is included. None includes all.
    """
    found: dict[_Key, _Collected] = {}
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


def _by_kind(
    chunk: SpanChunk, batches: NDArray[np.bool_] | None
) -> Iterator[tuple[SpanKind, NDArray[np.int64]]]:
    """Yields the durations of each kind of layer in a chunk."""
    is_layer = np.array([kind.level is TraceLevel.FRAMEWORK_TRACE for kind in chunk.kinds], np.bool_)
    places = np.flatnonzero(is_layer[chunk.kind] & _counted(chunk, batches))
    if not len(places):
        return
    order = places[np.argsort(chunk.kind[places], kind="stable")]
    kinds, starts = np.unique(chunk.kind[order], return_index=True)
    for kind, durations_ns in zip(
        kinds.tolist(), np.split(chunk.duration_ns[order], starts[1:]), strict=True
    ):
        yield chunk.kinds[kind], durations_ns


def _counted(chunk: SpanChunk, batches: NDArray[np.bool_] | None) -> NDArray[np.bool_]:
    in_batch: NDArray[np.bool_] = chunk.batch != NO_BATCH
    if batches is None:
        return in_batch
    known = in_batch & (chunk.batch < len(batches))
    counted: NDArray[np.bool_] = known & np.append(batches, False)[np.where(known, chunk.batch, len(batches))]
    return counted


def _key(kind: SpanKind) -> _Key:
    index, type_ = kind.attribute("layer_index"), kind.attribute("layer_type")
    phase = kind.attribute("phase")
    return (
        index if isinstance(index, int) else -1,
        kind.name,
        type_ if isinstance(type_, str) else "",
        _texts(kind.attribute("input_shapes")),
        _texts(kind.attribute("output_shapes")),
        phase if isinstance(phase, str) else "",
        _texts(kind.attribute("arguments")),
    )


def _texts(value: object) -> tuple[str, ...]:
    return tuple(map(str, value)) if isinstance(value, tuple) else ()
