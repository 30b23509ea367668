"""JSON tensors: converts nested or flat lists to the bytes of a binary tensor, and back."""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from inferometer.agent.protocol.tensors import array_bytes
from inferometer.agent.protocol.v2_datatypes import BYTES, DATATYPES, Datatype
from inferometer.manifests.errors import InputError, PredictionError

_LENGTH = struct.Struct("<I")
_MOST_AXES = 32


def content_of(data: Any, datatype: str, count: int, where: str) -> memoryview:
    """Returns the elements of a tensor in JSON as the bytes of a binary tensor.

    ``count`` is the number of elements of its shape; ``where`` names the tensor in errors.

    Raises:
        InputError: The elements are not the numbers, booleans or strings that the datatype requires, one is
            out of range, or their number is not ``count``.
    """
    if not isinstance(data, list):
        raise InputError(f"{where}: data is no list")
    if datatype == BYTES:
        texts = list(_flat(data, where))
        _check_count(len(texts), count, where)
        return memoryview(b"".join(_text_content(text, where) for text in texts))
    known = DATATYPES.get(datatype)
    if known is None:
        raise InputError(f"{where}: {datatype[:40]} has no form in JSON; send its elements as binary data")
    try:
        found = np.array(data)
    except (ValueError, OverflowError) as error:  # lists of different lengths
        raise InputError(f"{where}: data is no list of elements, nor lists of one length") from error
    _check_count(found.size, count, where)
    return array_bytes(_converted(found, data, known, where))


def _check_count(found: int, count: int, where: str) -> None:
    if found != count:
        raise InputError(f"{where}: {found} elements in data for a shape that takes {count}")


def _flat(data: Sequence[Any], where: str, depth: int = 1) -> Iterator[Any]:
    for item in data:
        if not isinstance(item, list):
            yield item
        elif depth == _MOST_AXES:
            raise InputError(f"{where}: data is nested more than {_MOST_AXES} times")
        else:
            yield from _flat(item, where, depth + 1)


def _text_content(text: Any, where: str) -> bytes:
    if not isinstance(text, str):
        raise InputError(f"{where}: has an element that is no text, which {BYTES} takes in JSON")
    try:
        content = text.encode()
    except UnicodeEncodeError as error:
        raise InputError(f"{where}: has a text that is no Unicode; send it as binary data") from error
    return _LENGTH.pack(len(content)) + content


def _converted(found: NDArray[Any], data: Any, datatype: Datatype, where: str) -> NDArray[Any]:
    """Numbers in the type of a tensor; what JSON has exactly is rounded as the type requires."""
    wanted = datatype.dtype
    if not found.size:
        return found.astype(wanted)
    if wanted.kind == "b":
        if found.dtype.kind == "b" or (found.dtype.kind in "iu" and found.min() >= 0 and found.max() <= 1):
            return found.astype(wanted)
        raise InputError(f"{where}: has an element that is neither true nor false")
    if wanted.kind in "iu":
        return _whole(found, data, datatype, where)
    if found.dtype.kind not in "iuf":
        raise InputError(f"{where}: has an element that is no number, which {datatype.name} takes")
    with np.errstate(over="ignore"):
        array = found.astype(wanted)
    if np.isinf(array).any() and not np.array_equal(np.isinf(array), np.isinf(found)):
        raise InputError(f"{where}: has an element that is too large for {datatype.name}")
    return array


def _whole(found: NDArray[Any], data: Any, datatype: Datatype, where: str) -> NDArray[Any]:
    if found.dtype.kind in "fO" and all(type(item) is int for item in _flat(data, where)):
        found = np.array(data, dtype=object)  # NumPy makes floats of what needs both int64 and uint64
    elif found.dtype.kind not in "iu":
        raise InputError(f"{where}: has an element that is no whole number, which {datatype.name} takes")
    limits = np.iinfo(datatype.dtype)
    if found.min() < limits.min or found.max() > limits.max:
        raise InputError(f"{where}: has an element outside {limits.min}…{limits.max} of {datatype.name}")
    return found.astype(datatype.dtype)


def data_of(content: bytes | memoryview, datatype: str, name: str) -> list[Any]:
    """Returns the elements of a binary tensor as a flat JSON list.

    Raises InputError if a string is not UTF-8, which JSON requires, and PredictionError if the datatype has
    no JSON form.
    """
    if datatype == BYTES:
        return list(_texts(bytes(content), name))
    known = DATATYPES.get(datatype)
    if known is None:
        raise PredictionError(f'output "{name}": {datatype} has no form in JSON; ask for binary_data')
    elements: list[Any] = np.frombuffer(content, known.dtype.newbyteorder("<")).tolist()
    return elements


def _texts(content: bytes, name: str) -> Iterator[str]:
    position = 0
    while position < len(content):
        (length,) = _LENGTH.unpack_from(content, position)
        start, position = position + _LENGTH.size, position + _LENGTH.size + length
        try:
            yield content[start:position].decode()
        except UnicodeDecodeError as error:
            raise InputError(f'output "{name}": has bytes that are no text; ask for binary_data') from error
