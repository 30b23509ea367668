"""The profiler of training steps in MXNet: operators of both passes, named as in the graph."""

from __future__ import annotations

import ctypes
import json
import re
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from inferometer.agent.frameworks.mxnet.networks import TrainedNetwork
from inferometer.agent.frameworks.mxnet.profiler import (
    Node,
    Operator,
    OperatorRecording,
    note_unrecorded,
    operators_by_window,
    read_graph,
)
from inferometer.agent.frameworks.mxnet.runtime import FAILURES, ONE_AT_A_TIME, mxnet, reason
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

_BACKWARD = "backward"
_OUTPUT = re.compile(r"_[a-z]*\d*\Z")
"""The suffix that an output's name adds to the name of its operator."""


@dataclass(slots=True)
class _Output:
    """An operator of the graph, as reported by its hook, with the names and the shapes of its outputs.

    ``until_ns`` is the time at which its first output was ready, in ns since 1970.
    """

    names: list[str]
    type: str
    shapes: list[tuple[int, ...]]
    until_ns: int


@dataclass(frozen=True, slots=True)
class _Layer:
    """An operator that ran; its shapes and name are known only if it is in the graph."""

    name: str
    phase: str
    input_shapes: tuple[str, ...] | None = None
    output_shapes: tuple[str, ...] | None = None


class MXNetStepProfiler(Profiler):
    """Records the operators of training steps with MXNet's own profiler.

    MXNet records only types and times. A hook waits for each operator of the graph before the next is queued,
    and reports its name: a recorded operator between two hooks belongs to the second hook if the types match.
    A layer of ``backward`` has the name of its forward layer. Other layers, such as the optimizer's, are
    named by their types.
    """

    def __init__(self, network: TrainedNetwork, level: TraceLevel, *, gpu: bool) -> None:
        super().__init__(level, gpu=gpu)
        self._network = network
        self._recording = OperatorRecording()
        self._bulk: int | None = None
        self._outputs: list[_Output] = []
        self._steps: list[tuple[Sequence[_Output], Sequence[tuple[int, ...]]]] = []
        self._failures: list[Exception] = []

    def start(self) -> None:
        self._windows, self._steps, self._outputs = [], [], []
        if self._recording.running:
            return
        self._recording.reserve()
        with ONE_AT_A_TIME:
            mxnet.nd.waitall()
            if self._bulk is None:
                self._bulk = mxnet.engine.set_bulk_size(0)
                self._network.watch(self._on_output)
            self._recording.start(self.open_folder())

    def predicted(self, window: PredictWindow) -> None:
        if self._failures:
            raise PredictionError(f"MXNet failed at an operator: {reason(self._failures.pop())}")
        super().predicted(window)
        self._steps.append((self._outputs, self._network.batch_shapes))
        self._outputs = []

    def collect(self, recorder: SpanRecorder) -> None:
        if not self._recording.running:
            return
        # MXNet uses the system's clock, which may have been set since the recorder was created
        offset_ns = time.time_ns() - recorder.clock()
        with ONE_AT_A_TIME:
            operators = self._recording.stop()
            graph = _Graph(self._network)
        note_unrecorded(recorder, self._level)
        self.note_missing_device_calls(recorder, "MXNet")
        by_window = operators_by_window(self._windows, operators, offset_ns)
        for window, (outputs, shapes), inside in zip(self._windows, self._steps, by_window, strict=True):
            writer = LayerWriter(recorder, window)
            layers = list(graph.layers(inside, outputs, shapes))
            for index, (operator, layer) in enumerate(zip(inside, layers, strict=True)):
                kind = SpanKind.of(
                    layer.name,
                    TraceLevel.FRAMEWORK_TRACE,
                    layer_index=index,
                    layer_type=operator.type,
                    phase=layer.phase,
                    input_shapes=layer.input_shapes,
                    output_shapes=layer.output_shapes,
                )
                writer.add(kind, operator.start_ns - offset_ns, operator.end_ns - offset_ns)
            if sum(layer.output_shapes is not None for layer in layers) < len(outputs):
                recorder.note(
                    "some layers have only types: MXNet did not record them when its graph's hooks did"
                )
        self._windows, self._steps = [], []

    def close(self) -> None:
        """Stops MXNet's profiler, queues operators in bulk again, and removes the files."""
        with ONE_AT_A_TIME:
            try:
                if self._recording.running:
                    self._recording.stop()
            finally:
                if self._bulk is not None:
                    mxnet.engine.set_bulk_size(self._bulk)
                    self._bulk = None
                    self._network.watch(None)
                self.remove_folder()

    def _on_output(self, name: str, type_: str, handle: int) -> None:
        """Waits for an output, so the next operator starts after this one."""
        array = mxnet.nd.NDArray(ctypes.cast(handle, mxnet.base.NDArrayHandle), writable=False)
        try:
            array.wait_to_read()
        except FAILURES as error:  # MXNet's code would discard it
            self._failures.append(error)
            return
        now_ns, node = time.time_ns(), _OUTPUT.sub("", name)
        last = self._outputs[-1] if self._outputs else None
        if last and last.type == type_ and name not in last.names and _OUTPUT.sub("", last.names[0]) == node:
            last.names.append(name)
            last.shapes.append(array.shape)
        else:
            self._outputs.append(_Output([name], type_, [array.shape], now_ns))


class _Graph:
    """The operators of a network and of its loss."""

    def __init__(self, network: TrainedNetwork) -> None:
        self._network = network
        model, loss = network.symbols()
        self._symbols = {"forward": model, "loss": loss}
        self._names = {
            phase: {node["name"] for node in json.loads(each.tojson())["nodes"] if node["op"] != "null"}
            for phase, each in self._symbols.items()
        }
        self._nodes: dict[tuple[int, ...], Mapping[str, Node]] = {}

    def layers(
        self, operators: Sequence[Operator], outputs: Sequence[_Output], shapes: Sequence[tuple[int, ...]]
    ) -> Iterator[_Layer]:
        """Yields the known details of each operator in a step; ``shapes`` are its batch shapes per device."""
        seen = Counter[str]()
        found = []
        for output in outputs:
            name, phase = self._place(output.names[0])
            node = None
            if phase == "forward":  # once for each device
                node = self._of_shape(shapes[min(seen[name], len(shapes) - 1)]).get(name)
                seen[name] += 1
            found.append(
                _Layer(
                    name or output.type,
                    phase,
                    node.input_shapes if node else None,
                    shape_texts(output.shapes) or (),
                )
            )
        place, taken = 0, False
        for operator in operators:
            while place < len(outputs) and (taken or outputs[place].until_ns < operator.end_ns):
                place, taken = place + 1, False
            if place == len(outputs):
                yield _Layer(operator.type, "update")
            elif outputs[place].type == operator.type:
                taken = True
                yield found[place]
            else:
                yield _Layer(operator.type, found[place].phase)

    def _place(self, output: str) -> tuple[str, str]:
        """Returns the graph operator (empty if none) that an output belongs to, and the phase."""
        parts = output.split("_")
        for count in range(len(parts) - 1, 0, -1):
            name = "_".join(parts[:count])
            for phase, names in self._names.items():
                if name in names:
                    return name, _BACKWARD if parts[count] == _BACKWARD else phase
        return "", _BACKWARD

    def _of_shape(self, shape: tuple[int, ...]) -> Mapping[str, Node]:
        """Returns the operators of the network by name, with the shapes for a batch of the given shape."""
        if shape not in self._nodes:
            model = self._symbols["forward"]
            parameters = (*self._network.trained.values(), *self._network.others.values())
            known = {each.name: each.shape for each in parameters}
            data = {name: shape for name in model.list_inputs() if name not in known}
            self._nodes[shape] = {node.name: node for node in read_graph(model, {**known, **data})}
        return self._nodes[shape]
