"""MXNet's own iterator as a loader: equal tensors, and a damaged file is an error and not the end."""

from __future__ import annotations

import io
import multiprocessing
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from inferometer.agent.preprocessing.inputs import EncodedImage
from inferometer.agent.preprocessing.preprocessor import RecordOptions, preprocessor_of
from inferometer.evaluators.datasets.folder import FolderDataset
from inferometer.evaluators.datasets.recordio import IMAGE_HEADER, RecordDataset, framed
from inferometer.evaluators.loading.loader import FrameworkLoader, open_framework_reader
from inferometer.evaluators.loading.options import LoaderOptions
from inferometer.manifests.errors import ConfigurationError, DatasetError
from inferometer.manifests.inputs import ImageParameters

pytestmark = pytest.mark.usefixtures("needs_mxnet")  # whose iterator it is

PARAMETERS = ImageParameters.model_validate(
    {
        "dimensions": [3, 28, 28],
        "mean": [120.0, 110.0, 100.0],
        "scale": [60.0, 55.0, 50.0],
        "decoder": "opencv",
        "keep_aspect_ratio": True,
        "crop_ratio": 0.875,
    }
)
COUNT = 13


def encoded(number: int) -> bytes:
    random = np.random.default_rng(number)
    coarse = Image.fromarray(random.integers(0, 256, (5, 6, 3), np.uint8))
    buffer = io.BytesIO()
    coarse.resize((48, 40), Image.Resampling.BICUBIC).save(buffer, "JPEG", quality=92)
    return buffer.getvalue()


def written(path: Path, contents: list[bytes]) -> Path:
    records = [
        framed(IMAGE_HEADER.pack(0, float(number % 5), number, 0) + content)
        for number, content in enumerate(contents)
    ]
    path.write_bytes(b"".join(records))
    offsets = np.cumsum([0, *map(len, records)])[:-1]
    path.with_suffix(".idx").write_text("".join(f"{n}\t{offset}\n" for n, offset in enumerate(offsets)))
    return path


def opened(path: Path, **given: int) -> FrameworkLoader:
    return open_framework_reader(RecordDataset(path, "vision"), PARAMETERS, LoaderOptions(4, **given))


def test_tensors_and_labels_are_those_of_the_own_reader(tmp_path: Path) -> None:
    contents = [encoded(number) for number in range(COUNT)]
    preprocess = preprocessor_of(PARAMETERS)
    expected = np.stack([preprocess(EncodedImage(content)) for content in contents])

    with opened(written(tmp_path / "a.rec", contents), workers=2) as loader:
        epochs = [[(b.inputs.copy(), b.labels) for b in loader.epoch(number)] for number in (0, 1)]
        left = next(loader.epoch(2)).inputs.copy()
        again = [len(batch.inputs) for batch in loader.epoch(3)]
        assert loader.batches == 4
        assert len(loader.processes) == 1

    for batches in epochs:
        assert [len(inputs) for inputs, _ in batches] == [4, 4, 4, 1]
        np.testing.assert_allclose(np.concatenate([inputs for inputs, _ in batches]), expected, atol=1e-5)
        labels = np.concatenate([labels for _, labels in batches])
        assert (labels.dtype, labels.tolist()) == (np.int64, [number % 5 for number in range(COUNT)])
    np.testing.assert_allclose(left, expected[:4], atol=1e-5)
    assert again == [4, 4, 4, 1]
    assert multiprocessing.active_children() == []


def test_a_shuffled_epoch_has_every_sample_once(tmp_path: Path) -> None:
    with opened(written(tmp_path / "a.rec", [encoded(n) for n in range(12)]), shuffle=True) as loader:
        orders = [[label for b in loader.epoch(n) for label in b.labels.tolist()] for n in (0, 1)]

    assert all(sorted(order) == sorted(number % 5 for number in range(12)) for order in orders)


@pytest.mark.parametrize("damage", ["no image", "cut off", "empty"])
def test_a_damaged_record_ends_the_epoch_and_not_the_program(damage: str, tmp_path: Path) -> None:
    contents = [encoded(number) for number in range(COUNT)]
    if damage != "cut off":
        contents[6] = b"" if damage == "empty" else b"no image at all" * 20
    path = written(tmp_path / "a.rec", contents)
    if damage == "cut off":
        path.write_bytes(path.read_bytes()[:-300])

    message = r"a\.rec.*; use reader own, which names|a\.rec.*: a damaged record ends it; use reader own"
    with pytest.raises(DatasetError, match=message), opened(path) as loader:
        list(loader.epoch(0))

    assert multiprocessing.active_children() == []


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"decoder": "pillow"}, "with decoder opencv, but the model requires pillow; use reader own"),
        ({"crop_method": "topleft"}, "with crop_method center, but the model requires topleft"),
        ({"keep_aspect_ratio": False}, "with keep_aspect_ratio true, but the model requires false"),
        ({"interpolation": "lanczos"}, "does not resize with interpolation lanczos; use reader own"),
    ],
)
def test_what_the_iterator_cannot_preprocess_is_refused(
    change: dict[str, object], message: str, tmp_path: Path
) -> None:
    from inferometer.agent.frameworks.mxnet.record_iterator import MXNetRecordReader

    path = written(tmp_path / "a.rec", [encoded(0)])
    parameters = ImageParameters.model_validate({**PARAMETERS.model_dump(), **change})

    with pytest.raises(ConfigurationError, match=message):  # here, and not in a process that imports MXNet
        MXNetRecordReader(path, 1, parameters, RecordOptions(batch_size=1, threads=1))


def test_other_formats_and_several_ranks_are_refused(tmp_path: Path) -> None:
    (tmp_path / "a.jpg").write_bytes(encoded(0))
    folder = FolderDataset(tmp_path, "vision")
    with pytest.raises(
        ConfigurationError, match="no framework has a reader of image_folder, only of recordio"
    ):
        open_framework_reader(folder, PARAMETERS, LoaderOptions(1))

    records = RecordDataset(written(tmp_path / "a.rec", [encoded(0)] * 2), "vision")
    with pytest.raises(ConfigurationError, match="a framework's reader is for one rank"):
        open_framework_reader(records, PARAMETERS, LoaderOptions(1, ranks=2))


def test_without_an_index_a_shuffled_order_is_refused(tmp_path: Path) -> None:
    path = written(tmp_path / "a.rec", [encoded(0)] * 2)
    path.with_suffix(".idx").unlink()

    with pytest.raises(ConfigurationError, match=r"a\.idx does not exist; MXNet cannot shuffle"):
        opened(path, shuffle=True)
    # what the reader refuses comes from its process, which has ended
    assert multiprocessing.active_children() == []
