"""MXNet as this package uses it: its import, its lock, its CPU workers and its build.

It also handles lower precision, and cuDNN's autotuning, which a process can set only once.
"""

from __future__ import annotations

import ctypes
import os
import re
import sys
import threading
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from inferometer.agent.hardware.environment import (
    Device,
    FrameworkDetails,
    Precision,
    cuda_library_versions,
    default_threads,
    loaded_library,
    on_or_off,
)
from inferometer.manifests.errors import CODE_FAILURES, ConfigurationError, DeviceError, one_line

_BARRIER_TIMEOUT_S = 10.0


def worker_count() -> int:
    """Returns the number of the engine's CPU workers, each of which runs one operator at a time."""
    if os.environ.get("MXNET_ENGINE_TYPE") == "NaiveEngine":  # it runs all on the calling thread
        return 1
    return int(os.environ.get("MXNET_CPU_WORKER_NTHREADS") or 1)


class CpuWorkers:
    """The engine's CPU workers and the number of their OpenMP threads.

    OpenMP keeps this number per thread, so ``MXSetNumOMPThreads``, which sets it for the calling thread, has
    no effect on operators. Here the engine runs a function on the workers, which sets and reads the number.
    """

    def __init__(self) -> None:
        self._found: dict[int, list[int]] = {}

    def fix(self, threads: int | None, default: int, cpu: int = 0) -> int | None:
        """Gives every worker ``threads`` OpenMP threads on the first call, and returns the number.

        The number is set once: oneDNN sizes its scratch memory when it prepares an operator, and MXNet reuses
        prepared operators in all later models. Running them with more threads corrupts the heap and aborts.
        If ``threads`` is None, the first call sets ``default``, and later calls keep the number.

        Each CPU context of MXNet, with the number ``cpu``, has its own workers.

        Raises:
            ConfigurationError: An earlier call has set another number.
        """
        if cpu not in self._found:
            self._found[cpu] = self._run(lambda: self._set(threads or default), cpu)
        different = set(self._found[cpu])
        if threads is not None and different != {threads}:
            raise ConfigurationError(
                f"threads: found {threads}; MXNet sets the number once per process, and here it is "
                f"{' or '.join(map(str, sorted(different))) or 'unknown'}; use another process"
            )
        return different.pop() if len(different) == 1 else None

    def read(self) -> list[int]:
        """Returns the number of OpenMP threads of each worker, read on the workers."""
        return self._run(self._get)

    def _get(self) -> int:
        return int(mxnet.base._LIB.omp_get_max_threads())

    def _set(self, threads: int) -> int:
        mxnet.base._LIB.omp_set_num_threads(threads)
        return self._get()

    def _run(self, action: Callable[[], int], cpu: int = 0) -> list[int]:
        workers = worker_count()
        # The workers wait for each other, so that none runs two of the functions.
        barrier = threading.Barrier(workers)
        results: list[int] = []

        def run(_context: object, _parameter: object) -> None:
            with suppress(threading.BrokenBarrierError):
                barrier.wait(_BARRIER_TIMEOUT_S)
                results.append(action())

        function = _EngineFunction(run)
        context = _EngineContext(mxnet.cpu().device_typeid, cpu)
        push = mxnet.base._LIB.MXEnginePushSyncND
        written = [mxnet.nd.zeros((1,), ctx=mxnet.cpu(cpu)) for _ in range(workers)]
        for array in written:
            handles = (ctypes.c_void_p * 1)(array.handle)
            arguments = (function, None, None, ctypes.byref(context), None, 0, handles, 1, None, 0)
            mxnet.base.check_call(push(*arguments, b"set_threads"))
        for array in written:
            array.wait_to_read()
        return results if len(results) == workers else []


class _EngineContext(ctypes.Structure):
    """MXNet's ``Context`` in the C API."""

    _fields_ = (("device_type", ctypes.c_int), ("device_id", ctypes.c_int32))


_EngineFunction = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p)


AUTOTUNE = "MXNET_CUDNN_AUTOTUNE_DEFAULT"
"""0 leaves the choice of algorithms to cuDNN's heuristics; 1 times them within a workspace limit."""


class CudnnAutotune:
    """The process's ``MXNET_CUDNN_AUTOTUNE_DEFAULT``.

    A convolution reads it when it first runs with a given shape (``CuDNNConvolutionOp::Init``), and MXNet
    keeps the algorithm for all later models of the process. Therefore the first predictor that requests a
    value sets it permanently. Thread-safe.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._fixed: bool | None = None

    def fix(self, *, wanted: bool) -> None:
        """Sets the variable, before the model runs; raises ConfigurationError if it has the other value."""
        with self._lock:
            if self._fixed is not None and self._fixed is not wanted:
                raise ConfigurationError(
                    f"cudnn_benchmark: found {str(wanted).lower()}; MXNet sets it once per process, and "
                    f"here it is {str(self._fixed).lower()}; use another process"
                )
            self._fixed = wanted
            os.environ[AUTOTUNE] = "1" if wanted else "0"


def refuse(model: str, precision: Precision, device: Device, reason: str) -> ConfigurationError:
    """Returns the error for a model that MXNet cannot run in a precision."""
    lower = Precision.FLOAT16 if device.is_gpu else Precision.BFLOAT16
    others = "float32" if lower is precision else f"{lower.value} or float32"
    return ConfigurationError(
        f"{model}: MXNet cannot run it in {precision.value} on {device} ({reason}); use {others}"
    )


def converted(symbol: Any, weights: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
    """Returns a symbol whose operators compute in bfloat16 where MXNet supports it, and its parameters.

    MXNet's automatic mixed precision selects the operators: on a CPU, convolutions and dense layers compute
    in bfloat16 through oneDNN; other operators, the input and the outputs stay in float32.
    """
    # imported here because few models are converted, and it imports more than is needed otherwise
    from mxnet.contrib import amp

    arguments = {name: weights[name] for name in symbol.list_arguments() if name in weights}
    states = {name: weights[name] for name in symbol.list_auxiliary_states()}
    # with the parameters cast once, instead of in each prediction
    symbol, arguments, states = amp.convert_model(
        symbol, arguments, states, target_dtype=Precision.BFLOAT16.value, cast_optional_params=True
    )
    return symbol, {**arguments, **states}


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
WORKERS = CpuWorkers()
ONE_AT_A_TIME = threading.RLock()
"""MXNet crashes if two threads use it at once, even with separate models."""


def find_context(device: Device, who: object) -> Any:
    """Returns the context of a device for ``who``, a model; several CPU contexts are used only in tests.

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


@contextmanager
def environment(variables: Mapping[str, str]) -> Iterator[None]:
    """Sets environment variables within the context; MXNet reads them when it creates objects."""
    before = {name: os.environ.get(name) for name in variables}
    os.environ.update(variables)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


def copied_to(context: Any, array: NDArray[Any]) -> Any:
    """Returns a copy of an array on a device; ``mxnet.nd.array`` would use a deprecated part of SciPy."""
    copy = mxnet.nd.empty(array.shape, context, dtype=array.dtype)
    copy[:] = array
    return copy


def framework_details() -> FrameworkDetails:
    """Returns MXNet's libraries, build and settings; see ``Predictor.details``.

    The build lists all features as MXNet does, ``✔ OPENMP, ✖ CUDA``, first those that it has.
    """
    features = sorted(map(repr, mxnet.runtime.Features().values()))
    return FrameworkDetails(_libraries(), ", ".join(features), _settings())


def _libraries() -> Mapping[str, str]:
    """Returns MXNet's own OpenBLAS, with the target processor of its kernels, and CUDA's libraries."""
    found = dict(cuda_library_versions())
    path = loaded_library("libopenblas", Path(mxnet.__file__).parent)
    if path is not None:
        with suppress(OSError, AttributeError):
            config = ctypes.CDLL(str(path)).openblas_get_config
            config.restype = ctypes.c_char_p
            found["BLAS"] = config().decode()
    return found


def _settings() -> Mapping[str, str]:
    """Returns the settings that affect speed or precision; CUDA's settings only if the build has CUDA."""
    settings = {
        "inter-op threads": str(worker_count()),
        "oneDNN": on_or_off(os.environ.get("MXNET_MKLDNN_ENABLED", "1") != "0"),
    }
    if mxnet.runtime.Features().is_enabled("CUDA"):
        # by default MXNet tunes within a limit of the workspace
        tuning = os.environ.get(AUTOTUNE, "1")
        settings["cuDNN autotuning"] = {"0": "off", "1": "on", "2": "on, any workspace"}.get(tuning, tuning)
    return settings


def reason(error: BaseException) -> str:
    """Returns MXNet's message in one line, without its source location and stack trace."""
    text = str(error).partition("Stack trace")[0]
    lines = [line.strip() for line in text.splitlines()]
    lines = [line for line in lines if line and not line.startswith(("Traceback", "File "))]
    text = " ".join(" ".join(lines).split()) or type(error).__name__
    return one_line(re.sub(r"^(MXNetError: |\[[\d:]+\] \S+: )+", "", text))
