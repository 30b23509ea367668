"""Inference requests: a JSON object, followed by the elements of binary tensors."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from inferometer.agent.protocol.tensors import MAX_DIMENSIONS
from inferometer.agent.protocol.v2_datatypes import DATATYPES, OTHER_DATATYPES, STRINGS, TensorSignature
from inferometer.agent.protocol.v2_shared_memory import REGION
from inferometer.agent.server.rest.json_tensors import content_of
from inferometer.agent.server.rest.json_text import read_object
from inferometer.agent.server.v2.messages import InferCall
from inferometer.manifests.errors import InputError, one_line
from inferometer.manifests.fields import DYNAMIC_AXIS
from inferometer.protos.inference.v2 import grpc_service_pb2 as pb

BINARY_SIZE = "binary_data_size"
_BINARY = "binary_data"
_BINARY_OUTPUT = "binary_data_output"
_MAX_INT64, _MAX_UINT64 = 2**63 - 1, 2**64 - 1
_EMPTY = memoryview(b"")


@dataclass(frozen=True, slots=True)
class InferRequest:
    """A request, and the outputs that its client requests as binary data, by name or by default."""

    call: InferCall
    binary: Mapping[str, bool] = field(default_factory=dict)
    binary_by_default: bool = False

    def wants_binary(self, output: str) -> bool:
        """Returns whether the elements of an output follow the JSON of the response."""
        return self.binary.get(output, self.binary_by_default)


def read_infer_request(model: str, version: str, body: memoryview, head_bytes: int) -> InferRequest:
    """Reads a request whose JSON has the first ``head_bytes`` of its body.

    The elements of binary tensors are views of the body.

    Raises:
        InputError: The body is not a valid request, or the sizes of its parts are inconsistent.
    """
    head = read_object(body[:head_bytes])
    parameters = _object(head, "parameters", "the request")
    by_default = _flag(parameters, _BINARY_OUTPUT, "parameters", default=False)
    message = pb.ModelInferRequest()
    raw: list[memoryview] = []
    binary: dict[str, bool] = {}
    try:
        message.model_name, message.model_version = model, version
        message.id = _text(head, "id", "the request", required=False)
        _fill(message.parameters, parameters, "parameters", {_BINARY_OUTPUT})
        position = head_bytes
        for item in _objects(head, "inputs"):
            content, position = _read_input(message.inputs.add(), item, body, position)
            raw += [] if content is None else [content]
        for item in _objects(head, "outputs"):
            output = message.outputs.add(name=_text(item, "name", "an output"))
            where = _titled("output", output.name)
            of_output = _object(item, "parameters", where)
            if _BINARY in of_output:
                binary[output.name] = _flag(of_output, _BINARY, where, default=by_default)
            _fill(output.parameters, of_output, where, {_BINARY})
    except UnicodeEncodeError as error:
        raise InputError("the request has a text that is no Unicode") from error
    if position != len(body):
        raise InputError(
            f"the body has {len(body) - head_bytes} bytes of binary data, and the inputs say "
            f"{position - head_bytes} in {BINARY_SIZE}"
        )
    return InferRequest(InferCall(message, raw), binary, by_default)


def read_raw_request(
    model: str, version: str, body: memoryview, signatures: Sequence[TensorSignature]
) -> InferRequest:
    """Reads a body that consists only of the elements of a model's single input, without JSON.

    If an axis of the input is dynamic, the batch size is 1, and the axis' size follows from the length of the
    body.

    Raises InputError if the elements are not those of whole inputs, or the model takes several inputs.
    """
    if len(signatures) > 1:
        names = ", ".join(each.name for each in signatures)
        raise InputError(
            f"{_titled('model', model)} takes the inputs {names}; send them in JSON, or after it"
        )
    [signature] = signatures
    dimensions = signature.dimensions
    if signature.datatype is STRINGS:
        raise InputError(f"{_titled('model', model)} takes {STRINGS.name}; send them in JSON, or after it")
    if (dynamic := dimensions.count(DYNAMIC_AXIS)) > 1:
        raise InputError(
            f"{_titled('model', model)} takes {list(signature.shape)}, whose sizes no body tells; "
            "send its elements in JSON, or after it"
        )
    size = signature.datatype.dtype.itemsize * math.prod(side for side in dimensions if side != DYNAMIC_AXIS)
    count, rest = divmod(len(body), size)
    if rest or not count:
        what = "a step of the dynamic axis" if dynamic else "an input"
        raise InputError(
            f"the body has {len(body)} bytes, and {what} of {_titled('model', model)} has {size}; "
            "send a multiple of that"
        )
    shape = (count, *dimensions)
    if dynamic:
        shape = (1, *(count if side == DYNAMIC_AXIS else side for side in dimensions))
    item = pb.ModelInferRequest.InferInputTensor(
        name=signature.name, datatype=signature.datatype.name, shape=shape
    )
    message = pb.ModelInferRequest(model_name=model, model_version=version, inputs=[item])
    return InferRequest(InferCall(message, [body]), binary_by_default=True)


def _read_input(
    tensor: pb.ModelInferRequest.InferInputTensor, item: dict[str, Any], body: memoryview, position: int
) -> tuple[memoryview | None, int]:
    """Reads an input; returns its elements and the offset of the next binary tensor in the body.

    An input in shared memory has no elements.
    """
    tensor.name = _text(item, "name", "an input")
    where = _titled("input", tensor.name)
    tensor.datatype = _text(item, "datatype", where)
    tensor.shape.extend(_shape(item, where))
    parameters = _object(item, "parameters", where)
    _fill(tensor.parameters, parameters, where, {BINARY_SIZE})
    data, size = item.get("data"), parameters.get(BINARY_SIZE)
    if REGION in parameters:
        if data is not None or size is not None:
            raise InputError(f"{where}: has elements beside {REGION}; give one of them")
        return None, position
    if (data is None) is (size is None):
        if data is not None:
            raise InputError(f"{where}: has data and {BINARY_SIZE}; give one of them")
        raise InputError(f"{where}: has no elements; give data, or binary data and its {BINARY_SIZE}")
    if size is None:
        if tensor.datatype not in DATATYPES and tensor.datatype not in OTHER_DATATYPES:
            return _EMPTY, position  # the service reports unknown parameters
        return content_of(data, tensor.datatype, math.prod(tensor.shape), where), position
    if not _is_whole(size, 0, _MAX_INT64):
        raise InputError(f"{where}: {BINARY_SIZE} is no number of bytes")
    if size > len(body) - position:
        raise InputError(
            f"{where}: {BINARY_SIZE} says {size} bytes, and the body has {len(body) - position} more"
        )
    return body[position : position + size], position + size


def _shape(item: Mapping[str, Any], where: str) -> list[int]:
    shape = item.get("shape")
    if not isinstance(shape, list) or not all(_is_whole(side, -_MAX_INT64, _MAX_INT64) for side in shape):
        raise InputError(f"{where}: shape is no list of whole numbers")
    if len(shape) > MAX_DIMENSIONS:
        raise InputError(f"{where}: shape has {len(shape)} axes; at most {MAX_DIMENSIONS} are possible")
    return shape


def _fill(parameters: Any, found: Mapping[str, Any], where: str, leave_out: set[str]) -> None:
    """Copies parameters into a message, except those of the binary data."""
    for key, value in found.items():
        if key in leave_out:
            continue
        if isinstance(value, bool):
            parameters[key].bool_param = value
        elif _is_whole(value, -_MAX_INT64 - 1, _MAX_INT64):
            parameters[key].int64_param = value
        elif _is_whole(value, 0, _MAX_UINT64):
            parameters[key].uint64_param = value
        elif isinstance(value, float):
            parameters[key].double_param = value
        elif isinstance(value, str):
            parameters[key].string_param = value
        else:
            raise InputError(
                f"{where}: parameter {one_line(key, 80)} is no boolean, no text and no number of 64 bits"
            )


def _is_whole(value: Any, least: int, most: int) -> bool:
    return type(value) is int and least <= value <= most


def _titled(kind: str, name: str) -> str:
    return f'{kind} "{one_line(name, 80)}"'


def _text(item: Mapping[str, Any], key: str, where: str, *, required: bool = True) -> str:
    value = item.get(key, None if required else "")
    if not isinstance(value, str):
        raise InputError(f"{where}: {key} is no text" if key in item else f"{where}: has no {key}")
    return value


def _flag(parameters: Mapping[str, Any], key: str, where: str, *, default: bool) -> bool:
    value = parameters.get(key, default)
    if not isinstance(value, bool):
        raise InputError(f"{where}: {key} is neither true nor false")
    return value


def _object(item: Mapping[str, Any], key: str, where: str) -> dict[str, Any]:
    value = item.get(key, {})
    if not isinstance(value, dict):
        raise InputError(f"{where}: {key} is no object")
    return value


def _objects(item: Mapping[str, Any], key: str) -> list[dict[str, Any]]:
    value = item.get(key, [])
    if not isinstance(value, list) or not all(isinstance(each, dict) for each in value):
        raise InputError(f"the request: {key} is no list of objects")
    return value
