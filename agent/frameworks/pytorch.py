"""PyTorch: architectures built in code with their weights, and TorchScript archives.

Nothing is unpickled by Python: weights are read with ``weights_only=True``. An exported program (``.pt2``) is
refused, because ``torch.export.load`` unpickles constants and evaluates expressions of the file.
"""

from __future__ import annotations

import pickle  # for the name of its exception; nothing is unpickled here
import re
import warnings
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from agent.artifacts import Artifacts
from agent.frameworks.failures import prediction_failure
from agent.models.architecture import Architecture
from agent.predictor import Predictor, PredictorOptions, Tensors, Weights
from agent.trace_level import TraceLevel
from agent.tracing.profiler import Profiler
from manifests.errors import ArtifactError, DeviceError, PredictionError
from manifests.schema import ModelManifest

# What PyTorch, and the code of an architecture, raise at a file or at a batch that they cannot take.
_FAILURES = (
    ArithmeticError,
    AssertionError,
    AttributeError,
    EOFError,
    ImportError,
    LookupError,
    MemoryError,
    NameError,
    OSError,
    RuntimeError,
    TypeError,
    ValueError,
    pickle.UnpicklingError,
)
_REASON_CHARACTERS = 300
ONNX_OPSET = 17
"""ONNX Runtime reads it since 1.12."""
_DTYPES = {
    "float32": torch.float32,
    "float16": torch.float16,
    "uint8": torch.uint8,
    "int32": torch.int32,
    "int64": torch.int64,
}


def _read_default_threads() -> int:
    """PyTorch's own number of threads, which options without threads mean.

    It is read before any predictor sets one, and in a new thread: to load MXNet changes the number of the
    thread that does it.
    """
    with ThreadPoolExecutor(1) as thread:
        return thread.submit(torch.get_num_threads).result()


_DEFAULT_THREADS = _read_default_threads()


class PyTorchPredictor(Predictor):
    """A model in PyTorch.

    Of a model that is built in code (``artifacts.architecture``) the weights are a state dict; otherwise the
    graph is a TorchScript archive. Outputs are named by the model where it returns a mapping, and are
    ``output0``, ``output1``, … where it returns a tensor or a sequence of tensors.

    PyTorch keeps the number of threads per calling thread, and starts each with the one set last. ``predict``
    therefore sets it whenever the thread that calls it has another.
    """

    def __init__(self, manifest: ModelManifest, artifacts: Artifacts, options: PredictorOptions) -> None:
        super().__init__(manifest, artifacts, options)
        self._threads = options.threads or options.default_threads(_DEFAULT_THREADS)
        self._device = torch.device("cpu")
        self._module: Callable[[torch.Tensor], object] | None = None

    def load(self) -> None:
        """Builds or reads the module, gives it its weights and moves it to the device; see ``Predictor``."""
        self._device = self._find_device()
        self._use_threads()
        module = self._build()
        if self.artifacts.weights is not None:
            try:
                with warnings.catch_warnings():
                    # it warns of newer pickle protocols, and raises at what it cannot read
                    warnings.simplefilter("ignore", UserWarning)
                    state = torch.load(self.artifacts.weights, map_location="cpu", weights_only=True)
                _leave_out(state, getattr(module, "ignored_weights", ()))
                module.load_state_dict(state, strict=True)
            except _FAILURES as error:
                raise ArtifactError(
                    f"{self.artifacts.weights}: are not the weights of {self}: {_reason(error)}"
                ) from error
        try:
            self._module = module.to(self._device).eval()
        except RuntimeError as error:
            raise DeviceError(
                f"{self}: cannot be moved to {self.options.device}: {_reason(error)}"
            ) from error

    def predict(self, inputs: Tensors) -> Tensors:
        """Runs the module without gradients and copies its outputs to the host; see ``Predictor``."""
        if self._module is None:
            raise PredictionError(f"{self}: is not loaded")
        array = self.checked_input(inputs)
        self._use_threads()
        if not array.flags.writeable:  # a tensor shares the memory, and is always writable
            array = array.copy()
        try:
            with torch.inference_mode():
                answer = self._module(torch.from_numpy(array).to(self._device))
                outputs = {name: tensor.cpu().numpy() for name, tensor in _named_tensors(answer)}
            if self._device.type == "cuda":
                # The copies above have waited for their own stream; a model may use others.
                torch.cuda.synchronize(self._device)
        except _FAILURES as error:
            raise prediction_failure(
                f"{self}: PyTorch failed on a batch of {len(array)}: {_reason(error)}", error
            ) from error
        return {name: _own(output, array) for name, output in outputs.items()}

    def profiler(self, level: TraceLevel) -> Profiler | None:
        """Returns a profiler of the module's operators; see ``Predictor``."""
        from agent.frameworks.pytorch_profiler import PyTorchProfiler  # most runs need none

        if not isinstance(self._module, torch.nn.Module):
            return None
        return PyTorchProfiler(self._module, level, gpu=self._device.type == "cuda")

    @property
    def threads(self) -> int | None:
        """The number of threads that ``predict`` sets."""
        return self._threads

    def close(self) -> None:
        """Drops the module, and on a GPU gives the memory that it held back to the driver."""
        if self._module is not None:
            self._module = None
            if self._device.type == "cuda":
                torch.cuda.empty_cache()

    def export_onnx(self, path: Path) -> None:
        """Writes the loaded model to a file as an ONNX graph, for batches of any size.

        The input has the name of the manifest's ``input_layer``, the output is ``output0``.

        Raises:
            ArtifactError: PyTorch cannot express the model in ONNX.
        """
        parameters = self.manifest.inputs[0].parameters
        example = torch.zeros((1, *parameters.dimensions), dtype=_DTYPES[parameters.element_type.value])
        names = {"input_names": [parameters.input_layer], "output_names": ["output0"]}
        axes = {name: {0: "batch"} for name in (parameters.input_layer, "output0")}
        try:
            with warnings.catch_warnings():
                # it warns that this exporter is the older one; the newer one needs onnxscript
                warnings.simplefilter("ignore")
                torch.onnx.export(
                    self._module,  # type: ignore[arg-type]  # the callable of a loaded predictor is a module
                    (example.to(self._device),),
                    path,
                    dynamo=False,
                    dynamic_axes=axes,
                    opset_version=ONNX_OPSET,
                    **names,  # type: ignore[arg-type]  # mypy takes each value for every argument
                )
        except (*_FAILURES, torch.onnx.OnnxExporterError) as error:
            raise ArtifactError(f"{self}: cannot be exported to ONNX: {_reason(error)}") from error

    def _use_threads(self) -> None:
        if torch.get_num_threads() != self._threads:
            torch.set_num_threads(self._threads)

    def _find_device(self) -> torch.device:
        wanted = self.options.device
        if not wanted.is_gpu:
            return torch.device("cpu")
        where = f"{self}: PyTorch {torch.__version__} cannot use {wanted}"
        if torch.version.cuda is None and torch.version.hip is None:
            raise DeviceError(
                f"{where}: it is built for the CPU only; run on the CPU, or install a CUDA build"
            )
        with warnings.catch_warnings():
            # CUDA warns of a missing or an old driver here, which the error below says
            warnings.simplefilter("ignore")
            count = torch.cuda.device_count() if torch.cuda.is_available() else 0
        if wanted.index >= count:
            raise DeviceError(f"{where}: the number of GPUs that it finds is {count}; run on the CPU")
        return torch.device("cuda", wanted.index)

    def _from_architecture(self, architecture: Architecture) -> torch.nn.Module:
        """Builds a model in code; random weights depend on the seed alone."""
        random = self.options.weights is Weights.RANDOM
        if not random and self.artifacts.weights is None:
            raise ArtifactError(f"{self}: has no weights; give weights_path, or use --weights=random")
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(self.options.seed)
            module = architecture.build(initialize=random)
        if not isinstance(module, torch.nn.Module):
            raise ArtifactError(
                f'{self}: architecture "{architecture.name}" is {type(module).__name__}, which is no '
                "torch.nn.Module"
            )
        return module

    def _build(self) -> torch.nn.Module:
        if self.artifacts.architecture is not None:
            return self._from_architecture(self.artifacts.architecture)
        graph = self.artifacts.graph
        if graph is None:
            raise ArtifactError(f"{self}: needs graph_path or architecture")
        if graph.suffix == ".pt2":
            raise ArtifactError(
                f"{graph}: loading an exported program runs code of the file; give architecture and "
                "weights_path, or a TorchScript archive"
            )
        try:
            with warnings.catch_warnings():
                # torch.jit is deprecated; its archives are still the only graph files that run no Python code
                warnings.simplefilter("ignore", DeprecationWarning)
                module: torch.nn.Module = torch.jit.load(  # type: ignore[no-untyped-call]  # as torch has it
                    graph, map_location="cpu"
                )
        except _FAILURES as error:
            raise ArtifactError(f"{graph}: is no TorchScript archive: {_reason(error)}") from error
        return module


def _leave_out(state: object, prefixes: tuple[str, ...]) -> None:
    """Removes the tensors from a state dict that a class declares to have no use for."""
    if isinstance(state, dict):  # else it is no state dict, which loading it says
        for key in [key for key in state if str(key).startswith(prefixes)]:
            del state[key]


def _named_tensors(answer: object) -> Iterator[tuple[str, torch.Tensor]]:
    """The tensors that a module returned, with their names.

    Raises:
        TypeError: Something in it is no tensor.
    """
    if isinstance(answer, Mapping):
        named = [(str(name), value) for name, value in answer.items()]
    else:
        values = answer if isinstance(answer, tuple | list) else (answer,)
        named = [(f"output{index}", value) for index, value in enumerate(values)]
    for name, value in named:
        if not isinstance(value, torch.Tensor):
            raise TypeError(f"{name} is {type(value).__name__}, which is no tensor")
        yield name, value


def _own(output: NDArray[Any], batch: NDArray[Any]) -> NDArray[Any]:
    """The output in memory of its own: a model may return its input, or a view of it."""
    return output.copy() if np.may_share_memory(output, batch) else output


def _reason(error: BaseException) -> str:
    """PyTorch's message in one line.

    The TorchScript interpreter tells the traceback first; the reason is then the last line. The unpickler
    first advises to read the file without ``weights_only``; the reason is then the second paragraph.
    """
    text = str(error).strip() or type(error).__name__
    if "TorchScript" in text.partition("\n")[0]:
        text = text.rpartition("\n")[2]
    paragraphs = re.split(r"\n\s*\n", text)
    if isinstance(error, pickle.UnpicklingError) and len(paragraphs) > 1:
        text = paragraphs[1]
    text = text.partition(" This is an internal miniz error")[0]
    text = " ".join(text.split())
    return text if len(text) <= _REASON_CHARACTERS else text[: _REASON_CHARACTERS - 1] + "…"
