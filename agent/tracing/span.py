"""The span: what a stretch of time was spent on; many of them are kept in columns."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from agent.trace_level import TraceLevel

AttributeValue: TypeAlias = (
    str | bool | int | float | tuple[str, ...] | tuple[bool, ...] | tuple[int, ...] | tuple[float, ...]
)
"""What OpenTelemetry allows as the value of an attribute."""
NO_PARENT = 0
"""The parent's id of a span at the root."""
NO_BATCH = -1
"""The batch of a span that belongs to none."""


@dataclass(frozen=True, slots=True)
class SpanKind:
    """What spans that repeat have in common: the same layer in every batch is one kind.

    Attributes:
        name: What a person reads: ``predict``, ``layer1.0.conv1``, ``aten::addmm``.
        level: The trace level that it is recorded from.
        attributes: By their names of OpenTelemetry's semantic conventions where there is one, else
            ``inferscope.…``; sorted, so that equal kinds compare equal.
    """

    name: str
    level: TraceLevel
    attributes: tuple[tuple[str, AttributeValue], ...] = ()

    @classmethod
    def of(cls, name: str, level: TraceLevel, **attributes: AttributeValue | None) -> SpanKind:
        """Returns a kind; ``batch_size=8`` becomes ``inferscope.batch_size``, and None is left out.

        A name with a dot, such as ``host.name``, is one of OpenTelemetry's conventions and stays as it is.
        """
        given = {
            key if "." in key else f"inferscope.{key}": value
            for key, value in attributes.items()
            if value is not None
        }
        return cls(name, level, tuple(sorted(given.items())))

    def attribute(self, name: str) -> AttributeValue | None:
        """The value of ``inferscope.NAME``; None where there is none."""
        wanted = f"inferscope.{name}"
        return next((value for key, value in self.attributes if key == wanted), None)


@dataclass(frozen=True, slots=True, eq=False)
class SpanChunk:
    """Spans in columns, each of n values; a span never refers to the kinds of another chunk.

    Attributes:
        kinds: The kinds that ``kind`` counts.
        kind: int64; the place in ``kinds``.
        span_id: int64; unique in the trace, never 0. Those of this program are positive; one that comes from
            elsewhere with its highest bit set is negative here.
        parent_id: int64; ``NO_PARENT`` at the root. The parent may be in another chunk.
        start_ns: int64; nanoseconds since 1970, all on one clock.
        duration_ns: int64; not negative.
        batch: int64; the number of the batch within its run, from 0; ``NO_BATCH`` for others.
        thread: int64; the thread, or stream of a device, that the time was spent on.
    """

    kinds: tuple[SpanKind, ...]
    kind: NDArray[np.int64]
    span_id: NDArray[np.int64]
    parent_id: NDArray[np.int64]
    start_ns: NDArray[np.int64]
    duration_ns: NDArray[np.int64]
    batch: NDArray[np.int64]
    thread: NDArray[np.int64]

    def __len__(self) -> int:
        """The number of spans."""
        return len(self.kind)


COLUMNS: Sequence[str] = ("kind", "span_id", "parent_id", "start_ns", "duration_ns", "batch", "thread")
"""The columns of a chunk, in order."""
