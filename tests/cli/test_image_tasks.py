"""Segmentation, image enhancement and regression through the command line, here and at an agent."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from inferometer.agent.inference.registry import Registry
from inferometer.agent.server.server import AgentServer, ServerOptions
from inferometer.manifests.catalog import Catalog
from tests.task_dataset_files import grey, saved
from tests.task_models import FRAMEWORKS, SIDE, write_model

WIDTH, HEIGHT = 2 * SIDE, SIDE // 2
SCORES = {
    # of classes 0, 1 and 2: 12 of 24 pixels, 8 of 12 and 16 of 24; 36 of 48 in all
    "Seg": {"mean_IoU": (1 / 2 + 2 / 3 + 2 / 3) / 3, "pixel_accuracy": 3 / 4, "classes": 3, "ignored": 1 / 4},
    "Larger": {"PSNR": 48.1308, "identical": 0},
    # red is right, and of green 0.1, 0.1 and 0.4 are missed
    "Means": {"MAE": 0.1, "RMSE": (0.06**0.5) / 2},
    # of red, both images are found, of green one of two
    "Many": {"mAP": 1, "micro_F1": 6 / 7, "macro_F1": 5 / 6, "subset_accuracy": 2 / 3, "Hamming_loss": 1 / 6},
}


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The models in each framework, in ``models``, and a dataset for each."""
    root = tmp_path_factory.mktemp("tasks")
    labels = ["black", "red", "green"]
    for framework in FRAMEWORKS:
        common = (root / "models", framework)
        original = {"labels": labels, "masks_layer": "SemanticPredictions", "element_type": "int64"}
        scores = ([[0, 0, 0], [1, 0, 0], [0, 1, 0]], [0.5, 0, 0])
        write_model(*common, "Seg", "semanticsegment", "none", *scores, **original)
        write_model(*common, "Larger", "image", "larger", np.eye(3), [1 / 255] * 3, color_mode="RGB")
        write_model(*common, "Means", "regression", "mean", np.eye(3)[:2], [0, 0])
        several = {"labels": ["red", "green"], "probabilities_transform": "sigmoid"}
        write_model(
            *common, "Many", "multilabel_classification", "mean", 20 * np.eye(3)[:2], [-7, -9], **several
        )
    # a map of numbers, of which 1 is no class
    write_model(
        root / "models", "ONNXRuntime", "Wrong", "semanticsegment", "none", [[1, 0, 0]], [0], labels=["a"]
    )
    _masks(root / "Seg")
    _pairs(root / "Larger")
    _table(root / "Means", "file,red,green\n0.png,0.2,0.3\n1.png,0.4,0.5\n2.png,0.6,1.0\n")
    _table(root / "Many", 'file,labels\n0.png,\n1.png,red|green\n2.png,"[""green"", ""red""]"\n')
    return root


def _masks(root: Path) -> None:
    """Images in black, red and green; of the masks, one line is ignored and one is black."""
    image = np.zeros((HEIGHT, WIDTH, 3), np.uint8)
    image[:, 4:8, 0], image[:, 8:, 1] = 255, 255
    numbers = np.repeat(np.array([0, 1, 2, 2], np.uint8), 4)[np.newaxis].repeat(HEIGHT, axis=0)
    numbers[0], numbers[1] = 255, 0
    for name in "abc":
        saved(root / "images" / f"{name}.png", Image.fromarray(image))
        saved(root / "masks" / f"{name}.png", grey(numbers))
    (root / "classes.txt").write_text("black\nred\ngreen\n")


def _pairs(root: Path) -> None:
    pixels = np.random.default_rng(0).integers(0, 255, (3, SIDE, SIDE, 3), np.uint8)  # 254 + 1 is not clipped
    for number, image in enumerate(pixels):
        saved(root / "inputs" / f"{number}.png", Image.fromarray(image))
        saved(root / "targets" / f"{number}.png", Image.fromarray(image.repeat(2, axis=0).repeat(2, axis=1)))


def _table(root: Path, text: str) -> None:
    for number, level in enumerate((51, 102, 153)):
        saved(root / f"{number}.png", Image.new("RGB", (SIDE, SIDE), (level, level, 0)))
    (root / "values.csv").write_text(text)


@pytest.fixture(scope="module")
def distant(files: Path) -> Iterator[str]:
    with AgentServer(Catalog([files / "models"]), Registry(), ServerOptions(port=0)) as server:
        yield server.address


@pytest.mark.parametrize("framework", FRAMEWORKS)
@pytest.mark.parametrize("place", ["here", "served"])
def test_each_task_has_its_scores(agent, files, distant, place, framework):
    where = [f"--manifests={files / 'models'}"] if place == "here" else [f"--agent={distant}"]
    for model, expected in SCORES.items():
        path = files / model
        answer = agent(
            *("predict", "dataset", f"--model_name={model}", f"--framework_name={framework}", *where),
            *(f"--dataset_path={path / 'values.csv' if model[0] == 'M' else path}", "--num_file_parts=-1"),
            *("--batch_size=2", "--publish", "--publish_predictions"),
        )
        assert answer.code == 0, answer.stderr
        assert answer.figure("failures") == "0"
        assert model != "Seg" or answer.figure("classes") == "3"
        (row,) = agent("info", "evaluation", "accuracy", f"--model_name={model}", "-f", "csv").rows
        found = dict(pair.split("=") for pair in row["other_scores"].split())
        found[row["score_name"]] = row["score"]
        assert {name: float(found[name]) for name in expected} == pytest.approx(expected, abs=1e-4)
        assert row["evaluated_inputs"] == "3"
        assert row["definition"].endswith("version 1")
        [listed] = agent("info", "evaluations", f"--model_name={model}", "-f", "csv").rows
        assert (listed["score_name"], listed["score"]) == (row["score_name"], row["score"])
        assert listed["top1_accuracy"] == ""


def test_a_mask_of_another_size_fails_its_input_in_one_line(agent, files, tmp_path):
    _masks(tmp_path)
    saved(tmp_path / "masks" / "b.png", grey(np.zeros((3, 5), np.uint8)))
    answer = agent(
        *("predict", "dataset", "--model_name=Seg", "--framework_name=ONNXRuntime"),
        *(f"--manifests={files / 'models'}", f"--dataset_path={tmp_path}", "--num_file_parts=-1"),
        *("--batch_size=3", "--fail_on_error=false"),
    )
    assert "b.png in score: the predicted map has 16 × 4 pixels, the dataset's mask 5 × 3" in answer.stderr
    assert answer.figure("failures").startswith("1")
    assert answer.figure("mean_IoU").startswith("0.6111")


def test_a_number_of_no_class_fails_its_input_in_one_line(agent, files):
    answer = agent(
        *("predict", "dataset", "--model_name=Wrong", f"--manifests={files / 'models'}"),
        *(f"--dataset_path={files / 'Larger'}", "--num_file_parts=-1", "--fail_on_error=false"),
    )
    assert answer.code == 1
    assert (
        "in postprocess: the model's output has a score that is not finite, or a number of no"
        in answer.stderr
    )


def test_a_class_that_the_model_lacks_is_said_before_it_runs(agent, files, tmp_path):
    _masks(tmp_path)
    (tmp_path / "classes.txt").write_text("black\nred\nblue\n")
    answer = agent(
        *("predict", "dataset", "--model_name=Seg", "--framework_name=ONNXRuntime"),
        *(f"--manifests={files / 'models'}", f"--dataset_path={tmp_path}", "--num_file_parts=-1"),
    )
    assert answer.code == 4
    assert 'class "blue" is none of the 3 classes of the model: "black", "red", "green"' in answer.stderr
