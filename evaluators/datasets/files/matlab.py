"""Structures in MATLAB's files of version 5, such as the ``meta.mat`` of ILSVRC's development kit.

Numbers and texts in an array of structures are read, and other values are left out.
https://www.mathworks.com/help/pdf_doc/matlab/matfile_format.pdf
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator
from typing import Any

import numpy as np

from inferometer.manifests.errors import DatasetError, one_line

_HEADER_BYTES = 128
_MAX_BYTES = 256 * 1024 * 1024
_MOST_ELEMENTS = 1_000_000
_MATRIX, _COMPRESSED = 14, 15
_STRUCTURE, _TEXT, _NUMBERS = 2, 4, range(6, 16)
_DTYPES = {1: "i1", 2: "u1", 3: "i2", 4: "u2", 5: "i4", 6: "u4", 7: "f4", 9: "f8", 12: "i8", 13: "u8"}
_ENCODINGS = {2: "latin1", 4: "utf-16-le", 16: "utf-8", 17: "utf-16-le", 1: "latin1"}


def read_structures(content: bytes, name: str, source: str) -> list[dict[str, Any]]:
    """Returns the structures of a variable, each as its numbers and texts by field.

    Args:
        content: The file.
        name: The variable.
        source: The file's path, for errors.

    Raises:
        DatasetError: The file is damaged, of another version, or has no such variable.
    """
    if len(content) < _HEADER_BYTES or content[126:128] != b"IM" or content[125] != 1:
        raise DatasetError(f"{source}: is no file of MATLAB 5 on a little-endian machine")
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
    """Yields the elements from an offset on: type and content."""
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
    """Returns the name and value of a matrix; the value is None unless it is structures, numbers or text."""
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
