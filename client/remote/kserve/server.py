"""A server of the Open Inference Protocol: the interface for a session, and the connection over gRPC.

Also contains the errors of calls to a server over gRPC or HTTP.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import grpc
from google.protobuf.message import Message

from inferometer.agent.tracing.calls import client_call
from inferometer.agent.tracing.recorder import SpanKind
from inferometer.client.remote.address import KServeAddress
from inferometer.client.remote.connection import (
    CONNECT_TIMEOUT_S,
    Hints,
    Metadata,
    RemoteOptions,
    ServerConnection,
    explain,
    with_tls,
)
from inferometer.client.remote.kserve.messages import InferForm, RequestForm, ServedInput, statistics_of
from inferometer.manifests.errors import AgentError, PredictionError, UnknownModelError
from inferometer.protos.inference.v2 import grpc_service_pb2 as pb
from inferometer.protos.inference.v2 import model_config_pb2
from inferometer.protos.inference.v2.grpc_service_pb2_grpc import GRPCInferenceServiceStub

_HINTS = Hints(
    refused="is it the port of gRPC, and not that of HTTP?",
    no_grpc="does not speak gRPC there; give the port of gRPC, and not that of HTTP",
    unauthenticated="refuses the call: {}; a secret is given with --secret",
    unimplemented="does not speak the Open Inference Protocol over gRPC ({})",
    crashed="the server",
    secure_scheme="kserves:",
)
_HTTP_HINTS = replace(
    _HINTS,
    refused="is it the port of HTTP, and not that of gRPC?",
    no_grpc="does not speak HTTP/1.1 there; give the port of HTTP, and not that of gRPC",
    unimplemented="does not speak the Open Inference Protocol over HTTP ({})",
    secure_scheme="kserve+https:",
)
_LOST = {
    grpc.StatusCode.CANCELLED,
    grpc.StatusCode.DEADLINE_EXCEEDED,
    grpc.StatusCode.NOT_FOUND,
    grpc.StatusCode.PERMISSION_DENIED,
    grpc.StatusCode.UNAUTHENTICATED,
    grpc.StatusCode.UNAVAILABLE,
    grpc.StatusCode.UNIMPLEMENTED,
}
"""The statuses that concern the server; the others concern a single request."""


@contextmanager
def translate_errors(server: KServeAddress, what: str = "", *, late: str = "") -> Iterator[None]:
    """Translates errors of a call that concerns the server, or ``what``, into the program's errors.

    ``late`` says what to do if the server does not answer in time.

    Raises:
        UnknownModelError: The server does not have the model.
        AgentError: The server cannot be reached, does not respond, or responds with another status.
    """
    try:
        yield
    except grpc.RpcError as error:
        text = f"server {what or server.server}: {_explain(error, server)}"
        if late and error.code() is grpc.StatusCode.DEADLINE_EXCEEDED:
            text = f"{text}; {late}"
        kind = UnknownModelError if error.code() is grpc.StatusCode.NOT_FOUND else AgentError
        raise kind(text) from error


def infer_error(error: grpc.RpcError, server: KServeAddress) -> AgentError | PredictionError:
    """Returns the program's error for an error of one ``ModelInfer``; see ``KServeServer.infer``."""
    kind = AgentError if error.code() in _LOST else PredictionError
    return kind(f"server {server.server}: {_explain(error, server)}")


def _explain(error: grpc.RpcError, server: KServeAddress) -> str:
    code, details = error.code(), error.details() or ""
    if code is grpc.StatusCode.PERMISSION_DENIED:
        code = grpc.StatusCode.UNAUTHENTICATED
    return explain(code, details, server.agent, _HTTP_HINTS if server.http else _HINTS)


@dataclass(frozen=True, slots=True)
class ServerIdentity:
    """A server's name and version as it reports them, and its extensions; empty if it reports none."""

    name: str = ""
    version: str = ""
    extensions: tuple[str, ...] = ()


class KServeServer(ABC):
    """A connection to a server over gRPC or HTTP. Thread-safe.

    What asks the server raises AgentError if it cannot be reached, or refuses the call.
    """

    address: KServeAddress
    _model_timeout_s: float
    """How long loading a model may take."""
    extensions: tuple[str, ...] = ()
    """The extensions that ``identity`` has returned."""

    def require_ready(self) -> None:
        """Connects to the server, and checks that it is ready.

        Raises:
            AgentError: The server cannot be reached, does not speak the protocol, or is not ready.
        """
        with translate_errors(self.address):
            answer = self._ask(pb.ServerReadyRequest())
        if not answer.ready:
            raise AgentError(
                f"server {self.address.server}: is not ready; wait until it has loaded its models"
            )

    def model_metadata(self, name: str, version: str) -> pb.ModelMetadataResponse:
        """Returns a model's inputs and outputs; a server that loads models on request loads this one.

        An empty version leaves the choice to the server.

        Raises:
            UnknownModelError: The server does not have the model.
            AgentError: The model is not ready, or the server does not answer.
        """
        what = f'{self.address.server}: model "{name}"' + (f" version {version}" if version else "")
        with translate_errors(self.address, what, late="give it longer with --open_timeout"):
            request = pb.ModelMetadataRequest(name=name, version=version)
            metadata: pb.ModelMetadataResponse = self._ask(request, self._model_timeout_s)
        # after the metadata, because that call may have loaded the model
        with translate_errors(self.address, what):
            answer = self._ask(pb.ModelReadyRequest(name=name, version=version))
        if not answer.ready:
            raise AgentError(f"server {what} is not ready; load it there")
        return metadata

    def identity(self) -> ServerIdentity:
        """Returns the server's metadata about itself."""
        with translate_errors(self.address):
            answer = self._ask(pb.ServerMetadataRequest())
        self.extensions = tuple(answer.extensions)
        return ServerIdentity(
            " ".join(answer.name.split()), " ".join(answer.version.split()), self.extensions
        )

    def model_config(self, name: str, version: str) -> model_config_pb2.ModelConfig | None:
        """Returns a model's configuration, which is optional; None if the server has none."""
        with translate_errors(self.address):
            request = pb.ModelConfigRequest(name=name, version=version)
            answer = self._ask(request, self._model_timeout_s)
        return answer.config if answer.HasField("config") else None

    def statistics(self, name: str, version: str, timeout_s: float) -> Mapping[str, float]:
        """Returns the statistics of a model since it was loaded; see ``statistics_of``.

        Raises:
            AgentError: The server reports none, or does not answer in time.
        """
        with translate_errors(self.address):
            try:
                answer = self._ask(pb.ModelStatisticsRequest(name=name, version=version), timeout_s)
            except grpc.RpcError as error:
                if error.code() not in {grpc.StatusCode.UNIMPLEMENTED, grpc.StatusCode.NOT_FOUND}:
                    raise
                answer = pb.ModelStatisticsResponse()
        return statistics_of(answer, f"server {self.address.server}", name)

    def register_memory(self, name: str, key: str, byte_size: int) -> None:
        """Registers the first bytes of a segment of shared memory."""
        with translate_errors(self.address):
            self._ask(pb.SystemSharedMemoryRegisterRequest(name=name, key=key, byte_size=byte_size))

    def unregister_memory(self, name: str) -> None:
        """Asks the server to release a region of shared memory."""
        with translate_errors(self.address):
            self._ask(pb.SystemSharedMemoryUnregisterRequest(name=name))

    def infer(self, request: bytes, timeout_s: float | None, metadata: Metadata = ()) -> bytes:
        """Sends one encoded request, and returns the encoded response if it reports success.

        Raises:
            PredictionError: The server refused this request, or failed on it; others may succeed.
            AgentError: The server or its model is gone, or did not answer in time.
            SessionError: The connection is closed.
        """
        try:
            return self._exchange(request, timeout_s, metadata)
        except grpc.RpcError as error:
            raise infer_error(error, self.address) from error

    def end_infer(self, call: grpc.Future[bytes]) -> bytes:
        """Returns the encoded, successful response to a call, and waits for it if necessary.

        Raises:
            PredictionError, AgentError: See ``infer``.
        """
        try:
            return self._answer(call)
        except grpc.RpcError as error:
            raise infer_error(error, self.address) from error

    @abstractmethod
    def _ask(self, request: Message, timeout_s: float = CONNECT_TIMEOUT_S) -> Any:
        """Returns the response to a request that is not for inference; raises grpc.RpcError.

        It is empty if the server has no metadata about itself, or no configuration of the model.
        """

    @abstractmethod
    def _exchange(self, request: bytes, timeout_s: float | None, metadata: Metadata) -> bytes: ...

    @abstractmethod
    def _answer(self, call: grpc.Future[bytes]) -> bytes: ...

    @property
    @abstractmethod
    def call(self) -> SpanKind:
        """The span of a request for inference."""

    @property
    @abstractmethod
    def form(self) -> Callable[[str, str, tuple[ServedInput, ...], tuple[str, ...]], InferForm]:
        """Makes the form of the requests to a model from its name, version, inputs and outputs."""

    @abstractmethod
    def begin_infer(
        self, request: bytes, timeout_s: float | None, metadata: Metadata = ()
    ) -> grpc.Future[bytes]:
        """Sends one encoded request without waiting; ``end_infer`` returns the answer.

        Raises:
            SessionError: The connection is closed.
        """

    @abstractmethod
    def hold(self) -> Callable[[], object]:
        """Opens a new connection for the calls of ``begin_infer``; returns a function that closes it."""

    @abstractmethod
    def close(self) -> None:
        """Closes the connection; calling it again does nothing."""


INFER_PATH = f"{pb.DESCRIPTOR.services_by_name['GRPCInferenceService'].full_name}/ModelInfer"
"""The method that runs a model."""
_UNANSWERED = {grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED}
# Less often than agents are pinged: a server that does not know this client may take more for an attack.
_OPTIONS = (("grpc.keepalive_time_ms", 300_000),)


class KServeConnection(ServerConnection, KServeServer):
    """A connection to a server over gRPC. Thread-safe. It does not connect before the first call."""

    def __init__(self, address: KServeAddress, remote: RemoteOptions) -> None:
        agent = with_tls(address.agent, remote.tls)
        self.address = replace(address, agent=agent)
        super().__init__(agent, f"server {address.server}", _OPTIONS, remote.secret, remote.tls)
        self._model_timeout_s = remote.open_timeout_s
        self._methods = GRPCInferenceServiceStub(self._channel)
        # Without serializers: tensors are written and read by inferometer.client.remote.kserve.messages.
        self._infer = self._unary(self._channel)

    def _unary(self, channel: grpc.Channel) -> grpc.UnaryUnaryMultiCallable[bytes, bytes]:
        return channel.unary_unary(f"/{INFER_PATH}")

    def _ask(self, request: Message, timeout_s: float = CONNECT_TIMEOUT_S) -> Any:
        method = getattr(self._methods, request.DESCRIPTOR.name.removesuffix("Request"))
        try:
            return method(request, timeout=timeout_s, metadata=self.metadata)
        except grpc.RpcError as error:
            match request:
                case pb.ServerMetadataRequest() if error.code() is grpc.StatusCode.UNIMPLEMENTED:
                    return pb.ServerMetadataResponse()
                case pb.ModelConfigRequest() if error.code() not in _UNANSWERED:
                    return pb.ModelConfigResponse()
            raise

    @property
    def call(self) -> SpanKind:
        """The span of a ``ModelInfer``."""
        at = self.address.agent
        return client_call(INFER_PATH, at.host, at.port)

    @property
    def form(self) -> type[RequestForm]:
        """Makes the form of the requests to a model."""
        return RequestForm

    def _exchange(self, request: bytes, timeout_s: float | None, metadata: Metadata) -> bytes:
        given = (*self.metadata, *metadata)
        return self.begin(lambda: self._infer(request, timeout=timeout_s, metadata=given))

    def begin_infer(
        self, request: bytes, timeout_s: float | None, metadata: Metadata = ()
    ) -> grpc.Future[bytes]:
        """Sends one encoded ``ModelInferRequest`` over the connection that ``hold`` opened last."""
        given = (*self.metadata, *metadata) if metadata else self.metadata
        return self.begin(self._loaded.future, request, timeout=timeout_s, metadata=given)

    def _answer(self, call: grpc.Future[bytes]) -> bytes:
        return self.reply(call)
