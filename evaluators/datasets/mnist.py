"""Datasets in the idx files of MNIST, and of those that look like it.

An idx file is a header and the bytes of an array, also compressed with gzip.
http://yann.lecun.com/exdb/mnist/
"""

from __future__ import annotations

import gzip
import math
import re
import struct
import zlib
from pathlib import Path
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from inferometer.agent.preprocessing.inputs import Pixels
from inferometer.evaluators.datasets.base import LoadedDataset, Sample
from inferometer.manifests.errors import DatasetError, one_line


class _Reader(Protocol):
    """A file that is open for reading."""

    def read(self, size: int, /) -> bytes: ...


_UNSIGNED_BYTES = 0x08
_MAX_BYTES = 4 * 1024**3
_GZIP = b"\x1f\x8b"


def read_idx(path: Path, dimensions: int) -> NDArray[np.uint8]:
    """Reads an array of unsigned bytes with a number of dimensions.

    Raises:
        DatasetError: It cannot be read, has another type or number of dimensions, is truncated, or has bytes
            after its end; the message names the byte.
    """
    try:
        with path.open("rb") as file:
            if file.read(len(_GZIP)) != _GZIP:
                file.seek(0)
                return _read(path, file, dimensions)
            file.seek(0)
            with gzip.GzipFile(fileobj=file) as unpacked:
                return _read(path, unpacked, dimensions)
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise DatasetError(f"{path}: is truncated or damaged: {one_line(error)}") from error
    except OSError as error:
        raise DatasetError(f"{path}: cannot be read: {error.strerror or error}") from error


def _read(path: Path, file: _Reader, dimensions: int) -> NDArray[np.uint8]:
    header = file.read(4 + 4 * dimensions)
    expected = bytes((0, 0, _UNSIGNED_BYTES, dimensions))
    if not header.startswith(expected):
        raise DatasetError(
            f"{path}: begins with the bytes {header[:4].hex(' ') or 'of an empty file'}; accepted: "
            f"{expected.hex(' ')}, an idx of unsigned bytes in {dimensions} dimensions"
        )
    if len(header) < 4 + 4 * dimensions:
        raise DatasetError(f"{path}: is truncated at byte {len(header)}, in its header")
    shape = struct.unpack(f">{dimensions}I", header[4:])
    size = math.prod(shape)
    if not 0 < size <= _MAX_BYTES:
        raise DatasetError(
            f"{path}: has an array of shape {list(shape)}, {size} bytes; accepted: 1 to {_MAX_BYTES}"
        )
    content = _content(file, size + 1)
    if len(content) != size:
        found = f"ends at byte {len(header) + len(content)}" if len(content) < size else "has more"
        raise DatasetError(
            f"{path}: is truncated or damaged: shape {list(shape)} ends at byte {len(header) + size}, and "
            f"the file {found}"
        )
    return np.frombuffer(content, np.uint8).reshape(shape)


def _content(file: _Reader, size: int) -> bytes:
    """Reads up to ``size`` bytes, in pieces: a damaged header may ask for far more than there is."""
    parts: list[bytes] = []
    while size > 0 and (part := file.read(min(size, 1 << 22))):
        parts.append(part)
        size -= len(part)
    return b"".join(parts)


_IMAGES = re.compile(r"(.*)images([-.])idx3-ubyte(\.gz)?")


class IdxDataset(LoadedDataset):
    """The grey images of an idx file, with the labels from the label file, in the order of the files.

    Labels are the digits, as text. All images are in memory.

    ``path`` is the file of the images, such as ``t10k-images-idx3-ubyte`` or with ``.gz``, or the folder with
    it, where the images for training are chosen if they are there; the other arguments are those of
    ``StoredDataset``.

    Raises:
        DatasetError: A file is missing, truncated or of another format, or the two do not belong together.
    """

    backend = "mnist"
    labels_are_indices = True
    is_one_file = False

    def _open(self, path: Path) -> int:
        images = _images_file(path) if path.is_dir() else path
        if images is None:
            raise DatasetError(f"{path}: holds no file like train-images-idx3-ubyte, also with .gz")
        labels = _labels_file(images)
        self._images, self._labels = read_idx(images, 3), read_idx(labels, 1)
        if len(self._images) != len(self._labels):
            raise DatasetError(
                f"{labels}: has {len(self._labels)} labels, and {images} has {len(self._images)} images"
            )
        return len(self._images)

    def sample(self, index: int) -> Sample:
        """Returns a sample, which is in memory."""
        return Sample(str(index), Pixels(self._images[index]), str(int(self._labels[index])), True)


def is_images_file(name: str) -> bool:
    """Returns whether a file of this name has the images of an idx dataset."""
    return _IMAGES.fullmatch(name) is not None


def _images_file(folder: Path) -> Path | None:
    """Returns the file of the images in a folder, rather that for training than another one; None without."""
    found = sorted(path for path in folder.iterdir() if is_images_file(path.name))
    return min(found, key=lambda path: ("train" not in path.name, path.name), default=None)


def _labels_file(images: Path) -> Path:
    match = _IMAGES.fullmatch(images.name)
    if match is None:
        raise DatasetError(
            f"{images}: is not named like train-images-idx3-ubyte, so that its labels are unknown"
        )
    plain = f"{match[1]}labels{match[2]}idx1-ubyte"
    for name in (plain + (match[3] or ""), plain, f"{plain}.gz"):
        if (found := images.with_name(name)).is_file():
            return found
    raise DatasetError(f"{images}: has no labels: {images.with_name(plain)} is missing")
