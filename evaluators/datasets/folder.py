"""Datasets of encoded images, in class folders or without classes: labels, order and reading."""

from __future__ import annotations

import os
import stat
from abc import abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path, PurePosixPath

from inferometer.agent.preprocessing.inputs import EncodedImage
from inferometer.evaluators.datasets.base import Dataset, DatasetIdentity, Sample
from inferometer.manifests.errors import DatasetError, InputError
from inferometer.manifests.errors import printable as escaped

FORMATS = ("bmp", "gif", "j2k", "jp2", "jpeg", "jpg", "pgm", "png", "pnm", "ppm", "tif", "tiff", "webp")
IMAGE_SUFFIXES = frozenset(f".{name}" for name in FORMATS)
MAX_IMAGE_BYTES = 256 * 1024 * 1024
"""The maximum size of an encoded image; a larger file is not read into memory."""


@dataclass(frozen=True, slots=True)
class Place:
    """The location of one image.

    Attributes:
        path: Relative to the dataset, with ``/`` as separator.
        label: The class folder's name; None without class folders.
    """

    path: str
    label: str | None

    @property
    def order(self) -> tuple[str, str]:
        """The sort key: the path inside the class folder, then the class.

        Numbered names, as in ``7/0001.png``, thereby mix the classes, and the first samples represent the
        dataset.
        """
        return (self.path if self.label is None else self.path[len(self.label) + 1 :], self.label or "")


def is_image(path: str) -> bool:
    """Returns whether a path inside a dataset names an image, and no part of it is hidden."""
    parts = path.split("/")
    return PurePosixPath(path).suffix.casefold() in IMAGE_SUFFIXES and not any(
        part.startswith(".") for part in parts
    )


def arrange(paths: Iterable[str], source: str) -> list[Place]:
    """Returns the places of the images among ``paths``, in the dataset's order.

    The first folder of a path is the class. Without folders, the images are unlabelled.

    Args:
        paths: Relative to the dataset, with ``/`` as separator.
        source: The dataset, for errors.

    Raises:
        DatasetError: The folder has no image, or only some are in class folders.
    """
    images = [path for path in paths if is_image(path)]
    if not images:
        raise DatasetError(
            f"{source}: holds no images; accepted: a folder of class folders with images "
            f"({', '.join(FORMATS)}), or images alone"
        )
    loose = [path for path in images if "/" not in path]
    if loose and len(loose) < len(images):
        raise DatasetError(
            f"{source}: {printable(loose[0])} lies beside class folders, so that its class is unknown; "
            "move it into one of them or away"
        )
    places = (Place(path, None if loose else path.split("/", 1)[0]) for path in images)
    return sorted(places, key=lambda place: place.order)


def printable(text: str) -> str:
    """Returns a name that can be stored and printed on one line, with other characters escaped."""
    return escaped(text.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace"))


def too_large(path: str, size_bytes: int) -> InputError:
    """Returns the error for a file above ``MAX_IMAGE_BYTES``."""
    return InputError(
        f"{printable(path)}: is {size_bytes} bytes; an image of more than {MAX_IMAGE_BYTES} is not read"
    )


class ImageDataset(Dataset):
    """Images that the pipeline reads one by one.

    Args:
        identity: The identity of the dataset.
        places: The locations of its images, in order.
    """

    def __init__(self, identity: DatasetIdentity, places: Sequence[Place]) -> None:
        super().__init__(identity)
        self._places = places

    def __iter__(self) -> Iterator[Sample]:
        return map(self.sample, range(len(self)))

    def sample(self, index: int) -> Sample:
        """Returns a sample, which is read later."""
        place = self._places[index]
        label = None if place.label is None else printable(place.label)
        return Sample(printable(place.path), partial(self.read, place), label)

    def labels(self) -> frozenset[str]:
        """Returns the names of all classes."""
        return frozenset(printable(place.label) for place in self._places if place.label is not None)

    @abstractmethod
    def read(self, place: Place) -> EncodedImage:
        """Reads one image; thread-safe.

        Raises:
            InputError, OSError: It cannot be read.
        """


class FolderDataset(ImageDataset):
    """Images in class folders, whose names are the labels, or unlabelled images without class folders.

    The order is by file name without the class folder, then by class. Hidden files and files without the
    suffix of an image are ignored. Links to files and to class folders are followed, links to folders inside
    class folders are not. The folder is listed once, when the dataset is opened; a file that is missing or
    unreadable later fails as an input.

    ``root`` is the folder; the other arguments are those of ``ArchiveDataset``.

    Raises:
        DatasetError: The folder cannot be read, contains no image, or only some images have a class.
    """

    backend = "image_folder"

    def __init__(
        self,
        root: Path,
        category: str,
        *,
        checksum: str | None = None,
        name: str | None = None,
        version: str | None = None,
    ) -> None:
        self._root = root
        places = arrange(_image_paths(root), str(root))
        super().__init__(DatasetIdentity(category, name or str(root), version, checksum, len(places)), places)

    def files(self) -> Iterator[Path]:
        """Returns the files of the images."""
        return (self._root / place.path for place in self._places)

    def read(self, place: Place) -> EncodedImage:
        """Reads one image. An ``OSError`` is left to ``Input.read``, which names the input."""
        return read_image(self._root / place.path)


def read_image(path: Path) -> EncodedImage:
    """Reads the file of one image.

    Raises:
        InputError: It is not a file, or larger than an image is.
        OSError: It cannot be read.
    """
    status = path.stat()
    if not stat.S_ISREG(status.st_mode):
        raise InputError(f"{path}: is no file that can be read")
    if status.st_size > MAX_IMAGE_BYTES:
        raise too_large(str(path), status.st_size)
    return EncodedImage(path.read_bytes())


def _image_paths(root: Path) -> Iterator[str]:
    """Yields the paths of the images at the top and in the class folders, relative to ``root``."""

    def refuse(error: OSError) -> None:
        raise DatasetError(f"{error.filename or root}: cannot be read: {error.strerror or error}") from error

    try:
        entries = list(os.scandir(root))
        for entry in entries:
            if entry.name.startswith("."):
                continue
            if not entry.is_dir():
                if is_image(entry.name):
                    yield entry.name
                continue
            for folder, _, names in os.walk(entry.path, onerror=refuse):
                inside = Path(folder).relative_to(root).as_posix()
                paths = (f"{inside}/{name}" for name in names)
                yield from (path for path in paths if is_image(path))
    except OSError as error:
        refuse(error)
