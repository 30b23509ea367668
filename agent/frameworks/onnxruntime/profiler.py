"""Spans from ONNX Runtime's profiler: one layer for each node of the optimized graph."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from inferometer.agent.tracing.recorder import (
    LayerWriter,
    Profiler,
    SpanKind,
    SpanRecorder,
    TraceLevel,
    shape_texts,
)
from inferometer.manifests.errors import PredictionError

_NS_PER_US = 1000
_RUN = "model_run"
_NODE = "_kernel_time"
_KERNEL = "Kernel"
# the operators that run nested graphs
_WITH_GRAPHS = frozenset(
    {"If", "Loop", "Scan", "BeamSearch", "GreedySearch", "Sampling", "WhisperBeamSearch"}
)
# the suffixes that the optimizer and the exporter append to names of nodes
_DECORATION = re.compile(r"(_output_\d+)?(_nchwc)?$")
_EVENTS_IN_A_ROUND = 10_000  # about 1 kB each in the file; ONNX Runtime itself stops at 1,000,000


class ProfiledSessions(Protocol):
    """The part of ``ONNXRuntimePredictor`` that the profiler uses."""

    def write_graph(self, folder: Path) -> Path: ...
    def open_profiled(self, graph: Path, prefix: Path) -> Any: ...
    def use(self, session: Any) -> None: ...


class ONNXRuntimeProfiler(Profiler):
    """Profiles a second session with the same graph and options, which the predictor uses meanwhile.

    The profiler of a session can be stopped only once. Therefore each round from ``start`` to ``collect`` has
    its own session, which first runs once on zeros, except in the first round.

    A layer is a node of the optimized graph: a convolution fused with the nodes after it has the name of the
    last one. Nodes of a nested graph, such as a loop's, are ML_LIBRARY spans. ``allocated_bytes`` is the size
    of a layer's outputs. Only builds with ``--enable_cuda_profiling`` record GPU kernels
    (onnxruntime.ai/docs/performance/tune-performance/profiling-tools.html).
    """

    def __init__(self, sessions: ProfiledSessions, level: TraceLevel, *, gpu: bool) -> None:
        super().__init__(level, gpu=gpu)
        self._sessions = sessions
        self._graph: Path | None = None
        self._session: Any = None

    def start(self) -> None:
        self._windows = []
        if self._session is not None:
            return
        folder = self.open_folder()
        if self._graph is None:
            self._graph = self._sessions.write_graph(folder)
        self._session = self._sessions.open_profiled(self._graph, folder / "profile")
        self._sessions.use(self._session)

    def collect(self, recorder: SpanRecorder) -> None:
        if self._session is None:
            return
        started_ns, events = self._stop()
        recorder.note("no peak memory for single layers: ONNX Runtime reserves memory for a whole run")
        if self._gpu:
            recorder.note("layer times are only launch times: ONNX Runtime does not wait for the GPU")
        if not any(event.get("cat") == _KERNEL for event in events):
            self.note_missing_device_calls(recorder, "ONNX Runtime")
        offset_ns = started_ns - recorder.epoch_offset_ns
        runs = list(_runs(events))
        if len(runs) < len(self._windows):
            raise PredictionError(
                f"ONNX Runtime's profiler recorded {len(runs)} runs of the model, but "
                f"{len(self._windows)} were made"
            )
        # earlier runs have warmed the session up
        for window, run in zip(self._windows, runs[len(runs) - len(self._windows) :], strict=True):
            # the clock of the profiler may have drifted from that of the recorder
            start_ns, end_ns = run.start_ns + offset_ns, run.end_ns + offset_ns
            shift_ns = max(window.start_ns - start_ns, min(0, window.end_ns - end_ns))
            _NodeWriter(LayerWriter(recorder, window), self._level, offset_ns + shift_ns).write(run.nodes)
        self.round_batches = max(self.round_batches, _EVENTS_IN_A_ROUND * len(runs) // len(events))

    def close(self) -> None:
        self._sessions.use(None)
        self._session = self._graph = None
        self.remove_folder()

    def _stop(self) -> tuple[int, Sequence[Mapping[str, Any]]]:
        """Ends the session; returns its profiler's start time, in ns since 1970, and its events."""
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


@dataclass(frozen=True, slots=True)
class _Node:
    """A node that ran, the nodes of its nested graphs, and the kernels that it started on a GPU."""

    event: Mapping[str, Any]
    inner: list[_Node] = field(default_factory=list)
    kernels: list[Mapping[str, Any]] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class _Run:
    """One run of the model: its nodes, and its start and end in ns since the profiler's start."""

    start_ns: int
    end_ns: int
    nodes: Sequence[_Node]


def _runs(events: Sequence[Mapping[str, Any]]) -> Iterator[_Run]:
    """Yields the runs in events that are ordered by end time; a node's kernels follow the node."""
    nodes: list[_Node] = []
    for event in events:
        if event.get("cat") == "Node" and event["name"].endswith(_NODE):
            node = _Node(event)
            if event["args"].get("op_name") in _WITH_GRAPHS:
                while nodes and nodes[-1].event["ts"] >= event["ts"]:
                    node.inner.insert(0, nodes.pop())
            nodes.append(node)
        elif event.get("cat") == _KERNEL:
            if nodes:
                nodes[-1].kernels.append(event)
        elif event["name"] == _RUN:
            start_us, end_us = event["ts"], event["ts"] + event["dur"]
            yield _Run(start_us * _NS_PER_US, end_us * _NS_PER_US, nodes)
            nodes = []


class _NodeWriter:
    """Adds the nodes of one run."""

    def __init__(self, writer: LayerWriter, level: TraceLevel, offset_ns: int) -> None:
        self._writer = writer
        self._level = level
        self._offset_ns = offset_ns

    def write(self, nodes: Sequence[_Node], layer_id: int | None = None) -> None:
        """Adds layers, or nodes inside a layer, and under each the nodes of its nested graphs."""
        level = TraceLevel.FRAMEWORK_TRACE if layer_id is None else TraceLevel.ML_LIBRARY_TRACE
        for index, node in enumerate(nodes):
            start_ns = self._offset_ns + node.event["ts"] * _NS_PER_US
            end_ns = start_ns + node.event["dur"] * _NS_PER_US
            kind = _kind(node.event, level, index if layer_id is None else None)
            span_id = self._writer.add(kind, start_ns, end_ns, layer_id)
            if self._level >= TraceLevel.ML_LIBRARY_TRACE:
                self.write(node.inner, span_id)
            if self._level >= TraceLevel.SYSTEM_LIBRARY_TRACE:
                for kernel in node.kernels:
                    self._write_kernel(kernel, span_id)

    def _write_kernel(self, kernel: Mapping[str, Any], parent_id: int) -> None:
        stream = int(kernel["args"].get("stream") or 0)
        kind = SpanKind.of(kernel["name"], TraceLevel.SYSTEM_LIBRARY_TRACE, activity="kernel", stream=stream)
        start_ns = self._offset_ns + kernel["ts"] * _NS_PER_US
        end_ns = start_ns + kernel["dur"] * _NS_PER_US
        self._writer.add(kind, start_ns, end_ns, parent_id, thread=-1 - stream)


def _kind(node: Mapping[str, Any], level: TraceLevel, index: int | None) -> SpanKind:
    arguments = node["args"]
    type_ = arguments.get("op_name", "")
    size = arguments.get("output_size")
    return SpanKind.of(
        _DECORATION.sub("", node["name"].removesuffix(_NODE)) or type_,
        level,
        layer_index=index,
        layer_type=type_,
        input_shapes=_shapes(arguments.get("input_type_shape")),
        output_shapes=_shapes(arguments.get("output_type_shape")),
        allocated_bytes=None if size is None else int(size),
        provider=arguments.get("provider"),
    )


def _shapes(tensors: Sequence[Mapping[str, Sequence[int]]] | None) -> tuple[str, ...] | None:
    """Returns the shapes of tensors that are given in the form ``{"float": [8, 3, 224, 224]}``."""
    return shape_texts(shape for tensor in tensors or () for shape in tensor.values())
