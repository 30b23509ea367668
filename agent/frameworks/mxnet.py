"""MXNet 1.x: a symbol file (JSON) with its parameters, or a model of gluon's that is built in code."""

from __future__ import annotations

import os
import re
import threading
import warnings
from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from typing import Any

import numpy as np

from agent.artifacts import Artifacts
from agent.frameworks.failures import prediction_failure
from agent.frameworks.mxnet_workers import CpuWorkers
from agent.models.architecture import Architecture
from agent.models.mxnet.random_weights import draw_weights
from agent.predictor import Predictor, PredictorOptions, Tensors, Weights
from agent.trace_level import TraceLevel
from agent.tracing.profiler import Profiler
from manifests.errors import ArtifactError, DeviceError, PredictionError, suggestion
from manifests.schema import ModelManifest

# The one alias that MXNet 1.9.1 takes from NumPy 1.26 and that is no longer there.
if "bool" not in vars(np):
    np.bool = np.bool_  # type: ignore[attr-defined,unused-ignore]  # NumPy 2 has the name, 1.26 has not
# MXNet writes a line to stderr whenever it fuses the operators of a graph.
os.environ.setdefault("MXNET_SUBGRAPH_VERBOSE", "0")
with warnings.catch_warnings():
    # MXNet 1.9.1 asks NumPy for functions that are deprecated, and compares versions with distutils.
    warnings.simplefilter("ignore", DeprecationWarning)
    import mxnet

# What MXNet, and the code of an architecture, raise at a file or at a batch that they cannot take.
_FAILURES = (
    mxnet.base.MXNetError,
    ArithmeticError,
    AssertionError,
    AttributeError,
    ImportError,
    LookupError,
    NameError,
    OSError,
    RuntimeError,
    TypeError,
    ValueError,
)
_REASON_CHARACTERS = 300
_EXECUTORS = 4
# MXNet crashes when two threads use it at once, even each with a model of its own.
_ONE_AT_A_TIME = threading.RLock()


class MXNetPredictor(Predictor):
    """A symbol in MXNet; ``model.graph_path`` is the JSON file, ``model.weights_path`` the parameters.

    A model that is built in code (``artifacts.architecture``) is a hybrid block of gluon's.

    Outputs have the symbol's names. An executor is bound to a batch size; the ones of the last few sizes are
    kept, and share the parameters. Measured on a small net, an executor takes 0.2 ms for one input where
    a hybridized ``SymbolBlock`` takes 0.35 ms.

    One predictor of the process works at a time, and others wait. The number of threads is that of MXNet's
    CPU workers, which all predictors share: the first one that is loaded decides it. Operators outside oneDNN
    use at most half of the processors, unless ``OMP_NUM_THREADS`` or ``MXNET_OMP_MAX_THREADS`` is set before
    MXNet is loaded.
    """

    def __init__(self, manifest: ModelManifest, artifacts: Artifacts, options: PredictorOptions) -> None:
        super().__init__(manifest, artifacts, options)
        self._parameters = manifest.inputs[0].parameters
        self._threads: int | None = None
        self._context: Any = None
        self._symbol: Any = None
        self._weights: dict[str, Any] = {}
        self._output_names: list[str] = []
        self._executors: OrderedDict[int, Any] = OrderedDict()
        self._other_executors: OrderedDict[int, Any] = OrderedDict()
        self._apart: Callable[[Any], None] | None = None

    def load(self) -> None:
        """Reads symbol and parameters and binds them for one input; see ``Predictor``."""
        with _ONE_AT_A_TIME:
            self._load()

    def predict(self, inputs: Tensors) -> Tensors:
        """Runs the symbol and waits until its outputs are in host memory; see ``Predictor``."""
        if self._symbol is None:
            raise PredictionError(f"{self}: is not loaded")
        array = self.checked_input(inputs)
        with _ONE_AT_A_TIME:
            try:
                executor = self._executor(len(array))
                executor.arg_dict[self._parameters.input_layer][:] = array
                # forward only queues the operators; asnumpy waits for an output and copies it
                outputs = [output.asnumpy() for output in executor.forward(is_train=False)]
            except _FAILURES as error:
                self._executors.pop(len(array), None)
                raise prediction_failure(
                    f"{self}: MXNet failed on a batch of {len(array)}: {_reason(error)}", error
                ) from error
        return dict(zip(self._output_names, outputs, strict=True))

    def turn(self) -> AbstractContextManager[object]:
        """Waits until no other predictor of MXNet works; ``predict`` itself may be called without it."""
        return _ONE_AT_A_TIME

    def profiler(self, level: TraceLevel) -> Profiler | None:
        """Returns a profiler of the symbol's operators; see ``Predictor``."""
        from agent.frameworks.mxnet_profiler import MXNetProfiler  # most runs need none

        if self._symbol is None:
            return None
        return MXNetProfiler(mxnet, self, level, gpu=self.options.device.is_gpu)

    def run_apart(self, prepare: Callable[[Any], None] | None) -> None:
        """Has the operators of later predictions queued one by one; with None, all in one piece again.

        MXNet's profiler sees what is queued. How that is done is decided when an executor is bound, so that
        there are others for it; that of the last batch size has run once afterwards.

        Args:
            prepare: Is called with each of them.

        Raises:
            PredictionError: There is no memory for it.
        """
        before, self._apart = self._apart, prepare
        if (before is None) == (prepare is None):
            return
        self._executors, self._other_executors = self._other_executors, self._executors
        batch_size = next(reversed(self._other_executors), None)
        if prepare is not None and batch_size is not None and batch_size not in self._executors:
            try:
                self._executor(batch_size).forward(is_train=False)
                mxnet.nd.waitall()
            except _FAILURES as error:
                self._executors.pop(batch_size, None)
                raise PredictionError(f"{self}: MXNet cannot bind it again: {_reason(error)}") from error

    def drop_apart(self) -> None:
        """Frees the executors that queue operators one by one; not while they are used."""
        if self._apart is None:
            self._other_executors.clear()

    def latest_executor(self) -> Any:
        """Returns the executor of the last prediction."""
        return next(reversed(self._executors.values()))

    @property
    def threads(self) -> int | None:
        """The number that MXNet's CPU workers were found to have; None where they differ."""
        return self._threads

    def close(self) -> None:
        """Drops the executors and the parameters, and on a GPU gives their memory back to the driver."""
        with _ONE_AT_A_TIME:
            self._symbol = None
            self._executors.clear()
            self._other_executors.clear()
            self._weights = {}
            if self._context is not None and self._context.device_type == "gpu":
                self._context.empty_cache()
            self._context = None

    def _load(self) -> None:
        self._context = self._find_device()
        self._threads = _WORKERS.fix(self.options.threads, self.options.default_threads)
        architecture = self.artifacts.architecture
        if architecture is None:
            self._symbol = self._read_symbol()
        try:
            if architecture is None:
                self._weights = self._read_weights()
                self._check_weights()
            else:
                self._symbol, self._weights = self._build(architecture)
            self._executor(1)
            mxnet.nd.waitall()
            self._output_names = list(self._symbol.list_outputs())
        except _FAILURES as error:
            self.close()
            raise ArtifactError(
                f"{f'{self}, {architecture.name}' if architecture else self.artifacts.graph}: does not take "
                f"{self._parameters.element_type.value} inputs of {self._parameters.dimensions} with "
                f"{self.artifacts.weights or 'random weights'}: {_reason(error)}"
            ) from error
        except ArtifactError:
            self.close()
            raise

    def _find_device(self) -> Any:
        wanted = self.options.device
        if not wanted.is_gpu:
            return mxnet.cpu()
        where = f"{self}: MXNet {mxnet.__version__} cannot use {wanted}"
        if not mxnet.runtime.Features().is_enabled("CUDA"):
            raise DeviceError(
                f"{where}: it is built for the CPU only; run on the CPU, or install a CUDA build"
            )
        count = 0
        with suppress(mxnet.base.MXNetError):  # no driver
            count = mxnet.context.num_gpus()
        if wanted.index >= count:
            raise DeviceError(f"{where}: the number of GPUs that it finds is {count}; run on the CPU")
        return mxnet.gpu(wanted.index)

    def _build(self, architecture: Architecture) -> tuple[Any, dict[str, Any]]:
        """Builds a model in code; random weights depend on the seed alone."""
        random = self.options.weights is Weights.RANDOM
        if not random and self.artifacts.weights is None:
            raise ArtifactError(f"{self}: has no weights; give weights_path, or use --weights=random")
        net = architecture.build(initialize=random)
        if not isinstance(net, mxnet.gluon.HybridBlock):
            raise ArtifactError(
                f'{self}: architecture "{architecture.name}" is {type(net).__name__}, which is no '
                "gluon.HybridBlock"
            )
        parameters = net.collect_params()
        parameters.setattr("grad_req", "null")  # gradients would take as much memory again
        net.infer_shape(mxnet.nd.zeros((1, *self._parameters.dimensions)))
        if random:
            net.initialize(mxnet.init.Zero(), ctx=self._context, force_reinit=True)
            drawn = [p for p in parameters.values() if not isinstance(p, mxnet.gluon.Constant)]
            draw_weights(drawn, self.options.seed)
        else:
            try:
                net.load_parameters(str(self.artifacts.weights), ctx=self._context)
            except _FAILURES as error:
                raise ArtifactError(
                    f"{self.artifacts.weights}: are not the weights of {self}: {_reason(error)}"
                ) from error
        symbol = net(mxnet.sym.var(self._parameters.input_layer))
        if isinstance(symbol, list | tuple):  # of a block with several outputs
            symbol = mxnet.sym.Group(symbol)
        return symbol, {parameter.name: parameter.data() for parameter in parameters.values()}

    def _read_symbol(self) -> Any:
        graph = self.artifacts.graph
        if graph is None:
            raise ArtifactError(f"{self}: needs graph_path, the symbol's JSON file")
        try:
            symbol = mxnet.sym.load(str(graph))
            arguments = symbol.list_arguments()
        except _FAILURES as error:
            raise ArtifactError(f"{graph}: is no MXNet symbol: {_reason(error)}") from error
        if self._parameters.input_layer not in arguments:
            free = [name for name in arguments if not re.search(r"_(weight|bias|gamma|beta|label)$", name)]
            raise ArtifactError(
                f'{graph}: has no input "{self._parameters.input_layer}"; '
                f"{suggestion(self._parameters.input_layer, free)}"
            )
        return symbol

    def _read_weights(self) -> dict[str, Any]:
        """The parameters on the device by name, without the ``arg:`` and ``aux:`` of the file."""
        weights = self.artifacts.weights
        if weights is None:
            return {}
        try:
            loaded = mxnet.nd.load(str(weights)) or {}
            if not isinstance(loaded, dict):
                raise TypeError("its arrays have no names")
            return {
                re.sub("^(arg|aux):", "", name): array.as_in_context(self._context)
                for name, array in loaded.items()
            }
        except _FAILURES as error:
            raise ArtifactError(f"{weights}: is no file of MXNet parameters: {_reason(error)}") from error

    def _check_weights(self) -> None:
        arguments = self._symbol.list_arguments()
        inputs = {name for name in arguments if name.endswith("_label")} | {self._parameters.input_layer}
        needed = {*arguments, *self._symbol.list_auxiliary_states()} - inputs
        missing = sorted(needed - set(self._weights))
        if missing and self.artifacts.weights is None:
            raise ArtifactError(f"{self}: needs weights_path, the parameters' file")
        if missing:
            raise ArtifactError(
                f"{self.artifacts.weights}: lacks {len(missing)} of the {len(needed)} parameters of {self}, "
                f"such as {missing[0]}"
            )

    def _executor(self, batch_size: int) -> Any:
        """The symbol bound to a batch size; the least recently used one makes room."""
        executor = self._executors.get(batch_size)
        if executor is not None:
            self._executors.move_to_end(batch_size)
            return executor
        name = self._parameters.input_layer
        shape = (batch_size, *self._parameters.dimensions)
        known = {weight: array.shape for weight, array in self._weights.items()}
        shapes, _, _ = self._symbol.infer_shape(**{**known, name: shape})
        arguments = {}
        for argument, inferred in zip(self._symbol.list_arguments(), shapes, strict=True):
            # what has no weights and is not the input is a label, which only training reads
            arguments[argument] = self._weights.get(argument)
            if argument == name or arguments[argument] is None:
                arguments[argument] = mxnet.nd.zeros(
                    inferred, self._context, dtype=self._parameters.element_type.value
                )
        auxiliary = {state: self._weights[state] for state in self._symbol.list_auxiliary_states()}
        with nullcontext() if self._apart is None else _operators_apart():
            executor = self._symbol.bind(self._context, arguments, grad_req="null", aux_states=auxiliary)
        if self._apart is not None:
            self._apart(executor)
        self._executors[batch_size] = executor
        if len(self._executors) > _EXECUTORS:
            self._executors.popitem(last=False)
        return executor


_WORKERS = CpuWorkers(mxnet)
_BULK = "MXNET_EXEC_BULK_EXEC_INFERENCE"


@contextmanager
def _operators_apart() -> Iterator[None]:
    """Executors that are bound inside queue operators one by one; MXNet reads that from the environment."""
    before = os.environ.get(_BULK)
    mxnet.nd.waitall()  # what is queued may read the environment while it changes
    os.environ[_BULK] = "0"
    try:
        yield
    finally:
        os.environ.pop(_BULK)
        if before is not None:
            os.environ[_BULK] = before


def worker_threads() -> list[int]:
    """The OpenMP threads that each of MXNet's CPU workers may use, as the workers themselves read them."""
    return _WORKERS.read()


def _reason(error: BaseException) -> str:
    """MXNet's message in one line: without the place in its source and without the stack trace."""
    text = str(error).partition("Stack trace")[0]
    lines = [line.strip() for line in text.splitlines()]
    lines = [line for line in lines if line and not line.startswith(("Traceback", "File "))]
    reason = " ".join(" ".join(lines).split()) or type(error).__name__
    reason = re.sub(r"^(MXNetError: |\[[\d:]+\] \S+: )+", "", reason)
    return reason if len(reason) <= _REASON_CHARACTERS else reason[: _REASON_CHARACTERS - 1] + "…"
