"""What disturbs a measurement on a GPU, as NVIDIA's driver tells it."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any, TypeVar

import pynvml

from inferometer.agent.closeable import Closeable
from inferometer.agent.hardware.conditions import GpuCounters
from inferometer.agent.hardware.device import Device

_SLOWDOWN = (
    pynvml.nvmlClocksThrottleReasonHwSlowdown
    | pynvml.nvmlClocksThrottleReasonHwThermalSlowdown
    | pynvml.nvmlClocksThrottleReasonHwPowerBrakeSlowdown
    | pynvml.nvmlClocksThrottleReasonSwThermalSlowdown
)
"""The limit of power is none of them: under full load it is the usual state."""
_Read = TypeVar("_Read")


class GpuReader(Closeable):
    """Reads the counters of the GPU that a model is on; without a GPU or a driver, all are None.

    Args:
        device: The device of the model, whose process has the GPU open.
    """

    def __init__(self, device: Device) -> None:
        self._handle: Any = None
        self._open = False
        if device.is_gpu:
            self._open = _optional(lambda: pynvml.nvmlInit() or True) or False
            self._handle = _optional(lambda: _handle(device.index)) if self._open else None

    def read(self) -> GpuCounters | None:
        """Reads the counters; None without a GPU."""
        handle = self._handle
        if handle is None:
            return None
        reasons = _optional(lambda: int(pynvml.nvmlDeviceGetCurrentClocksThrottleReasons(handle)))
        return GpuCounters(
            clock_mhz=_optional(lambda: pynvml.nvmlDeviceGetClockInfo(handle, pynvml.NVML_CLOCK_SM)),
            clock_limit_mhz=_optional(lambda: pynvml.nvmlDeviceGetMaxClockInfo(handle, pynvml.NVML_CLOCK_SM)),
            slowdown=None if reasons is None else bool(reasons & _SLOWDOWN),
            heat_slowed_ns=_slowed_ns(handle, pynvml.NVML_PERF_POLICY_THERMAL),
            power_slowed_ns=_slowed_ns(handle, pynvml.NVML_PERF_POLICY_POWER),
            other_processes=_optional(lambda: _others(handle)),
        )

    def close(self) -> None:
        """Leaves the driver; calling it again does nothing."""
        if self._open:
            self._open, self._handle = False, None
            _optional(pynvml.nvmlShutdown)


def _optional(read: Callable[[], _Read]) -> _Read | None:
    """What a driver tells, or None where it does not."""
    try:
        return read()
    except (pynvml.NVMLError, AttributeError, IndexError, ValueError):
        return None


def _handle(index: int) -> Any:
    """The GPU with a number as frameworks count them, which see those that ``CUDA_VISIBLE_DEVICES`` names."""
    visible = [name.strip() for name in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if name.strip()]
    name = visible[index] if visible else str(index)
    if name.isdigit():
        return pynvml.nvmlDeviceGetHandleByIndex(int(name))
    return pynvml.nvmlDeviceGetHandleByUUID(name)


def _slowed_ns(handle: Any, policy: int) -> int | None:
    return _optional(lambda: int(pynvml.nvmlDeviceGetViolationStatus(handle, policy).violationTime))


def _others(handle: Any) -> int:
    """The processes that compute on the GPU, without this one, whose number in a container may be another."""
    processes = {process.pid for process in pynvml.nvmlDeviceGetComputeRunningProcesses(handle)}
    return len(processes - {os.getpid()}) if os.getpid() in processes else max(len(processes) - 1, 0)
