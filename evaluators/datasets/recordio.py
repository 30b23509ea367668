"""Datasets in RecordIO files, as MXNet's ``im2rec`` writes them; the format's framing and index file.

A record begins at a multiple of 4 with two 32-bit words, of which the first is ``MAGIC`` and the second holds
a flag in its 3 upper bits and a length in the others. The content follows, and zeros up to a multiple of 4.
Content in which ``MAGIC`` occurs at a multiple of 4 is split there into parts, which omit it: the flag is 1
in the first part, 2 in the next ones, 3 in the last one, and 0 in a record of one part.
https://github.com/dmlc/dmlc-core/blob/main/include/dmlc/recordio.h
"""

from __future__ import annotations

import math
import struct
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from inferometer.agent.preprocessing.inputs import EncodedImage
from inferometer.evaluators.datasets.base import Sample, StoredDataset
from inferometer.evaluators.datasets.files import (
    MAX_IMAGE_BYTES,
    RandomAccessFile,
    read_class_names,
    reading,
    too_large,
)
from inferometer.manifests.errors import DatasetError, InputError

MAGIC = 0xCED7230A
MAGIC_BYTES = struct.pack("<I", MAGIC)
HEADER = struct.Struct("<II")
"""The two words before the content of a part."""
_MAX_PART_BYTES = (1 << 29) - 1
_LENGTH_BITS = 29
_WHOLE, _FIRST, _MIDDLE, _LAST = range(4)
_CHECKED = 64
_CHUNK_BYTES = 1 << 20
_FIRST_CHUNK_BYTES = 1 << 10


@dataclass(frozen=True, slots=True, eq=False)
class _RecordPlaces:
    """The positions of the records in a file, in the file's order.

    Attributes:
        offsets: int64: where each record begins.
        ends: int64: where the next record begins; for the last record, the end of the file.
    """

    offsets: NDArray[np.int64]
    ends: NDArray[np.int64]


def _split_word(word: int) -> tuple[int, int]:
    """Returns the flag and the length in the second word of a part."""
    return word >> _LENGTH_BITS, word & _MAX_PART_BYTES


def padded(length: int) -> int:
    """Returns a length, including the zeros that follow the content."""
    return (length + 3) & ~3


def framed(content: bytes) -> bytes:
    """Returns content as a record of as many parts as necessary; raises InputError if one is too long."""
    cuts, found = [], content.find(MAGIC_BYTES)
    while found >= 0:
        if found % 4 == 0:
            cuts.append(found)
        found = content.find(MAGIC_BYTES, found + (4 if found % 4 == 0 else 1))
    starts = [0, *(cut + 4 for cut in cuts)]
    parts = [content[start:end] for start, end in zip(starts, [*cuts, len(content)], strict=True)]
    record = bytearray()
    for place, part in enumerate(parts):
        if len(part) > _MAX_PART_BYTES:
            raise InputError(f"has {len(content)} bytes; a part of a record has at most {_MAX_PART_BYTES}")
        flag = _WHOLE
        if len(parts) > 1:
            flag = _FIRST if place == 0 else _LAST if place == len(parts) - 1 else _MIDDLE
        record += HEADER.pack(MAGIC, flag << _LENGTH_BITS | len(part))
        record += part + b"\0" * (padded(len(part)) - len(part))
    return bytes(record)


def _join_parts(record: bytes) -> bytes:
    """Returns the content of a record of several parts; ``record`` has its bytes, and may have more."""
    parts: list[bytes] = []
    offset = 0
    while True:
        if len(record) < offset + HEADER.size:
            raise InputError(f"part {len(parts)} at byte {offset} of the record is cut off")
        magic, word = HEADER.unpack_from(record, offset)
        flag, length = _split_word(word)
        expected = (_WHOLE, _FIRST) if not parts else (_MIDDLE, _LAST)
        if magic != MAGIC or flag not in expected:
            raise InputError(f"part {len(parts)} at byte {offset} of the record is damaged")
        begin = offset + HEADER.size
        if len(record) < begin + length:
            raise InputError(f"part {len(parts)} at byte {offset} of the record is cut off")
        parts.append(record[begin : begin + length])
        if flag in {_WHOLE, _LAST}:
            return MAGIC_BYTES.join(parts)
        offset = begin + padded(length)


def find_records(file: RandomAccessFile) -> _RecordPlaces:
    """Scans a file once, from header to header.

    If no header follows a record, one of the two is damaged, and the scan looks for the next header: the
    damaged record is among the positions, and fails when it is read.

    Raises:
        DatasetError: The file holds no record, or cannot be read.
    """
    offsets: list[int] = []
    ends: list[int] = []
    offset = 0
    try:
        while offset < file.size:
            end, last = _end_of_record(file, offset)
            if end is None or not (end == file.size or _starts(file, end)):
                # the parts before it are whole; to look within them too would take the square of the time
                following = _next_header(file, last + 4)
                # a header within the record means that its length is damaged, else that which follows it is
                end = following if end is None or following < end else end
            offsets.append(offset)
            ends.append(end)
            offset = end
    except OSError as error:
        raise DatasetError(
            f"{file.path}: cannot be read at byte {offset}: {error.strerror or error}"
        ) from error
    if not offsets or (len(offsets) == 1 and not _starts(file, 0)):
        raise DatasetError(f"{file.path}: holds no record of RecordIO")
    return _RecordPlaces(np.array(offsets, np.int64), np.array(ends, np.int64))


def _end_of_record(file: RandomAccessFile, offset: int) -> tuple[int | None, int]:
    """Returns the end of the record at an offset, and the start of its last part with a header.

    The end is None if a header is damaged, or the record is cut off.
    """
    last, first = offset, True
    while True:
        header = file.read(HEADER.size, offset)
        if len(header) < HEADER.size:
            return None, last
        magic, word = HEADER.unpack(header)
        flag, length = _split_word(word)
        if magic != MAGIC or flag > _LAST or (flag in {_WHOLE, _FIRST}) != first:
            return None, last
        end, last = offset + HEADER.size + padded(length), offset
        if end > file.size:
            return None, last
        if flag in {_WHOLE, _LAST}:
            return end, last
        offset, first = end, False


def _starts(file: RandomAccessFile, offset: int) -> bool:
    """Returns whether a record may begin at an offset."""
    header = file.read(HEADER.size, offset)
    if len(header) < HEADER.size:
        return False
    magic, word = HEADER.unpack(header)
    return bool(magic == MAGIC and _split_word(word)[0] in {_WHOLE, _FIRST})


def _next_header(file: RandomAccessFile, offset: int) -> int:
    """Returns the offset of the next record at or after an offset; the end of the file if there is none."""
    size = _FIRST_CHUNK_BYTES
    while offset < file.size:
        chunk = file.read(size, offset)
        found = chunk.find(MAGIC_BYTES)
        while found >= 0:
            if (offset + found) % 4 == 0 and _starts(file, offset + found):
                return offset + found
            found = chunk.find(MAGIC_BYTES, found + 1)
        if len(chunk) < size:
            break
        offset += len(chunk) - 4
        size = min(4 * size, _CHUNK_BYTES)
    return file.size


def _read_index(path: Path, file: RandomAccessFile) -> _RecordPlaces:
    """Reads an ``.idx``: each line has a key and the offset of a record, separated by a tab.

    Some of the offsets are checked against the file. The positions include records beyond the end of a
    truncated file.
    """
    with reading(path):
        lines = path.read_bytes().split(b"\n")
    if lines and not lines[-1].strip():
        lines.pop()
    offsets = np.empty(len(lines), np.int64)
    for row, line in enumerate(lines):
        digits = line.rpartition(b"\t")[2].strip()
        if not digits.isdigit() or len(digits) > 18:
            shown = line[:40].decode("ascii", "backslashreplace")
            raise DatasetError(
                f'{path}: line {row + 1}: "{shown}" is not a key and offset of a record; {_REMEDY}'
            )
        offsets[row] = int(digits)
    if not len(offsets):
        raise DatasetError(f"{path}: is empty; {_REMEDY}")
    ordered = np.unique(offsets)
    if len(ordered) < len(offsets):
        raise DatasetError(f"{path}: has two lines with the same offset; {_REMEDY}")
    places = _RecordPlaces(ordered, np.append(ordered[1:], max(file.size, int(ordered[-1]) + HEADER.size)))
    with reading(file.path):
        _check_index(path, file, places)
    return places


_REMEDY = "remove the .idx, and the records are found without it"


def _check_index(path: Path, file: RandomAccessFile, places: _RecordPlaces) -> None:
    """Raises DatasetError if the index belongs to another file, or omits records at either end."""
    inside = places.offsets[places.offsets < file.size]
    if not len(inside):
        raise DatasetError(f"{path}: no offset is within the {file.size} bytes of {file.path}; {_REMEDY}")
    chosen = inside[np.unique(np.linspace(0, len(inside) - 1, _CHECKED).astype(np.int64))]
    wrong = [int(offset) for offset in chosen if not _starts(file, int(offset))]
    if wrong and len(wrong) * 2 >= len(chosen):
        raise DatasetError(
            f"{path}: belongs to another file: no record of {file.path} begins at byte {wrong[0]}; {_REMEDY}"
        )
    if inside[0] != 0:
        raise DatasetError(
            f"{path}: leaves out the records before byte {inside[0]} of {file.path}; {_REMEDY}"
        )
    if len(inside) == len(places.offsets):
        end, _ = _end_of_record(file, int(inside[-1]))
        if end is not None and end < file.size:
            raise DatasetError(f"{path}: leaves out the records from byte {end} of {file.path} on; {_REMEDY}")


SUFFIX = ".rec"
IMAGE_HEADER = struct.Struct("<IfQQ")
"""MXNet's ``IRHeader``: the number of labels after it, the label itself if that number is 0, and two ids."""
_BEGIN = struct.Struct("<IIIfQQ")
_LABEL = struct.Struct("<f")


class RecordDataset(StoredDataset):
    """The images of a ``.rec``, in the order of the file.

    A label is the index of a class, as text; the first of several is used. If ``<name>.classes.txt`` is next
    to the file, with one class name per line, it is that name. A label of -1 means none. With an ``.idx`` of
    the same name next to it, the file is not scanned. Samples can be read from several threads. A damaged
    record becomes a failed input.

    The arguments are those of ``StoredDataset``.

    Raises:
        DatasetError: The file cannot be read or has no record, or the ``.idx`` is damaged or of another file.
    """

    backend = "recordio"

    def _open(self, path: Path) -> int:
        self._file = RandomAccessFile(path)
        index = path.with_suffix(".idx")
        self._places = _read_index(index, self._file) if index.exists() else find_records(self._file)
        self._names = read_class_names(path.with_suffix(".classes.txt"))
        self.labels_are_indices = self._names is None
        return len(self._places.offsets)

    def sample(self, index: int) -> Sample:
        """Returns a sample; its label is read at once, its image later."""
        offset = int(self._places.offsets[index])
        try:
            begin = self._file.read(_BEGIN.size, offset)
        except OSError:
            begin = b""
        if len(begin) == _BEGIN.size:
            magic, word, labels, label, _, _ = _BEGIN.unpack(begin)
            is_whole = offset + HEADER.size + padded(word) <= int(self._places.ends[index])
            if magic == MAGIC and labels == 0 and word >> 29 == 0 and is_whole:
                size = word - IMAGE_HEADER.size
                read = partial(self._read, index, offset + _BEGIN.size, size)
                return Sample(str(index), read, self._text(label), self.labels_are_indices)
        return self._unusual(index, offset, int(self._places.ends[index]))

    def files(self) -> tuple[Path]:
        """Returns the file that holds the records."""
        return (self._file.path,)

    def close(self) -> None:
        """Closes the file."""
        self._file.close()

    def _read(self, index: int, offset: int, size: int) -> EncodedImage:
        """Reads the image of a record that has one part and one label."""
        there = 0 <= size <= self._file.size - offset
        if there and size > MAX_IMAGE_BYTES:
            raise too_large(self._where(index, "an image"), size)
        content = self._file.read(size, offset) if there else b""
        if not there or len(content) < size:
            extent = f"it should have {size + _BEGIN.size} bytes, but the file ends at byte {self._file.size}"
            raise InputError(self._where(index, f"is cut off: {extent}"))
        return EncodedImage(content)

    def _unusual(self, index: int, offset: int, end: int) -> Sample:
        """Returns the sample of a record that has several parts or labels, or is damaged."""
        read = partial(self._read_record, index, offset, end)
        for known in (min(end, offset + 4096), end):  # the label is mostly at the beginning
            with suppress(InputError, OSError):
                _, label = self._content(index, offset, known)
                return Sample(str(index), read, self._text(label), self.labels_are_indices)
        return Sample(str(index), read)

    def _read_record(self, index: int, offset: int, end: int) -> EncodedImage:
        return EncodedImage(self._content(index, offset, end)[0])

    def _content(self, index: int, offset: int, end: int) -> tuple[bytes, float]:
        """Returns the image of a record, and its first label."""
        size = end - offset
        if size > MAX_IMAGE_BYTES:
            raise too_large(self._where(index, "an image"), size)
        record = self._file.read(size, offset)
        if len(record) < HEADER.size:
            raise InputError(self._where(index, f"is cut off: the file ends at byte {offset + len(record)}"))
        magic, word = HEADER.unpack_from(record)
        if magic != MAGIC:
            raise InputError(self._where(index, f"does not begin with the number {MAGIC:#x} of RecordIO"))
        flag, length = _split_word(word)
        if flag == 0 and length > size - HEADER.size:
            cut = f"is cut off or damaged: its length is {length}, and {size - HEADER.size} are there"
            raise InputError(self._where(index, cut))
        try:
            content = _join_parts(record)
        except InputError as error:
            raise InputError(self._where(index, str(error))) from error
        return self._split(index, content)

    def _split(self, index: int, content: bytes) -> tuple[bytes, float]:
        """Returns the image after the header and the labels, and the first label."""
        if len(content) < IMAGE_HEADER.size:
            raise InputError(
                self._where(index, f"has {len(content)} bytes, too few for the header of an image")
            )
        labels, label, _, _ = IMAGE_HEADER.unpack_from(content)
        begin = IMAGE_HEADER.size + labels * _LABEL.size
        if begin > len(content):
            raise InputError(self._where(index, f"has {labels} labels, which do not fit into it"))
        if labels:
            [label] = _LABEL.unpack_from(content, IMAGE_HEADER.size)
        return content[begin:], float(label)

    def _text(self, label: float) -> str | None:
        """Returns the label as text; None if it means that there is none."""
        if math.isnan(label) or label == -1:
            return None
        if label != np.floor(label):
            return str(label)
        if 0 <= label < len(names := self._names or ()):
            return names[int(label)]
        return str(int(label)) if math.isfinite(label) else str(label)

    def _where(self, index: int, what: str) -> str:
        return f"{self._file.path}: record {index} at byte {int(self._places.offsets[index])}: {what}"
