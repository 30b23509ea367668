"""Arrays in messages: the name of an element type, a shape, and little-endian bytes.

A decoded array of numbers is a read-only view of the message's bytes: nothing is copied. See ``strings`` for
those of strings.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from inferometer.agent.inference.arrays import SMALL_BYTES, aligned
from inferometer.agent.protocol.strings import is_text, pack_strings, unpack_strings
from inferometer.manifests.errors import InputError
from inferometer.protos.inferometer.v1 import tensor_pb2

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
"""The most axes of an array in NumPy 1."""
_LITTLE_ENDIAN = sys.byteorder == "little"


def read_array(
    dtype: str | np.dtype[Any], shape: Sequence[int], content: bytes | memoryview, what: str
) -> NDArray[Any]:
    """Returns the array of a tensor in a message, whose content is in C order and little-endian.

    It is aligned: a read-only view of ``content`` if that is aligned and in the machine's byte order, else a
    copy. ``what`` names the tensor in errors, such as ``input 7``.

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
    """Does the same for a dtype of ``ELEMENT_TYPES``, and returns a view also where that is not aligned."""
    if len(shape) > MAX_DIMENSIONS:
        raise InputError(f"{what}: a tensor of {len(shape)} axes; at most {MAX_DIMENSIONS} are possible")
    if shape and min(shape) < 0:
        raise InputError(f"{what}: shape {list(shape)} has a negative side")
    if element.hasobject:
        return unpack_strings(memoryview(content), shape, what)
    expected = math.prod(shape) * element.itemsize
    if len(content) != expected:
        raise InputError(
            f"{what}: {len(content)} bytes for shape {list(shape)} of {element.name}, which takes {expected} "
            "bytes"
        )
    if not expected and math.prod(max(side, 1) for side in shape) * element.itemsize > sys.maxsize:
        # NumPy's own limit, which holds as if no side were 0
        raise InputError(f"{what}: shape {list(shape)} has larger sides than an array can have")
    if element.kind == "b" and len(content) and np.frombuffer(content, np.uint8).max() > 1:
        raise InputError(f"{what}: a bool is the byte 0 or 1; there are others")
    array: NDArray[Any] = np.frombuffer(content, element if _LITTLE_ENDIAN else element.newbyteorder("<"))
    if not _LITTLE_ENDIAN:
        array = array.astype(element)
    return array.reshape(tuple(shape))


def read_tensor(message: tensor_pb2.Tensor, what: str) -> NDArray[Any]:
    """Returns the array of a ``Tensor`` message; see ``read_array``."""
    return read_array(message.dtype, message.shape, message.content, what)


def read_named(messages: Iterable[tensor_pb2.NamedTensor], what: str) -> dict[str, NDArray[Any]]:
    """Returns arrays by their names; raises InputError as ``read_array``, and if a name is there twice."""
    found: dict[str, NDArray[Any]] = {}
    for message in messages:
        named = f'{what}, tensor "{message.name[:80]}"'
        if message.name in found:
            raise InputError(f"{named}: is there twice")
        found[message.name] = read_tensor(message.tensor, named)
    return found


def fill_named(messages: Any, arrays: Mapping[str, NDArray[Any]]) -> None:
    """Writes arrays with their names into repeated ``NamedTensor``; raises InputError as ``element_name``."""
    for name, array in arrays.items():
        message = messages.add(name=name)
        fill_tensor(message.tensor, array)


def fill_tensor(message: tensor_pb2.Tensor, array: NDArray[Any]) -> None:
    """Writes an array into a ``Tensor`` message; raises InputError as ``element_name`` does."""
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
    """Returns the elements in C order, little-endian; a view if the array already has this layout.

    A copy of few bytes takes less time than a view.

    Raises:
        PredictionError: An array of strings has an element that is none.
    """
    if is_text(array.dtype):
        return memoryview(pack_strings(array))
    if array.nbytes < SMALL_BYTES and array.dtype.isnative and _LITTLE_ENDIAN:
        return memoryview(array.tobytes())
    swapped = array.dtype.byteorder == ">" or (array.dtype.byteorder == "=" and not _LITTLE_ENDIAN)
    if swapped:
        array = array.astype(array.dtype.newbyteorder("<"))
    # a flat uint8 view, because a memoryview of a shape with a zero cannot be cast
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8).data
