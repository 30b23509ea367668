"""How busy the GPUs of this machine are, as NVIDIA's driver tells it."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pynvml

from inferometer.agent.closeable import Closeable

_MILLIWATTS = 1000.0


class GpuUseReader(Closeable):
    """Reads use, memory and power of every GPU of this machine; without a GPU or a driver, of none.

    ``CUDA_VISIBLE_DEVICES`` does not matter: the order is that of the driver, and what another process does
    on a GPU counts too.
    """

    def __init__(self) -> None:
        self._handles: list[Any] = []
        self._open = False
        with suppress(pynvml.NVMLError):
            pynvml.nvmlInit()
            self._open = True
            count = pynvml.nvmlDeviceGetCount()
            self._handles = [pynvml.nvmlDeviceGetHandleByIndex(index) for index in range(count)]

    def read(self) -> tuple[dict[str, float], ...]:
        """Reads the figures of each GPU, as far as its driver tells them.

        They are ``utilization_percent`` (the part of the driver's last period in which a kernel ran),
        ``memory_bytes`` (of all processes) and ``power_watts``.
        """
        return tuple(_figures(handle) for handle in self._handles)

    def close(self) -> None:
        """Leaves the driver; calling it again does nothing."""
        if self._open:
            self._open, self._handles = False, []
            with suppress(pynvml.NVMLError):
                pynvml.nvmlShutdown()


def _figures(handle: Any) -> dict[str, float]:
    readers: dict[str, Callable[[], float]] = {
        "utilization_percent": lambda: float(pynvml.nvmlDeviceGetUtilizationRates(handle).gpu),
        "memory_bytes": lambda: float(pynvml.nvmlDeviceGetMemoryInfo(handle).used),
        "power_watts": lambda: pynvml.nvmlDeviceGetPowerUsage(handle) / _MILLIWATTS,
    }
    found = {}
    for name, read in readers.items():
        with suppress(pynvml.NVMLError):
            found[name] = read()
    return found
