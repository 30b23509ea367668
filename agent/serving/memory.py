"""The memory of this process: what it takes on a device, and what it gives back to the system."""

from __future__ import annotations

import ctypes
import os
import time
from collections.abc import Callable
from contextlib import suppress

import psutil
import pynvml

from inferometer.agent.artifacts.locations import model_files
from inferometer.agent.hardware.device import Device
from inferometer.agent.inference.predictor import Weights
from inferometer.manifests.schema import ModelManifest


def used_bytes(device: Device) -> int | None:
    """Returns the resident set of this process for a CPU, and the memory in use for a GPU.

    That of a GPU is what NVML counts for this process, or where it does not know the process, as in a
    container, what is in use on the whole GPU. GPUs are counted as NVML does, which is as CUDA does unless
    ``CUDA_VISIBLE_DEVICES`` or ``CUDA_DEVICE_ORDER`` say otherwise. Without a driver it is None.
    """
    if not device.is_gpu:
        return psutil.Process().memory_info().rss
    with suppress(pynvml.NVMLError):
        pynvml.nvmlInit()
        try:
            handle = pynvml.nvmlDeviceGetHandleByIndex(device.index)
            for process in pynvml.nvmlDeviceGetComputeRunningProcesses(handle):
                if process.pid == os.getpid() and process.usedGpuMemory:
                    return int(process.usedGpuMemory)
            return int(pynvml.nvmlDeviceGetMemoryInfo(handle).used)
        finally:
            pynvml.nvmlShutdown()
    return None


def file_bytes(manifest: ModelManifest, weights: Weights) -> int:
    """Returns the size of a model's graph and weights, of what is on this machine outside the cache."""
    files = model_files(manifest, weights=weights is Weights.PRETRAINED)
    found = (file.local() for file in files.values())
    return sum(path.stat().st_size for path in found if path is not None)


def release_free_memory() -> None:
    """Returns what the C library's allocator holds without use to the system, where it is glibc.

    Calls that come and go on many threads leave it spread over the allocator's arenas, several hundred MiB
    after a burst of large tensors, and glibc by itself returns only the end of each.
    """
    with suppress(AttributeError, OSError):  # another C library
        ctypes.CDLL(None).malloc_trim(0)


_IDLE_SHARE = 0.02
"""The share of one processor below which a process counts as idle."""
_WORKED_S = 0.5
"""The processor time after which there may be something to release."""


class IdleRelease:
    """Releases free memory when a process that worked has become idle, so that no request waits for it.

    Args:
        release: Releases the memory.
        clock: A monotonic clock in seconds.
        processor_clock: The processor time of the process in seconds.
    """

    def __init__(
        self,
        release: Callable[[], None] = release_free_memory,
        clock: Callable[[], float] = time.monotonic,
        processor_clock: Callable[[], float] = time.process_time,
    ) -> None:
        self._release = release
        self._clock = clock
        self._processor_clock = processor_clock
        self._checked_s, self._used_s = clock(), processor_clock()
        self._released_s = self._used_s

    def check(self) -> None:
        """Releases the memory if the process worked, and has been idle since the last check."""
        now_s, used_s = self._clock(), self._processor_clock()
        idle = used_s - self._used_s < _IDLE_SHARE * (now_s - self._checked_s)
        if idle and used_s - self._released_s > _WORKED_S:
            self._release()
            used_s = self._released_s = self._processor_clock()
        self._checked_s, self._used_s = now_s, used_s
