"""ONNX Runtime: ONNX graphs on the CPU, or on a GPU through CUDA."""

from __future__ import annotations

import importlib
import os
import warnings
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import psutil
from numpy.typing import NDArray

# Otherwise ONNX Runtime, from 1.29 on, tells its maker what runs, and writes in the user's home for that.
os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")

import onnxruntime
from onnxruntime.capi import onnxruntime_pybind11_state as native

from agent.artifacts import Artifacts
from agent.device import CPU
from agent.environment import usable_cores
from agent.frameworks.failures import prediction_failure
from agent.predictor import Predictor, PredictorOptions, Tensors
from agent.trace_level import TraceLevel
from agent.tracing.profiler import Profiler
from manifests.errors import ArtifactError, DeviceError, PredictionError, suggestion
from manifests.schema import ModelManifest

# ONNX Runtime's exceptions have no base of their own.
_FAILURES: tuple[type[Exception], ...] = (
    *(value for value in vars(native).values() if isinstance(value, type) and issubclass(value, Exception)),
    RuntimeError,
    TypeError,
    ValueError,
)
_FATAL = 4  # the logger's severity that leaves errors to the exceptions, which say the same
_CPU = "CPUExecutionProvider"
_CUDA = "CUDAExecutionProvider"
_REASON_CHARACTERS = 300


class ONNXRuntimePredictor(Predictor):
    """An ONNX graph in ONNX Runtime; ``model.graph_path`` is the ``.onnx`` file.

    A model that is built in code (``artifacts.architecture``) is exported from PyTorch when it is loaded.

    Outputs have the graph's names. Each session has its own threads. On a GPU, ONNX Runtime puts operators
    that CUDA lacks, and those that compute shapes, on the CPU; a session that is on the CPU as a whole is an
    error.
    """

    def __init__(self, manifest: ModelManifest, artifacts: Artifacts, options: PredictorOptions) -> None:
        super().__init__(manifest, artifacts, options)
        self._threads = options.threads
        if self._threads is None and options.spare_cores:
            # its own default is one for each core of the machine, not for each logical processor
            self._threads = options.default_threads(psutil.cpu_count(logical=False) or usable_cores())
        self._session: Any = None
        self._profiled: Any = None
        self._output_names: list[str] = []
        self._shape: tuple[int, ...] | None = None

    def load(self) -> None:
        """Builds the session on the one device that was asked for; see ``Predictor``."""
        self._check_device()
        if self.artifacts.architecture is None:
            session = self._open(self._graph_file())
        else:
            with TemporaryDirectory(prefix="inferscope-") as folder:
                session = self._open(self.write_graph(Path(folder)))
        used = session.get_providers()
        if used[0] != (_CUDA if self.options.device.is_gpu else _CPU):
            raise DeviceError(
                f"{self._refusal()}: its session uses {', '.join(used)} instead; run on the CPU"
            )
        self._check_inputs([node.name for node in session.get_inputs()])
        self._output_names = [node.name for node in session.get_outputs()]
        self._session = session

    def predict(self, inputs: Tensors) -> Tensors:
        """Runs the session, which waits for its device and copies the outputs back; see ``Predictor``."""
        if self._session is None:
            raise PredictionError(f"{self}: is not loaded")
        array = self.checked_input(inputs)
        self._shape = array.shape
        try:
            outputs = (self._profiled or self._session).run(None, self._feed(array))
        except _FAILURES as error:
            raise prediction_failure(
                f"{self}: ONNX Runtime failed on a batch of {len(array)}: {_reason(error)}", error
            ) from error
        for name, output in zip(self._output_names, outputs, strict=True):
            if not isinstance(output, np.ndarray):
                raise PredictionError(
                    f'{self}: output "{name}" is {type(output).__name__}, which is no tensor'
                )
        return dict(zip(self._output_names, outputs, strict=True))

    def profiler(self, level: TraceLevel) -> Profiler | None:
        """Returns a profiler of the graph's nodes; see ``Predictor``."""
        from agent.frameworks.onnxruntime_profiler import ONNXRuntimeProfiler  # most runs need none

        if self._session is None:
            return None
        return ONNXRuntimeProfiler(self, level, gpu=self.options.device.is_gpu)

    def write_graph(self, folder: Path) -> Path:
        """Returns the file of the graph; one that is built in code is written into a folder.

        Raises:
            ArtifactError: There is no such file, or the model cannot be built again.
        """
        return self._graph_file() if self.artifacts.architecture is None else self._export(folder)

    def open_profiled(self, graph: Path, prefix: Path) -> Any:
        """Opens another session, with ONNX Runtime's profiler; it has run on zeros if this one has run.

        Args:
            graph: From ``write_graph``.
            prefix: What the path of the profile begins with.

        Raises:
            ArtifactError: The graph cannot be opened any more.
            PredictionError: It fails on zeros.
        """
        session = self._open(graph, prefix)
        if self._shape is not None:
            dtype = self.manifest.inputs[0].parameters.element_type.value
            try:
                session.run(None, self._feed(np.zeros(self._shape, dtype)))
            except _FAILURES as error:
                raise PredictionError(f"{self}: ONNX Runtime failed on zeros: {_reason(error)}") from error
        return session

    def use(self, session: Any) -> None:
        """Predicts in a session of ``open_profiled`` from now on; None for the predictor's own."""
        self._profiled = session

    @property
    def threads(self) -> int | None:
        """The number that was set; None when ONNX Runtime chooses, for it does not tell."""
        return self._threads

    def close(self) -> None:
        """Drops the session, and with it its threads and its memory on the device."""
        self._session = self._profiled = None

    def _feed(self, array: NDArray[Any]) -> dict[str, NDArray[Any]]:
        return {self.manifest.inputs[0].parameters.input_layer: array}

    def _open(self, graph: Path, profile_prefix: Path | None = None) -> Any:
        """Builds the session of an ``.onnx`` file."""
        onnxruntime.set_default_logger_severity(_FATAL)
        settings = onnxruntime.SessionOptions()
        settings.log_severity_level = _FATAL
        settings.intra_op_num_threads = self._threads or 0
        if profile_prefix is not None:
            settings.enable_profiling = True
            settings.profile_file_prefix = str(profile_prefix)
        gpu = self.options.device.is_gpu
        provider = (_CUDA, {"device_id": str(self.options.device.index)}) if gpu else _CPU
        try:
            with warnings.catch_warnings():
                # it only warns of a provider that it has not, and takes another; that is an error in load
                warnings.simplefilter("ignore", UserWarning)
                return onnxruntime.InferenceSession(
                    str(graph), settings, providers=[provider], enable_fallback=0
                )
        except _FAILURES as error:
            if gpu and "CUDA" in str(error):
                raise DeviceError(f"{self._refusal()}: {_reason(error)}") from error
            raise ArtifactError(f"{graph}: is no ONNX model: {_reason(error)}") from error

    def _graph_file(self) -> Path:
        if self.artifacts.graph is None:
            raise ArtifactError(f"{self}: needs graph_path, the .onnx file, or architecture")
        return self.artifacts.graph

    def _export(self, folder: Path) -> Path:
        """A model that is built in code is built in PyTorch, with PyTorch's weights for the seed."""
        try:
            pytorch = importlib.import_module("agent.frameworks.pytorch")
        except ImportError as error:
            raise ArtifactError(
                f"{self}: is built in PyTorch and exported, and PyTorch is not installed; "
                "install it with: pip install 'inferscope[pytorch]'"
            ) from error
        options = replace(self.options, device=CPU)
        path = folder / "model.onnx"
        with pytorch.PyTorchPredictor(self.manifest, self.artifacts, options) as predictor:
            predictor.export_onnx(path)
        return path

    def _refusal(self) -> str:
        return f"{self}: ONNX Runtime {onnxruntime.__version__} cannot use {self.options.device}"

    def _check_device(self) -> None:
        available = onnxruntime.get_available_providers()
        if self.options.device.is_gpu and _CUDA not in available:
            raise DeviceError(
                f"{self._refusal()}: this build has {', '.join(available)}; "
                "run on the CPU, or install onnxruntime-gpu"
            )

    def _check_inputs(self, names: list[str]) -> None:
        wanted = self.manifest.inputs[0].parameters.input_layer
        if names != [wanted]:
            advice = (
                suggestion(wanted, names) if len(names) == 1 else f"it has {len(names)}: {', '.join(names)}"
            )
            raise ArtifactError(f'{self.artifacts.graph}: has no single input "{wanted}"; {advice}')


def _reason(error: BaseException) -> str:
    """ONNX Runtime's message in one line, without its code and its source file."""
    text = " ".join(str(error).split()) or type(error).__name__
    if text.startswith("[ONNXRuntimeError]"):
        text = text.split(" : ", 3)[-1]
    return text if len(text) <= _REASON_CHARACTERS else text[: _REASON_CHARACTERS - 1] + "…"
