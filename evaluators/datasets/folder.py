"""Datasets of encoded images: in class folders or without classes, in a zip, or from a list of URLs.

The images of a zip are read in place. A list contains URLs and paths, but no labels.
"""

from __future__ import annotations

import hashlib
import os
import re
import zipfile
import zlib
from abc import abstractmethod
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from threading import Lock
from typing import Any

from inferometer.agent.artifacts.locations import without_credentials
from inferometer.agent.preprocessing.inputs import EncodedImage, Url
from inferometer.evaluators.datasets.base import URLS, Dataset, DatasetIdentity, Sample, StoredDataset
from inferometer.evaluators.datasets.files import (
    FORMATS,
    MAX_IMAGE_BYTES,
    is_image,
    is_shown,
    read_image,
    too_large,
    walk,
)
from inferometer.manifests.errors import DatasetError, InputError, explained, one_line, printable_name


@dataclass(frozen=True, slots=True)
class Place:
    """The location of one image.

    Attributes:
        path: Relative to the dataset, with ``/`` as separator.
        label: The class folder's name; None if there are no class folders.
    """

    path: str
    label: str | None

    @property
    def order(self) -> tuple[str, str]:
        """The sort key: the path inside the class folder, then the class.

        Numbered names such as ``7/0001.png`` thus mix the classes, so that the first samples represent the
        whole dataset.
        """
        return (self.path if self.label is None else self.path[len(self.label) + 1 :], self.label or "")


def arrange(paths: Iterable[str], source: str) -> list[Place]:
    """Returns the locations of the images among ``paths``, in the dataset's order.

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
            f"{source}: {printable_name(loose[0])} lies beside class folders, so its class is unknown; "
            "move it into one of them, or elsewhere"
        )
    places = (Place(path, None if loose else path.split("/", 1)[0]) for path in images)
    return sorted(places, key=lambda place: place.order)


class ImageDataset(StoredDataset):
    """Images, each of which the pipeline reads separately.

    The arguments are those of ``StoredDataset``.
    """

    _places: Sequence[Place]

    def sample(self, index: int) -> Sample:
        """Returns a sample; its image is read later."""
        place = self._places[index]
        label = None if place.label is None else printable_name(place.label)
        return Sample(printable_name(place.path), partial(self.read, place), label)

    def labels(self) -> frozenset[str]:
        """Returns the names of all classes."""
        return frozenset(printable_name(place.label) for place in self._places if place.label is not None)

    @abstractmethod
    def read(self, place: Place) -> EncodedImage:
        """Reads one image; thread-safe; raises InputError or OSError if that fails."""


class FolderDataset(ImageDataset):
    """Images in class folders, whose names are the labels, or unlabelled images without class folders.

    Samples are ordered by path without the class folder, then by class. Hidden files and files without the
    suffix of an image are ignored. Links to files and to class folders are followed; links to folders inside
    class folders are not. The folder is listed once, when the dataset is opened; a file that is missing or
    unreadable later becomes a failed input.

    The arguments are those of ``StoredDataset``.

    Raises:
        DatasetError: The folder cannot be read, contains no image, or only some images have a class.
    """

    backend = "image_folder"

    def _open(self, path: Path) -> int:
        self._places = arrange(_paths(path), str(path))
        return len(self._places)

    def files(self) -> Iterator[Path]:
        """Returns the files of the images."""
        return (self._path / place.path for place in self._places)

    def read(self, place: Place) -> EncodedImage:
        """Reads one image. Any ``OSError`` is left to ``Input.read``, which names the input."""
        return read_image(self._path / place.path)


def _paths(root: Path) -> Iterator[str]:
    """Yields the paths of the files at the top level and in the class folders, relative to ``root``."""
    try:
        for entry in list(os.scandir(root)):
            if not entry.is_dir():
                yield entry.name
            elif is_shown(entry.name):
                for folder, _, names in walk(Path(entry.path)):
                    inside = Path(folder).relative_to(root).as_posix()
                    yield from (f"{inside}/{name}" for name in names)
    except OSError as error:
        raise DatasetError(f"{error.filename or root}: cannot be read: {error.strerror or error}") from error


_METHODS = frozenset({zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED})
_ENCRYPTED = 0x1


class ArchiveDataset(ImageDataset):
    """A zip of class folders with images, or of images alone; see ``FolderDataset`` for labels and order.

    Common parent folders, such as the zipped one, are removed from the paths, down to the class folder.
    Nothing is extracted. Samples can be read from several threads. An entry with a wrong checksum becomes a
    failed input when it is read.

    The arguments are those of ``StoredDataset``.

    Raises:
        DatasetError: The file is not a zip, is damaged, encrypted or compressed in an unsupported way, or
            contains no image or one that is too large.
    """

    backend = "zip"

    def _open(self, path: Path) -> int:
        self._lock = Lock()
        self._zip = _open(path)
        try:
            self._entries = _image_entries(self._zip, path)
            self._places = arrange(self._entries, str(path))
        except DatasetError:
            self._zip.close()
            raise
        return len(self._places)

    def __getstate__(self) -> dict[str, Any]:
        return {
            name: value for name, value in super().__getstate__().items() if name not in {"_zip", "_lock"}
        }

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._lock = Lock()
        self._zip = _open(self._path)

    def files(self) -> tuple[Path]:
        """Returns the zip as the only file."""
        return (self._path,)

    def close(self) -> None:
        """Closes the zip; later reads fail."""
        with self._lock:
            self._zip.close()

    def read(self, place: Place) -> EncodedImage:
        """Reads and unpacks one entry; threads unpack concurrently."""
        try:
            # ZipFile's count of open entries is not thread-safe: opening and closing require the lock
            info = self._entries[place.path]
            with self._lock:
                entry = self._zip.open(info)
            try:
                # a read without a size would inflate all that is there, whatever size the zip declares
                return EncodedImage(entry.read(info.file_size + 1))
            finally:
                with self._lock:
                    entry.close()
        except (zipfile.BadZipFile, zlib.error, EOFError, ValueError, RuntimeError) as error:
            raise InputError(
                f"input {printable_name(place.path)}: cannot be read from {self._path}: {one_line(error)}"
            ) from error


def _open(path: Path) -> zipfile.ZipFile:
    try:
        with explained(DatasetError, f"{path}: cannot be read"):
            return zipfile.ZipFile(path)
    except (zipfile.BadZipFile, ValueError, NotImplementedError) as error:
        raise DatasetError(f"{path}: is not a zip, or is damaged: {one_line(error)}") from error


def _image_entries(archive: zipfile.ZipFile, path: Path) -> dict[str, zipfile.ZipInfo]:
    """Returns the entries of images, by their paths without common parent folders."""
    entries = [info for info in archive.infolist() if is_image(info.filename) and not info.is_dir()]
    for info in entries:
        name = printable_name(info.filename)
        if info.file_size > MAX_IMAGE_BYTES:
            raise DatasetError(f"{path}: {too_large(info.filename, info.file_size)}")
        if info.flag_bits & _ENCRYPTED:
            raise DatasetError(f"{path}: {name} is encrypted; accepted: a zip without a password")
        if info.compress_type not in _METHODS:
            raise DatasetError(
                f"{path}: {name} is compressed by method {info.compress_type}; accepted: stored or deflated"
            )
    paths = _without_wrapper([info.filename for info in entries])
    found = dict(zip(paths, entries, strict=True))
    if len(found) < len(paths):
        [(repeated, _)] = Counter(paths).most_common(1)
        raise DatasetError(f"{path}: holds {printable_name(repeated)} twice")
    return found


def _without_wrapper(paths: list[str]) -> list[str]:
    """Removes common parent folders from ``paths``, down to the class folder."""
    split = [path.split("/") for path in paths]
    depth = 0
    while split and all(len(parts) > depth + 2 and parts[depth] == split[0][depth] for parts in split):
        depth += 1
    return ["/".join(parts[depth:]) for parts in split]


MAX_LIST_BYTES = 64 * 1024 * 1024
"""The maximum size of a list."""
_SHOWN_CHARACTERS = 80
_URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://")
_BOM = "\ufeff"


class UrlsDataset(Dataset):
    """The images that a file lists, one URL or path per line, in the file's order.

    Blank lines and lines that begin with ``#`` are skipped. The agent that runs the model fetches URLs, which
    have a scheme as in ``https://…``. Other lines are paths of images, relative to the file, which are read
    here. Each line is an input with an id of its own, even if two lines are equal.

    Args:
        path: The file, in UTF-8.
        duplicate_input: The number of passes over the list.

    Raises:
        DatasetError: The file cannot be read, is not UTF-8, is too large, or lists nothing.
    """

    def __init__(self, path: Path, *, duplicate_input: int = 1) -> None:
        content = _content(path)
        self._folder = path.parent
        self._lines = _lines(content, path)
        self._copies = duplicate_input
        checksum = f"sha256:{hashlib.sha256(content).hexdigest()}"
        size = len(self._lines) * duplicate_input
        super().__init__(DatasetIdentity(URLS, printable_name(str(path)), None, checksum, size))

    def __iter__(self) -> Iterator[Sample]:
        for copy in range(1, self._copies + 1):
            for number, text in self._lines:
                data = Url(text) if _URL.match(text) else partial(read_image, self._folder / text)
                yield Sample(_input_id(number, text, copy), data)


def _input_id(number: int, text: str, copy: int) -> str:
    """Returns the id of an input: its line's number and text; later passes add their number to the line's.

    The id is stored, and omits the credentials of a URL, and the middle of a long text.
    """
    place = str(number) if copy == 1 else f"{number}.{copy}"
    shown, half = printable_name(without_credentials(text)), (_SHOWN_CHARACTERS - 1) // 2
    return f"{place}:{shown if len(shown) <= _SHOWN_CHARACTERS else f'{shown[:half]}…{shown[-half:]}'}"


def _content(path: Path) -> bytes:
    """Reads the list."""
    with explained(DatasetError, f"list of URLs {path} cannot be read"), path.open("rb") as file:
        content = file.read(MAX_LIST_BYTES + 1)
    if len(content) > MAX_LIST_BYTES:
        raise DatasetError(f"list of URLs {path} is larger than {MAX_LIST_BYTES} bytes")
    return content


def _lines(content: bytes, path: Path) -> Sequence[tuple[int, str]]:
    """Returns the lines that give an input by its URL or path, each with its number, from 1."""
    try:
        text = content.decode("utf-8")
    except UnicodeDecodeError as error:
        raise DatasetError(
            f"list of URLs {path} is not UTF-8 at byte {error.start}; give a text file with one URL or path "
            "per line"
        ) from error
    stripped = enumerate(map(str.strip, text.removeprefix(_BOM).split("\n")), start=1)
    lines = tuple((number, line) for number, line in stripped if line and not line.startswith("#"))
    if not lines:
        raise DatasetError(f"list of URLs {path} is empty; give one URL or path per line")
    return lines
