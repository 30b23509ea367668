"""The input tensors of a request, checked against the inputs of the model."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from inferometer.agent.preprocessing.inputs import Tensors
from inferometer.agent.protocol.strings import strings
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
from inferometer.agent.server.v2.messages import InferCall
from inferometer.manifests.errors import InputError, one_line, suggestion
from inferometer.protos.inference.v2 import grpc_service_pb2 as pb

InputTensor: TypeAlias = pb.ModelInferRequest.InferInputTensor
_SHARED_MEMORY = "shared_memory_region"


def read_inputs(
    call: InferCall, wanted: Mapping[str, TensorSignature], max_batch_size: int, what: str
) -> Tensors:
    """Returns the inputs of a request to a model, which errors call ``what``, by their names.

    They are of the model's dtypes and shapes. Another datatype is converted if no value of it is lost. Where
    the request has an input raw and of the model's datatype, it is a read-only view of that, which need not
    be aligned.

    Raises:
        InputError: The request has other inputs, or one of another datatype, shape or size, or they differ in
            the size of the batch.
    """
    inputs, raw = call.message.inputs, call.raw
    if len(inputs) != len(wanted):
        raise _wrong_names([item.name for item in inputs], wanted, what)
    if raw and len(raw) != len(inputs):
        count = "one input" if len(inputs) == 1 else f"{len(inputs)} inputs"
        raise InputError(f"{what}: {len(raw)} raw_input_contents for {count}")
    found: dict[str, NDArray[Any]] = {}
    for place, item in enumerate(inputs):
        name = item.name
        signature = wanted.get(name)
        if signature is None or name in found:
            raise _wrong_names([each.name for each in inputs], wanted, what)
        content = raw[place] if raw else None
        found[name] = _read_input(item, content, signature, max_batch_size, f'{what}: input "{name}"')
    if len(found) > 1:
        _check_batch(found, what)
    return found


def _read_input(
    item: InputTensor, content: memoryview | None, wanted: TensorSignature, max_batch_size: int, where: str
) -> NDArray[Any]:
    """One input, of its raw ``content`` or without that of its typed contents."""
    if item.parameters:
        check_parameters(item.parameters, where)
    given = wanted.datatype if item.datatype == wanted.datatype.name else _other(item.datatype, wanted, where)
    shape = tuple(item.shape)
    right = shape[1:] == wanted.dimensions or wanted.takes(shape[1:])
    if not right or not 1 <= shape[0] <= max_batch_size:
        raise _wrong_shape(shape, wanted, max_batch_size, where)
    if content is None:
        return convert(_read_contents(item, given, where), given, wanted.datatype)
    if item.HasField("contents"):
        raise InputError(f"{where}: has contents beside raw_input_contents; give one of them")
    array = read_elements(given.dtype, shape, content, where)
    return array if given is wanted.datatype else convert(array, given, wanted.datatype)


def _check_batch(found: Tensors, what: str) -> None:
    """Raises InputError if tensors differ in the size of the batch."""
    first, *others = found.items()
    for name, array in others:
        if len(array) != len(first[1]):
            raise InputError(
                f'{what}: input "{name}": found a batch of {len(array)}, and input "{first[0]}" has one of '
                f"{len(first[1])}; give all inputs the same"
            )


def check_parameters(parameters: Any, where: str) -> None:
    """Raises InputError if the elements of a tensor are in shared memory."""
    if _SHARED_MEMORY in parameters:
        raise InputError(f"{where}: shared memory is not offered here; send the elements in the request")


def shown(text: str) -> str:
    """Returns a name that a client sent as far as it fits into a message."""
    return one_line(text, 80)


def _wrong_names(names: Sequence[str], wanted: Mapping[str, TensorSignature], what: str) -> InputError:
    for name in names:
        if name not in wanted:
            return InputError(f'{what}: has no input "{shown(name)}"; {suggestion(name, list(wanted))}')
    takes = "one" if len(wanted) == 1 else f"one of each: {', '.join(wanted)}"
    for name in wanted:
        if (count := names.count(name)) != 1:
            return InputError(f'{what}: found {count} inputs "{name}"; it takes {takes}')
    return InputError(f"{what}: found {len(names)} inputs; it takes {takes}")


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
    if not wanted.takes(tuple(shape[1:])) or shape[0] < 1:
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
