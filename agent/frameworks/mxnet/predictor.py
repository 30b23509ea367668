"""The predictor for MXNet 1.x: symbols (JSON) with parameters, and gluon models in code or in memory."""

from __future__ import annotations

import hashlib
import re
from collections import OrderedDict
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar, TypeAlias

import numpy as np

from inferometer.agent.artifacts.files import Artifacts, InputSignature, ModelSignature
from inferometer.agent.artifacts.mxnet_symbols import find_symbol, symbol_inputs, symbol_stem, symbol_text
from inferometer.agent.frameworks.mxnet.networks import (
    build_network,
    parameters_of,
    read_parameters,
    symbol_of,
)
from inferometer.agent.frameworks.mxnet.runtime import (
    FAILURES,
    ONE_AT_A_TIME,
    WORKERS,
    CudnnAutotune,
    converted,
    environment,
    find_context,
    framework_details,
    mxnet,
    reason,
    refuse,
)
from inferometer.agent.hardware.environment import FrameworkDetails, Precision, PredictorOptions, Weights
from inferometer.agent.inference.predictor import (
    Predictor,
    has_numbers,
    inputs_of_examples,
    number_of,
    prediction_failure,
    title_of,
)
from inferometer.agent.preprocessing.inputs import Tensors, batch_size, blank_batch
from inferometer.agent.tracing.recorder import Profiler, TraceLevel
from inferometer.manifests.errors import ArtifactError, DeviceError, PredictionError, suggestion
from inferometer.manifests.inputs import TensorSpec
from inferometer.manifests.schema import ModelManifest

_EXECUTORS = 4
_DYNAMIC_EXECUTORS = 16
"""The limit for a model with dynamic axes, whose batches differ not only in size."""
_Shapes: TypeAlias = tuple[tuple[int, ...], ...]
"""The shapes of a batch's tensors, in the manifest's order."""
_AUTOTUNE = CudnnAutotune()
_BULK = "MXNET_EXEC_BULK_EXEC_INFERENCE"
"""0 makes the executors that are bound meanwhile queue their operators one by one."""


class MXNetPredictor(Predictor):
    """Runs a symbol in MXNet: the JSON file ``model.graph_path`` with the parameters ``model.weights_path``.

    A model in code (``artifacts.architecture``) or in memory is a gluon hybrid block.

    Outputs have the symbol's names. An executor is bound to the shapes of a batch; executors for the last few
    shapes are kept and share the parameters. On a small network, an executor takes 0.2 ms for one input and a
    hybridized ``SymbolBlock`` 0.35 ms.

    Only one predictor per process runs at a time; the others wait. All predictors share MXNet's CPU workers
    and their number of threads: the first predictor to load sets it. Operators outside oneDNN use at most
    ``MXNET_OMP_MAX_THREADS``, if that is set before MXNet is loaded. ``cudnn_benchmark`` is also set once per
    process; see ``CudnnAutotune``.

    A model in code is cast to float16, entirely except for its normalisations, or converted to bfloat16 (on
    CPUs only) by MXNet's automatic mixed precision.
    """

    instances_by = "processes"
    precisions: ClassVar[frozenset[Precision]] = frozenset(Precision)

    def __init__(self, manifest: ModelManifest, artifacts: Artifacts, options: PredictorOptions) -> None:
        super().__init__(manifest, artifacts, options)
        self._threads: int | None = None
        self._context: Any = None
        self._symbol: Any = None
        self._weights: dict[str, Any] = {}
        self._output_names: list[str] = []
        self._names: dict[str, str] = {}
        self._executors: OrderedDict[_Shapes, Any] = OrderedDict()
        self._other_executors: OrderedDict[_Shapes, Any] = OrderedDict()
        self._apart: Callable[[Any], None] | None = None
        self._precision: Precision | None = None

    @classmethod
    def signature_of_file(cls, path: Path) -> ModelSignature:
        graph, weights, note = find_symbol(path)
        with ONE_AT_A_TIME:
            parameters = read_parameters(weights) if weights else {}
        inputs = symbol_inputs(graph, {name: array.shape for name, array in parameters.items()})
        if weights is None and len(inputs) > 1:
            raise ArtifactError(
                f"{graph}: has no parameter file next to it; expected {symbol_stem(graph)}-0000.params"
            )
        if {array.dtype for array in parameters.values()} == {np.float16}:
            inputs = tuple(replace(each, element_type=each.element_type or "float16") for each in inputs)
        return ModelSignature(inputs, graph, weights, notes=(note,) if note else ())

    @classmethod
    def signature_of_object(cls, model: object, examples: Sequence[InputSignature]) -> ModelSignature:
        """Returns a hybrid block's inputs and the number and checksum of its parameters; see ``Predictor``.

        Inputs with floating-point examples get the dtype of the block's parameters.
        """
        assert isinstance(model, mxnet.gluon.HybridBlock)  # noqa: S101 - as the registry has it
        if not examples:  # before anything is read
            inputs_of_examples(type(model).__name__, examples)
        with ONE_AT_A_TIME:
            arrays = {name: array.asnumpy() for name, array in parameters_of(model).items()}
        floats = {str(array.dtype) for array in arrays.values() if array.dtype.kind == "f"}
        float_type = floats.pop() if len(floats) == 1 else "float32"
        state = hashlib.sha256()
        for name, array in arrays.items():
            state.update(f"{name} {array.dtype} {array.shape}\n".encode())
            state.update(np.ascontiguousarray(array).data)
        return ModelSignature(
            inputs_of_examples(type(model).__name__, examples, float_type),
            attributes={"parameters": sum(array.size for array in arrays.values())},
            checksums={"parameters": f"sha256:{state.hexdigest()}"},
        )

    @classmethod
    def check(cls, manifest: ModelManifest, options: PredictorOptions, *, in_memory: bool = False) -> None:
        """Finds the device, which must be a CPU for bfloat16; see ``Predictor``."""
        with ONE_AT_A_TIME:
            find_context(options.device, title_of(manifest))
        lower = options.precision is Precision.BFLOAT16 and not manifest.has_own_precision
        if lower and options.device.is_gpu:
            why = "it has bfloat16 for a CPU only"
            raise refuse(title_of(manifest), options.precision, options.device, why)

    def load(self) -> None:
        with ONE_AT_A_TIME:
            self._load()

    def predict(self, inputs: Tensors) -> Tensors:
        """Runs the symbol and waits until its outputs are in host memory; see ``Predictor``."""
        if self._symbol is None:
            raise PredictionError(f"{self}: is not loaded")
        arrays = self.checked_inputs(inputs)
        shapes = tuple(array.shape for array in arrays.values())
        with ONE_AT_A_TIME:
            try:
                executor = self._executor(shapes)
                for name, array in arrays.items():
                    executor.arg_dict[self._names[name]][:] = array
                # forward only queues the operators; asnumpy waits for an output and copies it
                outputs = [self._on_host(output) for output in executor.forward(is_train=False)]
            except Exception as error:  # of any class: operators in Python raise what they like
                self._executors.pop(shapes, None)
                raise prediction_failure(
                    f"{self}: MXNet failed on a batch of {batch_size(arrays)}: {reason(error)}", error
                ) from error
        return dict(zip(self._output_names, outputs, strict=True))

    def _on_host(self, output: Any) -> Any:
        """Returns an output in host memory, in float32 if the model is cast to float16."""
        lower = self._precision is Precision.FLOAT16 and output.dtype == np.float16
        return (output.astype(np.float32) if lower else output).asnumpy()

    def turn(self) -> AbstractContextManager[object]:
        """Waits until no other MXNet predictor runs; calling ``predict`` does not require it."""
        return ONE_AT_A_TIME

    def profiler(self, level: TraceLevel) -> Profiler | None:
        from inferometer.agent.frameworks.mxnet.profiler import MXNetProfiler  # most runs need none

        if self._symbol is None:
            return None
        return MXNetProfiler(self, level, gpu=self.options.device.is_gpu)

    def run_apart(self, prepare: Callable[[Any], None] | None) -> None:
        """Makes later predictions queue their operators one by one; None restores bulk queuing.

        MXNet's profiler records each queued item. The mode is fixed when an executor is bound, so each mode
        has its own executors; the executor for the last batch's shapes runs once as a warm-up, which raises
        PredictionError if memory runs out. ``prepare`` is called with each new executor.
        """
        before, self._apart = self._apart, prepare
        if (before is None) == (prepare is None):
            return
        self._executors, self._other_executors = self._other_executors, self._executors
        shapes = next(reversed(self._other_executors), None)
        if prepare is not None and shapes is not None and shapes not in self._executors:
            try:
                self._executor(shapes).forward(is_train=False)
                mxnet.nd.waitall()
            except FAILURES as error:
                self._executors.pop(shapes, None)
                raise PredictionError(f"{self}: MXNet cannot bind it again: {reason(error)}") from error

    def drop_apart(self) -> None:
        """Frees the executors that queue operators one by one, unless they are in use."""
        if self._apart is None:
            self._other_executors.clear()

    def latest_executor(self) -> Any:
        """Returns the executor of the last prediction."""
        return next(reversed(self._executors.values()))

    def details(self) -> FrameworkDetails:
        return framework_details()

    @property
    def threads(self) -> int | None:
        """The number of threads of each MXNet CPU worker; None if they differ."""
        return self._threads

    def close(self) -> None:
        """Frees the executors and the parameters; on a GPU, returns their memory to the driver."""
        with ONE_AT_A_TIME:
            self._symbol = None
            self._executors.clear()
            self._other_executors.clear()
            self._weights = {}
            if self._context is not None and self._context.device_type == "gpu":
                self._context.empty_cache()
            self._context = None

    def _load(self) -> None:
        self._precision = self.casts_to()
        self.check(self.manifest, self.options)
        self._context = find_context(self.options.device, self)
        if (wanted := self.options.cudnn_benchmark) is not None:
            _AUTOTUNE.fix(wanted=wanted)
        self._threads = WORKERS.fix(self.options.threads, self.options.operator_threads)
        architecture, block = self.artifacts.architecture, self.artifacts.in_memory
        if self.artifacts.graph is not None and self.options.weights is Weights.PRETRAINED:
            architecture = None  # it is for training
        if architecture is None and block is None:
            self._symbol = self._read_symbol()
        try:
            if block is not None:
                self._symbol, self._weights = self._borrow(block)
            elif architecture is None:
                self._weights = self._read_weights()
                self._check_weights()
            else:
                sizes = [each.sized() for each in self.tensors]
                net = build_network(self, self.artifacts, self.options, sizes, [self._context])
                self._symbol, self._weights = self._symbol_and_weights(net)
            if not any(each.is_dynamic for each in self.tensors):  # else the first batch has the shapes
                self._executor(tuple((1, *each.sized()) for each in self.tensors))
            mxnet.nd.waitall()
            self._output_names = list(self._symbol.list_outputs())
        except FAILURES as error:
            self.close()
            what = f"{self}, {architecture.name}" if architecture else self.artifacts.graph or self
            taken = (f"{each.element_type.value} inputs of {each.written}" for each in self.tensors)
            raise ArtifactError(
                f"{what}: does not accept {' and '.join(taken)} with "
                f"{self.artifacts.weights or 'random weights'}: {reason(error)}"
            ) from error
        except ArtifactError:
            self.close()
            raise
        if self._precision is not None:
            self._try_precision(self._precision)

    def _try_precision(self, precision: Precision) -> None:
        """Runs a batch of zeros, because some operators have no kernel for a lower precision."""
        try:
            self.predict(blank_batch(self.tensors))
        except PredictionError as error:
            self.close()
            why = reason(error.__cause__ or error)
            raise refuse(str(self), precision, self.options.device, why) from error

    def _symbol_and_weights(self, net: Any) -> tuple[Any, dict[str, Any]]:
        """Returns the symbol of a network and its parameters in the requested precision."""
        if self._precision is Precision.FLOAT16:
            net.cast(self._precision.value)
        weights = {each.name: each.data() for each in net.collect_params().values()}
        symbol = symbol_of(net, self._own_names())
        return converted(symbol, weights) if self._precision is Precision.BFLOAT16 else (symbol, weights)

    def _borrow(self, block: Any) -> tuple[Any, dict[str, Any]]:
        """Returns the symbol of the caller's block and its parameters, without a copy."""
        weights = parameters_of(block)
        others = {str(array.context) for array in weights.values() if array.context != self._context}
        if others:
            raise DeviceError(
                f"{self}: is on {', '.join(sorted(others))}, but must run on {self._context}; move it there"
            )
        return symbol_of(block, self._own_names()), weights

    def _own_names(self) -> list[str]:
        """Returns the input names from the manifest, because a network in code has none."""
        self._names = {each.name: each.name for each in self.tensors}
        if has_numbers(self.tensors):
            return sorted(self._names, key=lambda name: number_of(name) or 0)
        return list(self._names)

    def _read_symbol(self) -> Any:
        graph = self.artifacts.graph
        if graph is None:
            raise ArtifactError(f"{self}: needs graph_path, the symbol's JSON file")
        try:
            symbol = mxnet.sym.load_json(symbol_text(graph))
            arguments = symbol.list_arguments()
        except FAILURES as error:
            raise ArtifactError(f"{graph}: is not an MXNet symbol: {reason(error)}") from error
        free = [name for name in arguments if not re.search(r"_(weight|bias|gamma|beta|label)$", name)]
        numbered = has_numbers(self.tensors)
        self._names = {}
        for name in (each.name for each in self.tensors):
            number = number_of(name)
            by_number = numbered and name not in arguments and number is not None and number < len(free)
            self._names[name] = free[number or 0] if by_number else name
            if self._names[name] not in arguments:
                raise ArtifactError(f'{graph}: has no input "{name}"; {suggestion(name, free)}')
        return symbol

    def _read_weights(self) -> dict[str, Any]:
        """Returns the parameters on the device by name, without the prefixes ``arg:`` and ``aux:``."""
        weights = self.artifacts.weights
        if weights is None:
            return {}
        return {name: array.as_in_context(self._context) for name, array in read_parameters(weights).items()}

    def _check_weights(self) -> None:
        arguments = self._symbol.list_arguments()
        inputs = {name for name in arguments if name.endswith("_label")} | set(self._names.values())
        needed = {*arguments, *self._symbol.list_auxiliary_states()} - inputs
        missing = sorted(needed - set(self._weights))
        if missing and self.artifacts.weights is None:
            raise ArtifactError(f"{self}: needs weights_path, the parameter file")
        if missing:
            raise ArtifactError(
                f"{self.artifacts.weights}: lacks {len(missing)} of the {len(needed)} parameters of {self}, "
                f"such as {missing[0]}"
            )

    def _type_of(self, tensor: TensorSpec) -> str:
        """Returns the executor's element type for an input; batches are cast to it."""
        given = tensor.element_type.value
        floats = np.dtype(given).kind == "f"
        return Precision.FLOAT16.value if floats and self._precision is Precision.FLOAT16 else given

    def _executor(self, shapes: _Shapes) -> Any:
        """Returns the executor for the shapes of a batch; drops the least recently used one if needed."""
        executor = self._executors.get(shapes)
        if executor is not None:
            self._executors.move_to_end(shapes)
            return executor
        names = [self._names[each.name] for each in self.tensors]
        known = {weight: array.shape for weight, array in self._weights.items()}
        found, _, _ = self._symbol.infer_shape(**known | dict(zip(names, shapes, strict=True)))
        types = {self._names[each.name]: self._type_of(each) for each in self.tensors}
        arguments = {}
        for argument, inferred in zip(self._symbol.list_arguments(), found, strict=True):
            # an argument without weights that is no input is a label, which only training reads
            arguments[argument] = self._weights.get(argument)
            if argument in types or arguments[argument] is None:
                dtype = types.get(argument, types[names[0]])
                arguments[argument] = mxnet.nd.zeros(inferred, self._context, dtype=dtype)
        auxiliary = {state: self._weights[state] for state in self._symbol.list_auxiliary_states()}
        if self._apart is not None:  # queued operators may read the environment while it changes
            mxnet.nd.waitall()
        with environment({} if self._apart is None else {_BULK: "0"}):
            executor = self._symbol.bind(self._context, arguments, grad_req="null", aux_states=auxiliary)
        if self._apart is not None:
            self._apart(executor)
        self._executors[shapes] = executor
        dynamic = any(each.is_dynamic for each in self.tensors)
        if len(self._executors) > (_DYNAMIC_EXECUTORS if dynamic else _EXECUTORS):
            self._executors.popitem(last=False)
        return executor
