"""Caffe's ``Datum``: an image with its label, as a message of Protocol Buffers.

Its fields are ``channels`` (1), ``height`` (2), ``width`` (3), ``data`` (4), ``label`` (5), ``float_data``
(6) and ``encoded`` (7). It is read without its data, which a generated message would copy.
https://github.com/BVLC/caffe/blob/master/src/caffe/proto/caffe.proto
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from inferometer.manifests.errors import InputError

_CHANNELS, _HEIGHT, _WIDTH, _DATA, _LABEL, _FLOAT_DATA, _ENCODED = range(1, 8)
_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
_WINDOW_BYTES = 64
_MOST_VARINT_BYTES = 10


@dataclass(frozen=True, slots=True)
class DatumFields:
    """The fields of a Datum, without its bytes.

    Attributes:
        channels: The number of channels.
        height: The height in pixels.
        width: The width in pixels.
        label: The index of the class; None without one.
        encoded: Whether ``data`` is an image file.
        data_offset: The offset of ``data`` in the message.
        data_size: Its size in bytes; 0 without any.
        floats: The places of ``float_data`` in the message: offset and size in bytes.
    """

    channels: int = 0
    height: int = 0
    width: int = 0
    label: int | None = None
    encoded: bool = False
    data_offset: int = 0
    data_size: int = 0
    floats: tuple[tuple[int, int], ...] = ()


class _Window:
    """Bytes around a place of a message, which are read when they are needed."""

    def __init__(self, read: Callable[[int, int], bytes], size: int) -> None:
        self._read = read
        self.size = size
        self._begin = 0
        self._content = b""

    def varint(self, place: int) -> tuple[int, int]:
        """Returns the number at a place, and the place after it."""
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


def read_fields(read: Callable[[int, int], bytes], size: int) -> DatumFields:
    """Reads the fields of a Datum but its data.

    Args:
        read: Returns a number of bytes from an offset in the message on.
        size: The size of the message in bytes.

    Raises:
        InputError: It is not a Datum, or damaged; the message names the byte.
    """
    window = _Window(read, size)
    numbers: dict[int, int] = {}
    data_offset = data_size = place = 0
    floats: list[tuple[int, int]] = []
    while place < size:
        begin = place
        key, place = window.varint(place)
        field, kind = key >> 3, key & 7
        length = 0
        if kind == _VARINT:
            numbers[field], place = window.varint(place)
        elif kind == _BYTES:
            length, place = window.varint(place)
        elif kind in {_FIXED32, _FIXED64}:
            length = 4 if kind == _FIXED32 else 8
        else:
            raise InputError(f"is no Datum, or a damaged one, at byte {begin}")
        expected = _KINDS.get(field)
        if not field or (expected is not None and kind not in expected):
            raise InputError(f"is no Datum, or a damaged one, at byte {begin}")
        if length > size - place:
            raise InputError(
                f"is cut off: field {field} at byte {begin} has {length} bytes, and {size - place} are left"
            )
        if field == _DATA:
            data_offset, data_size = place, length
        elif field == _FLOAT_DATA:
            floats.append((place, length))
        place += length
    label = numbers.get(_LABEL)
    return DatumFields(
        channels=_signed(numbers.get(_CHANNELS, 0)),
        height=_signed(numbers.get(_HEIGHT, 0)),
        width=_signed(numbers.get(_WIDTH, 0)),
        label=None if label is None else _signed(label),
        encoded=bool(numbers.get(_ENCODED, 0)),
        data_offset=data_offset,
        data_size=data_size,
        floats=tuple(floats),
    )


_KINDS = {
    _CHANNELS: (_VARINT,),
    _HEIGHT: (_VARINT,),
    _WIDTH: (_VARINT,),
    _DATA: (_BYTES,),
    _LABEL: (_VARINT,),
    _FLOAT_DATA: (_FIXED32, _BYTES),
    _ENCODED: (_VARINT,),
}


def _signed(value: int) -> int:
    """Returns the int32 that a varint holds."""
    value &= 0xFFFFFFFF
    return value - (1 << 32) if value >= 1 << 31 else value


def pixels_of(fields: DatumFields, data: bytes) -> NDArray[np.uint8]:
    """Returns the image in raw data, channels × height × width in blue, green and red.

    Returns:
        uint8: height × width × 3 in red, green and blue, or height × width if it is grey.

    Raises:
        InputError: The data have another size, or there are not 1 or 3 channels.
    """
    shape = (fields.channels, fields.height, fields.width)
    expected = fields.channels * fields.height * fields.width
    if min(shape) < 1 or expected != len(data):
        raise InputError(
            f"is a Datum of a wrong size: {fields.channels} × {fields.height} × {fields.width} values are "
            f"{max(expected, 0)} bytes, and it has {len(data)}"
        )
    if fields.channels not in {1, 3}:
        raise InputError(f"is a Datum with {fields.channels} channels; accepted: 1 or 3")
    planes = np.frombuffer(data, np.uint8).reshape(shape)
    return planes[0] if fields.channels == 1 else np.ascontiguousarray(planes[::-1].transpose(1, 2, 0))


def tensor_of(fields: DatumFields, parts: list[bytes]) -> NDArray[np.float32]:
    """Returns the tensor in ``float_data``, float32: channels × height × width.

    Raises:
        InputError: The number of values is another one.
    """
    values = np.frombuffer(b"".join(parts), "<f4") if sum(map(len, parts)) % 4 == 0 else np.empty(0, "<f4")
    shape = (fields.channels, fields.height, fields.width)
    if min(shape) < 1 or fields.channels * fields.height * fields.width != len(values):
        raise InputError(
            f"is a Datum of a wrong size: it says {fields.channels} × {fields.height} × {fields.width} "
            f"values, and has {sum(map(len, parts)) / 4:g}"
        )
    return values.reshape(shape).astype(np.float32)


def encoded_datum(content: bytes, label: int | None) -> bytes:
    """Returns a Datum that holds an image file."""
    return _message((), content, label) + _key(_ENCODED, _VARINT) + b"\1"


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
    values = b"".join(_key(_FLOAT_DATA, _FIXED32) + struct.pack("<f", value) for value in tensor.ravel())
    return _message(tensor.shape, None, label) + values


def _message(shape: tuple[int, ...], data: bytes | None, label: int | None) -> bytes:
    message = b"".join(
        _key(field, _VARINT) + _varint(value)
        for field, value in zip((_CHANNELS, _HEIGHT, _WIDTH), shape, strict=False)
    )
    if data is not None:
        message += _key(_DATA, _BYTES) + _varint(len(data)) + data
    if label is not None:
        message += _key(_LABEL, _VARINT) + _varint(label)
    return message


def _key(field: int, kind: int) -> bytes:
    return bytes((field << 3 | kind,))


def _varint(value: int) -> bytes:
    """Returns a number of Protocol Buffers; a negative one has ten bytes."""
    value &= (1 << 64) - 1
    content = bytearray()
    while value >= 0x80:
        content.append(value & 0x7F | 0x80)
        value >>= 7
    content.append(value)
    return bytes(content)
