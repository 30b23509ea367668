"""CIFAR-10, MNIST and the validation images of ILSVRC 2012, in the files that their publishers offer."""

from __future__ import annotations

import gzip
import os
import pickle
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import scipy.io

from inferometer.agent.preprocessing.inputs import EncodedImage, Pixels
from inferometer.evaluators.datasets.base import Dataset
from inferometer.evaluators.datasets.ilsvrc2012 import ValidationDataset, read_structures
from inferometer.evaluators.datasets.small_images import CLASSES, CifarDataset, IdxDataset
from inferometer.manifests.errors import DatasetError, InputError
from tests.dataset_files import Item, cifar_pickle, cifar_records, idx, items, write_archive, write_idx

IMAGES = items(20, side=32)
TRUTH = "ILSVRC2012_validation_ground_truth.txt"


def pixels(dataset: Dataset) -> list[np.ndarray]:
    payloads = [sample.read() for sample in dataset]
    return [payload.array for payload in payloads if isinstance(payload, Pixels)]


def check_cifar(dataset: Dataset, made: list[Item]) -> None:
    assert [sample.label for sample in dataset] == [CLASSES[item.label] for item in made]
    for found, item in zip(pixels(dataset), made, strict=True):
        np.testing.assert_array_equal(found, item.pixels)


def binary(folder: Path) -> Path:
    folder.mkdir(parents=True)
    (folder / "data_batch_1.bin").write_bytes(cifar_records(IMAGES[:5]))
    (folder / "data_batch_2.bin").write_bytes(cifar_records(IMAGES[5:12]))
    (folder / "test_batch.bin").write_bytes(cifar_records(IMAGES[12:]))
    return folder


def python(folder: Path) -> Path:
    folder.mkdir(parents=True)
    (folder / "data_batch_1").write_bytes(cifar_pickle(IMAGES[:5]))
    (folder / "data_batch_2").write_bytes(cifar_pickle(IMAGES[5:12], protocol=4))
    (folder / "test_batch").write_bytes(cifar_pickle(IMAGES[12:]))
    return folder


def archive(folder: Path) -> Path:
    content = {
        f"cifar-10-batches-py/{path.name}": path.read_bytes() for path in python(folder / "x").iterdir()
    }
    return write_archive(
        folder / "cifar-10-python.tar.gz", {"cifar-10-batches-py/readme.html": b"", **content}
    )


@pytest.mark.parametrize("make", [binary, python, archive])
def test_a_folder_or_an_archive_of_cifar_is_what_is_for_training(
    tmp_path: Path, make: Callable[[Path], Path]
) -> None:
    check_cifar(CifarDataset(make(tmp_path / "cifar"), "vision"), IMAGES[:12])


@pytest.mark.parametrize(
    ("make", "name"), [(binary, "test_batch.bin"), (python, "test_batch"), (archive, "test_batch")]
)
def test_the_test_batch_is_named(tmp_path: Path, make: Callable[[Path], Path], name: str) -> None:
    dataset = CifarDataset(make(tmp_path / "cifar") / name, "vision")

    check_cifar(dataset, IMAGES[12:])
    check_cifar(pickle.loads(pickle.dumps(dataset)), IMAGES[12:])


def test_a_folder_above_the_unpacked_one_and_the_test_batch_alone_are_found(tmp_path: Path) -> None:
    folder = binary(tmp_path / "cifar-10-batches-bin")

    check_cifar(CifarDataset(tmp_path, "vision"), IMAGES[:12])
    for name in ("data_batch_1.bin", "data_batch_2.bin"):
        (folder / name).unlink()
    check_cifar(CifarDataset(folder, "vision"), IMAGES[12:])


def test_a_missing_batch_is_named(tmp_path: Path) -> None:
    (binary(tmp_path / "cifar") / "data_batch_1.bin").unlink()

    with pytest.raises(DatasetError, match="data_batch_1 is missing, but data_batch_2 is there"):
        CifarDataset(tmp_path / "cifar", "vision")


def test_a_class_above_nine_fails_as_an_input(tmp_path: Path) -> None:
    path = tmp_path / "data_batch_1.bin"
    path.write_bytes(cifar_records(IMAGES[:2]) + b"\x0a" + cifar_records(IMAGES[:1])[1:])

    dataset = CifarDataset(path, "vision")

    assert dataset.sample(2).label is None
    with pytest.raises(InputError, match="record 2: has the class 10; accepted: 0 to 9"):
        dataset.sample(2).read()


def test_truncated_files_of_cifar_are_refused_with_the_place(tmp_path: Path) -> None:
    path = tmp_path / "data_batch_1.bin"
    path.write_bytes(cifar_records(IMAGES[:3])[:-100])
    with pytest.raises(DatasetError, match="record 2 at byte 6146 has 2973 bytes of 3073"):
        CifarDataset(path, "vision")
    path = tmp_path / "data_batch_1"
    path.write_bytes(cifar_pickle(IMAGES[:3])[:-100])
    with pytest.raises(DatasetError, match="data_batch_1: is not a pickle of arrays, or is damaged"):
        CifarDataset(path, "vision")
    whole = archive(tmp_path / "a")
    os.truncate(whole, whole.stat().st_size // 2)
    with pytest.raises(DatasetError, match=r"cifar-10-python\.tar\.gz: is truncated or damaged"):
        CifarDataset(whole, "vision")


class Malicious:
    """An object whose pickle runs a command."""

    def __reduce__(self) -> tuple[Callable[[str], int], tuple[str]]:
        return os.system, ("touch pwned",)


@pytest.mark.parametrize("protocol", range(5))
def test_a_pickle_runs_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, protocol: int) -> None:
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "data_batch_1"
    path.write_bytes(pickle.dumps({b"data": Malicious(), b"labels": [1]}, protocol))

    with pytest.raises(DatasetError, match=r"it names posix\.system, which is not allowed"):
        CifarDataset(path, "vision")
    assert not (tmp_path / "pwned").exists()


def test_a_pickle_of_other_things_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "data_batch_1"
    for content in ([1, 2], {b"data": [1]}, {b"data": np.ones((2, 3072), "f8"), b"labels": [1, 2]}):
        path.write_bytes(pickle.dumps(content, 2))
        with pytest.raises(DatasetError, match="data_batch_1: "):
            CifarDataset(path, "vision")
    path.write_bytes(pickle.dumps({b"data": np.ones((2, 3072), "u1"), b"labels": [1, 2, 3]}, 2))
    with pytest.raises(DatasetError, match=r"data of shape \[2, 3072\] and 3 labels"):
        CifarDataset(path, "vision")


DIGITS = np.random.default_rng(0).integers(0, 256, (7, 9, 11), np.uint8)
NUMBERS = np.arange(7, dtype=np.uint8)


@pytest.mark.parametrize("zipped", [True, False])
def test_the_files_of_mnist_are_read(tmp_path: Path, zipped: bool) -> None:
    write_idx(tmp_path, DIGITS, NUMBERS, zipped=zipped)
    other = write_idx(tmp_path, DIGITS[:2], NUMBERS[:2], part="t10k", zipped=zipped)

    dataset = IdxDataset(tmp_path, "vision")

    np.testing.assert_array_equal(pixels(dataset), DIGITS)
    assert [sample.label for sample in dataset] == list("0123456")
    assert len(IdxDataset(other, "vision")) == 2
    assert len(pickle.loads(pickle.dumps(dataset))) == 7


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda content: content[:10], "is truncated at byte 10, in its header"),
        (lambda content: content[:-1], r"ends at byte 709, but the file ends at byte 708"),
        (lambda content: content + b"x", "the file has more"),
        (
            lambda content: b"\0\0\x0d\x03" + content[4:],
            "begins with the bytes 00 00 0d 03; accepted: 00 00 08 03",
        ),
        (lambda content: b"", "begins with the bytes of an empty file"),
        (lambda content: content[:4] + b"\xff" * 12, "has an array of shape"),
        (lambda content: content[:4] + bytes(12), "has an array of shape"),
        (lambda content: idx(DIGITS[:6]), "has 7 labels, but .* has 6 images"),
        (lambda content: gzip.compress(content)[:-30], "is truncated or damaged"),
    ],
)
def test_damaged_files_of_mnist_are_refused(
    tmp_path: Path, change: Callable[[bytes], bytes], message: str
) -> None:
    path = write_idx(tmp_path, DIGITS, NUMBERS)
    path.write_bytes(change(path.read_bytes()))

    with pytest.raises(DatasetError, match=message):
        IdxDataset(path, "vision")


def test_images_without_labels_are_refused(tmp_path: Path) -> None:
    write_idx(tmp_path, DIGITS, NUMBERS)
    (tmp_path / "train-labels-idx1-ubyte").unlink()

    with pytest.raises(DatasetError, match=r"has no labels: .*train-labels-idx1-ubyte is missing"):
        IdxDataset(tmp_path, "vision")


PHOTOS = items(4, kind="JPEG")
NAMES = [f"ILSVRC2012_val_{number:08d}.JPEG" for number in range(1, 5)]


def images_folder(folder: Path) -> Path:
    folder.mkdir()
    for name, item in zip(NAMES, PHOTOS, strict=True):
        (folder / name).write_bytes(item.content)
    return folder


def images_tar(folder: Path) -> Path:
    folder.mkdir()
    members = {name: item.content for name, item in zip(NAMES, PHOTOS, strict=True)}
    write_archive(folder / "ILSVRC2012_img_val.tar", members, "w")
    return folder


def meta(path: Path) -> Path:
    """A ``meta.mat`` as that of the kit: the number of each class is not in the order of the WordNet ids."""
    fields = [("ILSVRC2012_ID", "O"), ("WNID", "O"), ("words", "O"), ("num_children", "O"), ("children", "O")]
    rows = [
        (float(number), f"n{90000000 - number}", "a, b", 0.0, np.empty((0, 0))) for number in range(1, 1861)
    ]
    scipy.io.savemat(path, {"synsets": np.array(rows, dtype=fields)[:, None]}, do_compression=True)
    return path


@pytest.mark.parametrize("make", [images_folder, images_tar])
def test_val_txt_counts_the_sorted_wordnet_ids_from_0(tmp_path: Path, make: Callable[[Path], Path]) -> None:
    folder = make(tmp_path / "val")
    (folder / "val.txt").write_text(
        "".join(f"{name} {n}\n" for n, name in zip((65, 0, 999, 1), NAMES, strict=True))
    )

    dataset = ValidationDataset(folder, "vision")

    assert [sample.label for sample in dataset] == ["n01751748", "n01440764", "n15075141", "n01443537"]
    assert [sample.read() for sample in dataset] == [EncodedImage(item.content) for item in PHOTOS]
    assert [sample.id for sample in pickle.loads(pickle.dumps(dataset))] == NAMES
    assert dataset.identity.name == "ilsvrc2012_validation"


@pytest.mark.parametrize("place", ["beside", "kit", "archive", "above"])
def test_the_ground_truth_of_the_kit_is_translated_by_meta_mat(tmp_path: Path, place: str) -> None:
    folder = images_folder(tmp_path / "val")
    data = {"beside": folder, "above": tmp_path}.get(place, folder / "ILSVRC2012_devkit_t12" / "data")
    data.mkdir(parents=True, exist_ok=True)
    (data / TRUTH).write_text("490\n361\n171\n1000\n822\n")
    meta(data / "meta.mat")
    if place == "archive":
        members = {f"ILSVRC2012_devkit_t12/data/{path.name}": path.read_bytes() for path in data.iterdir()}
        write_archive(folder / "ILSVRC2012_devkit_t12.tar.gz", members)
        for path in data.iterdir():
            path.unlink()

    labels = [sample.label for sample in ValidationDataset(folder, "vision")]

    assert labels == [f"n{90000000 - number}" for number in (490, 361, 171, 1000)]


def test_synsets_in_the_order_of_the_numbers_translate_them_and_sorted_ones_do_not(tmp_path: Path) -> None:
    folder = images_folder(tmp_path / "val")
    (folder / TRUTH).write_text("1\n2\n2\n1\n")
    (folder / "synsets.txt").write_text("n02119789\nn02100735\n")
    labels = [sample.label for sample in ValidationDataset(folder, "vision")]
    assert labels == ["n02119789", "n02100735", "n02100735", "n02119789"]

    (folder / "synsets.txt").write_text("n02100735\nn02119789\n")
    with pytest.raises(DatasetError, match=r"synsets\.txt: is sorted, .* put meta\.mat of the kit beside it"):
        ValidationDataset(folder, "vision")


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("val.txt", f"{NAMES[0]} 1\n", f"val.txt: has no class for {NAMES[1]}"),
        ("val.txt", "".join(f"{name} 1000\n" for name in NAMES), "the class 1000; accepted: 0 to 999"),
        ("val.txt", "nonsense\n", "val.txt: line 1: accepted: a name and an index"),
        (TRUTH, "1\n2\n", r"ground_truth\.txt: has numbers of classes; put meta\.mat"),
        (TRUTH, "1\nx\n", "line 2: accepted: the number of a class"),
        ("other.txt", "", r"has no val\.txt and no ILSVRC2012_validation_ground_truth\.txt"),
    ],
)
def test_classes_that_are_missing_or_wrong_are_named(
    tmp_path: Path, name: str, text: str, message: str
) -> None:
    folder = images_folder(tmp_path / "val")
    (folder / name).write_text(text)

    with pytest.raises(DatasetError, match=message):
        ValidationDataset(folder, "vision")


def test_a_truncated_tar_is_refused_and_one_that_shrinks_fails_its_inputs(tmp_path: Path) -> None:
    folder = images_tar(tmp_path / "val")
    (folder / "val.txt").write_text("".join(f"{name} 1\n" for name in NAMES))
    dataset = ValidationDataset(folder, "vision")
    tar = folder / "ILSVRC2012_img_val.tar"
    os.truncate(tar, 700)

    with pytest.raises(InputError, match=f"{NAMES[3]} at byte .* is cut off"):
        dataset.sample(3).read()
    with pytest.raises(DatasetError, match=r"img_val\.tar: is truncated or damaged after byte"):
        ValidationDataset(folder, "vision")


@pytest.mark.parametrize("compressed", [True, False])
def test_structures_of_matlab_are_what_scipy_wrote(tmp_path: Path, compressed: bool) -> None:
    rows = [(1.0, "n1", "größe", np.arange(3.0)), (250.0, "n2", "", np.empty((0, 0)))]
    fields = [("number", "O"), ("name", "O"), ("words", "O"), ("list", "O")]
    path = tmp_path / "a.mat"
    content = {"other": np.eye(3), "synsets": np.array(rows, dtype=fields)}
    scipy.io.savemat(path, content, do_compression=compressed)

    found = read_structures(path.read_bytes(), "synsets", "a.mat")

    assert found == [
        {"number": 1, "name": "n1", "words": "größe", "list": [0, 1, 2]},
        {"number": 250, "name": "n2", "words": "", "list": []},
    ]
    with pytest.raises(DatasetError, match=r"a\.mat: has no structures called nothing"):
        read_structures(path.read_bytes(), "nothing", "a.mat")
