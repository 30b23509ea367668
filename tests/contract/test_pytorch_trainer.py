"""What PyTorch's trainer does beyond the contract of all."""

from __future__ import annotations

import math
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest
import torch
from trainer_fixtures import (
    batch_of,
    cross_entropy,
    manifest_of,
    options_of,
    parameters_of,
    trainer_of,
    write_architectures,
)

from inferometer.agent.hardware.environment import CPU, Weights
from inferometer.agent.inference.registry import Registry
from inferometer.agent.training.trainer import OptimizerOptions, Rank, TrainingBatch, open_trainer
from inferometer.manifests.errors import ArtifactError, ConfigurationError, OutOfMemoryError, TrainingError

BROKEN = {
    "frozen": "self.register_buffer('weight', torch.ones(3, 5))\n",
    "without_classes": (
        "self.fc = nn.Linear(5, 3)\n    def forward(self, data):\n        return self.fc(data).sum(1)"
    ),
    "scalar": "self.fc = nn.Linear(5, 3)\n    def forward(self, data):\n        return self.fc(data).sum()",
    "failing": "self.fc = nn.Linear(5, 3)\n    def forward(self, data):\n        raise KeyError('absent')",
    "greedy": (
        "self.fc = nn.Linear(5, 3)\n    def forward(self, data):\n"
        "        return torch.empty(2**47) if self.training else self.fc(data)"
    ),
}


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = write_architectures(tmp_path_factory.mktemp("architectures"))
    for name, body in BROKEN.items():
        head = f"import torch\nfrom torch import nn\nclass Broken(nn.Module):\n    implements = '{name}'\n"
        init = "    def __init__(self):\n        super().__init__()\n        "
        (folder / "pytorch" / f"{name}.py").write_text(head + init + body)
    return folder


def broken(name: str, directory: Path):  # type: ignore[no-untyped-def]
    return trainer_of("PyTorch", name, directory, manifest=manifest_of("PyTorch", name, dimensions=(5,)))


def test_of_several_outputs_the_loss_is_that_of_the_first(directory):
    batch = batch_of("auxiliary", 8)
    with trainer_of(
        "PyTorch", "auxiliary", directory, optimizer=OptimizerOptions(learning_rate=0.1)
    ) as trainer:
        before, scores = parameters_of(trainer), trainer.scores(batch.inputs)
        losses = [trainer.step(trainer.place(batch)).loss for _ in range(20)]
        after = parameters_of(trainer)

    assert losses[0] == pytest.approx(cross_entropy(scores, batch.targets), rel=1e-5)
    assert losses[-1] < 0.9 * losses[0]
    np.testing.assert_array_equal(after["aside.weight"], before["aside.weight"])
    assert not np.array_equal(after["fc.weight"], before["fc.weight"])


def test_trains_on_from_a_file_with_weights_that_the_architecture_ignores(directory, tmp_path):
    path = tmp_path / "published.pth"
    with trainer_of("PyTorch", "auxiliary", directory) as trainer:
        trainer.save(path)
        expected = parameters_of(trainer)
    torch.save(torch.load(path, weights_only=True) | {"old.weight": torch.ones(3)}, path)

    manifest = manifest_of("PyTorch", "auxiliary", weights=path)
    with trainer_of(
        "PyTorch", "auxiliary", directory, manifest=manifest, weights=Weights.PRETRAINED, seed=9
    ) as trainer:
        for name, parameter in parameters_of(trainer).items():
            np.testing.assert_array_equal(parameter, expected[name])
        assert math.isfinite(trainer.step(trainer.place(batch_of("auxiliary", 4))).loss)


def test_batch_normalization_of_a_single_sample_says_to_take_two(directory):
    with trainer_of("PyTorch", "normalised", directory) as trainer:
        with pytest.raises(TrainingError, match="use a batch of 2 or more") as caught:
            trainer.step(trainer.place(batch_of("normalised", 1)))
        assert math.isfinite(trainer.step(trainer.place(batch_of("normalised", 2))).loss)

    assert "\n" not in str(caught.value)


def test_the_random_numbers_of_the_process_are_left_as_they_are(directory):
    torch.manual_seed(3)
    expected = torch.rand(4)

    torch.manual_seed(3)
    with trainer_of("PyTorch", "dropping", directory) as trainer:
        trainer.step(trainer.place(batch_of("dropping", 8)))
        assert torch.equal(torch.rand(4), expected)


def test_trainers_that_take_turns_draw_as_if_they_were_alone(directory):
    batch = batch_of("dropping", 16)
    with trainer_of("PyTorch", "dropping", directory) as trainer:
        alone = [trainer.step(trainer.place(batch)).loss for _ in range(4)]

    with (
        trainer_of("PyTorch", "dropping", directory) as one,
        trainer_of("PyTorch", "dropping", directory) as other,
    ):
        losses = [(one.step(one.place(batch)).loss, other.step(other.place(batch)).loss) for _ in range(4)]
    assert [first for first, _ in losses] == [second for _, second in losses] == alone


@pytest.mark.parametrize("wanted", [True, False])
def test_the_setting_of_cudnn_lasts_until_the_trainer_is_closed(directory, wanted):
    before = torch.backends.cudnn.benchmark
    with trainer_of("PyTorch", "linear", directory, cudnn_benchmark=wanted):
        assert torch.backends.cudnn.benchmark is wanted
    assert torch.backends.cudnn.benchmark is before


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"communication": "horovod"}, "communication is horovod; allowed in PyTorch: gloo, nccl"),
        ({"communication": "nccl"}, "on a CPU use gloo"),
        ({"api": "gluon"}, "api is gluon"),
        ({"devices": (CPU, CPU)}, "found 2"),
        ({"rank": Rank(0, 2)}, "no address"),
        ({"rank": Rank(2, 2, 0, "127.0.0.1:1")}, "rank is 2; allowed: 0 to 1"),
    ],
)
def test_options_that_pytorch_does_not_have_are_refused_with_those_that_it_has(directory, options, reason):
    with (
        pytest.raises(ConfigurationError, match=reason),
        trainer_of("PyTorch", "linear", directory, **options),
    ):
        pass


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("frozen", "has no parameters that can be trained"),
        ("without_classes", r"has the shape \(1,\); allowed for the loss cross_entropy: \(1, classes\)"),
        ("scalar", r"has the shape \(\); allowed for the loss cross_entropy: \(1, classes\)"),
        ("failing", "PyTorch failed to run the model: 'absent'"),
    ],
)
def test_a_model_that_cannot_be_trained_is_an_artifact_error(directory, name, reason):
    with pytest.raises(ArtifactError, match=reason), broken(name, directory):
        pass


def test_a_batch_that_memory_cannot_hold_is_an_out_of_memory_error(directory):
    with broken("greedy", directory) as trainer, pytest.raises(OutOfMemoryError, match="on a batch of 4"):
        trainer.step(trainer.place(batch_of("linear", 4)))


def test_a_batch_that_nobody_placed_is_refused(directory):
    with trainer_of("PyTorch", "linear", directory) as trainer, pytest.raises(TrainingError, match="place"):
        trainer.step(batch_of("linear", 4))


def test_a_model_of_the_zoo_trains():
    rng = np.random.default_rng(1)
    batch = TrainingBatch(
        rng.normal(0, 1, (8, 3, 32, 32)).astype(np.float32), rng.integers(0, 10, 8, dtype=np.int64)
    )
    trainer, said = open_trainer(
        manifest_of("PyTorch", "cifar10_lenet", dimensions=(3, 32, 32)), options_of(), Registry()
    )
    with closing(trainer):
        placed = trainer.place(batch)
        losses = [trainer.step(placed).loss for _ in range(10)]

    assert losses[-1] < losses[0]
    assert said.checksums == {}
