"""Datasets in a zip, whose images are read in place."""

from __future__ import annotations

import zipfile
import zlib
from collections import Counter
from pathlib import Path
from threading import Lock
from typing import Any

from inferometer.agent.preprocessing.inputs import EncodedImage
from inferometer.evaluators.datasets.base import DatasetIdentity
from inferometer.evaluators.datasets.folder import (
    MAX_IMAGE_BYTES,
    ImageDataset,
    Place,
    arrange,
    is_image,
    printable,
    too_large,
)
from inferometer.manifests.errors import DatasetError, InputError, one_line

_METHODS = frozenset({zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED})
_ENCRYPTED = 0x1


class ArchiveDataset(ImageDataset):
    """A zip of class folders with images, or of images alone; see ``FolderDataset`` for labels and order.

    Common parent folders, such as the zipped one, are removed from the paths, down to the class folder.
    Nothing is extracted. Samples can be read from several threads. An entry with a wrong checksum fails as an
    input when it is read.

    Args:
        path: The zip.
        category: The category, such as ``vision``.
        checksum: ``sha256:…`` of the zip.
        name: The name of the dataset; None means the path.
        version: The manifest's version, where there is one.

    Raises:
        DatasetError: The file is no zip, damaged, encrypted or compressed in an unsupported way, or contains
            no image or too large a one.
    """

    backend = "zip"

    def __init__(
        self,
        path: Path,
        category: str,
        *,
        checksum: str | None = None,
        name: str | None = None,
        version: str | None = None,
    ) -> None:
        self._path = path
        self._lock = Lock()
        self._zip = _open(path)
        try:
            self._entries = _image_entries(self._zip, path)
            places = arrange(self._entries, str(path))
        except DatasetError:
            self._zip.close()
            raise
        super().__init__(DatasetIdentity(category, name or str(path), version, checksum, len(places)), places)

    def __getstate__(self) -> dict[str, Any]:
        return {
            name: value for name, value in super().__getstate__().items() if name not in {"_zip", "_lock"}
        }

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._lock = Lock()
        self._zip = _open(self._path)

    def files(self) -> tuple[Path]:
        """Returns the zip."""
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
                f"input {printable(place.path)}: cannot be read from {self._path}: {one_line(error)}"
            ) from error


def _open(path: Path) -> zipfile.ZipFile:
    try:
        return zipfile.ZipFile(path)
    except OSError as error:
        raise DatasetError(f"{path}: cannot be read: {error.strerror or error}") from error
    except (zipfile.BadZipFile, ValueError, NotImplementedError) as error:
        raise DatasetError(f"{path}: is no zip, or a damaged one: {one_line(error)}") from error


def _image_entries(archive: zipfile.ZipFile, path: Path) -> dict[str, zipfile.ZipInfo]:
    """Returns the entries of images, by their path without common parent folders."""
    entries = [info for info in archive.infolist() if is_image(info.filename) and not info.is_dir()]
    for info in entries:
        name = printable(info.filename)
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
        raise DatasetError(f"{path}: holds {printable(repeated)} twice")
    return found


def _without_wrapper(paths: list[str]) -> list[str]:
    """Removes common parent folders from ``paths``, down to the class folder."""
    split = [path.split("/") for path in paths]
    depth = 0
    while split and all(len(parts) > depth + 2 and parts[depth] == split[0][depth] for parts in split):
        depth += 1
    return ["/".join(parts[depth:]) for parts in split]
