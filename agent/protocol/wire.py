"""The part of protobuf's wire format that avoids copies of large tensors.

The protobuf library copies the content of every ``bytes`` field when a message is built, serialized, parsed
and accessed. For a tensor of hundreds of kilobytes these copies are most of the cost of a call beside the
transport. Therefore the library serializes the small fields of a message only, followed by the tensor's own
bytes, and the tensor is cut out before the library parses the rest. The bytes on the wire are ordinary
protobuf.

Format: https://protobuf.dev/programming-guides/encoding/
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

from google.protobuf.message import DecodeError

_VARINT, _FIXED64, _LENGTH_DELIMITED, _FIXED32 = 0, 1, 2, 5
_MAX_VARINT_BITS = 64
_ALIGNMENT_BYTES = 16

Parts: TypeAlias = list[bytes | memoryview]
"""A message, or a piece of one, as parts that are joined before sending."""
Span: TypeAlias = tuple[int, int]
"""The range of a piece of a message: its first byte, and the one after its last."""


def length_delimited(number: int, parts: Sequence[bytes | memoryview]) -> Parts:
    """Returns the field ``number``, a message or bytes, whose content is ``parts``."""
    return [_varint(number << 3 | _LENGTH_DELIMITED) + _varint(sum(map(len, parts))), *parts]


def padding(number: int, offset: int) -> bytes:
    """Returns a field of zeros that moves ``offset`` to a multiple of 16 bytes.

    The content of a ``bytes`` object has the same alignment.
    """
    size = -offset % _ALIGNMENT_BYTES
    if size == 1:  # a field has at least two bytes
        size += _ALIGNMENT_BYTES
    return b"".join(length_delimited(number, [bytes(size - 2)])) if size else b""


def cut_out(content: bytes, number: int, span: Span | None = None) -> tuple[bytes, list[Span]]:
    """Cuts the length-delimited field ``number`` out of a message; without a span that is all of ``content``.

    Returns the message without the field, and the ranges of the field's contents, of which there may be
    several. Raises DecodeError if the message is not valid.
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
    """The end of the field whose value begins at ``position``."""
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
    """Returns a number and its end."""
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
