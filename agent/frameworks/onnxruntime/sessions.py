"""ONNX Runtime for the predictor and the operators: its import, sessions, failures and details."""

from __future__ import annotations

import ctypes
import os
import warnings
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any

# otherwise ONNX Runtime, from 1.29 on, sends telemetry, and writes to the user's home for that
os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")

import onnxruntime as onnxruntime
from onnxruntime.capi import onnxruntime_pybind11_state as native

from inferometer.agent.hardware.allocator import Allocator, allocator_in_use
from inferometer.agent.hardware.environment import Device, FrameworkDetails, cuda_library_versions, on_or_off
from inferometer.manifests.errors import ArtifactError, DeviceError, one_line

# ONNX Runtime's exceptions have no base of their own.
FAILURES: tuple[type[Exception], ...] = (
    *(value for value in vars(native).values() if isinstance(value, type) and issubclass(value, Exception)),
    RuntimeError,
    TypeError,
    ValueError,
)
NO_MODEL: tuple[type[Exception], ...] = (native.InvalidArgument, native.InvalidGraph, native.InvalidProtobuf)
"""The exceptions for a file that is not a model; other exceptions mean that it cannot run here."""
_FATAL = 4  # the logger's severity that leaves errors to the exceptions
CPU_PROVIDER = "CPUExecutionProvider"
CUDA = "CUDAExecutionProvider"


def open_session(
    graph: str | bytes,
    device: Device,
    threads: int,
    *,
    cuda: Mapping[str, str] | None = None,
    profile_prefix: Path | None = None,
    left_out: Sequence[str] = (),
    optimized: Path | None = None,
    optimize: bool = True,
) -> Any:
    """Returns a session for a file or for a graph in memory; raises one of ``FAILURES``.

    Args:
        graph: The path, or the bytes of the graph.
        device: The device; if there is no provider for it, ONNX Runtime uses another device.
        threads: The number of threads of an operator; operators run one after the other.
        cuda: Options of the CUDA provider.
        profile_prefix: The prefix of the profile's path; None for no profile.
        left_out: The optimisers to disable.
        optimized: The path to write the optimised graph to; None to write none.
        optimize: Whether to optimise the graph.
    """
    onnxruntime.set_default_logger_severity(_FATAL)
    settings = onnxruntime.SessionOptions()
    settings.log_severity_level = _FATAL
    settings.intra_op_num_threads = threads
    settings.inter_op_num_threads = 1  # its default mode runs one operator after the other
    if allocator_in_use() is Allocator.EXACT:
        _share_exact_arena()
        settings.add_session_config_entry("session.use_env_allocators", "1")
        settings.enable_mem_pattern = False  # which takes a block for a whole run, beside those of the first
    if profile_prefix is not None:
        settings.enable_profiling = True
        settings.profile_file_prefix = str(profile_prefix)
    if optimized is not None:
        settings.optimized_model_filepath = str(optimized)
    on_gpu = (CUDA, {"device_id": str(device.index), **(cuda or {})})
    provider: object = on_gpu if device.is_gpu else CPU_PROVIDER
    if not optimize:
        settings.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    with warnings.catch_warnings():
        # it only warns about a missing provider, and about a graph that it optimised for this machine
        warnings.simplefilter("ignore", UserWarning)
        return onnxruntime.InferenceSession(
            graph, settings, providers=[provider], enable_fallback=0, disabled_optimizers=list(left_out)
        )


@cache
def _share_exact_arena() -> None:
    """Creates an arena on the CPU, once, that grows by what is requested; sessions choose to share it."""
    where = onnxruntime.OrtMemoryInfo(
        "Cpu", onnxruntime.OrtAllocatorType.ORT_ARENA_ALLOCATOR, 0, onnxruntime.OrtMemType.DEFAULT
    )
    most, as_requested, first, dead = 0, 1, -1, -1  # no limit; kSameAsRequested; the defaults of the others
    arena = onnxruntime.OrtArenaCfg(most, as_requested, first, dead)
    onnxruntime.create_and_register_allocator(where, arena)


def check_device(model: str, device: Device) -> None:
    """Raises DeviceError if a model's device is a GPU, and ONNX Runtime does not find it."""
    available = onnxruntime.get_available_providers()
    if device.is_gpu and CUDA not in available:
        raise DeviceError(
            f"{refusal(model, device)}: this build has {', '.join(available)}; "
            "run on the CPU, or install onnxruntime-gpu"
        )
    if device.is_gpu and device.index >= (count := gpu_count()):
        raise DeviceError(
            f"{refusal(model, device)}: the number of GPUs that CUDA finds is {count}; run on the CPU"
        )


def check_used(model: str, device: Device, session: Any) -> None:
    """Raises DeviceError if a session does not use a model's device."""
    used = session.get_providers()
    if used[0] != (CUDA if device.is_gpu else CPU_PROVIDER):
        raise DeviceError(
            f"{refusal(model, device)}: its session uses {', '.join(used)} instead; run on the CPU"
        )


def refusal(model: str, device: Device) -> str:
    """Returns how a DeviceError begins."""
    return f"{model}: ONNX Runtime {onnxruntime.__version__} cannot use {device}"


def open_graph(model: str, graph: Path, device: Device, threads: int, **settings: Any) -> Any:
    """Returns a session for a model's ``.onnx`` file; see ``open_session``.

    Raises:
        ArtifactError: ONNX Runtime cannot open the file.
        DeviceError: ONNX Runtime cannot use the device.
    """
    check_device(model, device)
    try:
        session = open_session(str(graph), device, threads, **settings)
    except FAILURES as error:
        if device.is_gpu and "CUDA" in str(error):
            raise DeviceError(f"{refusal(model, device)}: {reason(error)}") from error
        what = "is not an ONNX model" if isinstance(error, NO_MODEL) else "ONNX Runtime cannot open it"
        raise ArtifactError(f"{graph}: {what}: {reason(error)}") from error
    check_used(model, device, session)
    return session


def gpu_count() -> int:
    """Returns the number of GPUs that the CUDA driver makes available; 0 without a driver."""
    count = ctypes.c_int()
    with suppress(OSError, AttributeError):
        driver = ctypes.CDLL("libcuda.so.1")
        if driver.cuInit(0) == 0 and driver.cuDeviceGetCount(ctypes.byref(count)) == 0:
            return count.value
    return 0


def details_of(session: Any | None) -> FrameworkDetails:
    """Returns ONNX Runtime's libraries and build, and the settings of a session if there is one."""
    build = onnxruntime.get_build_info().removeprefix("ORT Build Info: ")
    providers = ", ".join(onnxruntime.get_available_providers())
    settings = {} if session is None else _settings_of(session)
    return FrameworkDetails({"BLAS": "MLAS", **cuda_library_versions()}, f"{providers}; {build}", settings)


def _settings_of(session: Any) -> dict[str, str]:
    """Returns the settings that affect the speed or the precision of a session."""
    options = session.get_session_options()
    settings = {
        "inter-op threads": str(options.inter_op_num_threads),
        "execution providers": ", ".join(session.get_providers()),
        "graph optimisation": options.graph_optimization_level.name,
    }
    cuda = session.get_provider_options().get(CUDA)
    if cuda is not None:
        tf32 = on_or_off(cuda.get("use_tf32", "1") == "1")
        settings |= {
            "TF32 in matrix products": tf32,
            "TF32 in convolutions": tf32,
            "cuDNN autotuning": cuda.get("cudnn_conv_algo_search", "EXHAUSTIVE").lower(),
        }
    return settings


def reason(error: BaseException) -> str:
    """Returns ONNX Runtime's message in one line, without its code and its source file."""
    text = " ".join(str(error).split())
    if text.startswith("[ONNXRuntimeError]"):
        text = text.split(" : ", 3)[-1]
    return one_line(text or type(error).__name__)
