"""The idx format of MNIST: a header and the bytes of an array, also compressed with gzip.

http://yann.lecun.com/exdb/mnist/
"""

from __future__ import annotations

import gzip
import math
import struct
import zlib
from pathlib import Path
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

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
