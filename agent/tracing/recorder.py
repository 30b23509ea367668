"""Spans, the recorder that stores them in columns, and the interface to a framework's own profiler.

``Profiler`` records layers during ``predict``. The spans of calls between processes are named according to
OpenTelemetry's gRPC and HTTP conventions. NumPy is loaded only with the first chunk, because the options of
commands use ``TraceLevel``.
"""

from __future__ import annotations

import itertools
import re
import secrets
import threading
import time
from abc import ABC, abstractmethod
from array import array
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from enum import Enum, IntEnum
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, TypeAlias

from inferometer.manifests.errors import ConfigurationError, suggestion

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

TRACEPARENT_KEY = "traceparent"
"""The W3C header; a call is not traced if this is missing, malformed or marked as not sampled."""


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
        """Returns the level with a name, ignoring case; raises ConfigurationError if there is none."""
        try:
            return cls[name.strip().upper()]
        except KeyError:
            raise ConfigurationError(
                f'unknown trace level "{name}"; {suggestion(name, cls.__members__)}'
            ) from None


AttributeValue: TypeAlias = (
    str | bool | int | float | tuple[str, ...] | tuple[bool, ...] | tuple[int, ...] | tuple[float, ...]
)
"""The types of values that OpenTelemetry allows for an attribute."""
Attributes: TypeAlias = tuple[tuple[str, AttributeValue], ...]
"""Attributes by name; a tuple, so that objects with attributes can be compared and hashed."""
NO_PARENT = 0
"""The parent id of a root span."""
NO_BATCH = -1
"""The batch number of a span that belongs to no batch."""


class SpanRole(Enum):
    """The side of a call that a span represents; OpenTelemetry calls this the span kind."""

    INTERNAL = "internal"
    """No call."""
    CLIENT = "client"
    """A call to another process, as seen by its caller."""
    SERVER = "server"
    """A call, as seen by the process that answers it."""


@dataclass(frozen=True, slots=True)
class SpanKind:
    """What repeated spans have in common: the spans of a layer in all batches are of one kind.

    Attributes:
        name: The name to display: ``predict``, ``layer1.0.conv1``, ``aten::addmm``.
        level: The lowest trace level at which it is recorded.
        attributes: Named as in OpenTelemetry's semantic conventions if they define a name, otherwise
            ``inferometer.…``; sorted, so that equal kinds compare equal.
        role: The side of a call that its spans represent.
    """

    name: str
    level: TraceLevel
    attributes: Attributes = ()
    role: SpanRole = SpanRole.INTERNAL

    @classmethod
    def of(cls, name: str, level: TraceLevel, **attributes: AttributeValue | None) -> SpanKind:
        """Returns a kind; ``batch_size=8`` is named ``inferometer.batch_size``, and None is left out.

        A name with a dot, such as ``host.name``, follows OpenTelemetry's conventions and stays unchanged.
        """
        given = {
            key if "." in key else f"inferometer.{key}": value
            for key, value in attributes.items()
            if value is not None
        }
        return cls(name, level, tuple(sorted(given.items())))

    def attribute(self, name: str) -> AttributeValue | None:
        """Returns the value of the attribute ``inferometer.NAME``; None if there is none."""
        return dict(self.attributes).get(f"inferometer.{name}")


@dataclass(frozen=True, slots=True, eq=False)
class SpanChunk:
    """Spans in columns of n values each; a span never refers to the kinds of another chunk.

    Attributes:
        kinds: The kinds to which ``kind`` refers.
        kind: int64; the index in ``kinds``.
        span_id: int64; unique in the trace, never 0. This program's ids are positive; an id from elsewhere
            whose highest bit is set is negative here.
        parent_id: int64; ``NO_PARENT`` at the root. The parent may be in another chunk.
        start_ns: int64; nanoseconds since 1970, all measured on one clock.
        duration_ns: int64; not negative.
        batch: int64; the number of the batch within its run, from 0; ``NO_BATCH`` if there is none.
        thread: int64; the thread, or the stream of a device.
        resource: The process that recorded the spans; empty for this one. See ``process_resource``.
        links: The spans to which a span refers besides its parent, possibly of other traces, by the span's
            id. Neither the store nor the agent's protocol contains links: they are only exported.
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
    links: Mapping[int, Sequence[TraceContext]] = field(default_factory=dict, kw_only=True)

    def __len__(self) -> int:
        return len(self.kind)

    def values(self, *columns: str) -> Iterator[tuple[int, ...]]:
        """Yields each span as a tuple of its values in ``columns``, by default all of ``COLUMNS``."""
        return zip(*(getattr(self, name).tolist() for name in columns or COLUMNS), strict=True)


COLUMNS: Sequence[str] = ("kind", "span_id", "parent_id", "start_ns", "duration_ns", "batch", "thread")
"""The columns of a chunk, in order."""
_TRACEPARENT = re.compile(r"([0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(-.*)?")
ALL_BITS = 2**64 - 1
"""A mask that makes an id unsigned, as it is in messages."""


@dataclass(frozen=True, slots=True)
class TraceContext:
    """A position in a trace, as exchanged between processes (W3C Trace Context, level 1).

    ``trace_id`` has 32 lower-case hexadecimal digits, not all zero. ``span_id``, the parent of the spans that
    follow, is a signed 64-bit number, which databases and NumPy can store; 0 means none. Spans of a context
    that is not ``sampled`` are not recorded.
    """

    trace_id: str
    span_id: int = 0
    sampled: bool = True

    @classmethod
    def new(cls) -> TraceContext:
        """Returns the context of a new trace."""
        return cls(f"{secrets.randbits(128) or 1:032x}")

    @classmethod
    def parse(cls, traceparent: str) -> TraceContext:
        """Returns the context in a ``traceparent`` header; raises ConfigurationError if it is not valid."""
        match = _TRACEPARENT.fullmatch(traceparent.strip())
        if match is None or match[1] == "ff" or not int(match[2], 16) or not int(match[3], 16):
            shown = repr(traceparent[:60])
            raise ConfigurationError(f"traceparent: found {shown}; allowed: 00-TRACE_ID-PARENT_ID-FLAGS")
        if match[1] == "00" and match[5]:
            raise ConfigurationError("traceparent: version 00 has four fields; found more")
        span_id = int.from_bytes(bytes.fromhex(match[3]), "big", signed=True)
        return cls(match[2], span_id, bool(int(match[4], 16) & 0x01))

    @property
    def traceparent(self) -> str:
        """The header's value; only valid for a context with a span."""
        return f"00-{self.trace_id}-{span_id_text(self.span_id)}-{int(self.sampled):02x}"


def span_id_text(span_id: int) -> str:
    """Returns the 16 hexadecimal digits of a span's id."""
    return f"{span_id & ALL_BITS:016x}"


CHUNK_SPANS = 16_384
"""The maximum number of spans in a chunk."""
MAX_SPANS = 20_000_000
"""The maximum number of spans per recorder, about 60 bytes each; any more are dropped and counted."""
_KIND_CHARACTERS_PER_CHUNK = 2_000_000  # a chunk becomes a document, and MongoDB's hold 16 MB


class SpanRecorder:
    """Keeps at most ``limit`` spans of one trace that this process records or receives. Thread-safe.

    Times are given on ``clock`` and stored as nanoseconds since 1970, with an offset read once from
    ``wall_clock``, so that a step of the system clock does not distort a trace. ``context`` contains the
    topmost spans' parent. Callers must not add spans of levels deeper than ``level``.
    """

    def __init__(
        self,
        context: TraceContext,
        level: TraceLevel,
        *,
        limit: int = MAX_SPANS,
        clock: Callable[[], int] = time.perf_counter_ns,
        wall_clock: Callable[[], int] = time.time_ns,
    ) -> None:
        self.context = context
        self.level = level
        self.clock = clock
        self.epoch_offset_ns = wall_clock() - clock()
        """The difference between nanoseconds since 1970 and the time on ``clock``."""
        self._limit = limit
        self._lock = threading.Lock()
        # The upper half of an id distinguishes the recorders of a trace, and keeps ids positive in 64 bits.
        self._ids = itertools.count(((secrets.randbits(31) or 1) << 32) + 1)
        self._full: list[SpanChunk] = []
        self._kinds: dict[SpanKind, int] = {}
        self._kind_characters = 0
        self._columns = tuple(array("q") for _ in COLUMNS)
        self._count = 0
        self.dropped = 0
        """The number of spans that were dropped because of the limit."""
        self._notes: dict[str, None] = {}

    def wants(self, level: TraceLevel) -> bool:
        """Returns whether spans of a level are recorded."""
        return level <= self.level

    def new_id(self) -> int:
        """Returns an id for a span that will be added later, so that its children can refer to it."""
        return next(self._ids)

    def add(
        self,
        kind: SpanKind,
        start_ns: int,
        end_ns: int,
        parent_id: int,
        *,
        span_id: int | None = None,
        batch: int = NO_BATCH,
        thread: int = 0,
    ) -> int:
        """Keeps a span that has ended and returns its id: ``span_id`` from ``new_id``, or else a new one.

        Its times are on ``clock``, and it must not end before it starts. The parent of a topmost span is
        ``context.span_id``.
        """
        span_id = next(self._ids) if span_id is None else span_id
        with self._lock:
            if self._count >= self._limit:
                self.dropped += 1
                return span_id
            place = self._kinds.get(kind)
            if place is None:
                place = self._kinds[kind] = len(self._kinds)
                self._kind_characters += len(kind.name) + len(str(kind.attributes))
            values = (place, span_id, parent_id, start_ns + self.epoch_offset_ns, end_ns - start_ns)
            for column, value in zip(self._columns, (*values, batch, thread), strict=True):
                column.append(value)
            self._count += 1
            if len(self._columns[0]) >= CHUNK_SPANS or self._kind_characters >= _KIND_CHARACTERS_PER_CHUNK:
                self._cut()
        return span_id

    def add_chunk(self, chunk: SpanChunk) -> None:
        """Keeps spans that another process has recorded in the same trace."""
        with self._lock:
            if self._count + len(chunk) > self._limit:
                self.dropped += len(chunk)
                return
            self._full.append(chunk)
            self._count += len(chunk)

    def add_dropped(self, count: int) -> None:
        """Counts spans that another process has dropped."""
        with self._lock:
            self.dropped += count

    def note(self, text: str) -> None:
        """Keeps a one-line note about missing data of this trace; duplicates are ignored."""
        with self._lock:
            self._notes[text] = None

    @property
    def notes(self) -> tuple[str, ...]:
        """The notes, in order."""
        with self._lock:
            return tuple(self._notes)

    def __len__(self) -> int:
        return self._count

    def chunks(self) -> tuple[SpanChunk, ...]:
        """Returns all spans recorded so far, and keeps them."""
        with self._lock:
            self._cut()
            return tuple(self._full)

    def take(self) -> tuple[SpanChunk, ...]:
        """Returns the spans added since the last call and discards them, but counts them in the limit."""
        with self._lock:
            self._cut()
            taken, self._full = tuple(self._full), []
            return taken

    def _cut(self) -> None:
        """Moves the spans from the columns to a new chunk."""
        if not len(self._columns[0]):
            return
        import numpy as np  # not for the help of the command line, which shows the levels

        columns = (np.frombuffer(column, np.int64) for column in self._columns)
        self._full.append(SpanChunk(tuple(self._kinds), *columns))
        self._kinds, self._kind_characters = {}, 0
        self._columns = tuple(array("q") for _ in COLUMNS)


@dataclass(frozen=True, slots=True)
class TraceScope:
    """An open span, which is the parent of further spans, and the recorder of these spans.

    ``first_batch`` is the number of the next batch. Without ``layers``, no layers are recorded: a warm-up
    runs under the profiler only to warm that up too.
    """

    recorder: SpanRecorder
    parent_id: int
    layers: bool = True
    first_batch: int = 0

    @classmethod
    def top(cls, recorder: SpanRecorder) -> TraceScope:
        """Returns the scope for the topmost spans of a recorder."""
        return cls(recorder, recorder.context.span_id)

    @property
    def context(self) -> TraceContext:
        """The context to send to another process."""
        return replace(self.recorder.context, span_id=self.parent_id)

    @contextmanager
    def span(self, kind: SpanKind) -> Iterator[TraceScope]:
        """Records the time of the ``with`` block, even if it raises; yields the scope below the span."""
        clock = self.recorder.clock
        inner = TraceScope(self.recorder, self.recorder.new_id(), self.layers)
        started_ns = clock()
        try:
            yield inner
        finally:
            self.recorder.add(kind, started_ns, clock(), self.parent_id, span_id=inner.parent_id)

    def add(
        self, kind: SpanKind, start_ns: int, end_ns: int, *, batch: int = NO_BATCH, thread: int = 0
    ) -> TraceScope:
        """Records a span that has ended and returns the scope below it; see ``SpanRecorder.add``."""
        span_id = self.recorder.add(kind, start_ns, end_ns, self.parent_id, batch=batch, thread=thread)
        return TraceScope(self.recorder, span_id, self.layers)

    def without_layers(self) -> TraceScope:
        """Returns the same scope, but one that records no spans below MODEL_TRACE."""
        return replace(self, layers=False)


def traced(scope: TraceScope | None, kind: SpanKind) -> AbstractContextManager[TraceScope | None]:
    """Equals ``scope.span(kind)``, but does nothing if there is no scope."""
    return nullcontext() if scope is None else scope.span(kind)


@dataclass(frozen=True, slots=True)
class PredictWindow:
    """A profiled call of ``Predictor.predict`` for a numbered batch, with times on the recorder's clock.

    ``span_id`` is the id of its MODEL_TRACE span, which is the parent of the layers.
    """

    span_id: int
    start_ns: int
    end_ns: int
    batch: int


class Profiler(ABC):
    """Records the layers of a model during predictions, and at deeper levels the operators inside them.

    The order of calls is ``start``, then any number of predictions, each followed by ``predicted``, then
    ``collect``; this may be repeated. The predicting thread makes all calls, outside the timed predictions.
    ``close`` may be called at any time, and more than once.

    Spans of level FRAMEWORK_TRACE are *layers*: they are in the order of execution, and do not overlap if the
    framework runs one at a time. Their kinds have the attributes

    - ``layer_index``: int, the position in the order of execution, from 0;
    - ``layer_type``: the operator, such as ``Convolution`` or ``aten::conv2d``;
    - ``input_shapes``, ``output_shapes``: texts such as ``8x3x224x224``, if known;
    - ``arguments``: texts with the parameters in the framework's form, such as strides, if known;
    - ``allocated_bytes``, ``peak_bytes``: ints, if known;

    each with the prefix ``inferometer.``, as in ``SpanKind.of``. Spans of ML_LIBRARY_TRACE are operators
    inside a layer. Spans of SYSTEM_LIBRARY_TRACE are calls to the device's runtime, kernels and copies; their
    parent is the layer, and they have a ``correlation_id`` if there is one. A span lies inside its parent,
    except for kernels and copies, which run on the device's own time line.

    Attributes:
        round_batches: The number of batches after which to ``collect`` and ``start`` again, to limit memory
            use; it may change at ``collect``.
    """

    round_batches: int = 16

    def __init__(self, level: TraceLevel, *, gpu: bool) -> None:
        self._level = level
        self._gpu = gpu
        self._windows: list[PredictWindow] = []
        self._folder: TemporaryDirectory[str] | None = None

    @abstractmethod
    def start(self) -> None:
        """Starts recording.

        Raises:
            PredictionError: The framework's profiler is not available, for instance because another one runs.
        """

    def predicted(self, window: PredictWindow) -> None:
        """Registers a prediction made since ``start``."""
        self._windows.append(window)

    @abstractmethod
    def collect(self, recorder: SpanRecorder) -> None:
        """Stops recording, and adds the spans of the predictions since ``start``.

        Data that the framework does not provide is reported with ``SpanRecorder.note``.
        """

    @abstractmethod
    def close(self) -> None:
        """Stops recording and removes all hooks; calling it again does nothing."""

    def open_folder(self) -> Path:
        """Returns a temporary folder for the framework's files, created at the first call."""
        if self._folder is None:
            self._folder = TemporaryDirectory(prefix="inferometer-")
        return Path(self._folder.name)

    def remove_folder(self) -> None:
        """Removes the temporary folder, if there is one."""
        if self._folder is not None:
            folder, self._folder = self._folder, None
            folder.cleanup()

    def note_missing_device_calls(self, recorder: SpanRecorder, framework: str) -> None:
        """Notes that a framework's profiler records no device calls, if the trace level includes them."""
        if self._level >= TraceLevel.SYSTEM_LIBRARY_TRACE:
            why = f"{framework}'s profiler has none" if self._gpu else "the model runs on the CPU"
            recorder.note(f"no calls to a device's runtime, kernels or copies: {why}")


@dataclass(frozen=True, slots=True)
class LayerWriter:
    """Adds spans below a prediction, clipped to its time in case the clocks differ."""

    recorder: SpanRecorder
    window: PredictWindow

    def add(
        self, kind: SpanKind, start_ns: int, end_ns: int, parent_id: int | None = None, thread: int = 0
    ) -> int:
        """Adds a span and returns its id; ``parent_id`` is the layer that contains it, None for a layer.

        The times are on the recorder's clock; ``thread`` is the thread or stream on which it ran.
        """
        start_ns = min(max(start_ns, self.window.start_ns), self.window.end_ns)
        end_ns = min(max(end_ns, start_ns), self.window.end_ns)
        parent_id = self.window.span_id if parent_id is None else parent_id
        return self.recorder.add(kind, start_ns, end_ns, parent_id, batch=self.window.batch, thread=thread)


def shape_texts(shapes: Iterable[Iterable[int]]) -> tuple[str, ...] | None:
    """Returns shapes as texts such as ``8x3x224x224``, omitting scalars; None if none remain."""
    return tuple(text for shape in shapes if (text := "x".join(map(str, shape)))) or None


_OK = "OK"
_SERVER_FAULTS = {"UNKNOWN", "DEADLINE_EXCEEDED", "UNIMPLEMENTED", "INTERNAL", "UNAVAILABLE", "DATA_LOSS"}
"""The codes with which a server's span has failed; all other codes are caused by the client."""
_HTTP_OK, _HTTP_CLIENT_ERRORS, _HTTP_SERVER_ERRORS = 200, 400, 500


def client_call(path: str, host: str, port: int) -> SpanKind:
    """Returns the kind of span for a call to a server's method at ``package.Service/Method``."""
    return call_span(SpanRole.CLIENT, path, rpc_attributes(path) | address_attributes("server", host, port))


def http_client_call(verb: str, template: str, host: str, port: int) -> SpanKind:
    """Returns the kind of span for a request to a server; ``template`` is its path with names in braces."""
    attributes = {
        "http.request.method": verb,
        "url.template": template,
        **address_attributes("server", host, port),
    }
    return call_span(SpanRole.CLIENT, f"{verb} {template}", attributes)


def address_attributes(side: str, host: str, port: int) -> dict[str, AttributeValue]:
    """Returns the attributes of the address of one ``side``: ``server`` or ``client``."""
    return {f"{side}.address": host.strip("[]"), f"{side}.port": port}


def ended(call: SpanKind, code: Enum | None = None, http_status: int | None = None) -> SpanKind:
    """Returns the kind of span for a call once it has ended with a ``grpc.StatusCode``, or None for OK.

    A request over HTTP has its ``http_status`` instead, if there was any response.
    """
    name, number = (_OK, 0) if code is None else (code.name, code.value[0])
    attributes, fault = dict(call.attributes), "" if name == _OK else name
    if "http.request.method" in attributes:
        status = _HTTP_OK if http_status is None and name == _OK else http_status
        if status is not None:
            attributes["http.response.status_code"] = status
        least = _HTTP_CLIENT_ERRORS if call.role is SpanRole.CLIENT else _HTTP_SERVER_ERRORS
        if status is not None and status >= _HTTP_CLIENT_ERRORS:  # with a lower one, the response broke off
            fault = str(status) if status >= least else ""
    else:
        attributes["rpc.grpc.status_code"] = number
        fault = name if name != _OK and (call.role is SpanRole.CLIENT or name in _SERVER_FAULTS) else ""
    if fault:
        attributes["error.type"] = fault
    return replace(call, attributes=tuple(sorted(attributes.items())))


def rpc_attributes(path: str) -> dict[str, AttributeValue]:
    """Returns the attributes of a call to the method at ``package.Service/Method``."""
    service, _, method = path.rpartition("/")
    return {"rpc.system": "grpc", "rpc.service": service, "rpc.method": method}


def call_span(role: SpanRole, name: str, attributes: dict[str, AttributeValue]) -> SpanKind:
    """Returns the kind of span for one side of a call."""
    return SpanKind(name, TraceLevel.APPLICATION_TRACE, tuple(sorted(attributes.items())), role)
