"""A connection to an agent, and its methods."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace

import grpc
from google.protobuf.message import DecodeError

from agent.closeable import Closeable
from agent.results import BatchResult
from agent.server.messages import decode_answer
from agent.server.secret import METADATA_KEY, bearer
from agent.server.span_messages import TracePart
from client.remote.address import AgentAddress
from client.remote.answer_watch import AnswerWatch
from client.remote.defaults import ANSWER_TIMEOUT_S
from client.remote.failures import told
from client.remote.held_call import HeldCall
from client.remote.retrying import retried
from client.remote.tls import ClientTls, is_secure, open_channel
from client.remote.tracing import ClockOffset, RemoteTrace
from manifests.errors import AgentError, SessionError
from protos.inferscope.v1 import predict_pb2
from protos.inferscope.v1.predict_pb2_grpc import PredictStub
from protos.inferscope.v1.registry_pb2_grpc import RegistryStub

CONNECT_TIMEOUT_S = 10.0
_PREDICT_TRIES = 2
_CLOSE_TIMEOUT_S = 5.0
_CLOCK_TIMEOUT_S = 5.0
_OPTIONS = (
    # The agent limits what it accepts; what it answers is as large as the model's output.
    ("grpc.max_send_message_length", -1),
    ("grpc.max_receive_message_length", -1),
    # An agent whose machine has vanished says nothing: pings find that out within 40 s.
    ("grpc.keepalive_time_ms", 30_000),
    ("grpc.keepalive_timeout_ms", 10_000),
    ("grpc.http2.ping_timeout_ms", 10_000),  # which is what grpcio waits for, by default for 60 s
    # The shortest time that gRPC gives a connection attempt.
    ("grpc.min_reconnect_backoff_ms", int(CONNECT_TIMEOUT_S * 1000)),
    # Between attempts that fail, calls fail at once, and the pauses grow up to this.
    ("grpc.max_reconnect_backoff_ms", 30_000),
    # Agents are reached directly, whatever proxy the environment names for the web.
    ("grpc.enable_http_proxy", 0),
    # A connection of its own, which does not wait because another one has just failed.
    ("grpc.use_local_subchannel_pool", 1),
)


class Connection(Closeable):
    """A connection to an agent. Thread-safe. Nothing is connected before the first call.

    Args:
        address: The agent.
        secret: What it asks for, if it does.
        tls: How it is spoken to over TLS; None does it only if the address asks for TLS.

    Raises:
        ConfigurationError: The secret cannot be sent, or a file of TLS cannot be used.
    """

    def __init__(
        self, address: AgentAddress, secret: str | None = None, tls: ClientTls | None = None
    ) -> None:
        self.address = replace(address, secure=True) if is_secure(address, tls) else address
        self._metadata = ((METADATA_KEY, bearer(secret)),) if secret is not None else ()
        self._offset: ClockOffset | None = None
        self._channel = open_channel(self.address, tls, _OPTIONS, secret=secret is not None)
        self.methods = PredictStub(self._channel)
        self.registry = RegistryStub(self._channel)
        # Without serializers: tensors are written and read by agent.server.messages.
        service = f"/{predict_pb2.DESCRIPTOR.services_by_name['Predict'].full_name}"
        self._predict: grpc.UnaryUnaryMultiCallable[bytes, bytes] = self._channel.unary_unary(
            f"{service}/Predict"
        )
        self._predict_stream: grpc.StreamStreamMultiCallable[bytes, bytes] = self._channel.stream_stream(
            f"{service}/PredictStream"
        )

    @property
    def metadata(self) -> tuple[tuple[str, str], ...]:
        """What goes with every call."""
        return self._metadata

    def hold(self) -> HeldCall:
        """Returns what keeps other calls quick until it is closed."""
        return HeldCall(self._channel)

    def predict(self, request: bytes, timeout_s: float | None) -> BatchResult:
        """Sends one encoded ``PredictRequest`` and waits for the result.

        It is sent once more where the connection was lost: what predicts changes nothing.

        Raises:
            InferscopeError: See ``client.remote.failures.told``.
        """
        with told(self.address):
            answer = retried(
                lambda left_s: self._predict(request, timeout=left_s, metadata=self._metadata),
                timeout_s,
                tries=_PREDICT_TRIES,
            )
        return self.read(answer)

    def begin_predict(self, request: bytes) -> grpc.Future[bytes]:
        """Sends one encoded ``PredictRequest`` and waits for nothing; ``end_predict`` reads the answer.

        Raises:
            SessionError: The connection is closed.
        """
        try:
            return self._predict.future(request, metadata=self._metadata)
        except ValueError as error:  # what gRPC raises then
            raise SessionError(f"the connection to agent {self.address} is closed; open another") from error

    def end_predict(self, call: grpc.Future[bytes]) -> BatchResult:
        """Returns the result of a call, and waits for it where it is still under way.

        Raises:
            InferscopeError: See ``client.remote.failures.told``.
        """
        try:
            with told(self.address):
                answer = call.result()
        except grpc.FutureCancelledError as error:
            raise AgentError(f"agent {self.address}: the call was broken off") from error
        return self.read(answer)

    def stream(
        self,
        requests: Iterator[bytes],
        trace: RemoteTrace | None = None,
        answer_timeout_s: float | None = ANSWER_TIMEOUT_S,
    ) -> Stream:
        """Begins to send encoded ``PredictRequest`` messages; spans among the answers go to ``trace``.

        Raises:
            SessionError: The connection is closed.
        """
        metadata = (*self._metadata, *trace.metadata) if trace else self._metadata
        try:
            call = self._predict_stream(requests, metadata=metadata)
        except ValueError as error:  # what gRPC raises then
            raise SessionError(f"the connection to agent {self.address} is closed; open another") from error
        return Stream(self, call, trace, answer_timeout_s)

    def measure_clock(self, trace: RemoteTrace, *, anew: bool = True) -> None:
        """Finds out how far the agent's clock is from this one's, in some round trips.

        To be called when nothing is timed any more, as these would be in the time.

        Args:
            trace: Whose spans are set right.
            anew: Whether to measure again where it is known; not worth the wait for an agent that was lost.
        """
        if self._offset is not None and not anew:
            trace.set_clock(self._offset)
            return
        self._offset = trace.measure_clock(
            lambda: (
                self.methods.Clock(
                    predict_pb2.ClockRequest(), timeout=_CLOCK_TIMEOUT_S, metadata=self._metadata
                ).unix_ns
            ),
            self._offset,
        )

    def read(self, answer: bytes) -> BatchResult:
        """Reads an encoded ``PredictResponse`` that holds a result.

        Raises:
            AgentError: It is none.
        """
        read = self.read_any(answer)
        if isinstance(read, TracePart):
            raise AgentError(f"agent {self.address}: answered with spans where a result was owed")
        return read

    def read_any(self, answer: bytes) -> BatchResult | TracePart:
        """Reads an encoded ``PredictResponse``.

        Raises:
            AgentError: It is none.
        """
        try:
            return decode_answer(answer)
        except DecodeError as error:
            raise AgentError(f"agent {self.address}: an answer cannot be understood: {error}") from error

    def close_session(self, session_id: str) -> None:
        """Closes a session, if the agent is still there."""
        with suppress(grpc.RpcError):  # what is not there any more is closed
            self.methods.Close(
                predict_pb2.CloseRequest(session_id=session_id),
                timeout=_CLOSE_TIMEOUT_S,
                metadata=self._metadata,
            )

    def close(self) -> None:
        """Closes the connection; calling it again does nothing."""
        self._channel.close()


class Stream:
    """The results of a stream of requests.

    Made by ``Connection.stream``.
    """

    def __init__(
        self,
        connection: Connection,
        call: grpc._CallIterator[bytes],
        trace: RemoteTrace | None,
        answer_timeout_s: float | None,
    ) -> None:
        self._connection = connection
        self._call = call
        self._trace = trace
        self._watch = AnswerWatch(answer_timeout_s, call.cancel)

    def next(self, owed: int = 1) -> BatchResult:
        """Waits for the next result.

        Args:
            owed: How many results the agent may prepare before it sends this one.

        Raises:
            AgentError: There is none, though one was owed; or see ``client.remote.failures.told``.
        """
        if (result := self._next_result(owed)) is None:
            address = self._connection.address
            raise AgentError(f"agent {address}: ended the stream before it had answered everything")
        return result

    def end(self) -> None:
        """Waits for the end of a stream that owes no more results.

        Raises:
            AgentError: It gave another one; or see ``client.remote.failures.told``.
        """
        if self._next_result() is not None:
            raise AgentError(f"agent {self._connection.address}: answered more than it was asked")

    def _next_result(self, owed: int = 1) -> BatchResult | None:
        """The next result; spans that come before it go to the trace."""
        while True:
            answer = self._next_answer(owed)
            if answer is None:
                return None
            read = self._connection.read_any(answer)
            if isinstance(read, BatchResult):
                return read
            if self._trace is not None:
                self._trace.add(read)

    def _next_answer(self, owed: int) -> bytes | None:
        with told(self._connection.address):
            try:
                with self._watch.owing(owed):
                    return next(self._call, None)
            except grpc.RpcError as error:
                if not self._watch.expired:
                    raise
                raise AgentError(
                    f"agent {self._connection.address}: did not answer within {self._watch.limit_s:g} s; "
                    "it hangs, or a batch takes longer: see --agent_timeout"
                ) from error

    def cancel(self) -> None:
        """Ends the call; does nothing where it has ended."""
        self._watch.close()
        self._call.cancel()
