"""A connection to a server of the Open Inference Protocol, and its metadata calls."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TypeVar

import grpc

from inferometer.agent.tracing.calls import client_call
from inferometer.agent.tracing.span import SpanKind
from inferometer.client.remote.channel.address import KServeAddress
from inferometer.client.remote.channel.connection import (
    CONNECT_TIMEOUT_S,
    Metadata,
    RemoteOptions,
    ServerConnection,
    with_tls,
)
from inferometer.client.remote.kserve.failures import infer_error, translate_errors, translate_infer_errors
from inferometer.client.remote.kserve.messages import RequestForm, ServedInput
from inferometer.client.remote.kserve.server import KServeServer, ServerIdentity
from inferometer.protos.inference.v2 import grpc_service_pb2 as pb
from inferometer.protos.inference.v2 import model_config_pb2
from inferometer.protos.inference.v2.grpc_service_pb2_grpc import GRPCInferenceServiceStub

INFER_PATH = f"{pb.DESCRIPTOR.services_by_name['GRPCInferenceService'].full_name}/ModelInfer"
"""The method that runs a model."""
_Answer = TypeVar("_Answer")
# Less often than agents are pinged: a server that does not know this client may take more for an attack.
_OPTIONS = (("grpc.keepalive_time_ms", 300_000),)


class KServeConnection(ServerConnection, KServeServer):
    """A connection to a server over gRPC. Thread-safe. Nothing is connected before the first call.

    Raises:
        ConfigurationError: The secret cannot be sent, or a file of TLS cannot be used.
    """

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

    def identity(self) -> ServerIdentity:
        """Returns the server's metadata about itself.

        Raises:
            AgentError: The server cannot be reached.
        """
        try:
            answer = self._call(self._methods.ServerMetadata, pb.ServerMetadataRequest())
        except grpc.RpcError as error:
            if error.code() is grpc.StatusCode.UNIMPLEMENTED:
                return ServerIdentity()
            with translate_errors(self.address):
                raise
        name, version = " ".join(answer.name.split()), " ".join(answer.version.split())
        return ServerIdentity(name, version, tuple(answer.extensions))

    def register_memory(self, name: str, key: str, byte_size: int) -> None:
        """Registers the first bytes of a segment of shared memory.

        Raises:
            AgentError: The server rejects the registration.
        """
        request = pb.SystemSharedMemoryRegisterRequest(name=name, key=key, byte_size=byte_size)
        with translate_errors(self.address):
            self._call(self._methods.SystemSharedMemoryRegister, request)

    def unregister_memory(self, name: str) -> None:
        """Asks the server to release a region of shared memory.

        Raises:
            AgentError: The server cannot be reached.
        """
        with translate_errors(self.address):
            self._call(
                self._methods.SystemSharedMemoryUnregister, pb.SystemSharedMemoryUnregisterRequest(name=name)
            )

    def _server_ready(self) -> bool:
        return self._call(self._methods.ServerReady, pb.ServerReadyRequest()).ready

    def _metadata(self, name: str, version: str) -> pb.ModelMetadataResponse:
        request = pb.ModelMetadataRequest(name=name, version=version)
        return self._call(self._methods.ModelMetadata, request, self._model_timeout_s)

    def _model_ready(self, name: str, version: str) -> bool:
        return self._call(self._methods.ModelReady, pb.ModelReadyRequest(name=name, version=version)).ready

    def model_config(self, name: str, version: str) -> model_config_pb2.ModelConfig | None:
        """Returns a model's configuration; None if the server has none, which is optional.

        Raises:
            AgentError: The server was lost.
        """
        request = pb.ModelConfigRequest(name=name, version=version)
        try:
            answer = self._call(self._methods.ModelConfig, request, self._model_timeout_s)
        except grpc.RpcError as error:
            if error.code() in {grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED}:
                with translate_errors(self.address):
                    raise
            return None
        return answer.config if answer.HasField("config") else None

    def _call(
        self, method: Callable[..., _Answer], request: object, timeout_s: float = CONNECT_TIMEOUT_S
    ) -> _Answer:
        return method(request, timeout=timeout_s, metadata=self.metadata)

    @property
    def call(self) -> SpanKind:
        """The span of a ``ModelInfer``."""
        at = self.address.agent
        return client_call(INFER_PATH, at.host, at.port)

    def form(
        self,
        model_name: str,
        model_version: str,
        inputs: tuple[ServedInput, ...],
        outputs: tuple[str, ...],
    ) -> RequestForm:
        """Returns the form of the requests to a model."""
        return RequestForm(model_name, model_version, inputs, outputs)

    def infer(self, request: bytes, timeout_s: float | None, metadata: Metadata = ()) -> bytes:
        """Sends one encoded ``ModelInferRequest`` and waits for the encoded answer.

        Raises:
            PredictionError, AgentError: See ``translate_infer_errors``.
            SessionError: The connection is closed.
        """
        with translate_infer_errors(self.address):
            return self.begin(
                lambda: self._infer(request, timeout=timeout_s, metadata=(*self.metadata, *metadata))
            )

    def begin_infer(
        self, request: bytes, timeout_s: float | None, metadata: Metadata = ()
    ) -> grpc.Future[bytes]:
        """Sends one encoded ``ModelInferRequest`` without waiting; ``end_infer`` returns the answer.

        It uses the connection that ``hold`` opened last.

        Raises:
            SessionError: The connection is closed.
        """
        given = (*self.metadata, *metadata) if metadata else self.metadata
        return self.begin(self._loaded.future, request, timeout=timeout_s, metadata=given)

    def end_infer(self, call: grpc.Future[bytes]) -> bytes:
        """Returns the encoded answer to a call, and waits for it if necessary.

        Raises:
            PredictionError, AgentError: See ``translate_infer_errors``.
        """
        try:
            return self.reply(call)
        except grpc.RpcError as error:
            raise infer_error(error, self.address) from error
