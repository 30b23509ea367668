"""Which format lies at a path is found out, or what was looked for is said."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from inferometer.evaluators.datasets.opening import BACKENDS, backend_of, open_dataset, open_path
from inferometer.manifests.catalog import Catalog
from inferometer.manifests.errors import ConfigurationError, DatasetError
from inferometer.manifests.files import BUILTIN
from tests.dataset_files import (
    cifar_pickle,
    cifar_records,
    encoded,
    items,
    write_archive,
    write_coco,
    write_folder,
    write_idx,
    write_lmdb,
    write_npz,
    write_records,
    write_voc,
)
from tests.task_dataset_files import mask_folder, paired_folder, table, voc

DIGITS = BUILTIN / "datasets" / "digits_validation" / "digits_validation.zip"
IMAGES = items(4)
LARGE = items(4, side=32)
SQUAD = b'{"data": [{"paragraphs": [{"context": "x", "qas": [{"id": "1", "question": "", "answers": []}]}]}]}'


def _made(folder: Path, name: str, content: bytes) -> Path:
    folder.mkdir(exist_ok=True)
    (folder / name).write_bytes(content)
    return folder / name


def _validation(folder: Path) -> Path:
    folder.mkdir()
    for number, item in enumerate(items(2, kind="JPEG"), start=1):
        (folder / f"ILSVRC2012_val_{number:08d}.JPEG").write_bytes(item.content)
    (folder / "val.txt").write_text("ILSVRC2012_val_00000001.JPEG 1\nILSVRC2012_val_00000002.JPEG 2\n")
    return folder


def _zip(folder: Path) -> Path:
    return _made(folder, "digits.zip", DIGITS.read_bytes())


def _archive(folder: Path) -> Path:
    folder.mkdir()
    return write_archive(folder / "cifar-10-python.tar.gz", {"a/data_batch_1": cifar_pickle(LARGE)})


def _tar(folder: Path) -> Path:
    flat = _validation(folder)
    members = {path.name: path.read_bytes() for path in flat.glob("*.JPEG")}
    for path in flat.glob("*.JPEG"):
        path.unlink()
    return write_archive(flat / "ILSVRC2012_img_val.tar", members, "w")


MAKERS: list[tuple[str, Callable[[Path], Path]]] = [
    ("recordio", lambda folder: write_records(_made(folder, "train.rec", b""), IMAGES)),
    ("recordio", lambda folder: write_records(_made(folder, "train.rec", b""), IMAGES).parent),
    ("recordio", lambda folder: write_records(_made(folder, "records", b""), IMAGES)),
    ("caffe_lmdb", lambda folder: write_lmdb(folder, encoded(IMAGES))),
    ("caffe_lmdb", lambda folder: write_lmdb(folder, encoded(IMAGES)) / "data.mdb"),
    ("image_folder", lambda folder: write_folder(folder, IMAGES)),
    ("image_folder", lambda folder: _made(folder, "1.png", IMAGES[0].content).parent),
    ("npz", lambda folder: write_npz(_made(folder, "a.npz", b""), IMAGES)),
    ("npz", lambda folder: write_npz(_made(folder, "a.npz", b""), IMAGES).parent),
    ("zip", _zip),
    ("zip", lambda folder: _zip(folder).parent),
    ("zip", lambda folder: _zip(folder).rename(folder / "digits")),
    ("ilsvrc2012_validation", _validation),
    ("ilsvrc2012_validation", _tar),
    ("ilsvrc2012_validation", lambda folder: _tar(folder).parent),
    ("mask_folder", mask_folder),
    ("voc_segmentation", voc),
    ("paired_folder", paired_folder),
    ("values_csv", lambda folder: table(folder)),
    ("cifar10", lambda folder: _made(folder, "data_batch_1.bin", cifar_records(LARGE))),
    ("cifar10", lambda folder: _made(folder, "data_batch_1", cifar_pickle(LARGE)).parent),
    ("cifar10", _archive),
    ("cifar10", lambda folder: _archive(folder).parent),
    ("cifar10", lambda folder: _archive(folder) / "data_batch_1"),
    ("mnist", lambda folder: write_idx(folder, np.zeros((2, 8, 8), np.uint8), np.zeros(2, np.uint8))),
    ("mnist", lambda folder: write_idx(folder, np.zeros((2, 8, 8), np.uint8), np.zeros(2, np.uint8)).parent),
    ("coco", lambda folder: write_coco(folder, IMAGES)),
    ("coco", lambda folder: write_coco(folder, IMAGES) / "annotations.json"),
    ("voc", lambda folder: write_voc(folder, IMAGES)),
    ("voc", lambda folder: write_voc(folder, IMAGES) / "ImageSets" / "Main" / "val.txt"),
    ("table", lambda folder: _made(folder, "a.csv", b"a,b,label\n1,2,x\n")),
    ("table", lambda folder: _made(folder, "a.tsv", b"file\tb\n1\t2\n")),
    ("table", lambda folder: _made(folder, "a.jsonl", b'{"a": 1, "b": 2.5}')),
    ("jsonl", lambda folder: _made(folder, "a.jsonl", b'{"text": "x"}')),
    ("csv", lambda folder: _made(folder, "a.tsv", b"text\nx\n")),
    ("squad", lambda folder: _made(folder, "a.json", SQUAD)),
]


@pytest.mark.parametrize("number", range(len(MAKERS)))
def test_the_format_is_found_out_and_opens(number: int, tmp_path: Path) -> None:
    backend, make = MAKERS[number]
    path = make(tmp_path / "data")

    assert backend_of(path) == backend
    found = open_path(path, "vision")
    named = open_path(path, "vision", backend)
    assert found.backend == named.backend == backend
    assert [s.label for s in found] == [s.label for s in named]
    assert len(found) > 0
    found.close()
    named.close()


def test_every_format_is_found_out() -> None:
    assert {backend for backend, _ in MAKERS} == set(BACKENDS)


def test_a_folder_with_two_formats_is_unclear_unless_one_is_named(tmp_path: Path) -> None:
    write_records(tmp_path / "train.rec", IMAGES)
    write_npz(tmp_path / "a.npz", IMAGES[:3])

    with pytest.raises(DatasetError, match="may be recordio or npz; name a file in it, or the format"):
        backend_of(tmp_path)
    assert len(open_path(tmp_path, "vision", "npz")) == 3
    assert len(open_path(tmp_path / "train.rec", "vision")) == 4


def test_of_several_records_that_for_training_is_meant_or_one_is_to_be_named(tmp_path: Path) -> None:
    write_records(tmp_path / "val.rec", IMAGES[:1])
    write_records(tmp_path / "test.rec", IMAGES[:1])
    with pytest.raises(DatasetError, match=r"holds 2 \.rec files; name one of them: test\.rec, val\.rec"):
        open_path(tmp_path, "vision")

    write_records(tmp_path / "train.rec", IMAGES)
    assert len(open_path(tmp_path, "vision")) == 4


@pytest.mark.parametrize(
    ("name", "content"), [("notes.txt", b"words"), ("a.npz", b""), (".hidden.png", b"x"), ("a.rec.old", b"x")]
)
def test_what_is_none_says_what_was_looked_for(tmp_path: Path, name: str, content: bytes) -> None:
    path = tmp_path / name
    path.write_bytes(content)

    with pytest.raises(DatasetError):
        open_path(path, "vision")
    if not name.endswith("npz"):
        with pytest.raises(DatasetError, match=r"holds no images; accepted: .* a \.rec, an LMDB's data\.mdb"):
            open_path(tmp_path, "vision")


def test_nothing_at_all_and_an_unknown_format_are_refused(tmp_path: Path) -> None:
    with pytest.raises(DatasetError, match=r"nowhere does not exist; accepted: a folder of class folders"):
        backend_of(tmp_path / "nowhere")
    with pytest.raises(ConfigurationError, match='unknown data_backend "recodio"; did you mean "recordio"'):
        open_path(tmp_path, "vision", "recodio")
    with pytest.raises(DatasetError, match=r"holds no \.rec file, which recordio requires"):
        open_path(tmp_path, "vision", "recordio")


@pytest.mark.parametrize("backend", BACKENDS)
def test_the_wrong_format_is_refused_in_one_line(tmp_path: Path, backend: str) -> None:
    (tmp_path / "file").write_bytes(b"neither one nor the other" * 10)

    for path in (tmp_path, tmp_path / "file", tmp_path / "nothing"):
        with pytest.raises(DatasetError) as caught:
            open_path(path, "vision", backend)
        assert "\n" not in str(caught.value)


def test_a_text_file_beside_images_is_ignored_and_one_named_like_an_image_fails(tmp_path: Path) -> None:
    root = write_folder(tmp_path / "images", IMAGES)
    (root / "0" / "notes.txt").write_text("words")
    (root / "notes.txt").write_text("words")
    assert len(open_path(root, "vision")) == 4

    (root / "0" / "999999.png").write_text("words")
    assert len(open_path(root, "vision")) == 5


def test_parts_are_no_classes(tmp_path: Path) -> None:
    for part in ("train", "val"):
        write_folder(tmp_path / "data" / part, IMAGES)
        write_folder(tmp_path / "classes" / part, IMAGES[:1])
    with pytest.raises(DatasetError, match="data holds the parts train and val; name one of them"):
        open_path(tmp_path / "data", "vision")
    assert len(open_path(tmp_path / "data" / "train", "vision")) == 4

    (tmp_path / "classes" / "bus").mkdir()
    assert backend_of(tmp_path / "classes") == "image_folder"


def test_ilsvrc_is_found_by_name_where_the_configuration_says(tmp_path: Path) -> None:
    folder = _validation(tmp_path / "imagenet")
    catalog = Catalog([], {"ILSVRC2012_validation": folder})

    dataset = open_dataset(catalog.find_dataset("ilsvrc2012_validation"))

    assert [sample.label for sample in dataset] == ["n01443537", "n01484850"]
    assert dataset.identity.name == "ilsvrc2012_validation"
    assert dataset.identity.version == "1.0"
    with pytest.raises(DatasetError, match=r"get ILSVRC2012_img_val.tar .* name the place with dataset_path"):
        open_dataset(Catalog().find_dataset("ilsvrc2012_validation"))
