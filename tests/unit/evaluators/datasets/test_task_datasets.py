"""Folders of masks and of pairs, VOC and tables of numbers are read as they are, and damage is named."""

from __future__ import annotations

import pickle
import struct
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from inferometer.agent.preprocessing.inputs import EncodedImage
from inferometer.evaluators.conversion.convert import convert
from inferometer.evaluators.datasets.annotated_images import read_mask, read_target
from inferometer.evaluators.datasets.base import ClassMap, Dataset, TargetImage, TargetValues
from inferometer.evaluators.datasets.files import read_image
from inferometer.evaluators.datasets.opening import backend_of, open_path
from inferometer.manifests.errors import ConfigurationError, DatasetError, InputError
from tests.task_dataset_files import (
    NUMBERS,
    colour,
    grey,
    listed,
    mask_folder,
    paired_folder,
    palette,
    saved,
    table,
    voc,
)

READ = [[0, 1, 2], [3, -1, 0]]


def npz(root: Path, **arrays: Any) -> Path:
    root.mkdir(exist_ok=True)
    np.savez(root / "a.npz", **{"inputs": np.zeros((2, 3), np.float32), **arrays})
    return root / "a.npz"


@pytest.mark.parametrize(
    ("backend", "maker"),
    [
        ("mask_folder", mask_folder),
        ("voc_segmentation", voc),
        ("voc_segmentation", lambda root: listed(voc(root), "train.txt", "2007_1")),
        ("paired_folder", paired_folder),
        ("values_csv", table),
        ("npz", lambda root: npz(root, targets=np.zeros(2))),
    ],
)
def test_a_dataset_is_recognised_and_survives_a_pickle(
    tmp_path: Path, backend: str, maker: Callable[[Path], Path]
) -> None:
    path = maker(tmp_path / "data")
    assert backend_of(path) == backend
    dataset = open_path(path, "vision")
    assert dataset.backend == backend
    again: Dataset = pickle.loads(pickle.dumps(dataset))
    assert [sample.id for sample in again] == [sample.id for sample in dataset]
    assert len(dataset) == len(list(dataset)) > 0
    assert all(file.exists() for file in dataset.files())
    assert type(again.sample(0).read_truth()) is type(dataset.sample(0).read_truth()) is not type(None)


def test_masks_belong_to_the_images_of_their_names(tmp_path: Path) -> None:
    dataset = open_path(mask_folder(tmp_path), "vision")
    assert [sample.id for sample in dataset] == ["a.jpg", "b.jpg", "deep/c.jpg"]
    sample = dataset.sample(2)
    assert isinstance(sample.read(), EncodedImage)
    truth = sample.read_truth()
    assert isinstance(truth, ClassMap)
    assert (truth.pixels.dtype, truth.pixels.tolist(), truth.classes) == (np.int32, READ, ())


def test_the_classes_have_names_that_are_known_before_a_mask_is_read(tmp_path: Path) -> None:
    (mask_folder(tmp_path) / "classes.txt").write_text("sky\nsea\nsand\nship\n")
    sample = open_path(tmp_path, "vision").sample(0)
    (tmp_path / "masks" / "a.png").write_bytes(b"")
    assert getattr(sample.truth, "classes", None) == ("sky", "sea", "sand", "ship")
    with pytest.raises(DatasetError, match=r"mask .*a\.png"):
        sample.read_truth()


@pytest.mark.parametrize(
    ("image", "options"),
    [
        (grey(), {}),
        (palette(), {}),
        (Image.fromarray(NUMBERS.astype(np.uint16)), {}),
        (Image.fromarray(np.where(NUMBERS == 255, np.uint16(65535), NUMBERS)), {}),
    ],
)
def test_grey_and_palette_and_16_bits_mean_the_same(
    tmp_path: Path, image: Image.Image, options: dict[str, Any]
) -> None:
    assert read_mask(saved(tmp_path / "a.png", image, **options)).pixels.tolist() == READ


@pytest.mark.parametrize("bits", [1, 2, 4])
def test_a_palette_of_few_bits_keeps_its_places(tmp_path: Path, bits: int) -> None:
    numbers = np.array([[0, 1], [2**bits - 1, 0]], np.uint8)
    path = saved(tmp_path / "a.png", palette(numbers), bits=bits)
    assert path.read_bytes()[24] == bits
    assert read_mask(path).pixels.tolist() == numbers.tolist()


@pytest.mark.parametrize("bits", [1, 2, 4])
def test_grey_of_few_bits_is_not_stretched(tmp_path: Path, bits: int) -> None:
    numbers = np.array([[0, 1], [2**bits - 1, 0]], np.uint8)
    content = saved(tmp_path / "a.png", palette(numbers), bits=bits).read_bytes()
    # without the palette and as grey, which Pillow does not write
    path = tmp_path / "grey.png"
    path.write_bytes(as_grey(content))
    with Image.open(path) as image:
        assert image.mode == ("1" if bits == 1 else "L")
    assert read_mask(path).pixels.tolist() == numbers.tolist()


def as_grey(content: bytes) -> bytes:
    """A PNG with a palette as a grey one of as many bits."""
    found, place = content[:8], 8
    while place < len(content):
        (length,) = struct.unpack_from(">I", content, place)
        kind, data = content[place + 4 : place + 8], content[place + 8 : place + 8 + length]
        place += length + 12
        if kind == b"IHDR":
            data = data[:9] + b"\0" + data[10:]
        if kind != b"PLTE":
            found += struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
    return found


def test_with_many_classes_255_is_one(tmp_path: Path) -> None:
    numbers = np.array([[254, 255, 256, 65535]], np.uint16)
    path = saved(tmp_path / "a.png", Image.fromarray(numbers))
    many = tuple(map(str, range(300)))
    assert read_mask(path, many).pixels.tolist() == [[254, 255, 256, -1]]
    assert read_mask(path).pixels.tolist() == [[254, -1, 256, -1]]


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (colour(), "is an image in colour (RGB); a mask's pixels are numbers of classes"),
        (Image.new("LA", (2, 2)), "is an image in colour (LA)"),
        (grey(NUMBERS[:1] + 4), "has the class 6; the dataset has 4 classes, 0 to 3"),
        (b"", "cannot be decoded"),
        (b"\x89PNG\r\n\x1a\n", "cannot be decoded"),
        (None, "cannot be read: No such file"),
    ],
)
def test_a_mask_that_is_none_is_named(tmp_path: Path, content: Any, said: str) -> None:
    path = tmp_path / "a.png"
    if isinstance(content, bytes):
        path.write_bytes(content)
    elif content is not None:
        saved(path, content)
    with pytest.raises(DatasetError) as caught:
        read_mask(path, ("a", "b", "c", "d"))
    assert str(caught.value).startswith(f"mask {path}: ")
    assert said in str(caught.value)
    assert len(str(caught.value).splitlines()) == 1


def test_a_mask_that_is_cut_anywhere_is_refused_or_read_as_it_was(tmp_path: Path) -> None:
    content = saved(tmp_path / "a.png", palette()).read_bytes()
    for length in range(len(content)):
        (tmp_path / "a.png").write_bytes(content[:length])
        try:
            pixels = read_mask(tmp_path / "a.png").pixels.tolist()
        except DatasetError:
            continue
        assert pixels == READ


def test_a_jpeg_is_no_mask(tmp_path: Path) -> None:
    saved(tmp_path / "images" / "a.jpg", colour())
    saved(tmp_path / "masks" / "a.jpg", grey())
    with pytest.raises(DatasetError, match=r"it is none of the formats PNG"):
        open_path(tmp_path, "vision").sample(0).read_truth()


def test_voc_is_its_validation_images_and_any_list_of_it(tmp_path: Path) -> None:
    assert [each.id for each in open_path(voc(tmp_path), "vision")] == [
        "2007_1.jpg",
        "2007_2.jpg",
        "2007_3.jpg",
    ]
    listed(tmp_path, "val.txt", "2007_3", "2007_1")
    train = listed(tmp_path, "train.txt", "2007_2")
    dataset = open_path(tmp_path, "vision")
    assert [each.id for each in dataset] == ["2007_3.jpg", "2007_1.jpg"]
    assert [each.id for each in open_path(train, "vision")] == ["2007_2.jpg"]
    truth = dataset.sample(0).read_truth()
    assert isinstance(truth, ClassMap)
    assert truth.pixels.tolist() == READ
    assert (len(truth.classes), truth.classes[:2], truth.classes[-1]) == (
        21,
        ("background", "aeroplane"),
        "tvmonitor",
    )


@pytest.mark.parametrize("name", ["2007_9", "2008_1", "../2007_1", ".hidden"])
def test_a_list_of_voc_that_names_what_is_not_there_is_refused(tmp_path: Path, name: str) -> None:
    listed(voc(tmp_path), "val.txt", "2007_1", name)
    with pytest.raises(DatasetError, match=rf"{name.removeprefix('../').removeprefix('.')}"):
        open_path(tmp_path, "vision")


def test_an_empty_list_of_voc_is_refused(tmp_path: Path) -> None:
    listed(voc(tmp_path), "val.txt")
    with pytest.raises(DatasetError, match=r"val\.txt: names no images"):
        open_path(tmp_path, "vision")


def test_targets_have_the_channels_of_their_files(tmp_path: Path) -> None:
    truth = open_path(paired_folder(tmp_path), "vision").sample(0).read_truth()
    assert isinstance(truth, TargetImage)
    assert (truth.pixels.shape, truth.pixels.dtype) == ((4, 6, 3), np.uint8)
    assert truth.pixels[3, 5].tolist() == [7, 0, 0]
    assert read_target(saved(tmp_path / "g.png", grey())).pixels[..., 0].tolist() == NUMBERS.tolist()
    deep = Image.fromarray((NUMBERS.astype(np.uint16) << 8) + 3)
    assert read_target(saved(tmp_path / "d.png", deep)).pixels[..., 0].tolist() == NUMBERS.tolist()
    assert read_target(saved(tmp_path / "p.png", palette())).pixels.shape == (2, 3, 3)


def test_a_target_that_is_no_image_is_named(tmp_path: Path) -> None:
    paired_folder(tmp_path)
    (tmp_path / "targets" / "1.png").write_text("none")
    with pytest.raises(DatasetError, match=r"target .*1\.png: image of 4 bytes cannot be decoded"):
        open_path(tmp_path, "vision").sample(0).read_truth()


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda r: (r / "masks" / "b.png").unlink(), "images/b.jpg: there is no masks/b.*"),
        (lambda r: (r / "images" / "b.jpg").unlink(), "masks/b.png: there is no image images/b.*"),
        (lambda r: saved(r / "images" / "b.png", colour()), "b.png: has the name of b.jpg"),
        (lambda r: (r / "classes.txt").write_text("a\na\n"), "classes.txt: has the class a twice"),
        (lambda r: (r / "classes.txt").write_bytes(b"\xff"), "classes.txt: is not UTF-8"),
        (lambda r: (r / "masks" / ".hidden").touch(), ""),
        (lambda r: (r / "images" / "notes.txt").touch(), ""),
    ],
)
def test_a_pair_without_a_partner_is_named(tmp_path: Path, change: Callable[[Path], Any], said: str) -> None:
    change(mask_folder(tmp_path))
    if not said:
        assert len(open_path(tmp_path, "vision")) == 3
        return
    with pytest.raises(DatasetError) as caught:
        open_path(tmp_path, "vision")
    assert said in str(caught.value)
    assert len(str(caught.value).splitlines()) == 1


def test_folders_without_images_are_refused(tmp_path: Path) -> None:
    for name in ("images", "masks"):
        (tmp_path / name).mkdir()
    with pytest.raises(DatasetError, match="images: holds no images"):
        open_path(tmp_path, "vision")


def test_folders_that_may_be_two_datasets_are_not_guessed(tmp_path: Path) -> None:
    paired_folder(mask_folder(tmp_path))
    with pytest.raises(DatasetError, match="may be mask_folder or paired_folder"):
        open_path(tmp_path, "vision")
    assert len(open_path(tmp_path, "vision", "paired_folder")) == 1


def test_a_table_has_the_numbers_of_its_files(tmp_path: Path) -> None:
    dataset = open_path(table(tmp_path, "\ufefffile,x,y\r\n1.png, 0.5,-2\r\n\r\n2.png,1e3,4\r\n"), "vision")
    assert [sample.id for sample in dataset] == ["1.png", "2.png"]
    truths = [sample.read_truth() for sample in dataset]
    assert all(isinstance(truth, TargetValues) for truth in truths)
    assert [truth.values.tolist() for truth in truths if isinstance(truth, TargetValues)] == [
        [0.5, -2],
        [1000, 4],
    ]
    assert isinstance(dataset.sample(1).read(), EncodedImage)
    assert dataset.identity.checksum is not None


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("file,x\n1.png,a\n", 'line 2: "a" is not a finite number'),
        ("file,x\n1.png,nan\n", 'line 2: "nan" is not a finite number'),
        ("file,x\n1.png,1,2\n", "line 2: has 3 values; the header has 2 columns"),
        ("file,x\n/etc/1.png,1\n", 'line 2: "/etc/1.png" is not a path in the folder of the table'),
        ("file,x\n../1.png,1\n", '"../1.png" is not a path'),
        ("file,x\n,1\n", '"" is not a path'),
        ("file,x\n", "has no line with a file and its numbers"),
        ("image,x\n1.png,1\n", "line 2: the first column is file, and one or more are numbers"),
        ("file\n1.png\n", "line 2: the first column is file"),
        ("file,x,x\n1.png,1,2\n", "line 1: two columns have the same name"),
        ("", "has no line with a file and its numbers"),
        ('file,x\n"1.png,1\n', "line 2: is not CSV; a quote is closed at the end"),
    ],
)
def test_a_table_that_is_none_is_named(tmp_path: Path, text: str, said: str) -> None:
    with pytest.raises(DatasetError) as caught:
        open_path(table(tmp_path, text), "vision", "values_csv")
    assert said in str(caught.value)
    assert len(str(caught.value).splitlines()) == 1


def test_a_name_that_no_file_can_have_fails_its_input(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"a\\x00b.png: is not a path: "):
        read_image(tmp_path / "a\0b.png")


def test_a_table_that_is_not_utf_8_is_named(tmp_path: Path) -> None:
    path = table(tmp_path)
    path.write_bytes(b"file,x\n\xff.png,1\n")
    with pytest.raises(DatasetError, match="line 2: is not UTF-8"):
        open_path(path, "vision", "values_csv")


@pytest.mark.parametrize("targets", [np.array([1, 2]), np.array([[1.5], [2.5]]), np.ones((2, 3), np.float16)])
def test_an_npz_has_targets(tmp_path: Path, targets: Any) -> None:
    dataset = open_path(npz(tmp_path, targets=targets), "vision")
    truth = dataset.sample(1).read_truth()
    assert isinstance(truth, TargetValues)
    assert truth.values.tolist() == np.atleast_1d(targets[1]).tolist()
    assert open_path(npz(tmp_path), "vision").sample(0).read_truth() is None


@pytest.mark.parametrize(
    ("targets", "said"),
    [
        (np.zeros(3), "targets are float64 of shape [3]; accepted for 2 samples"),
        (np.zeros((2, 0)), "of shape [2, 0]"),
        (np.zeros((2, 1, 1)), "of shape [2, 1, 1]"),
        (np.array(["a", "b"]), "targets are <U1"),
        (np.array([0, np.nan]), "a target of sample 1 is not a finite number"),
    ],
)
def test_targets_that_are_none_are_refused(tmp_path: Path, targets: Any, said: str) -> None:
    with pytest.raises(DatasetError) as caught:
        open_path(npz(tmp_path, targets=targets), "vision")
    assert said in str(caught.value)


def test_no_other_format_holds_what_is_true_of_pixels(tmp_path: Path) -> None:
    dataset = open_path(mask_folder(tmp_path / "data"), "vision")
    with pytest.raises(ConfigurationError, match="has truths other than classes, such as masks or targets"):
        convert(dataset, tmp_path / "a.rec", "recordio")
    assert not list(tmp_path.glob("a.rec*"))
