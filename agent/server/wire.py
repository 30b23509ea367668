"""Protobuf's wire format, as far as it takes to leave a large tensor where it lies.

The protobuf library copies the content of every ``bytes`` field when a message is built, written, read and
asked for it. For a tensor of hundreds of kilobytes these copies are most of what a call costs beside the
transport. A message is therefore written as its small fields by the library followed by the tensor's own
bytes, and read by cutting the tensor out before the library sees the rest. What is on the wire is ordinary
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
"""A message, or a piece of one, whose parts are joined when it is sent."""
Span: TypeAlias = tuple[int, int]
"""Where a piece of a message lies: its first byte, and the one after its last."""


def length_delimited(number: int, parts: Sequence[bytes | memoryview]) -> Parts:
    """Returns the field ``number``, a message or bytes, whose content is ``parts``."""
    return [_varint(number << 3 | _LENGTH_DELIMITED) + _varint(sum(map(len, parts))), *parts]


def padding(number: int, offset: int) -> bytes:
    """Returns a field of zeros, after which what would begin at ``offset`` begins at a multiple of 16 bytes.

    The content of a ``bytes`` object is so aligned itself.
    """
    size = -offset % _ALIGNMENT_BYTES
    if size == 1:  # a field takes two bytes at least
        size += _ALIGNMENT_BYTES
    return b"".join(length_delimited(number, [bytes(size - 2)])) if size else b""


def cut_out(content: bytes, number: int, span: Span | None = None) -> tuple[bytes, list[Span]]:
    """Cuts a length-delimited field out of a message.

    Args:
        content: What the message lies in.
        number: The field.
        span: Where in it; None means the whole.

    Returns:
        The message without the field, and where the field's contents are; there may be several.

    Raises:
        DecodeError: This is no message.
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
    """Where the field that has its value at ``position`` ends."""
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
    """Returns a number and where it ends."""
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
