"""The remote target: a model that an agent has open under load, with many calls in flight."""

from __future__ import annotations

import time
from collections.abc import Callable

import grpc

from agent.server.messages import encode_batch_request, encode_inputs_request
from client.remote.agent import RemoteAgent
from client.remote.call_target import CallFlight, CallTarget, Outcome
from evaluators.loadgen.prepared_inputs import LoadInputs, PreparedInputs
from manifests.errors import InferscopeError

_ID = "0"


class RemoteTarget(CallTarget):
    """A remote agent under load; satisfies ``evaluators.loadgen.target.LoadTarget``.

    Each query is a call of its own, of one input. The requests are encoded when the target is made. An answer
    tells how long the query waited at the agent for its batch, and the size of that: 1 unless the agent puts
    requests together. The agent stays its owner's.

    Args:
        agent: The open model.
        inputs: Query n predicts input n modulo their number. Those that are only read are preprocessed by
            the agent.
        max_in_flight: See ``CallTarget``.
        clock: The clock of the run, in nanoseconds.

    Raises:
        ConfigurationError: ``max_in_flight`` is too small.
        InputError: An input's element type cannot travel.
    """

    def __init__(
        self,
        agent: RemoteAgent,
        inputs: LoadInputs,
        *,
        max_in_flight: int | None = None,
        clock: Callable[[], int] = time.perf_counter_ns,
    ) -> None:
        self._requests = _encode(agent.session_id, inputs)
        self._connection = agent.connection
        largest = max(map(len, self._requests))
        hold = self._connection.hold
        super().__init__(agent.description, largest, hold, max_in_flight=max_in_flight, clock=clock)

    def send(self, query: int, run: CallFlight) -> None:
        """Sends a query; see ``CallTarget``."""
        run.send(query, self._requests[query % len(self._requests)], self._connection.begin_predict)

    def outcome(self, call: grpc.Future[bytes]) -> Outcome:
        """Reads a reply; see ``CallTarget``."""
        try:
            result = self._connection.end_predict(call)
        except InferscopeError as error:
            return Outcome(0, str(error))
        if result.failures:
            return Outcome(0, result.failures[0].message)
        answers = result.input_ids.count(_ID)
        reason = "" if answers else "the agent gave no answer for the query"
        if (queue := result.queue) is None:
            return Outcome(answers, reason, result.times.predict_ns, batch_size=1)
        return Outcome(
            answers, reason, result.times.predict_ns, queue.queue_ns, queue.batch_size, queue.batch_ns
        )


def _encode(session_id: str, inputs: LoadInputs) -> list[bytes]:
    if isinstance(inputs, PreparedInputs):
        tensors = inputs.tensors
        return [encode_batch_request(session_id, tensors[n : n + 1]) for n in range(len(tensors))]
    return [encode_inputs_request(session_id, [(_ID, payload)]) for payload in inputs.payloads]
