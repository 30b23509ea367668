"""Ground truths other than a class, against which the predictions of other tasks are scored."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

IGNORED_CLASS = -1
"""The pixels of a class map that do not count: 255 in the files of PASCAL VOC and Cityscapes."""


@dataclass(frozen=True, slots=True)
class RunLengths:
    """A mask as COCO encodes it.

    Attributes:
        height: In pixels.
        width: In pixels.
        counts: COCO's compressed run lengths, column by column.
    """

    height: int
    width: int
    counts: bytes


@dataclass(frozen=True, slots=True)
class Polygons:
    """A mask as the polygons around its parts, which are filled as COCO does it.

    Attributes:
        rings: Of each polygon x and y in turn, in pixels of the image.
    """

    rings: tuple[tuple[float, ...], ...]


@dataclass(frozen=True, slots=True, eq=False)
class Objects:
    """The objects in an image; none is a truth too.

    Attributes:
        height: Of the image, in pixels.
        width: Of the image, in pixels.
        boxes: float64, objects × 4: left, top, width and height in pixels, as in COCO.
        classes: The name of each object's class.
        areas: float64, objects; in pixels, by which COCO distinguishes small from large objects.
        crowds: bool, objects; whether it is a crowd, which a prediction neither hits nor misses.
        masks: The mask of each object; None where there are boxes only.
        image: COCO's id of the image, by which its evaluation orders images; None keeps the dataset's order.
    """

    height: int
    width: int
    boxes: NDArray[np.float64]
    classes: tuple[str, ...]
    areas: NDArray[np.float64]
    crowds: NDArray[np.bool_]
    masks: tuple[RunLengths | Polygons, ...] | None = None
    image: int | str | None = None


@dataclass(frozen=True, slots=True, eq=False)
class ClassMap:
    """The class of each pixel of an image.

    Attributes:
        pixels: int32, height × width; positions in the dataset's list of classes;
            ``IGNORED_CLASS`` where none counts.
        classes: The names of the dataset's classes; empty where it has none.
    """

    pixels: NDArray[np.int32]
    classes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class UnreadClassMap:
    """A class map that is read when it is called; the names of the classes are available earlier."""

    read: Callable[[], ClassMap]
    classes: tuple[str, ...] = ()

    def __call__(self) -> ClassMap:
        """Reads the class map; raises DatasetError if it cannot be read."""
        return self.read()


@dataclass(frozen=True, slots=True, eq=False)
class TargetImage:
    """The image that a model should make of its input.

    Attributes:
        pixels: uint8, height × width × channels (red, green, blue, or one of grey).
    """

    pixels: NDArray[np.uint8]


@dataclass(frozen=True, slots=True, eq=False)
class TargetValues:
    """Numbers: the targets of a regression, or the embedding of a reference model.

    Attributes:
        values: float64, k.
    """

    values: NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class AcceptedAnswers:
    """The answers to a question that are right; none means that the text does not answer it."""

    texts: tuple[str, ...]


Truth: TypeAlias = Objects | ClassMap | TargetImage | TargetValues | AcceptedAnswers
