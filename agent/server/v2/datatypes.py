"""The datatypes of the Open Inference Protocol, and what each is in NumPy and in a model configuration."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from manifests.errors import PredictionError
from protos.inference.v2 import model_config_pb2

BYTES = "BYTES"
"""The datatype of elements that are bytes of any length each, as classifications are."""
OTHER_DATATYPES = {BYTES, "BF16"}
"""Those of the protocol that NumPy has no number for, and that no model here takes."""


@dataclass(frozen=True, slots=True)
class Datatype:
    """A datatype.

    Attributes:
        name: As requests have it, such as ``FP32``.
        dtype: NumPy's.
        config_type: As a model configuration has it.
        contents: The field of ``InferTensorContents``; FP16 has none.
    """

    name: str
    dtype: np.dtype[Any]
    config_type: model_config_pb2.DataType.ValueType
    contents: str | None


def _datatypes() -> tuple[Datatype, ...]:
    config = model_config_pb2
    rows: Sequence[tuple[str, str, model_config_pb2.DataType.ValueType, str | None]] = (
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
    return tuple(Datatype(name, np.dtype(dtype), kind, contents) for name, dtype, kind, contents in rows)


DATATYPES = {datatype.name: datatype for datatype in _datatypes()}
"""Every datatype of numbers, by its name."""
_OF_DTYPE = {datatype.dtype: datatype for datatype in DATATYPES.values()}


def datatype_of(dtype: np.dtype[Any]) -> Datatype:
    """Returns the datatype of a model's output.

    Raises:
        PredictionError: The protocol has none for it.
    """
    datatype = _OF_DTYPE.get(dtype) or _OF_DTYPE.get(dtype.newbyteorder("="))
    if datatype is None:
        allowed = ", ".join(known.name for known in _OF_DTYPE)
        raise PredictionError(f"element type {dtype} cannot be sent; allowed: {allowed}")
    return datatype
