"""MXNet as the predictor and the trainer use it: its import, its lock, its CPU workers and its build."""

from __future__ import annotations

import os
import re
import sys
import threading
import warnings
from contextlib import suppress
from typing import Any

import numpy as np
from numpy.typing import NDArray

from inferometer.agent.frameworks.mxnet.details import read_details
from inferometer.agent.frameworks.mxnet.workers import CpuWorkers
from inferometer.agent.hardware.device import Device
from inferometer.agent.hardware.environment import FrameworkDetails
from inferometer.agent.hardware.threads import default_threads
from inferometer.agent.inference.predictor import CODE_FAILURES
from inferometer.manifests.errors import DeviceError, one_line

# the only removed alias of NumPy that MXNet 1.9.1 uses
if "bool" not in vars(np):
    np.bool = np.bool_  # type: ignore[attr-defined,misc,unused-ignore]  # NumPy 2 has the name, 1.26 has not
# MXNet writes a line to stderr whenever it fuses the operators of a graph.
os.environ.setdefault("MXNET_SUBGRAPH_VERBOSE", "0")
# MXNet reads at its import whether this is set. If so, an operator uses as many threads as its worker has;
# if not, those outside oneDNN use at most half of the processors.
_OWN_NUMBER = {"OMP_NUM_THREADS", "MXNET_OMP_MAX_THREADS"}.isdisjoint(os.environ)
if _OWN_NUMBER:
    os.environ["OMP_NUM_THREADS"] = str(default_threads())
# In a process of the role of a server or scheduler, the import serves the kvstore, and then ends the process.
_ROLE = os.environ.pop("DMLC_ROLE", None)
# MXNet does without them; their import takes as long as its own. A module that is None cannot be imported.
_LEFT_OUT = {name: None for name in ("sklearn", "scipy.stats") if name not in sys.modules}
sys.modules.update(_LEFT_OUT)  # type: ignore[arg-type]
try:
    with warnings.catch_warnings():
        # MXNet 1.9.1 uses deprecated functions of NumPy, and compares versions with distutils
        warnings.simplefilter("ignore", DeprecationWarning)
        import mxnet as mxnet
finally:  # also where MXNet is not installed
    for _name in _LEFT_OUT:
        del sys.modules[_name]
    if _OWN_NUMBER:
        del os.environ["OMP_NUM_THREADS"]  # it is not the user's
    if _ROLE is not None:
        os.environ["DMLC_ROLE"] = _ROLE

FAILURES = (mxnet.base.MXNetError, *CODE_FAILURES)
WORKERS = CpuWorkers(mxnet)
ONE_AT_A_TIME = threading.RLock()
"""MXNet crashes if two threads use it at once, even with separate models."""


def find_context(device: Device, who: object) -> Any:
    """Returns the context of a device for ``who``, a model; several CPUs are for tests.

    Raises:
        DeviceError: This build has no CUDA, or the GPU is missing.
    """
    if not device.is_gpu:
        return mxnet.cpu(device.index)
    where = f"{who}: MXNet {mxnet.__version__} cannot use {device}"
    if not mxnet.runtime.Features().is_enabled("CUDA"):
        raise DeviceError(f"{where}: it is built for the CPU only; run on the CPU, or install a CUDA build")
    count = 0
    with suppress(mxnet.base.MXNetError):  # no driver
        count = mxnet.context.num_gpus()
    if device.index >= count:
        raise DeviceError(f"{where}: the number of GPUs that it finds is {count}; run on the CPU")
    return mxnet.gpu(device.index)


def copied_to(context: Any, array: NDArray[Any]) -> Any:
    """Returns a copy on a device; ``mxnet.nd.array`` does the same with a deprecated part of SciPy."""
    copy = mxnet.nd.empty(array.shape, context, dtype=array.dtype)
    copy[:] = array
    return copy


def details() -> FrameworkDetails:
    """Returns MXNet's libraries, build and settings."""
    return read_details(mxnet)


def worker_threads() -> list[int]:
    """The number of OpenMP threads of each of MXNet's CPU workers, read on the workers."""
    return WORKERS.read()


def reason(error: BaseException) -> str:
    """MXNet's message in one line, without its source location and stack trace."""
    text = str(error).partition("Stack trace")[0]
    lines = [line.strip() for line in text.splitlines()]
    lines = [line for line in lines if line and not line.startswith(("Traceback", "File "))]
    text = " ".join(" ".join(lines).split()) or type(error).__name__
    return one_line(re.sub(r"^(MXNetError: |\[[\d:]+\] \S+: )+", "", text))
