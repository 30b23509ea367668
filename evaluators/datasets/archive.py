"""A dataset in a zip: the images of a folder dataset, read where they are."""

from __future__ import annotations

import zipfile
import zlib
from pathlib import Path
from threading import Lock

from agent.inputs import EncodedImage
from evaluators.datasets.base import DatasetIdentity
from evaluators.datasets.image_dataset import ImageDataset
from evaluators.datasets.layout import MAX_IMAGE_BYTES, Place, arrange, is_image, printable, too_large
from manifests.errors import DatasetError, InputError

_METHODS = frozenset({zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED})
_ENCRYPTED = 0x1


class ArchiveDataset(ImageDataset):
    """A zip of class folders with images, or of images alone; see ``FolderDataset`` for labels and order.

    Folders that hold everything, such as the one that was zipped, are left out of the paths as long as one
    folder, the class, remains. Nothing is extracted; several threads may read samples at once. An entry whose
    checksum is wrong fails as an input when it is read.

    Args:
        path: The zip.
        category: Such as ``vision``.
        checksum: ``sha256:…`` of the zip.
        name: What the dataset is called; None gives the path.
        version: The manifest's version, where there is one.

    Raises:
        DatasetError: The file is no zip, is damaged, is encrypted, compressed in an unusual way, holds no
            images or an entry that is no image by its size.
    """

    def __init__(
        self,
        path: Path,
        category: str,
        *,
        checksum: str,
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

    def close(self) -> None:
        """Closes the zip; what is still to be read then fails."""
        with self._lock:
            self._zip.close()

    def read(self, place: Place) -> EncodedImage:
        """Reads and unpacks one entry; threads share the file's position under locks, not the unpacking."""
        try:
            # ZipFile counts what is open in a plain integer, so that opening and closing take turns
            with self._lock:
                entry = self._zip.open(self._entries[place.path])
            try:
                return EncodedImage(entry.read())
            finally:
                with self._lock:
                    entry.close()
        except (zipfile.BadZipFile, zlib.error, EOFError, ValueError, RuntimeError) as error:
            raise InputError(
                f"input {printable(place.path)}: cannot be read from {self._path}: {_one_line(error)}"
            ) from error


def _open(path: Path) -> zipfile.ZipFile:
    try:
        return zipfile.ZipFile(path)
    except OSError as error:
        raise DatasetError(f"{path}: cannot be read: {error.strerror or error}") from error
    except (zipfile.BadZipFile, ValueError, NotImplementedError) as error:
        raise DatasetError(f"{path}: is no zip, or a damaged one: {_one_line(error)}") from error


def _image_entries(archive: zipfile.ZipFile, path: Path) -> dict[str, zipfile.ZipInfo]:
    """The entries that are images, by their path without the folders that hold them all."""
    entries = [info for info in archive.infolist() if not info.is_dir() and is_image(info.filename)]
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
    if len(set(paths)) < len(paths):
        repeated = next(name for name in paths if paths.count(name) > 1)
        raise DatasetError(f"{path}: holds {printable(repeated)} twice")
    return dict(zip(paths, entries, strict=True))


def _without_wrapper(paths: list[str]) -> list[str]:
    """Strips the folders that hold all ``paths``, down to the class folder."""
    split = [path.split("/") for path in paths]
    depth = 0
    while split and all(len(parts) > depth + 2 and parts[depth] == split[0][depth] for parts in split):
        depth += 1
    return ["/".join(parts[depth:]) for parts in split]


def _one_line(error: BaseException) -> str:
    return " ".join(str(error).split())
