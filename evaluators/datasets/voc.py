"""Datasets in the folders of PASCAL VOC: an XML file of annotations for each image."""

from __future__ import annotations

import math
import xml.etree.ElementTree as ElementTree
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path, PurePosixPath
from xml.parsers import expat

import numpy as np

from inferometer.evaluators.datasets.base import Objects, Sample, StoredDataset
from inferometer.evaluators.datasets.files import IMAGE_SUFFIXES, read_image, reading
from inferometer.manifests.errors import DatasetError, one_line, printable

ANNOTATIONS = "Annotations"
IMAGES = "JPEGImages"
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
        self._annotations, self._folder = root / ANNOTATIONS, root / IMAGES
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
