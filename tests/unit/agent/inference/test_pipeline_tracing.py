"""The spans that a pipeline records, and when it uses the framework's profiler."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from inferometer.agent.tracing.recorder import (
    PredictWindow,
    Profiler,
    SpanKind,
    SpanRecorder,
    TraceContext,
    TraceLevel,
    TraceScope,
)
from inferometer.manifests.errors import PredictionError
from tests.unit.agent.inference.pipeline_fakes import EchoPredictor, failures, inputs, opened

LAYER = SpanKind.of("layer", TraceLevel.FRAMEWORK_TRACE, layer_index=0)


class FakeProfiler(Profiler):
    """Gives one layer that fills each prediction; remembers what it is told."""

    def __init__(self, level: TraceLevel) -> None:
        self.level = level
        self.told: list[str] = []
        self._windows: list[PredictWindow] = []

    def start(self) -> None:
        self.told.append("start")

    def predicted(self, window: PredictWindow) -> None:
        self._windows.append(window)

    def collect(self, recorder: SpanRecorder) -> None:
        self.told.append(f"collect {len(self._windows)}")
        for window in self._windows:
            recorder.add(LAYER, window.start_ns, window.end_ns, window.span_id, batch=window.batch)
        self._windows = []

    def close(self) -> None:
        self.told.append("close")
        self._windows = []


class ProfiledPredictor(EchoPredictor):
    """A model whose framework has a profiler."""

    def __init__(self) -> None:
        super().__init__()
        self.profilers: list[FakeProfiler] = []

    def profiler(self, level: TraceLevel) -> Profiler | None:
        self.profilers.append(FakeProfiler(level))
        return self.profilers[-1]


def new_scope(level: TraceLevel) -> TraceScope:
    return TraceScope(SpanRecorder(TraceContext.new(), level), 1)


def tree(scope: TraceScope) -> list[str]:
    """Every span as ``parent > name batch``, sorted."""
    names = {1: "run"}
    spans: list[tuple[str, int, int]] = []
    for chunk in scope.recorder.chunks():
        columns = (chunk.kind, chunk.span_id, chunk.parent_id, chunk.batch)
        for place, span_id, parent, batch in zip(*(column.tolist() for column in columns), strict=True):
            names[span_id] = chunk.kinds[place].name
            spans.append((chunk.kinds[place].name, parent, batch))
    return sorted(f"{names[parent]} > {name} {batch}" for name, parent, batch in spans)


def two_batches() -> Sequence[Sequence[object]]:
    return [inputs([1, 2]), inputs([3])]


@pytest.mark.parametrize("threads", [0, 2])
@pytest.mark.parametrize("overlap", [False, True])
def test_application_spans_hang_under_the_run(threads: int, overlap: bool) -> None:
    scope = new_scope(TraceLevel.APPLICATION_TRACE)
    with opened(EchoPredictor(), threads=threads, overlap=overlap) as pipeline:
        assert len(list(pipeline.predict_batches(two_batches(), scope))) == 2  # type: ignore[arg-type]

    assert tree(scope) == [
        "predict_step > postprocess 0",
        "predict_step > postprocess 1",
        "run > predict_step 0",
        "run > predict_step 1",
        "run > preprocess 0",
        "run > preprocess 0",
        "run > preprocess 1",
        "run > read 0",
        "run > read 0",
        "run > read 1",
    ]


def test_the_predict_span_is_exactly_what_is_timed() -> None:
    scope = new_scope(TraceLevel.MODEL_TRACE)
    with opened(EchoPredictor()) as pipeline:
        results = list(pipeline.predict_batches(two_batches(), scope))  # type: ignore[arg-type]

    durations = [
        duration
        for chunk in scope.recorder.chunks()
        for place, duration in zip(chunk.kind.tolist(), chunk.duration_ns.tolist(), strict=True)
        if chunk.kinds[place].name == "predict"
    ]
    assert durations == [result.times.predict_ns for result in results]
    sizes = {
        k.attribute("batch_size") for c in scope.recorder.chunks() for k in c.kinds if k.name == "predict"
    }
    assert sizes == {1, 2}


def test_no_profiler_is_asked_for_above_the_framework_level_and_none_without_a_trace() -> None:
    predictor = ProfiledPredictor()
    with opened(predictor) as pipeline:
        list(pipeline.predict_batches([inputs([1])]))
        list(pipeline.predict_batches([inputs([1])], new_scope(TraceLevel.MODEL_TRACE)))

    assert predictor.profilers == []


def test_layers_hang_under_their_prediction_and_are_collected_in_time() -> None:
    predictor = ProfiledPredictor()
    scope = new_scope(TraceLevel.FRAMEWORK_TRACE)
    count = FakeProfiler.round_batches + 2
    with opened(predictor) as pipeline:
        list(pipeline.predict_batches([inputs([1])] * count, scope))

    [profiler] = predictor.profilers
    assert profiler.told == ["start", f"collect {FakeProfiler.round_batches}", "start", "collect 2", "close"]
    layers = [line for line in tree(scope) if "layer" in line]
    assert sorted(layers) == sorted(f"predict > layer {batch}" for batch in range(count))


def test_a_warm_up_runs_under_the_profiler_and_keeps_no_layers() -> None:
    predictor = ProfiledPredictor()
    scope = new_scope(TraceLevel.FRAMEWORK_TRACE)
    with opened(predictor) as pipeline:
        list(pipeline.predict_batches([inputs([1])], scope.without_layers()))

    assert predictor.profilers[0].told == ["start", "collect 1", "close"]
    assert not [line for line in tree(scope) if "layer" in line]
    assert "predict_step > predict 0" in tree(scope)
    assert scope.recorder.dropped == 0


def test_another_level_gets_another_profiler() -> None:
    predictor = ProfiledPredictor()
    with opened(predictor) as pipeline:
        for level in (TraceLevel.FRAMEWORK_TRACE, TraceLevel.FRAMEWORK_TRACE, TraceLevel.FULL_TRACE):
            list(pipeline.predict_batches([inputs([1])], new_scope(level)))

    assert [profiler.level for profiler in predictor.profilers] == [
        TraceLevel.FRAMEWORK_TRACE,
        TraceLevel.FULL_TRACE,
    ]
    assert predictor.profilers[0].told[-1] == "close"


def test_a_prediction_that_fails_is_a_span_and_stops_its_profiling() -> None:
    predictor = ProfiledPredictor()

    def during(batch: int) -> None:
        if batch == 1:
            raise PredictionError("lost")

    predictor.during = during
    scope = new_scope(TraceLevel.FRAMEWORK_TRACE)
    with opened(predictor) as pipeline:
        results = list(pipeline.predict_batches([inputs([1]), inputs([2]), inputs([3])], scope))

    assert [len(failures(result)) for result in results] == [0, 1, 0]
    assert predictor.profilers[0].told == ["start", "close", "start", "collect 1", "close"]
    lines = tree(scope)
    assert "predict_step > predict 1" in lines
    assert [line for line in lines if "layer" in line] == ["predict > layer 2"]
    assert scope.recorder.notes == ("no layers of 1 batches before batch 1, whose prediction failed",)


def test_a_framework_without_a_profiler_is_noted() -> None:
    scope = new_scope(TraceLevel.FRAMEWORK_TRACE)
    with opened(EchoPredictor()) as pipeline:
        list(pipeline.predict_batches([inputs([1])], scope))

    assert scope.recorder.notes == ("no layers: Fake has no profiler here",)


def test_stopping_early_still_collects_and_closes() -> None:
    predictor = ProfiledPredictor()
    scope = new_scope(TraceLevel.FRAMEWORK_TRACE)
    with opened(predictor) as pipeline:
        results = pipeline.predict_batches([inputs([1])] * 3, scope)
        next(results)
        results.close()  # type: ignore[attr-defined]

    assert predictor.profilers[0].told == ["start", "collect 1", "close"]


@pytest.mark.parametrize("error", [OSError(28, "No space left on device"), PredictionError("no profile")])
def test_a_profile_that_cannot_be_read_costs_the_layers_and_not_the_times(
    monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    def fail(self: FakeProfiler, recorder: SpanRecorder) -> None:
        raise error

    monkeypatch.setattr(FakeProfiler, "collect", fail)
    scope = new_scope(TraceLevel.FRAMEWORK_TRACE)
    with opened(ProfiledPredictor()) as pipeline:
        results = list(pipeline.predict_batches(two_batches(), scope))  # type: ignore[arg-type]
    assert [result.input_ids for result in results] == [("1", "2"), ("3",)]
    assert "run > predict_step 0" in tree(scope)
    [note] = scope.recorder.notes
    assert note.startswith("no layers of 2 batches: ")
    assert str(error) in note
