"""How the memory of a loaded model is measured."""

import os
import subprocess
import sys
from types import SimpleNamespace

import pynvml
import pytest
import torch

from inferometer.agent.frameworks.pytorch.predictor import PyTorchPredictor
from inferometer.agent.hardware.environment import Device, DeviceKind, Weights
from inferometer.agent.serving.served_models import file_bytes, used_bytes
from inferometer.manifests.loader import load_manifest

GPU = Device(DeviceKind.GPU, 1)
MIB = 1024 * 1024


@pytest.fixture
def driver(monkeypatch):
    """A driver that has a GPU 1; ``processes`` use it."""
    processes: list[SimpleNamespace] = []
    asked: list[int] = []

    def handle(index):
        asked.append(index)
        return "handle"

    for name, answer in {
        "nvmlInit": lambda: None,
        "nvmlShutdown": lambda: None,
        "nvmlDeviceGetHandleByIndex": handle,
        "nvmlDeviceGetComputeRunningProcesses": lambda _: processes,
        "nvmlDeviceGetMemoryInfo": lambda _: SimpleNamespace(used=700 * MIB, free=300 * MIB),
    }.items():
        monkeypatch.setattr(pynvml, name, answer)
    return SimpleNamespace(processes=processes, asked=asked)


def test_pytorch_counts_its_memory_of_a_gpu_and_limits_it(monkeypatch):
    fractions, reset = [], []
    for name, answer in {
        "memory_allocated": lambda index: 1,
        "memory_reserved": lambda index: 2,
        "max_memory_allocated": lambda index: 3,
        "max_memory_reserved": lambda index: 4,
        "reset_peak_memory_stats": reset.append,
        "mem_get_info": lambda index: (300, 1000),
        "set_per_process_memory_fraction": lambda fraction, index: fractions.append((fraction, index)),
    }.items():
        monkeypatch.setattr(torch.cuda, name, answer)

    assert PyTorchPredictor.read_device_memory(1) == {
        "DeviceAllocated": 1,
        "DeviceReserved": 2,
        "DeviceAllocatedPeak": 3,
        "DeviceReservedPeak": 4,
    }
    assert reset == [1]
    for limit in (250, 2000, -5):  # the last of a limit that is less than the context
        PyTorchPredictor.limit_device_memory(1, limit)
    assert fractions == [(0.25, 1), (1.0, 1), (0.0, 1)]


HOLDS_64_MIB = """
from inferometer.agent.hardware.environment import CPU
from inferometer.agent.serving.served_models import used_bytes

before = used_bytes(CPU)
held = b"1" * (64 << 20)
print(used_bytes(CPU) - before)
"""


def test_memory_of_the_processor_is_what_this_process_holds():
    # a process of its own: in this one, threads that earlier tests left give memory back meanwhile
    done = subprocess.run([sys.executable, "-c", HOLDS_64_MIB], capture_output=True, text=True, check=True)
    assert 56 * MIB < int(done.stdout) < 96 * MIB


def test_memory_of_a_gpu_is_what_this_process_uses_of_it(driver):
    driver.processes += [
        SimpleNamespace(pid=os.getpid() + 1, usedGpuMemory=500 * MIB),
        SimpleNamespace(pid=os.getpid(), usedGpuMemory=200 * MIB),
    ]

    assert used_bytes(GPU) == 200 * MIB
    assert driver.asked == [1]


def test_the_gpu_is_the_one_that_frameworks_see(driver, monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "5,3")
    used_bytes(GPU)

    assert driver.asked == [3]


def test_memory_of_a_gpu_is_all_that_is_used_where_the_driver_does_not_know_the_process(driver):
    driver.processes += [SimpleNamespace(pid=os.getpid() + 1, usedGpuMemory=None)]

    assert used_bytes(GPU) == 700 * MIB


def test_memory_of_a_gpu_is_not_known_without_a_driver(monkeypatch):
    def fail():
        raise pynvml.NVMLError(pynvml.NVML_ERROR_LIBRARY_NOT_FOUND)

    monkeypatch.setattr(pynvml, "nvmlInit", fail)

    assert used_bytes(GPU) is None


def test_files_that_a_model_is_loaded_from_are_counted(tmp_path):
    (tmp_path / "weights.pt").write_bytes(bytes(1234))
    path = tmp_path / "model.yml"
    path.write_text(
        'name: M\nframework: {name: PyTorch, version: "*"}\n'
        "inputs: [{type: tensor, parameters: {dimensions: [2]}}]\noutput: {type: raw}\n"
        "model: {architecture: x, weights_path: weights.pt}\n"
    )
    manifest = load_manifest(path)

    assert file_bytes(manifest, Weights.PRETRAINED) == 1234
    assert file_bytes(manifest, Weights.RANDOM) == 0
