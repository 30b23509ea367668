"""Tensors in messages, in the forms that are common to both protocols.

Arrays consist of the name of an element type, a shape, and little-endian bytes. A decoded array of numbers is
a read-only view of the message's bytes: nothing is copied.

Strings are in UTF-8, each preceded by its length in 4 little-endian bytes. This is the form of ``BYTES`` in
the Open Inference Protocol, which leaves the meaning of the bytes open. In arrays they are Python strings.

The module implements the part of protobuf's wire format that avoids copying large tensors: the library copies
the content of every ``bytes`` field when a message is built, serialized, parsed and accessed. For a tensor of
hundreds of kilobytes, these copies are most of a call's cost besides the transport. The library therefore
serializes only the small fields of a message, which the tensor's bytes follow, and the tensor is cut out
before the library parses the rest. The bytes on the wire are ordinary protobuf.

Format: https://protobuf.dev/programming-guides/encoding/
"""

from __future__ import annotations

import math
import struct
import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np
from google.protobuf.message import DecodeError
from numpy.typing import NDArray

from inferometer.agent.preprocessing.inputs import SMALL_BYTES, aligned
from inferometer.manifests.errors import InputError, PredictionError
from inferometer.protos.inferometer.v1 import tensor_pb2

_STRING_LENGTH = struct.Struct("<I")


def is_text(dtype: np.dtype[Any]) -> bool:
    """Returns whether an array of a dtype contains strings, either Python's or NumPy's of a fixed length."""
    return dtype.kind in "OU"


def pack(elements: Iterable[bytes]) -> bytes:
    """Returns elements in the form of raw contents."""
    return b"".join(part for element in elements for part in (_STRING_LENGTH.pack(len(element)), element))


def unpack(content: memoryview, what: str, most: int = sys.maxsize) -> list[bytes]:
    """Returns the elements of raw contents; raises InputError if one is cut off or there are too many."""
    place = 0
    elements: list[bytes] = []
    while place + _STRING_LENGTH.size <= len(content) and len(elements) <= most:
        (length,) = _STRING_LENGTH.unpack_from(content, place)
        place += _STRING_LENGTH.size
        if place + length > len(content):
            raise InputError(
                f"{what}: element {len(elements)} has {length} bytes, but only {len(content) - place} remain"
            )
        elements.append(bytes(content[place : place + length]))
        place += length
    if place != len(content):
        raise InputError(f"{what}: {len(content) - place} bytes remain after {len(elements)} elements")
    return elements


def strings(elements: Sequence[bytes], shape: Sequence[int], what: str) -> NDArray[Any]:
    """Returns an array of strings; raises InputError if they do not fit the shape or are not UTF-8."""
    if len(elements) != math.prod(shape):
        raise InputError(
            f"{what}: {len(elements)} elements for shape {list(shape)}, which requires {math.prod(shape)}"
        )
    array = np.empty(len(elements), object)
    for number, element in enumerate(elements):
        try:
            array[number] = element.decode()
        except UnicodeDecodeError as error:
            raise InputError(f"{what}: element {number} is not UTF-8, in its byte {error.start}") from error
    return array.reshape(tuple(shape))


STRING = "string"
NUMERIC_TYPES = {
    np.dtype(name).name: np.dtype(name)
    for name in (
        "bool",
        *("int8", "int16", "int32", "int64"),
        *("uint8", "uint16", "uint32", "uint64"),
        *("float16", "float32", "float64"),
    )
}
ELEMENT_TYPES = {**NUMERIC_TYPES, STRING: np.dtype(object)}
"""The supported element types, by their names in the protocol."""
MAX_DIMENSIONS = 32
"""The maximum number of axes of an array in NumPy 1."""
_LITTLE_ENDIAN = sys.byteorder == "little"


def read_array(
    dtype: str | np.dtype[Any], shape: Sequence[int], content: bytes | memoryview, what: str
) -> NDArray[Any]:
    """Returns the array for a tensor in a message, whose content is in C order and little-endian.

    The array is aligned: it is a read-only view of ``content`` if that is aligned and in the machine's byte
    order, otherwise a copy. ``what`` names the tensor in errors, such as ``input 7``.

    Raises:
        InputError: The element type is not supported, or content and shape do not match.
    """
    element = ELEMENT_TYPES.get(dtype) if isinstance(dtype, str) else dtype
    if element is None:
        raise InputError(
            f'{what}: element type "{str(dtype)[:40]}" is not known; allowed: {", ".join(ELEMENT_TYPES)}'
        )
    return aligned(read_elements(element, shape, content, what))


def read_elements(
    element: np.dtype[Any], shape: Sequence[int], content: bytes | memoryview, what: str
) -> NDArray[Any]:
    """Like ``read_array``, for a dtype of ``ELEMENT_TYPES``, but returns a view even if it is not aligned."""
    if len(shape) > MAX_DIMENSIONS:
        raise InputError(f"{what}: a tensor of {len(shape)} axes; at most {MAX_DIMENSIONS} are supported")
    if shape and min(shape) < 0:
        raise InputError(f"{what}: shape {list(shape)} has a negative dimension")
    if element.hasobject:
        return strings(unpack(memoryview(content), what, math.prod(shape)), shape, what)
    expected = math.prod(shape) * element.itemsize
    if len(content) != expected:
        raise InputError(
            f"{what}: {len(content)} bytes for shape {list(shape)} of {element.name}, which requires "
            f"{expected} bytes"
        )
    if not expected and math.prod(max(side, 1) for side in shape) * element.itemsize > sys.maxsize:
        # NumPy's own limit, which holds as if no side were 0
        raise InputError(f"{what}: shape {list(shape)} has larger sides than an array can have")
    if element.kind == "b" and len(content) and np.frombuffer(content, np.uint8).max() > 1:
        raise InputError(f"{what}: a bool is the byte 0 or 1; found others")
    array: NDArray[Any] = np.frombuffer(content, element if _LITTLE_ENDIAN else element.newbyteorder("<"))
    if not _LITTLE_ENDIAN:
        array = array.astype(element)
    return array.reshape(tuple(shape))


def read_tensor(message: tensor_pb2.Tensor, what: str) -> NDArray[Any]:
    """Returns the array in a ``Tensor`` message; see ``read_array``."""
    return read_array(message.dtype, message.shape, message.content, what)


def read_named(messages: Iterable[tensor_pb2.NamedTensor], what: str) -> dict[str, NDArray[Any]]:
    """Returns arrays by name; raises InputError like ``read_array``, and if a name occurs twice."""
    found: dict[str, NDArray[Any]] = {}
    for message in messages:
        named = f'{what}, tensor "{message.name[:80]}"'
        if message.name in found:
            raise InputError(f"{named}: occurs twice")
        found[message.name] = read_tensor(message.tensor, named)
    return found


def fill_named(messages: Any, arrays: Mapping[str, NDArray[Any]]) -> None:
    """Writes arrays and their names to repeated ``NamedTensor``; raises InputError like ``element_name``."""
    for name, array in arrays.items():
        message = messages.add(name=name)
        fill_tensor(message.tensor, array)


def fill_tensor(message: tensor_pb2.Tensor, array: NDArray[Any]) -> None:
    """Writes an array into a ``Tensor`` message; raises InputError like ``element_name``."""
    message.dtype = element_name(array)
    message.shape.extend(array.shape)
    message.content = array_bytes(array).tobytes()


def element_name(array: NDArray[Any]) -> str:
    """Returns the protocol's name of an array's element type; raises InputError if there is none."""
    name = STRING if is_text(array.dtype) else array.dtype.name
    if name not in ELEMENT_TYPES:
        raise InputError(f"element type {name} cannot be sent; allowed: {', '.join(ELEMENT_TYPES)}")
    return name


def array_bytes(array: NDArray[Any]) -> memoryview:
    """Returns the elements as little-endian bytes in C order, as a view if the array has this layout.

    A few bytes are copied, which takes less time than a view.

    Raises:
        PredictionError: An array of strings has an element that is not a string.
    """
    if is_text(array.dtype):
        try:
            return memoryview(pack(element.encode() for element in array.flat))
        except (AttributeError, UnicodeEncodeError) as error:
            raise PredictionError("a tensor of strings has an element that is not a string") from error
    if array.nbytes < SMALL_BYTES and array.dtype.isnative and _LITTLE_ENDIAN:
        return memoryview(array.tobytes())
    swapped = array.dtype.byteorder == ">" or (array.dtype.byteorder == "=" and not _LITTLE_ENDIAN)
    if swapped:
        array = array.astype(array.dtype.newbyteorder("<"))
    # a flat uint8 view, because a memoryview of a shape with a zero cannot be cast
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8).data


_VARINT, _FIXED64, _LENGTH_DELIMITED, _FIXED32 = 0, 1, 2, 5
_MAX_VARINT_BITS = 64
_ALIGNMENT_BYTES = 16

Parts: TypeAlias = list[bytes | memoryview]
"""A message, or a piece of one, as a list of parts to be joined before sending."""
Span: TypeAlias = tuple[int, int]
"""The position of a piece of a message: its first byte, and the byte after its last."""


def length_delimited(number: int, parts: Sequence[bytes | memoryview]) -> Parts:
    """Returns the field ``number``, a message or bytes, with ``parts`` as its content."""
    return [_varint(number << 3 | _LENGTH_DELIMITED) + _varint(sum(map(len, parts))), *parts]


def padding(number: int, offset: int) -> bytes:
    """Returns a field of zeros that advances ``offset`` to a multiple of 16 bytes.

    The content of a ``bytes`` object has the same alignment.
    """
    size = -offset % _ALIGNMENT_BYTES
    if size == 1:  # a field has at least two bytes
        size += _ALIGNMENT_BYTES
    return b"".join(length_delimited(number, [bytes(size - 2)])) if size else b""


def cut_out(content: bytes, number: int, span: Span | None = None) -> tuple[bytes, list[Span]]:
    """Cuts the length-delimited field ``number`` out of a message: the ``span``, or all of ``content``.

    Returns the message without the field, and the range of each of the field's contents, of which there may
    be several. Raises DecodeError if the message is not valid.
    """
    position, end = span or (0, len(content))
    kept_from = position
    kept: list[bytes] = []
    cut: list[Span] = []
    wanted = number << 3 | _LENGTH_DELIMITED
    try:
        while position < end:
            start = position
            key, position = _read_varint(content, position)
            after = _after(content, key, position)
            if after > end or key < 8:  # 8 is the first key of field 1
                raise DecodeError("a field is cut off, or has the number 0")
            if key == wanted:
                _, position = _read_varint(content, position)
                cut.append((position, after))
                kept.append(content[kept_from:start])
                kept_from = after
            position = after
    except IndexError as error:
        raise DecodeError("a number is cut off") from error
    kept.append(content[kept_from:end])
    return b"".join(kept), cut


def _after(content: bytes, key: int, position: int) -> int:
    """Returns the end of the field whose value begins at ``position``."""
    wire_type = key & 7
    if wire_type == _LENGTH_DELIMITED:
        length, position = _read_varint(content, position)
        return position + length
    if wire_type == _VARINT:
        return _read_varint(content, position)[1]
    if wire_type == _FIXED32:
        return position + 4
    if wire_type == _FIXED64:
        return position + 8
    raise DecodeError(f"wire type {wire_type} is not used")


def _read_varint(content: bytes, position: int) -> tuple[int, int]:
    """Returns a number and the position after it."""
    byte = content[position]
    if byte < 0x80:
        return byte, position + 1
    value, bits = byte & 0x7F, 7
    while bits < _MAX_VARINT_BITS:
        position += 1
        byte = content[position]
        value |= (byte & 0x7F) << bits
        if byte < 0x80:
            return value, position + 1
        bits += 7
    raise DecodeError("a number is too long")


def _varint(value: int) -> bytes:
    encoded = bytearray()
    while value > 0x7F:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    encoded.append(value)
    return bytes(encoded)
