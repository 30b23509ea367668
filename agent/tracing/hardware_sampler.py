"""The hardware sampler: samples of the processor, the memory and the GPU during predictions."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import psutil
import pynvml

from inferometer.agent.closeable import Closeable
from inferometer.agent.hardware.environment import Device
from inferometer.agent.tracing.recorder import SpanKind, TraceLevel, TraceScope

INTERVAL_S = 0.1
"""The time between two samples. A sample takes about 0.1 ms, on a thread of its own."""
NAME = "hardware_sample"
_MILLIWATTS = 1000.0


class HardwareSampler(Closeable):
    """Adds a span for each interval between two samples, from ``start`` to ``close``.

    Its attributes, each behind ``inferometer.``: ``process_cpu_percent`` (of one core, over the interval; 200
    means two whole cores), ``process_memory_bytes`` (resident, at its end), ``system_cpu_percent`` (of all
    cores), and for a GPU ``gpu_utilization_percent``, ``gpu_memory_bytes`` (of all processes),
    ``gpu_power_watts``, ``gpu_sm_clock_mhz`` and ``gpu_temperature_celsius``, as far as the driver reports
    them.

    ``gpu_reader`` reads the figures of a GPU in place of NVML.
    """

    def __init__(
        self,
        scope: TraceScope,
        device: Device,
        interval_s: float = INTERVAL_S,
        gpu_reader: Callable[[], dict[str, float | int]] | None = None,
    ) -> None:
        self._scope = scope
        self._interval_s = interval_s
        self._process = psutil.Process()
        self._gpu: _GpuReader | None = None
        self._read_gpu = gpu_reader
        if device.is_gpu and gpu_reader is None:
            try:
                self._gpu = _GpuReader(device.index)
                self._read_gpu = self._gpu.read
            except pynvml.NVMLError as error:
                scope.recorder.note(f"no figures of {device}: NVML cannot read it: {error}")
        elif not device.is_gpu:
            scope.recorder.note("no figures of a GPU: the model runs on the CPU")
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._sample, name="hardware-sampler", daemon=True)

    def start(self) -> None:
        """Starts the sampling thread."""
        self._thread.start()

    def close(self) -> None:
        """Takes a last sample and stops; calling it again does nothing."""
        self._stopping.set()
        if self._thread.ident is not None:
            self._thread.join()
        if self._gpu is not None:
            self._gpu.close()
            self._gpu = None

    def _sample(self) -> None:
        clock = self._scope.recorder.clock
        self._process.cpu_percent()  # the first call begins the interval of the next one
        psutil.cpu_percent()
        started_ns = clock()
        stopped = False
        while not stopped:
            stopped = self._stopping.wait(self._interval_s)
            figures: dict[str, float | int] = {}
            with suppress(psutil.Error):
                figures["process_cpu_percent"] = self._process.cpu_percent()
                figures["process_memory_bytes"] = self._process.memory_info().rss
                figures["system_cpu_percent"] = psutil.cpu_percent()
            if self._read_gpu is not None:
                figures |= self._read_gpu()
            ended_ns = clock()
            kind = SpanKind.of(NAME, TraceLevel.HARDWARE_TRACE, **figures)
            self._scope.add(kind, started_ns, ended_ns, thread=threading.get_native_id())
            started_ns = ended_ns


class _GpuReader:
    """One NVIDIA GPU, by its number in frameworks; raises NVMLError without a driver, or such a GPU.

    ``CUDA_VISIBLE_DEVICES`` renumbers GPUs for frameworks, but not for NVML. If GPUs differ, CUDA puts the
    fastest first unless ``CUDA_DEVICE_ORDER`` is ``PCI_BUS_ID``; this order is not reproduced here.
    """

    def __init__(self, index: int) -> None:
        pynvml.nvmlInit()
        try:
            self._handle = _handle(index, os.environ.get("CUDA_VISIBLE_DEVICES", ""))
        except BaseException:
            pynvml.nvmlShutdown()
            raise

    def read(self) -> dict[str, float | int]:
        """Returns the available figures of this GPU."""
        readers: dict[str, Callable[[], float | int]] = {
            "gpu_utilization_percent": lambda: int(pynvml.nvmlDeviceGetUtilizationRates(self._handle).gpu),
            "gpu_memory_bytes": lambda: int(pynvml.nvmlDeviceGetMemoryInfo(self._handle).used),
            "gpu_power_watts": lambda: pynvml.nvmlDeviceGetPowerUsage(self._handle) / _MILLIWATTS,
            "gpu_sm_clock_mhz": lambda: int(
                pynvml.nvmlDeviceGetClockInfo(self._handle, pynvml.NVML_CLOCK_SM)
            ),
            "gpu_temperature_celsius": lambda: int(
                pynvml.nvmlDeviceGetTemperature(self._handle, pynvml.NVML_TEMPERATURE_GPU)
            ),
        }
        figures = {}
        for name, read in readers.items():
            with suppress(pynvml.NVMLError):
                figures[name] = read()
        return figures

    def close(self) -> None:
        """Closes the connection to the driver."""
        pynvml.nvmlShutdown()


def _handle(index: int, visible: str) -> Any:
    """NVML's handle of the GPU that is number ``index`` among the visible ones."""
    names = [name.strip() for name in visible.split(",") if name.strip()]
    if index >= len(names):
        return pynvml.nvmlDeviceGetHandleByIndex(index)
    if names[index].isdecimal():
        return pynvml.nvmlDeviceGetHandleByIndex(int(names[index]))
    return pynvml.nvmlDeviceGetHandleByUUID(names[index])
