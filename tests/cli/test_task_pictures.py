"""What ``agent predict`` shows of tasks beyond classification: tables of predictions, and pictures."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from tests.cli.conftest import Agent, Answer
from tests.pictured_models import write_models
from tests.task_dataset_files import grey, saved


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_models(tmp_path_factory.mktemp("models"))


@pytest.fixture
def inputs(tmp_path: Path) -> Path:
    """A list of an image of 16 × 8 pixels, of which the left half is red and the right half blue."""
    pixels = np.zeros((8, 16, 3), np.uint8)
    pixels[:, :8, 0] = pixels[:, 8:, 2] = 200
    saved(tmp_path / "a.png", Image.fromarray(pixels))
    (tmp_path / "list").write_text("a.png\n")
    return tmp_path / "list"


@pytest.fixture
def predict(agent: Agent, models: Path) -> Any:
    def run(kind: str, name: str, *more: str) -> Answer:
        chosen = [f"--model_name={name}", "--framework_name=ONNXRuntime", "--batch_size=1"]
        return agent("--manifests", str(models), "predict", kind, *chosen, *more)

    return run


def test_objects_are_listed_and_drawn(predict: Any, inputs: Path, tmp_path: Path) -> None:
    answer = predict("urls", "Detector", f"--urls_file_path={inputs}", f"--pictures={tmp_path / 'out'}")
    assert answer.code == 0, answer.stderr
    lines = [line.split() for line in answer.stdout.splitlines()]
    assert ["input", "class", "score", "left", "top", "right", "bottom"] in lines
    # the model's pixels are 8 × 8, the image's 16 × 8
    assert ["1:a.png", "red", "0.9000", "2.0", "1.0", "10.0", "5.0"] in lines
    assert any("… and 1 less certain" in line for line in answer.stdout.splitlines())
    assert answer.figure("pictures").startswith(f"1 in {tmp_path / 'out'}, 0001_1_a.png")
    picture = Image.open(tmp_path / "out" / "0001_1_a.png")
    assert picture.size == (640, 320)
    # the upper side of the box of the first class, in its colour
    assert picture.convert("RGB").getpixel((300, 41)) == (230, 159, 0)


def test_classes_of_pixels(predict: Any, inputs: Path) -> None:
    answer = predict("urls", "Segmenter", f"--urls_file_path={inputs}")
    assert answer.code == 0, answer.stderr
    lines = [line.split() for line in answer.stdout.splitlines()]
    assert ["1:a.png", "red", "50.00"] in lines
    assert ["1:a.png", "blue", "50.00"] in lines
    [picture] = Path(os.environ["AGENT_DATA_DIR"], "predictions").rglob("*.png")
    shown = Image.open(picture).convert("RGB")
    assert shown.width > 640  # the legend is beside the image
    assert shown.getpixel((10, 10)) == (216, 87, 0)  # 45 % of the image, and 55 % of the first colour


def test_an_enhanced_image_is_written(predict: Any, inputs: Path, tmp_path: Path) -> None:
    answer = predict("urls", "Enhancer", f"--urls_file_path={inputs}", f"--pictures={tmp_path / 'out'}")
    assert answer.code == 0, answer.stderr
    assert ["1:a.png", "8", "8", "3"] in [line.split() for line in answer.stdout.splitlines()]
    made = Image.open(tmp_path / "out" / "0001_1_a_output.png")
    assert (made.size, made.getpixel((0, 0))) == ((8, 8), (200, 0, 0))
    assert (tmp_path / "out" / "0001_1_a.png").exists()


def test_numbers_have_no_picture(predict: Any, inputs: Path, tmp_path: Path) -> None:
    answer = predict("urls", "Means", f"--urls_file_path={inputs}", "--publish=false")
    assert answer.code == 0, answer.stderr
    assert "red 100, green 0, blue 100" in answer.stdout
    assert "pictures" not in answer.stdout


def test_pictures_of_a_dataset_are_bounded(predict: Any, tmp_path: Path) -> None:
    for name in "abc":
        saved(tmp_path / "data" / "images" / f"{name}.png", Image.new("RGB", (3, 2), (9, 0, 0)))
        saved(tmp_path / "data" / "masks" / f"{name}.png", grey(np.zeros((2, 3), np.uint8)))
    out = tmp_path / "out"
    chosen = [f"--dataset_path={tmp_path / 'data'}", f"--pictures={out}", "--num_file_parts=3"]
    answer = predict("dataset", "Segmenter", *chosen, "--picture_count=2")
    assert answer.code == 0, answer.stderr
    assert answer.figure("mean_IoU").startswith("1.0000")
    assert sorted(path.name for path in out.iterdir()) == ["0001_a.png", "0002_b.png"]


def test_an_input_that_is_gone_has_no_picture(predict: Any, tmp_path: Path) -> None:
    (tmp_path / "list").write_text("none.png\n")
    answer = predict("urls", "Detector", f"--urls_file_path={tmp_path / 'list'}", f"--pictures={tmp_path}")
    assert answer.code == 1
    assert "pictures" not in answer.stdout


def test_pictures_are_refused_before_the_model_runs(predict: Any, inputs: Path, tmp_path: Path) -> None:
    listed = f"--urls_file_path={inputs}"
    answer = predict("urls", "Detector", listed, "--picture_count=2")
    assert (answer.code, "give --pictures=DIR" in answer.error) == (2, True)
    (tmp_path / "file").write_text("")
    answer = predict("urls", "Detector", listed, f"--pictures={tmp_path / 'file'}")
    assert "file: cannot be created: File exists" in answer.error
