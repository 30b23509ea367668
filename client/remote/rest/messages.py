"""Requests for inference over HTTP, written whole before they are sent, and the responses to them."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias
from urllib.parse import quote

import numpy as np
from numpy.typing import NDArray

from inferometer.agent.preprocessing.inputs import Tensors
from inferometer.agent.protocol.tensors import array_bytes, read_array
from inferometer.agent.protocol.v2_datatypes import STRINGS, Datatype
from inferometer.agent.protocol.v2_shared_memory import BYTE_SIZE, OFFSET, REGION
from inferometer.client.remote.kserve.messages import (
    TIMES,
    InferReply,
    ServedInput,
    TensorPlace,
    datatype_named,
)
from inferometer.client.remote.rest.responses import Response
from inferometer.manifests.errors import InputError, PredictionError

_Json: TypeAlias = Mapping[str, Any]
BINARY_EXTENSION = "binary_tensor_data"
INFER_TEMPLATE = "/v2/models/{model}/infer"
_HEAD_LENGTH = "inference-header-content-length"
_BINARY_SIZE = "binary_data_size"


def model_path(name: str, version: str) -> str:
    """Returns the path of a model, or of one of its versions."""
    return f"/v2/models/{quote(name, safe='@')}" + (f"/versions/{quote(version, safe='')}" if version else "")


def encode_request(verb: str, path: str, fixed: bytes, *body: bytes | memoryview, more: str = "") -> bytes:
    """Returns a request; ``fixed`` holds the header lines of all requests to a server, ``more`` others."""
    size = sum(map(len, body))
    head = f"{verb} {path} HTTP/1.1\r\ncontent-length: {size}\r\n{more}"
    return b"".join((head.encode("latin-1"), fixed, b"\r\n", *body))


def with_headers(request: bytes, headers: Sequence[tuple[str, str]]) -> bytes:
    """Returns a request with additional headers before its own."""
    line, end, rest = request.partition(b"\r\n")
    return b"".join((line, end, *(f"{name}: {value}\r\n".encode("latin-1") for name, value in headers), rest))


@dataclass(frozen=True, slots=True)
class HttpRequestForm:
    """The constant parts of all requests to a model, with the server's names.

    Attributes:
        fixed: The lines that all requests to the server have.
        model_name: The model.
        model_version: Which version; empty leaves the choice to the server.
        inputs: The inputs, in the order of the requests.
        outputs: The requested outputs; none means all.
        is_binary: Whether tensors are sent as they are, and not in JSON.
    """

    fixed: bytes
    model_name: str
    model_version: str
    inputs: tuple[ServedInput, ...]
    outputs: tuple[str, ...] = ()
    is_binary: bool = True

    def encode(self, batch: Tensors) -> bytes:
        """Returns the request for a batch, by the names of the manifest and of the inputs' dtypes."""
        arrays = [batch[each.layer] for each in self.inputs]
        shapes = [array.shape for array in arrays]
        if not self.is_binary:
            return self._request(shapes, [{"data": array.reshape(-1).tolist()} for array in arrays])
        contents = list(map(array_bytes, arrays))
        sizes: list[_Json] = [{"parameters": {_BINARY_SIZE: len(content)}} for content in contents]
        return self._request(shapes, sizes, contents)

    def encode_placed(self, places: Mapping[str, TensorPlace], region: str) -> bytes:
        """Returns the request for a batch whose tensors have those places in a region of shared memory."""
        elements: list[_Json] = []
        for each in self.inputs:
            place = places[each.layer]
            size = math.prod(place.shape) * each.datatype.dtype.itemsize
            parameters: dict[str, Any] = {REGION: region, BYTE_SIZE: size}
            if place.offset:
                parameters[OFFSET] = place.offset
            elements.append({"parameters": parameters})
        return self._request([places[each.layer].shape for each in self.inputs], elements)

    def decode(self, answer: bytes) -> InferReply:
        """Reads a response, whose outputs are binary or in JSON.

        Raises:
            PredictionError: The response is malformed, or its tensors contradict their description.
        """
        response = Response.parse(answer)
        try:
            return _read_reply(response)
        except InputError as error:
            raise PredictionError(f"the server's answer: {error}") from error

    def _request(
        self,
        shapes: Sequence[Sequence[int]],
        elements: Sequence[_Json],
        contents: Sequence[memoryview] | None = None,
    ) -> bytes:
        message: dict[str, Any] = {
            "inputs": [
                {"name": each.name, "datatype": each.datatype.name, "shape": list(shape), **given}
                for each, shape, given in zip(self.inputs, shapes, elements, strict=True)
            ]
        }
        if self.outputs:
            wants = {"parameters": {"binary_data": True}} if self.is_binary else {}
            message["outputs"] = [{"name": name, **wants} for name in self.outputs]
        elif self.is_binary:
            message["parameters"] = {"binary_data_output": True}
        head = json.dumps(message, separators=(",", ":")).encode()
        path = f"{model_path(self.model_name, self.model_version)}/infer"
        if contents is None:
            return encode_request("POST", path, self.fixed, head, more="content-type: application/json\r\n")
        more = f"content-type: application/octet-stream\r\n{_HEAD_LENGTH}: {len(head)}\r\n"
        return encode_request("POST", path, self.fixed, head, *contents, more=more)


def read_object(content: bytes | memoryview) -> dict[str, Any]:
    """Parses a JSON object; raises InputError if the content is not one."""
    try:
        found = json.loads(str(content, "utf-8"))
    except (ValueError, RecursionError) as error:
        raise InputError(f"is no JSON: {error}") from error
    if not isinstance(found, dict):
        raise InputError("is no object of JSON")
    return found


def _read_reply(response: Response) -> InferReply:
    given, body = response.headers.get(_HEAD_LENGTH), response.body
    if given is not None and not (given.isdecimal() and int(given) <= len(body)):
        raise InputError(f"header {_HEAD_LENGTH} is {given[:40]}, and the body has {len(body)} bytes")
    head_bytes = len(body) if given is None else int(given)
    message, rest = read_object(body[:head_bytes]), body[head_bytes:]
    items = message.get("outputs")
    if not isinstance(items, list) or not all(isinstance(item, dict) for item in items):
        raise InputError("has no list of outputs")
    outputs = {}
    for item in items:
        name = str(item.get("name"))
        outputs[name], rest = _read_output(item, f'output "{name}"', rest)
    if rest:
        raise InputError(f"has {len(rest)} bytes more than its outputs")
    parameters = message.get("parameters")
    known = parameters if isinstance(parameters, dict) else {}
    return InferReply(outputs, {name: known[name] for name in TIMES if _is_whole(known.get(name))})


def _read_output(item: Mapping[str, Any], what: str, rest: memoryview) -> tuple[NDArray[Any], memoryview]:
    """Reads an output; returns it, and what follows it of the binary tensors."""
    datatype = datatype_named(str(item.get("datatype")), what)
    shape = item.get("shape")
    if not isinstance(shape, list) or not all(map(_is_whole, shape)):
        raise InputError(f"{what}: shape is no list of whole numbers")
    parameters = item.get("parameters")
    size = parameters.get(_BINARY_SIZE) if isinstance(parameters, dict) else None
    if size is None:
        content = _json_elements(item.get("data"), datatype, what)
        return read_array(datatype.dtype, shape, content, what), rest
    if not _is_whole(size) or size > len(rest):
        raise InputError(f"{what}: {_BINARY_SIZE} is {size}, and {len(rest)} bytes are there")
    return read_array(datatype.dtype, shape, rest[:size], what), rest[size:]


def _json_elements(data: Any, datatype: Datatype, what: str) -> memoryview:
    if not isinstance(data, list):
        raise InputError(f"{what}: has neither data nor {_BINARY_SIZE}")
    try:
        with np.errstate(over="ignore"):
            found: NDArray[Any] = np.array(data, datatype.dtype)
    except (TypeError, ValueError, OverflowError) as error:
        raise InputError(f"{what}: data is no list of {datatype.name}") from error
    if datatype is STRINGS and not all(isinstance(each, str) for each in found.flat):
        raise InputError(f"{what}: data has an element that is no string")
    return array_bytes(found)


def _is_whole(value: Any) -> bool:
    return type(value) is int and value >= 0
