"""The batches of one stream to an agent that were begun and are not answered yet."""

from __future__ import annotations

import queue
from collections import deque
from collections.abc import Generator, Sequence
from concurrent.futures import CancelledError

from agent.results import BatchResult
from agent.server.messages import encode_inputs_request
from client.remote.connection import Connection
from client.remote.reading import LocalBatch
from client.remote.tracing import RemoteTrace
from manifests.errors import AgentError

_MOST_OWED = 4
"""An agent sends the answers of a round when it has all of them: so many times as long is waited for them."""


class Flight:
    """One stream: rounds of batches go out, and their results come back in the same order.

    gRPC takes the requests in a thread of its own, which waits there until their inputs are read. One thread
    uses a flight; ``cancel`` may be called by any.

    Made by ``RemoteAgent.begin_flight``.

    Args:
        connection: To the agent.
        session_id: The open model.
        trace: Where the agent's spans go; None asks for none.
        answer_timeout_s: How long the answer to one batch may take, in seconds; None waits.
    """

    def __init__(
        self,
        connection: Connection,
        session_id: str,
        trace: RemoteTrace | None,
        answer_timeout_s: float | None,
    ) -> None:
        self._answered: list[int] = []
        self._finished = False
        self._connection = connection
        self._session_id = session_id
        self._trace = trace
        self._waiting: deque[tuple[int, LocalBatch]] = deque()
        self._outbox: queue.SimpleQueue[Sequence[LocalBatch] | None] = queue.SimpleQueue()
        self._failure: Exception | None = None
        self._stream = connection.stream(self._requests(), trace, answer_timeout_s)

    def __len__(self) -> int:
        return len(self._waiting)

    def add(self, batches: Sequence[LocalBatch], numbers: Sequence[int]) -> None:
        """Sends the batches of one round; a trace knows them by their numbers."""
        self._waiting.extend(zip(numbers, batches, strict=True))
        self._outbox.put(batches)

    def end(self) -> None:
        """Tells the agent that no more will come."""
        self._outbox.put(None)

    def next(self) -> BatchResult:
        """Waits for the result of the oldest batch.

        Raises:
            AgentError: The agent was lost, or did not answer in time.
        """
        number, batch = self._waiting.popleft()
        if self._trace is not None:
            self._trace.add_reading(batch, number)
        if not batch.readable():
            return batch.merge(None)
        try:
            result = batch.merge(self._stream.next(min(len(self._waiting) + 1, _MOST_OWED)))
            self._answered.append(number)
            return result
        except AgentError as error:
            if self._failure is None:
                raise
            raise self._failure from error

    def finish(self) -> None:
        """Waits for the end of the stream, after the last result.

        Raises:
            AgentError: The agent was lost, or answered more than it was asked.
        """
        self._stream.end()
        self._finished = True

    def cancel(self) -> None:
        """Stops the reading and the stream; does nothing to a stream that has ended."""
        for _, batch in tuple(self._waiting):
            batch.cancel()
        self._stream.cancel()
        self._outbox.put(None)

    def close(self) -> None:
        """Cancels what is still under way, and puts the agent's spans into the trace."""
        begun = bool(self._answered or self._waiting)
        self.cancel()
        trace, self._trace = self._trace, None
        if trace is not None and begun:
            self._connection.measure_clock(trace, anew=self._finished)
            trace.end(self._answered, complete=self._finished)

    def _requests(self) -> Generator[bytes, None, None]:
        while (batches := self._outbox.get()) is not None:
            try:
                # A batch of which nothing could be read is not sent, and so cannot be the last of its round.
                round_ = [readable for batch in batches if (readable := batch.readable())]
                for number, readable in enumerate(round_, start=1):
                    yield encode_inputs_request(self._session_id, readable, more=number < len(round_))
            except CancelledError:
                return
            except Exception as error:  # noqa: BLE001 - raised again where the result is taken
                self._failure = error
                return
