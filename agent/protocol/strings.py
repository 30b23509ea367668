"""Strings in messages: each in UTF-8 after its length in 4 bytes, little-endian.

That is the form of ``BYTES`` in the Open Inference Protocol, which leaves the meaning of the bytes open. In
an array they are Python's own strings.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from inferometer.manifests.errors import InputError, PredictionError

_LENGTH = struct.Struct("<I")


def is_text(dtype: np.dtype[Any]) -> bool:
    """Returns whether an array of a dtype holds strings: Python's own, or NumPy's of a fixed length."""
    return dtype.kind in "OU"


def pack(elements: Iterable[bytes]) -> bytes:
    """Returns elements as raw contents."""
    return b"".join(part for element in elements for part in (_LENGTH.pack(len(element)), element))


def pack_strings(array: NDArray[Any]) -> bytes:
    """Returns an array of strings as raw contents; raises PredictionError if an element is none."""
    try:
        return pack(element.encode() for element in array.flat)
    except (AttributeError, UnicodeEncodeError) as error:
        raise PredictionError("a tensor of strings has an element that is no string") from error


def unpack_strings(content: memoryview, shape: Sequence[int], what: str) -> NDArray[Any]:
    """Returns an array of the strings in raw contents; raises InputError if they do not match the shape."""
    count, place = math.prod(shape), 0
    elements: list[bytes] = []
    while place + _LENGTH.size <= len(content) and len(elements) <= count:
        (length,) = _LENGTH.unpack_from(content, place)
        place += _LENGTH.size
        if place + length > len(content):
            raise InputError(
                f"{what}: element {len(elements)} has {length} bytes, of which {len(content) - place} come"
            )
        elements.append(bytes(content[place : place + length]))
        place += length
    if place != len(content):
        raise InputError(f"{what}: {len(content) - place} bytes come after {len(elements)} elements")
    return strings(elements, shape, what)


def strings(elements: Sequence[bytes], shape: Sequence[int], what: str) -> NDArray[Any]:
    """Returns an array of strings; raises InputError if they do not match the shape, or are not UTF-8."""
    if len(elements) != math.prod(shape):
        raise InputError(
            f"{what}: {len(elements)} elements for shape {list(shape)}, which takes {math.prod(shape)}"
        )
    array = np.empty(len(elements), object)
    for number, element in enumerate(elements):
        try:
            array[number] = element.decode()
        except UnicodeDecodeError as error:
            raise InputError(f"{what}: element {number} is not UTF-8, in its byte {error.start}") from error
    return array.reshape(tuple(shape))
