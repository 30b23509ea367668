"""A connection to a server of the Open Inference Protocol over HTTP; the counterpart of that over gRPC."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from concurrent.futures import CancelledError
from dataclasses import replace
from typing import Any, TypeVar, cast
from urllib.parse import quote

import grpc
from google.protobuf.json_format import ParseDict, ParseError
from google.protobuf.message import Message

from inferometer.agent.closeable import Closeable
from inferometer.agent.protocol.metadata import AUTHORIZATION_KEY, bearer
from inferometer.agent.tracing.calls import http_client_call
from inferometer.agent.tracing.span import SpanKind
from inferometer.client.remote.channel.address import KServeAddress
from inferometer.client.remote.channel.connection import (
    CONNECT_TIMEOUT_S,
    Metadata,
    RemoteOptions,
    warn_of_clear_secret,
    with_tls,
)
from inferometer.client.remote.kserve.failures import translate_errors, translate_infer_errors
from inferometer.client.remote.kserve.messages import ServedInput
from inferometer.client.remote.kserve.server import KServeServer, ServerIdentity
from inferometer.client.remote.rest.failures import HttpFailure, of_response
from inferometer.client.remote.rest.flights import Flights, HttpCall
from inferometer.client.remote.rest.messages import (
    BINARY_EXTENSION,
    INFER_TEMPLATE,
    HttpRequestForm,
    encode_request,
    model_path,
    read_object,
    with_headers,
)
from inferometer.client.remote.rest.responses import Response
from inferometer.client.remote.rest.sockets import Endpoint, Exchanges
from inferometer.manifests.errors import AgentError, InputError, SessionError
from inferometer.protos.inference.v2 import grpc_service_pb2 as pb
from inferometer.protos.inference.v2 import model_config_pb2

_OK = 200
_MISSING = {404, 405, 501}
_Message = TypeVar("_Message", bound=Message)


class KServeHttpConnection(Closeable, KServeServer):
    """A connection to a server over HTTP. Thread-safe. Nothing is connected before the first request.

    Raises:
        ConfigurationError: The secret cannot be sent, or a file of TLS cannot be used.
    """

    def __init__(self, address: KServeAddress, remote: RemoteOptions) -> None:
        agent = with_tls(address.agent, remote.tls)
        self.address = replace(address, agent=agent)
        self._name = f"server {address.server}"
        self._model_timeout_s = remote.open_timeout_s
        lines = [f"host: {agent.host}:{agent.port}", "accept-encoding: identity"]
        if remote.secret is not None:
            lines.append(f"{AUTHORIZATION_KEY}: {bearer(remote.secret)}")
            if not agent.secure:
                warn_of_clear_secret(agent, "kserve+https")
        self._fixed = "".join(f"{line}\r\n" for line in lines).encode("latin-1")
        self._endpoint = Endpoint(agent, remote.tls)
        self._exchanges = Exchanges(self._endpoint, self._name)
        self._extensions: tuple[str, ...] = ()
        self._flights: Flights | None = None
        self._closed = False
        self._lock = threading.Lock()

    @property
    def call(self) -> SpanKind:
        """The span of a request for inference."""
        at = self.address.agent
        return http_client_call("POST", INFER_TEMPLATE, at.host, at.port)

    def identity(self) -> ServerIdentity:
        """Returns the server's metadata about itself.

        Raises:
            AgentError: The server cannot be reached.
        """
        with translate_errors(self.address):
            response = self._ask("GET", "/v2")
            if response.status in _MISSING:
                return ServerIdentity()
            answer = self._read(response, pb.ServerMetadataResponse())
        self._extensions = tuple(answer.extensions)
        return ServerIdentity(
            " ".join(answer.name.split()), " ".join(answer.version.split()), self._extensions
        )

    def register_memory(self, name: str, key: str, byte_size: int) -> None:
        """Registers the first bytes of a segment of shared memory.

        Raises:
            AgentError: The server rejects the registration.
        """
        body = json.dumps({"key": key, "offset": 0, "byte_size": byte_size}).encode()
        with translate_errors(self.address):
            self._require(self._ask("POST", f"{_region(name)}/register", body))

    def unregister_memory(self, name: str) -> None:
        """Asks the server to release a region of shared memory.

        Raises:
            AgentError: The server cannot be reached.
        """
        with translate_errors(self.address):
            self._require(self._ask("POST", f"{_region(name)}/unregister"))

    def _server_ready(self) -> bool:
        response = self._ask("GET", "/v2/health/ready")
        if response.status in _MISSING:
            raise HttpFailure(grpc.StatusCode.UNIMPLEMENTED, str(of_response(response)), response.status)
        if response.status in {401, 403}:
            raise of_response(response)
        return response.status == _OK

    def _metadata(self, name: str, version: str) -> pb.ModelMetadataResponse:
        response = self._ask("GET", model_path(name, version), timeout_s=self._model_timeout_s)
        return self._read(response, pb.ModelMetadataResponse())

    def _model_ready(self, name: str, version: str) -> bool:
        response = self._ask("GET", f"{model_path(name, version)}/ready")
        if response.status in {401, 403, 503}:
            raise of_response(response)
        return response.status == _OK and _says_ready(response)

    def model_config(self, name: str, version: str) -> model_config_pb2.ModelConfig | None:
        """Returns a model's configuration; None if the server has none, which is optional.

        Raises:
            AgentError: The server was lost.
        """
        with translate_errors(self.address):
            response = self._ask(
                "GET", f"{model_path(name, version)}/config", timeout_s=self._model_timeout_s
            )
        if response.status != _OK:
            return None
        try:
            return ParseDict(
                read_object(response.body), model_config_pb2.ModelConfig(), ignore_unknown_fields=True
            )
        except (InputError, ParseError):  # another server's path may have something else there
            return None

    def form(
        self,
        model_name: str,
        model_version: str,
        inputs: tuple[ServedInput, ...],
        outputs: tuple[str, ...],
    ) -> HttpRequestForm:
        """Returns the form of the requests to a model; ``identity`` says how tensors are sent."""
        is_binary = BINARY_EXTENSION in self._extensions
        return HttpRequestForm(self._fixed, model_name, model_version, inputs, outputs, is_binary)

    def infer(self, request: bytes, timeout_s: float | None, metadata: Metadata = ()) -> bytes:
        """Sends one encoded request, and waits for the encoded response, which has a success status.

        Raises:
            PredictionError, AgentError: See ``translate_infer_errors``.
            SessionError: The connection is closed.
        """
        with translate_infer_errors(self.address):
            answer = self._exchanges.exchange(
                with_headers(request, metadata) if metadata else request, timeout_s
            )
            return _successful(answer)

    def begin_infer(
        self, request: bytes, timeout_s: float | None, metadata: Metadata = ()
    ) -> grpc.Future[bytes]:
        """Sends one encoded request without waiting; ``end_infer`` returns the answer.

        Raises:
            SessionError: The connection is closed.
        """
        flights = self._flights or self._begin_flights()
        call = flights.begin(with_headers(request, metadata) if metadata else request, timeout_s)
        return cast("grpc.Future[bytes]", call)

    def end_infer(self, call: grpc.Future[bytes]) -> bytes:
        """Returns the encoded, successful response to a call, and waits for it if necessary.

        Raises:
            PredictionError, AgentError: See ``translate_infer_errors``.
        """
        with translate_infer_errors(self.address):
            try:
                return _successful(cast("HttpCall", call).result())
            except CancelledError as error:
                raise AgentError(f"{self._name}: the call was cancelled") from error

    def hold(self) -> Callable[[], object]:
        """Starts the thread of the calls of ``begin_infer``; returns a function that ends it.

        Raises:
            SessionError: The connection is closed.
        """
        self._begin_flights()
        return self._end_flights

    def close(self) -> None:
        """Closes the connection; calling it again does nothing."""
        with self._lock:
            self._closed = True
        self._end_flights()
        self._exchanges.close()

    def _begin_flights(self) -> Flights:
        with self._lock:
            if self._closed:
                raise SessionError(f"the connection to {self._name} is closed; open another")
            if self._flights is None:
                self._flights = Flights(self._endpoint)
            return self._flights

    def _end_flights(self) -> None:
        with self._lock:
            flights, self._flights = self._flights, None
        if flights is not None:
            flights.close()

    def _ask(self, verb: str, path: str, body: bytes = b"", timeout_s: float = CONNECT_TIMEOUT_S) -> Response:
        more = "content-type: application/json\r\n" if body else ""
        request = encode_request(verb, path, self._fixed, body, more=more)
        return Response.parse(self._exchanges.exchange(request, timeout_s))

    def _require(self, response: Response) -> Response:
        if response.status != _OK:
            raise of_response(response)
        return response

    def _read(self, response: Response, message: _Message) -> _Message:
        """Reads an object of JSON into the message that gRPC has for it."""
        try:
            found: Any = read_object(self._require(response).body)
            return ParseDict(found, message, ignore_unknown_fields=True)
        except (InputError, ParseError) as error:
            text = f"answered what is no {message.DESCRIPTOR.name}: {error}"
            raise HttpFailure(grpc.StatusCode.UNIMPLEMENTED, text, response.status) from error


def _successful(answer: bytes) -> bytes:
    if not answer.startswith((b"HTTP/1.1 200", b"HTTP/1.0 200")):
        raise of_response(Response.parse(answer))
    return answer


def _says_ready(response: Response) -> bool:
    """Returns whether a body, which is optional, does not say that the model is not ready."""
    try:
        return read_object(response.body).get("ready", True) is not False
    except InputError:
        return True


def _region(name: str) -> str:
    return f"/v2/systemsharedmemory/region/{quote(name, safe='')}"
