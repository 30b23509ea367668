"""How much memory this process takes on a device: what loading a model is measured by."""

from __future__ import annotations

import os
from typing import Protocol

import psutil
import pynvml

from agent.device import Device
from agent.file_locations import model_files
from agent.predictor import Weights
from manifests.schema import ModelManifest


class MemoryReading(Protocol):
    """Tells the memory that is in use."""

    def used_bytes(self, device: Device) -> int | None:
        """Returns what is in use on a device; None where that cannot be told."""
        ...


class ProcessMemory:
    """What the system says: of the CPU's memory the resident set of this process, of a GPU's what is in use.

    That of a GPU is what NVML counts for this process, or where it does not know the process, as in a
    container, what is in use on the whole GPU. GPUs are counted as NVML does, which is as CUDA does unless
    ``CUDA_VISIBLE_DEVICES`` or ``CUDA_DEVICE_ORDER`` say otherwise.
    """

    def used_bytes(self, device: Device) -> int | None:
        """Returns what is in use on a device; None without a driver for it."""
        if not device.is_gpu:
            return psutil.Process().memory_info().rss
        try:
            pynvml.nvmlInit()
        except pynvml.NVMLError:
            return None
        try:
            handle = pynvml.nvmlDeviceGetHandleByIndex(device.index)
            for process in pynvml.nvmlDeviceGetComputeRunningProcesses(handle):
                if process.pid == os.getpid() and process.usedGpuMemory:
                    return int(process.usedGpuMemory)
            return int(pynvml.nvmlDeviceGetMemoryInfo(handle).used)
        except pynvml.NVMLError:
            return None
        finally:
            pynvml.nvmlShutdown()


def file_bytes(manifest: ModelManifest, weights: Weights) -> int:
    """Returns the size of a model's graph and weights, of what is on this machine outside the cache."""
    files = model_files(manifest, weights=weights is Weights.PRETRAINED)
    found = (file.local() for file in files.values())
    return sum(path.stat().st_size for path in found if path is not None)
