"""The input tensors of a request, checked against the inputs of the model."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from inferometer.agent.protocol.tensors import MAX_DIMENSIONS, read_elements
from inferometer.agent.protocol.v2_datatypes import (
    DATATYPES,
    OTHER_DATATYPES,
    STRINGS,
    Datatype,
    TensorSignature,
    convert,
    converted_to,
)
from inferometer.agent.protocol.v2_strings import strings, unpack_strings
from inferometer.agent.server.v2.messages import InferCall
from inferometer.manifests.errors import InputError, one_line, suggestion
from inferometer.protos.inference.v2 import grpc_service_pb2 as pb

InputTensor: TypeAlias = pb.ModelInferRequest.InferInputTensor
_SHARED_MEMORY = "shared_memory_region"


def read_input(call: InferCall, wanted: TensorSignature, max_batch_size: int, what: str) -> NDArray[Any]:
    """Returns the input of a request to a model, which errors call ``what``, that has one.

    It is of the model's dtype and shape. Another datatype is converted if no value of it is lost. Where the
    request has it raw and of the model's datatype, it is a read-only view of that, which need not be aligned.

    Raises:
        InputError: The request has other inputs, or one of another datatype, shape or size.
    """
    inputs = call.message.inputs
    if len(inputs) != 1 or inputs[0].name != wanted.name:
        raise _wrong_names([item.name for item in inputs], wanted.name, what)
    item, where = inputs[0], f'{what}: input "{wanted.name}"'
    if item.parameters:
        check_parameters(item.parameters, where)
    given = wanted.datatype if item.datatype == wanted.datatype.name else _other(item.datatype, wanted, where)
    shape = tuple(item.shape)
    if shape[1:] != wanted.dimensions or not 1 <= shape[0] <= max_batch_size:
        raise _wrong_shape(shape, wanted, max_batch_size, where)
    if not call.raw:
        return convert(_read_contents(item, given, where), given, wanted.datatype)
    if len(call.raw) > 1:
        raise InputError(f"{what}: {len(call.raw)} raw_input_contents for one input")
    if item.HasField("contents"):
        raise InputError(f"{where}: has contents beside raw_input_contents; give one of them")
    if given is STRINGS:
        return unpack_strings(call.raw[0], shape, where)
    array = read_elements(given.dtype, shape, call.raw[0], where)
    return array if given is wanted.datatype else convert(array, given, wanted.datatype)


def check_parameters(parameters: Any, where: str) -> None:
    """Raises InputError if the elements of a tensor are in shared memory."""
    if _SHARED_MEMORY in parameters:
        raise InputError(f"{where}: shared memory is not offered here; send the elements in the request")


def shown(text: str) -> str:
    """Returns a name that a client sent as far as it fits into a message."""
    return one_line(text, 80)


def _wrong_names(names: Sequence[str], wanted: str, what: str) -> InputError:
    for name in names:
        if name != wanted:
            return InputError(f'{what}: has no input "{shown(name)}"; {suggestion(name, [wanted])}')
    return InputError(f'{what}: found {len(names)} inputs "{wanted}"; it takes one')


def _other(name: str, wanted: TensorSignature, where: str) -> Datatype:
    """The datatype of that name, which can be converted; raises InputError if it cannot."""
    others = converted_to(wanted.datatype)
    if name in others:
        return others[name]
    takes = f"the model takes {wanted.datatype.name}"
    if others:
        takes += f", and what that holds exactly: {', '.join(others)}"
    if name in DATATYPES or name in OTHER_DATATYPES:
        raise InputError(f"{where}: found datatype {name}; {takes}")
    raise InputError(f'{where}: datatype "{shown(name)}" is not known; {takes}')


def _wrong_shape(
    shape: Sequence[int], wanted: TensorSignature, max_batch_size: int, where: str
) -> InputError:
    found = list(shape[: MAX_DIMENSIONS + 1])
    if tuple(shape[1:]) != wanted.dimensions or shape[0] < 1:
        return InputError(
            f"{where}: found shape {found}; the model takes {list(wanted.shape)}, with a batch of 1 or more"
        )
    return InputError(f"{where}: found a batch of {found[0]}, in shape {found}; at most {max_batch_size}")


def _read_contents(item: InputTensor, datatype: Datatype, where: str) -> NDArray[Any]:
    """The elements of the field that a datatype has."""
    if datatype.contents is None:
        raise InputError(f"{where}: {datatype.name} has no typed contents; send raw_input_contents")
    for field, _ in item.contents.ListFields():
        if field.name != datatype.contents:
            raise InputError(f"{where}: found {field.name}; {datatype.name} is in {datatype.contents}")
    elements = getattr(item.contents, datatype.contents)
    if datatype is STRINGS:
        return strings(elements, tuple(item.shape), where)
    expected = math.prod(item.shape)
    if len(elements) != expected:
        raise InputError(
            f"{where}: {len(elements)} elements in {datatype.contents} for shape {list(item.shape)}, "
            f"which takes {expected}"
        )
    array: NDArray[Any] = np.array(elements, _wide(datatype))
    if array.dtype != datatype.dtype:
        limits = np.iinfo(datatype.dtype)
        if array.min() < limits.min or array.max() > limits.max:
            raise InputError(f"{where}: has an element outside {limits.min}…{limits.max} of {datatype.name}")
        array = array.astype(datatype.dtype)
    return array.reshape(tuple(item.shape))


def _wide(datatype: Datatype) -> np.dtype[Any]:
    """The dtype of the field's own elements, which holds all of them."""
    return {"int_contents": np.dtype(np.int32), "uint_contents": np.dtype(np.uint32)}.get(
        datatype.contents or "", datatype.dtype
    )
