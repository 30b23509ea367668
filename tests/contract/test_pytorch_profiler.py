"""PyTorch's profiler as spans, on real networks."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from inferometer.agent.architectures.pytorch.feed_forward import DigitsCNN
from inferometer.agent.frameworks.pytorch.profiler import PyTorchProfiler, _activity
from inferometer.agent.hardware.environment import Weights
from inferometer.agent.inference.registry import Registry
from inferometer.agent.inference.session import Session, SessionOptions, open_session, select_model
from inferometer.agent.preprocessing.inputs import Input, Tensor
from inferometer.agent.tracing.recorder import (
    PredictWindow,
    SpanChunk,
    SpanKind,
    SpanRecorder,
    TraceContext,
    TraceLevel,
    TraceScope,
)
from inferometer.evaluators.traces.layers import layers
from inferometer.manifests.catalog import Catalog

BATCH_SIZE = 2
MEASURE = SpanKind("measure", TraceLevel.APPLICATION_TRACE)


@pytest.fixture(scope="module")
def session() -> Iterator[Session]:
    registry = Registry()
    manifest = select_model(Catalog(), registry, "ResNet18", framework="PyTorch", weights=Weights.RANDOM)
    with open_session(manifest, SessionOptions(weights=Weights.RANDOM), registry) as session:
        yield session


def batches(count: int, size: int = BATCH_SIZE) -> Iterator[Sequence[Input]]:
    image = np.random.default_rng(0).standard_normal((3, 224, 224), np.float32)
    for _ in range(count):
        yield [Input(str(n), Tensor(image)) for n in range(size)]


def traced(session: Session, level: TraceLevel, count: int = 3) -> SpanRecorder:
    recorder = SpanRecorder(TraceContext.new(), level)
    with TraceScope.top(recorder).span(MEASURE) as scope:
        for result in session.predict_batches(batches(count), scope):
            assert not result.failures
    return recorder


def rows(chunks: Sequence[SpanChunk]) -> list[tuple[SpanKind, int, int, int, int]]:
    """Kind, id, parent, start and end of every span."""
    found = []
    for chunk in chunks:
        ends = (chunk.start_ns + chunk.duration_ns).tolist()
        columns = (chunk.kind, chunk.span_id, chunk.parent_id, chunk.start_ns)
        for place, id_, parent, start, end in zip(*(c.tolist() for c in columns), ends, strict=True):
            found.append((chunk.kinds[place], id_, parent, start, end))
    return found


def test_every_convolution_is_a_layer_with_its_module_time_and_shapes(session: Session) -> None:
    found = layers(traced(session, TraceLevel.FRAMEWORK_TRACE).chunks())

    convolutions = [layer for layer in found if layer.type == "aten::conv2d"]
    assert len(convolutions) == 20
    assert convolutions[0].name == "conv1"
    assert convolutions[0].input_shapes[:2] == (f"{BATCH_SIZE}x3x224x224", "64x3x7x7")
    assert "layer2.0.downsample.0" in {layer.name for layer in convolutions}
    assert "layer1.0/add" in {layer.name for layer in found}
    for layer in convolutions:
        assert len(layer.durations_ns) == 3
        assert (layer.durations_ns > 0).all()
        assert layer.allocated_bytes is not None
        assert layer.allocated_bytes > 0


def test_layers_lie_in_their_prediction_one_after_the_other_and_make_up_its_time(session: Session) -> None:
    chunks = traced(session, TraceLevel.FRAMEWORK_TRACE).chunks()

    spans = rows(chunks)
    by_id = {id_: (start, end) for _, id_, _, start, end in spans}
    last_end: dict[int, int] = {}
    for kind, _, parent, start, end in spans:
        if kind.level is TraceLevel.FRAMEWORK_TRACE:
            assert by_id[parent][0] <= start <= end <= by_id[parent][1]
            assert start >= last_end.get(parent, 0)
            last_end[parent] = end
    of_layers = sum(int(layer.durations_ns.sum()) for layer in layers(chunks))
    of_predictions = sum(by_id[parent][1] - by_id[parent][0] for parent in last_end)
    assert 0.5 <= of_layers / of_predictions <= 1


def test_operators_lie_in_their_layers(session: Session) -> None:
    spans = rows(traced(session, TraceLevel.FULL_TRACE, 1).chunks())

    by_id = {id_: (kind, start, end) for kind, id_, _, start, end in spans}
    operators = [span for span in spans if span[0].level is TraceLevel.ML_LIBRARY_TRACE]
    assert "aten::mkldnn_convolution" in {kind.name for kind, *_ in operators}
    for _, _, parent, start, end in operators:
        kind, begin, stop = by_id[parent]
        assert kind.level in (TraceLevel.FRAMEWORK_TRACE, TraceLevel.ML_LIBRARY_TRACE)
        assert begin <= start <= end <= stop


def test_what_the_processor_has_not_is_noted_once(session: Session) -> None:
    notes = traced(session, TraceLevel.FULL_TRACE, 1).notes

    assert len([note for note in notes if "kernels" in note]) == 1


def test_answers_are_the_same_and_nothing_stays_behind(session: Session) -> None:
    def answers() -> list[NDArray[np.float32]]:
        found = []
        for result in session.predict_batches(batches(1)):
            assert result.outputs is not None
            found.append(result.outputs.probabilities)  # type: ignore[union-attr]
        return found

    before = answers()
    recorder = SpanRecorder(TraceContext.new(), TraceLevel.FRAMEWORK_TRACE)
    [result] = session.predict_batches(batches(1), TraceScope.top(recorder))
    np.testing.assert_array_equal(result.outputs.probabilities, before[0])  # type: ignore[union-attr]
    np.testing.assert_array_equal(answers()[0], before[0])


def test_predictions_that_nobody_traces_run_without_hooks() -> None:
    module = torch.nn.Sequential(torch.nn.Linear(3, 3), torch.nn.ReLU())
    profiler = PyTorchProfiler(module, TraceLevel.FRAMEWORK_TRACE, gpu=False)
    for _ in range(2):
        profiler.start()
        assert all(m._forward_hooks and m._forward_pre_hooks for m in module.modules())

        profiler.collect(SpanRecorder(TraceContext.new(), TraceLevel.FRAMEWORK_TRACE))

        assert not any(m._forward_hooks or m._forward_pre_hooks for m in module.modules())


def test_closing_removes_the_hooks() -> None:
    module = torch.nn.Sequential(torch.nn.Linear(3, 3), torch.nn.ReLU())
    profiler = PyTorchProfiler(module, TraceLevel.FRAMEWORK_TRACE, gpu=False)
    profiler.start()
    assert module[0]._forward_hooks

    profiler.close()
    profiler.close()

    assert not any(m._forward_hooks or m._forward_pre_hooks for m in module.modules())


def test_a_script_module_has_the_names_of_operators_and_says_so(tmp_path: Path) -> None:
    path = tmp_path / "net.pt"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        net = torch.nn.Sequential(torch.nn.Linear(3, 3), torch.nn.ReLU())
        torch.jit.trace(net, torch.zeros(1, 3)).save(path)
        module = torch.jit.load(path)
    recorder = SpanRecorder(TraceContext.new(), TraceLevel.FRAMEWORK_TRACE)
    profiler = PyTorchProfiler(module, TraceLevel.FRAMEWORK_TRACE, gpu=False)
    profiler.start()
    started = recorder.clock()
    with torch.inference_mode():
        module(torch.zeros(1, 3))
    profiler.predicted(PredictWindow(recorder.new_id(), started, recorder.clock(), 0))
    profiler.collect(recorder)
    profiler.close()

    assert {"aten::linear", "aten::relu"} <= {layer.type for layer in layers(recorder.chunks())}
    assert any("TorchScript" in note for note in recorder.notes)


def test_several_rounds_and_batch_sizes_give_batches_times_layers(session: Session) -> None:
    recorder = SpanRecorder(TraceContext.new(), TraceLevel.FRAMEWORK_TRACE)
    scope = TraceScope.top(recorder)
    sizes = [*batches(2, 1), *batches(1, 3)]
    assert len(list(session.predict_batches(sizes, scope))) == 3

    found = layers(recorder.chunks())

    by_batch = {1: 0, 3: 0}
    for layer in found:
        if layer.type == "aten::conv2d":
            by_batch[int(layer.input_shapes[0].split("x")[0])] += len(layer.durations_ns)
    assert by_batch == {1: 40, 3: 20}


def test_the_layers_of_a_training_step_have_their_phase_and_those_of_backward_their_module() -> None:
    module = DigitsCNN()
    optimizer = torch.optim.SGD(module.parameters(), 0.1, momentum=0.9)
    inputs, targets = torch.zeros(4, 1, 16, 16), torch.zeros(4, dtype=torch.int64)
    recorder = SpanRecorder(TraceContext.new(), TraceLevel.FRAMEWORK_TRACE)
    profiler = PyTorchProfiler(module, TraceLevel.FRAMEWORK_TRACE, gpu=False, training=True)
    try:
        profiler.start()
        for step in range(2):
            start_ns = recorder.clock()
            optimizer.zero_grad()
            torch.nn.functional.cross_entropy(module(inputs), targets).backward()  # type: ignore[no-untyped-call]  # as torch has it
            optimizer.step()
            profiler.predicted(PredictWindow(recorder.new_id(), start_ns, recorder.clock(), step))
        profiler.collect(recorder)
    finally:
        profiler.close()

    kinds = [kind for kind, *_ in rows(recorder.chunks())]
    names: dict[object, list[str]] = {}
    for kind in kinds[: len(kinds) // 2]:
        names.setdefault(kind.attribute("phase"), []).append(kind.name)
    parts = ["conv1", "conv2", "fc1", "fc2"]
    assert list(names) == ["forward", "loss", "backward", "update"]
    assert [name for name in names["forward"] if name in parts] == parts
    assert list(dict.fromkeys(name for name in names["backward"] if name in parts)) == parts[::-1]
    assert ("conv2", "ConvolutionBackward0") in {(kind.name, kind.attribute("layer_type")) for kind in kinds}
    assert "cross_entropy_loss" in names["loss"]


@pytest.mark.skipif(
    not hasattr(torch._C._autograd._KinetoEvent, "activity_type"),
    reason="this PyTorch does not tell an event's activity",
)
def test_activities_read_from_the_names_are_those_that_kineto_tells() -> None:
    image = torch.zeros(1, 3, 8, 8, requires_grad=True)
    activities = [torch.profiler.ProfilerActivity.CPU]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that events of earlier cycles are cleared
        with (
            torch.profiler.profile(activities=activities, profile_memory=True) as profiled,
            torch.profiler.record_function("own::annotation"),
        ):
            torch.nn.Conv2d(3, 4, 3)(image).relu().sum().backward()
    assert profiled.profiler is not None
    assert profiled.profiler.kineto_results is not None
    events = profiled.profiler.kineto_results.events()
    told = {(event.name(), event.activity_type()) for event in events}
    assert {kind for _, kind in told} == {"cpu_op", "user_annotation", "cpu_instant_event"}
    assert {(event.name(), _activity(event)) for event in events} == told


def test_of_two_instances_that_are_traced_at_once_one_has_no_layers_and_none_fails() -> None:
    first, second = (PyTorchProfiler(DigitsCNN().eval(), TraceLevel.FRAMEWORK_TRACE, gpu=False) for _ in "12")
    recorders = []
    for begun in ((first, second), (second, first)):
        for profiler in begun:
            profiler.start()
        for profiler in begun:
            recorders.append(SpanRecorder(TraceContext.new(), TraceLevel.FRAMEWORK_TRACE))
            profiler.collect(recorders[-1])
    missing = "no layers of some batches: PyTorch profiles only one prediction at a time"
    assert [missing in recorder.notes for recorder in recorders] == [False, True, False, True]

    first.start()
    first.close()
    second.start()
    second.collect(recorder := SpanRecorder(TraceContext.new(), TraceLevel.FRAMEWORK_TRACE))
    assert missing not in recorder.notes
