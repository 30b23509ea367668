"""Single operators in ONNX Runtime: one graph for each operator, with inputs that are never constants.

A ``Form`` builds the graph of an operator; the sibling modules list the forms by the table's names. The graph
that ONNX Runtime's optimiser writes shows which operators it has fused.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray

from inferometer.agent.frameworks.onnxruntime.sessions import (
    FAILURES,
    details_of,
    onnxruntime,
    open_session,
    reason,
)
from inferometer.agent.hardware.environment import Device, FrameworkDetails, default_threads
from inferometer.agent.inference.predictor import prediction_failure
from inferometer.agent.operators.operator import (
    NOTHING,
    PARTS,
    Case,
    NotSupportedHereError,
    Operator,
    OperatorRunner,
    RunnerOptions,
    element_type,
)

OPSET = 21
_IR_VERSION = 10
_NEXT_IR_VERSION = 11
"""The IR version of opset 23."""
CONTRIBUTED = "com.microsoft"
"""The domain of ONNX Runtime's own operators."""
IN_PLACE = "ONNX has no operator that replaces its input"
_NO_GRADIENTS = "ONNX Runtime computes no gradients"
_GRAPH = "graph"
_FLOAT32 = {"use_tf32": "0"}
"""Options of CUDA without TF32, its default, which keeps 10 bits of float32's 23."""


@dataclass(frozen=True, slots=True)
class Graph:
    """The graph of an operator, usually with one node.

    Attributes:
        nodes: Nodes from ``onnx.helper.make_node``; their inputs have the table's names.
        outputs: The names of the graph's outputs.
        constants: Tensors of the operator that are parameters in the table, such as axes; integers become
            tensors of int64.
        fed: Such tensors as graph inputs, for nodes that ONNX Runtime would fold if all inputs were constant.
        any_shape: Whether the graph leaves the shapes of the inputs open, which prevents folding.
        fixed: The table's inputs that become initialisers, whose values the optimiser may fold.
        opset: The version of the default domain.
    """

    nodes: Sequence[onnx.NodeProto]
    outputs: Sequence[str] = ("output",)
    constants: Mapping[str, Any] = field(default_factory=lambda: NOTHING)
    fed: Mapping[str, NDArray[Any]] = field(default_factory=lambda: NOTHING)
    any_shape: bool = False
    fixed: Sequence[str] = ()
    opset: int = OPSET


@dataclass(frozen=True, slots=True)
class Form:
    """How ONNX Runtime runs an operator.

    Attributes:
        api: The ONNX operators that its graph may contain, separated by spaces.
        make: Returns the graph for a case and the type of its floating-point inputs.
        arrange: Rearranges the inputs if ONNX's order or layout differs from the table's; not timed.
        joined: The form with ONNX Runtime's own fused operator, if its optimiser does not create that one.
    """

    api: str
    make: Callable[[Case, np.dtype[Any]], Graph]
    arrange: Callable[[Mapping[str, NDArray[Any]]], Mapping[str, NDArray[Any]]] | None = None
    joined: Form | None = None

    def forms(self, *, fused: bool) -> tuple[str, ...]:
        """Returns ``graph``, and for a fused operator also ``parts``."""
        return (_GRAPH, PARTS) if fused else (_GRAPH,)


def single(kind: str, *inputs: str, of: Mapping[str, str] = NOTHING, **attributes: Any) -> Form:
    """Returns the form of an operator whose inputs are those of the table.

    ``of`` maps the attributes that come from the table's parameters to their names.
    """
    return Form(
        kind,
        lambda case, _: Graph(
            [node(kind, *inputs, **{name: case[given] for name, given in of.items()}, **attributes)]
        ),
    )


def with_numbers(
    kind: str, numbers: Callable[[Case], Mapping[str, Any]], *, data: str = "data", **attributes: Any
) -> Form:
    """Returns the form of an operator that takes integers, such as axes, as the inputs after its first."""

    def make(case: Case, _: np.dtype[Any]) -> Graph:
        given = numbers(case)
        return Graph([node(kind, data, *given, **attributes)], constants=given)

    return Form(kind, make)


def node(kind: str, *inputs: str, output: str = "output", **attributes: Any) -> onnx.NodeProto:
    """Returns a node with one output."""
    return onnx.helper.make_node(kind, list(inputs), [output], **attributes)


def model_of(graph: Graph, inputs: Mapping[str, NDArray[Any]]) -> bytes:
    """Returns the graph as a serialized ONNX model; ONNX Runtime infers the types of the outputs."""
    used = {name for each in graph.nodes for name in each.input}
    constants = {**graph.constants, **{name: inputs[name] for name in graph.fixed}}
    made = onnx.helper.make_graph(
        list(graph.nodes),
        "operator",
        [
            onnx.helper.make_tensor_value_info(
                name,
                onnx.helper.np_dtype_to_tensor_dtype(a.dtype),
                [None] * a.ndim if graph.any_shape else a.shape,
            )
            for name, a in inputs.items()
            if name in used and name not in constants
        ],
        [onnx.helper.make_empty_tensor_value_info(name) for name in graph.outputs],
        [onnx.numpy_helper.from_array(_constant(name, value), name) for name, value in constants.items()],
    )
    opsets = [onnx.helper.make_opsetid("", graph.opset), onnx.helper.make_opsetid(CONTRIBUTED, 1)]
    return onnx.helper.make_model(
        made, opset_imports=opsets, ir_version=_IR_VERSION if graph.opset <= OPSET else _NEXT_IR_VERSION
    ).SerializeToString()


def _constant(name: str, value: Any) -> NDArray[Any]:
    """Returns a constant as a tensor; raises TypeError for numbers that are neither an array nor integers."""
    if isinstance(value, np.ndarray):
        return value
    tensor = np.asarray(value)
    if tensor.size and tensor.dtype.kind not in "iu":
        raise TypeError(f"constant {name} is {value}; give an array, which has the type")
    return tensor.astype(np.int64)


def _open_fused(model: bytes, parts: Graph, device: Device, threads: int) -> tuple[Any, str]:
    """Opens a session and returns it with the nodes of its optimised graph in order.

    In the graph of the ``parts``, each node is an operator.

    Raises:
        NotSupportedHereError: Each of the parts is still a separate node.
    """
    with TemporaryDirectory() as folder:
        written = Path(folder) / "optimized.onnx"
        session = open_session(model, device, threads, cuda=_FLOAT32, optimized=written)
        nodes = list(onnx.load(written).graph.node)
    kinds = {each.op_type for each in nodes}
    if {each.op_type for each in parts.nodes} <= kinds:
        raise NotSupportedHereError(
            f"ONNX Runtime's optimiser leaves the parts as they are: {', '.join(map(_shown, nodes))}"
        )
    return session, ", ".join(map(_shown, nodes))


def _shown(each: onnx.NodeProto) -> str:
    """Returns the operator with the activation that it applies."""
    activations = [str(found.s, "utf-8") for found in each.attribute if found.name == "activation"]
    return f"{each.op_type}({activations[0]})" if activations and activations[0] else each.op_type


class ONNXRuntimeOperators(OperatorRunner):
    """The operators of ONNX; see ``OperatorRunner``. ONNX Runtime computes no gradients."""

    framework = "ONNX"
    package = __package__

    def __init__(self, options: RunnerOptions) -> None:
        super().__init__(options)
        if options.dtype == "bfloat16":
            raise NotSupportedHereError("ONNX Runtime lacks bfloat16 on the CPU, and NumPy cannot provide it")
        self._threads = options.threads or default_threads()
        self._last: Any = None

    @property
    def threads(self) -> int | None:
        return self._threads

    def prepare(
        self,
        operator: Operator,
        case: Case,
        inputs: Mapping[str, NDArray[Any]],
        *,
        gradient: bool = False,
        form: str = "",
    ) -> _Call:
        if form not in ("", *self.forms(operator.name)):
            raise NotSupportedHereError(self.missing(operator.name))
        if gradient:
            raise NotSupportedHereError(_NO_GRADIENTS)
        if operator.in_place is not None:
            raise NotSupportedHereError(IN_PLACE)
        found: Form = self.form_of(operator.name)
        dtype = element_type(self.options.dtype)
        where = f"{operator.name} in ONNX Runtime"
        try:
            graph, device, fused = found.make(case, dtype), self.options.device, ""
            inputs = found.arrange(inputs) if found.arrange else inputs
            inputs = {**inputs, **graph.fed}
            api = " ".join(dict.fromkeys(each.op_type for each in graph.nodes))
            if operator.parts and form != PARTS:
                parts, found = graph, found.joined or found
                session, fused = _open_fused(
                    model_of(found.make(case, dtype), inputs), parts, device, self._threads
                )
                api = found.api
            else:
                session = open_session(
                    model_of(graph, inputs), device, self._threads, cuda=_FLOAT32, optimize=form != PARTS
                )
            self._last = session
            return _Call(where, api, session, inputs, device, fused)
        except FAILURES as error:
            if "NOT_IMPLEMENTED" in str(error) or "Type Error: Type 'tensor(" in str(error):
                raise NotSupportedHereError(f"ONNX Runtime has no kernel: {reason(error)}") from error
            raise prediction_failure(f"{where}: {reason(error)}", error) from error

    def uncovered(self) -> tuple[str, ...]:
        covered = {name for form in self.table().values() for name in form.api.split()}
        names = {
            each.op_name
            for each in onnxruntime.capi.onnxruntime_pybind11_state.get_all_opkernel_def()
            if each.provider == "CPUExecutionProvider"
        }
        return tuple(sorted(names - covered))

    def details(self) -> FrameworkDetails:
        return details_of(self._last)

    def close(self) -> None:
        """Frees the last session."""
        self._last = None


class _Call:
    """A session with bound inputs; see ``OperatorCall``."""

    def __init__(
        self,
        where: str,
        api: str,
        session: Any,
        inputs: Mapping[str, NDArray[Any]],
        device: Any,
        fused: str = "",
    ) -> None:
        self.api = api
        self.fused = fused
        self._where = where
        self._session = session
        kind = "cuda" if device.is_gpu else "cpu"
        self._binding = session.io_binding()
        self._values = {
            node.name: onnxruntime.OrtValue.ortvalue_from_numpy(inputs[node.name], kind, device.index)
            for node in session.get_inputs()
        }
        for name, value in self._values.items():
            self._binding.bind_ortvalue_input(name, value)
        for node in session.get_outputs():
            self._binding.bind_output(node.name, kind, device.index)
        self._synchronize = self._binding.synchronize_outputs if device.is_gpu else None

    def forward(self) -> None:
        try:
            self._session.run_with_iobinding(self._binding)
            if self._synchronize:
                self._synchronize()
        except FAILURES as error:
            raise prediction_failure(f"{self._where}: {reason(error)}", error) from error

    def forward_for_gradient(self) -> None:
        raise NotSupportedHereError(_NO_GRADIENTS)

    def backward(self) -> None:
        raise NotSupportedHereError(_NO_GRADIENTS)

    def outputs(self) -> tuple[NDArray[Any], ...]:
        return tuple(value.copy() for value in self._binding.copy_outputs_to_cpu())

    def gradients(self) -> Mapping[str, NDArray[Any]]:
        return {}
