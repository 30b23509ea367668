"""The pages of an LMDB environment, read without the library.

The library maps the file and trusts what it finds there: a truncated or damaged file ends the process. Here
each number is checked before it is used, and nothing is mapped. The format is that of LMDB 0.9 on 64-bit
little-endian machines, with one unnamed database.
https://github.com/LMDB/lmdb/blob/mdb.master/libraries/liblmdb/mdb.c
"""

from __future__ import annotations

import struct
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from inferometer.evaluators.datasets.files.random_access import RandomAccessFile
from inferometer.manifests.errors import DatasetError

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
    """One of the two descriptions of the environment, of which the later one counts."""

    page_bytes: int
    flags: int
    depth: int
    entries: int
    root: int
    last_page: int
    transaction: int


@dataclass(frozen=True, slots=True, eq=False)
class LmdbEntries:
    """The places of the values of an environment, in the order of their keys.

    Attributes:
        offsets: int64: where each value begins in the file.
        sizes: int64: its size in bytes.
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
        """Returns the key at a place."""
        begin = int(self.key_ends[index - 1]) if index else 0
        return self.keys[begin : int(self.key_ends[index])]

    def damage(self, index: int, file: RandomAccessFile) -> str | None:
        """Describes damage in the pages of a large value, without reading all of it; None without damage.

        Raises:
            OSError: The file cannot be read.
        """
        offset, size = int(self.offsets[index]), int(self.sizes[index])
        if offset + size > file.size:
            return f"is cut off: it has {size} bytes, and the file ends at byte {file.size}"
        page, place = divmod(offset, self.page_bytes)
        if place != _OVERFLOW.size:  # within a page of keys, which was checked
            return None
        header = file.read(_OVERFLOW.size, offset - _OVERFLOW.size)
        if len(header) == _OVERFLOW.size:
            number, _, flags, count = _OVERFLOW.unpack(header)
            if number == page and flags & _OVERFLOW_PAGE and size <= count * self.page_bytes - len(header):
                return None
        return f"its page {page} is damaged"


def read_entries(file: RandomAccessFile) -> LmdbEntries:
    """Walks through all pages of keys of an environment.

    Values are not read. Those beyond the end of a truncated file are among the entries.

    Raises:
        DatasetError: It is not an LMDB, or of an unsupported kind, truncated or damaged; the message
            names the page.
    """
    try:
        return _Walk(file, _latest_meta(file)).entries()
    except OSError as error:
        raise DatasetError(f"{file.path}: cannot be read: {error.strerror or error}") from error


def _latest_meta(file: RandomAccessFile) -> _Meta:
    """Returns the later description; both must be whole, since the earlier one may lack samples."""
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
        raise DatasetError(f"{page} is none of an LMDB, or damaged")
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
    """A walk through the tree of the unnamed database."""

    def __init__(self, file: RandomAccessFile, meta: _Meta) -> None:
        self._file = file
        self._meta = meta
        self._visited: set[int] = set()
        self._offsets: list[int] = []
        self._sizes: list[int] = []
        self._keys: list[bytes] = []

    def entries(self) -> LmdbEntries:
        """Returns the entries."""
        meta = self._meta
        if meta.flags & _DUPLICATES:
            raise self._error("has several values for a key; accepted: one")
        if meta.root == _NO_PAGE or not meta.entries:
            raise self._error("holds no samples")
        self._visit(meta.root, meta.depth)
        if len(self._offsets) != meta.entries:
            raise self._error(
                f"is damaged: it says that it has {meta.entries} entries, and has {len(self._offsets)}"
            )
        ends = np.cumsum(np.fromiter(map(len, self._keys), np.int64, len(self._keys)))
        offsets, sizes = (np.array(each, np.int64) for each in (self._offsets, self._sizes))
        return LmdbEntries(offsets, sizes, b"".join(self._keys), ends, meta.page_bytes)

    def _visit(self, number: int, depth: int) -> None:
        """Adds the entries below a page, which has ``depth`` levels."""
        if number in self._visited or depth < 1:
            raise self._error(f"page {number} is damaged: the tree of pages goes through it again")
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
        """Adds the entry at a place of a leaf."""
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
