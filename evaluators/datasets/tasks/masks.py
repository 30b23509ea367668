"""Datasets of class maps: folders of images and masks, and PASCAL VOC's of segmentation."""

from __future__ import annotations

import struct
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from inferometer.agent.preprocessing.image_decoder import PILLOW_ERRORS, open_image
from inferometer.evaluators.datasets.base import DatasetIdentity
from inferometer.evaluators.datasets.files.class_names import read_class_names
from inferometer.evaluators.datasets.folder import printable, read_image
from inferometer.evaluators.datasets.tasks.pairs import Pair, PairsDataset, paired
from inferometer.evaluators.datasets.truths import IGNORED_CLASS, ClassMap, Truth, UnreadClassMap
from inferometer.manifests.errors import DatasetError, InputError, one_line

IMAGES, MASKS = "images", "masks"
VOC_IMAGES, VOC_MASKS = "JPEGImages", "SegmentationClass"
VOC_LISTS = Path("ImageSets", "Segmentation")
VOC_CLASSES = (
    "background",
    "aeroplane",
    "bicycle",
    "bird",
    "boat",
    "bottle",
    "bus",
    "car",
    "cat",
    "chair",
    "cow",
    "diningtable",
    "dog",
    "horse",
    "motorbike",
    "person",
    "pottedplant",
    "sheep",
    "sofa",
    "train",
    "tvmonitor",
)
_IGNORED = 255
_IGNORED_OF_16_BITS = 65535
_BITS_OFFSET = 24
"""Where the bits of a pixel stand in a PNG file, before its kind of colour."""
_MOST_BYTE_CLASSES = 255


class _ClassMapsDataset(PairsDataset):
    """Images with the class map of each, of classes that may have names."""

    _classes: tuple[str, ...]

    def truth(self, path: Path) -> Callable[[], Truth]:
        """Returns the function that reads a mask."""
        return UnreadClassMap(partial(read_mask, path, self._classes), self._classes)


class MaskFolderDataset(_ClassMapsDataset):
    """A folder with ``images`` and ``masks``: of each image, a mask of the same path up to the suffix.

    A mask is a PNG as large as the image, whose pixels are the numbers of classes: grey, of up to 16 bits, or
    with a palette, of which the places count and not the colours. 255 is ignored, and in 16 bits 65535 too.
    A ``classes.txt`` names the classes, one a line; with more than 255 of them, 255 is a class.

    ``root`` is the folder; the other arguments are those of ``ArchiveDataset``.

    Raises:
        DatasetError: An image has no mask or a mask no image, or the names of the classes are damaged.
    """

    backend = "mask_folder"

    def __init__(
        self,
        root: Path,
        category: str,
        *,
        checksum: str | None = None,
        name: str | None = None,
        version: str | None = None,
    ) -> None:
        self._classes = read_class_names(root / "classes.txt") or ()
        pairs = paired(root, IMAGES, MASKS)
        super().__init__(DatasetIdentity(category, name or str(root), version, checksum, len(pairs)), pairs)


class VocSegmentationDataset(_ClassMapsDataset):
    """PASCAL VOC's images of semantic segmentation: ``JPEGImages`` and ``SegmentationClass``.

    The path is the folder, such as ``VOC2012``, or a list of images in its ``ImageSets/Segmentation``. Of the
    folder, the images in ``val.txt`` are meant; without lists, all that have a mask. The classes are VOC's 20
    and the background, or those of a ``classes.txt`` in the folder. 255, the border of objects, is ignored.

    The arguments are those of ``MaskFolderDataset``.

    Raises:
        DatasetError: An image of the list is missing, or its mask is.
    """

    backend = "voc_segmentation"

    def __init__(
        self,
        root: Path,
        category: str,
        *,
        checksum: str | None = None,
        name: str | None = None,
        version: str | None = None,
    ) -> None:
        folder = root if root.is_dir() else root.parents[len(VOC_LISTS.parts)]
        listed = root / VOC_LISTS / "val.txt" if root.is_dir() else root
        self._classes = read_class_names(folder / "classes.txt") or VOC_CLASSES
        pairs = [_voc_pair(folder, stem, listed) for stem in _voc_names(folder, listed)]
        super().__init__(DatasetIdentity(category, name or str(root), version, checksum, len(pairs)), pairs)


def is_voc_list(path: Path) -> bool:
    """Returns whether a path is a list of images in a folder of VOC."""
    return (
        path.suffix == ".txt"
        and path.parent.parts[-len(VOC_LISTS.parts) :] == VOC_LISTS.parts
        and (path.parents[len(VOC_LISTS.parts)] / VOC_MASKS).is_dir()
    )


def _voc_names(folder: Path, listed: Path) -> list[str]:
    try:
        if listed.exists():
            names = listed.read_text(encoding="utf-8").split()
        else:
            names = sorted(path.stem for path in (folder / VOC_MASKS).glob("*.png"))
    except OSError as error:
        raise DatasetError(f"{listed}: cannot be read: {error.strerror or error}") from error
    except UnicodeDecodeError as error:
        raise DatasetError(f"{listed}: is not UTF-8 at byte {error.start}") from error
    if not names:
        raise DatasetError(f"{listed if listed.exists() else folder / VOC_MASKS}: names no images")
    return names


def _voc_pair(folder: Path, stem: str, listed: Path) -> Pair:
    if "/" in stem or stem.startswith("."):
        raise DatasetError(f"{listed}: {printable(stem)} is no name of an image")
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
    try:
        content = read_image(path).content
        image = open_image(content, ("PNG",))
        image.load()
    except OSError as error:
        raise DatasetError(f"mask {path}: cannot be read: {error.strerror or error}") from error
    except (InputError, Image.DecompressionBombError, *PILLOW_ERRORS) as error:
        raise DatasetError(f"mask {path}: {one_line(error)}") from error
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
    """Returns the pixels as they stand in the file."""
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
