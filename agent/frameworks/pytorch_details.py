"""What PyTorch tells of its build and of its settings."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping

import torch

from inferometer.agent.hardware.environment import FrameworkDetails, on_or_off
from inferometer.agent.hardware.loaded_libraries import readable_cudnn_version

_LIBRARIES = {
    "oneDNN": re.compile(r"MKL-DNN v(\S+)|oneDNN v(\S+)"),
    "BLAS": re.compile(r"(Math Kernel Library) Version (\S+)-|BLAS_INFO=(\w+)"),
}
_FLAGS = {"oneDNN": "USE_MKLDNN", "MKL": "USE_MKL", "OpenMP": "USE_OPENMP"}
"""How PyTorch's description of its build names the libraries and what is on."""


def read_details() -> FrameworkDetails:
    """Returns PyTorch's libraries, build and settings; see ``Predictor.details``."""
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
