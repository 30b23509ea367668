"""Datasets of images that each have a file of ground truth: pairs of images, masks, and PASCAL VOC.

For image enhancement, a pair is two images. For segmentation, it is an image and its class map, in folders of
images and masks or in the folders of PASCAL VOC. For detection, PASCAL VOC has an XML file of annotations for
each image.
"""

from __future__ import annotations

import math
import struct
import xml.etree.ElementTree as ElementTree
from abc import abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path, PurePosixPath
from typing import NamedTuple
from xml.parsers import expat

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from inferometer.agent.preprocessing.inputs import FORMATS, PILLOW_ERRORS, in_mode, open_image
from inferometer.evaluators.datasets.base import (
    IGNORED_CLASS,
    ClassMap,
    Objects,
    Sample,
    StoredDataset,
    TargetImage,
    Truth,
    UnreadClassMap,
)
from inferometer.evaluators.datasets.files import (
    IMAGE_SUFFIXES,
    is_image,
    is_shown,
    read_class_names,
    read_image,
    reading,
    walk,
)
from inferometer.manifests.errors import DatasetError, InputError, one_line, printable, printable_name

INPUTS, TARGETS = "inputs", "targets"
_GREY_MODES = ("1", "L", "LA", "I", "F")


class Pair(NamedTuple):
    """The files of one sample.

    Attributes:
        name: The name of the sample, which is the image's path in its folder.
        image: The image.
        truth: The ground truth.
    """

    name: str
    image: Path
    truth: Path


class PairsDataset(StoredDataset):
    """Images with their ground truth in another file. Both are read later, on demand.

    The arguments are those of ``StoredDataset``.
    """

    _pairs: Sequence[Pair]

    def sample(self, index: int) -> Sample:
        """Returns a sample; its image and truth are read later."""
        pair = self._pairs[index]
        return Sample(
            printable_name(pair.name), partial(read_image, pair.image), truth=self.truth(pair.truth)
        )

    @abstractmethod
    def truth(self, path: Path) -> Callable[[], Truth]:
        """Returns the function that reads the truth from a file; it raises DatasetError if that fails."""

    def files(self) -> Iterator[Path]:
        """Returns the files of the images and of their ground truth."""
        return (path for pair in self._pairs for path in (pair.image, pair.truth))


class PairedFolderDataset(PairsDataset):
    """A folder with ``inputs`` and ``targets``: images with the same path except for the suffix.

    A target is grey or in colour, like its file; 16 bits are reduced to 8, and transparency is dropped. Its
    size is that of the model's output, such as twice the input's.

    The arguments are those of ``StoredDataset``.

    Raises:
        DatasetError: An input has no target, or a target has no input.
    """

    backend = "paired_folder"

    def _open(self, path: Path) -> int:
        self._pairs = paired(path, INPUTS, TARGETS)
        return len(self._pairs)

    def truth(self, path: Path) -> Callable[[], Truth]:
        """Returns the function that reads a target."""
        return partial(read_target, path)


def paired(root: Path, images: str, truths: str) -> list[Pair]:
    """Returns the pairs of files from two folders, in the order of the names; hidden files are ignored.

    Args:
        root: The dataset.
        images: The folder of the images in it.
        truths: The folder with a file for each image, of the same path except for the suffix.

    Raises:
        DatasetError: A folder cannot be read, an image has no partner, or two files share a name.
    """
    firsts, seconds = _by_stem(root / images, is_image), _by_stem(root / truths, is_shown)
    if not firsts:
        raise DatasetError(f"{root / images}: holds no images")
    for stem, path in firsts.items():
        if stem not in seconds:
            missing = f"{truths}/{printable_name(stem)}.*"
            raise DatasetError(f"{path}: there is no {missing}; each image requires its ground truth")
    if alone := sorted(seconds.keys() - firsts.keys()):
        raise DatasetError(f"{seconds[alone[0]]}: there is no image {images}/{printable_name(alone[0])}.*")
    return [
        Pair(path.relative_to(root / images).as_posix(), path, seconds[stem])
        for stem, path in sorted(firsts.items())
    ]


def _by_stem(folder: Path, accepted: Callable[[str], bool]) -> dict[str, Path]:
    """Returns the files of a folder by their paths without the suffix."""
    found: dict[str, Path] = {}
    for place, folders, names in walk(folder):
        folders.sort()
        for path in (Path(place, name) for name in sorted(names)):
            if not accepted(path.relative_to(folder).as_posix()):
                continue
            stem = path.relative_to(folder).with_suffix("").as_posix()
            if stem in found:
                raise DatasetError(
                    f"{path}: has the name of {found[stem].name}; one file for each name is allowed"
                )
            found[stem] = path
    return found


def read_target(path: Path) -> TargetImage:
    """Reads the image that a model should produce; raises DatasetError if that fails."""
    with _decoding("target", path):
        image = open_image(read_image(path).content, FORMATS)
        image.load()
        grey = image.mode in _GREY_MODES or image.mode.startswith("I;16")
        pixels = np.array(in_mode(image, "L" if grey else "RGB"))
    return TargetImage(pixels[..., np.newaxis] if grey else pixels)


@contextmanager
def _decoding(what: str, path: Path) -> Iterator[None]:
    """Raises DatasetError if the block cannot read the file of a truth, or it is not an image."""
    try:
        with reading(f"{what} {path}"):
            yield
    except (InputError, Image.DecompressionBombError, *PILLOW_ERRORS) as error:
        raise DatasetError(f"{what} {path}: {one_line(error)}") from error


IMAGES, MASKS = "images", "masks"
VOC_IMAGES, VOC_MASKS = "JPEGImages", "SegmentationClass"
VOC_LISTS = Path("ImageSets", "Segmentation")
_VOC_CLASSES = Path(__file__).with_name("voc_classes.txt")
_IGNORED = 255
_IGNORED_OF_16_BITS = 65535
_BITS_OFFSET = 24
"""The offset of the bit depth in a PNG file, just before the colour type."""
_MOST_BYTE_CLASSES = 255


class _ClassMapsDataset(PairsDataset):
    """Images, each with a class map, whose classes may have names."""

    _classes: tuple[str, ...]

    def truth(self, path: Path) -> Callable[[], Truth]:
        """Returns the function that reads a mask."""
        return UnreadClassMap(partial(read_mask, path, self._classes), self._classes)


class MaskFolderDataset(_ClassMapsDataset):
    """A folder with ``images`` and ``masks``: each image has a mask with the same path except for the suffix.

    A mask is a PNG as large as the image, whose pixels are the numbers of classes: grey, of up to 16 bits, or
    with a palette, of which the indices are used, not the colours. 255 is ignored, as is 65535 in 16 bits. A
    ``classes.txt`` names the classes, one per line; with more than 255 of them, 255 is a class.

    The arguments are those of ``StoredDataset``.

    Raises:
        DatasetError: An image has no mask, a mask has no image, or the file of class names is damaged.
    """

    backend = "mask_folder"

    def _open(self, path: Path) -> int:
        self._classes = read_class_names(path / "classes.txt") or ()
        self._pairs = paired(path, IMAGES, MASKS)
        return len(self._pairs)


class VocSegmentationDataset(_ClassMapsDataset):
    """PASCAL VOC's images of semantic segmentation: ``JPEGImages`` and ``SegmentationClass``.

    The path is the folder, such as ``VOC2012``, or a list of images in its ``ImageSets/Segmentation``. A
    folder stands for the images in ``val.txt`` or, without lists, all with a mask. The classes are VOC's 20
    and the background, or those of a ``classes.txt`` in the folder. 255, the border of objects, is ignored.

    The arguments are those of ``StoredDataset``.

    Raises:
        DatasetError: An image in the list, or its mask, is missing.
    """

    backend = "voc_segmentation"

    def _open(self, path: Path) -> int:
        folder = path if path.is_dir() else path.parents[len(VOC_LISTS.parts)]
        listed = path / VOC_LISTS / "val.txt" if path.is_dir() else path
        self._classes = read_class_names(folder / "classes.txt") or read_class_names(_VOC_CLASSES) or ()
        self._pairs = [_voc_pair(folder, stem, listed) for stem in _voc_names(folder, listed)]
        return len(self._pairs)


def is_voc_list(path: Path) -> bool:
    """Returns whether a path is that of a list of images in a folder of VOC."""
    return (
        path.suffix == ".txt"
        and path.parent.parts[-len(VOC_LISTS.parts) :] == VOC_LISTS.parts
        and (path.parents[len(VOC_LISTS.parts)] / VOC_MASKS).is_dir()
    )


def _voc_names(folder: Path, listed: Path) -> list[str]:
    with reading(listed):
        if listed.exists():
            names = listed.read_text(encoding="utf-8").split()
        else:
            names = sorted(path.stem for path in (folder / VOC_MASKS).glob("*.png"))
    if not names:
        raise DatasetError(f"{listed if listed.exists() else folder / VOC_MASKS}: names no images")
    return names


def _voc_pair(folder: Path, stem: str, listed: Path) -> Pair:
    if "/" in stem or stem.startswith("."):
        raise DatasetError(f"{listed}: {printable_name(stem)} is not the name of an image")
    pair = Pair(f"{stem}.jpg", folder / VOC_IMAGES / f"{stem}.jpg", folder / VOC_MASKS / f"{stem}.png")
    for path in pair[1:]:
        if not path.exists():
            raise DatasetError(f"{path}: does not exist; {listed} names it")
    return pair


def read_mask(path: Path, classes: tuple[str, ...] = ()) -> ClassMap:
    """Reads a PNG whose pixels are the numbers of classes.

    Args:
        path: The file.
        classes: The names of the classes; empty if unknown.

    Raises:
        DatasetError: The file cannot be read, is neither a grey PNG nor one with a palette, or has a number
            that is not a class.
    """
    with _decoding("mask", path):
        content = read_image(path).content
        image = open_image(content, ("PNG",))
        image.load()
    numbers = _numbers(path, image, content)
    ignored = numbers == _IGNORED if len(classes) <= _MOST_BYTE_CLASSES else np.zeros(numbers.shape, bool)
    if image.mode.startswith("I"):
        ignored |= numbers == _IGNORED_OF_16_BITS
    numbers[ignored] = IGNORED_CLASS
    if classes and numbers.max() >= len(classes):
        raise DatasetError(
            f"mask {path}: has the class {numbers.max()}; the dataset has {len(classes)} classes, "
            f"0 to {len(classes) - 1}"
        )
    return ClassMap(numbers, classes)


def _numbers(path: Path, image: Image.Image, content: bytes) -> NDArray[np.int32]:
    """Returns the pixels as they are in the file."""
    if image.mode not in {"1", "L", "P", "I"} and not image.mode.startswith("I;16"):
        raise DatasetError(
            f"mask {path}: is an image in colour ({image.mode}); a mask's pixels are numbers of classes, "
            "grey or with a palette"
        )
    numbers = np.array(image, np.int32)
    (bits,) = struct.unpack_from("B", content, _BITS_OFFSET)
    if image.mode == "L" and bits in {2, 4}:
        # Pillow stretches grey of few bits to 0…255
        numbers //= _IGNORED // (2**bits - 1)
    return numbers


ANNOTATIONS = "Annotations"
_SETS = "ImageSets"
_MOST_BYTES = 16 * 1024 * 1024


class VocDataset(StoredDataset):
    """The images of ``JPEGImages`` that have a file in ``Annotations``, by name; the id is that name.

    The path is the folder that contains both, or a list of ids such as ``ImageSets/Main/val.txt`` in it.
    VOC's boxes count pixels from 1 and include the last pixel: xmin to xmax become xmin - 1 and a width of
    xmax - xmin + 1, as in COCO. A ``difficult`` object becomes a crowd, which neither hits nor misses.
    Annotations are read with the truth; the other arguments are those of ``StoredDataset``.

    Raises:
        DatasetError: A folder is missing or cannot be read, holds no annotations, or a listed one is missing.
    """

    backend = "voc"

    def _open(self, path: Path) -> int:
        root = path if path.is_dir() else path.parents[2] if is_image_set(path) else path.parent
        self._annotations, self._folder = root / ANNOTATIONS, root / VOC_IMAGES
        try:
            present = {each.stem for each in self._annotations.iterdir() if each.suffix == ".xml"}
            self._pictures = {
                each.stem: each.name
                for each in self._folder.iterdir()
                if each.suffix.lower() in IMAGE_SUFFIXES
            }
        except OSError as error:
            raise DatasetError(f"{error.filename}: cannot be read: {error.strerror or error}") from error
        self._ids = sorted(present) if path.is_dir() else _listed(path)
        if not self._ids:
            raise DatasetError(f"{path}: names no images with annotations")
        for each in self._ids:
            if each not in present:
                raise DatasetError(f"{self._annotations / each}.xml: is missing, and {path} names it")
        return len(self._ids)

    def sample(self, index: int) -> Sample:
        """Returns a sample; its image and truth are read later."""
        name = self._ids[index]
        picture = self._folder / self._pictures.get(name, f"{name}.jpg")
        truth = partial(_read_annotation, self._annotations / f"{name}.xml")
        return Sample(printable(name), partial(read_image, picture), truth=truth)

    def files(self) -> Iterator[Path]:
        """Yields the files of the annotations and the images."""
        for name in self._ids:
            yield self._annotations / f"{name}.xml"
            yield self._folder / self._pictures.get(name, f"{name}.jpg")


def is_image_set(path: Path) -> bool:
    """Returns whether a path is that of a list of ids, such as ``ImageSets/Main/val.txt``."""
    return path.suffix == ".txt" and len(path.parents) > 2 and path.parents[1].name == _SETS


def _listed(path: Path) -> list[str]:
    """Returns the ids in a list; a second column, whether the image contains a class, is ignored."""
    with reading(path):
        lines = path.read_text(encoding="utf-8-sig").splitlines()
    found = [line.split()[0] for line in lines if line.strip()]
    if len(set(found)) < len(found):
        raise DatasetError(f"{path}: names an image twice")
    if wrong := next((each for each in found if len(PurePosixPath(each).parts) != 1 or each == ".."), None):
        raise DatasetError(f"{path}: {printable(wrong)} is not the name of an image")
    return found


def _read_annotation(file: Path) -> Objects:
    """Reads the objects of an image.

    Entities and document types are refused: they can refer to other files, or expand beyond all memory.
    """
    with reading(file):
        if file.stat().st_size > _MOST_BYTES:
            raise DatasetError(f"{file}: has more than {_MOST_BYTES} bytes, the limit for an annotation")
        content = file.read_bytes()
    try:
        root = _parsed(content)
        width, height = (int(_number(root, f"size/{side}")) for side in ("width", "height"))
        if width < 1 or height < 1:
            raise ValueError(f"size is {width} × {height}")
    except expat.ExpatError as error:
        raise DatasetError(f"{file}: is not XML at line {error.lineno}, column {error.offset + 1}") from error
    except ValueError as error:
        raise DatasetError(f"{file}: {one_line(error)}") from error
    boxes, classes, difficult = [], [], []
    for place, each in enumerate(root.findall("object")):
        try:
            boxes.append(_box(each, width, height))
            if not (name := (each.findtext("name") or "").strip()):
                raise ValueError("has no name")
            classes.append(printable(name))
            difficult.append(each.find("difficult") is not None and _number(each, "difficult") != 0)
        except ValueError as error:
            raise DatasetError(f"{file}: object {place}: {one_line(error)}") from error
    array = np.array(boxes, np.float64).reshape(-1, 4)
    areas = array[:, 2] * array[:, 3]
    return Objects(height, width, array, tuple(classes), areas, np.array(difficult, np.bool_))


def _parsed(content: bytes) -> ElementTree.Element:
    builder = ElementTree.TreeBuilder()
    parser = expat.ParserCreate()

    def refuse(*_: object) -> None:
        raise ValueError("has a document type or entities, which an annotation does not need")

    parser.StartElementHandler = builder.start
    parser.EndElementHandler = builder.end
    parser.CharacterDataHandler = builder.data
    parser.StartDoctypeDeclHandler = refuse
    parser.EntityDeclHandler = refuse
    parser.Parse(content, True)
    return builder.close()


def _number(element: ElementTree.Element, path: str) -> float:
    text = element.findtext(path)
    if text is None:
        raise ValueError(f"has no {path}")
    try:
        number = float(text)
    except ValueError:
        raise ValueError(f"{path} is {printable(text[:60])}, not a number") from None
    if not math.isfinite(number):
        raise ValueError(f"{path} is {number}")
    return number


def _box(element: ElementTree.Element, width: int, height: int) -> Sequence[float]:
    left, top, right, bottom = (
        _number(element, f"bndbox/{side}") for side in ("xmin", "ymin", "xmax", "ymax")
    )
    if right < left or bottom < top:
        raise ValueError("its bndbox ends before it begins")
    if left > width or top > height or right < 1 or bottom < 1:
        raise ValueError(f"its bndbox is outside of the {width} × {height} pixels")
    return (left - 1, top - 1, right - left + 1, bottom - top + 1)
