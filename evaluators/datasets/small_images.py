"""Datasets of small images in their authors' files: CIFAR-10, MNIST, and others in MNIST's format."""

from __future__ import annotations

import gzip
import io
import math
import pickle
import re
import struct
import tarfile
import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np
from numpy.typing import NDArray

from inferometer.agent.preprocessing.inputs import Pixels
from inferometer.evaluators.datasets.base import LoadedDataset, Sample
from inferometer.manifests.errors import DatasetError, InputError, explained, one_line


class _Dtype:
    """An element type, given by its name."""

    def __init__(self, name: Any = b"", *_: Any) -> None:
        self.name = name

    def __setstate__(self, state: Any) -> None:
        """Ignores the byte order and similar properties, which bytes do not have."""


class _Array:
    """An array that keeps the arguments that NumPy's ``__setstate__`` would receive."""

    array: NDArray[np.uint8]

    def __setstate__(self, state: Any) -> None:
        _, shape, dtype, is_fortran, content = state
        names = {b"u1", "u1", b"uint8", "uint8"}
        if not isinstance(dtype, _Dtype) or dtype.name not in names or not isinstance(content, bytes):
            raise pickle.UnpicklingError("an array is not of unsigned bytes")
        if not all(isinstance(side, int) and side >= 0 for side in shape) or math.prod(shape) != len(content):
            raise pickle.UnpicklingError(f"an array of shape {list(shape)} has {len(content)} bytes")
        order = "F" if is_fortran else "C"
        self.array = np.frombuffer(content, np.uint8).reshape(shape, order=order)  # type: ignore[call-overload]


def _reconstruct(*_: Any) -> _Array:
    return _Array()


def _encode(text: Any, encoding: Any = "latin1") -> bytes:
    if not isinstance(text, str) or encoding not in {"latin1", b"latin1"}:
        raise pickle.UnpicklingError("bytes are written in an unknown way")
    return text.encode("latin1")


_ALLOWED: dict[tuple[str, str], Any] = {
    ("numpy", "dtype"): _Dtype,
    ("numpy", "ndarray"): _Array,
    ("numpy.core.multiarray", "_reconstruct"): _reconstruct,
    ("numpy._core.multiarray", "_reconstruct"): _reconstruct,
    ("_codecs", "encode"): _encode,
}


class _Unpickler(pickle._Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        """Returns the replacement for a name that occurs in a pickle."""
        try:
            return _ALLOWED[module, name]
        except KeyError:
            raise pickle.UnpicklingError(f"it names {module}.{name}, which is not allowed") from None

    def persistent_load(self, pid: Any) -> Any:
        """Refuses references to objects outside the pickle."""
        raise pickle.UnpicklingError("it refers to an object outside of it")


def _read_pickled(content: bytes, source: str) -> dict[str, Any]:
    """Returns a pickled dictionary, with keys as text; arrays are uint8, and texts of Python 2 are bytes."""
    try:
        value = _Unpickler(io.BytesIO(content), encoding="bytes").load()
    except Exception as error:
        # a damaged pickle calls the replacements, and the methods of the unpickler, with anything
        raise DatasetError(
            f"{source}: is not a pickle of arrays, or is damaged: {one_line(error)}"
        ) from error
    if not isinstance(value, dict):
        raise DatasetError(f"{source}: holds no dictionary")
    return {
        key.decode("latin1") if isinstance(key, bytes) else str(key): (
            getattr(each, "array", None) if isinstance(each, _Array) else each
        )
        for key, each in value.items()
    }


CLASSES = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
FOLDERS = ("cifar-10-batches-bin", "cifar-10-batches-py")
ARCHIVES = ("cifar-10-binary.tar.gz", "cifar-10-python.tar.gz")
_SIDE, _CHANNELS = 32, 3
_PIXEL_BYTES = _CHANNELS * _SIDE * _SIDE
_RECORD_BYTES = 1 + _PIXEL_BYTES
_BATCH = re.compile(r"(data_batch_(\d)|test_batch)(\.bin)?")
_MAX_BATCH_BYTES = 1 << 30


class CifarDataset(LoadedDataset):
    """The images of CIFAR-10, in the order of the files; labels are the names of the classes.

    A folder or an archive stands for its ``data_batch_…`` files, which are for training, or for
    ``test_batch`` if it has nothing else. ``test_batch`` has a path of its own, even in an archive:
    ``cifar-10-binary.tar.gz/test_batch.bin``. Python files are unpickled without running what they name. All
    images are in memory. A record with a class above 9 becomes a failed input.

    ``path`` is the folder, the archive or one file; the other arguments are those of ``StoredDataset``.

    Raises:
        DatasetError: A file is missing, truncated, damaged or in another format.
    """

    backend = "cifar10"

    def _open(self, path: Path) -> int:
        parts = [_parsed(source, content) for source, content in _batches(path).items()]
        self._labels = np.concatenate([labels for labels, _ in parts])
        self._images = np.concatenate([images for _, images in parts])
        return len(self._labels)

    def sample(self, index: int) -> Sample:
        """Returns a sample; its image is in memory."""
        label = int(self._labels[index])
        if label >= len(CLASSES):
            return Sample(str(index), partial(self._fail, index, label))
        return Sample(str(index), partial(self._read, index), CLASSES[label])

    def labels(self) -> frozenset[str]:
        """Returns the names of the ten classes, including those without a sample."""
        return frozenset(CLASSES)

    def _read(self, index: int) -> Pixels:
        return Pixels(np.ascontiguousarray(self._images[index].transpose(1, 2, 0)))

    def _fail(self, index: int, label: int) -> Pixels:
        raise InputError(
            f"{self._path}: record {index}: has the class {label}; accepted: 0 to {len(CLASSES) - 1}"
        )


def is_batch(name: str) -> bool:
    """Returns whether a file of this name is a part of CIFAR-10."""
    return _BATCH.fullmatch(name) is not None


def _batches(path: Path) -> Mapping[str, bytes]:
    """Returns the content of the files that a path denotes, in order and by path."""
    with _damage_explained(path, tarfile.TarError):
        if path.is_dir():
            return _of_folder(path)
        if is_batch(path.name) and path.parent.is_file():
            return _of_archive(path.parent, path.name)
        if tarfile.is_tarfile(path):
            return _of_archive(path, None)
        return {str(path): _whole(path)}


@contextmanager
def _damage_explained(path: Path, kind: type[Exception]) -> Iterator[None]:
    """Raises DatasetError if the block cannot read a file, or unpack it, when it may raise a ``kind``."""
    with explained(DatasetError, f"{path}: cannot be read"):
        try:
            yield
        except (kind, EOFError, zlib.error) as error:
            raise DatasetError(f"{path}: is truncated or damaged: {one_line(error)}") from error


def _of_folder(folder: Path) -> Mapping[str, bytes]:
    for place in (folder, *(folder / name for name in FOLDERS)):
        found = {each.name: each for each in place.iterdir() if is_batch(each.name)} if place.is_dir() else {}
        if found:
            return {str(found[name]): _whole(found[name]) for name in _chosen(found, str(place))}
    for archive in (folder / name for name in ARCHIVES):
        if archive.is_file():
            return _of_archive(archive, None)
    raise DatasetError(f"{folder}: holds no data_batch_1 or test_batch of CIFAR-10, also with .bin")


def _of_archive(archive: Path, member: str | None) -> Mapping[str, bytes]:
    """Returns the content of files in an archive: of one file, or of the training files."""
    contents: dict[str, bytes] = {}
    with tarfile.open(archive) as tar:
        for entry in tar:
            name = PurePosixPath(entry.name).name
            if not entry.isfile() or not is_batch(name) or member not in {None, name}:
                continue
            if entry.size > _MAX_BATCH_BYTES:
                raise DatasetError(f"{archive}: {name} has {entry.size} bytes; accepted: {_MAX_BATCH_BYTES}")
            file = tar.extractfile(entry)
            contents[name] = b"" if file is None else file.read()
    if not contents:
        raise DatasetError(f"{archive}: holds no {member or 'data_batch_1 or test_batch'} of CIFAR-10")
    return {f"{archive}/{name}": contents[name] for name in _chosen(contents, str(archive))}


def _chosen(names: Mapping[str, object], source: str) -> list[str]:
    """Returns the training files in order or, if there are none, the test file."""
    numbers = {int(match[2]): name for name in names if (match := _BATCH.fullmatch(name)) and match[2]}
    if not numbers:
        return sorted(names)[:1]
    for number in range(1, max(numbers) + 1):
        if number not in numbers:
            raise DatasetError(
                f"{source}: data_batch_{number} is missing, but data_batch_{max(numbers)} is there"
            )
    return [numbers[number] for number in sorted(numbers)]


def _whole(path: Path) -> bytes:
    with path.open("rb") as file:
        content = file.read(_MAX_BATCH_BYTES + 1)
    if len(content) > _MAX_BATCH_BYTES:
        raise DatasetError(f"{path}: has more than {_MAX_BATCH_BYTES} bytes")
    return content


def _parsed(source: str, content: bytes) -> tuple[NDArray[np.int64], NDArray[np.uint8]]:
    """Returns the classes, int64, and the images, uint8 (samples, 3, 32, 32), from a file's content."""
    if not source.endswith(".bin"):
        return _unpickled(source, content)
    whole, rest = divmod(len(content), _RECORD_BYTES)
    if rest or not whole:
        raise DatasetError(
            f"{source}: is truncated or damaged: record {whole} at byte {whole * _RECORD_BYTES} has {rest} "
            f"bytes of {_RECORD_BYTES}"
        )
    records = np.frombuffer(content, np.uint8).reshape(whole, _RECORD_BYTES)
    return records[:, 0].astype(np.int64), records[:, 1:].reshape(whole, _CHANNELS, _SIDE, _SIDE)


def _unpickled(source: str, content: bytes) -> tuple[NDArray[np.int64], NDArray[np.uint8]]:
    values = _read_pickled(content, source)
    images, labels = values.get("data"), values.get("labels")
    if not isinstance(images, np.ndarray) or not isinstance(labels, list):
        raise DatasetError(f"{source}: has no data and labels of CIFAR-10")
    if images.shape != (len(labels), _PIXEL_BYTES) or not labels:
        raise DatasetError(
            f"{source}: has data of shape {list(images.shape)} and {len(labels)} labels; accepted: "
            f"{len(labels)} × {_PIXEL_BYTES}"
        )
    if not all(type(label) is int and 0 <= label < 256 for label in labels):
        raise DatasetError(f"{source}: has labels that are not classes of CIFAR-10")
    return np.array(labels, np.int64), images.reshape(len(labels), _CHANNELS, _SIDE, _SIDE)


_UNSIGNED_BYTES = 0x08
_MAX_BYTES = 4 * 1024**3
_GZIP = b"\x1f\x8b"


def read_idx(path: Path, dimensions: int) -> NDArray[np.uint8]:
    """Reads an array of unsigned bytes that has the given number of dimensions.

    Raises:
        DatasetError: The file cannot be read, has another type or number of dimensions, is truncated, or
            continues after its end; the message names the byte.
    """
    with _damage_explained(path, gzip.BadGzipFile), path.open("rb") as file:
        is_packed = file.read(len(_GZIP)) == _GZIP
        file.seek(0)
        return _read(path, gzip.GzipFile(fileobj=file) if is_packed else file, dimensions)


def _read(path: Path, file: io.BufferedIOBase, dimensions: int) -> NDArray[np.uint8]:
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
            f"{path}: is truncated or damaged: shape {list(shape)} ends at byte {len(header) + size}, but "
            f"the file {found}"
        )
    return np.frombuffer(content, np.uint8).reshape(shape)


def _content(file: io.BufferedIOBase, size: int) -> bytes:
    """Reads up to ``size`` bytes, in pieces: a damaged header may declare far more than there is."""
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
    it, in which the training images are preferred; the other arguments are those of ``StoredDataset``.

    Raises:
        DatasetError: A file is missing, truncated or in another format, or the two files do not match.
    """

    backend = "mnist"
    labels_are_indices = True
    is_one_file = False

    def _open(self, path: Path) -> int:
        images = path
        if path.is_dir():
            found = sorted(each for each in path.iterdir() if is_images_file(each.name))
            if not found:
                raise DatasetError(f"{path}: holds no file like train-images-idx3-ubyte, also with .gz")
            images = min(found, key=lambda each: "train" not in each.name)
        labels = _labels_file(images)
        self._images, self._labels = read_idx(images, 3), read_idx(labels, 1)
        if len(self._images) != len(self._labels):
            raise DatasetError(
                f"{labels}: has {len(self._labels)} labels, but {images} has {len(self._images)} images"
            )
        return len(self._images)

    def sample(self, index: int) -> Sample:
        """Returns a sample; its image is in memory."""
        return Sample(str(index), Pixels(self._images[index]), str(int(self._labels[index])), True)


def is_images_file(name: str) -> bool:
    """Returns whether a file of this name holds the images of an idx dataset."""
    return _IMAGES.fullmatch(name) is not None


def _labels_file(images: Path) -> Path:
    match = _IMAGES.fullmatch(images.name)
    if match is None:
        raise DatasetError(f"{images}: is not named like train-images-idx3-ubyte, so its labels are unknown")
    plain = f"{match[1]}labels{match[2]}idx1-ubyte"
    for name in (plain + (match[3] or ""), plain, f"{plain}.gz"):
        if (found := images.with_name(name)).is_file():
            return found
    raise DatasetError(f"{images}: has no labels: {images.with_name(plain)} is missing")
