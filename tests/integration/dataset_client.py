"""A client of the ``Dataset`` method, with which an agent evaluates a dataset of its own."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing

import grpc

from inferometer.agent.inference.session import SessionOptions
from inferometer.agent.protocol.conversion import open_request
from inferometer.agent.server.native.predict_service import DatasetOrder
from inferometer.client.remote.address import AgentAddress
from inferometer.client.remote.native.agent import AnswerWatch
from inferometer.client.remote.native.calls import translate_errors
from inferometer.client.remote.native.connection import Connection
from inferometer.manifests.errors import AgentError
from inferometer.protos.inferometer.v1 import predict_pb2

DATASET_SILENCE_S = 1800.0


def evaluate_dataset(
    address: str,
    model: tuple[str, str | None, str | None],
    options: SessionOptions,
    order: DatasetOrder,
    *,
    secret: str | None = None,
    on_progress: Callable[[int, int], None] = lambda done, total: None,
    silence_s: float | None = DATASET_SILENCE_S,
) -> str:
    """Has an agent evaluate a dataset of its own.

    Args:
        address: The agent, as ``host:port``.
        model: The model's name, its version and its framework; None means the highest, and the first.
        options: What the model is opened with.
        order: What to evaluate.
        secret: What the agent asks for, if it does.
        on_progress: Told how many inputs are done, of how many.
        silence_s: How long the agent may say nothing, in seconds, as it does while it gets the model and the
            dataset; None waits.

    Returns:
        The evaluation as JSON.

    Raises:
        AgentError: The agent cannot be reached, or was lost.
        InferometerError: The agent cannot make the evaluation.
    """
    request = predict_pb2.DatasetRequest(
        model=open_request(*model, options),
        dataset_name=order.dataset_name or "",
        dataset_category=order.dataset_category or "",
        batch_size=order.batch_size,
        partition_list_size=order.partition_list_size,
        num_file_parts=order.num_file_parts,
        warmup_num_file_parts=order.warmup_num_file_parts,
        fail_on_error=order.fail_on_error,
    )
    with Connection(AgentAddress.parse(address), secret) as connection, translate_errors(connection.address):
        responses = connection.methods.Dataset(request, metadata=connection.metadata)
        with closing(AnswerWatch(silence_s, responses.cancel)) as watch:
            while (response := _next_of(responses, watch, connection)) is not None:
                if response.HasField("evaluation_json"):
                    return response.evaluation_json
                on_progress(response.progress.done_inputs, response.progress.total_inputs)
        raise AgentError(f"agent {connection.address}: ended the stream without an evaluation")


def _next_of(
    responses: Iterator[predict_pb2.DatasetResponse], watch: AnswerWatch, connection: Connection
) -> predict_pb2.DatasetResponse | None:
    try:
        with watch:
            return next(responses, None)
    except grpc.RpcError as error:
        if not watch.expired:
            raise
        raise AgentError(
            f"agent {connection.address}: said nothing for {watch.limit_s:g} s; it hangs"
        ) from error
