"""The layers of training steps, forward and backward, in every framework and API."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import pytest
from trainer_fixtures import batch_of, manifest_of, trainer_of, write_architectures

from inferometer.agent.tracing.recorder import SpanKind, SpanRecorder, TraceContext, TraceLevel, TraceScope
from inferometer.agent.training.trainer import OptimizerOptions, StepParts, Trainer, TrainingBatch
from inferometer.evaluators.kinds.training.training_run import StepTracing

APIS = (("PyTorch", ""), ("MXNet", "gluon"), ("MXNet", "module"))
BRANCHED = {
    "pytorch": """
import torch
from torch import nn
class Branched(nn.Module):
    implements = "branched"
    def __init__(self):
        super().__init__()
        self.first, self.left, self.right = nn.Linear(5, 8), nn.Linear(8, 8), nn.Linear(8, 8)
        self.last = nn.Linear(8, 3)
    def forward(self, data):
        hidden = torch.relu(self.first(data))
        return self.last(torch.relu(self.left(hidden)) + self.right(hidden))
""",
    "mxnet": """
from mxnet.gluon import nn
class Branched(nn.HybridBlock):
    implements = "branched"
    def __init__(self):
        super().__init__()
        self.first = nn.Dense(8, in_units=5, prefix="first_")
        self.left = nn.Dense(8, in_units=8, prefix="left_")
        self.right = nn.Dense(8, in_units=8, prefix="right_")
        self.last = nn.Dense(3, in_units=8, prefix="last_")
    def hybrid_forward(self, F, data):
        hidden = F.relu(self.first(data))
        return self.last(F.relu(self.left(hidden)) + self.right(hidden))
""",
}
CONVOLUTION_AND_DENSE = {
    "aten::conv2d": "ConvolutionBackward0",
    "aten::linear": "AddmmBackward0",
    "Convolution": "_backward_Convolution",
    "FullyConnected": "_backward_FullyConnected",
}
"""The types of the layers with weights, forward and backward."""


@dataclass
class Layer:
    kind: SpanKind
    step: int
    start_ns: int
    end_ns: int

    @property
    def type(self) -> str:
        return str(self.kind.attribute("layer_type"))

    @property
    def phase(self) -> str:
        return str(self.kind.attribute("phase"))


@dataclass
class Profiled:
    """Some steps under the profiler, and one after it is closed."""

    recorder: SpanRecorder
    losses: list[float]

    @property
    def layers(self) -> list[Layer]:
        return [
            Layer(chunk.kinds[kind], step, start_ns, start_ns + long_ns)
            for chunk in self.recorder.chunks()
            for kind, step, start_ns, long_ns in chunk.values("kind", "batch", "start_ns", "duration_ns")
            if chunk.kinds[kind].level is TraceLevel.FRAMEWORK_TRACE
        ]

    def spans(self, name: str) -> list[tuple[int, int]]:
        return [
            (start_ns, start_ns + long_ns)
            for chunk in self.recorder.chunks()
            for kind, start_ns, long_ns in chunk.values("kind", "start_ns", "duration_ns")
            if chunk.kinds[kind].name == name
        ]


@pytest.fixture(params=APIS, ids=lambda each: "-".join(filter(None, each)))
def api(request: pytest.FixtureRequest) -> tuple[str, str]:
    return request.param  # type: ignore[no-any-return]


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    found = write_architectures(tmp_path_factory.mktemp("architectures"))
    for framework, text in BRANCHED.items():
        (found / framework / "branched.py").write_text(text)
    return found


def profiled(trainer: Trainer, batches: Sequence[TrainingBatch], round_batches: int = 16) -> Profiled:
    recorder = SpanRecorder(TraceContext.new(), TraceLevel.FRAMEWORK_TRACE)
    profiler = trainer.profiler(TraceLevel.FRAMEWORK_TRACE)
    assert profiler is not None
    profiler.round_batches = round_batches
    losses = []
    with closing(profiler):
        tracing = StepTracing(TraceScope.top(recorder), profiler, {})
        for step, batch in enumerate(batches):
            placed = trainer.place(batch)
            tracing.before_step()
            start_ns = recorder.clock()
            result = trainer.step(placed, parts=True)
            end_ns = recorder.clock()
            tracing.after_step(
                step, len(batch), (start_ns, start_ns, start_ns, start_ns, end_ns), result.parts
            )
            losses.append(result.loss)
        tracing.collect()
    losses.append(trainer.step(trainer.place(batches[-1])).loss)
    return Profiled(recorder, losses)


def weighted(layers: Sequence[Layer], phase: str) -> list[tuple[str, str]]:
    """Name and type, without the direction, of the layers with weights of a phase."""
    forward = {back: there for there, back in CONVOLUTION_AND_DENSE.items()} | {
        each: each for each in CONVOLUTION_AND_DENSE
    }
    return [(x.kind.name, forward[x.type]) for x in layers if x.phase == phase and x.type in forward]


def test_each_layer_with_weights_appears_forward_and_backward_by_its_name(api, directory):
    with trainer_of(api[0], "plain", directory, api=api[1]) as trainer:
        found = profiled(trainer, [batch_of("plain", 4)] * 3, round_batches=2)

    for step in range(3):
        layers = [layer for layer in found.layers if layer.step == step]
        forward, backward = weighted(layers, "forward"), weighted(layers, "backward")
        assert [type_.rpartition("::")[2] for _, type_ in forward] in (
            ["conv2d", "linear"],
            ["Convolution", "FullyConnected"],
        )
        assert backward == forward[::-1]
        assert len({name for name, _ in forward}) == 2
        assert [layer.kind.attribute("layer_index") for layer in layers] == list(range(len(layers)))
        phases = [layer.phase for layer in layers]
        assert list(dict.fromkeys(phases)) == ["forward", "loss", "backward", "update"]
        convolution = next(layer for layer in layers if layer.phase == "forward" and "onv" in layer.type)
        assert convolution.kind.attribute("input_shapes") == ("4x1x8x8", "4x1x3x3", "4")
    assert not [note for note in found.recorder.notes if "types only" in note]


def test_branches_with_layers_of_one_type_keep_their_names(api, directory):
    manifest = manifest_of(api[0], "branched", dimensions=(5,))
    with trainer_of(api[0], "branched", directory, manifest=manifest, api=api[1]) as trainer:
        found = profiled(trainer, [batch_of("linear", 4)] * 6)

    for phase in ("forward", "backward"):
        names = Counter(name.removesuffix("_fwd") for name, _ in weighted(found.layers, phase))
        assert names == {"first": 6, "left": 6, "right": 6, "last": 6}


def test_layers_lie_within_their_step_and_do_not_overlap(api, directory):
    with trainer_of(api[0], "plain", directory, api=api[1]) as trainer:
        found = profiled(trainer, [batch_of("plain", 4)] * 2)

    steps = found.spans("train")
    for step, (start_ns, end_ns) in enumerate(steps):
        layers = [layer for layer in found.layers if layer.step == step]
        assert all(start_ns <= layer.start_ns <= layer.end_ns <= end_ns for layer in layers)
        assert 0 < sum(layer.end_ns - layer.start_ns for layer in layers) <= end_ns - start_ns
    parts = list(StepParts.__dataclass_fields__)
    assert all(len(found.spans(name.removesuffix("_ns"))) == 2 for name in parts)


def test_the_losses_are_those_of_steps_without_the_profiler(api, directory):
    batches = [batch_of("plain", samples, seed) for seed, samples in enumerate((4, 4, 3, 4))]
    with trainer_of(api[0], "plain", directory, api=api[1]) as trainer:
        found = profiled(trainer, batches, round_batches=3)
    with trainer_of(api[0], "plain", directory, api=api[1]) as trainer:
        expected = [trainer.step(trainer.place(batch)).loss for batch in (*batches, batches[-1])]

    assert found.losses == pytest.approx(expected, rel=1e-6)
    sizes = {layer.kind.attribute("input_shapes")[0][0] for layer in found.layers if "onv2d" in layer.type}  # type: ignore[index]
    assert sizes <= {"4", "3"}


def test_operators_that_are_no_bulks_are_those_of_every_optimizer(api, directory):
    with trainer_of(api[0], "plain", directory, api=api[1], optimizer=OptimizerOptions("rmsprop")) as trainer:
        found = profiled(trainer, [batch_of("plain", 4)])

    updates = [layer.type for layer in found.layers if layer.phase == "update"]
    assert len(updates) > 5
    assert not [type_ for type_ in updates if "Bulk" in type_]


def test_a_second_profiler_of_mxnet_is_refused_while_one_records(directory):
    with trainer_of("MXNet", "plain", directory) as trainer:
        profiler, other = (trainer.profiler(TraceLevel.FRAMEWORK_TRACE) for _ in range(2))
        assert profiler is not None
        assert other is not None
        profiler.start()
        with closing(profiler), closing(other), pytest.raises(Exception, match="recording another model"):
            other.start()


@pytest.mark.parametrize("api_name", ["gluon", "module"])
def test_mxnet_queues_operators_in_bulk_again_after_the_profiler(api_name, directory, tmp_path):
    with trainer_of("MXNet", "plain", directory, api=api_name) as trainer:
        trainer.step(trainer.place(batch_of("plain", 4)))
        before = recorded_operators(trainer, tmp_path)
        profiled(trainer, [batch_of("plain", 4)] * 2)

        assert "Convolution" not in before
        assert recorded_operators(trainer, tmp_path) == before


def recorded_operators(trainer: Trainer, folder: Path) -> set[str]:
    """What MXNet's profiler records of a step that no hook watches."""
    from inferometer.agent.frameworks.mxnet.profiler import OperatorRecording

    placed, recording = trainer.place(batch_of("plain", 4)), OperatorRecording()
    recording.reserve()
    recording.start(folder)
    trainer.step(placed)
    return {operator.type for operator in recording.stop()}


def test_two_devices_of_mxnet_have_the_layers_of_both(directory):
    from inferometer.agent.hardware.environment import Device, DeviceKind

    devices = (Device(DeviceKind.CPU, 0), Device(DeviceKind.CPU, 1))
    with trainer_of("MXNet", "plain", directory, devices=devices, communication="local") as trainer:
        found = profiled(trainer, [batch_of("plain", 5)])

    inputs = [layer.kind.attribute("input_shapes") for layer in found.layers if layer.type == "Convolution"]
    assert inputs == [("3x1x8x8", "4x1x3x3", "4"), ("2x1x8x8", "4x1x3x3", "4")]
