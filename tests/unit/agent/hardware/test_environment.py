"""The environment record: correct on this machine, with or without a GPU."""

from __future__ import annotations

import json
import os
import platform
import socket
from dataclasses import asdict
from types import SimpleNamespace

import pynvml
import pytest

from inferometer import agent
from inferometer.agent.hardware.environment import (
    FrameworkDetails,
    Gpu,
    container_architecture,
    read_environment,
    read_governor,
    usable_cores,
)


def test_records_this_machine():
    environment = read_environment({})
    assert environment.hostname == socket.gethostname()
    assert environment.architecture == platform.machine()
    assert environment.python_version == platform.python_version()
    assert environment.inferometer_version == agent.__version__
    assert environment.kernel == platform.release()
    assert environment.operating_system
    assert 1 <= environment.usable_cores <= environment.logical_cores
    assert environment.physical_cores is None or environment.physical_cores <= environment.logical_cores
    assert environment.memory_bytes > 64 * 1024 * 1024


def test_records_the_installed_frameworks_only():
    environment = read_environment({"PyTorch": "2.13.0+cpu", "MXNet": None})
    assert environment.frameworks == {"PyTorch": "2.13.0+cpu"}


def test_records_the_variables_that_set_threads_where_they_are_set(monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    monkeypatch.delenv("MKL_NUM_THREADS", raising=False)
    monkeypatch.setenv("SECRET_TOKEN", "not to be recorded")
    variables = read_environment({}).variables
    assert variables["OMP_NUM_THREADS"] == "3"
    assert "MKL_NUM_THREADS" not in variables
    assert "SECRET_TOKEN" not in variables


def test_records_what_changes_how_a_framework_counts_devices_and_limits_threads(monkeypatch):
    wanted = {"MXNET_OMP_MAX_THREADS": "1", "CUDA_DEVICE_ORDER": "PCI_BUS_ID", "OMP_WAIT_POLICY": "ACTIVE"}
    for name, value in wanted.items():
        monkeypatch.setenv(name, value)
    assert wanted.items() <= read_environment({}).variables.items()


def test_records_what_images_are_decoded_with():
    assert read_environment({}, {"Pillow": "11.0.0"}).image_libraries == {"Pillow": "11.0.0"}
    assert read_environment({}).image_libraries == {}


def test_records_what_the_framework_tells_of_itself():
    details = FrameworkDetails({"oneDNN": "3.12"}, "AVX2", {"TF32 in convolutions": "on"})

    environment = read_environment({}, details=details)
    assert (environment.libraries, environment.build) == ({"oneDNN": "3.12"}, "AVX2")
    assert environment.settings == {"memory allocator": "default", "TF32 in convolutions": "on"}

    silent = read_environment({})
    assert (silent.libraries, silent.build, silent.settings) == ({}, "", {"memory allocator": "default"})


@pytest.mark.skipif(not hasattr(os, "sched_getaffinity"), reason="this system has no processor affinity")
def test_the_governor_is_that_of_the_processors_that_may_be_used(tmp_path, monkeypatch):
    for number, governor in enumerate(("powersave", "performance", "schedutil", "performance")):
        (tmp_path / f"cpu{number}" / "cpufreq").mkdir(parents=True)
        (tmp_path / f"cpu{number}" / "cpufreq" / "scaling_governor").write_text(f"{governor}\n")
    for usable, governors in ({1, 3}, "performance"), ({0, 1}, "performance, powersave"), ({9}, ""):
        monkeypatch.setattr(os, "sched_getaffinity", lambda _, usable=usable: usable)
        assert read_governor(tmp_path) == governors


@pytest.mark.parametrize(
    ("machine", "name"),
    [("x86_64", "amd64"), ("AMD64", "amd64"), ("amd64", "amd64"), ("aarch64", "arm64"), ("arm64", "arm64"),
     ("ppc64le", "ppc64le"), ("riscv64", "riscv64"), ("", "")],
)  # fmt: skip
def test_architectures_are_called_as_container_images_call_them(machine, name):
    assert container_architecture(machine) == name


def test_can_be_written_as_json():
    assert json.loads(json.dumps(asdict(read_environment({}))))["architecture"] == platform.machine()


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="this system has no processor affinity")
def test_usable_cores_are_those_of_the_process():
    before = os.sched_getaffinity(0)
    try:
        os.sched_setaffinity(0, {min(before)})
        assert usable_cores() == 1
    finally:
        os.sched_setaffinity(0, before)
    assert usable_cores() == len(before)


class FakeDriver:
    """Stands for the NVIDIA management library, with two GPUs."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.open = 0
        for name in (
            "nvmlInit",
            "nvmlShutdown",
            "nvmlDeviceGetCount",
            "nvmlDeviceGetHandleByIndex",
            "nvmlDeviceGetName",
            "nvmlDeviceGetMemoryInfo",
            "nvmlDeviceGetUUID",
            "nvmlSystemGetDriverVersion",
        ):
            monkeypatch.setattr(pynvml, name, getattr(self, name))

    def nvmlInit(self) -> None:
        self.open += 1

    def nvmlShutdown(self) -> None:
        self.open -= 1

    def nvmlDeviceGetCount(self) -> int:
        return 2

    def nvmlDeviceGetHandleByIndex(self, index: int) -> int:
        return index

    def nvmlDeviceGetName(self, handle: int) -> str:
        return "NVIDIA H100"

    def nvmlDeviceGetMemoryInfo(self, handle: int) -> SimpleNamespace:
        return SimpleNamespace(total=80_000_000_000)

    def nvmlDeviceGetUUID(self, handle: int) -> str:
        return f"GPU-{handle}"

    def nvmlSystemGetDriverVersion(self) -> str:
        return "550.54"


def test_records_each_gpu_and_the_driver(monkeypatch):
    driver = FakeDriver(monkeypatch)
    environment = read_environment({})
    assert environment.gpus == (
        Gpu("NVIDIA H100", 80_000_000_000, "GPU-0"),
        Gpu("NVIDIA H100", 80_000_000_000, "GPU-1"),
    )
    assert environment.gpu_driver == "550.54"
    assert driver.open == 0, "the driver is let go"


def test_a_machine_without_a_driver_has_no_gpu(monkeypatch):
    def no_driver() -> None:
        raise pynvml.NVMLError(pynvml.NVML_ERROR_LIBRARY_NOT_FOUND)

    monkeypatch.setattr(pynvml, "nvmlInit", no_driver)
    environment = read_environment({})
    assert (environment.gpus, environment.gpu_driver) == ((), None)


def test_a_driver_that_fails_is_let_go(monkeypatch):
    driver = FakeDriver(monkeypatch)

    def lost(handle: int) -> str:
        raise pynvml.NVMLError(pynvml.NVML_ERROR_GPU_IS_LOST)

    monkeypatch.setattr(pynvml, "nvmlDeviceGetName", lost)
    environment = read_environment({})
    assert (environment.gpus, environment.gpu_driver) == ((), None)
    assert driver.open == 0
