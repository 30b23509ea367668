"""The use of GPUs, with a driver that the tests make up."""

from __future__ import annotations

from types import SimpleNamespace

import pynvml
import pytest

from inferometer.agent.hardware.conditions import GpuUseReader


def fail(*_: object) -> None:
    raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_SUPPORTED)


@pytest.fixture
def closed(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Two GPUs; the second one's handle is 1. What it has lists that the driver was left."""
    left: list[bool] = []
    answers = {
        "Init": lambda: None,
        "Shutdown": lambda: left.append(True),
        "DeviceGetCount": lambda: 2,
        "DeviceGetHandleByIndex": lambda index: index,
        "DeviceGetUtilizationRates": lambda handle: SimpleNamespace(gpu=10 * handle),
        "DeviceGetMemoryInfo": lambda handle: SimpleNamespace(used=1 << 30 + handle),
        "DeviceGetPowerUsage": lambda handle: 71_500 + handle * 1000,
    }
    for name, answer in answers.items():
        monkeypatch.setattr(pynvml, f"nvml{name}", answer)
    return left


def test_each_gpu_tells_its_figures(closed: list[bool]) -> None:
    with GpuUseReader() as reader:
        assert reader.read() == (
            {"utilization_percent": 0.0, "memory_bytes": 2.0**30, "power_watts": 71.5},
            {"utilization_percent": 10.0, "memory_bytes": 2.0**31, "power_watts": 72.5},
        )
        assert closed == []
    reader.close()
    assert closed == [True]
    assert reader.read() == ()


def test_what_a_driver_does_not_tell_is_left_out(closed: list[bool], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pynvml, "nvmlDeviceGetPowerUsage", fail)
    with GpuUseReader() as reader:
        assert [sorted(each) for each in reader.read()] == [["memory_bytes", "utilization_percent"]] * 2


def test_without_a_driver_there_is_none(closed: list[bool], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pynvml, "nvmlInit", fail)
    with GpuUseReader() as reader:
        assert reader.read() == ()
    assert closed == []
