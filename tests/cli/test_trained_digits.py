"""DigitsCNN is trained on the digits that ship, until it classifies those that it was not trained on."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cli.conftest import Agent

TRAIN = (
    "bench",
    "training",
    "--model=DigitsCNN",
    "--dataset_name=digits_training",
    "--validation_dataset=digits_validation",
    "--batch_size=16",
    "--lr=0.01",
    "--weight_decay=5e-4",
    "--data_shuffle",
    "--num_workers=0",
    "--threads=1",
)


@pytest.mark.parametrize("framework", ["PyTorch", "MXNet"])
def test_the_trained_model_classifies_97_percent_of_the_other_digits(
    agent: Agent, framework: str, tmp_path: Path
) -> None:
    weights = tmp_path / "weights"

    answer = agent(*TRAIN, f"--framework_name={framework}", "--num_epochs=20", f"--save_weights={weights}")

    assert answer.code == 0
    (row,) = agent("info", "evaluation", "training", "-f", "csv").rows
    assert float(row["top1_accuracy"]) >= 0.97
    assert row["failed_inputs"] == "0"
    # 1,347 samples are 84 full batches and one of 3 in each of 20 epochs, of which the first step warms up
    steps = agent("info", "evaluation", "training_steps", "-f", "csv").rows
    assert len(steps) == 20 * 85 - 1
    assert sum(int(step["samples"]) for step in steps) == 20 * 1347 - 16
    assert weights.stat().st_size > 0
