"""Spans: trace levels, the kinds of spans, and chunks of spans in columns."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum, IntEnum
from typing import TYPE_CHECKING, TypeAlias

from inferometer.manifests.errors import ConfigurationError, suggestion

if TYPE_CHECKING:  # the help names trace levels, and needs no NumPy
    import numpy as np
    from numpy.typing import NDArray


class TraceLevel(IntEnum):
    """The levels of tracing; each level includes the ones before it."""

    NO_TRACE = 0
    APPLICATION_TRACE = 1
    MODEL_TRACE = 2
    FRAMEWORK_TRACE = 3
    ML_LIBRARY_TRACE = 4
    SYSTEM_LIBRARY_TRACE = 5
    HARDWARE_TRACE = 6
    FULL_TRACE = 7

    @classmethod
    def named(cls, name: str) -> TraceLevel:
        """Returns the level of a name; case does not matter. Raises ConfigurationError if there is none."""
        try:
            return cls[name.strip().upper()]
        except KeyError:
            raise ConfigurationError(
                f'unknown trace level "{name}"; {suggestion(name, cls.__members__)}'
            ) from None


AttributeValue: TypeAlias = (
    str | bool | int | float | tuple[str, ...] | tuple[bool, ...] | tuple[int, ...] | tuple[float, ...]
)
"""The values that OpenTelemetry allows for an attribute."""
Attributes: TypeAlias = tuple[tuple[str, AttributeValue], ...]
"""Attributes by their names; a tuple, so that what has them can be compared and hashed."""
NO_PARENT = 0
"""The parent's id of a root span."""
NO_BATCH = -1
"""The batch of a span outside all batches."""


class SpanRole(Enum):
    """The side of a call that a span is, which OpenTelemetry calls the kind of a span."""

    INTERNAL = "internal"
    """No call."""
    CLIENT = "client"
    """A call to another process, as its caller sees it."""
    SERVER = "server"
    """A call, as the process that answers it sees it."""


@dataclass(frozen=True, slots=True)
class SpanLink:
    """A reference to a span that is not the parent, possibly of another trace.

    ``trace_id`` has 32 hexadecimal digits; ``span_id`` is a signed 64-bit number.
    """

    trace_id: str
    span_id: int


@dataclass(frozen=True, slots=True)
class SpanKind:
    """The common part of repeated spans: the same layer in every batch is one kind.

    Attributes:
        name: The displayed name: ``predict``, ``layer1.0.conv1``, ``aten::addmm``.
        level: The lowest trace level that records it.
        attributes: By their names in OpenTelemetry's semantic conventions if there is one, else
            ``inferometer.…``; sorted, so that equal kinds compare equal.
        role: The side of a call that its spans are.
    """

    name: str
    level: TraceLevel
    attributes: Attributes = ()
    role: SpanRole = SpanRole.INTERNAL

    @classmethod
    def of(cls, name: str, level: TraceLevel, **attributes: AttributeValue | None) -> SpanKind:
        """Returns a kind; ``batch_size=8`` becomes ``inferometer.batch_size``, and None is left out.

        A name with a dot, such as ``host.name``, follows OpenTelemetry's conventions and stays unchanged.
        """
        given = {
            key if "." in key else f"inferometer.{key}": value
            for key, value in attributes.items()
            if value is not None
        }
        return cls(name, level, tuple(sorted(given.items())))

    def attribute(self, name: str) -> AttributeValue | None:
        """Returns the value of ``inferometer.NAME``; None if there is none."""
        wanted = f"inferometer.{name}"
        return next((value for key, value in self.attributes if key == wanted), None)


@dataclass(frozen=True, slots=True, eq=False)
class SpanChunk:
    """Spans in columns, each of n values; a span never refers to the kinds of another chunk.

    Attributes:
        kinds: The kinds that ``kind`` refers to.
        kind: int64; the position in ``kinds``.
        span_id: int64; unique in the trace, never 0. Those of this program are positive; one from elsewhere
            with its highest bit set is negative here.
        parent_id: int64; ``NO_PARENT`` at the root. The parent may be in another chunk.
        start_ns: int64; nanoseconds since 1970, all on one clock.
        duration_ns: int64; not negative.
        batch: int64; the number of the batch within its run, from 0; ``NO_BATCH`` for others.
        thread: int64; the thread, or the stream of a device.
        resource: The process that recorded the spans; empty for this one. See ``resource.process_resource``.
        links: The links of those spans that have any, by their ids. The store and the agent's protocol keep
            none: they are only exported.
    """

    kinds: tuple[SpanKind, ...]
    kind: NDArray[np.int64]
    span_id: NDArray[np.int64]
    parent_id: NDArray[np.int64]
    start_ns: NDArray[np.int64]
    duration_ns: NDArray[np.int64]
    batch: NDArray[np.int64]
    thread: NDArray[np.int64]
    resource: Attributes = field(default=(), kw_only=True)
    links: Mapping[int, Sequence[SpanLink]] = field(default_factory=dict, kw_only=True)

    def __len__(self) -> int:
        """Returns the number of spans."""
        return len(self.kind)

    def values(self, *columns: str) -> Iterator[tuple[int, ...]]:
        """Yields each span as a tuple of its values in ``columns``; all of ``COLUMNS`` by default."""
        return zip(*(getattr(self, name).tolist() for name in columns or COLUMNS), strict=True)


COLUMNS: Sequence[str] = ("kind", "span_id", "parent_id", "start_ns", "duration_ns", "batch", "thread")
"""The columns of a chunk, in order."""
