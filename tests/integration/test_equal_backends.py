"""512 images in every back end give the same tensors in the same order with the same labels."""

from __future__ import annotations

import hashlib
from pathlib import Path

import numpy as np
import pytest

from inferometer.agent.preprocessing.preprocessor import ImagePreprocessor
from inferometer.evaluators.conversion.convert import TARGETS, convert
from inferometer.evaluators.conversion.writers import Encoding
from inferometer.evaluators.datasets.base import Dataset
from inferometer.evaluators.datasets.opening import open_path
from inferometer.manifests.inputs import ImageParameters
from tests.dataset_files import encoded, items, raw, write_folder, write_lmdb, write_npz, write_records

COUNT = 512
PARAMETERS = ImageParameters(
    dimensions=(3, 24, 24), mean=(120.0, 110.0, 100.0), scale=(60.0,), keep_aspect_ratio=True
)


def checksum(dataset: Dataset) -> str:
    """The SHA-256 of all preprocessed tensors with their labels, in order."""
    preprocess = ImagePreprocessor(PARAMETERS)
    digest = hashlib.sha256()
    for sample in dataset:
        digest.update(preprocess(sample.read()).tobytes())
        digest.update(f"{sample.label}\n".encode())
    dataset.close()
    return digest.hexdigest()


@pytest.mark.parametrize("kind", ["PNG", "JPEG"])
def test_each_back_end_gives_the_same_tensors(tmp_path: Path, kind: str) -> None:
    made = items(COUNT, side=32, kind=kind)
    folder = write_folder(tmp_path / "folder", made, ".png" if kind == "PNG" else ".jpg")
    paths = [
        folder,
        write_records(tmp_path / "train.rec", made),
        write_records(tmp_path / "unindexed.rec", made, index=False),
        write_lmdb(tmp_path / "encoded", encoded(made)),
        write_lmdb(tmp_path / "raw", raw(made)),
        write_npz(tmp_path / "pixels.npz", made),
    ]

    found = {path.name: checksum(open_path(path, "vision")) for path in paths}

    assert len(set(found.values())) == 1, found
    assert len(open_path(folder, "vision")) == COUNT


@pytest.mark.parametrize("target", [*TARGETS, "raw"])
def test_what_is_converted_gives_the_same_tensors(tmp_path: Path, target: str) -> None:
    made = items(40, side=32, kind="JPEG")
    folder = write_folder(tmp_path / "folder", made, ".jpg")
    source = open_path(folder, "vision")
    backend = "caffe_lmdb" if target == "raw" else target
    place = tmp_path / ("converted.npz" if target == "npz" else "converted")

    done = convert(source, place, backend, Encoding(raw=target == "raw"))

    converted = open_path(place, "vision")
    assert converted.backend == backend
    assert done.samples == len(converted) == 40
    assert checksum(converted) == checksum(source)


def test_other_pixels_labels_or_orders_give_another_checksum(tmp_path: Path) -> None:
    made = items(8)
    whole = checksum(open_path(write_npz(tmp_path / "a.npz", made), "vision"))
    np.savez(tmp_path / "b.npz", images=np.stack([i.pixels for i in made]), labels=np.arange(8) + 1)

    assert checksum(open_path(tmp_path / "b.npz", "vision")) != whole
    assert checksum(open_path(write_npz(tmp_path / "c.npz", made[::-1]), "vision")) != whole
