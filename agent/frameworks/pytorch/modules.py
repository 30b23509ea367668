"""Devices, modules, weights and PyTorch's details, for its predictor, trainer and operators.

It also decides how to pass several inputs to a module, by the names or the positions of its arguments, and
manages cuDNN's benchmark mode, which is one setting for the whole process.
"""

from __future__ import annotations

import inspect
import pickle  # only for the name of its exception
import re
import threading
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from inferometer.agent.architectures.sources import Architecture
from inferometer.agent.hardware.environment import (
    Device,
    FrameworkDetails,
    PredictorOptions,
    Weights,
    on_or_off,
    readable_cudnn_version,
)
from inferometer.agent.inference.predictor import has_numbers, number_of
from inferometer.manifests.errors import (
    CODE_FAILURES,
    ArtifactError,
    ConfigurationError,
    DeviceError,
    one_line,
    suggestion,
)
from inferometer.manifests.inputs import TensorSpec

FAILURES = (*CODE_FAILURES, pickle.UnpicklingError, torch.jit.Error)
"""The exceptions that PyTorch raises for files that it cannot use."""
_LIBRARIES = {
    "oneDNN": re.compile(r"MKL-DNN v(\S+)|oneDNN v(\S+)"),
    "BLAS": re.compile(r"(Math Kernel Library) Version (\S+)-|BLAS_INFO=(\w+)"),
}
_FLAGS = {"oneDNN": "USE_MKLDNN", "MKL": "USE_MKL", "OpenMP": "USE_OPENMP"}
"""The names of libraries and features in PyTorch's description of its build."""


def use_threads(number: int) -> None:
    """Sets the number of threads that one operator uses in the calling thread."""
    if torch.get_num_threads() != number:
        torch.set_num_threads(number)


def find_device(model: str, wanted: Device) -> torch.device:
    """Returns PyTorch's device; raises DeviceError if PyTorch does not find it."""
    if not wanted.is_gpu:
        return torch.device("cpu")
    where = f"{model}: PyTorch {torch.__version__} cannot use {wanted}"
    if torch.version.cuda is None and torch.version.hip is None:
        raise DeviceError(f"{where}: it is built for the CPU only; run on the CPU, or install a CUDA build")
    with warnings.catch_warnings():
        # CUDA warns about a missing or an old driver here, which the error below reports
        warnings.simplefilter("ignore")
        count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if wanted.index >= count:
        raise DeviceError(f"{where}: the number of GPUs that it finds is {count}; run on the CPU")
    return torch.device("cuda", wanted.index)


def build_architecture(
    model: str, architecture: Architecture, weights: Path | None, options: PredictorOptions
) -> torch.nn.Module:
    """Builds a model in code on the CPU without reading its weights; random weights depend only on the seed.

    Raises:
        ArtifactError: It cannot be built, is not a module, or has no weights and none are to be drawn.
    """
    random = options.weights is Weights.RANDOM
    if not random and weights is None:
        raise ArtifactError(f"{model}: has no weights; give weights_path, or use --weights=random")
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(options.seed)
        module = architecture.build(initialize=random)
    if not isinstance(module, torch.nn.Module):
        raise ArtifactError(
            f'{model}: architecture "{architecture.name}" is {type(module).__name__}, which is not a '
            "torch.nn.Module"
        )
    return module


def read_weights(model: str, module: torch.nn.Module, path: Path) -> None:
    """Loads the weights of a state dict into a module, except those that its class ignores.

    Raises:
        ArtifactError: The file cannot be read, or contains the weights of another module.
    """
    try:
        with warnings.catch_warnings():
            # it warns about newer pickle protocols, and raises for unreadable ones
            warnings.simplefilter("ignore", UserWarning)
            state = torch.load(path, map_location="cpu", weights_only=True)
        if isinstance(state, dict):  # otherwise load_state_dict reports the error
            ignored = getattr(module, "ignored_weights", ())
            for key in [key for key in state if str(key).startswith(ignored)]:
                del state[key]
        module.load_state_dict(state, strict=True)
    except FAILURES as error:
        raise ArtifactError(f"{path}: are not the weights of {model}: {reason_of(error)}") from error


def framework_details() -> FrameworkDetails:
    """Returns PyTorch's libraries, build and settings."""
    build = torch.__config__.show()
    return FrameworkDetails(_libraries(build), _build_features(build), _settings())


def _libraries(build: str) -> Mapping[str, str]:
    """Returns the libraries in PyTorch's description of its build, and CUDA's libraries."""
    found = {}
    for name, pattern in _LIBRARIES.items():
        if match := pattern.search(build):
            found[name] = " ".join(filter(None, match.groups())).replace("Math Kernel Library", "MKL")
    if torch.version.cuda is not None:
        found["CUDA runtime"] = torch.version.cuda
    number = torch.backends.cudnn.version()  # type: ignore[no-untyped-call]  # as torch has it
    if number is not None:
        found["cuDNN"] = readable_cudnn_version(number)
    return found


def _build_features(build: str) -> str:
    """Returns the CPU instructions that PyTorch's kernels use, and the libraries of the build."""
    built_with = {name: f"{flag}=ON" in build for name, flag in _FLAGS.items()}
    built_with |= {"CUDA": torch.version.cuda is not None, "ROCm": torch.version.hip is not None}
    capability = torch.backends.cpu.get_cpu_capability()
    return ", ".join([capability, *(name for name, is_there in built_with.items() if is_there)])


def _settings() -> Mapping[str, str]:
    """Returns the settings that affect speed or precision; CUDA's settings only if the build has CUDA."""
    settings = {
        "inter-op threads": str(torch.get_num_interop_threads()),
        "float32 matrix products": _told(torch.get_float32_matmul_precision),
        "oneDNN": on_or_off(bool(torch.backends.mkldnn.enabled)),
    }
    if torch.version.cuda is not None:
        cudnn = torch.backends.cudnn
        settings |= {
            "TF32 in matrix products": _told(lambda: on_or_off(torch.backends.cuda.matmul.allow_tf32)),
            "TF32 in convolutions": _told(lambda: on_or_off(cudnn.allow_tf32)),
            "cuDNN autotuning": on_or_off(cudnn.benchmark),
            "deterministic algorithms": on_or_off(cudnn.deterministic),
        }
    return settings


def _told(read: Callable[[], str]) -> str:
    """Returns a setting; PyTorch refuses to report one that was set both per operator and globally."""
    try:
        return read()
    except RuntimeError:
        return "set by operator"


def named_tensors(answer: object) -> Iterator[tuple[str, torch.Tensor]]:
    """Yields the tensors that a module returned, with their names; raises TypeError for anything else."""
    if isinstance(answer, Mapping):
        named = [(str(name), value) for name, value in answer.items()]
    else:
        values = answer if isinstance(answer, tuple | list) else (answer,)
        named = [(f"output{index}", value) for index, value in enumerate(values)]
    for name, value in named:
        if value is None and len(named) > 1:  # an optional output without a value
            continue
        if not isinstance(value, torch.Tensor):
            raise TypeError(f"{name} is {type(value).__name__}, which is not a tensor")
        yield name, value


def reason_of(error: BaseException) -> str:
    """Returns PyTorch's message in one line.

    The TorchScript interpreter starts with the traceback; the reason is the last line. The unpickler starts
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


@dataclass(frozen=True, slots=True)
class CallForm:
    """How a module is called.

    Attributes:
        places: The names of the inputs in the order of the module's arguments; empty to keep the given order.
        by_name: Whether to pass the inputs by name.
    """

    places: tuple[str, ...] = ()
    by_name: bool = False

    def __call__(self, module: Callable[..., object], tensors: Mapping[str, torch.Tensor]) -> object:
        """Calls the module with the tensors, which are keyed by their names in the manifest."""
        if self.by_name:
            return module(**tensors)
        if self.places:
            return module(*(tensors[name] for name in self.places))
        return module(*tensors.values())

    def in_order(self, tensors: Sequence[TensorSpec]) -> list[TensorSpec]:
        """Returns the inputs of a manifest in the order of the module's arguments."""
        found = {each.name: each for each in tensors}
        return [found[name] for name in self.places or found]


def call_form(model: str, module: torch.nn.Module, tensors: Sequence[TensorSpec]) -> CallForm:
    """Returns how to call a module with the inputs of a manifest.

    A single input is passed by position. Several inputs are passed by name if they are named like arguments
    of the module's ``forward``, in numerical order if their names are numbered, and otherwise in the order of
    the manifest.

    Raises:
        ArtifactError: Only some names are those of arguments, or the module takes further inputs.
    """
    names = tuple(each.name for each in tensors)
    if len(names) == 1:
        return CallForm()
    if has_numbers(tensors):
        return CallForm(tuple(sorted(names, key=lambda name: number_of(name) or 0)))
    listed = getattr(module, "input_names", None)
    arguments = list(listed) if listed else argument_names(module)
    matching = [name for name in names if name in arguments]
    if not matching:
        return CallForm(names)
    if len(matching) < len(names):
        wrong = next(name for name in names if name not in arguments)
        raise ArtifactError(f'{model}: takes no input "{wrong}"; {suggestion(wrong, arguments)}')
    order = tuple(name for name in arguments if name in names)
    if listed:
        if missing := [name for name in arguments if name not in names]:
            raise ArtifactError(f'{model}: also takes the input "{missing[0]}", which the manifest lacks')
        return CallForm(order)
    return CallForm(order, by_name=True)


def argument_names(module: torch.nn.Module) -> list[str]:
    """Returns the names of the arguments that ``forward`` accepts by name; none if they are unknown."""
    if isinstance(module, torch.jit.ScriptModule):
        return [each.name for each in module.forward.schema.arguments[1:]]  # type: ignore[attr-defined]
    try:
        parameters = inspect.signature(module.forward).parameters.values()
    except (TypeError, ValueError):
        return []
    named = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    return [each.name for each in parameters if each.kind in named]


class CudnnBenchmark:
    """The process's ``torch.backends.cudnn.benchmark``, while predictors or trainers request a value.

    Models that request the same value share it, and the last one to close restores the original value. Models
    that request none run with the current value. Thread-safe.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._holders = 0
        self._before = False

    def hold(self, *, wanted: bool) -> None:
        """Sets the value until ``release``; raises ConfigurationError if the other value is held."""
        with self._lock:
            if self._holders and torch.backends.cudnn.benchmark != wanted:
                raise ConfigurationError(
                    f"cudnn_benchmark: found {str(wanted).lower()}; PyTorch has one setting per process, "
                    f"and an open model uses {str(not wanted).lower()}: close it, or use another process"
                )
            if not self._holders:
                self._before = torch.backends.cudnn.benchmark
                torch.backends.cudnn.benchmark = wanted
            self._holders += 1

    def release(self) -> None:
        """Ends one ``hold``."""
        with self._lock:
            self._holders -= 1
            if not self._holders:
                torch.backends.cudnn.benchmark = self._before


CUDNN_BENCHMARK = CudnnBenchmark()
"""This process's instance, which predictors and trainers hold."""
