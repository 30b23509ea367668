"""Spans from MXNet's profiler: one layer for each operator of the symbol that MXNet runs."""

from __future__ import annotations

import ctypes
import json
import re
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, TypeAlias
from weakref import WeakKeyDictionary

from inferometer.agent.frameworks.mxnet.runtime import mxnet
from inferometer.agent.tracing.recorder import (
    LayerWriter,
    PredictWindow,
    Profiler,
    SpanKind,
    SpanRecorder,
    TraceLevel,
    shape_texts,
)
from inferometer.manifests.errors import PredictionError

_Shapes: TypeAlias = Sequence[Sequence[int] | None]
_NS_PER_US = 1000
# operators of the engine itself, which belong to no model
_HOUSEKEEPING = re.compile(r"WaitForVar|DeleteVariable|Resource\w*|SetupExec|set_threads")
# operators that the engine inserts between those of a graph
BETWEEN = re.compile(r"Copy\w*|Reorder\w*")
_TAIL = re.compile(r"\],\s*\"displayTimeUnit\".*\Z", re.DOTALL)
# MXNet has one profiler per process.
_IN_USE = threading.Lock()


class ApartExecutors(Protocol):
    """The part of ``MXNetPredictor`` that the profiler uses."""

    def run_apart(self, prepare: Callable[[Any], None] | None) -> None: ...
    def drop_apart(self) -> None: ...
    def latest_executor(self) -> Any: ...


class MXNetProfiler(Profiler):
    """Records operators with MXNet's own profiler.

    MXNet records only types and times. Names and shapes come from the executor's graph, if the types show
    that the operators ran in the graph's order. If not, layers have only types, and from the next round on
    the profiler waits for each operator, to preserve the order. A fused operator has the name of its first
    part and lists all parts in ``fused_layers``. Copies to and from a device are recorded as layers too.
    """

    def __init__(self, executors: ApartExecutors, level: TraceLevel, *, gpu: bool) -> None:
        super().__init__(level, gpu=gpu)
        self._executors = executors
        self._ran: list[Any] = []
        self._failures: list[Exception] = []
        self._in_order = False
        self._graphs: WeakKeyDictionary[Any, Sequence[Node]] = WeakKeyDictionary()
        self._recording = OperatorRecording()

    def start(self) -> None:
        self._windows, self._ran = [], []
        if self._recording.running:
            return
        self._recording.reserve()
        try:
            self._executors.run_apart(self._prepare)
            self._recording.start(self.open_folder())
        except PredictionError:
            self._recording.release()
            self._executors.run_apart(None)
            raise

    def predicted(self, window: PredictWindow) -> None:
        executor = self._executors.latest_executor()
        if self._failures:
            raise PredictionError(f"MXNet failed at an operator: {self._failures.pop()}")
        if executor not in self._graphs:
            self._prepare(executor)
        super().predicted(window)
        self._ran.append(executor)

    def collect(self, recorder: SpanRecorder) -> None:
        if not self._recording.running:
            return
        # MXNet uses the system's clock, which may have been set since the recorder was created
        offset_ns = time.time_ns() - recorder.clock()
        by_window = operators_by_window(self._windows, self._stop(), offset_ns)
        note_unrecorded(recorder, self._level)
        self.note_missing_device_calls(recorder, "MXNet")
        matched = True
        for window, executor, inside in zip(self._windows, self._ran, by_window, strict=True):
            if not inside:
                recorder.note("no layers for some batches: MXNet's profiler recorded none while they ran")
            elif not _write(LayerWriter(recorder, window), inside, self._graphs[executor], offset_ns):
                recorder.note(
                    "layers of some batches have only types: MXNet did not follow its graph's order"
                )
                matched = False
        if not matched and not self._in_order:
            self._in_order = True
            for executor in list(self._graphs):
                self._keep_order(executor)
        self._windows, self._ran = [], []

    def close(self) -> None:
        """Stops MXNet's profiler, queues operators in bulk again, and removes the files."""
        if self._recording.running:
            self._stop()
        self._executors.drop_apart()
        self.remove_folder()

    def _stop(self) -> Sequence[Operator]:
        try:
            return self._recording.stop()
        finally:
            self._executors.run_apart(None)

    def _prepare(self, executor: Any) -> None:
        arrays = {**executor.arg_dict, **executor.aux_dict}
        known = {name: array.shape for name, array in arrays.items()}
        self._graphs[executor] = read_graph(executor.get_optimized_symbol(), known)
        if self._in_order:
            self._keep_order(executor)

    def _keep_order(self, executor: Any) -> None:
        """Makes an executor wait for each operator before the next.

        MXNet runs operators as soon as they are ready, so the order may change in a graph with branches.
        """

        def wait(_: str, output: int) -> None:
            handle = ctypes.cast(output, mxnet.base.NDArrayHandle)
            try:
                mxnet.nd.NDArray(handle, writable=False).wait_to_read()
            except RuntimeError as error:  # MXNet's code would discard it
                self._failures.append(error)

        executor.set_monitor_callback(wait)


class OperatorRecording:
    """Records the operators that MXNet runs; only one recording per process is possible at a time."""

    def __init__(self) -> None:
        self._file = Path()
        self._reserved = False
        self.running = False

    def reserve(self) -> None:
        """Reserves MXNet's profiler; raises PredictionError if it is in use."""
        if not _IN_USE.acquire(blocking=False):
            raise PredictionError("MXNet's profiler cannot be started: it is already recording another model")
        self._reserved = True

    def release(self) -> None:
        """Releases MXNet's profiler; calling it again does nothing."""
        if self._reserved:
            self._reserved = False
            _IN_USE.release()

    def start(self, folder: Path) -> None:
        """Starts recording to a file in a folder; call ``reserve`` first."""
        self._file = folder / "profile.json"
        self.running = True
        mxnet.profiler.set_config(
            profile_symbolic=True,
            profile_imperative=True,
            profile_memory=False,
            profile_api=False,
            aggregate_stats=False,
            continuous_dump=False,
            filename=str(self._file),
        )
        mxnet.profiler.set_state("run")

    def stop(self) -> Sequence[Operator]:
        """Releases the profiler; returns the operators by start time, or raises PredictionError."""
        try:
            mxnet.nd.waitall()
            mxnet.profiler.set_state("stop")
            mxnet.profiler.dump(finished=False)
            text = self._file.read_text(encoding="utf-8")
            self._file.unlink()
            events = _read_events(text)
        except (OSError, ValueError, LookupError) as error:
            raise PredictionError(f"{self._file}: MXNet's profile cannot be read: {error}") from error
        finally:
            self.running = False
            self.release()
        return sorted(_operators(events), key=lambda operator: operator.start_ns)


@dataclass(frozen=True, slots=True)
class Operator:
    """An operator that ran; its times are in ns since 1970."""

    type: str
    start_ns: int
    end_ns: int

    @property
    def middle_ns(self) -> int:
        """The midpoint of its duration."""
        return (self.start_ns + self.end_ns) // 2


@dataclass(frozen=True, slots=True)
class Node:
    """An operator of the graph; ``arguments`` has one text, or one for each part if it is fused."""

    name: str
    type: str
    fused: tuple[str, ...] | None
    input_shapes: tuple[str, ...] | None
    output_shapes: tuple[str, ...] | None
    arguments: tuple[str, ...] | None = None

    @classmethod
    def of(cls, node: Mapping[str, Any], inputs: _Shapes, outputs: _Shapes) -> Node:
        """Returns the node for an entry of a symbol's JSON; a fused operator's entry contains its parts."""
        inner = [part for graph in node.get("subgraphs", ()) for part in graph["nodes"]]
        operators = [part for part in inner if part["op"] != "null"]
        parts = tuple(part["name"] for part in operators)
        return cls(
            parts[0] if parts else node["name"],
            node["op"],
            parts if len(parts) > 1 else None,
            shape_texts(shape or () for shape in inputs),
            shape_texts(shape or () for shape in outputs),
            tuple(_call_text(each) for each in operators or [node]),
        )


def operators_by_window(
    windows: Sequence[PredictWindow], operators: Sequence[Operator], offset_ns: int
) -> Sequence[Sequence[Operator]]:
    """Returns the operators that ran in each window, ordered by start time.

    Args:
        windows: The windows in order; their times are those of the recorder's clock.
        operators: The operators, ordered by start time.
        offset_ns: The system time minus the time of the recorder's clock.
    """
    found, place = [], 0
    for window in windows:
        inside: list[Operator] = []
        while place < len(operators) and operators[place].middle_ns - offset_ns <= window.end_ns:
            if operators[place].middle_ns - offset_ns >= window.start_ns:
                inside.append(operators[place])
            place += 1
        found.append(inside)
    return found


def note_unrecorded(recorder: SpanRecorder, level: TraceLevel) -> None:
    """Adds notes on what MXNet's profiler does not record."""
    recorder.note("no memory for single layers: MXNet reserves it for the whole graph")
    if level >= TraceLevel.ML_LIBRARY_TRACE:
        recorder.note("no operators inside layers: MXNet's profiler records whole layers")


def _call_text(node: Mapping[str, Any]) -> str:
    """Returns an operator with its parameters, such as ``Activation(act_type=relu)``."""
    given = ", ".join(f"{name}={value}" for name, value in sorted(node.get("attrs", {}).items()))
    return f"{node['op']}({given})"


def _read_events(text: str) -> Sequence[Any]:
    """Returns the events of a profile; raises ValueError if it is not valid.

    MXNet writes a comma before the first event of every file except the process's first. If other code in the
    process has used its profiler, the start or the end of a file may be missing.
    """
    events = _TAIL.sub("", text.partition("[")[2] if text.lstrip().startswith("{") else text)
    found: Sequence[Any] = json.loads(f"[{events.strip().strip(',')}]")
    return found


def _operators(events: Iterable[Mapping[str, Any]]) -> Iterator[Operator]:
    """Yields the operators; each has a begin event and an end event."""
    begun: dict[tuple[str, int, int], int] = {}
    for event in events:
        if event.get("cat") != "operator" or _HOUSEKEEPING.fullmatch(event["name"]):
            continue
        key = (event["name"], event["pid"], event["tid"])
        if event["ph"] == "B":
            begun[key] = event["ts"] * _NS_PER_US
        elif event["ph"] == "E" and key in begun:
            yield Operator(event["name"], begun.pop(key), event["ts"] * _NS_PER_US)


def read_graph(symbol: Any, shapes_of_inputs: Mapping[str, Sequence[int]]) -> Sequence[Node]:
    """Returns the operators of a symbol in order, with the shapes inferred from the input shapes."""
    internals = symbol.get_internals()
    known = {name: shapes_of_inputs[name] for name in symbol.list_inputs() if name in shapes_of_inputs}
    _, inferred, _ = internals.infer_shape_partial(**known)
    graph = json.loads(symbol.tojson())
    shapes = _shapes_of_nodes(graph, list(zip(internals.list_outputs(), inferred, strict=True)))
    nodes = []
    for place, node in enumerate(graph["nodes"]):
        if node["op"] != "null":
            sources = [(shapes[source], output) for source, output, *_ in node["inputs"]]
            inputs = [known_shapes[output] for known_shapes, output in sources if output < len(known_shapes)]
            nodes.append(Node.of(node, inputs, shapes[place]))
    return nodes


def _shapes_of_nodes(
    graph: Mapping[str, Any], outputs: Sequence[tuple[str, Sequence[int] | None]]
) -> Sequence[_Shapes]:
    """Returns the shapes of each node's outputs; ``outputs`` lacks hidden ones such as BatchNorm's mean."""
    first = graph["node_row_ptr"]
    names = [node["name"] for node in graph["nodes"]]
    found: list[list[Sequence[int] | None]] = []
    place = 0
    for number, (name, following) in enumerate(zip(names, [*names[1:], None], strict=True)):
        found.append([])
        for output in range(first[number + 1] - first[number]):
            if place == len(outputs):
                break
            candidate = outputs[place][0]
            if output and (candidate == following or not candidate.startswith(f"{name}_")):
                break  # the other outputs of this node are hidden
            found[-1].append(outputs[place][1])
            place += 1
    return found


def _write(writer: LayerWriter, operators: Sequence[Operator], nodes: Sequence[Node], offset_ns: int) -> bool:
    """Adds the layers of a prediction; returns whether operators ran in the graph's order.

    If they did not, layers are named by their types. Operators that ran before the graph allocated memory for
    a new batch size and are not layers.
    """
    types = [operator.type for operator in operators if not BETWEEN.fullmatch(operator.type)]
    before = len(types) - len(nodes)
    as_listed = before >= 0 and types[before:] == [node.type for node in nodes]
    remaining = iter(nodes)
    index = 0
    for operator in operators:
        of_graph = as_listed and not BETWEEN.fullmatch(operator.type)
        if of_graph and before:
            before -= 1
            continue
        node = next(remaining) if of_graph else Node(operator.type, operator.type, None, None, None)
        kind = SpanKind.of(
            node.name,
            TraceLevel.FRAMEWORK_TRACE,
            layer_index=index,
            layer_type=node.type,
            fused_layers=node.fused,
            input_shapes=node.input_shapes,
            output_shapes=node.output_shapes,
            arguments=node.arguments,
        )
        writer.add(kind, operator.start_ns - offset_ns, operator.end_ns - offset_ns)
        index += 1
    return as_listed
