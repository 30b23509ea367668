"""Single operators in ONNX Runtime: a graph for each, whose inputs are never constants."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from numpy.typing import NDArray

from inferometer.agent.frameworks.onnxruntime.operators.fusion import open_fused
from inferometer.agent.frameworks.onnxruntime.operators.graphs import graphs, model_of, reasons
from inferometer.agent.frameworks.onnxruntime.sessions import (
    FAILURES,
    details_of,
    onnxruntime,
    open_session,
    reason,
)
from inferometer.agent.hardware.environment import FrameworkDetails
from inferometer.agent.hardware.threads import default_threads
from inferometer.agent.inference.predictor import prediction_failure
from inferometer.agent.operators.operator import Case, Operator
from inferometer.agent.operators.runner import (
    PARTS,
    NotSupportedHereError,
    OperatorRunner,
    RunnerOptions,
    element_type,
)
from inferometer.agent.operators.table.registry import has_parts

GRAPH = "graph"


class ONNXRuntimeOperators(OperatorRunner):
    """The operators of ONNX; see ``OperatorRunner``. ONNX Runtime computes no gradients."""

    def __init__(self, options: RunnerOptions) -> None:
        super().__init__(options)
        if options.dtype == "bfloat16":
            raise NotSupportedHereError("ONNX Runtime has no bfloat16 on the CPU, and NumPy none to feed it")
        self._threads = options.threads or default_threads()
        self._last: Any = None

    @property
    def threads(self) -> int | None:
        """The number of the sessions' threads."""
        return self._threads

    def forms(self, name: str) -> tuple[str, ...]:
        """The graph, and that of the parts."""
        if name not in graphs():
            return ()
        return (GRAPH, PARTS) if has_parts(name) else (GRAPH,)

    def missing(self, name: str) -> str:
        """The reason of the file that would have it."""
        return reasons().get(name, "ONNX has no such operator")

    def prepare(
        self,
        operator: Operator,
        case: Case,
        inputs: Mapping[str, NDArray[Any]],
        *,
        gradient: bool = False,
        form: str = "",
    ) -> _Call:
        """Builds the graph's session, and binds the inputs on the device; see ``OperatorRunner``."""
        if form not in ("", *self.forms(operator.name)):
            raise NotSupportedHereError(self.missing(operator.name))
        if gradient:
            raise NotSupportedHereError("ONNX Runtime computes no gradients")
        if operator.in_place is not None:
            raise NotSupportedHereError("ONNX has no operator that replaces its input")
        if operator.name not in graphs():
            raise NotSupportedHereError(self.missing(operator.name))
        found = graphs()[operator.name]
        dtype = element_type(self.options.dtype)
        where = f"{operator.name} in ONNX Runtime"
        try:
            graph, device, fused = found.make(case, dtype), self.options.device, ""
            inputs = found.arrange(inputs) if found.arrange else inputs
            inputs = {**inputs, **graph.fed}
            api = " ".join(dict.fromkeys(each.op_type for each in graph.nodes))
            if operator.parts and form != PARTS:
                parts, found = graph, found.joined or found
                session, fused = open_fused(
                    model_of(found.make(case, dtype), inputs), parts, device, self._threads
                )
                api = found.api
            else:
                session = open_session(model_of(graph, inputs), device, self._threads, optimize=form != PARTS)
            self._last = session
            return _Call(where, api, session, inputs, device, fused)
        except FAILURES as error:
            if "NOT_IMPLEMENTED" in str(error) or "Type Error: Type 'tensor(" in str(error):
                raise NotSupportedHereError(f"ONNX Runtime has no kernel: {reason(error)}") from error
            raise prediction_failure(f"{where}: {reason(error)}", error) from error

    def uncovered(self) -> tuple[str, ...]:
        """The operators with a kernel for the CPU that no graph has."""
        covered = {name for form in graphs().values() for name in form.api.split()}
        names = {
            each.op_name
            for each in onnxruntime.capi.onnxruntime_pybind11_state.get_all_opkernel_def()
            if each.provider == "CPUExecutionProvider"
        }
        return tuple(sorted(names - covered))

    def details(self) -> FrameworkDetails:
        """ONNX Runtime's libraries, build and settings."""
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
        raise NotSupportedHereError("ONNX Runtime computes no gradients")

    def backward(self) -> None:
        raise NotSupportedHereError("ONNX Runtime computes no gradients")

    def outputs(self) -> tuple[NDArray[Any], ...]:
        return tuple(value.copy() for value in self._binding.copy_outputs_to_cpu())

    def gradients(self) -> Mapping[str, NDArray[Any]]:
        return {}
