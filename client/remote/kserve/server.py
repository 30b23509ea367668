"""What a session needs of a server of the Open Inference Protocol, over gRPC or over HTTP."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

import grpc
from numpy.typing import NDArray

from inferometer.agent.protocol.v2_datatypes import Datatype
from inferometer.agent.tracing.span import SpanKind
from inferometer.client.remote.channel.address import KServeAddress
from inferometer.client.remote.channel.connection import Metadata
from inferometer.client.remote.kserve.connection import ServerIdentity
from inferometer.client.remote.kserve.messages import InferReply
from inferometer.protos.inference.v2 import grpc_service_pb2 as pb
from inferometer.protos.inference.v2 import model_config_pb2


class InferForm(Protocol):
    """What is the same in all requests to a model; see ``kserve.messages.RequestForm``."""

    @property
    def model_name(self) -> str:
        """The model, as the server calls it."""
        ...

    @property
    def outputs(self) -> tuple[str, ...]:
        """The requested outputs; none means all."""
        ...

    def encode(self, batch: NDArray[Any]) -> bytes:
        """Returns the request for a batch."""
        ...

    def encode_placed(self, shape: Sequence[int], region: str, offset: int = 0) -> bytes:
        """Returns the request for a batch of that shape in a region of shared memory."""
        ...

    def decode(self, answer: bytes) -> InferReply:
        """Reads the answer to a request; raises PredictionError if it is malformed."""
        ...


class KServeServer(Protocol):
    """A connection to a server; see ``kserve.connection.KServeConnection``."""

    address: KServeAddress

    @property
    def call(self) -> SpanKind:
        """The span of a request for inference."""
        ...

    def require_ready(self) -> None:
        """Connects to the server, and checks that it is ready."""
        ...

    def identity(self) -> ServerIdentity:
        """Returns what the server calls itself."""
        ...

    def register_memory(self, name: str, key: str, byte_size: int) -> None:
        """Registers the first bytes of a segment of shared memory."""
        ...

    def unregister_memory(self, name: str) -> None:
        """Has the server release a region of shared memory."""
        ...

    def model_metadata(self, name: str, version: str) -> pb.ModelMetadataResponse:
        """Returns a model's inputs and outputs."""
        ...

    def model_config(self, name: str, version: str) -> model_config_pb2.ModelConfig | None:
        """Returns a model's configuration; None if the server has none."""
        ...

    def form(
        self,
        model_name: str,
        model_version: str,
        input_name: str,
        datatype: Datatype,
        outputs: tuple[str, ...],
    ) -> InferForm:
        """Returns the form of the requests to a model."""
        ...

    def infer(self, request: bytes, timeout_s: float | None, metadata: Metadata = ()) -> bytes:
        """Sends one encoded request and waits for the encoded answer."""
        ...

    def begin_infer(
        self, request: bytes, timeout_s: float | None, metadata: Metadata = ()
    ) -> grpc.Future[bytes]:
        """Sends one encoded request without waiting; ``end_infer`` returns the answer."""
        ...

    def end_infer(self, call: grpc.Future[bytes]) -> bytes:
        """Returns the encoded answer to a call."""
        ...

    def hold(self) -> Callable[[], object]:
        """Makes the calls of ``begin_infer`` cheaper; returns what ends that."""
        ...

    def close(self) -> None:
        """Closes the connection."""
        ...
