"""Models of images of any size: each framework takes each size, and a batch has one."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from inferometer.agent.inference.registry import Registry
from inferometer.agent.inference.session import Session, SessionOptions, open_session
from inferometer.agent.inference.stages import BatchResult, Stage
from inferometer.agent.preprocessing.inputs import Input, Pixels, Tensor
from inferometer.agent.server.server import AgentServer, ServerOptions
from inferometer.agent.tasks.predictions import ClassMaps, Images
from inferometer.client.remote.native.agent import open_remote_agent
from inferometer.evaluators.datasets.arrays import SyntheticDataset
from inferometer.evaluators.jobs.job import DatasetChoice, SystemRequest, default_batch_size
from inferometer.evaluators.loading.workers import own_rows
from inferometer.manifests.catalog import Catalog
from inferometer.manifests.errors import ConfigurationError
from inferometer.manifests.schema import ModelManifest
from tests.task_models import FRAMEWORKS, write_model

ANY = {"dimensions": None}
SIZES = ((5, 9), (9, 5), (16, 3), (1, 1), (5, 9), (7, 30))


@pytest.fixture(scope="module")
def catalog(tmp_path_factory: pytest.TempPathFactory) -> Catalog:
    folder = tmp_path_factory.mktemp("any")
    for framework in FRAMEWORKS:
        write_model(folder, framework, "Doubled", "image", "larger", np.eye(3), np.zeros(3), ANY)
        bounded = {"dimensions": None, "max_dimension": 12, "interpolation": "nearest"}
        write_model(folder, framework, "Reddest", "semanticsegment", "none", np.eye(3), np.zeros(3), bounded)
    return Catalog([folder])


def manifest(catalog: Catalog, name: str, framework: str = "PyTorch") -> ModelManifest:
    found = [m for m in catalog.find_models(name) if m.framework.name == framework]
    return found[0]


@pytest.fixture(scope="module", params=FRAMEWORKS)
def framework(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def doubled(catalog: Catalog, framework: str) -> Iterator[Session]:
    with open_session(manifest(catalog, "Doubled", framework), SessionOptions(), Registry()) as session:
        yield session


def picture(height: int, width: int) -> NDArray[np.uint8]:
    return np.random.RandomState(height * width).randint(0, 256, (height, width, 3)).astype(np.uint8)


def inputs(*sizes: tuple[int, int]) -> list[Input]:
    return [Input(f"{h}x{w}", Pixels(picture(h, w))) for h, w in sizes]


def images(result: BatchResult) -> NDArray[Any]:
    assert isinstance(result.outputs, Images), result.failures
    return result.outputs.pixels


def larger(pixels: NDArray[np.uint8]) -> NDArray[Any]:
    return np.repeat(np.repeat(pixels, 2, axis=0), 2, axis=1) / 255


def test_each_image_keeps_its_size(doubled: Session) -> None:
    for size in SIZES:
        found = images(doubled.predict(inputs(size)))
        assert found.shape == (1, size[0] * 2, size[1] * 2, 3)
        np.testing.assert_allclose(found[0], larger(picture(*size)), atol=1e-6)


def test_a_batch_has_one_size_and_the_others_fail_with_a_line_each(doubled: Session) -> None:
    result = doubled.predict(inputs((5, 9), (9, 5), (5, 9), (5, 8)))
    assert result.input_ids == ("5x9", "5x9")
    np.testing.assert_allclose(images(result)[1], larger(picture(5, 9)), atol=1e-6)
    assert [(f.input_id, f.stage) for f in result.failures] == [
        ("9x5", Stage.PREPROCESS),
        ("5x8", Stage.PREPROCESS),
    ]
    assert result.failures[0].message == (
        "the input has shape [3, 9, 5], and the first of its batch [3, 5, 9]; the model takes images of any "
        "size, but of one size in a batch: use batch_size 1"
    )


def test_batches_of_different_sizes_follow_each_other(doubled: Session) -> None:
    results = list(doubled.predict_batches([inputs(size, size) for size in SIZES]))
    assert [images(result).shape for result in results] == [(2, 2 * h, 2 * w, 3) for h, w in SIZES]


def test_a_tensor_of_any_size_is_taken_and_one_of_other_channels_fails(doubled: Session) -> None:
    tensor = np.random.RandomState(1).random_sample((3, 4, 6)).astype(np.float32)
    good, grey = Input("good", Tensor(tensor)), Input("grey", Tensor(tensor[:1]))
    result = doubled.predict([good, grey])
    assert images(result).shape == (1, 8, 12, 3)
    [failure] = result.failures
    assert failure.message == "tensor has shape [1, 4, 6]; the model takes [3, -1, -1]"


def test_a_longest_side_bounds_the_image_and_the_map_has_the_images_size(
    catalog: Catalog, framework: str
) -> None:
    halves = np.zeros((10, 36, 3), np.uint8)
    halves[:, :18, 1] = halves[:, 18:, 2] = 255
    with open_session(manifest(catalog, "Reddest", framework), SessionOptions(), Registry()) as session:
        result = session.predict([Input("halves", Pixels(halves))])
    assert isinstance(result.outputs, ClassMaps), result.failures
    assert result.outputs.sizes.tolist() == [[10, 36]]
    np.testing.assert_array_equal(result.outputs.pixels.reshape(10, 36), np.where(halves[..., 1], 1, 2))


def test_a_served_model_takes_images_of_any_size(catalog: Catalog) -> None:
    server = AgentServer(catalog, Registry(), ServerOptions(port=0))
    try:
        server.start()
        with open_remote_agent(server.address, "Doubled", framework_name="ONNXRuntime") as system:
            results = list(system.predict_batches([inputs((5, 9)), inputs((4, 4), (9, 5))]))
    finally:
        server.stop(0)
    assert [images(result).shape for result in results] == [(1, 10, 18, 3), (1, 8, 8, 3)]
    assert [failure.input_id for failure in results[1].failures] == ["9x5"]


@pytest.mark.parametrize(("name", "side"), [("Doubled", 224), ("Reddest", 12)])
def test_synthetic_inputs_have_the_longest_side_or_224_pixels(catalog: Catalog, name: str, side: int) -> None:
    found = SyntheticDataset(manifest(catalog, name).tensors, 2, 0)
    sample = next(iter(found)).data
    assert isinstance(sample, Tensor)
    assert sample.array.shape == (3, side, side)


def test_the_default_batch_is_one_image(catalog: Catalog) -> None:
    def size(name: str, framework: str | None = None) -> int:
        system = SystemRequest(model_name=name, framework_name=framework)
        return default_batch_size(system, DatasetChoice(), catalog)

    assert (size("Doubled"), size("doubled", "mxnet"), size("Reddest")) == (1, 1, 1)
    assert size("DigitsCNN") > 1
    assert size("nothing of this name") > 1


def test_batches_for_training_need_one_size(catalog: Catalog) -> None:
    parameters = manifest(catalog, "Doubled").inputs[0].parameters
    with pytest.raises(ConfigurationError, match="has no fixed size; batches are loaded for models with one"):
        own_rows(4, parameters)
