"""An ImageNet validation folder, whose classes are synsets, matches the shipped labels."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
import yaml
from PIL import Image

from inferometer.agent.architectures.pytorch.resnet import ResNet
from inferometer.manifests.catalog import Catalog
from inferometer.manifests.files import BUILTIN

LABELS = BUILTIN / "labels" / "imagenet_1k.txt"
TABBY, SYNSETS = 281, ("n01440764", "n02123045", "n15075141")


@pytest.fixture
def manifests(tmp_path: Path) -> Path:
    """The shipped manifest of ResNet18 with weights that take every image for a tabby."""
    shipped = Catalog().find_model("ResNet18", None, {"PyTorch": "2.13.0"})
    assert shipped.source is not None
    folder = tmp_path / "manifests" / "a" / "b"
    folder.mkdir(parents=True)
    content = yaml.safe_load(shipped.source.read_text(encoding="utf-8"))
    content["output"]["parameters"]["features_url"] = str(LABELS)
    content |= {"name": "Tabbies", "model": {"architecture": "resnet18", "weights_path": "tabbies.pth"}}
    (folder / "tabbies.yml").write_text(yaml.safe_dump(content))
    network = ResNet(depth=18)
    with torch.no_grad():
        network.fc.weight.zero_()
        network.fc.bias.zero_()
        network.fc.bias[TABBY] = 9
    torch.save(network.state_dict(), folder / "tabbies.pth")
    return tmp_path / "manifests"


def images(folder: Path, *classes: str) -> Path:
    random = np.random.default_rng(0)
    for name in classes:
        (folder / name).mkdir(parents=True)
        pixels = random.integers(0, 256, (90, 120, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(folder / name / f"{name}.jpg")
    return folder


def test_folders_named_by_synsets_are_the_models_classes(agent, tmp_path, manifests):
    dataset = images(tmp_path / "val", *SYNSETS)
    run = (
        "predict",
        "dataset",
        "--num_file_parts=-1",
        "--model_name=Tabbies",
        "--batch_size=2",
        "--dataset_path",
        dataset,
    )
    answer = agent("--manifests", manifests, *run)
    assert answer.code == 0, answer.stderr
    (row,) = agent("info", "evaluation", "accuracy", "-f", "csv").rows
    assert (float(row["top1_accuracy"]), row["evaluated_inputs"]) == (pytest.approx(1 / 3, abs=1e-4), "3")


def test_a_folder_that_is_no_class_is_refused(agent, tmp_path, manifests):
    dataset = images(tmp_path / "val", *SYNSETS, "n00000000")
    run = ("predict", "dataset", "--num_file_parts=-1", "--model_name=Tabbies", "--dataset_path", dataset)
    answer = agent("--manifests", manifests, *run)
    assert answer.code != 0
    assert "n00000000" in answer.stderr
    assert "none of the 1000 classes" in answer.stderr


def test_random_weights_answer_with_a_label_for_each_image(agent, tmp_path):
    dataset = images(tmp_path / "val", *SYNSETS)
    paths = sorted(str(path) for path in dataset.rglob("*.jpg"))
    (tmp_path / "urls.txt").write_text("\n".join(paths))
    run = ("predict", "urls", "--model_name=ResNet18", "--framework_name=PyTorch", "--weights=random")
    answer = agent(*run, "--urls_file_path", tmp_path / "urls.txt", "--publish=false")
    assert answer.code == 0, answer.stderr
    labels = LABELS.read_text(encoding="utf-8").splitlines()
    lines = [line for line in answer.stdout.splitlines() if any(label in line for label in labels)]
    assert len(lines) == len(SYNSETS), answer.stdout
