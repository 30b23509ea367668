"""MXNet's profiler as spans: one layer for each operator of the symbol as MXNet runs it."""

from __future__ import annotations

import ctypes
import json
import re
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Protocol, TypeAlias
from weakref import WeakKeyDictionary

from agent.trace_level import TraceLevel
from agent.tracing.layer_writer import LayerWriter, shape_texts
from agent.tracing.profiler import PredictWindow, Profiler
from agent.tracing.recorder import SpanRecorder
from agent.tracing.span import SpanKind
from manifests.errors import PredictionError

_Shapes: TypeAlias = Sequence[Sequence[int] | None]
_NS_PER_US = 1000
# What the engine queues for itself, and what belongs to no model.
_HOUSEKEEPING = re.compile(r"WaitForVar|DeleteVariable|Resource\w*|SetupExec|set_threads")
# What the engine runs between the operators of a graph, and no graph lists.
_BETWEEN = re.compile(r"Copy\w*|Reorder\w*")
_TAIL = re.compile(r"\],\s*\"displayTimeUnit\".*\Z", re.DOTALL)
# MXNet has one profiler for all of a process.
_IN_USE = threading.Lock()


class ApartExecutors(Protocol):
    """What a profiler needs of its predictor."""

    def run_apart(self, prepare: Callable[[Any], None] | None) -> None:
        """Has the operators of later predictions queued one by one, or with None not any more.

        Args:
            prepare: Is called with each executor that is bound for it.

        Raises:
            PredictionError: The framework cannot do so.
        """

    def drop_apart(self) -> None:
        """Frees what running them one by one has needed."""

    def latest_executor(self) -> Any:
        """Returns the executor of the last prediction."""


class MXNetProfiler(Profiler):
    """Records operators with MXNet's own profiler.

    It tells their types and times only. Names and shapes are those of the graph that the executor has made of
    the symbol, if its operators ran in the order in which it lists them, as their types tell. If not, layers
    have types only, and from the next round on the order is kept by waiting for each operator. An operator
    that MXNet has fused of several has the name of the first, and all of them in ``fused_layers``. Copies to
    and from a device are layers too.

    Args:
        mxnet: The package.
        executors: Runs the symbol.
        level: How deep to look.
        gpu: Whether the model is on a GPU.
    """

    def __init__(self, mxnet: Any, executors: ApartExecutors, level: TraceLevel, *, gpu: bool) -> None:
        self._mxnet = mxnet
        self._executors = executors
        self._level = level
        self._gpu = gpu
        self._windows: list[tuple[PredictWindow, Any]] = []
        self._failures: list[Exception] = []
        self._in_order = False
        self._graphs: WeakKeyDictionary[Any, Sequence[_Node]] = WeakKeyDictionary()
        self._folder: TemporaryDirectory[str] | None = None
        self._file = Path()
        self._running = False

    def start(self) -> None:
        """Starts MXNet's profiler, on executors that run operator by operator; see ``Profiler``."""
        self._windows = []
        if self._running:
            return
        if not _IN_USE.acquire(blocking=False):
            raise PredictionError("MXNet's profiler cannot be started: it records another model already")
        try:
            self._executors.run_apart(self._prepare)
        except PredictionError:
            self._executors.run_apart(None)
            _IN_USE.release()
            raise
        self._running = True
        if self._folder is None:
            self._folder = TemporaryDirectory(prefix="inferscope-")
        self._file = Path(self._folder.name) / "profile.json"
        profiler = self._mxnet.profiler
        profiler.set_config(
            profile_symbolic=True,
            profile_imperative=True,
            profile_memory=False,
            profile_api=False,
            aggregate_stats=False,
            continuous_dump=False,
            filename=str(self._file),
        )
        profiler.set_state("run")

    def predicted(self, window: PredictWindow) -> None:
        """Remembers a prediction, and the graph that ran; see ``Profiler``."""
        executor = self._executors.latest_executor()
        if self._failures:
            raise PredictionError(f"MXNet failed at an operator: {self._failures.pop()}")
        if executor not in self._graphs:
            self._prepare(executor)
        self._windows.append((window, executor))

    def collect(self, recorder: SpanRecorder) -> None:
        """Stops MXNet's profiler and adds what it has recorded; see ``Profiler``."""
        if not self._running:
            return
        # MXNet's times are of the system's clock, which may have been set since the recorder was made
        offset_ns = time.time_ns() - recorder.clock()
        operators = self._stop()
        self._note(recorder)
        place, matched = 0, True
        for window, executor in self._windows:
            inside: list[_Operator] = []
            while place < len(operators) and operators[place].middle_ns - offset_ns <= window.end_ns:
                if operators[place].middle_ns - offset_ns >= window.start_ns:
                    inside.append(operators[place])
                place += 1
            if not inside:
                recorder.note("no layers of some batches: MXNet's profiler recorded none at their time")
            elif not _write(LayerWriter(recorder, window), inside, self._graphs[executor], offset_ns):
                recorder.note(
                    "layers of some batches have types only: MXNet did not keep to its graph's order"
                )
                matched = False
        if not matched and not self._in_order:
            self._in_order = True
            for executor in list(self._graphs):
                self._keep_order(executor)
        self._windows = []

    def close(self) -> None:
        """Stops MXNet's profiler, has operators run together again, and removes its files."""
        if self._running:
            self._stop()
        self._executors.drop_apart()
        if self._folder is not None:
            folder, self._folder = self._folder, None
            folder.cleanup()

    def _stop(self) -> Sequence[_Operator]:
        """Stops the profiler and returns the operators in the order in which they began."""
        try:
            self._mxnet.nd.waitall()
            self._mxnet.profiler.set_state("stop")
            self._mxnet.profiler.dump(finished=False)
            text = self._file.read_text(encoding="utf-8")
            self._file.unlink()
            events = _read_events(text)
        except (OSError, ValueError, LookupError) as error:
            raise PredictionError(f"{self._file}: MXNet's profile cannot be read: {error}") from error
        finally:
            self._running = False
            self._executors.run_apart(None)
            _IN_USE.release()
        return sorted(_operators(events), key=lambda operator: operator.start_ns)

    def _prepare(self, executor: Any) -> None:
        """Reads an executor's graph."""
        self._graphs[executor] = _read_graph(executor)
        if self._in_order:
            self._keep_order(executor)

    def _keep_order(self, executor: Any) -> None:
        """Has an executor wait for each operator before the next.

        MXNet runs what is ready first: where a graph branches, perhaps in another order than the graph's.
        """

        def wait(_: str, output: int) -> None:
            handle = ctypes.cast(output, self._mxnet.base.NDArrayHandle)
            try:
                self._mxnet.nd.NDArray(handle, writable=False).wait_to_read()
            except RuntimeError as error:  # which would be lost in MXNet's code
                self._failures.append(error)

        executor.set_monitor_callback(wait)

    def _note(self, recorder: SpanRecorder) -> None:
        recorder.note("no memory of layers: MXNet reserves it for the whole graph")
        if self._level >= TraceLevel.ML_LIBRARY_TRACE:
            recorder.note("no operators inside layers: MXNet's profiler records whole layers")
        if self._level >= TraceLevel.SYSTEM_LIBRARY_TRACE:
            why = "MXNet's profiler has none" if self._gpu else "the model runs on the CPU"
            recorder.note(f"no calls of a device's runtime, kernels or copies: {why}")


@dataclass(frozen=True, slots=True)
class _Operator:
    """An operator that ran; times in ns since 1970."""

    type: str
    start_ns: int
    end_ns: int

    @property
    def middle_ns(self) -> int:
        return (self.start_ns + self.end_ns) // 2


@dataclass(frozen=True, slots=True)
class _Node:
    """An operator of the graph."""

    name: str
    type: str
    fused: tuple[str, ...] | None
    input_shapes: tuple[str, ...] | None
    output_shapes: tuple[str, ...] | None

    @classmethod
    def of(cls, node: Mapping[str, Any], inputs: _Shapes, outputs: _Shapes) -> _Node:
        """Returns a node of a symbol's JSON; a fused one contains those that it was made of."""
        inner = [part for graph in node.get("subgraphs", ()) for part in graph["nodes"]]
        parts = tuple(part["name"] for part in inner if part["op"] != "null")
        return cls(
            parts[0] if parts else node["name"],
            node["op"],
            parts if len(parts) > 1 else None,
            shape_texts(shape or () for shape in inputs),
            shape_texts(shape or () for shape in outputs),
        )


def _read_events(text: str) -> Sequence[Any]:
    """The events of a profile, whichever parts of it are there.

    MXNet writes a comma before the first event of every file but a process's first. Once somebody else in the
    process has used its profiler, files can be pieces of one: the head or the end is missing.

    Raises:
        ValueError: They are no events.
    """
    events = _TAIL.sub("", text.partition("[")[2] if text.lstrip().startswith("{") else text)
    found: Sequence[Any] = json.loads(f"[{events.strip().strip(',')}]")
    return found


def _operators(events: Iterable[Mapping[str, Any]]) -> Iterator[_Operator]:
    """The operators, each of which is an event that begins and one that ends."""
    begun: dict[tuple[str, int, int], int] = {}
    for event in events:
        if event.get("cat") != "operator" or _HOUSEKEEPING.fullmatch(event["name"]):
            continue
        key = (event["name"], event["pid"], event["tid"])
        if event["ph"] == "B":
            begun[key] = event["ts"] * _NS_PER_US
        elif event["ph"] == "E" and key in begun:
            yield _Operator(event["name"], begun.pop(key), event["ts"] * _NS_PER_US)


def _read_graph(executor: Any) -> Sequence[_Node]:
    """The operators that an executor runs, in order."""
    symbol = executor.get_optimized_symbol()
    internals = symbol.get_internals()
    arrays = {**executor.arg_dict, **executor.aux_dict}
    known = {name: arrays[name].shape for name in symbol.list_inputs() if name in arrays}
    _, inferred, _ = internals.infer_shape_partial(**known)
    graph = json.loads(symbol.tojson())
    shapes = _shapes_of_nodes(graph, list(zip(internals.list_outputs(), inferred, strict=True)))
    nodes = []
    for place, node in enumerate(graph["nodes"]):
        if node["op"] != "null":
            sources = [(shapes[source], output) for source, output, *_ in node["inputs"]]
            inputs = [known_shapes[output] for known_shapes, output in sources if output < len(known_shapes)]
            nodes.append(_Node.of(node, inputs, shapes[place]))
    return nodes


def _shapes_of_nodes(
    graph: Mapping[str, Any], outputs: Sequence[tuple[str, Sequence[int] | None]]
) -> Sequence[_Shapes]:
    """The shapes of each node's outputs, without hidden ones such as BatchNorm's mean.

    Args:
        graph: The symbol.
        outputs: Name and shape of what is not hidden, node after node.
    """
    first = graph["node_row_ptr"]
    names = [node["name"] for node in graph["nodes"]]
    found: list[list[Sequence[int] | None]] = []
    place = 0
    for number, name in enumerate(names):
        found.append([])
        following = names[number + 1] if number + 1 < len(names) else None
        for output in range(first[number + 1] - first[number]):
            if place == len(outputs):
                break
            told = outputs[place][0]
            if output and (told == following or not told.startswith(f"{name}_")):
                break  # the others of this node are hidden
            found[-1].append(outputs[place][1])
            place += 1
    return found


def _write(
    writer: LayerWriter, operators: Sequence[_Operator], nodes: Sequence[_Node], offset_ns: int
) -> bool:
    """Adds the layers of a prediction.

    What ran before the graph has made room for a new batch size, and is no layer.

    Returns:
        Whether the graph's operators ran in its order; if not, layers have the names of their types.
    """
    types = [operator.type for operator in operators if not _BETWEEN.fullmatch(operator.type)]
    before = len(types) - len(nodes)
    as_listed = before >= 0 and types[before:] == [node.type for node in nodes]
    remaining = iter(nodes)
    index = 0
    for operator in operators:
        of_graph = as_listed and not _BETWEEN.fullmatch(operator.type)
        if of_graph and before:
            before -= 1
            continue
        node = next(remaining) if of_graph else _Node(operator.type, operator.type, None, None, None)
        kind = SpanKind.of(
            node.name,
            TraceLevel.FRAMEWORK_TRACE,
            layer_index=index,
            layer_type=node.type,
            fused_layers=node.fused,
            input_shapes=node.input_shapes,
            output_shapes=node.output_shapes,
        )
        writer.add(kind, operator.start_ns - offset_ns, operator.end_ns - offset_ns)
        index += 1
    return as_listed
