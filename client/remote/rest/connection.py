"""A connection to a server of the Open Inference Protocol over HTTP, and its requests and responses.

It is the counterpart of the connection over gRPC. Requests are written whole before they are sent.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import CancelledError
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, TypeAlias, TypeVar, cast
from urllib.parse import quote

import grpc
import numpy as np
from google.protobuf.json_format import ParseDict, ParseError
from google.protobuf.message import Message
from numpy.typing import NDArray

from inferometer.agent.open_inference.codec import BYTE_SIZE, OFFSET, REGION, STRINGS, Datatype
from inferometer.agent.open_inference.http_codec import (
    BINARY,
    BINARY_CONTENT,
    BINARY_OUTPUT,
    BINARY_SIZE,
    HEADER_LENGTH,
    JSON,
    is_whole,
    json_object,
    text_of,
)
from inferometer.agent.preprocessing.inputs import Tensors
from inferometer.agent.protocol.status import AUTHORIZATION_KEY, bearer
from inferometer.agent.protocol.tensors import array_bytes, read_array
from inferometer.agent.tracing.recorder import SpanKind, http_client_call
from inferometer.client.remote.address import AgentAddress, KServeAddress
from inferometer.client.remote.connection import (
    CONNECT_TIMEOUT_S,
    Metadata,
    RemoteOptions,
    warn_of_clear_secret,
    with_tls,
)
from inferometer.client.remote.kserve.server import (
    PRIORITY,
    TIMES,
    InferForm,
    InferReply,
    KServeServer,
    TensorPlace,
    datatype_of_output,
    translate_errors,
)
from inferometer.client.remote.rest.responses import HttpFailure, Response, of_response
from inferometer.client.remote.rest.sockets import Endpoint, Exchanges, HttpCall
from inferometer.manifests.errors import AgentError, InputError, PredictionError
from inferometer.protos.inference.v2 import grpc_service_pb2 as pb

_Json: TypeAlias = Mapping[str, Any]
BINARY_EXTENSION = "binary_tensor_data"
_JSON_BODY = f"content-type: {JSON}\r\n"
INFER_TEMPLATE = "/v2/models/{model}/infer"


def model_path(name: str, version: str) -> str:
    """Returns the path of a model, or of one of its versions."""
    return f"/v2/models/{quote(name, safe='@')}" + (f"/versions/{quote(version, safe='')}" if version else "")


def fixed_headers(address: AgentAddress, secret: str | None, secure_scheme: str) -> bytes:
    """Returns the header lines of every request to a server; see ``warn_of_clear_secret`` for the scheme."""
    lines = [f"host: {address.host}:{address.port}", "accept-encoding: identity"]
    if secret is not None:
        lines.append(f"{AUTHORIZATION_KEY}: {bearer(secret)}")
        if not address.secure:
            warn_of_clear_secret(address, secure_scheme)
    return "".join(f"{line}\r\n" for line in lines).encode("latin-1")


def encode_request(verb: str, path: str, fixed: bytes, *body: bytes | memoryview, more: str = "") -> bytes:
    """Returns a request; ``fixed`` holds the header lines of every request, ``more`` additional ones."""
    size = sum(map(len, body))
    head = f"{verb} {path} HTTP/1.1\r\ncontent-length: {size}\r\n{more}"
    return b"".join((head.encode("latin-1"), fixed, b"\r\n", *body))


def with_headers(request: bytes, headers: Sequence[tuple[str, str]]) -> bytes:
    """Returns a request with additional headers before its own."""
    if not headers:
        return request
    line, end, rest = request.partition(b"\r\n")
    return b"".join((line, end, *(f"{name}: {value}\r\n".encode("latin-1") for name, value in headers), rest))


@dataclass(frozen=True, slots=True)
class HttpRequestForm(InferForm):
    """The requests over HTTP; see ``InferForm``.

    ``fixed`` are the header lines common to all requests; with ``is_binary``, tensors are not sent as JSON.
    """

    fixed: bytes = b""
    is_binary: bool = True

    def encode(self, batch: Tensors) -> bytes:
        """Returns the request for a batch, with the manifest's names and the dtypes of the inputs."""
        arrays = [batch[each.layer] for each in self.inputs]
        shapes = [array.shape for array in arrays]
        if not self.is_binary:
            return self._request(shapes, [{"data": array.reshape(-1).tolist()} for array in arrays])
        contents = list(map(array_bytes, arrays))
        sizes: list[_Json] = [{"parameters": {BINARY_SIZE: len(content)}} for content in contents]
        return self._request(shapes, sizes, contents)

    def encode_placed(self, places: Mapping[str, TensorPlace], region: str) -> bytes:
        """Returns the request for a batch whose tensors are at these places in a region of shared memory."""
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
        """Reads a response, whose outputs are binary or in JSON; see ``InferForm``."""
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
            wants = {"parameters": {BINARY: True}} if self.is_binary else {}
            message["outputs"] = [{"name": name, **wants} for name in self.outputs]
        elif self.is_binary:
            message["parameters"] = {BINARY_OUTPUT: True}
        if self.priority:
            message["parameters"] = message.get("parameters", {}) | {PRIORITY: self.priority}
        head = text_of(message).encode()
        path = f"{model_path(self.model_name, self.model_version)}/infer"
        if contents is None:
            return encode_request("POST", path, self.fixed, head, more=_JSON_BODY)
        more = f"content-type: {BINARY_CONTENT}\r\n{HEADER_LENGTH}: {len(head)}\r\n"
        return encode_request("POST", path, self.fixed, head, *contents, more=more)


def _read_reply(response: Response) -> InferReply:
    given, body = response.headers.get(HEADER_LENGTH), response.body
    if given is not None and not (given.isdecimal() and int(given) <= len(body)):
        raise InputError(f"header {HEADER_LENGTH} is {given[:40]}, but the body has {len(body)} bytes")
    head_bytes = len(body) if given is None else int(given)
    message, rest = json_object(body[:head_bytes]), body[head_bytes:]
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
    return InferReply(outputs, {name: known[name] for name in TIMES if is_whole(known.get(name))})


def _read_output(item: Mapping[str, Any], what: str, rest: memoryview) -> tuple[NDArray[Any], memoryview]:
    """Reads an output; returns it and the remaining binary tensors."""
    datatype = datatype_of_output(str(item.get("datatype")), what)
    shape = item.get("shape")
    if not isinstance(shape, list) or not all(map(is_whole, shape)):
        raise InputError(f"{what}: shape is not a list of whole numbers")
    parameters = item.get("parameters")
    size = parameters.get(BINARY_SIZE) if isinstance(parameters, dict) else None
    if size is None:
        content = _json_elements(item.get("data"), datatype, what)
        return read_array(datatype.dtype, shape, content, what), rest
    if not is_whole(size) or size > len(rest):
        raise InputError(f"{what}: {BINARY_SIZE} is {size}, but {len(rest)} bytes are left")
    return read_array(datatype.dtype, shape, rest[:size], what), rest[size:]


def _json_elements(data: Any, datatype: Datatype, what: str) -> memoryview:
    if not isinstance(data, list):
        raise InputError(f"{what}: has neither data nor {BINARY_SIZE}")
    try:
        with np.errstate(over="ignore"):
            found: NDArray[Any] = np.array(data, datatype.dtype)
    except (TypeError, ValueError, OverflowError) as error:
        raise InputError(f"{what}: data is not a list of {datatype.name}") from error
    if datatype is STRINGS and not all(isinstance(each, str) for each in found.flat):
        raise InputError(f"{what}: data has an element that is not a string")
    return array_bytes(found)


_OK = 200
_MISSING = {404, 405, 501}
_Message = TypeVar("_Message", bound=Message)


class KServeHttpConnection(KServeServer):
    """A connection to a server over HTTP. Thread-safe. It does not connect before the first request."""

    def __init__(self, address: KServeAddress, remote: RemoteOptions) -> None:
        agent = with_tls(address.agent, remote.tls)
        self.address = replace(address, agent=agent)
        self._name = f"server {address.server}"
        self._model_timeout_s = remote.open_timeout_s
        self._fixed = fixed_headers(agent, remote.secret, "kserve+https")
        self._exchanges = Exchanges(Endpoint(agent, remote.tls), self._name)

    @property
    def call(self) -> SpanKind:
        """The span of a request for inference."""
        at = self.address.agent
        return http_client_call("POST", INFER_TEMPLATE, at.host, at.port)

    def _ask(self, request: Message, timeout_s: float = CONNECT_TIMEOUT_S) -> Message:
        match request:
            case pb.ServerReadyRequest():
                response = self._send("GET", "/v2/health/ready", timeout_s)
                if response.status in _MISSING:
                    text = str(of_response(response))
                    raise HttpFailure(grpc.StatusCode.UNIMPLEMENTED, text, response.status)
                if response.status in {401, 403}:
                    raise of_response(response)
                return pb.ServerReadyResponse(ready=response.status == _OK)
            case pb.ServerMetadataRequest():
                response, answer = self._send("GET", "/v2", timeout_s), pb.ServerMetadataResponse()
                return answer if response.status in _MISSING else _read(response, answer)
            case pb.ModelMetadataRequest(name=name, version=version):
                response = self._send("GET", model_path(name, version), timeout_s)
                return _read(response, pb.ModelMetadataResponse())
            case pb.ModelReadyRequest(name=name, version=version):
                response = self._send("GET", f"{model_path(name, version)}/ready", timeout_s)
                if response.status in {401, 403, 503}:
                    raise of_response(response)
                ready = response.status == _OK
                with suppress(InputError):  # the body is optional
                    ready = ready and json_object(response.body).get("ready", True) is not False
                return pb.ModelReadyResponse(ready=ready)
            case pb.ModelConfigRequest(name=name, version=version):
                return _read_config(self._send("GET", f"{model_path(name, version)}/config", timeout_s))
            case pb.RepositoryModelLoadRequest(model_name=name):
                config = request.parameters["config"].string_param
                body = json.dumps({"parameters": {"config": config}}).encode()
                path = f"/v2/repository/models/{quote(name, safe='')}/load"
                _require(self._send("POST", path, timeout_s, body))
                return pb.RepositoryModelLoadResponse()
            case pb.ModelStatisticsRequest(name=name, version=version):
                response = self._send("GET", f"{model_path(name, version)}/stats", timeout_s)
                return _read(response, pb.ModelStatisticsResponse())
            case pb.SystemSharedMemoryRegisterRequest(name=name, key=key, byte_size=byte_size):
                body = json.dumps({"key": key, "offset": 0, "byte_size": byte_size}).encode()
                _require(self._send("POST", f"{_region(name)}/register", timeout_s, body))
                return pb.SystemSharedMemoryRegisterResponse()
            case pb.SystemSharedMemoryUnregisterRequest(name=name):
                _require(self._send("POST", f"{_region(name)}/unregister", timeout_s))
                return pb.SystemSharedMemoryUnregisterResponse()
        raise NotImplementedError(request.DESCRIPTOR.name)

    def whole_config(self, name: str, version: str) -> dict[str, Any]:
        """Returns a model's configuration as the server tells it; see ``KServeServer``."""
        with translate_errors(self.address, f'{self.address.server}: model "{name}"'):
            path = f"{model_path(name, version)}/config"
            return dict(json_object(_require(self._send("GET", path, self._model_timeout_s)).body))

    @property
    def form(self) -> Callable[..., HttpRequestForm]:
        """Makes the form of the requests to a model; ``identity`` determines how tensors are sent."""
        return partial(HttpRequestForm, fixed=self._fixed, is_binary=BINARY_EXTENSION in self.extensions)

    def _exchange(self, request: bytes, timeout_s: float | None, metadata: Metadata) -> bytes:
        return successful(self._exchanges.exchange(with_headers(request, metadata), timeout_s))

    def begin_infer(
        self, request: bytes, timeout_s: float | None, metadata: Metadata = ()
    ) -> grpc.Future[bytes]:
        """Sends one encoded request without waiting; see ``KServeServer``."""
        call = self._exchanges.begin(with_headers(request, metadata), timeout_s)
        return cast("grpc.Future[bytes]", call)

    def _answer(self, call: grpc.Future[bytes]) -> bytes:
        try:
            return successful(cast("HttpCall", call).result())
        except CancelledError as error:
            raise AgentError(f"{self._name}: the call was cancelled") from error

    def hold(self) -> Callable[[], object]:
        """Starts the thread for the calls of ``begin_infer``; returns a function that ends it."""
        return self._exchanges.hold()

    def close(self) -> None:
        """Closes the connection; calling it again does nothing."""
        self._exchanges.close()

    def _send(self, verb: str, path: str, timeout_s: float, body: bytes = b"") -> Response:
        more = _JSON_BODY if body else ""
        request = encode_request(verb, path, self._fixed, body, more=more)
        return Response.parse(self._exchanges.exchange(request, timeout_s))


def _require(response: Response) -> Response:
    if response.status != _OK:
        raise of_response(response)
    return response


def _read(response: Response, message: _Message) -> _Message:
    """Parses a JSON object into the corresponding gRPC message."""
    try:
        found: Any = json_object(_require(response).body)
        return ParseDict(found, message, ignore_unknown_fields=True)
    except (InputError, ParseError) as error:
        text = f"answered something other than {message.DESCRIPTOR.name}: {error}"
        raise HttpFailure(grpc.StatusCode.UNIMPLEMENTED, text, response.status) from error


def _read_config(response: Response) -> pb.ModelConfigResponse:
    """Returns the configuration in a response; an empty message if there is none."""
    try:
        config = _read(response, pb.ModelConfigResponse().config)
    except HttpFailure:  # another server's path may have something else there
        return pb.ModelConfigResponse()
    return pb.ModelConfigResponse(config=config)


def successful(answer: bytes) -> bytes:
    """Returns a response with status 200; raises HttpFailure for any other."""
    if not answer.startswith((b"HTTP/1.1 200", b"HTTP/1.0 200")):
        raise of_response(Response.parse(answer))
    return answer


def _region(name: str) -> str:
    return f"/v2/systemsharedmemory/region/{quote(name, safe='')}"
