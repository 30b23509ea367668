"""What the predictor and the trainer for PyTorch share: devices, modules, weights, and PyTorch's details."""

from __future__ import annotations

import pickle  # only for the name of its exception
import re
import warnings
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import torch

from inferometer.agent.architectures.architecture import Architecture
from inferometer.agent.hardware.device import Device
from inferometer.agent.hardware.environment import FrameworkDetails, on_or_off
from inferometer.agent.hardware.loaded_libraries import readable_cudnn_version
from inferometer.agent.inference.predictor import CODE_FAILURES, PredictorOptions, Weights
from inferometer.manifests.errors import ArtifactError, DeviceError, one_line

FAILURES = (*CODE_FAILURES, pickle.UnpicklingError, torch.jit.Error)
"""What PyTorch raises for files that do not fit it."""
_LIBRARIES = {
    "oneDNN": re.compile(r"MKL-DNN v(\S+)|oneDNN v(\S+)"),
    "BLAS": re.compile(r"(Math Kernel Library) Version (\S+)-|BLAS_INFO=(\w+)"),
}
_FLAGS = {"oneDNN": "USE_MKLDNN", "MKL": "USE_MKL", "OpenMP": "USE_OPENMP"}
"""How PyTorch's description of its build names the libraries and what is on."""


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
    """Builds a model in code on the CPU, without reading its weights; random ones depend on the seed alone.

    Raises:
        ArtifactError: It cannot be built, is no module, or has neither weights nor is to have random ones.
    """
    random = options.weights is Weights.RANDOM
    if not random and weights is None:
        raise ArtifactError(f"{model}: has no weights; give weights_path, or use --weights=random")
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(options.seed)
        module = architecture.build(initialize=random)
    if not isinstance(module, torch.nn.Module):
        raise ArtifactError(
            f'{model}: architecture "{architecture.name}" is {type(module).__name__}, which is no '
            "torch.nn.Module"
        )
    return module


def read_weights(model: str, module: torch.nn.Module, path: Path) -> None:
    """Gives a module the weights of a state dict, less those that its class ignores.

    Raises:
        ArtifactError: The file cannot be read, or has the weights of another module.
    """
    try:
        with warnings.catch_warnings():
            # it warns about newer pickle protocols, and raises for unreadable ones
            warnings.simplefilter("ignore", UserWarning)
            state = torch.load(path, map_location="cpu", weights_only=True)
        _leave_out(state, getattr(module, "ignored_weights", ()))
        module.load_state_dict(state, strict=True)
    except FAILURES as error:
        raise ArtifactError(f"{path}: are not the weights of {model}: {reason_of(error)}") from error


def _leave_out(state: object, prefixes: tuple[str, ...]) -> None:
    """Removes the tensors from a state dict that a class declares to ignore."""
    if isinstance(state, dict):  # otherwise load_state_dict reports the error
        for key in [key for key in state if str(key).startswith(prefixes)]:
            del state[key]


def framework_details() -> FrameworkDetails:
    """Returns PyTorch's libraries, build and settings."""
    build = torch.__config__.show()
    return FrameworkDetails(_libraries(build), _build_features(build), _settings())


def _libraries(build: str) -> Mapping[str, str]:
    """The libraries in PyTorch's description of its build, and those of CUDA."""
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
    """The instructions that PyTorch's own kernels use, and the libraries that they are built with."""
    built_with = {name: f"{flag}=ON" in build for name, flag in _FLAGS.items()}
    built_with |= {"CUDA": torch.version.cuda is not None, "ROCm": torch.version.hip is not None}
    capability = torch.backends.cpu.get_cpu_capability()
    return ", ".join([capability, *(name for name, is_there in built_with.items() if is_there)])


def _settings() -> Mapping[str, str]:
    """What changes the speed or the precision of kernels; of CUDA's only in a build that has CUDA."""
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
    """A setting; PyTorch refuses to tell one that code has set both by operator and in general."""
    try:
        return read()
    except RuntimeError:
        return "set by operator"


def named_tensors(answer: object) -> Iterator[tuple[str, torch.Tensor]]:
    """The tensors that a module returned, with their names; raises TypeError for anything else."""
    if isinstance(answer, Mapping):
        named = [(str(name), value) for name, value in answer.items()]
    else:
        values = answer if isinstance(answer, tuple | list) else (answer,)
        named = [(f"output{index}", value) for index, value in enumerate(values)]
    for name, value in named:
        if value is None and len(named) > 1:  # an optional output without a value
            continue
        if not isinstance(value, torch.Tensor):
            raise TypeError(f"{name} is {type(value).__name__}, which is no tensor")
        yield name, value


def reason_of(error: BaseException) -> str:
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
