"""``--weights=random``: models built in code, to measure speed."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from inferometer.agent.hardware.environment import Weights
from inferometer.agent.inference.registry import Registry
from inferometer.agent.inference.session import SessionOptions, open_session, select_model
from inferometer.agent.preprocessing.inputs import Input, Tensor
from inferometer.manifests.catalog import Catalog

RUN = (
    "predict",
    "dataset",
    "--num_file_parts=-1",
    "--model_name=ResNet18",
    "--weights=random",
    "--seed=3",
    "--batch_size=2",
)


@pytest.fixture
def images(tmp_path: Path) -> Path:
    random = np.random.default_rng(0)
    for label in ("cat", "dog"):
        (tmp_path / "images" / label).mkdir(parents=True)
        for number in range(2):
            pixels = random.integers(0, 256, (90, 120, 3), dtype=np.uint8)
            Image.fromarray(pixels).save(tmp_path / "images" / label / f"{number}.jpg")
    return tmp_path / "images"


@pytest.mark.parametrize("framework", ["PyTorch", "MXNet", "ONNXRuntime"])
def test_resnet_runs_and_its_accuracy_is_not_counted(agent, images, framework):
    answer = agent(*RUN, f"--framework_name={framework}", "--dataset_path", images)
    assert answer.code == 0, answer.stderr
    assert answer.figure("accuracy") == "not counted: the weights are random (seed 3)"
    assert "over 2 full batches" in answer.figure("latency")
    (row,) = agent("info", "evaluation", "accuracy", "-f", "csv").rows
    assert (row["top1_accuracy"], row["top5_accuracy"], row["evaluated_inputs"]) == ("", "", "0")
    assert row["weights"] == "random"


def test_reports_tell_evaluations_of_random_weights_apart(agent, images):
    random = agent(*RUN, "--framework_name=PyTorch", "--dataset_path", images).figure("evaluation")
    own = (
        "predict",
        "dataset",
        "--model_name=DigitsCNN",
        "--framework_name=ONNXRuntime",
        "--num_file_parts=1",
    )
    pretrained = agent(*own).figure("evaluation")
    for given, found in (("random", [random]), ("Pretrained", [pretrained]), (None, [pretrained, random])):
        chosen = () if given is None else (f"--weights={given}",)
        for report in ("latency", "accuracy"):
            rows = agent("info", "evaluation", report, "-f", "csv", *chosen).rows
            assert [row["id"] for row in rows] == found
    refused = agent("info", "evaluation", "latency", "--weights=own")
    assert refused.code == 2
    assert "pretrained" in refused.error


def test_remote_agent_draws_the_weights_and_says_so(agent, images, served_agent):
    answer = agent(*RUN, "--framework_name=PyTorch", "--dataset_path", images, f"--agent={served_agent}")
    assert answer.code == 0, answer.stderr
    assert answer.figure("accuracy") == "not counted: the weights are random (seed 3)"


@pytest.mark.parametrize("remote", [False, True])
def test_the_version_is_chosen_by_the_weights(agent, images, remote, request):
    run = (
        "predict",
        "dataset",
        "--num_file_parts=-1",
        "--model_name=GoogLeNet",
        "--framework_name=PyTorch",
        "--publish=false",
    )
    place = [f"--agent={request.getfixturevalue('served_agent')}"] if remote else []
    run = (*run, "--dataset_path", images, *place)
    refused = agent(*run, "--model_version=1.0")
    ran = agent(*run, "--weights=random")
    assert refused.code != 0
    assert "GoogLeNet 1.0 for PyTorch has no published weights; GoogLeNet 1.1" in refused.error
    assert ran.code == 0, ran.stderr
    assert "GoogLeNet 1.0 on PyTorch" in ran.stdout


@pytest.mark.parametrize("framework", ["PyTorch", "MXNet", "ONNXRuntime"])
def test_weights_depend_on_the_seed_and_on_nothing_else(framework):
    registry = Registry()
    manifest = select_model(Catalog(), registry, "ResNet18", framework=framework, weights=Weights.RANDOM)
    image = np.random.default_rng(1).normal(size=(3, 224, 224)).astype(np.float32)

    def answer(seed: int) -> list[float]:
        options = SessionOptions(weights=Weights.RANDOM, seed=seed, feature_limit=0)
        with open_session(manifest, options, registry) as session:
            assert (session.description.weights, session.description.seed) == (Weights.RANDOM, seed)
            outputs = session.predict([Input("a", Tensor(image))]).outputs
            return [float(outputs.probabilities[0].std()), *outputs.indices[0][:5].tolist()]

    first = answer(1)
    np.random.default_rng().random()
    assert answer(1) == pytest.approx(first)
    assert answer(2) != pytest.approx(first)


@pytest.mark.parametrize(
    ("arguments", "parts"),
    [
        (("--model_name=ResNet200",), ["ResNet200 1.0", "no published weights", "--weights=random"]),
        (
            ("--model_name=GoogLeNet", "--framework_name=MXNet"),
            ["GoogLeNet 1.0", "no published weights", "GoogLeNet 1.1 has them for ONNXRuntime, PyTorch"],
        ),
        (("--framework_name=ONNXRuntime", "--weights=random"), ["DigitsCNN", "random weights"]),
    ],
)
def test_what_cannot_be_had_is_one_line(agent, images, arguments, parts):
    answer = agent("predict", "dataset", "--num_file_parts=-1", "--dataset_path", images, *arguments)
    assert answer.code == 4
    for part in parts:
        assert part in answer.error
