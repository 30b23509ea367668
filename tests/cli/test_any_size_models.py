"""A model of images of any size: here, served by both protocols, and under load."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper
from PIL import Image

from tests.cli.conftest import PLACES, Agent

STARTED = {0, 8}
"""The exit codes of a load that was measured: 8 is one that a busy machine sent late."""
SIZES = ((40, 60), (33, 21), (64, 64))
DARKER = 0.5


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a model that halves the brightness, and pairs of images of several sizes."""
    folder = tmp_path_factory.mktemp("any_size")
    image, darker = (
        helper.make_tensor_value_info(name, TensorProto.FLOAT, ["n", 3, "h", "w"])
        for name in ("image", "darker")
    )
    factor = helper.make_tensor("factor", TensorProto.FLOAT, [1], [DARKER])
    node = helper.make_node("Mul", ["image", "factor"], ["darker"])
    graph = helper.make_graph([node], "darker", [image], [darker], [factor])
    imports = [helper.make_opsetid("", 17)]
    onnx.save(helper.make_model(graph, opset_imports=imports, ir_version=9), folder / "darker.onnx")
    parameters = {"layout": "CHW", "color_mode": "RGB", "scale": 255, "input_layer": "image"}
    manifest = {
        "name": "Darker",
        "framework": {"name": "ONNXRuntime"},
        "inputs": [{"type": "image", "parameters": parameters}],
        "output": {"type": "image_enhancement"},
        "model": {"graph_path": "darker.onnx"},
    }
    (folder / "darker.yml").write_text(json.dumps(manifest))
    random = np.random.default_rng(0)
    for number, size in enumerate(SIZES):
        pixels = random.integers(0, 128, (*size, 3), np.uint8)
        for part, array in (("inputs", 2 * pixels), ("targets", pixels)):
            (folder / "pairs" / part).mkdir(parents=True, exist_ok=True)
            Image.fromarray(array).save(folder / "pairs" / part / f"{number}.png")
    return folder


@pytest.mark.parametrize("place", PLACES)
def test_images_keep_their_sizes_wherever_the_model_runs(
    agent: Agent, models: Path, addresses: dict[str, tuple[str, ...]], place: str
) -> None:
    what = (
        "--model_name=Darker", f"--manifests={models}", f"--dataset_path={models / 'pairs'}",
        *addresses[place],
    )  # fmt: skip
    evaluated = agent("predict", "dataset", *what, "--batch_size=1", "--num_file_parts=-1")
    assert evaluated.code == 0, evaluated.stderr
    assert evaluated.figure("identical").startswith("3")
    for given in ((), ("--include_preprocess",)):
        loaded = agent("predict", "workload", *what, *given, "--initial_qps=100", "--duration=0.2")
        assert loaded.code in STARTED, loaded.stderr
        assert "failed" not in loaded.figure("queries")
