"""A connection to a server of the Open Inference Protocol, and what it tells of itself and a model."""

from __future__ import annotations

from dataclasses import dataclass, replace

import grpc

from agent.closeable import Closeable
from agent.server.secret import METADATA_KEY, bearer
from client.remote.connection import CONNECT_TIMEOUT_S
from client.remote.defaults import OPEN_TIMEOUT_S
from client.remote.held_call import HeldCall
from client.remote.kserve.address import KServeAddress
from client.remote.kserve.failures import asked, inferring
from client.remote.tls import ClientTls, is_secure, open_channel
from manifests.errors import AgentError, SessionError
from protos.inference.v2 import grpc_service_pb2 as pb
from protos.inference.v2 import model_config_pb2
from protos.inference.v2.grpc_service_pb2_grpc import GRPCInferenceServiceStub

Metadata = tuple[tuple[str, str], ...]
_OPTIONS = (
    ("grpc.max_send_message_length", -1),
    ("grpc.max_receive_message_length", -1),
    # Less often than agents are pinged: a server that does not know this client may take more for an attack.
    ("grpc.keepalive_time_ms", 300_000),
    ("grpc.keepalive_timeout_ms", 10_000),
    ("grpc.http2.ping_timeout_ms", 10_000),  # which is what grpcio waits for, by default for 60 s
    ("grpc.min_reconnect_backoff_ms", int(CONNECT_TIMEOUT_S * 1000)),
    ("grpc.enable_http_proxy", 0),
    ("grpc.use_local_subchannel_pool", 1),
)


@dataclass(frozen=True, slots=True)
class ServerIdentity:
    """What a server says that it is; empty where it does not say."""

    name: str = ""
    version: str = ""


class KServeConnection(Closeable):
    """A connection to a server. Thread-safe. Nothing is connected before the first call.

    Args:
        address: The server.
        secret: What it asks for as a bearer token, if it does.
        tls: How it is spoken to over TLS; None does it only if the address asks for TLS.
        answer_timeout_s: How long one call about the server may take, in seconds.
        model_timeout_s: How long one call about a model may take, which may load it first, in seconds.

    Raises:
        ConfigurationError: The secret cannot be sent, or a file of TLS cannot be used.
    """

    def __init__(
        self,
        address: KServeAddress,
        secret: str | None = None,
        tls: ClientTls | None = None,
        *,
        answer_timeout_s: float = CONNECT_TIMEOUT_S,
        model_timeout_s: float = OPEN_TIMEOUT_S,
    ) -> None:
        if is_secure(address.agent, tls):
            address = replace(address, agent=replace(address.agent, secure=True), secure=True)
        self.address = address
        self._metadata: Metadata = ((METADATA_KEY, bearer(secret)),) if secret is not None else ()
        self._answer_timeout_s = answer_timeout_s
        self._model_timeout_s = model_timeout_s
        self._channel = open_channel(address.agent, tls, _OPTIONS, secret=secret is not None)
        self._methods = GRPCInferenceServiceStub(self._channel)
        # Without serializers: tensors are written and read by client.remote.kserve.messages.
        service = f"/{pb.DESCRIPTOR.services_by_name['GRPCInferenceService'].full_name}"
        self._infer: grpc.UnaryUnaryMultiCallable[bytes, bytes] = self._channel.unary_unary(
            f"{service}/ModelInfer"
        )

    def require_ready(self) -> None:
        """Waits until the server is connected, and asks whether it takes requests.

        Raises:
            AgentError: It cannot be reached, does not speak the protocol, or is not ready.
        """
        with asked(self.address):
            answer = self._methods.ServerReady(
                pb.ServerReadyRequest(), timeout=self._answer_timeout_s, metadata=self._metadata
            )
        if not answer.ready:
            raise AgentError(
                f"server {self.address.server}: is not ready; wait until it has loaded its models"
            )

    def identity(self) -> ServerIdentity:
        """Asks the server what it is.

        Raises:
            AgentError: It cannot be reached.
        """
        try:
            answer = self._methods.ServerMetadata(
                pb.ServerMetadataRequest(), timeout=self._answer_timeout_s, metadata=self._metadata
            )
        except grpc.RpcError as error:
            if error.code() is grpc.StatusCode.UNIMPLEMENTED:
                return ServerIdentity()
            with asked(self.address):
                raise
        return ServerIdentity(" ".join(answer.name.split()), " ".join(answer.version.split()))

    def model_metadata(self, name: str, version: str) -> pb.ModelMetadataResponse:
        """Asks what a model takes and gives; one that the server loads when it is asked for is loaded.

        Args:
            name: What the server calls the model.
            version: Which version; empty leaves the choice to the server.

        Raises:
            UnknownModelError: It does not have it.
            AgentError: The model is not ready, or the server does not answer.
        """
        what = f'{self.address.server}: model "{name}"' + (f" version {version}" if version else "")
        with asked(self.address, what, late="give it longer with --open_timeout"):
            metadata = self._methods.ModelMetadata(
                pb.ModelMetadataRequest(name=name, version=version),
                timeout=self._model_timeout_s,
                metadata=self._metadata,
            )
        # asked afterwards, because the server may only have loaded the model when it was asked for it
        with asked(self.address, what):
            ready = self._methods.ModelReady(
                pb.ModelReadyRequest(name=name, version=version),
                timeout=self._answer_timeout_s,
                metadata=self._metadata,
            )
        if not ready.ready:
            raise AgentError(f"server {what} is not ready; load it there")
        return metadata

    def model_config(self, name: str, version: str) -> model_config_pb2.ModelConfig | None:
        """Asks for a model's configuration; None where the server has none, as it need not.

        Raises:
            AgentError: The server was lost.
        """
        request = pb.ModelConfigRequest(name=name, version=version)
        try:
            answer = self._methods.ModelConfig(
                request, timeout=self._model_timeout_s, metadata=self._metadata
            )
        except grpc.RpcError as error:
            if error.code() in {grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED}:
                with asked(self.address):
                    raise
            return None
        return answer.config if answer.HasField("config") else None

    def infer(self, request: bytes, timeout_s: float | None, metadata: Metadata = ()) -> bytes:
        """Sends one encoded ``ModelInferRequest`` and waits for the encoded answer.

        Raises:
            PredictionError, AgentError: See ``client.remote.kserve.failures.inferring``.
            SessionError: The connection is closed.
        """
        try:
            with inferring(self.address):
                return self._infer(request, timeout=timeout_s, metadata=(*self._metadata, *metadata))
        except ValueError as error:  # what gRPC raises then
            raise self._closed() from error

    def hold(self) -> HeldCall:
        """Returns what keeps other calls quick until it is closed."""
        return HeldCall(self._channel)

    def begin_infer(self, request: bytes, timeout_s: float | None) -> grpc.Future[bytes]:
        """Sends one encoded ``ModelInferRequest`` and waits for nothing; ``end_infer`` has the answer.

        Raises:
            SessionError: The connection is closed.
        """
        try:
            return self._infer.future(request, timeout=timeout_s, metadata=self._metadata)
        except ValueError as error:  # what gRPC raises then
            raise self._closed() from error

    def end_infer(self, call: grpc.Future[bytes]) -> bytes:
        """Returns the encoded answer to a call, and waits for it where it is still under way.

        Raises:
            PredictionError, AgentError: See ``client.remote.kserve.failures.inferring``.
        """
        try:
            with inferring(self.address):
                return call.result()
        except grpc.FutureCancelledError as error:
            raise AgentError(f"server {self.address.server}: the call was broken off") from error

    def close(self) -> None:
        """Closes the connection; calling it again does nothing."""
        self._channel.close()

    def _closed(self) -> SessionError:
        return SessionError(f"the connection to server {self.address.server} is closed; open another")
