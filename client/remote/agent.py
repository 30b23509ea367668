"""The remote agent: a system under test behind a socket."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import grpc
from numpy.typing import NDArray

from agent.closeable import Closeable
from agent.description import SystemDescription
from agent.inputs import Input
from agent.preprocessor import tensor_bytes
from agent.results import BatchResult
from agent.rounds import round_size
from agent.server.conversion import open_request, read_description
from agent.server.messages import encode_batch_request, encode_inputs_request
from agent.session import SessionOptions
from agent.tracing.scope import TraceScope
from client.remote.address import AgentAddress
from client.remote.connection import Connection
from client.remote.defaults import ANSWER_TIMEOUT_S, OPEN_TIMEOUT_S
from client.remote.failures import told
from client.remote.flight import Flight
from client.remote.reading import LocalBatch
from client.remote.tls import ClientTls
from client.remote.tracing import RemoteTrace
from manifests.errors import DeadlineError, SessionError
from protos.inferscope.v1 import predict_pb2


@dataclass(frozen=True, slots=True)
class RemoteOptions:
    """How a remote agent is spoken to.

    Attributes:
        secret: What the agent asks for, if it does.
        tls: How it is spoken to over TLS; None does it only if its address asks for TLS.
        open_timeout_s: How long opening the model may take, in seconds.
        call_timeout_s: How long the answer to one batch may take, in seconds; None waits. An agent that takes
            longer is lost.
        batches_in_flight: Batches that are read and sent before the first of them is answered, where the
            agent overlaps; it bounds the memory of ``predict_batches``.
        read_threads: Threads that read inputs.
    """

    secret: str | None = field(default=None, repr=False)
    tls: ClientTls | None = None
    open_timeout_s: float = OPEN_TIMEOUT_S
    call_timeout_s: float | None = ANSWER_TIMEOUT_S
    batches_in_flight: int = 4
    read_threads: int = 4


def open_remote_agent(
    address: str,
    model_name: str,
    model_version: str | None = None,
    framework_name: str | None = None,
    options: SessionOptions = SessionOptions(),  # noqa: B008 - frozen
    remote: RemoteOptions = RemoteOptions(),
    trace: TraceScope | None = None,
) -> RemoteAgent:
    """Opens a model on the agent at ``address``, a ``host:port``.

    Args:
        address: The agent.
        model_name: The model, as one of the agent's manifests names it.
        model_version: A version or a constraint; None means the highest.
        framework_name: None means the agent's first installed one that has the model.
        options: What the model is opened with.
        remote: How the agent is spoken to.
        trace: What the agent's spans of the loading hang under; None asks for none.

    Raises:
        ConfigurationError: The address is no ``host:port``.
        AgentError: The agent cannot be reached.
        DeadlineError: It did not open the model in time.
        InferscopeError: The agent cannot open the model.
    """
    connection = Connection(AgentAddress.parse(address), remote.secret, remote.tls)
    try:
        request = open_request(model_name, model_version, framework_name, options)
        asked = RemoteTrace(trace, str(connection.address)) if trace else None
        response = _open(connection, request, remote.open_timeout_s, asked.metadata if asked else ())
        try:
            description = read_description(response, str(connection.address))
            if asked:
                asked.add_message(response.trace)
                connection.measure_clock(asked)
                asked.end()
        except BaseException:
            connection.close_session(response.session_id)
            raise
    except BaseException:
        connection.close()
        raise
    return RemoteAgent(connection, response.session_id, description, remote)


def _open(
    connection: Connection,
    request: predict_pb2.OpenRequest,
    timeout_s: float,
    metadata: tuple[tuple[str, str], ...],
) -> predict_pb2.OpenResponse:
    with told(connection.address):
        try:
            return connection.methods.Open(
                request, timeout=timeout_s, metadata=(*connection.metadata, *metadata)
            )
        except grpc.RpcError as error:
            if error.code() is not grpc.StatusCode.DEADLINE_EXCEEDED:
                raise
            raise DeadlineError(
                f"agent {connection.address}: did not open the model within {timeout_s:g} s; "
                "give it longer with --open_timeout"
            ) from error


class RemoteAgent(Closeable):
    """A model that an agent has open. Thread-safe; satisfies ``evaluators.system.SystemUnderTest``.

    Inputs that are still to be read are read here, and their read time is that of the reading here; URLs are
    fetched by the agent. Made by ``open_remote_agent``.
    """

    def __init__(
        self, connection: Connection, session_id: str, description: SystemDescription, remote: RemoteOptions
    ) -> None:
        self._connection = connection
        self._session_id = session_id
        self._description = description
        self._remote = remote
        self._pool = ThreadPoolExecutor(remote.read_threads, thread_name_prefix="read-inputs")
        self._tensor_bytes = tensor_bytes(description.manifest.inputs[0].parameters)
        self._closed = False

    @property
    def description(self) -> SystemDescription:
        """The model and what it runs on."""
        return self._description

    @property
    def connection(self) -> Connection:
        """The connection to the agent."""
        return self._connection

    @property
    def session_id(self) -> str:
        """What the agent knows the open model by."""
        return self._session_id

    def predict(self, inputs: Sequence[Input]) -> BatchResult:
        """Predicts one batch and waits for it. An input that fails is in the result's failures.

        Raises:
            InputError: The batch is empty.
            AgentError: The agent was lost, or did not answer in time.
        """
        self._check_open()
        batch = LocalBatch(inputs, self._pool)
        readable = batch.readable()
        if not readable:
            return batch.merge(None)
        request = encode_inputs_request(self._session_id, readable)
        return batch.merge(self._connection.predict(request, self._remote.call_timeout_s))

    def predict_tensor(self, batch: NDArray[Any]) -> BatchResult:
        """Predicts a batch that is one preprocessed tensor, with the batch as its first axis.

        The inputs' ids are ``"0"``, ``"1"``, ….

        Raises:
            InputError: The batch is empty, or not of the shape or element type that the model takes.
            AgentError: The agent was lost, or did not answer in time.
        """
        self._check_open()
        request = encode_batch_request(self._session_id, batch)
        return self._connection.predict(request, self._remote.call_timeout_s)

    def predict_batches(
        self, batches: Iterable[Sequence[Input]], trace: TraceScope | None = None
    ) -> Iterator[BatchResult]:
        """Predicts batch after batch, in order.

        Where the agent predicts in rounds, a round is read and sent, and its results are waited for before
        the next one: nothing is read or sent while the agent takes the time of its predictions. Where the
        agent overlaps, a bounded number of batches is in flight all the time. Closing the iterator stops the
        work, here and at the agent. The agent's spans come with the answers, and are in the trace at the end.

        Raises:
            InputError: A batch is empty.
            AgentError: The agent was lost.
        """
        flight = self.begin_flight(trace)
        source, numbers = iter(batches), itertools.count()
        try:
            for first in source:
                others = itertools.islice(source, self.round_size(len(first)) - 1)
                round_ = [self.begin_batch(inputs) for inputs in (first, *others)]
                flight.add(round_, list(itertools.islice(numbers, len(round_))))
                while len(flight) >= self.batches_in_flight:
                    yield flight.next()
            flight.end()
            while len(flight):
                yield flight.next()
            flight.finish()
        finally:
            flight.close()

    def begin_flight(self, trace: TraceScope | None = None) -> Flight:
        """Begins a stream of batches, for a caller that decides itself what goes where; it closes the flight.

        Raises:
            SessionError: The model is closed.
        """
        self._check_open()
        asked = RemoteTrace(trace, str(self._connection.address)) if trace else None
        return Flight(self._connection, self._session_id, asked, self._remote.call_timeout_s)

    def begin_batch(self, inputs: Sequence[Input]) -> LocalBatch:
        """Begins to read a batch, for a flight of this agent.

        Raises:
            InputError: It is empty.
            SessionError: The model is closed.
        """
        self._check_open()
        try:
            return LocalBatch(inputs, self._pool)
        except RuntimeError:
            self._check_open()
            raise

    @property
    def batches_in_flight(self) -> int:
        """The batches that are waited for before more are sent; in rounds that is each of them."""
        return self._remote.batches_in_flight if self._description.overlap else 1

    def round_size(self, batch_size: int) -> int:
        """The batches that are sent together, those that the agent prepares together."""
        if self._description.overlap or not self._description.preprocess_threads:
            return 1
        return round_size(self._tensor_bytes, batch_size)

    def close(self) -> None:
        """Closes the model at the agent and the connection; calling it again does nothing."""
        if self._closed:
            return
        self._closed = True
        self._pool.shutdown(wait=False, cancel_futures=True)
        self._connection.close_session(self._session_id)
        self._connection.close()

    def _check_open(self) -> None:
        if self._closed:
            raise SessionError(f"the session at agent {self._connection.address} is closed; open another")
