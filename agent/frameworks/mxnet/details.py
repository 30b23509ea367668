"""What MXNet tells of its build and of its settings."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from inferometer.agent.frameworks.mxnet.precision import AUTOTUNE
from inferometer.agent.frameworks.mxnet.workers import worker_count
from inferometer.agent.hardware.environment import FrameworkDetails, on_or_off
from inferometer.agent.hardware.loaded_libraries import cuda_library_versions, loaded_library

_FEATURES = (
    "MKLDNN",
    "OPENMP",
    "BLAS_OPEN",
    "BLAS_MKL",
    "BLAS_ATLAS",
    "BLAS_APPLE",
    "CUDA",
    "CUDNN",
    "TENSORRT",
)
"""MXNet's names of the features of its build that matter for speed."""


def read_details(mxnet: Any) -> FrameworkDetails:
    """Returns MXNet's libraries, build and settings; see ``Predictor.details``."""
    features = [name for name in _FEATURES if mxnet.runtime.Features().is_enabled(name)]
    return FrameworkDetails(_libraries(mxnet), ", ".join(features), _settings(mxnet))


def _libraries(mxnet: Any) -> Mapping[str, str]:
    """OpenBLAS beside MXNet, with the processor that its kernels are for, and the libraries of CUDA."""
    found = dict(cuda_library_versions())
    path = loaded_library("libopenblas", Path(mxnet.__file__).parent)
    if path is not None:
        with suppress(OSError, AttributeError):
            config = ctypes.CDLL(str(path)).openblas_get_config
            config.restype = ctypes.c_char_p
            found["BLAS"] = config().decode()
    return found


def _settings(mxnet: Any) -> Mapping[str, str]:
    """What changes the speed or the precision of operators; of CUDA's only in a build that has CUDA."""
    settings = {
        "inter-op threads": str(worker_count()),
        "oneDNN": on_or_off(os.environ.get("MXNET_MKLDNN_ENABLED", "1") != "0"),
    }
    if mxnet.runtime.Features().is_enabled("CUDA"):
        # by default MXNet tunes within a limit of the workspace
        tuning = os.environ.get(AUTOTUNE, "1")
        settings["cuDNN autotuning"] = {"0": "off", "1": "on", "2": "on, any workspace"}.get(tuning, tuning)
    return settings
