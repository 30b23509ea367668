"""The validation images of ILSVRC 2012 as published: a flat folder or the tar, and a file of classes.

The classes are also in the ``meta.mat`` of the development kit, a MATLAB 5 file. Numbers and texts in an
array of structures are read; other values are skipped.
https://www.mathworks.com/help/pdf_doc/matlab/matfile_format.pdf
"""

from __future__ import annotations

import re
import struct
import tarfile
import zlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from inferometer.agent.preprocessing.inputs import EncodedImage
from inferometer.evaluators.datasets.base import Sample, StoredDataset
from inferometer.evaluators.datasets.files import (
    MAX_IMAGE_BYTES,
    RandomAccessFile,
    read_class_names,
    read_image,
    read_whole,
    reading,
    too_large,
)
from inferometer.manifests.errors import DatasetError, InputError, one_line
from inferometer.manifests.files import BUILTIN

_HEADER_BYTES = 128
_MAX_BYTES = 256 * 1024 * 1024
_MOST_ELEMENTS = 1_000_000
_MATRIX, _COMPRESSED = 14, 15
_STRUCTURE, _TEXT, _NUMBERS = 2, 4, range(6, 16)
_DTYPES = {1: "i1", 2: "u1", 3: "i2", 4: "u2", 5: "i4", 6: "u4", 7: "f4", 9: "f8", 12: "i8", 13: "u8"}
_ENCODINGS = {2: "latin1", 4: "utf-16-le", 16: "utf-8", 17: "utf-16-le", 1: "latin1"}


def read_structures(content: bytes, name: str, source: str) -> list[dict[str, Any]]:
    """Returns the structures of a variable of a file, each as its numbers and texts by field.

    Raises:
        DatasetError: The file (``source``) is damaged, has another version, or contains no such variable.
    """
    if len(content) < _HEADER_BYTES or content[126:128] != b"IM" or content[125] != 1:
        raise DatasetError(f"{source}: is not a file of MATLAB 5 from a little-endian machine")
    try:
        for kind, element in _elements(content, _HEADER_BYTES):
            if kind == _COMPRESSED:
                unpacker = zlib.decompressobj()
                unpacked = unpacker.decompress(element, _MAX_BYTES)
                kind, element = next(_elements(unpacked, 0))
            if kind == _MATRIX:
                found_name, value = _matrix(element)
                if found_name == name and isinstance(value, list):
                    return value
    except (ValueError, LookupError, struct.error, zlib.error, StopIteration, RecursionError) as error:
        raise DatasetError(f"{source}: is truncated or damaged: {one_line(error)}") from error
    raise DatasetError(f"{source}: has no structures called {name}")


def _elements(content: bytes, offset: int) -> Iterator[tuple[int, bytes]]:
    """Yields the type and content of each element, starting at an offset."""
    while offset + 8 <= len(content):
        kind, size = struct.unpack_from("<II", content, offset)
        if kind >> 16:  # a small element: its size is in the upper half, and its content in four bytes
            size, kind = kind >> 16, kind & 0xFFFF
            begin, end = offset + 4, offset + 8
            if size > 4:
                raise ValueError(f"an element of {size} bytes at byte {offset}")
        else:
            begin = offset + 8
            end = begin + size + (-size % 8 if kind != _COMPRESSED else 0)
        if begin + size > len(content):
            raise ValueError(f"the element at byte {offset} is cut off")
        yield kind, content[begin : begin + size]
        offset = end


def _matrix(content: bytes) -> tuple[str, Any]:
    """Returns the name and value of a matrix; the value is None unless it has structures, numbers or text."""
    parts = _elements(content, 0)
    if not content:
        return "", None
    _, flags = next(parts)
    kind = flags[0]
    sides = np.frombuffer(next(parts)[1], "<i4")
    name = next(parts)[1].decode("latin1")
    count = int(np.prod(sides, dtype=np.int64))
    if count < 0 or count > _MOST_ELEMENTS:
        raise ValueError(f"a matrix of shape {sides.tolist()}")
    if kind == _STRUCTURE:
        return name, _structures(parts, count)
    if kind != _TEXT and kind not in _NUMBERS:
        return name, None
    stored, data = next(parts, (0, b""))
    if kind == _TEXT:
        return name, data.decode(_ENCODINGS[stored]) if data else ""
    values = np.frombuffer(data, f"<{_DTYPES[stored]}") if data else np.empty(0)
    return name, values[0].item() if len(values) == 1 else values.tolist()


def _structures(parts: Iterator[tuple[int, bytes]], count: int) -> list[dict[str, Any]]:
    """Returns the elements of an array of structures."""
    length = int.from_bytes(next(parts)[1][:4], "little")
    names = next(parts)[1]
    if not 0 < length <= 64:
        raise ValueError(f"names of fields of {length} bytes")
    fields = [
        names[begin : begin + length].split(b"\0")[0].decode("latin1")
        for begin in range(0, len(names), length)
    ]
    return [{field: _matrix(next(parts)[1])[1] for field in fields} for _ in range(count)]


NAME = "ilsvrc2012_validation"
ARCHIVE = "ILSVRC2012_img_val.tar"
_DEVELOPMENT_KIT = "ILSVRC2012_devkit_t12"
_GROUND_TRUTH = "ILSVRC2012_validation_ground_truth.txt"
_META = "meta.mat"
_VALUES = "val.txt"
_SYNSETS = "synsets.txt"
_IMAGE = re.compile(r"ILSVRC2012_val_(\d{8})\.JPEG")
_WORDNET_ID = re.compile(r"n\d{8}")
_MAX_TEXT_BYTES = 64 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class _Member:
    """An image in the tar."""

    offset: int
    size: int


class ValidationDataset(StoredDataset):
    """The validation images of ILSVRC 2012, in the order of their numbers; labels are WordNet ids.

    The classes come from ``val.txt``, with a name and an index in each line, where the index counts the
    sorted WordNet ids from 0; or from ``ILSVRC2012_validation_ground_truth.txt``, with an ``ILSVRC2012_ID``
    for each image, and ``meta.mat``, which translates it. Both are looked for next to the images, in the
    parent folder, and in ``ILSVRC2012_devkit_t12/data`` or the archive of the kit. Without ``meta.mat``, line
    n of ``synsets.txt`` is the WordNet id of number n. Only images that exist are samples. A damaged or
    missing image becomes a failed input.

    ``path`` is the folder with the images or with ``ILSVRC2012_img_val.tar``, or the tar; the other arguments
    are those of ``StoredDataset``.

    Raises:
        DatasetError: There are no images or no classes, or a file is damaged.
    """

    backend = default_name = NAME

    def _open(self, path: Path) -> int:
        self._folder = folder = path if path.is_dir() else path.parent
        self._tar: RandomAccessFile | None = None
        self._members: Mapping[str, _Member] = {}
        names = []
        if path.is_dir():
            with reading(path):
                names = sorted(each.name for each in path.iterdir() if _IMAGE.fullmatch(each.name))
        if not names:
            tar = path / ARCHIVE if path.is_dir() else path
            self._tar = RandomAccessFile(tar)
            self._members = _members(tar)
            names = sorted(self._members)
        if not names:
            raise DatasetError(f"{path}: holds no images named like ILSVRC2012_val_00000001.JPEG")
        self._names = names
        self._labels = _labels(names, _places(folder), folder)
        return len(names)

    def sample(self, index: int) -> Sample:
        """Returns a sample; its image is read later."""
        name = self._names[index]
        return Sample(name, partial(self._read, name), self._labels[index])

    def files(self) -> Iterable[Path]:
        """Returns the files of the images, or the tar."""
        return (self._folder / name for name in self._names) if self._tar is None else (self._tar.path,)

    def close(self) -> None:
        """Closes the tar."""
        if self._tar is not None:
            self._tar.close()

    def _read(self, name: str) -> EncodedImage:
        if self._tar is None:
            return read_image(self._folder / name)
        member = self._members[name]
        if member.size > MAX_IMAGE_BYTES:
            raise too_large(name, member.size)
        content = self._tar.read(member.size, member.offset)
        if len(content) < member.size:
            raise InputError(
                f"{self._tar.path}: {name} at byte {member.offset} is cut off: the file ends at byte "
                f"{self._tar.size}"
            )
        return EncodedImage(content)


def is_validation(folder: Path, entries: Mapping[str, bool]) -> bool:
    """Returns whether a folder has the images and a file with their classes, or the tar."""
    if ARCHIVE in entries:
        return True
    if not any(_IMAGE.fullmatch(name) for name in entries):
        return False
    return _find(_places(folder), _VALUES) is not None or _find(_places(folder), _GROUND_TRUTH) is not None


def _members(path: Path) -> dict[str, _Member]:
    """Returns the images of the tar, by name."""
    found: dict[str, _Member] = {}
    try:
        with reading(path), tarfile.open(path, "r:") as tar:
            for entry in tar:
                name = entry.name.rpartition("/")[2]
                if entry.isfile() and _IMAGE.fullmatch(name):
                    found[name] = _Member(entry.offset_data, entry.size)
    except tarfile.TarError as error:
        last = max(found.values(), key=lambda member: member.offset, default=_Member(0, 0))
        raise DatasetError(
            f"{path}: is truncated or damaged after byte {last.offset + last.size}: {one_line(error)}"
        ) from error
    return found


def _places(folder: Path) -> tuple[Path, ...]:
    """Returns the paths to search for the files with the classes, in order."""
    kits = (base / _DEVELOPMENT_KIT / "data" for base in (folder, folder.parent))
    return (folder, *kits, folder.parent)


def _find(places: tuple[Path, ...], name: str) -> Path | None:
    return next((place / name for place in places if (place / name).is_file()), None)


def _labels(names: list[str], places: tuple[Path, ...], folder: Path) -> list[str]:
    """Returns the WordNet id of each image."""
    numbers = [int(name[len("ILSVRC2012_val_") : -len(".JPEG")]) for name in names]
    if (values := _find(places, _VALUES)) is not None:
        indices = _of_values(values)
        known = _sorted_ids(places)
        return [_id(values, name, indices.get(name), known, 0) for name in names]
    truth_path, truth, meta = _kit(places)
    if truth is None:
        raise DatasetError(
            f"{folder}: has no {_VALUES} and no {_GROUND_TRUTH} for the images; put one of these files, "
            f"or the folder {_DEVELOPMENT_KIT}"
        )
    classes = _numbers(truth_path, truth)
    ids = _ids_of_numbers(meta, places, truth_path)
    return [
        _id(truth_path, name, classes[number - 1] if 0 < number <= len(classes) else None, ids, 1)
        for name, number in zip(names, numbers, strict=True)
    ]


def _id(source: Path, name: str, number: int | None, ids: tuple[str, ...], first: int) -> str:
    if number is None:
        raise DatasetError(f"{source}: has no class for {name}")
    if not 0 <= number - first < len(ids):
        raise DatasetError(
            f"{source}: gives {name} the class {number}; accepted: {first} to {len(ids) + first - 1}"
        )
    return ids[number - first]


def _text(path: Path) -> str:
    with reading(path):
        return read_whole(path, _MAX_TEXT_BYTES).decode("utf-8")


def _of_values(path: Path) -> dict[str, int]:
    """Returns the index of each image in ``val.txt``."""
    indices: dict[str, int] = {}
    for row, line in enumerate(_text(path).splitlines(), start=1):
        name, _, digits = line.strip().rpartition(" ")
        if not line.strip():
            continue
        if not name or not digits.isdecimal() or len(digits) > 9:
            raise DatasetError(f"{path}: line {row}: accepted: a name and an index, with a space between")
        indices[name.strip().rpartition("/")[2]] = int(digits)
    return indices


def _numbers(path: Path, text: str) -> list[int]:
    """Returns the ``ILSVRC2012_ID`` of each image."""
    lines = text.split()
    for row, line in enumerate(lines, start=1):
        if not line.isdecimal() or len(line) > 9:
            raise DatasetError(f"{path}: line {row}: accepted: the number of a class")
    return [int(line) for line in lines]


def _sorted_ids(places: tuple[Path, ...]) -> tuple[str, ...]:
    """Returns the WordNet ids in sorted order: those of ``synsets.txt``, or the 1000 of ILSVRC 2012."""
    if (path := _find(places, _SYNSETS)) is not None:
        return tuple(sorted(_wordnet_ids(path)))
    return tuple(name.split()[0] for name in read_class_names(BUILTIN / "labels" / "imagenet_1k.txt") or ())


def _wordnet_ids(path: Path) -> tuple[str, ...]:
    ids = tuple(line.split()[0] for line in read_class_names(path) or ())
    for row, each in enumerate(ids, start=1):
        if not _WORDNET_ID.fullmatch(each):
            raise DatasetError(f"{path}: line {row}: is not a WordNet id like n01440764")
    return ids


def _kit(places: tuple[Path, ...]) -> tuple[Path, str | None, bytes | None]:
    """Returns the ground truth with its path, and ``meta.mat``, from files or from the kit's archive."""
    truth, meta = _find(places, _GROUND_TRUTH), _find(places, _META)
    if truth is not None:
        return truth, _text(truth), None if meta is None else meta.read_bytes()
    archive = next(
        (found for ending in (".tar.gz", ".tar") if (found := _find(places, _DEVELOPMENT_KIT + ending))), None
    )
    if archive is None:
        return Path(), None, None
    contents: dict[str, bytes] = {}
    try:
        with tarfile.open(archive) as tar:
            for entry in tar:
                name = entry.name.rpartition("/")[2]
                file = tar.extractfile(entry) if name in {_GROUND_TRUTH, _META} else None
                if file is not None:
                    contents[name] = file.read(_MAX_TEXT_BYTES)
        return archive / _GROUND_TRUTH, contents[_GROUND_TRUTH].decode("ascii"), contents.get(_META)
    except (tarfile.TarError, EOFError, OSError, KeyError, UnicodeDecodeError) as error:
        raise DatasetError(f"{archive}: is damaged, or not the kit's archive: {one_line(error)}") from error


def _ids_of_numbers(meta: bytes | None, places: tuple[Path, ...], truth: Path) -> tuple[str, ...]:
    """Returns the WordNet id of each ``ILSVRC2012_ID``, from 1."""
    if meta is not None:
        synsets = read_structures(meta, "synsets", _META)
        ids = {each.get("ILSVRC2012_ID"): each.get("WNID") for each in synsets}
        found = tuple(ids.get(number) for number in range(1, 1001))
        named = tuple(each for each in found if isinstance(each, str) and _WORDNET_ID.fullmatch(each))
        if len(named) < len(found):
            raise DatasetError(f"{_META}: has no WordNet ids for the classes 1 to {len(found)}")
        return named
    path = _find(places, _SYNSETS)
    if path is None:
        raise DatasetError(
            f"{truth}: has numbers of classes; put {_META} of the kit beside it, which translates them"
        )
    ids_in_order = _wordnet_ids(path)
    if list(ids_in_order) == sorted(ids_in_order):
        raise DatasetError(
            f"{path}: is sorted, so it is not in the order of the numbers in {truth.name}; put {_META} of "
            "the kit beside it"
        )
    return ids_in_order
