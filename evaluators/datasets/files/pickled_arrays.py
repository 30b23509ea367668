"""Pickles of plain values and NumPy arrays of bytes, read without running anything that they name.

The objects that a pickle makes are replaced by ones that only hold what they are given, so that neither code
nor NumPy's own ``__setstate__`` runs on it. Python's own unpickler is used, since that in C allocates what a
damaged pickle asks for.
"""

from __future__ import annotations

import io
import math
import pickle
from typing import Any

import numpy as np
from numpy.typing import NDArray

from inferometer.manifests.errors import DatasetError, one_line


class _Dtype:
    """An element type by its name."""

    def __init__(self, name: Any = b"", *_: Any) -> None:
        self.name = name

    def __setstate__(self, state: Any) -> None:
        """The byte order and the like, which bytes do not have."""


class _Array:
    """An array: the arguments that NumPy's ``__setstate__`` would receive."""

    array: NDArray[np.uint8]

    def __setstate__(self, state: Any) -> None:
        _, shape, dtype, is_fortran, content = state
        names = {b"u1", "u1", b"uint8", "uint8"}
        if not isinstance(dtype, _Dtype) or dtype.name not in names or not isinstance(content, bytes):
            raise pickle.UnpicklingError("an array is not of unsigned bytes")
        if not all(isinstance(side, int) and side >= 0 for side in shape) or math.prod(shape) != len(content):
            raise pickle.UnpicklingError(f"an array of shape {list(shape)} has {len(content)} bytes")
        order = "F" if is_fortran else "C"
        self.array = np.frombuffer(content, np.uint8).reshape(shape, order=order)  # type: ignore[call-overload]


def _reconstruct(*_: Any) -> _Array:
    return _Array()


def _encode(text: Any, encoding: Any = "latin1") -> bytes:
    if not isinstance(text, str) or encoding not in {"latin1", b"latin1"}:
        raise pickle.UnpicklingError("bytes are written in an unknown way")
    return text.encode("latin1")


_ALLOWED: dict[tuple[str, str], Any] = {
    ("numpy", "dtype"): _Dtype,
    ("numpy", "ndarray"): _Array,
    ("numpy.core.multiarray", "_reconstruct"): _reconstruct,
    ("numpy._core.multiarray", "_reconstruct"): _reconstruct,
    ("_codecs", "encode"): _encode,
}


class _Unpickler(pickle._Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        """Returns the replacement of what a pickle names."""
        try:
            return _ALLOWED[module, name]
        except KeyError:
            raise pickle.UnpicklingError(f"it names {module}.{name}, which is not allowed") from None

    def persistent_load(self, pid: Any) -> Any:
        """Refuses references out of the pickle."""
        raise pickle.UnpicklingError("it refers to an object outside of it")


def read_pickled(content: bytes, source: str) -> dict[str, Any]:
    """Returns a pickled dictionary of arrays, lists, numbers and texts, by its keys as text.

    Args:
        content: The pickle, of Python 2 or 3.
        source: Its file, for errors.

    Returns:
        Arrays are uint8. Texts of Python 2 are bytes.

    Raises:
        DatasetError: It is damaged, or names anything but arrays of bytes.
    """
    try:
        value = _Unpickler(io.BytesIO(content), encoding="bytes").load()
    except Exception as error:
        # a damaged pickle calls the replacements, and the methods of the unpickler, with anything
        raise DatasetError(
            f"{source}: is no pickle of arrays, or a damaged one: {one_line(error)}"
        ) from error
    if not isinstance(value, dict):
        raise DatasetError(f"{source}: holds no dictionary")
    return {
        key.decode("latin1") if isinstance(key, bytes) else str(key): (
            getattr(each, "array", None) if isinstance(each, _Array) else each
        )
        for key, each in value.items()
    }
