"""The codec of the Open Inference Protocol, shared by servers and clients.

This module defines the datatypes, the signatures of a model's inputs and outputs, the spelling of versions
for clients that expect whole numbers, and the names in Triton's system shared-memory extension. It converts
``ModelInferRequest`` and its responses, which carry tensors, to and from bytes; ``agent.protocol.tensors``
explains why this is not left to the protobuf library alone. It checks the input tensors of a request against
the inputs of the model.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray
from packaging.utils import canonicalize_version

from inferometer.agent.preprocessing.inputs import Tensors, dtype_of
from inferometer.agent.protocol.tensors import (
    MAX_DIMENSIONS,
    STRING,
    Parts,
    cut_out,
    is_text,
    length_delimited,
    pack,
    read_elements,
    strings,
)
from inferometer.manifests.errors import InputError, PredictionError, one_line, suggestion
from inferometer.manifests.inputs import DYNAMIC_AXIS
from inferometer.manifests.schema import ModelManifest
from inferometer.protos.inference.v2 import grpc_service_pb2 as pb
from inferometer.protos.inference.v2 import model_config_pb2 as config

EXTENSION = "system_shared_memory"
"""The name under which a server's metadata lists the system shared-memory extension."""
REGION, BYTE_SIZE, OFFSET = "shared_memory_region", "shared_memory_byte_size", "shared_memory_offset"
"""The names of the parameters that place a tensor in a shared-memory region."""
SEGMENTS = Path("/dev/shm")  # noqa: S108 - where shm_open has them in Linux


_MOST_VERSION_DIGITS = 9
_VERSION_PARTS, _VERSION_PART_DIGITS = 3, 3  # the numbers of these have ten digits, and fit into 32 bits


def canonical_version(version: str) -> str:
    """Returns the same text for all versions that PEP 440 regards as equal; keeps other text."""
    try:
        return canonicalize_version(version)
    except ValueError:  # a number too long for int
        return version


def v2_version(version: str) -> str:
    """Returns the version of a manifest in the protocol's spelling.

    ``N``, ``N.0`` and ``N.0.0`` become N if N is at least 1 and has at most nine digits. ``X.Y`` and
    ``X.Y.Z`` become 1 followed by three digits for each of X, Y and Z: ``1.5`` is 1001005000. Any other
    version keeps its text, with ``.0`` added to a whole number. The spelling depends on nothing but the
    version. Two versions have the same spelling only if PEP 440 regards them as equal.
    """
    canonical = canonical_version(version)
    parts = canonical.split(".")
    if not all(part.isdecimal() for part in parts):
        return version
    if len(parts) == 1 and canonical != "0" and len(canonical) <= _MOST_VERSION_DIGITS:
        return canonical
    if len(parts) <= _VERSION_PARTS and all(len(part) <= _VERSION_PART_DIGITS for part in parts):
        return "1" + "".join(part.zfill(_VERSION_PART_DIGITS) for part in (*parts, "0", "0")[:_VERSION_PARTS])
    return f"{canonical}.0" if len(parts) == 1 else version


BYTES = "BYTES"
"""The datatype of elements of variable length, such as classifications."""
OTHER_DATATYPES = {BYTES, "BF16"}
"""The datatypes without a numeric type in NumPy."""


@dataclass(frozen=True, slots=True)
class Datatype:
    """A datatype and its names: in requests, such as ``FP32``, in NumPy, and in model configurations.

    ``contents`` is the ``InferTensorContents`` field for its elements; FP16 and BF16 have none.
    """

    name: str
    dtype: np.dtype[Any]
    config_type: config.DataType.ValueType
    contents: str | None


_DATATYPE_ROWS: Sequence[tuple[str, str, config.DataType.ValueType, str | None]] = (
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
DATATYPES = {row[0]: Datatype(row[0], np.dtype(row[1]), row[2], row[3]) for row in _DATATYPE_ROWS}
"""Every numeric datatype by its name."""


_WIDE: Mapping[str | None, np.dtype[Any]] = {
    "int_contents": np.dtype(np.int32),
    "uint_contents": np.dtype(np.uint32),
}
"""The dtype of each field that several datatypes share; it can represent the elements of all of them."""
STRINGS = Datatype(BYTES, np.dtype(object), config.TYPE_STRING, "bytes_contents")
"""Strings, encoded as UTF-8; in NumPy, object arrays of Python strings."""
_OF_DTYPE = {datatype.dtype: datatype for datatype in (*DATATYPES.values(), STRINGS)}
BF16 = Datatype("BF16", np.dtype(np.uint16), config.TYPE_BF16, None)
"""The upper 16 bits of FP32; NumPy has no such numeric type, and arrays hold these bits."""
_LOST_IN_FLOATS = 64
"""No float type represents every integer of this many bits, although NumPy regards the cast as safe."""


@cache
def converted_to(wanted: Datatype) -> dict[str, Datatype]:
    """Returns, by name, the other datatypes whose values a datatype represents exactly; none for BOOL."""
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
    """Converts elements from ``given``, one of ``converted_to(wanted)``, without a copy if possible."""
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
    """Returns the datatype of a NumPy type name, ``string`` or ``bfloat16``; None if there is none."""
    others = {STRING: STRINGS, "bfloat16": BF16}
    numeric = {each.dtype.name: each for each in DATATYPES.values()}
    return {**numeric, **others}.get(element_type or "")


BATCH_SIDE = -1
"""The batch axis in a shape; its size is variable."""


@dataclass(frozen=True, slots=True)
class TensorSignature:
    """One input or output of a model.

    ``dimensions`` exclude the batch axis; ``DYNAMIC_AXIS`` is an axis whose size may vary between requests.
    An output for the ``whole_batch`` has no batch axis.
    """

    name: str
    datatype: Datatype
    dimensions: tuple[int, ...]
    whole_batch: bool = False

    def takes(self, dimensions: tuple[int, ...]) -> bool:
        """Returns whether dimensions without the batch axis match; a dynamic axis accepts any size but 0."""
        return dimensions == self.dimensions or (
            len(dimensions) == len(self.dimensions)
            and all(
                size > 0 if wanted == DYNAMIC_AXIS else size == wanted
                for size, wanted in zip(dimensions, self.dimensions, strict=True)
            )
        )

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape including the batch axis, if there is one, whose size is variable."""
        return self.dimensions if self.whole_batch else (BATCH_SIDE, *self.dimensions)


TEXT_INPUT, TEXT_OUTPUT = (
    TensorSignature(name, STRINGS, (1,), whole_batch=True) for name in ("text_input", "text_output")
)
"""The only input and output of a language model, with the names of Triton's."""


def inputs_of(manifest: ModelManifest) -> dict[str, TensorSignature]:
    """Returns the inputs of a model by name, in the manifest's order."""
    if manifest.generates:
        return {TEXT_INPUT.name: TEXT_INPUT}
    return {
        each.name: TensorSignature(each.name, datatype_of(dtype_of(each)), each.written)
        for each in manifest.tensors
    }


RAW_INPUTS = pb.ModelInferRequest.RAW_INPUT_CONTENTS_FIELD_NUMBER
RAW_OUTPUTS = pb.ModelInferResponse.RAW_OUTPUT_CONTENTS_FIELD_NUMBER
_INFER_RESPONSE = pb.ModelStreamInferResponse.INFER_RESPONSE_FIELD_NUMBER

_SMALL_REQUEST_BYTES = 16 * 1024
"""Below this size, the protobuf library parses a message faster than Python code locates its contents."""


@dataclass(slots=True)
class InferCall:
    """A ``ModelInferRequest`` without its raw contents, and the raw contents as views of the request.

    ``raw`` has one entry per input or is empty; the entry for an input with typed contents is None.
    """

    message: pb.ModelInferRequest
    raw: Sequence[memoryview | None]


@dataclass(slots=True)
class InferAnswer:
    """A ``ModelInferResponse`` without its raw contents, and the raw contents, one per output."""

    message: pb.ModelInferResponse
    raw: Sequence[bytes | memoryview]


def decode_request(content: bytes) -> InferCall:
    """Reads a ``ModelInferRequest``; raises DecodeError if it is malformed."""
    if len(content) < _SMALL_REQUEST_BYTES:
        message = pb.ModelInferRequest.FromString(content)
        raw = [memoryview(each) for each in message.raw_input_contents]
        message.ClearField("raw_input_contents")
        return InferCall(message, raw)
    rest, spans = cut_out(content, RAW_INPUTS)
    view = memoryview(content)
    return InferCall(pb.ModelInferRequest.FromString(rest), [view[start:end] for start, end in spans])


def encode_answer(answer: InferAnswer) -> bytes:
    """Returns an encoded ``ModelInferResponse``."""
    return b"".join(_parts(answer))


def encode_stream_answer(answer: InferAnswer | pb.ModelStreamInferResponse) -> bytes:
    """Returns an answer as an encoded ``ModelStreamInferResponse``; an error is already such a message."""
    if isinstance(answer, pb.ModelStreamInferResponse):
        return answer.SerializeToString()
    return b"".join(length_delimited(_INFER_RESPONSE, _parts(answer)))


def _parts(answer: InferAnswer) -> Parts:
    parts: Parts = [answer.message.SerializeToString()]
    for content in answer.raw:
        parts += length_delimited(RAW_OUTPUTS, [content])
    return parts


_OF_TEXTS = {"text_input": STRINGS, "sampling_parameters": STRINGS}
_OF_TEXTS |= {"stream": DATATYPES["BOOL"], "exclude_input_in_output": DATATYPES["BOOL"]}
"""The inputs of a request for a text, all but the first optional, as those of Triton's backend for vLLM."""


def read_text_request(call: InferCall) -> dict[str, Any]:
    """Returns the text and the parameters of a request to a language model by name, as in JSON.

    Raises:
        InputError: An input or output is unknown, or an input is not one element of its type.
    """
    message, what = call.message, titled("model", call.message.model_name)
    for output in message.outputs:
        if output.name != TEXT_OUTPUT.name:
            raise InputError(f"{what}: has no {titled('output', output.name)}; it has {TEXT_OUTPUT.name}")
    names = {item.name for item in message.inputs} | {TEXT_INPUT.name}
    wanted = {name: TensorSignature(name, each, ()) for name, each in _OF_TEXTS.items() if name in names}
    found = {name: array.item() for name, array in read_inputs(call, wanted, 1, what).items()}
    for key, parameter in message.parameters.items():
        if choice := parameter.WhichOneof("parameter_choice"):
            found.setdefault(key, getattr(parameter, choice))
    return found


def text_answer(call: InferCall, version: str, text: str, *, is_last: bool) -> InferAnswer:
    """Returns a part of a text, from a version of the model that a request names."""
    response = _response(call, version, is_last=is_last)
    response.outputs.add(name=TEXT_OUTPUT.name, datatype=BYTES, shape=[1])
    return InferAnswer(response, [pack([text.encode()])])


FINAL = "triton_final_response"
"""The parameter of a response in a stream that is true if no other response to its request follows."""
_WANTS_FINAL = "triton_enable_empty_final_response"


def check_final(call: InferCall) -> None:
    """Raises InputError if the parameter for final responses is neither true nor false."""
    parameters = call.message.parameters
    if _WANTS_FINAL in parameters and not parameters[_WANTS_FINAL].HasField("bool_param"):
        raise InputError(f"parameter {_WANTS_FINAL} must be true or false, in bool_param")


def failed_answer(call: InferCall, message: str) -> pb.ModelStreamInferResponse:
    """Returns the final response in a stream to a request that has failed."""
    response = _response(call, call.message.model_version, is_last=True)
    return pb.ModelStreamInferResponse(error_message=message, infer_response=response)


def _response(call: InferCall, version: str, *, is_last: bool) -> pb.ModelInferResponse:
    name, parameters = call.message.model_name, {FINAL: pb.InferParameter(bool_param=is_last)}
    return pb.ModelInferResponse(
        model_name=name, model_version=version, id=call.message.id, parameters=parameters
    )


InputTensor: TypeAlias = pb.ModelInferRequest.InferInputTensor


def read_inputs(
    call: InferCall, wanted: Mapping[str, TensorSignature], max_batch_size: int, what: str
) -> Tensors:
    """Returns the inputs of a request by name; errors refer to the model as ``what``.

    The inputs have the model's dtypes and shapes. Elements of another datatype are converted if no value is
    lost. A raw input of the model's datatype is a read-only view of the request and need not be aligned.

    Raises:
        InputError: The inputs are not those of the model, one has a wrong datatype, shape or size, or their
            batch sizes differ.
    """
    inputs, raw = call.message.inputs, call.raw
    if len(inputs) != len(wanted):
        raise _wrong_names([item.name for item in inputs], wanted, what)
    if raw and len(raw) != len(inputs):
        count = "one input" if len(inputs) == 1 else f"{len(inputs)} inputs"
        raise InputError(f"{what}: has {len(raw)} raw_input_contents for {count}")
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
    """Returns one input from its raw ``content``, or from its typed contents if ``content`` is None."""
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
        raise InputError(f"{where}: has both contents and raw_input_contents; give one of them")
    array = read_elements(given.dtype, shape, content, where)
    return array if given is wanted.datatype else convert(array, given, wanted.datatype)


def _check_batch(found: Tensors, what: str) -> None:
    """Raises InputError if the batch sizes of the tensors differ."""
    first, *others = found.items()
    for name, array in others:
        if len(array) != len(first[1]):
            raise InputError(
                f'{what}: input "{name}": found a batch of {len(array)}, but input "{first[0]}" has one of '
                f"{len(first[1])}; give all inputs the same batch size"
            )


def check_parameters(parameters: Any, where: str) -> None:
    """Raises InputError if the elements of a tensor are in shared memory."""
    if REGION in parameters:
        raise InputError(f"{where}: shared memory is not offered here; send the elements in the request")


def whole_number(parameters: Mapping[str, pb.InferParameter], name: str, default: int = 0) -> int:
    """Returns a non-negative integer parameter; -1 for any other value, ``default`` if it is absent."""
    if name not in parameters:
        return default
    parameter = parameters[name]
    chosen = parameter.WhichOneof("parameter_choice")
    number = int(getattr(parameter, chosen)) if chosen in {"int64_param", "uint64_param"} else -1
    return max(number, -1)


def titled(kind: str, name: str) -> str:
    """Returns a kind of object with the name that a client gave, as in messages: ``input "data"``."""
    return f'{kind} "{one_line(name, 80)}"'


def _wrong_names(names: Sequence[str], wanted: Mapping[str, TensorSignature], what: str) -> InputError:
    for name in names:
        if name not in wanted:
            return InputError(f"{what}: has no {titled('input', name)}; {suggestion(name, wanted)}")
    takes = "one" if len(wanted) == 1 else f"one of each: {', '.join(wanted)}"
    for name in wanted:
        if (count := names.count(name)) != 1:
            return InputError(f'{what}: found {count} inputs "{name}"; it takes {takes}')
    return InputError(f"{what}: found {len(names)} inputs; it takes {takes}")


def _other(name: str, wanted: TensorSignature, where: str) -> Datatype:
    """Returns a datatype that differs from the model's; raises InputError if it cannot be converted."""
    others = converted_to(wanted.datatype)
    if name in others:
        return others[name]
    takes = f"the model takes {wanted.datatype.name}"
    if others:
        takes += f", and types it represents exactly: {', '.join(others)}"
    if name in DATATYPES or name in OTHER_DATATYPES:
        raise InputError(f"{where}: found datatype {name}; {takes}")
    raise InputError(f"{where}: {titled('datatype', name)} is not known; {takes}")


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
    """Returns the elements in the datatype's field of the typed contents."""
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
    return typed_elements(elements, datatype, where).reshape(tuple(item.shape))


def typed_elements(elements: Sequence[Any], datatype: Datatype, where: str) -> NDArray[Any]:
    """Returns the numbers in typed contents; raises InputError if one is outside the datatype's range."""
    array: NDArray[Any] = np.array(elements, _WIDE.get(datatype.contents, datatype.dtype))
    if array.dtype != datatype.dtype:
        limits = np.iinfo(datatype.dtype)
        if array.size and (array.min() < limits.min or array.max() > limits.max):
            raise InputError(f"{where}: has an element outside {limits.min}…{limits.max} of {datatype.name}")
        array = array.astype(datatype.dtype)
    return array
