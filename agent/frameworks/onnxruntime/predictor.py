"""The predictor for ONNX Runtime: ONNX graphs on the CPU, or on a GPU through CUDA."""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from inferometer.agent.artifacts.files import Artifacts, InputSignature, ModelSignature
from inferometer.agent.artifacts.onnx_files import check_external_data, read_onnx_signature
from inferometer.agent.frameworks.onnxruntime.sessions import (
    FAILURES,
    check_device,
    check_used,
    details_of,
    onnxruntime,
    open_graph,
    reason,
)
from inferometer.agent.hardware.environment import CPU, FrameworkDetails, Precision, PredictorOptions
from inferometer.agent.inference.predictor import Predictor, found_names, prediction_failure, title_of
from inferometer.agent.preprocessing.inputs import Tensors, batch_size, blank
from inferometer.agent.tracing.recorder import Profiler, TraceLevel
from inferometer.manifests.errors import ArtifactError, ConfigurationError, PredictionError
from inferometer.manifests.schema import ModelManifest

_CRASHES_IN_FLOAT16 = ("NchwcTransformer",)
"""CPU optimisers that crash on some float16 graphs, such as convolutions before an RNN."""


class ONNXRuntimePredictor(Predictor):
    """Runs an ONNX graph in ONNX Runtime; ``model.graph_path`` is the ``.onnx`` file.

    A model in code (``artifacts.architecture``) is exported from PyTorch during ``load``. A model in memory
    is an ``InferenceSession``, which keeps its own threads and is not profiled.

    Outputs have the graph's names. Each session has its own threads. On a GPU, ONNX Runtime runs operators
    that CUDA lacks, and those that compute shapes, on the CPU; a session entirely on the CPU is rejected.

    A model in code is exported in the precision that it is cast to. On the CPU, ONNX Runtime runs operators
    without a float16 kernel in float32, and casts between them.
    """

    precisions: ClassVar[frozenset[Precision]] = frozenset({Precision.FLOAT32, Precision.FLOAT16})

    def __init__(self, manifest: ModelManifest, artifacts: Artifacts, options: PredictorOptions) -> None:
        super().__init__(manifest, artifacts, options)
        self._session: Any = None
        self._profiled: Any = None
        self._output_names: list[str] = []
        self._maps: frozenset[str] = frozenset()
        self._shapes: dict[str, tuple[int, ...]] = {}
        self._precision: Precision | None = None
        self._names: dict[str, str] = {}

    @classmethod
    def signature_of_file(cls, path: Path) -> ModelSignature:
        return read_onnx_signature(path)

    @classmethod
    def signature_of_object(cls, model: object, examples: Sequence[InputSignature]) -> ModelSignature:
        assert isinstance(model, onnxruntime.InferenceSession)  # noqa: S101 - as the registry has it
        return ModelSignature(tuple(map(_signature_of_node, model.get_inputs())))

    @classmethod
    def check(cls, manifest: ModelManifest, options: PredictorOptions, *, in_memory: bool = False) -> None:
        """Checks that the device and, for a model in code, PyTorch are available; see ``Predictor``."""
        check_device(title_of(manifest), options.device)
        in_code = manifest.model.architecture is not None and not in_memory
        if in_code and importlib.util.find_spec("torch") is None:
            raise ArtifactError(_without_exporter(manifest))

    def load(self) -> None:
        self._precision = self.casts_to()
        self.check(self.manifest, self.options, in_memory=self.artifacts.in_memory is not None)
        if self.artifacts.in_memory is not None:
            session: Any = self.artifacts.in_memory
            check_used(title_of(self.manifest), self.options.device, session)
        elif self.artifacts.architecture is None:
            check_external_data(self._graph_file(), self.artifacts.weights)
            session = self._open(self._graph_file())
        else:
            with TemporaryDirectory(prefix="inferometer-") as folder:
                session = self._open(self.write_graph(Path(folder)))
        found = [node.name for node in session.get_inputs()]
        self._names = found_names(self.artifacts.graph or self, self.tensors, found)
        self._output_names = [node.name for node in session.get_outputs()]
        self._maps = frozenset(node.name for node in session.get_outputs() if node.type.startswith(_MAPS))
        if all(node.shape and not isinstance(node.shape[0], int) for node in session.get_inputs()):
            firsts = {node.name: node.shape[0] for node in session.get_outputs() if node.shape}
            self.fixed_outputs = {name: size for name, size in firsts.items() if isinstance(size, int)}
        self._session = session

    def predict(self, inputs: Tensors) -> Tensors:
        """Runs the session, which waits for the device and copies the outputs back; see ``Predictor``."""
        if self._session is None:
            raise PredictionError(f"{self}: is not loaded")
        arrays = self.checked_inputs(inputs)
        self._shapes = {name: array.shape for name, array in arrays.items()}
        try:
            outputs = (self._profiled or self._session).run(None, self._feed(arrays))
        except Exception as error:  # of any class, as plug-in operators raise what they like
            raise prediction_failure(
                f"{self}: ONNX Runtime failed on a batch of {batch_size(arrays)}: {reason(error)}"
                + self._other_batch(batch_size(arrays)),
                error,
            ) from error
        named = dict(zip(self._output_names, outputs, strict=True))
        if any(output is None for output in outputs):  # of an optional output without a value
            named = {name: output for name, output in named.items() if output is not None}
        for name, output in named.items():
            if name in self._maps:
                named[name] = self._of_maps(name, output)
            elif not isinstance(output, np.ndarray):
                raise PredictionError(
                    f'{self}: output "{name}" is {type(output).__name__}, which is not a tensor'
                )
        if self._precision is not None:
            named = {n: o.astype(np.float32) if o.dtype == np.float16 else o for n, o in named.items()}
        return named

    def _of_maps(self, name: str, maps: Sequence[Mapping[str | int, float]]) -> NDArray[np.float32]:
        """Returns the scores that ``ZipMap`` pairs with classes: float32, inputs × classes.

        For a classification, the classes have the order of the manifest's labels, otherwise that of the maps.

        Raises:
            PredictionError: The labels are not these classes.
        """
        classes, output = list(maps[0]), self.manifest.output
        if output.type in _OF_CLASSES:
            of_index = {output.parameters.class_index(each): each for each in classes}
            ordered = [of_index[place] for place in range(len(classes)) if place in of_index]
            if len(ordered) < len(classes) or len(output.parameters.labels) > len(classes):
                raise PredictionError(
                    f'{self}: output "{name}" has the {len(classes)} classes '
                    f"{', '.join(map(str, classes[:_SHOWN]))}{', …' if len(classes) > _SHOWN else ''}; write "
                    "them as labels into output.parameters of the manifest"
                )
            classes = ordered
        return np.array([[each[key] for key in classes] for each in maps], np.float32)

    def profiler(self, level: TraceLevel) -> Profiler | None:
        # imported here because most runs need none
        from inferometer.agent.frameworks.onnxruntime.profiler import ONNXRuntimeProfiler

        if self._session is None or self.artifacts.in_memory is not None:  # which cannot be opened again
            return None
        return ONNXRuntimeProfiler(self, level, gpu=self.options.device.is_gpu)

    def write_graph(self, folder: Path) -> Path:
        """Returns the path of the graph; a model in code is first written to ``folder``.

        Raises ArtifactError if the file is missing or the model cannot be built again.
        """
        return self._graph_file() if self.artifacts.architecture is None else self._export(folder)

    def open_profiled(self, graph: Path, prefix: Path) -> Any:
        """Opens another session with ONNX Runtime's profiler, and warms it up on zeros if this one has run.

        The profile's path begins with ``prefix``. Raises ArtifactError if the graph cannot be opened, and
        PredictionError if the warm-up fails.
        """
        session = self._open(graph, prefix)
        if self._shapes:
            zeros = {each.name: blank(each, self._shapes[each.name]) for each in self.tensors}
            try:
                session.run(None, self._feed(zeros))
            except FAILURES as error:
                raise PredictionError(f"{self}: ONNX Runtime failed on zeros: {reason(error)}") from error
        return session

    def use(self, session: Any) -> None:
        """Uses a session from ``open_profiled`` for predictions; None restores the predictor's own."""
        self._profiled = session

    def declared_outputs(self) -> tuple[InputSignature, ...]:
        nodes = [node for node in self._session.get_outputs() if node.type.startswith(("tensor(", _MAPS))]
        found = tuple(map(_signature_of_node, nodes))
        if self._precision is None:
            return found
        return tuple(
            replace(each, element_type="float32") if each.element_type == "float16" else each
            for each in found
        )

    def details(self) -> FrameworkDetails:
        details = details_of(self._session)
        if self._left_out:
            return replace(
                details, settings={**details.settings, "optimisers left out": ", ".join(self._left_out)}
            )
        return details

    @property
    def any_thread(self) -> bool:
        """Whether it runs on the CPU without string inputs, as ``InferenceSession.run`` is thread-safe."""
        is_text = any(each.element_type.value == "string" for each in self.manifest.tensors)
        return not (self.options.device.is_gpu or is_text)

    @property
    def threads(self) -> int | None:
        """The number of the session's threads, including the calling one; None before ``load``.

        It is also None if a caller's session leaves the number to ONNX Runtime.
        """
        if self._session is None:
            return None
        return int(self._session.get_session_options().intra_op_num_threads) or None

    def close(self) -> None:
        """Frees the session with its threads and its memory on the device."""
        self._session = self._profiled = None

    def _other_batch(self, size: int) -> str:
        """Returns advice if the graph fixes another batch size; otherwise an empty text."""
        shapes = [node.shape for node in self._session.get_inputs() if node.shape]
        fixed = next((shape[0] for shape in shapes if isinstance(shape[0], int) and shape[0] != size), None)
        return "" if fixed is None else f"; the graph takes batches of {fixed}, use batch_size {fixed}"

    def _feed(self, arrays: Mapping[str, NDArray[Any]]) -> Mapping[str, NDArray[Any]]:
        """Returns the batch for the graph, with floats in the precision that the model is cast to."""
        names, precision = self._names, self._precision
        if precision is None:
            return {names[name]: array for name, array in arrays.items()}
        return {names[n]: a.astype(precision.value) if a.dtype.kind == "f" else a for n, a in arrays.items()}

    def _open(self, graph: Path, profile_prefix: Path | None = None) -> Any:
        options = self.options
        cuda = {}
        if options.cudnn_benchmark is not None:
            cuda["cudnn_conv_algo_search"] = "EXHAUSTIVE" if options.cudnn_benchmark else "HEURISTIC"
        return open_graph(
            title_of(self.manifest),
            graph,
            options.device,
            options.operator_threads,
            cuda=cuda,
            profile_prefix=profile_prefix,
            left_out=self._left_out,
        )

    @property
    def _left_out(self) -> list[str]:
        """The optimisers that are disabled for this session."""
        lower_on_cpu = self._precision is not None and not self.options.device.is_gpu
        return list(_CRASHES_IN_FLOAT16) if lower_on_cpu else []

    def _graph_file(self) -> Path:
        if self.artifacts.graph is None:
            raise ArtifactError(f"{self}: needs graph_path, the .onnx file, or architecture")
        return self.artifacts.graph

    def _export(self, folder: Path) -> Path:
        """Exports a model in code from PyTorch, with the weights that PyTorch draws for the seed."""
        try:
            pytorch = importlib.import_module("inferometer.agent.frameworks.pytorch.predictor")
        except ImportError as error:
            raise ArtifactError(_without_exporter(self.manifest)) from error
        options = replace(self.options, device=CPU, cudnn_benchmark=None)
        path = folder / "model.onnx"
        exporter = pytorch.PyTorchPredictor(self.manifest, self.artifacts, options)
        try:
            with exporter:
                exporter.export_onnx(path)
        except ConfigurationError as error:
            if self._precision is None:
                raise
            lower = self._precision.value
            raise ConfigurationError(
                f"{self}: is exported from PyTorch on the CPU, which cannot run it in {lower}; use float32"
            ) from error
        return path


def _without_exporter(manifest: ModelManifest) -> str:
    return (
        f"{title_of(manifest)}: is built in PyTorch and exported, but PyTorch is not installed; "
        "install it with: pip install 'inferometer[pytorch]'"
    )


_MAPS = "seq(map("
_SHOWN = 5
_OF_CLASSES = {"classification", "text_classification", "multilabel_classification"}
_ELEMENT_TYPES = {"float": "float32", "double": "float64"}
"""ONNX Runtime's names for element types that differ from NumPy's."""


def _signature_of_node(node: Any) -> InputSignature:
    """Returns the signature of an input or an output, whose type is like ``tensor(float)``.

    ONNX Runtime represents a scalar and an entirely unknown shape the same way.
    """
    if node.type.startswith(_MAPS):
        return InputSignature(node.name, "float32")
    name = node.type.removeprefix("tensor(").removesuffix(")")
    shape = tuple(size if isinstance(size, int) and size > 0 else None for size in node.shape)
    return InputSignature(node.name, _ELEMENT_TYPES.get(name, name), shape or None)
