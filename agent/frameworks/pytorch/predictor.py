"""The predictor for PyTorch: architectures with their weights, exported programs, TorchScript, and modules.

Nothing is unpickled in Python: weights are read with ``weights_only=True``, and exported programs (``.pt2``)
by ``programs``, because ``torch.export.load`` unpickles constants and evaluates expressions from the file.

The bounds of a program's dynamic sizes are plain numbers in the file. A size is a symbol such as ``s27``,
with its range in ``range_constraints``, or an expression of symbols. Expressions are not evaluated: only the
size that the program was exported with is known for them.
"""

from __future__ import annotations

import hashlib
import itertools
import re
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch

from inferometer.agent.artifacts.files import Artifacts, InputSignature, ModelSignature
from inferometer.agent.artifacts.torch_archives import TorchFile, open_archive, torch_file, traced_inputs
from inferometer.agent.frameworks.pytorch.modules import (
    CUDNN_BENCHMARK,
    FAILURES,
    CallForm,
    argument_names,
    build_architecture,
    call_form,
    find_device,
    framework_details,
    named_tensors,
    read_weights,
    reason_of,
    use_threads,
)
from inferometer.agent.frameworks.pytorch.programs import build_program, read_program_signature
from inferometer.agent.hardware.environment import FrameworkDetails, Precision, PredictorOptions
from inferometer.agent.inference.predictor import Predictor, inputs_of_examples, prediction_failure, title_of
from inferometer.agent.preprocessing.inputs import Tensors, batch_size, blank_batch
from inferometer.agent.tracing.recorder import Profiler, TraceLevel
from inferometer.manifests.errors import ArtifactError, ConfigurationError, DeviceError, PredictionError
from inferometer.manifests.inputs import FIRST_INPUT, AxisSizes
from inferometer.manifests.schema import ModelManifest

_PROGRAM = ".pt2"
"""Files with this suffix cannot run code, as ``requirements.code_of`` states, so TorchScript is rejected."""
ONNX_OPSET = 17
"""ONNX Runtime supports it since 1.12."""


class PyTorchPredictor(Predictor):
    """A model in PyTorch.

    The weights of a model in code (``artifacts.architecture``) are a state dict; otherwise the graph is an
    exported program or a TorchScript archive, or the model is a module in memory, which is not moved and is
    set to ``eval()`` until ``close``. Outputs are named by the keys of the mapping that the model returns, or
    ``output0``, ``output1``, … if it returns a tensor or a sequence of tensors.

    PyTorch keeps the number of threads per calling thread; a new thread starts with the number set last.
    Therefore ``predict`` sets it whenever the calling thread has another number. ``cudnn_benchmark`` is a
    setting of the process, which ``load`` sets and ``close`` restores; see ``CudnnBenchmark``.

    A model in code is cast entirely to a lower precision, including its parameters and statistics. Inputs
    are cast on the way to the device and outputs on the way back, within ``predict``.
    """

    precisions: ClassVar[frozenset[Precision]] = frozenset(Precision)

    def __init__(self, manifest: ModelManifest, artifacts: Artifacts, options: PredictorOptions) -> None:
        super().__init__(manifest, artifacts, options)
        self._threads = options.operator_threads
        self._found_threads: int | None = None
        self._device = torch.device("cpu")
        self._module: Callable[..., object] | None = None
        self._call = CallForm()
        self._were_training: list[torch.nn.Module] = []
        self._dtype: torch.dtype | None = None
        self._holds_cudnn = False

    @classmethod
    def signature_of_file(cls, path: Path) -> ModelSignature:
        kind = torch_file(path)
        if kind is TorchFile.PROGRAM:
            return read_program_signature(path)
        if kind is not TorchFile.TORCHSCRIPT or path.suffix == _PROGRAM:
            raise _no_graph(path, kind)
        inputs = traced_inputs(path) or _script_inputs(path)
        # the batch that it was traced with is an example
        inputs = tuple(replace(each, shape=each.shape and (None, *each.shape[1:])) for each in inputs)
        if len(inputs) == 1:  # which TorchScript names after a variable of the program
            inputs = (replace(inputs[0], name=FIRST_INPUT),)
        note = "PyTorch has deprecated TorchScript: torch.export.save writes a .pt2, which is read too"
        return ModelSignature(inputs, path, notes=(note,))

    @classmethod
    def signature_of_object(cls, model: object, examples: Sequence[InputSignature]) -> ModelSignature:
        """Returns the inputs of a module, and the number and checksum of its parameters; see ``Predictor``.

        Inputs with floating-point examples get the dtype of the module's parameters. Several examples without
        names get the names of ``forward``'s arguments.
        """
        assert isinstance(model, torch.nn.Module)  # noqa: S101 - as the registry has it
        floats = {p.dtype for p in model.parameters() if p.is_floating_point()}
        float_type = str(floats.pop()).removeprefix("torch.") if len(floats) == 1 else "float32"
        return ModelSignature(
            inputs_of_examples(type(model).__name__, examples, float_type, argument_names(model)),
            attributes={"parameters": sum(each.numel() for each in model.parameters())},
            checksums=_checksum(model),
        )

    @classmethod
    def check(cls, manifest: ModelManifest, options: PredictorOptions, *, in_memory: bool = False) -> None:
        find_device(title_of(manifest), options.device)

    @classmethod
    def read_device_memory(cls, index: int) -> dict[str, int]:
        found = {
            "DeviceAllocated": torch.cuda.memory_allocated(index),
            "DeviceReserved": torch.cuda.memory_reserved(index),
            "DeviceAllocatedPeak": torch.cuda.max_memory_allocated(index),
            "DeviceReservedPeak": torch.cuda.max_memory_reserved(index),
        }
        torch.cuda.reset_peak_memory_stats(index)
        return found

    @classmethod
    def limit_device_memory(cls, index: int, limit_bytes: int) -> None:
        _, total = torch.cuda.mem_get_info(index)
        torch.cuda.set_per_process_memory_fraction(min(1.0, max(0, limit_bytes) / total), index)

    def load(self) -> None:
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
            CUDNN_BENCHMARK.hold(wanted=wanted)
            self._holds_cudnn = True
        self._device = find_device(str(self), self.options.device)
        use_threads(self._threads)
        self._found_threads = torch.get_num_threads()
        module = self._build()
        self._call = call_form(str(self), module, self.tensors)
        if self.artifacts.weights is not None:
            read_weights(str(self), module, self.artifacts.weights)
        if self.artifacts.in_memory is not None:
            self._module = self._borrow(module)
            return
        self._dtype = getattr(torch, precision.value) if precision else None
        try:
            self._module = module.to(self._device, self._dtype).eval()
        except RuntimeError as error:
            raise DeviceError(
                f"{self}: cannot be moved to {self.options.device}: {reason_of(error)}"
            ) from error

    def predict(self, inputs: Tensors) -> Tensors:
        """Runs the module without gradients and copies its outputs to the host; see ``Predictor``."""
        if self._module is None:
            raise PredictionError(f"{self}: is not loaded")
        arrays = self.checked_inputs(inputs)
        use_threads(self._threads)
        for name, array in arrays.items():
            if not array.flags.writeable:  # a tensor shares the memory, and is always writable
                arrays[name] = array.copy()
        try:
            with torch.inference_mode():
                tensors = {n: self._on_device(torch.from_numpy(array)) for n, array in arrays.items()}
                answer = self._call(self._module, tensors)
                outputs = {name: self._on_host(tensor).numpy() for name, tensor in named_tensors(answer)}
            if self._device.type == "cuda":
                # The copies above wait for their own stream only; a model may use others.
                torch.cuda.synchronize(self._device)
        except Exception as error:  # of any class: the code of a model raises what it likes
            raise prediction_failure(
                f"{self}: PyTorch failed on a batch of {batch_size(arrays)}: {reason_of(error)}", error
            ) from error
        # a model may return its input, or a view of it
        given = arrays.values()
        return {
            n: o.copy() if any(np.may_share_memory(o, array) for array in given) else o
            for n, o in outputs.items()
        }

    def profiler(self, level: TraceLevel) -> Profiler | None:
        from inferometer.agent.frameworks.pytorch.profiler import PyTorchProfiler  # most runs need none

        if not isinstance(self._module, torch.nn.Module):
            return None
        return PyTorchProfiler(self._module, level, gpu=self._device.type == "cuda")

    def axis_sizes(self) -> Mapping[str, tuple[AxisSizes | None, ...]]:
        graph = self.artifacts.graph
        if graph is None or graph.suffix != _PROGRAM or not any(each.is_dynamic for each in self.tensors):
            return {}
        sizes = {name: axes[1:] for name, axes in read_program_sizes(graph).items()}
        if len(self.tensors) == 1:  # which may have another name in the manifest
            return {self.tensors[0].name: next(iter(sizes.values()), ())}
        return sizes

    def details(self) -> FrameworkDetails:
        return framework_details()

    @property
    def threads(self) -> int | None:
        """The number of threads that PyTorch reported in the thread that loaded the model."""
        return self._found_threads

    def close(self) -> None:
        """Frees the module; on a GPU, returns its memory to the driver."""
        if self._holds_cudnn:
            self._holds_cudnn = False
            CUDNN_BENCHMARK.release()
        if self._module is not None:
            self._module = None
            for module in self._were_training:
                module.training = True
            self._were_training = []
            if self._device.type == "cuda":
                torch.cuda.empty_cache()

    def export_onnx(self, path: Path) -> None:
        """Writes the loaded model to a file as an ONNX graph for batches of any size.

        The inputs have the names in the manifest, and the outputs the names from ``predict``. Raises
        ArtifactError if PyTorch cannot export the model to ONNX.
        """
        if (module := self._module) is None:
            raise ArtifactError(f"{self}: is not loaded")
        order = self._call.in_order(self.tensors)
        examples = tuple(
            self._on_device(torch.zeros((1, *each.sized()), dtype=getattr(torch, each.element_type.value)))
            for each in order
        )
        axes = {
            each.name: {0: "batch"}
            | {n: f"{each.name}_{n}" for n, size in enumerate(each.dimensions, 1) if size is None}
            for each in order
        }
        names = {"input_names": list(axes)}
        try:
            with torch.inference_mode():
                named = zip(axes, examples, strict=True)
                outputs = [n for n, _ in named_tensors(self._call(module, dict(named)))]
            names["output_names"] = outputs
            axes |= {name: {0: "batch"} for name in outputs}
            with warnings.catch_warnings():
                # it warns that this is the older exporter; the newer one requires onnxscript
                warnings.simplefilter("ignore")
                torch.onnx.export(
                    module,  # type: ignore[arg-type]  # the callable of a loaded predictor is a module
                    examples,
                    path,
                    dynamo=False,
                    dynamic_axes=axes,
                    opset_version=ONNX_OPSET,
                    **names,  # type: ignore[arg-type]  # mypy takes each value for every argument
                )
        except (*FAILURES, torch.onnx.OnnxExporterError) as error:
            raise ArtifactError(f"{self}: cannot be exported to ONNX: {reason_of(error)}") from error

    def _on_device(self, batch: torch.Tensor) -> torch.Tensor:
        """Returns the batch on the device, with floats in the precision of the model."""
        return batch.to(self._device, self._dtype if batch.is_floating_point() else None)

    def _on_host(self, output: torch.Tensor) -> torch.Tensor:
        """Returns an output on the host; lower precision and bfloat16, which NumPy lacks, become float32."""
        lower = output.dtype in {self._dtype, torch.bfloat16}
        return (output.float() if lower else output).cpu()

    def _try_precision(self) -> None:
        """Runs a batch of zeros, because some operators have no kernel for a lower precision."""
        try:
            self.predict(blank_batch(self.tensors))
        except PredictionError as error:
            wanted = self.options.precision
            where = f"{wanted.value} on {self.options.device} ({reason_of(error.__cause__ or error)})"
            others = "bfloat16 or float32" if wanted is Precision.FLOAT16 else "float32"
            raise ConfigurationError(f"{self}: PyTorch cannot run it in {where}; use {others}") from error

    def _borrow(self, module: torch.nn.Module) -> torch.nn.Module:
        """Sets the caller's module to ``eval()``; ``close`` restores its mode. The module is not moved."""
        tensors = itertools.chain(module.parameters(), module.buffers())
        others = {str(each.device) for each in tensors if each.device != self._device}
        if others:
            raise DeviceError(
                f"{self}: is on {', '.join(sorted(others))}, but must run on {self._device}; move it there"
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
        if (architecture := self.artifacts.architecture) is not None:
            return build_architecture(str(self), architecture, self.artifacts.weights, self.options)
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
    try:
        with warnings.catch_warnings():
            # torch.jit is deprecated, and still what most archives are
            warnings.filterwarnings("ignore", "`torch.jit")
            module: torch.nn.Module = torch.jit.load(  # type: ignore[no-untyped-call]  # as torch has it
                graph, map_location="cpu"
            )
    except FAILURES as error:
        raise ArtifactError(f"{graph}: is not a TorchScript archive: {reason_of(error)}") from error
    return module


def _script_inputs(path: Path) -> tuple[InputSignature, ...]:
    """Returns the inputs of a TorchScript archive that has no traced inputs; their shapes are unknown."""
    module = _load_script(path)
    halves = {p.dtype for p in module.parameters() if p.is_floating_point()} == {torch.float16}
    element_type = "float16" if halves else None
    inputs = list(module.graph.inputs())[1:]  # type: ignore[union-attr,operator]  # the first is the module
    return tuple(InputSignature(f"input{number}", element_type) for number in range(len(inputs)))


def _no_graph(path: Path, kind: TorchFile) -> ArtifactError:
    """Returns the error, including advice, for a file that is not a graph."""
    export = "torch.export.save(torch.export.export(module, (example,)), 'net.pt2')"
    if kind is TorchFile.OLD_PROGRAM:
        return ArtifactError(f"{path}: is {kind.value}; save it with a newer PyTorch: {export}")
    if kind is TorchFile.COMPILED:
        return ArtifactError(f"{path}: is {kind.value}, which is machine code; save the program: {export}")
    if kind is TorchFile.TORCHSCRIPT:
        return ArtifactError(
            f"{path}: is TorchScript, but {_PROGRAM} is for programs; rename it to {path.stem}.pt"
        )
    if kind is not TorchFile.PICKLE:
        return ArtifactError(f"{path}: is neither a TorchScript archive nor an exported program")
    held = "holds pickled Python objects, which are not read"
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)
            state = torch.load(path, map_location="meta", weights_only=True)
        if isinstance(state, Mapping) and any(isinstance(each, torch.Tensor) for each in state.values()):
            held = f"is a state dict of {len(state)} entries: weights without their network"
    except FAILURES:  # it is no state dict
        pass
    return ArtifactError(
        f"{path}: {held}. Save the network too: {export}; or evaluate the module from Python: "
        "inferometer.evaluate(module, inputs=array); or name weights and architecture in a manifest"
    )


_MOST_HASHED_BYTES = 2**31


def _checksum(module: torch.nn.Module) -> Mapping[str, str]:
    """Returns the SHA-256 of all tensors' names, dtypes, shapes and content; empty if they are too large."""
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


_SIZE_SYMBOL = re.compile(r"Symbol\('(\w{1,40})'[\w=, ]*\)|(\w{1,40})", re.ASCII)
_LARGEST_SIZE = 2**31 - 1


def read_program_sizes(path: Path) -> dict[str, tuple[AxisSizes | None, ...]]:
    """Returns the axis sizes of each input by its name in the graph, batch first; None means a fixed size.

    Raises:
        ArtifactError: The file is not an exported program, or one of its bounds is not a whole number.
    """
    with open_archive(path, "exported program") as archive:
        program = archive.json("models/model.json")
        graph, ranges = program["graph_module"]["graph"], program.get("range_constraints") or {}
        found = {}
        for spec in program["graph_module"]["signature"]["input_specs"]:
            if "user_input" in spec:
                name = spec["user_input"]["arg"]["as_tensor"]["name"]
                found[name] = tuple(
                    _axis_sizes(size, ranges) for size in graph["tensor_values"][name]["sizes"]
                )
    return found


def _axis_sizes(size: Mapping[str, Any], ranges: Mapping[str, Any]) -> AxisSizes | None:
    if "as_int" in size:
        return None
    expression = size["as_expr"]
    match = _SIZE_SYMBOL.fullmatch(expression["expr_str"])
    bounds = ranges.get(match[1] or match[2]) if match else None
    if bounds is not None:
        return AxisSizes(max(1, _size_bound(bounds["min_val"]) or 0), _size_bound(bounds["max_val"]))
    hint = _size_bound((expression.get("hint") or {}).get("as_int"))
    return AxisSizes(example=hint) if hint else None


def _size_bound(number: object) -> int | None:
    """Returns a bound; None if there is none or no size can reach it."""
    if number is None:
        return None
    if type(number) is not int:
        raise ValueError("one of its bounds is not a whole number")
    return number if 0 <= number <= _LARGEST_SIZE else None
