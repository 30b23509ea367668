"""The spans of training steps."""

from __future__ import annotations

from typing import Any

from inferometer.agent.tracing.recorder import (
    Profiler,
    SpanKind,
    SpanRecorder,
    TraceContext,
    TraceLevel,
    TraceScope,
)
from inferometer.agent.training.trainer import StepParts
from inferometer.evaluators.kinds.training.training_run import StepTracing
from inferometer.manifests.errors import PredictionError

PARTS = StepParts(forward_ns=10, backward_ns=20, communicate_ns=0, update_ns=5)


class CountingProfiler(Profiler):
    """Counts what it is asked for; ``broken`` fails to collect."""

    round_batches = 2

    def __init__(self, *, broken: bool = False) -> None:
        super().__init__(TraceLevel.FRAMEWORK_TRACE, gpu=False)
        self.calls: list[str] = []
        self._broken = broken

    def start(self) -> None:
        self.calls.append("start")

    def collect(self, recorder: SpanRecorder) -> None:
        if self._broken:
            raise PredictionError("the disk is full")
        self.calls.append(f"collect {len(self._windows)}")
        self._windows = []

    def close(self) -> None:
        self.calls.append("close")


class Collected(CountingProfiler):
    """Adds one layer when it collects."""

    collected = False

    def collect(self, recorder: SpanRecorder) -> None:
        self.collected = True
        recorder.add(SpanKind("layer", TraceLevel.FRAMEWORK_TRACE), 0, 1, 0, batch=0)


def recorder_at(level: TraceLevel) -> SpanRecorder:
    return SpanRecorder(TraceContext.new(), level, clock=lambda: 0, wall_clock=lambda: 0)


def spans(recorder: SpanRecorder) -> list[tuple[str, int, int, int, str]]:
    """Name, start, duration, batch and the parent's name of every span."""
    rows = [
        (chunk.kinds[kind].name, id_, parent, start, duration, batch)
        for chunk in recorder.chunks()
        for kind, id_, parent, start, duration, batch, _ in chunk.values()
    ]
    names = {id_: name for name, id_, *_ in rows}
    return [(name, start, long, batch, names.get(parent, "")) for name, _, parent, start, long, batch in rows]


def test_a_step_has_its_wait_its_copy_and_its_parts_one_after_the_other() -> None:
    recorder = recorder_at(TraceLevel.MODEL_TRACE)

    tracing = StepTracing(TraceScope.top(recorder), None, {"model_name": "M"})
    tracing.after_step(3, 8, (100, 110, 112, 113, 150), PARTS)

    assert spans(recorder) == [
        ("train_step", 100, 50, 3, ""),
        ("wait", 100, 10, 3, "train_step"),
        ("copy", 110, 2, 3, "train_step"),
        ("train", 113, 37, 3, "train_step"),
        ("forward", 113, 10, 3, "train"),
        ("backward", 123, 20, 3, "train"),
        ("communicate", 143, 0, 3, "train"),
        ("update", 143, 5, 3, "train"),
    ]
    (kind,) = [k for chunk in recorder.chunks() for k in chunk.kinds if k.name == "train_step"]
    assert kind.attribute("batch_size") == 8


def test_the_application_level_has_no_parts() -> None:
    recorder = recorder_at(TraceLevel.APPLICATION_TRACE)

    tracing = StepTracing(TraceScope.top(recorder), None, {})
    tracing.after_step(0, 8, (100, 110, 112, 113, 150), None)

    assert [name for name, *_ in spans(recorder)] == ["train_step", "wait", "copy"]


def collected(profiler: CountingProfiler, steps: int) -> tuple[list[str], tuple[str, ...]]:
    recorder = recorder_at(TraceLevel.FRAMEWORK_TRACE)
    tracing: Any = StepTracing(TraceScope.top(recorder), profiler, {})
    for step in range(steps):
        tracing.before_step()
        tracing.after_step(step, 8, (100, 110, 112, 113, 150), PARTS)
    tracing.collect()
    return profiler.calls, recorder.notes


def test_the_profiler_collects_in_rounds_and_what_is_left_at_the_end() -> None:
    calls, notes = collected(CountingProfiler(), 3)

    assert calls == ["start", "collect 2", "start", "collect 1"]
    assert notes == ()


def test_a_warm_up_runs_under_the_profiler_and_keeps_no_layers() -> None:
    recorder, profiler = recorder_at(TraceLevel.FRAMEWORK_TRACE), Collected()
    tracing = StepTracing(TraceScope.top(recorder).without_layers(), profiler, {})
    tracing.before_step()
    tracing.after_step(0, 8, (100, 110, 112, 113, 150), PARTS)
    tracing.collect()

    assert profiler.collected
    assert "layer" not in [name for name, *_ in spans(recorder)]
    assert "train_step" in [name for name, *_ in spans(recorder)]


def test_a_profiler_that_fails_is_a_note_of_the_trace() -> None:
    calls, notes = collected(CountingProfiler(broken=True), 1)

    assert calls == ["start", "close"]
    assert notes == ("no layers of 1 steps: the disk is full",)
