"""The interface of a server of the Open Inference Protocol that a session requires, over gRPC or HTTP."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Protocol

import grpc

from inferometer.agent.preprocessing.inputs import Tensors
from inferometer.agent.tracing.span import SpanKind
from inferometer.client.remote.channel.address import KServeAddress
from inferometer.client.remote.channel.connection import Metadata
from inferometer.client.remote.kserve.failures import translate_errors
from inferometer.client.remote.kserve.messages import InferReply, ServedInput, TensorPlace
from inferometer.manifests.errors import AgentError
from inferometer.protos.inference.v2 import grpc_service_pb2 as pb
from inferometer.protos.inference.v2 import model_config_pb2


class InferForm(Protocol):
    """The constant parts of all requests to a model; see ``kserve.messages.RequestForm``."""

    @property
    def model_name(self) -> str:
        """The model, as the server calls it."""
        ...

    @property
    def outputs(self) -> tuple[str, ...]:
        """The requested outputs; none means all."""
        ...

    def encode(self, batch: Tensors) -> bytes:
        """Returns the request for a batch, by the names of the manifest."""
        ...

    def encode_placed(self, places: Mapping[str, TensorPlace], region: str) -> bytes:
        """Returns the request for a batch whose tensors have those places in a region of shared memory."""
        ...

    def decode(self, answer: bytes) -> InferReply:
        """Reads the answer to a request; raises PredictionError if it is malformed."""
        ...


@dataclass(frozen=True, slots=True)
class ServerIdentity:
    """A server's name and version as it reports them, and its extensions; empty if it reports none."""

    name: str = ""
    version: str = ""
    extensions: tuple[str, ...] = ()


class KServeServer(ABC):
    """A connection to a server, over gRPC or over HTTP. Thread-safe."""

    address: KServeAddress

    def require_ready(self) -> None:
        """Connects to the server, and checks that it is ready.

        Raises:
            AgentError: It cannot be reached, does not speak the protocol, or is not ready.
        """
        with translate_errors(self.address):
            ready = self._server_ready()
        if not ready:
            raise AgentError(
                f"server {self.address.server}: is not ready; wait until it has loaded its models"
            )

    def model_metadata(self, name: str, version: str) -> pb.ModelMetadataResponse:
        """Returns a model's inputs and outputs; a server that loads models on request loads it.

        An empty version leaves the choice to the server.

        Raises:
            UnknownModelError: The server does not have the model.
            AgentError: The model is not ready, or the server does not answer.
        """
        what = f'{self.address.server}: model "{name}"' + (f" version {version}" if version else "")
        with translate_errors(self.address, what, late="give it longer with --open_timeout"):
            metadata = self._metadata(name, version)
        # after the metadata, because that call may have loaded the model
        with translate_errors(self.address, what):
            ready = self._model_ready(name, version)
        if not ready:
            raise AgentError(f"server {what} is not ready; load it there")
        return metadata

    @abstractmethod
    def _server_ready(self) -> bool:
        """Returns whether the server is ready; raises grpc.RpcError."""

    @abstractmethod
    def _metadata(self, name: str, version: str) -> pb.ModelMetadataResponse:
        """Asks for a model's metadata, for as long as loading it may take; raises grpc.RpcError."""

    @abstractmethod
    def _model_ready(self, name: str, version: str) -> bool:
        """Returns whether a model is ready; raises grpc.RpcError."""

    @property
    @abstractmethod
    def call(self) -> SpanKind:
        """The span of a request for inference."""

    @abstractmethod
    def identity(self) -> ServerIdentity:
        """Returns the server's metadata about itself; raises AgentError if it cannot be reached."""

    @abstractmethod
    def register_memory(self, name: str, key: str, byte_size: int) -> None:
        """Registers the first bytes of a segment of shared memory; raises AgentError if it is refused."""

    @abstractmethod
    def unregister_memory(self, name: str) -> None:
        """Asks the server to release a region of shared memory; raises AgentError if it cannot be reached."""

    @abstractmethod
    def model_config(self, name: str, version: str) -> model_config_pb2.ModelConfig | None:
        """Returns a model's configuration; None if the server has none, which is optional.

        Raises:
            AgentError: The server was lost.
        """

    @abstractmethod
    def form(
        self,
        model_name: str,
        model_version: str,
        inputs: tuple[ServedInput, ...],
        outputs: tuple[str, ...],
    ) -> InferForm:
        """Returns the form of the requests to a model."""

    @abstractmethod
    def infer(self, request: bytes, timeout_s: float | None, metadata: Metadata = ()) -> bytes:
        """Sends one encoded request, and waits for the encoded response, which has a success status.

        Raises:
            PredictionError, AgentError: See ``translate_infer_errors``.
            SessionError: The connection is closed.
        """

    @abstractmethod
    def begin_infer(
        self, request: bytes, timeout_s: float | None, metadata: Metadata = ()
    ) -> grpc.Future[bytes]:
        """Sends one encoded request without waiting; ``end_infer`` returns the answer.

        Raises:
            SessionError: The connection is closed.
        """

    @abstractmethod
    def end_infer(self, call: grpc.Future[bytes]) -> bytes:
        """Returns the encoded, successful response to a call, and waits for it if necessary.

        Raises:
            PredictionError, AgentError: See ``translate_infer_errors``.
        """

    @abstractmethod
    def hold(self) -> Callable[[], object]:
        """Opens a new connection for the calls of ``begin_infer``; returns a function that closes it."""

    @abstractmethod
    def close(self) -> None:
        """Closes the connection; calling it again does nothing."""
