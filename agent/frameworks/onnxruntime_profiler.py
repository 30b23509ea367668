"""ONNX Runtime's profiler as spans: one layer for each node of the optimized graph."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Protocol

from agent.trace_level import TraceLevel
from agent.tracing.layer_writer import LayerWriter, shape_texts
from agent.tracing.profiler import PredictWindow, Profiler
from agent.tracing.recorder import SpanRecorder
from agent.tracing.span import SpanKind
from manifests.errors import PredictionError

_NS_PER_US = 1000
_RUN = "model_run"
_NODE = "_kernel_time"
# The operators that run graphs of their own.
_WITH_GRAPHS = frozenset(
    {"If", "Loop", "Scan", "BeamSearch", "GreedySearch", "Sampling", "WhisperBeamSearch"}
)
# What the optimizer and the exporter append to the name of a node.
_DECORATION = re.compile(r"(_output_\d+)?(_nchwc)?$")
_EVENTS_IN_A_ROUND = 10_000  # about 1 kB each in the file; ONNX Runtime itself stops at 1,000,000


class ProfiledSessions(Protocol):
    """What a profiler needs of its predictor."""

    def write_graph(self, folder: Path) -> Path:
        """Returns the file of the graph, which it may write into a folder."""

    def open_profiled(self, graph: Path, prefix: Path) -> Any:
        """Returns a session that profiles into a file of a prefix, and is as warm as one that has run."""

    def use(self, session: Any) -> None:
        """Predicts in a session from now on; None for the one without a profiler."""


class ONNXRuntimeProfiler(Profiler):
    """Profiles a second session of the same graph and options, in which the predictor runs meanwhile.

    A session gives what it has recorded once, when its profiler is stopped for good. So each round from
    ``start`` to ``collect`` has a session of its own, which runs once on zeros before, unless it is the
    first.

    A layer is a node of the graph as ONNX Runtime has optimized it: a convolution that was fused with what
    follows has the name of the last part. Nodes of a graph inside a node, such as a loop's, are its
    ML_LIBRARY spans. ``allocated_bytes`` is the size of a layer's outputs.

    Args:
        sessions: Opens the sessions.
        level: How deep to look.
        gpu: Whether the model is on a GPU.
    """

    def __init__(self, sessions: ProfiledSessions, level: TraceLevel, *, gpu: bool) -> None:
        self._sessions = sessions
        self._level = level
        self._gpu = gpu
        self._windows: list[PredictWindow] = []
        self._folder: TemporaryDirectory[str] | None = None
        self._graph: Path | None = None
        self._session: Any = None

    def start(self) -> None:
        """Opens a session that profiles, and has the predictor use it; see ``Profiler``."""
        self._windows = []
        if self._session is not None:
            return
        if self._folder is None:
            self._folder = TemporaryDirectory(prefix="inferscope-")
        folder = Path(self._folder.name)
        if self._graph is None:
            self._graph = self._sessions.write_graph(folder)
        self._session = self._sessions.open_profiled(self._graph, folder / "profile")
        self._sessions.use(self._session)

    def predicted(self, window: PredictWindow) -> None:
        """Remembers a prediction; see ``Profiler``."""
        self._windows.append(window)

    def collect(self, recorder: SpanRecorder) -> None:
        """Closes the session and adds what it has recorded; see ``Profiler``."""
        if self._session is None:
            return
        clock_offset_ns = recorder.epoch_offset_ns
        started_ns, events = self._stop()
        self._note(recorder)
        runs = list(_runs(events, started_ns - clock_offset_ns))
        if len(runs) < len(self._windows):
            raise PredictionError(
                f"ONNX Runtime's profiler recorded {len(runs)} runs of the model, not the "
                f"{len(self._windows)} that were made"
            )
        # those before are the ones that have warmed the session up
        for window, run in zip(self._windows, runs[len(runs) - len(self._windows) :], strict=True):
            moved = run.moved_into(window)
            _NodeWriter(LayerWriter(recorder, window), self._level, moved.offset_ns).write(moved.nodes)
        self.round_batches = max(self.round_batches, _EVENTS_IN_A_ROUND * len(runs) // len(events))

    def close(self) -> None:
        """Has the predictor use its own session again, and removes the files; see ``Profiler``."""
        self._sessions.use(None)
        self._session = self._graph = None
        if self._folder is not None:
            folder, self._folder = self._folder, None
            folder.cleanup()

    def _stop(self) -> tuple[int, Sequence[Mapping[str, Any]]]:
        """Ends the session; returns when its profiler was started, in ns since 1970, and its events."""
        session, self._session = self._session, None
        self._sessions.use(None)
        started_ns = session.get_profiling_start_time_ns()
        path = Path(session.end_profiling())
        try:
            events: list[dict[str, Any]] = json.loads(path.read_bytes())
            path.unlink()
        except (OSError, ValueError) as error:
            raise PredictionError(f"{path}: ONNX Runtime's profile cannot be read: {error}") from error
        return started_ns, events

    def _note(self, recorder: SpanRecorder) -> None:
        recorder.note("no peak memory of layers: ONNX Runtime reserves memory for a whole run")
        if self._gpu:
            recorder.note("layers are the time of their launch: ONNX Runtime does not wait for the GPU")
        if self._level >= TraceLevel.SYSTEM_LIBRARY_TRACE:
            why = "ONNX Runtime's profiler has none" if self._gpu else "the model runs on the CPU"
            recorder.note(f"no calls of a device's runtime, kernels or copies: {why}")


@dataclass(frozen=True, slots=True)
class _Node:
    """A node that ran, and those of the graphs inside of it."""

    event: Mapping[str, Any]
    inner: list[_Node] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class _Run:
    """One run of the model: when it was, and its nodes; times in ns, from where ``offset_ns`` says."""

    start_ns: int
    end_ns: int
    nodes: Sequence[_Node]
    offset_ns: int

    def moved_into(self, window: PredictWindow) -> _Run:
        """The run on the clock of a prediction; both clocks may have drifted apart."""
        start_ns, end_ns = self.start_ns + self.offset_ns, self.end_ns + self.offset_ns
        shift_ns = max(window.start_ns - start_ns, min(0, window.end_ns - end_ns))
        return _Run(self.start_ns, self.end_ns, self.nodes, self.offset_ns + shift_ns)


def _runs(events: Sequence[Mapping[str, Any]], offset_ns: int) -> Iterator[_Run]:
    """The runs, from events that are in the order in which they ended."""
    nodes: list[_Node] = []
    for event in events:
        if event.get("cat") == "Node" and event["name"].endswith(_NODE):
            node = _Node(event)
            if event["args"].get("op_name") in _WITH_GRAPHS:
                while nodes and nodes[-1].event["ts"] >= event["ts"]:
                    node.inner.insert(0, nodes.pop())
            nodes.append(node)
        elif event["name"] == _RUN:
            start_us, end_us = event["ts"], event["ts"] + event["dur"]
            yield _Run(start_us * _NS_PER_US, end_us * _NS_PER_US, nodes, offset_ns)
            nodes = []


class _NodeWriter:
    """Adds the nodes of one run."""

    def __init__(self, writer: LayerWriter, level: TraceLevel, offset_ns: int) -> None:
        self._writer = writer
        self._level = level
        self._offset_ns = offset_ns

    def write(self, nodes: Sequence[_Node]) -> None:
        """Adds layers, and below a layer the nodes of the graphs inside of it."""
        for index, node in enumerate(nodes):
            span_id = self._add(node, _kind(node.event, TraceLevel.FRAMEWORK_TRACE, index), None)
            if self._level >= TraceLevel.ML_LIBRARY_TRACE:
                self._write_inner(node.inner, span_id)

    def _write_inner(self, nodes: Sequence[_Node], parent_id: int) -> None:
        for node in nodes:
            span_id = self._add(node, _kind(node.event, TraceLevel.ML_LIBRARY_TRACE), parent_id)
            self._write_inner(node.inner, span_id)

    def _add(self, node: _Node, kind: SpanKind, parent_id: int | None) -> int:
        start_ns = self._offset_ns + node.event["ts"] * _NS_PER_US
        return self._writer.add(kind, start_ns, start_ns + node.event["dur"] * _NS_PER_US, parent_id)


def _kind(node: Mapping[str, Any], level: TraceLevel, index: int | None = None) -> SpanKind:
    told = node["args"]
    type_ = told.get("op_name", "")
    size = told.get("output_size")
    return SpanKind.of(
        _DECORATION.sub("", node["name"].removesuffix(_NODE)) or type_,
        level,
        layer_index=index,
        layer_type=type_,
        input_shapes=_shapes(told.get("input_type_shape")),
        output_shapes=_shapes(told.get("output_type_shape")),
        allocated_bytes=None if size is None else int(size),
        provider=told.get("provider"),
    )


def _shapes(tensors: Sequence[Mapping[str, Sequence[int]]] | None) -> tuple[str, ...] | None:
    """The shapes of tensors, each of which is given as ``{"float": [8, 3, 224, 224]}``."""
    return shape_texts(shape for tensor in tensors or () for shape in tensor.values())
