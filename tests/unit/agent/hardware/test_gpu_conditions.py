"""The counters of a GPU, with a driver that the tests make up."""

from __future__ import annotations

import os
from types import SimpleNamespace
from typing import Any

import pynvml
import pytest

from inferometer.agent.hardware.conditions import GpuCounters, GpuReader
from inferometer.agent.hardware.environment import CPU, Device, DeviceKind

GPU = Device(DeviceKind.GPU, 1)


@pytest.fixture
def driver(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """What the driver answers, by its function; what it is asked for is in ``handles``."""
    answers: dict[str, Any] = {
        "Init": None,
        "Shutdown": None,
        "DeviceGetCurrentClocksThrottleReasons": pynvml.nvmlClocksThrottleReasonSwPowerCap,
        "DeviceGetClockInfo": 1410,
        "DeviceGetMaxClockInfo": 1980,
        "DeviceGetViolationStatus": SimpleNamespace(violationTime=7),
        "DeviceGetComputeRunningProcesses": [SimpleNamespace(pid=os.getpid()), SimpleNamespace(pid=1)],
        "handles": [],
    }

    def give(name: str) -> Any:
        def call(*given: Any) -> Any:
            if name.startswith("DeviceGetHandle"):
                answers["handles"].append(given[0])
                return object()
            if isinstance(answers[name], Exception):
                raise answers[name]
            return answers[name]

        return call

    for name in [*answers, "DeviceGetHandleByIndex", "DeviceGetHandleByUUID"]:
        if name != "handles":
            monkeypatch.setattr(pynvml, f"nvml{name}", give(name))
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    return answers


def read(device: Device = GPU) -> GpuCounters | None:
    with GpuReader(device) as reader:
        return reader.read()


def test_what_the_driver_tells(driver: dict[str, Any]) -> None:
    assert read() == GpuCounters(1410, 1980, False, 7, 7, 1)
    assert driver["handles"] == [1]


def test_of_several_gpus_the_worst_counts_and_the_mean_of_times(
    driver: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pynvml, "nvmlDeviceGetHandleByIndex", int)
    of_gpus = {
        "ClockInfo": lambda gpu, _: 1410 - gpu,
        "CurrentClocksThrottleReasons": lambda gpu: pynvml.nvmlClocksThrottleReasonHwSlowdown * (gpu == 2),
        "ViolationStatus": lambda gpu, _: SimpleNamespace(violationTime=10 * gpu),
        "ComputeRunningProcesses": lambda gpu: [
            SimpleNamespace(pid=each) for each in (os.getpid(), 1, 2)[: gpu + 1]
        ],
    }
    for name, answer in of_gpus.items():
        monkeypatch.setattr(pynvml, f"nvmlDeviceGet{name}", answer)

    assert read(Device.gpus("0,2,0,2")) == GpuCounters(1408, 1980, True, 10, 10, 2)
    # each counts once, however many instances it has
    assert read(Device.gpus("0,0,1")) == GpuCounters(1409, 1980, False, 5, 5, 1)


def test_gpus_that_tell_nothing_are_there_nevertheless(driver: dict[str, Any]) -> None:
    for name in [name for name in driver if name.startswith("DeviceGet")]:
        driver[name] = pynvml.NVMLError(pynvml.NVML_ERROR_NOT_SUPPORTED)

    assert read(Device.gpus("0,1")) == GpuCounters()


@pytest.mark.parametrize(
    ("reason", "slowed"),
    [
        ("HwThermalSlowdown", True),
        ("SwThermalSlowdown", True),
        ("HwPowerBrakeSlowdown", True),
        ("GpuIdle", False),
    ],
)
def test_heat_and_power_supply_slow_it_down(driver: dict[str, Any], reason: str, slowed: bool) -> None:
    driver["DeviceGetCurrentClocksThrottleReasons"] = getattr(pynvml, f"nvmlClocksThrottleReason{reason}")

    found = read()

    assert found is not None
    assert found.slowdown is slowed


def test_what_the_driver_does_not_support_is_not_known(driver: dict[str, Any]) -> None:
    not_supported = pynvml.NVMLError(pynvml.NVML_ERROR_NOT_SUPPORTED)
    for name in ("DeviceGetViolationStatus", "DeviceGetComputeRunningProcesses"):
        driver[name] = not_supported

    assert read() == GpuCounters(1410, 1980, False, None, None, None)


def test_in_a_container_one_of_the_processes_is_this_one(driver: dict[str, Any]) -> None:
    driver["DeviceGetComputeRunningProcesses"] = [SimpleNamespace(pid=-1)]

    found = read()

    assert found is not None
    assert found.other_processes == 0


def test_the_gpu_is_counted_as_frameworks_see_it(
    driver: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3, GPU-abc")

    read()
    read(Device(DeviceKind.GPU, 0))

    assert driver["handles"] == ["GPU-abc", 3]


def test_a_gpu_whose_name_is_no_text_is_not_known(
    driver: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "\udcff")
    monkeypatch.setattr(pynvml, "nvmlDeviceGetHandleByUUID", str.encode)

    assert read(Device(DeviceKind.GPU, 0)) is None


def test_without_a_driver_or_on_the_cpu_nothing_is_known(driver: dict[str, Any]) -> None:
    assert read(CPU) is None
    driver["Init"] = pynvml.NVMLError(pynvml.NVML_ERROR_LIBRARY_NOT_FOUND)
    assert read() is None
