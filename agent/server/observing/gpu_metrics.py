"""What the NVIDIA driver says of the GPUs, at each scrape."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from typing import Any

import pynvml
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

_LABELS = ("gpu", "uuid", "name")
_FIGURES: tuple[tuple[str, str, Callable[[Any], float]], ...] = (
    (
        "inferscope_gpu_utilization_ratio",
        "Share of the last second or so in which the GPU was at work, 0 to 1, for whatever process.",
        lambda gpu: pynvml.nvmlDeviceGetUtilizationRates(gpu).gpu / 100,
    ),
    (
        "inferscope_gpu_memory_used_bytes",
        "The GPU's memory that all processes hold.",
        lambda gpu: pynvml.nvmlDeviceGetMemoryInfo(gpu).used,
    ),
    (
        "inferscope_gpu_memory_total_bytes",
        "The GPU's memory.",
        lambda gpu: pynvml.nvmlDeviceGetMemoryInfo(gpu).total,
    ),
    (
        "inferscope_gpu_power_watts",
        "What the GPU draws.",
        lambda gpu: pynvml.nvmlDeviceGetPowerUsage(gpu) / 1000,
    ),
    (
        "inferscope_gpu_temperature_celsius",
        "The GPU's temperature.",
        lambda gpu: pynvml.nvmlDeviceGetTemperature(gpu, pynvml.NVML_TEMPERATURE_GPU),
    ),
)


class GpuMetrics(Collector):
    """A sample a GPU of each figure that its driver tells; none where there is no driver.

    The label ``gpu`` is the driver's number, which ``CUDA_VISIBLE_DEVICES`` does not change.
    """

    def __init__(self) -> None:
        self._has_driver = False
        with suppress(pynvml.NVMLError):
            pynvml.nvmlInit()  # once: it takes long
            self._has_driver = True

    def describe(self) -> Iterable[Metric]:
        """The metrics' names."""
        return [GaugeMetricFamily(name, help_, labels=_LABELS) for name, help_, _ in _FIGURES]

    def collect(self) -> Iterator[Metric]:
        """The figures now."""
        gpus = list(self._gpus()) if self._has_driver else []
        for name, help_, read in _FIGURES:
            family = GaugeMetricFamily(name, help_, labels=_LABELS)
            for labels, gpu in gpus:
                with suppress(pynvml.NVMLError):  # a GPU need not tell everything
                    family.add_metric(labels, read(gpu))
            yield family

    def _gpus(self) -> Iterator[tuple[tuple[str, str, str], Any]]:
        with suppress(pynvml.NVMLError):
            for index in range(pynvml.nvmlDeviceGetCount()):
                with suppress(pynvml.NVMLError):  # one that is lost does not hide the others
                    gpu = pynvml.nvmlDeviceGetHandleByIndex(index)
                    labels = (str(index), pynvml.nvmlDeviceGetUUID(gpu), pynvml.nvmlDeviceGetName(gpu))
                    yield labels, gpu
