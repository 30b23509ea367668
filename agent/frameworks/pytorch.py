"""The predictor for PyTorch: architectures with their weights, exported programs, TorchScript, and modules.

Python unpickles nothing: weights are read with ``weights_only=True``, and exported programs (``.pt2``) by
``pytorch_programs``, because ``torch.export.load`` unpickles constants and evaluates expressions of the file.
"""

from __future__ import annotations

import hashlib
import itertools
import pickle  # only for the name of its exception
import re
import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import ClassVar

import numpy as np
import torch

from inferometer.agent.architectures.architecture import Architecture
from inferometer.agent.artifacts.model_files import Artifacts
from inferometer.agent.artifacts.signature import InputSignature, ModelSignature
from inferometer.agent.artifacts.torch_archives import TorchFile, torch_file, traced_inputs
from inferometer.agent.frameworks.pytorch_cudnn import CudnnBenchmark
from inferometer.agent.frameworks.pytorch_details import read_details
from inferometer.agent.frameworks.pytorch_programs import build_program, read_program_inputs
from inferometer.agent.hardware.environment import FrameworkDetails
from inferometer.agent.inference.predictor import (
    CODE_FAILURES,
    Precision,
    Predictor,
    PredictorOptions,
    Tensors,
    Weights,
    prediction_failure,
)
from inferometer.agent.tracing.profiler import Profiler
from inferometer.agent.tracing.span import TraceLevel
from inferometer.manifests.errors import (
    ArtifactError,
    ConfigurationError,
    DeviceError,
    PredictionError,
    one_line,
)
from inferometer.manifests.original import FIRST_INPUT
from inferometer.manifests.schema import ModelManifest

_FAILURES = (*CODE_FAILURES, pickle.UnpicklingError, torch.jit.Error)
_PROGRAM = ".pt2"
"""Files of this name can run no code, as ``requirements.code_of`` says; TorchScript is not read from them."""
ONNX_OPSET = 17
"""ONNX Runtime supports it since 1.12."""
_DTYPES = {
    "float32": torch.float32,
    "float16": torch.float16,
    "bfloat16": torch.bfloat16,
    "uint8": torch.uint8,
    "int32": torch.int32,
    "int64": torch.int64,
}
_CUDNN_BENCHMARK = CudnnBenchmark()


class PyTorchPredictor(Predictor):
    """A model in PyTorch.

    The weights of a model in code (``artifacts.architecture``) are a state dict; otherwise the graph is an
    exported program or a TorchScript archive, or the model is a module in memory, which is not moved, and set
    to ``eval()`` until it is closed. Outputs have the names of the mapping that the model returns, or are
    ``output0``, ``output1``, … if it returns a tensor or a sequence of tensors.

    PyTorch keeps the number of threads per calling thread, and starts each with the number set last.
    Therefore ``predict`` sets it whenever the calling thread has another number. ``cudnn_benchmark`` is a
    setting of the process, which ``load`` sets and ``close`` puts back; see ``CudnnBenchmark``.

    A model in code is cast as a whole to a lower precision, its parameters and its statistics too. Inputs
    are cast on the way to the device and outputs on the way back, within ``predict``.
    """

    precisions: ClassVar[frozenset[Precision]] = frozenset(Precision)

    def __init__(self, manifest: ModelManifest, artifacts: Artifacts, options: PredictorOptions) -> None:
        super().__init__(manifest, artifacts, options)
        self._threads = options.operator_threads
        self._found_threads: int | None = None
        self._device = torch.device("cpu")
        self._module: Callable[[torch.Tensor], object] | None = None
        self._were_training: list[torch.nn.Module] = []
        self._dtype: torch.dtype | None = None
        self._holds_cudnn = False

    @classmethod
    def signature_of_file(cls, path: Path) -> ModelSignature:
        """Reads the inputs of an exported program or a TorchScript archive; see ``Predictor``."""
        kind = torch_file(path)
        if kind is TorchFile.PROGRAM:
            return ModelSignature(read_program_inputs(path), path)
        if kind is not TorchFile.TORCHSCRIPT or path.suffix == _PROGRAM:
            raise _no_graph(path, kind)
        inputs = traced_inputs(path) or _script_inputs(path)
        if len(inputs) == 1:  # which TorchScript names after a variable of the program
            # the batch that it was traced with is an example
            shape = inputs[0].shape and (None, *inputs[0].shape[1:])
            inputs = (replace(inputs[0], name=FIRST_INPUT, shape=shape),)
        note = "PyTorch has deprecated TorchScript: torch.export.save writes a .pt2, which is read too"
        return ModelSignature(inputs, path, notes=(note,))

    @classmethod
    def signature_of_object(cls, model: object, example: InputSignature | None) -> ModelSignature:
        """Returns the class, the parameters and the input of a module; see ``Predictor``.

        An example of floats becomes the dtype of the module's parameters.
        """
        assert isinstance(model, torch.nn.Module)  # noqa: S101 - as the registry has it
        if example is None or example.element_type is None:
            raise ConfigurationError(
                f"{type(model).__name__} does not tell its input; give inputs, an array of samples"
            )
        floats = {p.dtype for p in model.parameters() if p.is_floating_point()}
        element_type = example.element_type
        if np.dtype(element_type).kind == "f":
            element_type = str(floats.pop()).removeprefix("torch.") if len(floats) == 1 else "float32"
        return ModelSignature(
            (InputSignature(FIRST_INPUT, element_type, example.shape),),
            attributes={"parameters": sum(each.numel() for each in model.parameters())},
            checksums=_checksum(model),
        )

    def load(self) -> None:
        """Builds or reads the module, gives it its weights and moves it to the device; see ``Predictor``."""
        try:
            self._load()
            if self._dtype is not None:
                self._try_precision()
        except BaseException:
            self.close()
            raise

    def _load(self) -> None:
        precision = self.casts_to()
        if (wanted := self.options.cudnn_benchmark) is not None:
            _CUDNN_BENCHMARK.hold(wanted=wanted)
            self._holds_cudnn = True
        self._device = self._find_device()
        self._use_threads()
        self._found_threads = torch.get_num_threads()
        module = self._build()
        if self.artifacts.weights is not None:
            try:
                with warnings.catch_warnings():
                    # it warns about newer pickle protocols, and raises for unreadable ones
                    warnings.simplefilter("ignore", UserWarning)
                    state = torch.load(self.artifacts.weights, map_location="cpu", weights_only=True)
                _leave_out(state, getattr(module, "ignored_weights", ()))
                module.load_state_dict(state, strict=True)
            except _FAILURES as error:
                raise ArtifactError(
                    f"{self.artifacts.weights}: are not the weights of {self}: {_reason(error)}"
                ) from error
        if self.artifacts.in_memory is not None:
            self._module = self._borrow(module)
            return
        self._dtype = _DTYPES[precision.value] if precision else None
        try:
            self._module = module.to(self._device, self._dtype).eval()
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
                answer = self._module(self._on_device(torch.from_numpy(array)))
                outputs = {name: self._on_host(tensor).numpy() for name, tensor in _named_tensors(answer)}
            if self._device.type == "cuda":
                # The copies above wait for their own stream only; a model may use others.
                torch.cuda.synchronize(self._device)
        except Exception as error:  # of any class: the code of a model raises what it likes
            raise prediction_failure(
                f"{self}: PyTorch failed on a batch of {len(array)}: {_reason(error)}", error
            ) from error
        # a model may return its input, or a view of it
        return {n: o.copy() if np.may_share_memory(o, array) else o for n, o in outputs.items()}

    def profiler(self, level: TraceLevel) -> Profiler | None:
        """Returns a profiler of the module's operators; see ``Predictor``."""
        from inferometer.agent.frameworks.pytorch_profiler import PyTorchProfiler  # most runs need none

        if not isinstance(self._module, torch.nn.Module):
            return None
        return PyTorchProfiler(self._module, level, gpu=self._device.type == "cuda")

    def details(self) -> FrameworkDetails:
        """Returns PyTorch's libraries, build and settings; see ``Predictor``."""
        return read_details()

    @property
    def threads(self) -> int | None:
        """The number of threads that PyTorch was found to have in the thread that loaded the model."""
        return self._found_threads

    def close(self) -> None:
        """Frees the module, and on a GPU returns its memory to the driver."""
        if self._holds_cudnn:
            self._holds_cudnn = False
            _CUDNN_BENCHMARK.release()
        if self._module is not None:
            self._module = None
            for module in self._were_training:
                module.training = True
            self._were_training = []
            if self._device.type == "cuda":
                torch.cuda.empty_cache()

    def export_onnx(self, path: Path) -> None:
        """Writes the loaded model to a file as an ONNX graph, for batches of any size.

        The input has the name of the manifest's ``input_layer``, the output is ``output0``. Raises
        ArtifactError if PyTorch cannot express the model in ONNX.
        """
        parameters = self.manifest.inputs[0].parameters
        example = torch.zeros((1, *parameters.dimensions), dtype=_DTYPES[parameters.element_type.value])
        names = {"input_names": [parameters.input_layer], "output_names": ["output0"]}
        axes = {name: {0: "batch"} for name in (parameters.input_layer, "output0")}
        try:
            with warnings.catch_warnings():
                # it warns that this is the older exporter; the newer one requires onnxscript
                warnings.simplefilter("ignore")
                torch.onnx.export(
                    self._module,  # type: ignore[arg-type]  # the callable of a loaded predictor is a module
                    (self._on_device(example),),
                    path,
                    dynamo=False,
                    dynamic_axes=axes,
                    opset_version=ONNX_OPSET,
                    **names,  # type: ignore[arg-type]  # mypy takes each value for every argument
                )
        except (*_FAILURES, torch.onnx.OnnxExporterError) as error:
            raise ArtifactError(f"{self}: cannot be exported to ONNX: {_reason(error)}") from error

    def _on_device(self, batch: torch.Tensor) -> torch.Tensor:
        """The batch on the device; of floats, in the precision of the model."""
        return batch.to(self._device, self._dtype if batch.is_floating_point() else None)

    def _on_host(self, output: torch.Tensor) -> torch.Tensor:
        """An output in host memory; in float32 where the model is cast to another type."""
        lower = self._dtype is not None and output.dtype == self._dtype
        return (output.float() if lower else output).cpu()

    def _try_precision(self) -> None:
        """Predicts zeros, since not every operator has a kernel for a lower precision."""
        parameters = self.manifest.inputs[0].parameters
        zeros = np.zeros((1, *parameters.dimensions), parameters.element_type.value)
        try:
            self.predict({parameters.input_layer: zeros})
        except PredictionError as error:
            wanted = self.options.precision
            where = f"{wanted.value} on {self.options.device} ({_reason(error.__cause__ or error)})"
            others = "bfloat16 or float32" if wanted is Precision.FLOAT16 else "float32"
            raise ConfigurationError(f"{self}: PyTorch cannot run it in {where}; use {others}") from error

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
            # CUDA warns about a missing or an old driver here, which the error below reports
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

    def _borrow(self, module: torch.nn.Module) -> torch.nn.Module:
        """Sets a module of the caller to ``eval()``; ``close`` sets it back. It is not moved."""
        tensors = itertools.chain(module.parameters(), module.buffers())
        others = {str(each.device) for each in tensors if each.device != self._device}
        if others:
            raise DeviceError(
                f"{self}: is on {', '.join(sorted(others))}, and is to run on {self._device}; move it there"
            )
        self._were_training = [each for each in module.modules() if each.training]
        try:
            module.eval()
        except NotImplementedError:  # of the module of an exported program, which has no other mode
            self._were_training = []
        return module

    def _build(self) -> torch.nn.Module:
        if isinstance(self.artifacts.in_memory, torch.nn.Module):
            return self.artifacts.in_memory
        if self.artifacts.architecture is not None:
            return self._from_architecture(self.artifacts.architecture)
        graph = self.artifacts.graph
        if graph is None:
            raise ArtifactError(f"{self}: needs graph_path or architecture")
        kind = torch_file(graph)
        if kind is TorchFile.PROGRAM:
            return build_program(graph, self._device)
        if kind is not TorchFile.TORCHSCRIPT or graph.suffix == _PROGRAM:
            raise _no_graph(graph, kind)
        return _load_script(graph)


def _load_script(graph: Path) -> torch.nn.Module:
    """Reads a TorchScript archive."""
    try:
        with warnings.catch_warnings():
            # torch.jit is deprecated, and still what most archives are
            warnings.simplefilter("ignore", DeprecationWarning)
            module: torch.nn.Module = torch.jit.load(  # type: ignore[no-untyped-call]  # as torch has it
                graph, map_location="cpu"
            )
    except _FAILURES as error:
        raise ArtifactError(f"{graph}: is no TorchScript archive: {_reason(error)}") from error
    return module


def _script_inputs(path: Path) -> tuple[InputSignature, ...]:
    """The inputs of a TorchScript archive that keeps none of its own; their shapes are not known."""
    module = _load_script(path)
    halves = {p.dtype for p in module.parameters() if p.is_floating_point()} == {torch.float16}
    element_type = "float16" if halves else None
    inputs = list(module.graph.inputs())[1:]  # type: ignore[union-attr,operator]  # the first is the module
    return tuple(InputSignature(f"input{number}", element_type) for number in range(len(inputs)))


def _no_graph(path: Path, kind: TorchFile) -> ArtifactError:
    """The error for a file that is no graph, with what to do instead."""
    export = "torch.export.save(torch.export.export(module, (example,)), 'net.pt2')"
    if kind is TorchFile.OLD_PROGRAM:
        return ArtifactError(f"{path}: is {kind.value}; save it again with a newer one: {export}")
    if kind is TorchFile.COMPILED:
        return ArtifactError(f"{path}: is {kind.value}, which is machine code; save the program: {export}")
    if kind is TorchFile.TORCHSCRIPT:
        return ArtifactError(
            f"{path}: is TorchScript, and {_PROGRAM} is for programs; call it {path.stem}.pt"
        )
    if kind is not TorchFile.PICKLE:
        return ArtifactError(f"{path}: is no TorchScript archive, and no exported program")
    held = "holds pickled Python objects, which are not read"
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)
            state = torch.load(path, map_location="meta", weights_only=True)
        if isinstance(state, Mapping) and any(isinstance(each, torch.Tensor) for each in state.values()):
            held = f"is a state dict of {len(state)} entries: weights without their network"
    except _FAILURES:  # it is no state dict
        pass
    return ArtifactError(
        f"{path}: {held}. Save the network too: {export}; or evaluate the module from Python: "
        "inferometer.evaluate(module, inputs=array); or name weights and architecture in a manifest"
    )


_MOST_HASHED_BYTES = 2**31


def _checksum(module: torch.nn.Module) -> Mapping[str, str]:
    """The SHA-256 of names, dtypes, shapes and content of all tensors, unless hashing them takes long."""
    tensors = list(itertools.chain(module.named_parameters(), module.named_buffers()))
    if sum(each.numel() * each.element_size() for _, each in tensors) > _MOST_HASHED_BYTES:
        return {}
    state = hashlib.sha256()
    if any(tensor.is_meta for _, tensor in tensors):
        raise ArtifactError(f"{type(module).__name__}: has parameters on the device meta, without values")
    try:
        for name, tensor in tensors:
            state.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}\n".encode())
            content = tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8)
            state.update(content.numpy().data)
    except RuntimeError:  # of quantized and sparse tensors, which have no plain content
        return {}
    return {"parameters": f"sha256:{state.hexdigest()}"}


def _leave_out(state: object, prefixes: tuple[str, ...]) -> None:
    """Removes the tensors from a state dict that a class declares to ignore."""
    if isinstance(state, dict):  # otherwise load_state_dict reports the error
        for key in [key for key in state if str(key).startswith(prefixes)]:
            del state[key]


def _named_tensors(answer: object) -> Iterator[tuple[str, torch.Tensor]]:
    """The tensors that a module returned, with their names; raises TypeError for anything else."""
    if isinstance(answer, Mapping):
        named = [(str(name), value) for name, value in answer.items()]
    else:
        values = answer if isinstance(answer, tuple | list) else (answer,)
        named = [(f"output{index}", value) for index, value in enumerate(values)]
    for name, value in named:
        if not isinstance(value, torch.Tensor):
            raise TypeError(f"{name} is {type(value).__name__}, which is no tensor")
        yield name, value


def _reason(error: BaseException) -> str:
    """PyTorch's message in one line.

    The TorchScript interpreter begins with the traceback; the reason is the last line. The unpickler begins
    with the advice to read the file without ``weights_only``; the reason is the second paragraph.
    """
    text = str(error).strip() or type(error).__name__
    if "TorchScript" in text.partition("\n")[0]:
        text = text.rpartition("\n")[2].removeprefix("builtins.")
    paragraphs = re.split(r"\n\s*\n", text)
    if isinstance(error, pickle.UnpicklingError) and len(paragraphs) > 1:
        text = paragraphs[1]
    text = text.partition(" This is an internal miniz error")[0]
    return one_line(text)
