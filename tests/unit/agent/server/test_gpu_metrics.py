"""GPU metrics, from a fake driver."""

from __future__ import annotations

from types import SimpleNamespace

import pynvml
import pytest

from inferometer.agent.server.metrics import GpuMetrics

GIB = 1024**3


@pytest.fixture
def driver(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two GPUs; the second one does not tell its power."""

    def power(gpu: int) -> int:
        if gpu == 1:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_SUPPORTED)
        return 350_500

    answers = {
        "nvmlInit": lambda: None,
        "nvmlDeviceGetCount": lambda: 2,
        "nvmlDeviceGetHandleByIndex": lambda index: index,
        "nvmlDeviceGetUUID": lambda gpu: f"GPU-{gpu}",
        "nvmlDeviceGetName": lambda _: "H100",
        "nvmlDeviceGetUtilizationRates": lambda gpu: SimpleNamespace(gpu=25 * (gpu + 1)),
        "nvmlDeviceGetMemoryInfo": lambda gpu: SimpleNamespace(used=gpu * GIB, total=80 * GIB),
        "nvmlDeviceGetPowerUsage": power,
        "nvmlDeviceGetTemperature": lambda gpu, _: 40 + gpu,
    }
    for name, answer in answers.items():
        monkeypatch.setattr(pynvml, name, answer)


def samples(metrics: GpuMetrics) -> dict[tuple[str, str], float]:
    return {(s.name, s.labels["gpu"]): s.value for family in metrics.collect() for s in family.samples}


@pytest.mark.usefixtures("driver")
def test_each_gpu_has_its_figures_in_base_units() -> None:
    found = samples(GpuMetrics())
    assert found["inferometer_gpu_utilization_ratio", "0"] == 0.25
    assert found["inferometer_gpu_utilization_ratio", "1"] == 0.5
    assert found["inferometer_gpu_memory_used_bytes", "1"] == GIB
    assert found["inferometer_gpu_memory_total_bytes", "0"] == 80 * GIB
    assert found["inferometer_gpu_power_watts", "0"] == 350.5
    assert found["inferometer_gpu_temperature_celsius", "1"] == 41


@pytest.mark.usefixtures("driver")
def test_figure_that_a_gpu_does_not_tell_is_left_out() -> None:
    assert ("inferometer_gpu_power_watts", "1") not in samples(GpuMetrics())


def test_without_a_driver_there_are_names_and_no_figures(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse() -> None:
        raise pynvml.NVMLError(pynvml.NVML_ERROR_LIBRARY_NOT_FOUND)

    monkeypatch.setattr(pynvml, "nvmlInit", refuse)
    metrics = GpuMetrics()
    assert samples(metrics) == {}
    assert len(list(metrics.collect())) == 5
