"""Manifests with the facts of MLModelScope's for detection, segmentation and enhancement open and run.

Each has a tiny network in its framework with the outputs that such models have, whose numbers depend on the
pixels, so that preprocessing counts too.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from inferometer.agent.inference.registry import Registry
from inferometer.agent.inference.requirements import unsupported
from inferometer.agent.inference.session import SessionOptions, open_session
from inferometer.agent.inference.stages import BatchResult
from inferometer.agent.preprocessing.inputs import Input, Pixels
from inferometer.agent.tasks.predictions import ClassMaps, Detections, Images
from inferometer.manifests.loader import load_manifest
from inferometer.manifests.schema import ModelManifest
from tests.model_files import save_script
from tests.optional_mxnet import mxnet

RED, GREEN, BLUE = 182, 191, 40
CONTAINER = "{amd64: {cpu: 'a:b', gpu: 'a:b'}, ppc64le: {cpu: 'a:b', gpu: 'a:b'}, arm64: {cpu: 'a:b'}}"
GLUON = """
name: SSD
framework: {{name: MXNet, version: '>=1.1.0'}}
version: 1.0
container: {container}
inputs:
  - type: image
    description: the input image
    parameters:
      element_type: float32
      input_layer: data
      layout: 'CHW'
      color_mode: 'RGB'
      dimensions: {dimensions}
      mean: [123.675, 116.28, 103.53]
      scale: [58.395, 57.12, 57.375]
output:
  type: boundingbox
  description: the output bounding box
  parameters:
    element_type: float32
    classes_layer: 0
    probabilities_layer: 1
    boxes_layer: 2
    {more}
    features_url: labels.txt
    features_checksum:
model: {{base_url: '', graph_path: net-symbol.json, weights_path: net-0000.params, is_archive: false}}
attributes: {{kind: CNN, training_dataset: Pascal VOC, IoU threshold: 0.5, mAP: 77.6}}
"""
TORCH_SSD = """
name: MobileNet_SSD
framework: {{name: PyTorch, version: '*'}}
version: 1.0
container: {container}
inputs:
  - type: image
    parameters:
      element_type: float32
      input_layer: 0
      layout: CHW
      color_mode: RGB
      dimensions: [3, 300, 300]
      mean: [127, 127, 127]
      scale: 128
output:
  type: boundingbox
  parameters:
    element_type: float32
    {more}
    features_url: labels.txt
model: {{graph_path: net.pt, is_archive: false}}
"""
TORCH_ANY = """
name: AnySize
framework: {{name: PyTorch, version: '*'}}
version: 1.0
container: {container}
inputs:
  - type: image
    parameters:
      element_type: float32
      input_layer: 0
      layout: CHW
      color_mode: RGB
      {image}
output:
  type: {kind}
  parameters:
    element_type: int64
    {more}
model: {{graph_path: net.pt, is_archive: false}}
"""
INDICES = "xmin_index: 0\n    ymin_index: 1\n    xmax_index: 2\n    ymax_index: 3"


def written(folder: Path, text: str, **values: object) -> ModelManifest:
    path = folder / "model.yml"
    path.write_text(text.format(container=CONTAINER, **values))
    found = load_manifest(path)
    assert isinstance(found, ModelManifest)
    assert unsupported(found, "amd64") == []
    return found


def predicted(manifest: ModelManifest, *pictures: np.ndarray) -> BatchResult:
    with open_session(manifest, SessionOptions(), Registry()) as session:
        result = session.predict([Input(str(n), Pixels(each)) for n, each in enumerate(pictures)])
    assert result.failures == ()
    return result


def plain(height: int, width: int) -> np.ndarray:
    return np.full((height, width, 3), (RED, GREEN, BLUE), np.uint8)


@pytest.fixture(scope="module")
def gluon(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Classes, scores and boxes as outputs of their own; -1 where there is no object."""
    folder = tmp_path_factory.mktemp("gluon")
    red = mxnet.sym.slice_axis(mxnet.sym.var("data"), axis=1, begin=0, end=1)
    score = mxnet.sym.mean(red, axis=(1, 2, 3)).reshape((-1, 1, 1))
    none = score * 0
    constants = {
        "ids": [[[3], [-1]]],
        "padding": [[[-1]]],
        "boxes": [[[100, 60, 200, 150], [-1, -1, -1, -1]]],
    }
    var = {name: mxnet.sym.var(name) for name in constants}
    outputs = [
        mxnet.sym.broadcast_add(none, var["ids"], name="classes"),
        mxnet.sym.concat(score, mxnet.sym.broadcast_add(none, var["padding"]), dim=1, name="scores"),
        mxnet.sym.broadcast_add(none, var["boxes"], name="bounds"),
    ]
    mxnet.sym.Group(outputs).save(str(folder / "net-symbol.json"))
    arrays = {
        f"arg:{n}": mxnet.nd.from_numpy(np.array(value, np.float32), zero_copy=False)
        for n, value in constants.items()
    }
    mxnet.nd.save(str(folder / "net-0000.params"), arrays)
    (folder / "labels.txt").write_text("".join(f"thing {n}\n" for n in range(20)))
    return folder


@pytest.mark.parametrize(
    ("dimensions", "more"),
    [
        ([3, 512, 544], ""),
        ([3, 300, 400], ""),
        ([3, 512, 544], f"scale_width: 544\n    scale_height: 512\n    {INDICES}"),
        ([3, 300, 400], f"scale_width: 400\n    scale_height: 300\n    {INDICES}"),
    ],
    ids=["SSD", "Faster R-CNN", "SSD with a scale", "Faster R-CNN with a scale"],
)
def test_a_detector_of_gluon_gives_classes_scores_and_boxes_in_pixels(
    gluon: Path, dimensions: list[int], more: str
) -> None:
    _, height, width = dimensions
    model = written(gluon, GLUON, dimensions=dimensions, more=more)
    found = predicted(model, plain(height // 4, width * 2), plain(height, width)).outputs
    assert isinstance(found, Detections)
    assert (found.counts.tolist(), found.classes.tolist()) == ([1, 1], [3, 3])
    assert found.boxes.tolist() == [[200, 15, 400, 37.5], [100, 60, 200, 150]]
    np.testing.assert_allclose(found.scores, (RED - 123.675) / 58.395, rtol=1e-4)


class SingleShot(torch.nn.Module):
    """Scores of the background and 20 classes, of which one is as green as the image, and relative boxes."""

    def forward(self, data: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        scores = torch.zeros(data.shape[0], 2, 21)
        scores[:, 0, 0] = 0.75
        scores[:, 1, 4] = data[:, 1].mean((1, 2))
        boxes = torch.tensor([[0.0, 0.0, 1.0, 1.0], [0.25, 0.5, 0.75, 1.0]])
        return scores, boxes.expand(data.shape[0], 2, 4)


@pytest.mark.parametrize(
    ("more", "classes"),
    [
        ("probabilities_layer: 0", [0, 4]),
        ("probailities_layer: 0", [0, 4]),
        (f"probabilities_layer: 0\n    background_index: 0\n    {INDICES}", [4]),
        (f"probailities_layer: 0\n    background_index: 0\n    {INDICES}", [4]),
    ],
    ids=["SSD", "SSD Lite, misspelt", "SSD without background", "SSD Lite without background"],
)
def test_a_detector_of_pytorch_gives_scores_and_relative_boxes(
    tmp_path: Path, more: str, classes: list[int]
) -> None:
    save_script(SingleShot(), tmp_path / "net.pt")
    (tmp_path / "labels.txt").write_text("background\n" + "".join(f"thing {n}\n" for n in range(20)))
    found = predicted(written(tmp_path, TORCH_SSD, more=more), plain(30, 80)).outputs
    assert isinstance(found, Detections)
    assert found.classes.tolist() == classes
    assert found.boxes[-1].tolist() == [20, 15, 60, 30]
    assert found.scores[-1] == pytest.approx((GREEN - 127) / 128)


class Segmenter(torch.nn.Module):
    """Scores of 21 classes for each pixel; 5 where it is red, 9 where it is blue."""

    def forward(self, data: torch.Tensor) -> torch.Tensor:
        scores = torch.full((data.shape[0], 21, data.shape[2], data.shape[3]), -10.0)
        scores[:, 5], scores[:, 9] = data[:, 0], data[:, 2]
        return scores


def test_a_segmenter_takes_images_of_any_size_by_the_name_of_no_output(tmp_path: Path) -> None:
    save_script(Segmenter(), tmp_path / "net.pt")
    (tmp_path / "labels.txt").write_text("".join(f"thing {n}\n" for n in range(21)))
    scaling = "mean: [123.675, 116.280, 103.530]\n      scale: [58.395, 57.120, 57.375]"
    more = "masks_layer: SemanticPredictions\n    features_url: labels.txt"
    manifest = written(tmp_path, TORCH_ANY, image=scaling, kind="semanticsegment", more=more)
    for height, width in ((23, 37), (8, 4)):
        picture = np.zeros((height, width, 3), np.uint8)
        picture[:, : width // 2, 0] = picture[:, width // 2 :, 2] = 255
        found = predicted(manifest, picture).outputs
        assert isinstance(found, ClassMaps)
        assert found.sizes.tolist() == [[height, width]]
        expected = np.where(picture[..., 0], 5, 9)
        np.testing.assert_array_equal(found.pixels.reshape(height, width), expected)


def test_super_resolution_takes_images_of_any_size_and_gives_larger_ones(tmp_path: Path) -> None:
    save_script(torch.nn.Sequential(torch.nn.Upsample(scale_factor=4, mode="nearest")), tmp_path / "net.pt")
    scaling = "mean: [0.0, 0.0, 0.0]\n      scale: 255"
    manifest = written(tmp_path, TORCH_ANY, image=scaling, kind="image", more="")
    for height, width in ((7, 5), (2, 9)):
        picture = np.random.RandomState(3).randint(0, 256, (height, width, 3)).astype(np.uint8)
        found = predicted(manifest, picture).outputs
        assert isinstance(found, Images)
        larger = picture.repeat(4, axis=0).repeat(4, axis=1) / 255
        np.testing.assert_allclose(found.pixels, larger[np.newaxis], atol=1e-6)
