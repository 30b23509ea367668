"""What profilers print on a GPU as spans: a recorded PyTorch profile, and ONNX Runtime's documented kernels.

No GPU is needed: only the object that starts the framework's own profiler is replaced.
"""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from inferometer.agent.frameworks.onnxruntime.profiler import ONNXRuntimeProfiler
from inferometer.agent.frameworks.pytorch import profiler as pytorch_profiler
from inferometer.agent.frameworks.pytorch.profiler import PyTorchProfiler
from inferometer.agent.tracing.recorder import (
    PredictWindow,
    Profiler,
    SpanKind,
    SpanRecorder,
    TraceContext,
    TraceLevel,
)

RECORDED = Path(__file__).parents[1] / "data" / "gpu_profiles" / "pytorch.json"
THREAD, STREAM = 1, 7
MIB = 1024 * 1024


class Event:
    """One event as Kineto gives it to Python, from an event of a Chrome trace; times in us.

    It has no ``activity_type``, as in PyTorch before 2.12.
    """

    def __init__(self, origin_ns: int, cat: str, name: str, ts: int, dur: int, **arguments: Any) -> None:
        self._cat, self._name, self._arguments = cat, name, arguments
        self._start_ns, self._duration_ns = origin_ns + ts * 1000, dur * 1000

    def name(self) -> str:
        return self._name

    def scope(self) -> int:
        return 7 if self._cat == "user_annotation" else 0

    def device_type(self) -> Any:
        kinds = torch.autograd.DeviceType  # type: ignore[attr-defined]
        return kinds.CUDA if "device" in self._arguments else kinds.CPU

    def start_thread_id(self) -> int:
        return THREAD

    def start_ns(self) -> int:
        return self._start_ns

    def duration_ns(self) -> int:
        return self._duration_ns

    def end_ns(self) -> int:
        return self._start_ns + self._duration_ns

    def correlation_id(self) -> int:
        return int(self._arguments.get("correlation", self._arguments.get("External id", 0)))

    def device_index(self) -> int:
        return int(self._arguments.get("device", 0))

    def device_resource_id(self) -> int:
        return int(self._arguments.get("stream", THREAD))

    def shapes(self) -> list[list[int]]:
        return list(self._arguments.get("Input Dims", []))

    def nbytes(self) -> int:
        return int(self._arguments["bytes"])


def module(name: str, ts: int, end: int) -> dict[str, Any]:
    return {"cat": "user_annotation", "name": f"inferometer/{name}", "ts": ts, "dur": end - ts}


def memory(ts: int, size: int, **where: int) -> dict[str, Any]:
    """An allocation, which carries the device that has the memory."""
    return {"cat": "cpu_instant_event", "name": "[memory]", "ts": ts, "dur": 0, "bytes": size, **where}


BESIDE = (
    # the modules of the model, as the profiler's hooks mark them
    *(module("/", -5, 1100), module("conv1", -2, 420), module("bn1", 460, 820)),
    *(module("relu", 845, 930), module("maxpool", 960, 1090)),
    # the convolution's output, and its workspace, which is freed again
    *(memory(75, 98 * MIB, device=0), memory(135, 2 * MIB, device=0), memory(390, -2 * MIB, device=0)),
    memory(76, 512),  # on the host
    # what predict ends with
    {"cat": "cuda_runtime", "name": "cudaDeviceSynchronize", "ts": 1120, "dur": 800, "correlation": 40000},
    # the copy of the input, which no operator made
    {"cat": "cuda_runtime", "name": "cudaMemcpyAsync", "ts": -40, "dur": 9, "correlation": 32200},
    {
        "cat": "gpu_memcpy",
        "name": "Memcpy HtoD (Pageable -> Device)",
        "ts": -35,
        "dur": 12,
        "device": 0,
        "stream": STREAM,
        "correlation": 32200,
    },
)


@pytest.fixture
def recorder() -> SpanRecorder:
    return SpanRecorder(TraceContext.new(), TraceLevel.FULL_TRACE)


def spans(recorder: SpanRecorder) -> list[tuple[SpanKind, int, int, int, int]]:
    """Kind, id, parent, start and end of each span; times in us since the first clock reading."""
    found = []
    for chunk in recorder.chunks():
        for kind, id_, parent, start, duration in chunk.values(
            "kind", "span_id", "parent_id", "start_ns", "duration_ns"
        ):
            found.append((chunk.kinds[kind], id_, parent, start, start + duration))
    return found


@pytest.fixture
def profiled(monkeypatch: pytest.MonkeyPatch, recorder: SpanRecorder) -> dict[str, Any]:
    """The spans of the recorded profile: the layers by name, and below each what belongs to it."""
    origin_ns = recorder.clock() + recorder.epoch_offset_ns
    rows = [*json.loads(RECORDED.read_text("utf-8"))["events"], *BESIDE]
    events = [Event(origin_ns, **row) for row in rows]
    kineto = SimpleNamespace(events=lambda: events)
    started: list[Any] = []

    def profile(*, activities: list[Any], **_: Any) -> Any:
        started.extend(activities)
        nothing = lambda: None  # noqa: E731
        return SimpleNamespace(start=nothing, stop=nothing, profiler=SimpleNamespace(kineto_results=kineto))

    monkeypatch.setattr(pytorch_profiler, "profile", profile)
    profiler: Profiler = PyTorchProfiler(torch.nn.Identity(), TraceLevel.FULL_TRACE, gpu=True)
    profiler.start()
    assert torch.profiler.ProfilerActivity.CUDA in started
    start_ns = origin_ns - recorder.epoch_offset_ns
    window = PredictWindow(recorder.new_id(), start_ns - 50_000, start_ns + 2_000_000, batch=0)
    profiler.predicted(window)
    profiler.collect(recorder)
    profiler.close()
    found: dict[str, Any] = {"notes": recorder.notes, "window": window.span_id, "order": []}
    by_id = {window.span_id: found}
    zero_ns = start_ns + recorder.epoch_offset_ns
    for kind, id_, parent, begin, end in spans(recorder):
        span = {"kind": kind, "us": ((begin - zero_ns) // 1000, (end - zero_ns) // 1000)}
        by_id[id_] = span
        by_id[parent][kind.name, span["us"][0]] = span
        if parent == window.span_id:
            found["order"].append(kind.name)
    return found


def test_a_layer_lasts_from_its_first_kernel_to_its_last(profiled: dict[str, Any]) -> None:
    assert profiled["conv1", 347]["us"] == (347, 1007)
    assert profiled["bn1", 1011]["us"] == (1011, 1438)
    assert profiled["relu", 1439]["us"] == (1439, 1689)
    assert profiled["maxpool", 1691]["us"] == (1691, 1914)
    assert profiled["conv1", 347]["kind"].attribute("layer_type") == "aten::conv2d"
    assert profiled["conv1", 347]["kind"].attribute("input_shapes") == ("32x3x224x224", "64x3x7x7")


def test_kernels_and_the_calls_that_started_them_lie_below_the_layer(profiled: dict[str, Any]) -> None:
    convolution = profiled["conv1", 347]
    kernel = convolution["volta_scudnn_128x64_relu_medium_nn_v1", 371]
    assert kernel["us"] == (371, 1007)
    attributes = ("activity", "correlation_id", "device", "stream")
    assert [kernel["kind"].attribute(name) for name in attributes] == ["kernel", 32267, 0, STREAM]
    inner = convolution["aten::convolution", 11]  # on the host, before its layer
    assert inner["kind"].level is TraceLevel.ML_LIBRARY_TRACE
    call = inner["aten::_convolution", 21]["aten::cudnn_convolution", 37]["aten::cudnn_convolution", 58]
    assert call["cudaLaunchKernel", 354]["kind"].attribute("correlation_id") == 32267
    assert profiled["notes"] == ()


def test_memory_is_that_of_the_device(profiled: dict[str, Any]) -> None:
    convolution = profiled["conv1", 347]["kind"]
    assert convolution.attribute("allocated_bytes") == 100 * MIB
    assert convolution.attribute("peak_bytes") == 100 * MIB


def test_waiting_for_the_device_is_no_layer_and_a_copy_is_one(profiled: dict[str, Any]) -> None:
    assert profiled["order"][0] == "cudaMemcpyAsync"
    copy = profiled["cudaMemcpyAsync", -35]
    assert copy["kind"].level is TraceLevel.FRAMEWORK_TRACE
    assert copy["us"] == (-35, -23)
    assert copy["Memcpy HtoD (Pageable -> Device)", -35]["kind"].attribute("activity") == "gpu_memcpy"
    wait = profiled["cudaDeviceSynchronize", 1120]
    assert wait["kind"].level is TraceLevel.SYSTEM_LIBRARY_TRACE
    layers = [
        span["kind"].attribute("layer_index")
        for key, span in profiled.items()
        if isinstance(key, tuple) and span["kind"].level is TraceLevel.FRAMEWORK_TRACE
    ]
    assert sorted(layers) == list(range(6))


def test_kernels_of_onnx_runtime_follow_the_node_that_started_them(
    recorder: SpanRecorder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As the documentation of its profiling tools shows them; a node of the host has none."""
    node = {"cat": "Node", "ph": "X", "pid": 1, "tid": 1}
    kernel = {"cat": "Kernel", "ph": "X", "pid": 1, "tid": 1}
    events = [
        {**node, "name": "Conv_1_kernel_time", "ts": 10, "dur": 17, "args": {"op_name": "Conv"}},
        {**kernel, "name": "implicit_gemm", "ts": 20, "dur": 33, "args": {"stream": "7", "grid_x": "4"}},
        {**kernel, "name": "add_bias", "ts": 53, "dur": 5, "args": {"stream": "7", "grid_x": "4"}},
        {**node, "name": "Shape_2_kernel_time", "ts": 30, "dur": 2, "args": {"op_name": "Shape"}},
        {"cat": "Session", "ph": "X", "name": "model_run", "ts": 5, "dur": 60, "args": {}},
    ]
    path = tmp_path / "profile.json"
    path.write_text(json.dumps(events))
    began_ns = recorder.clock()
    session = SimpleNamespace(
        get_profiling_start_time_ns=lambda: began_ns + recorder.epoch_offset_ns,
        end_profiling=lambda: str(path),
    )
    sessions = SimpleNamespace(
        write_graph=lambda folder: folder, open_profiled=lambda *_: session, use=lambda _: None
    )
    profiler = ONNXRuntimeProfiler(sessions, TraceLevel.FULL_TRACE, gpu=True)
    profiler.start()
    profiler.predicted(PredictWindow(recorder.new_id(), began_ns + 5000, began_ns + 65_000, batch=0))
    profiler.collect(recorder)
    profiler.close()

    first_ns = began_ns + recorder.epoch_offset_ns
    rows = [
        (kind.name, kind.level, (start - first_ns) // 1000, (end - first_ns) // 1000, parent)
        for kind, _, parent, start, end in spans(recorder)
    ]
    layer, system = TraceLevel.FRAMEWORK_TRACE, TraceLevel.SYSTEM_LIBRARY_TRACE
    assert [row[:4] for row in rows] == [
        ("Conv_1", layer, 10, 27),
        ("implicit_gemm", system, 20, 53),
        ("add_bias", system, 53, 58),
        ("Shape_2", layer, 30, 32),
    ]
    assert not [note for note in recorder.notes if "kernels" in note]
