"""The hardware sampler, on this machine's processor and on a fake GPU."""

from __future__ import annotations

import threading
from contextlib import closing

import pynvml
import pytest

from inferometer.agent.hardware.environment import CPU, Device, DeviceKind
from inferometer.agent.inference.run_tracing import HardwareSampler
from inferometer.agent.tracing.recorder import SpanKind, SpanRecorder, TraceContext, TraceLevel, TraceScope

GPU = Device(DeviceKind.GPU, 0)


@pytest.fixture
def scope() -> TraceScope:
    return TraceScope(SpanRecorder(TraceContext.new(), TraceLevel.FULL_TRACE), 5)


def kinds(scope: TraceScope) -> list[SpanKind]:
    return [chunk.kinds[place] for chunk in scope.recorder.chunks() for place in chunk.kind]


def test_samples_follow_each_other_without_a_gap_until_it_is_closed(scope: TraceScope) -> None:
    read_twice = threading.Event()
    reads: list[int] = []

    def read_gpu() -> dict[str, float | int]:
        reads.append(1)
        if len(reads) == 2:
            read_twice.set()
        return {"gpu_power_watts": 99.5}

    sampler = HardwareSampler(scope, GPU, interval_s=0.001, gpu_reader=read_gpu)
    sampler.start()
    assert read_twice.wait(10)
    sampler.close()
    sampler.close()

    [chunk] = scope.recorder.chunks()
    ends = chunk.start_ns + chunk.duration_ns
    assert len(chunk) == len(reads) >= 2
    assert chunk.start_ns[1:].tolist() == ends[:-1].tolist()
    assert set(chunk.parent_id.tolist()) == {5}
    first = kinds(scope)[0]
    assert first.level is TraceLevel.HARDWARE_TRACE
    assert first.attribute("gpu_power_watts") == 99.5
    memory, cpu = first.attribute("process_memory_bytes"), first.attribute("process_cpu_percent")
    assert isinstance(memory, int)
    assert memory > 1_000_000
    assert isinstance(cpu, float)


def test_even_a_short_stretch_gives_a_sample(scope: TraceScope) -> None:
    sampler = HardwareSampler(scope, CPU, interval_s=60)
    sampler.start()
    sampler.close()

    assert [kind.name for kind in kinds(scope)] == ["hardware_sample"]
    assert scope.recorder.notes == ("no figures for a GPU: the model runs on the CPU",)


def test_a_gpu_that_cannot_be_read_is_noted(scope: TraceScope, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail() -> None:
        raise pynvml.NVMLError(pynvml.NVML_ERROR_DRIVER_NOT_LOADED)

    monkeypatch.setattr(pynvml, "nvmlInit", fail)

    with closing(HardwareSampler(scope, GPU)) as sampler:
        sampler.start()

    assert "NVML cannot read it" in scope.recorder.notes[0]
    assert kinds(scope)[0].attribute("gpu_power_watts") is None


def test_closing_before_it_was_started_does_nothing(scope: TraceScope) -> None:
    HardwareSampler(scope, CPU).close()

    assert kinds(scope) == []


@pytest.mark.parametrize(
    ("visible", "index", "asked"), [("", 1, 1), ("3,5", 1, 5), ("GPU-abc, GPU-def", 0, "GPU-abc")]
)
def test_the_gpu_is_the_one_that_frameworks_number_so(
    scope: TraceScope, monkeypatch: pytest.MonkeyPatch, visible: str, index: int, asked: object
) -> None:
    opened: list[object] = []
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    monkeypatch.setattr(pynvml, "nvmlInit", lambda: None)
    monkeypatch.setattr(pynvml, "nvmlShutdown", lambda: None)
    for name in ("nvmlDeviceGetHandleByIndex", "nvmlDeviceGetHandleByUUID"):
        monkeypatch.setattr(pynvml, name, opened.append)

    HardwareSampler(scope, Device(DeviceKind.GPU, index)).close()

    assert opened == [asked]


def test_a_gpu_beyond_the_visible_ones_is_noted_and_no_other_is_read(
    scope: TraceScope, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened: list[object] = []
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3")
    monkeypatch.setattr(pynvml, "nvmlInit", lambda: None)
    monkeypatch.setattr(pynvml, "nvmlShutdown", lambda: None)
    monkeypatch.setattr(pynvml, "nvmlDeviceGetHandleByIndex", opened.append)

    HardwareSampler(scope, Device(DeviceKind.GPU, 2)).close()

    assert opened == []
    assert "no figures for gpu:2: NVML cannot read it" in scope.recorder.notes[0]
