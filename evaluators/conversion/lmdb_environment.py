"""Writes LMDB environments and the Datums in them; the only user of the LMDB library."""

from __future__ import annotations

import struct
from pathlib import Path

import lmdb
import numpy as np
from numpy.typing import NDArray

from inferometer.evaluators.datasets.caffe_lmdb import (
    BYTES,
    CHANNELS,
    DATA,
    ENCODED,
    FIXED32,
    FLOAT_DATA,
    HEIGHT,
    LABEL,
    VARINT,
    WIDTH,
)

_FIRST_MAP_BYTES = 1 << 30


class LmdbEnvironment:
    """An LMDB that grows as it is written. Not thread-safe.

    Args:
        folder: The folder of ``data.mdb``.

    Raises:
        OSError: The LMDB cannot be opened or written; every method may raise this.
    """

    def __init__(self, folder: Path) -> None:
        try:
            self._environment = lmdb.open(str(folder), map_size=_FIRST_MAP_BYTES)
        except lmdb.Error as error:
            raise OSError(str(error)) from error
        self._pending: list[tuple[bytes, bytes]] = []

    def put(self, key: bytes, value: bytes) -> None:
        """Adds a value, which the next ``commit`` writes."""
        self._pending.append((key, value))

    def commit(self) -> None:
        """Writes all added values in one transaction, and returns once they are on the disk."""
        while True:
            try:
                with self._environment.begin(write=True) as transaction:
                    for key, value in self._pending:
                        transaction.put(key, value)
            except lmdb.MapFullError:
                self._environment.set_mapsize(self._environment.info()["map_size"] * 2)
            except lmdb.Error as error:
                raise OSError(str(error)) from error
            else:
                self._pending.clear()
                return

    def close(self) -> None:
        """Closes the environment, and discards uncommitted data."""
        self._environment.close()


def encoded_datum(content: bytes, label: int | None) -> bytes:
    """Returns a Datum that holds an image file."""
    return _message((), content, label) + _key(ENCODED, VARINT) + b"\1"


def raw_datum(pixels: NDArray[np.uint8], label: int | None) -> bytes:
    """Returns a Datum that holds pixels.

    Args:
        pixels: Height × width × 3 in red, green and blue, or height × width.
        label: The index of the class.
    """
    planes = pixels[np.newaxis] if pixels.ndim == 2 else pixels.transpose(2, 0, 1)[::-1]
    return _message(planes.shape, planes.tobytes(), label)


def float_datum(tensor: NDArray[np.float32], label: int | None) -> bytes:
    """Returns a Datum that holds a tensor: channels × height × width."""
    values = b"".join(_key(FLOAT_DATA, FIXED32) + struct.pack("<f", value) for value in tensor.ravel())
    return _message(tensor.shape, None, label) + values


def _message(shape: tuple[int, ...], data: bytes | None, label: int | None) -> bytes:
    message = b"".join(
        _key(field, VARINT) + _varint(value)
        for field, value in zip((CHANNELS, HEIGHT, WIDTH), shape, strict=False)
    )
    if data is not None:
        message += _key(DATA, BYTES) + _varint(len(data)) + data
    if label is not None:
        message += _key(LABEL, VARINT) + _varint(label)
    return message


def _key(field: int, kind: int) -> bytes:
    return bytes((field << 3 | kind,))


def _varint(value: int) -> bytes:
    """Returns a number as a varint of Protocol Buffers; a negative number takes ten bytes."""
    value &= (1 << 64) - 1
    content = bytearray()
    while value >= 0x80:
        content.append(value & 0x7F | 0x80)
        value >>= 7
    content.append(value)
    return bytes(content)
