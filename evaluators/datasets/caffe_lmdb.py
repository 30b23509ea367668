"""Datasets in an LMDB of Caffe's Datums, as ``convert_imageset`` writes them.

The pages of the LMDB are read without the library, which maps the file and trusts what it finds there: a
truncated or damaged file crashes the process. Here, each number is checked before it is used, and nothing is
mapped. The format is that of LMDB 0.9 on 64-bit little-endian machines, with one unnamed database.
https://github.com/LMDB/lmdb/blob/mdb.master/libraries/liblmdb/mdb.c

A ``Datum`` is an image with its label, as a message of Protocol Buffers. Its fields are ``channels`` (1),
``height`` (2), ``width`` (3), ``data`` (4), ``label`` (5), ``float_data`` (6) and ``encoded`` (7). It is
parsed without its data, which a generated message class would copy.
https://github.com/BVLC/caffe/blob/master/src/caffe/proto/caffe.proto
"""

from __future__ import annotations

import math
import struct
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from inferometer.agent.preprocessing.inputs import EncodedImage, Payload, Pixels, Tensor
from inferometer.evaluators.datasets.base import Sample, StoredDataset
from inferometer.evaluators.datasets.files import (
    MAX_IMAGE_BYTES,
    RandomAccessFile,
    read_class_names,
    reading,
    too_large,
)
from inferometer.manifests.errors import DatasetError, InputError, printable_name

_MAGIC, _VERSION = 0xBEEFC0DE, 1
_PAGE = struct.Struct("<QHHHH")
"""Number, padding, flags; then the bounds of the free space, or the number of overflow pages in one word."""
_OVERFLOW = struct.Struct("<QHHI")
_META = struct.Struct("<IIQQ")
_TREE = struct.Struct("<IHHQQQQQ")
_META_END = struct.Struct("<QQ")
_NODE = struct.Struct("<HHHH")
_META_BYTES = _PAGE.size + _META.size + 2 * _TREE.size + _META_END.size
_BRANCH, _LEAF, _OVERFLOW_PAGE, _META_PAGE, _DIRTY = 0x01, 0x02, 0x04, 0x08, 0x10
_BIG_DATA, _SUB_DATA, _DUPLICATE_DATA = 0x01, 0x02, 0x04
_DUPLICATES = 0x04 | 0x10 | 0x20 | 0x40
_NO_PAGE = (1 << 64) - 1
_PAGE_SIZES = frozenset(1 << bits for bits in range(9, 17))
_MOST_DEPTH = 32
_MOST_KEY_BYTES = 4096


@dataclass(frozen=True, slots=True)
class _Meta:
    """One of the two descriptions of the environment, in its meta pages; the later one is valid."""

    page_bytes: int
    flags: int
    depth: int
    entries: int
    root: int
    last_page: int
    transaction: int


@dataclass(frozen=True, slots=True, eq=False)
class _LmdbEntries:
    """The positions of the values in an environment, in the order of their keys.

    Attributes:
        offsets: int64: where each value begins in the file.
        sizes: int64: the size of each value in bytes.
        keys: All keys, one after another.
        key_ends: int64: where each key ends in ``keys``.
        page_bytes: The size of a page.
    """

    offsets: NDArray[np.int64]
    sizes: NDArray[np.int64]
    keys: bytes
    key_ends: NDArray[np.int64]
    page_bytes: int

    def key(self, index: int) -> bytes:
        """Returns the key at an index."""
        begin = int(self.key_ends[index - 1]) if index else 0
        return self.keys[begin : int(self.key_ends[index])]

    def damage(self, index: int, file: RandomAccessFile) -> str | None:
        """Describes damage in the pages of a large value, without reading all of it; None if it is intact."""
        offset, size = int(self.offsets[index]), int(self.sizes[index])
        if offset + size > file.size:
            return f"is cut off: it has {size} bytes, but the file ends at byte {file.size}"
        page, place = divmod(offset, self.page_bytes)
        if place != _OVERFLOW.size:  # within a page of keys, which was checked
            return None
        header = file.read(_OVERFLOW.size, offset - _OVERFLOW.size)
        if len(header) == _OVERFLOW.size:
            number, _, flags, count = _OVERFLOW.unpack(header)
            if number == page and flags & _OVERFLOW_PAGE and size <= count * self.page_bytes - len(header):
                return None
        return f"its page {page} is damaged"


def _latest_meta(file: RandomAccessFile) -> _Meta:
    """Returns the later description; both must be intact, since the earlier one may lack samples."""
    first = _meta(file, 0)
    return max(first, _meta(file, first.page_bytes), key=lambda meta: meta.transaction)


def _meta(file: RandomAccessFile, offset: int) -> _Meta:
    """Returns the description in the page at an offset."""
    content = file.read(_META_BYTES, offset)
    page = f"{file.path}: its page at byte {offset}"
    if len(content) < _META_BYTES:
        raise DatasetError(f"{file.path}: is no LMDB, or truncated: it has {file.size} bytes, not two pages")
    _, _, flags, _, _ = _PAGE.unpack_from(content)
    magic, version, _, _ = _META.unpack_from(content, _PAGE.size)
    if magic != _MAGIC or not flags & _META_PAGE:
        raise DatasetError(f"{page} is not a page of an LMDB, or is damaged")
    if version & 0x7FFFFFFF != _VERSION:
        raise DatasetError(f"{page} has the format {version} of LMDB; accepted: {_VERSION}, that of LMDB 0.9")
    place = _PAGE.size + _META.size
    page_bytes, *_ = _TREE.unpack_from(content, place)
    _, tree_flags, depth, _, _, _, entries, root = _TREE.unpack_from(content, place + _TREE.size)
    last_page, transaction = _META_END.unpack_from(content, place + 2 * _TREE.size)
    if page_bytes not in _PAGE_SIZES or depth > _MOST_DEPTH or (root != _NO_PAGE and root > last_page):
        raise DatasetError(f"{page} is damaged")
    return _Meta(page_bytes, tree_flags, depth, entries, root, last_page, transaction)


class _Walk:
    """A walk through the tree of the unnamed database, across all pages with keys.

    Values are not read. The entries include values beyond the end of a truncated file.
    """

    def __init__(self, file: RandomAccessFile, meta: _Meta) -> None:
        self._file = file
        self._meta = meta
        self._visited: set[int] = set()
        self._offsets: list[int] = []
        self._sizes: list[int] = []
        self._keys: list[bytes] = []

    def entries(self) -> _LmdbEntries:
        """Returns the entries."""
        meta = self._meta
        if meta.flags & _DUPLICATES:
            raise self._error("has several values for a key; accepted: one")
        if meta.root == _NO_PAGE or not meta.entries:
            raise self._error("holds no samples")
        self._visit(meta.root, meta.depth)
        if len(self._offsets) != meta.entries:
            raise self._error(f"is damaged: it declares {meta.entries} entries, but has {len(self._offsets)}")
        ends = np.cumsum(np.fromiter(map(len, self._keys), np.int64, len(self._keys)))
        offsets, sizes = (np.array(each, np.int64) for each in (self._offsets, self._sizes))
        return _LmdbEntries(offsets, sizes, b"".join(self._keys), ends, meta.page_bytes)

    def _visit(self, number: int, depth: int) -> None:
        """Adds the entries below a page that is the root of ``depth`` levels."""
        if number in self._visited or depth < 1:
            raise self._error(f"page {number} is damaged: the tree of pages reaches it twice")
        self._visited.add(number)
        size = self._meta.page_bytes
        page = self._file.read(size, number * size)
        if len(page) < size:
            raise self._error(
                f"is truncated: it has {self._file.size} bytes of {(self._meta.last_page + 1) * size}, and "
                f"page {number}, which lists samples, is missing"
            )
        own, _, flags, lower, upper = _PAGE.unpack_from(page)
        kind = _LEAF if depth == 1 else _BRANCH
        if own != number or flags & ~_DIRTY != kind or not _PAGE.size <= lower <= upper <= size or lower & 1:
            raise self._error(f"page {number} at byte {number * size} is damaged")
        places = struct.unpack_from(f"<{(lower - _PAGE.size) // 2}H", page, _PAGE.size)
        if places and (min(places) < upper or max(places) > size - _NODE.size):
            raise self._error(f"page {number} at byte {number * size} is damaged")
        if kind == _LEAF:
            for place in places:
                self._add(page, place, number)
            return
        for place in places:
            low, high, top, _ = _NODE.unpack_from(page, place)
            child = low | high << 16 | top << 32
            if not 1 < child <= self._meta.last_page:
                raise self._error(f"page {number} at byte {number * size} is damaged: it names page {child}")
            self._visit(child, depth - 1)

    def _add(self, page: bytes, place: int, number: int) -> None:
        """Adds the entry at an offset in a leaf."""
        low, high, flags, key_bytes = _NODE.unpack_from(page, place)
        size, begin = low | high << 16, place + _NODE.size + key_bytes
        if flags & (_SUB_DATA | _DUPLICATE_DATA):
            raise self._error("holds named databases, or several values for a key; accepted: one database")
        room = 8 if flags & _BIG_DATA else size
        if flags & ~_BIG_DATA or not 0 < key_bytes <= _MOST_KEY_BYTES or begin + room > len(page):
            raise self._error(f"page {number} at byte {number * len(page)} is damaged at byte {place}")
        offset = number * len(page) + begin
        if flags & _BIG_DATA:
            overflow = int.from_bytes(page[begin : begin + 8], "little")
            if not 1 < overflow <= self._meta.last_page:
                raise self._error(f"page {number} at byte {number * len(page)} is damaged at byte {place}")
            offset = overflow * len(page) + _OVERFLOW.size
        self._keys.append(page[place + _NODE.size : begin])
        self._offsets.append(offset)
        self._sizes.append(size)

    def _error(self, what: str) -> DatasetError:
        return DatasetError(f"{self._file.path}: {what}")


CHANNELS, HEIGHT, WIDTH, DATA, LABEL, FLOAT_DATA, ENCODED = range(1, 8)
"""The fields of a Datum."""
VARINT, _FIXED64, BYTES, FIXED32 = 0, 1, 2, 5
"""The kinds of values of Protocol Buffers."""
_WINDOW_BYTES = 64
_MOST_VARINT_BYTES = 10


@dataclass(frozen=True, slots=True)
class _DatumFields:
    """The fields of a Datum, without its bytes.

    Attributes:
        shape: Channels, height and width.
        label: The index of the class; None if there is none.
        encoded: Whether ``data`` is an image file.
        data_offset: The offset of ``data`` in the message.
        data_size: Its size in bytes; 0 if there is no data.
        floats: The parts of ``float_data`` in the message: the offset and size of each, in bytes.
    """

    shape: tuple[int, int, int] = (0, 0, 0)
    label: int | None = None
    encoded: bool = False
    data_offset: int = 0
    data_size: int = 0
    floats: tuple[tuple[int, int], ...] = ()


class _Window:
    """The bytes around a position in a message, read on demand."""

    def __init__(self, read: Callable[[int, int], bytes], size: int) -> None:
        self._read = read
        self.size = size
        self._begin = 0
        self._content = b""

    def varint(self, place: int) -> tuple[int, int]:
        """Returns the number at a position, and the position after it."""
        begin = place - self._begin
        if not 0 <= begin <= len(self._content) - _MOST_VARINT_BYTES:
            self._begin = place
            self._content = self._read(min(_WINDOW_BYTES, self.size - place), place)
            begin = 0
        value = shift = 0
        for byte in self._content[begin : begin + _MOST_VARINT_BYTES]:
            value |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                return value, place + shift // 7
        raise InputError(f"the number at byte {place} of the Datum is cut off or damaged")


def _read_fields(read: Callable[[int, int], bytes], size: int) -> _DatumFields:
    """Reads the fields of a Datum except its data; ``read`` returns some bytes from an offset in it."""
    window = _Window(read, size)
    numbers: dict[int, int] = {}
    data_offset = data_size = place = 0
    floats: list[tuple[int, int]] = []
    while place < size:
        begin = place
        key, place = window.varint(place)
        field, kind = key >> 3, key & 7
        length = 0
        if kind == VARINT:
            numbers[field], place = window.varint(place)
        elif kind == BYTES:
            length, place = window.varint(place)
        elif kind in {FIXED32, _FIXED64}:
            length = 4 if kind == FIXED32 else 8
        if not field or kind not in _KINDS.get(field, (VARINT, _FIXED64, BYTES, FIXED32)):
            raise InputError(f"is not a Datum, or is damaged, at byte {begin}")
        if length > size - place:
            raise InputError(
                f"is cut off: field {field} at byte {begin} has {length} bytes, but {size - place} are left"
            )
        if field == DATA:
            data_offset, data_size = place, length
        elif field == FLOAT_DATA:
            floats.append((place, length))
        place += length
    label = numbers.get(LABEL)
    channels, height, width = (_signed(numbers.get(each, 0)) for each in (CHANNELS, HEIGHT, WIDTH))
    return _DatumFields(
        shape=(channels, height, width),
        label=None if label is None else _signed(label),
        encoded=bool(numbers.get(ENCODED, 0)),
        data_offset=data_offset,
        data_size=data_size,
        floats=tuple(floats),
    )


_KINDS = {
    **dict.fromkeys((CHANNELS, HEIGHT, WIDTH, LABEL, ENCODED), (VARINT,)),
    DATA: (BYTES,),
    FLOAT_DATA: (FIXED32, BYTES),
}


def _signed(value: int) -> int:
    """Returns the int32 that a varint holds."""
    value &= 0xFFFFFFFF
    return value - (1 << 32) if value >= 1 << 31 else value


def _pixels_of(fields: _DatumFields, data: bytes) -> NDArray[np.uint8]:
    """Returns the image from raw data: uint8, height × width × 3 in RGB, or height × width if it is grey."""
    expected = math.prod(fields.shape)
    if min(fields.shape) < 1 or expected != len(data):
        raise InputError(
            f"is a Datum of the wrong size: {' × '.join(map(str, fields.shape))} values take "
            f"{max(expected, 0)} bytes, but it has {len(data)}"
        )
    channels = fields.shape[0]
    if channels not in {1, 3}:
        raise InputError(f"is a Datum with {channels} channels; accepted: 1 or 3")
    planes = np.frombuffer(data, np.uint8).reshape(fields.shape)
    return planes[0] if channels == 1 else np.ascontiguousarray(planes[::-1].transpose(1, 2, 0))


def _tensor_of(fields: _DatumFields, parts: list[bytes]) -> NDArray[np.float32]:
    """Returns the tensor in ``float_data``, float32: channels × height × width."""
    content = b"".join(parts)
    if min(fields.shape) < 1 or 4 * math.prod(fields.shape) != len(content):
        raise InputError(
            f"is a Datum of the wrong size: it declares {' × '.join(map(str, fields.shape))} "
            f"values, but has {len(content) / 4:g}"
        )
    return np.frombuffer(content, "<f4").reshape(fields.shape).astype(np.float32)


DATA_FILE = "data.mdb"
_CLASSES_FILE = "classes.txt"


class LmdbDataset(StoredDataset):
    """The Datums of an LMDB, in the order of their keys, which are the ids.

    A Datum is an encoded image; raw pixels, channels × height × width in blue, green and red; or a tensor in
    ``float_data``. A label is the index of a class, as text, or the line with this number, from 0, of the
    folder's ``classes.txt`` if there is one. A label of -1 means none. Samples can be read from several
    threads. Neither the lock file nor the LMDB library is used: the LMDB must not be written to meanwhile,
    and a damaged one cannot crash the process. A damaged Datum becomes a failed input.

    ``path`` is the folder that contains ``data.mdb``, or such a file; the other arguments are those of
    ``StoredDataset``.

    Raises:
        DatasetError: The file is unreadable, not an LMDB of one database, truncated, damaged or empty.
    """

    backend = "caffe_lmdb"

    def _open(self, path: Path) -> int:
        is_folder = path.is_dir()
        self._file = RandomAccessFile(path / DATA_FILE if is_folder else path)
        with reading(self._file.path):
            self._entries = _Walk(self._file, _latest_meta(self._file)).entries()
        self._names = read_class_names(
            path / _CLASSES_FILE if is_folder else path.with_suffix(f".{_CLASSES_FILE}")
        )
        self.labels_are_indices = self._names is None
        if not (self._entries.offsets + self._entries.sizes <= self._file.size).any():
            raise DatasetError(
                f"{self._file.path}: is truncated: no sample is within its {self._file.size} bytes"
            )
        return len(self._entries.offsets)

    def sample(self, index: int) -> Sample:
        """Returns a sample; its label is read at once, its data later."""
        key = self._key(index)
        try:
            fields = self._fields(index)
        except (InputError, OSError):
            return Sample(key, partial(self._read_again, index))
        label, names, text = fields.label, self._names or (), None
        if label is not None and label != -1:
            text = names[label] if 0 <= label < len(names) else str(label)
        return Sample(key, partial(self._read, index, fields), text, self.labels_are_indices)

    def files(self) -> tuple[Path]:
        """Returns the file that holds the records."""
        return (self._file.path,)

    def close(self) -> None:
        """Closes the file."""
        self._file.close()

    def _fields(self, index: int) -> _DatumFields:
        """Reads the fields of a Datum; if it is damaged, raises InputError, which gives the position."""
        offset, size = int(self._entries.offsets[index]), int(self._entries.sizes[index])
        if damage := self._entries.damage(index, self._file):
            raise InputError(self._where(index, damage))
        if size > MAX_IMAGE_BYTES:
            raise too_large(self._where(index, "a Datum"), size)
        try:
            return _read_fields(lambda count, place: self._file.read(count, offset + place), size)
        except InputError as error:
            raise InputError(self._where(index, str(error))) from error

    def _read_again(self, index: int) -> Payload:
        return self._read(index, self._fields(index))

    def _read(self, index: int, fields: _DatumFields) -> Payload:
        """Reads the data of a Datum."""
        try:
            if fields.encoded and fields.data_size:
                return EncodedImage(self._bytes(index, fields.data_offset, fields.data_size))
            if fields.floats and not fields.data_size:
                parts = [self._bytes(index, offset, size) for offset, size in fields.floats]
                return Tensor(_tensor_of(fields, parts))
            return Pixels(_pixels_of(fields, self._bytes(index, fields.data_offset, fields.data_size)))
        except InputError as error:
            raise InputError(self._where(index, str(error))) from error

    def _bytes(self, index: int, offset: int, size: int) -> bytes:
        content = self._file.read(size, int(self._entries.offsets[index]) + offset)
        if len(content) < size:
            raise InputError(f"is cut off: the file has become shorter than {self._file.size} bytes")
        return content

    def _where(self, index: int, what: str) -> str:
        place = int(self._entries.offsets[index])
        return f"{self._file.path}: record {index}, {self._key(index)}, at byte {place}: {what}"

    def _key(self, index: int) -> str:
        return printable_name(self._entries.key(index).decode("utf-8", "surrogateescape"))
