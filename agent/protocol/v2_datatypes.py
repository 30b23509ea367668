"""Datatypes of the Open Inference Protocol, and the signatures of a model's inputs and outputs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from inferometer.agent.preprocessing.inputs import dtype_of
from inferometer.agent.protocol.strings import is_text
from inferometer.agent.protocol.tensors import STRING
from inferometer.manifests.errors import PredictionError
from inferometer.manifests.fields import DYNAMIC_AXIS
from inferometer.manifests.schema import ModelManifest
from inferometer.protos.inference.v2 import model_config_pb2 as config

BYTES = "BYTES"
"""The datatype of elements of variable length, such as classifications."""
OTHER_DATATYPES = {BYTES, "BF16"}
"""The datatypes without a numeric type in NumPy."""


@dataclass(frozen=True, slots=True)
class Datatype:
    """A datatype: its name in requests, such as ``FP32``, in NumPy, and in model configurations.

    ``contents`` is its field of ``InferTensorContents``; FP16 and BF16 have none.
    """

    name: str
    dtype: np.dtype[Any]
    config_type: config.DataType.ValueType
    contents: str | None


_ROWS: Sequence[tuple[str, str, config.DataType.ValueType, str | None]] = (
    ("BOOL", "bool", config.TYPE_BOOL, "bool_contents"),
    ("UINT8", "uint8", config.TYPE_UINT8, "uint_contents"),
    ("UINT16", "uint16", config.TYPE_UINT16, "uint_contents"),
    ("UINT32", "uint32", config.TYPE_UINT32, "uint_contents"),
    ("UINT64", "uint64", config.TYPE_UINT64, "uint64_contents"),
    ("INT8", "int8", config.TYPE_INT8, "int_contents"),
    ("INT16", "int16", config.TYPE_INT16, "int_contents"),
    ("INT32", "int32", config.TYPE_INT32, "int_contents"),
    ("INT64", "int64", config.TYPE_INT64, "int64_contents"),
    ("FP16", "float16", config.TYPE_FP16, None),
    ("FP32", "float32", config.TYPE_FP32, "fp32_contents"),
    ("FP64", "float64", config.TYPE_FP64, "fp64_contents"),
)
DATATYPES = {row[0]: Datatype(row[0], np.dtype(row[1]), row[2], row[3]) for row in _ROWS}
"""Every numeric datatype by its name."""


STRINGS = Datatype(BYTES, np.dtype(object), config.TYPE_STRING, "bytes_contents")
"""UTF-8 here; Python's own strings in arrays of objects."""
_OF_DTYPE = {datatype.dtype: datatype for datatype in (*DATATYPES.values(), STRINGS)}
BF16 = Datatype("BF16", np.dtype(np.uint16), config.TYPE_BF16, None)
"""The upper 16 bits of FP32, which NumPy has no numeric type for: its elements are these bits."""
_LOST_IN_FLOATS = 64
"""An integer of so many bits has no float that holds all of its values, whatever NumPy regards as safe."""


@cache
def converted_to(wanted: Datatype) -> dict[str, Datatype]:
    """Returns the other datatypes, by name, whose every value a datatype holds exactly; of BOOL, none."""
    found = {each.name: each for each in (BF16, *DATATYPES.values()) if _is_held(each, wanted)}
    return {name: found[name] for name in sorted(found)}


def _is_held(given: Datatype, wanted: Datatype) -> bool:
    if given == wanted or {given.dtype.kind, wanted.dtype.kind} & {"b", "O"}:
        return False
    if given is BF16:
        return np.can_cast(np.float32, wanted.dtype, "safe")
    if wanted.dtype.kind == "f" and given.dtype.kind in "iu" and given.dtype.itemsize * 8 == _LOST_IN_FLOATS:
        return False
    return np.can_cast(given.dtype, wanted.dtype, "safe")


def convert(array: NDArray[Any], given: Datatype, wanted: Datatype) -> NDArray[Any]:
    """Returns elements of one of ``converted_to(wanted)`` as ``wanted``, or the same array if they are."""
    if given is BF16:
        array = (array.astype(np.uint32) << 16).view(np.float32)
    return array.astype(wanted.dtype, copy=False)


def datatype_of(dtype: np.dtype[Any]) -> Datatype:
    """Returns the datatype of a model's output; raises PredictionError if the protocol has none for it."""
    datatype = STRINGS if is_text(dtype) else _OF_DTYPE.get(dtype) or _OF_DTYPE.get(dtype.newbyteorder("="))
    if datatype is None:
        allowed = ", ".join(known.name for known in _OF_DTYPE)
        raise PredictionError(f"element type {dtype} cannot be sent; allowed: {allowed}")
    return datatype


def datatype_named(element_type: str | None) -> Datatype | None:
    """Returns the datatype of an element type by NumPy's name, ``string`` or ``bfloat16``; None for none."""
    others = {STRING: STRINGS, "bfloat16": BF16}
    numeric = {each.dtype.name: each for each in DATATYPES.values()}
    return {**numeric, **others}.get(element_type or "")


BATCH_SIDE = -1
"""The batch's axis in a shape, whose size is variable."""


@dataclass(frozen=True, slots=True)
class TensorSignature:
    """One input or output of a model.

    ``dimensions`` leave out the batch; ``DYNAMIC_AXIS`` is an axis whose size may differ by request.
    """

    name: str
    datatype: Datatype
    dimensions: tuple[int, ...]

    def takes(self, dimensions: tuple[int, ...]) -> bool:
        """Returns whether dimensions without the batch fit; a dynamic axis is of any size but 0."""
        return dimensions == self.dimensions or (
            len(dimensions) == len(self.dimensions)
            and all(
                size > 0 if wanted == DYNAMIC_AXIS else size == wanted
                for size, wanted in zip(dimensions, self.dimensions, strict=True)
            )
        )

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape with the batch's axis, whose size is variable."""
        return (BATCH_SIDE, *self.dimensions)


def inputs_of(manifest: ModelManifest) -> dict[str, TensorSignature]:
    """Returns the inputs of a model by their names, in the manifest's order."""
    return {
        each.name: TensorSignature(each.name, datatype_of(dtype_of(each)), each.written)
        for each in manifest.tensors
    }
