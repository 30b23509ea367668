"""The codec of the Open Inference Protocol over HTTP: JSON, followed by the elements of binary tensors.

This module reads inference requests and writes responses. It converts JSON tensors, nested or flat lists, to
the bytes of a binary tensor and back, and parses and writes JSON without blocking other threads for long.
Protobuf messages become JSON with the types used by Triton's HTTP server: protobuf's own conversion writes
64-bit integers as strings, whereas the HTTP protocol uses numbers.
"""

from __future__ import annotations

import base64
import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import numpy as np
from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message
from numpy.typing import NDArray

from inferometer.agent.open_inference.codec import (
    BYTES,
    DATATYPES,
    OTHER_DATATYPES,
    REGION,
    STRINGS,
    Datatype,
    InferAnswer,
    InferCall,
    TensorSignature,
    titled,
)
from inferometer.agent.protocol.tensors import MAX_DIMENSIONS, array_bytes, pack, unpack
from inferometer.manifests.errors import InputError, PredictionError, one_line
from inferometer.manifests.inputs import DYNAMIC_AXIS
from inferometer.protos.inference.v2 import grpc_service_pb2 as pb

LONG_BYTES = 64 * 1024
"""JSON above this size takes milliseconds to process, so it is parsed and written in a thread."""
_ELEMENTS = 4096


def json_object(
    content: bytes | memoryview,
    no_json: str = "is not JSON",
    no_object: str = "is not a JSON object",
    **options: Any,
) -> dict[str, Any]:
    """Parses a JSON object with ``options``; raises InputError with ``no_json`` or ``no_object``."""
    try:
        found = json.loads(str(content, "utf-8"), **options)
    except (ValueError, RecursionError) as error:
        raise InputError(f"{no_json}: {one_line(error, 100)}") from error
    if not isinstance(found, dict):
        raise InputError(no_object)
    return found


def read_object(content: memoryview) -> dict[str, Any]:
    """Parses the JSON object of a request; raises InputError if the text is not a JSON object.

    Python's parser blocks all other threads until it finishes, which takes seconds for tens of megabytes. In
    a long text, a Python function therefore parses each number, so that other threads can run in between.
    """
    options: dict[str, Callable[[str], float]] = {}
    if len(content) > LONG_BYTES:
        options = {"parse_float": lambda text: float(text), "parse_int": lambda text: int(text)}
    return json_object(content, "the request is not JSON", "the request's JSON is not an object", **options)


def text_of(value: Any) -> str:
    """Returns a value as JSON without spaces."""
    return json.dumps(value, separators=(",", ":"))


def list_text(elements: Sequence[Any]) -> str:
    """Returns a list as JSON, like ``text_of``, but in pieces so that other threads can run in between."""
    pieces = (text_of(elements[at : at + _ELEMENTS])[1:-1] for at in range(0, len(elements), _ELEMENTS))
    return f"[{','.join(pieces)}]"


def json_of(message: Message) -> dict[str, Any]:
    """Returns a message as a JSON object with the field names of the ``.proto`` file.

    Unset fields are included with their default, as in Triton, except messages and the members of a oneof.
    Enumerations are written as names, ``bytes`` as base64.
    """
    found: dict[str, Any] = {}
    for each in message.DESCRIPTOR.fields:
        value = getattr(message, each.name)
        kind = each.message_type
        if kind is not None and kind.GetOptions().map_entry:
            of_value = kind.fields_by_name["value"]
            found[each.name] = {str(key): _field_value(of_value, value[key]) for key in value}
        elif each.is_repeated:
            found[each.name] = [_field_value(each, item) for item in value]
        elif not each.has_presence or message.HasField(each.name):
            found[each.name] = _field_value(each, value)
    return found


def _field_value(field: FieldDescriptor, value: Any) -> Any:
    if field.message_type is not None:
        return json_of(value)
    if field.enum_type is not None:
        known = field.enum_type.values_by_number.get(value)
        return value if known is None else known.name
    return base64.b64encode(value).decode("ascii") if field.type == FieldDescriptor.TYPE_BYTES else value


def content_of(data: Any, datatype: str, count: int, where: str) -> memoryview:
    """Returns the elements of a tensor in JSON as the bytes of a binary tensor.

    ``count`` is the number of elements that its shape requires; ``where`` names the tensor in errors.

    Raises:
        InputError: The elements are not the numbers, booleans or strings that the datatype requires, one is
            out of range, or their number is not ``count``.
    """
    if not isinstance(data, list):
        raise InputError(f"{where}: data is not a list")
    if datatype == BYTES:
        texts = list(_flat(data, where))
        _check_count(len(texts), count, where)
        if not all(isinstance(text, str) for text in texts):
            raise InputError(f"{where}: has an element that is not a string, which {BYTES} requires in JSON")
        try:
            return memoryview(pack(text.encode() for text in texts))
        except UnicodeEncodeError as error:
            raise InputError(f"{where}: has a string that is not Unicode; send it as binary data") from error
    known = DATATYPES.get(datatype)
    if known is None:
        raise InputError(f"{where}: {datatype[:40]} has no form in JSON; send its elements as binary data")
    try:
        found = np.array(data)
    except (ValueError, OverflowError) as error:  # lists of different lengths
        raise InputError(f"{where}: data is neither a list of elements nor lists of equal length") from error
    _check_count(found.size, count, where)
    return array_bytes(_converted(found, data, known, where))


def _check_count(found: int, count: int, where: str) -> None:
    if found != count:
        raise InputError(f"{where}: {found} elements in data for a shape that takes {count}")


def _flat(data: Sequence[Any], where: str, depth: int = 1) -> Iterator[Any]:
    for item in data:
        if not isinstance(item, list):
            yield item
        elif depth == MAX_DIMENSIONS:
            raise InputError(f"{where}: data is nested more than {MAX_DIMENSIONS} times")
        else:
            yield from _flat(item, where, depth + 1)


def _converted(found: NDArray[Any], data: Any, datatype: Datatype, where: str) -> NDArray[Any]:
    """Converts numbers to the type of a tensor; rounds exact JSON numbers as the type requires."""
    wanted = datatype.dtype
    if not found.size:
        return found.astype(wanted)
    if wanted.kind == "b":
        if found.dtype.kind == "b" or (found.dtype.kind in "iu" and found.min() >= 0 and found.max() <= 1):
            return found.astype(wanted)
        raise InputError(f"{where}: has an element that is neither true nor false")
    if wanted.kind in "iu":
        return _whole_numbers(found, data, datatype, where)
    if found.dtype.kind not in "iuf":
        raise InputError(f"{where}: has an element that is not a number, which {datatype.name} requires")
    with np.errstate(over="ignore"):
        array = found.astype(wanted)
    if np.isinf(array).any() and not np.array_equal(np.isinf(array), np.isinf(found)):
        raise InputError(f"{where}: has an element that is too large for {datatype.name}")
    return array


def _whole_numbers(found: NDArray[Any], data: Any, datatype: Datatype, where: str) -> NDArray[Any]:
    if found.dtype.kind in "fO" and all(type(item) is int for item in _flat(data, where)):
        found = np.array(data, dtype=object)  # NumPy makes floats of what needs both int64 and uint64
    elif found.dtype.kind not in "iu":
        raise InputError(f"{where}: has an element that is not an integer, which {datatype.name} requires")
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
        where = f'output "{name}"'
        try:
            return [text.decode() for text in unpack(memoryview(content), where)]
        except UnicodeDecodeError as error:
            raise InputError(f"{where}: has bytes that are not text; ask for binary_data") from error
    known = DATATYPES.get(datatype)
    if known is None:
        raise PredictionError(f'output "{name}": {datatype} has no form in JSON; ask for binary_data')
    elements: list[Any] = np.frombuffer(content, known.dtype.newbyteorder("<")).tolist()
    return elements


BINARY_SIZE = "binary_data_size"
BINARY = "binary_data"
BINARY_OUTPUT = "binary_data_output"
MAX_INT64, _MAX_UINT64 = 2**63 - 1, 2**64 - 1
_EMPTY = memoryview(b"")


Signatures: TypeAlias = Callable[[str, str], Sequence[TensorSignature]]
"""Returns the inputs of a model by its name and version."""


@dataclass(frozen=True, slots=True)
class InferRequest:
    """A request, and which outputs its client wants as binary data, by name or by default."""

    call: InferCall
    binary: Mapping[str, bool] = field(default_factory=dict)
    binary_by_default: bool = False

    def wants_binary(self, output: str) -> bool:
        """Returns whether an output's elements are to follow the response's JSON as binary data."""
        return self.binary.get(output, self.binary_by_default)


def read_infer_request(model: str, version: str, body: memoryview, head_bytes: int) -> InferRequest:
    """Reads a request whose JSON is the first ``head_bytes`` of its body.

    The elements of binary tensors are views of the body.

    Raises:
        InputError: The body is not a valid request, or the sizes of its parts are inconsistent.
    """
    head = read_object(body[:head_bytes])
    parameters = object_of(head, "parameters", "the request")
    by_default = flag_of(parameters, BINARY_OUTPUT, "parameters", default=False)
    message = pb.ModelInferRequest()
    raw: list[memoryview] = []
    binary: dict[str, bool] = {}
    try:
        message.model_name, message.model_version = model, version
        message.id = _text(head, "id", "the request", required=False)
        _fill(message.parameters, parameters, "parameters", {BINARY_OUTPUT})
        position = head_bytes
        for item in _objects(head, "inputs"):
            content, position = _read_input(message.inputs.add(), item, body, position)
            raw += [] if content is None else [content]
        for item in _objects(head, "outputs"):
            output = message.outputs.add(name=_text(item, "name", "an output"))
            where = titled("output", output.name)
            of_output = object_of(item, "parameters", where)
            if BINARY in of_output:
                binary[output.name] = flag_of(of_output, BINARY, where, default=by_default)
            _fill(output.parameters, of_output, where, {BINARY})
    except UnicodeEncodeError as error:
        raise InputError("the request has a string that is not Unicode") from error
    if position != len(body):
        raise InputError(
            f"the body has {len(body) - head_bytes} bytes of binary data, but the inputs declare "
            f"{position - head_bytes} in {BINARY_SIZE}"
        )
    return InferRequest(InferCall(message, raw), binary, by_default)


def read_raw_request(
    model: str, version: str, body: memoryview, signatures: Sequence[TensorSignature]
) -> InferRequest:
    """Reads a body that consists only of the elements of a model's single input, without JSON.

    If an axis of the input is dynamic, the batch size is 1, and the length of the body determines the size of
    that axis.

    Raises InputError if the body is not a whole number of inputs, or the model takes several inputs.
    """
    if len(signatures) > 1:
        names = ", ".join(each.name for each in signatures)
        raise InputError(f"{titled('model', model)} takes the inputs {names}; send them in JSON, or after it")
    [signature] = signatures
    dimensions = signature.dimensions
    if signature.datatype is STRINGS:
        raise InputError(f"{titled('model', model)} takes {STRINGS.name}; send them in JSON, or after it")
    if (dynamic := dimensions.count(DYNAMIC_AXIS)) > 1:
        raise InputError(
            f"{titled('model', model)} takes {list(signature.shape)}, whose sizes are unclear from a body; "
            "send its elements in JSON, or after it"
        )
    size = signature.datatype.dtype.itemsize * math.prod(side for side in dimensions if side != DYNAMIC_AXIS)
    count, rest = divmod(len(body), size)
    if rest or not count:
        what = "a step of the dynamic axis" if dynamic else "an input"
        raise InputError(
            f"the body has {len(body)} bytes, and {what} of {titled('model', model)} has {size}; "
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
    where = titled("input", tensor.name)
    tensor.datatype = _text(item, "datatype", where)
    tensor.shape.extend(_shape(item, where))
    parameters = object_of(item, "parameters", where)
    _fill(tensor.parameters, parameters, where, {BINARY_SIZE})
    data, size = item.get("data"), parameters.get(BINARY_SIZE)
    if REGION in parameters:
        if data is not None or size is not None:
            raise InputError(f"{where}: has both elements and {REGION}; give one of them")
        return None, position
    if (data is None) is (size is None):
        if data is not None:
            raise InputError(f"{where}: has data and {BINARY_SIZE}; give one of them")
        raise InputError(f"{where}: has no elements; give data, or binary data and its {BINARY_SIZE}")
    if size is None:
        if tensor.datatype not in DATATYPES and tensor.datatype not in OTHER_DATATYPES:
            return _EMPTY, position  # the service reports unknown parameters
        return content_of(data, tensor.datatype, math.prod(tensor.shape), where), position
    if not is_whole(size):
        raise InputError(f"{where}: {BINARY_SIZE} is not a number of bytes")
    if size > len(body) - position:
        raise InputError(
            f"{where}: {BINARY_SIZE} says {size} bytes, but the body has {len(body) - position} more"
        )
    return body[position : position + size], position + size


def _shape(item: Mapping[str, Any], where: str) -> list[int]:
    shape = item.get("shape")
    if not isinstance(shape, list) or not all(is_whole(side, -MAX_INT64, MAX_INT64) for side in shape):
        raise InputError(f"{where}: shape is not a list of whole numbers")
    if len(shape) > MAX_DIMENSIONS:
        raise InputError(f"{where}: shape has {len(shape)} axes; at most {MAX_DIMENSIONS} are supported")
    return shape


def _fill(parameters: Any, found: Mapping[str, Any], where: str, leave_out: set[str]) -> None:
    """Copies parameters into a message, except those that describe binary data."""
    for key, value in found.items():
        if key in leave_out:
            continue
        if isinstance(value, bool):
            parameters[key].bool_param = value
        elif is_whole(value, -MAX_INT64 - 1, MAX_INT64):
            parameters[key].int64_param = value
        elif is_whole(value, 0, _MAX_UINT64):
            parameters[key].uint64_param = value
        elif isinstance(value, float):
            parameters[key].double_param = value
        elif isinstance(value, str):
            parameters[key].string_param = value
        else:
            raise InputError(
                f"{where}: parameter {one_line(key, 80)} is not a boolean, a string or a 64-bit number"
            )


def is_whole(value: Any, least: int = 0, most: int = MAX_INT64) -> bool:
    """Returns whether a value in JSON is a whole number within bounds."""
    return type(value) is int and least <= value <= most


def _text(item: Mapping[str, Any], key: str, where: str, *, required: bool = True) -> str:
    value = item.get(key, None if required else "")
    if not isinstance(value, str):
        raise InputError(f"{where}: {key} is not a string" if key in item else f"{where}: has no {key}")
    return value


def flag_of(parameters: Mapping[str, Any], key: str, where: str, *, default: bool) -> bool:
    """Returns a boolean member of an object; raises InputError if it is not a boolean."""
    value = parameters.get(key, default)
    if not isinstance(value, bool):
        raise InputError(f"{where}: {key} is neither true nor false")
    return value


def object_of(item: Mapping[str, Any], key: str, where: str) -> dict[str, Any]:
    """Returns a nested object, empty by default; raises InputError if it is not an object."""
    value = item.get(key, {})
    if not isinstance(value, dict):
        raise InputError(f"{where}: {key} is not an object")
    return value


def _objects(item: Mapping[str, Any], key: str) -> list[dict[str, Any]]:
    value = item.get(key, [])
    if not isinstance(value, list) or not all(isinstance(each, dict) for each in value):
        raise InputError(f"the request: {key} is not a list of objects")
    return value


HEADER_LENGTH = "inference-header-content-length"
"""The header with the number of JSON bytes in a body; the binary tensors follow them."""
JSON = "application/json"
BINARY_CONTENT = "application/octet-stream"


@dataclass(frozen=True, slots=True)
class Reply:
    """A response; ``parts`` are the pieces of its body."""

    parts: Sequence[bytes | memoryview] = ()
    status: int = 200
    content_type: str = JSON
    headers: tuple[tuple[str, str], ...] = ()


def json_reply(value: Any, status: int = 200) -> Reply:
    """Returns a response whose body is JSON."""
    return Reply((text_of(value).encode(),), status)


def infer_reply(answer: InferAnswer, request: InferRequest) -> Reply:
    """Returns a model's answer with its outputs in the form that the client requests.

    Raises the errors of ``data_of``.
    """
    message = answer.message
    outputs: list[str] = []
    binary: list[bytes | memoryview] = []
    for output, content in zip(message.outputs, answer.raw, strict=True):
        item: dict[str, Any] = {"name": output.name, "datatype": output.datatype, "shape": list(output.shape)}
        data = ""
        if REGION in output.parameters:
            pass  # holds the elements; Triton's client accepts no parameter other than that of binary data
        elif request.wants_binary(output.name):
            item["parameters"] = {BINARY_SIZE: len(content)}
            binary.append(content)
        else:
            data = f',"data":{list_text(data_of(content, output.datatype, output.name))}'
        outputs.append(f"{text_of(item)[:-1]}{data}}}")
    head: dict[str, Any] = {"model_name": message.model_name, "model_version": message.model_version}
    if message.id:
        head["id"] = message.id
    head["parameters"] = {
        key: getattr(parameter, chosen) if (chosen := parameter.WhichOneof("parameter_choice")) else None
        for key, parameter in message.parameters.items()
    }
    text = f'{text_of(head)[:-1]},"outputs":[{",".join(outputs)}]}}'.encode()
    if not binary:
        return Reply((text,))
    return Reply((text, *binary), 200, BINARY_CONTENT, ((HEADER_LENGTH, str(len(text))),))


def json_bytes(answer: InferAnswer, request: InferRequest) -> int:
    """Returns how many bytes of an answer are converted to JSON, which takes several times as much space."""
    pairs = zip(answer.message.outputs, answer.raw, strict=True)
    return sum(len(content) for output, content in pairs if not request.wants_binary(output.name))
