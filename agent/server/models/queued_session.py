"""An open session on a model that others may share: its single batches wait in the model's queue."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import grpc
from numpy.typing import NDArray

from agent.results import BatchResult, Infer
from agent.server.model_opener import ModelOpener
from agent.server.models.model_slot import Lease
from agent.server.models.served_models import ServedModels
from agent.server.steps import Steps
from agent.session import Session
from agent.tracing.scope import TraceScope
from protos.inferscope.v1 import predict_pb2

_NS_PER_S = 1_000_000_000
_NO_DEADLINE_S = 10 * 365 * 24 * 3600.0
"""gRPC gives a call without deadline one that is farther away."""


class QueuedSession(Session):
    """What a client has open of a model that others may have open, too. Thread-safe.

    What it predicts with ``infer_for`` waits in the model's queue, and may be predicted together with what
    others ask. What it predicts without, such as the batches of a stream, is predicted as it is, between the
    batches of the queue.

    Args:
        lease: The model, which is given back when the session is closed.
    """

    def __init__(self, lease: Lease) -> None:
        shared = lease.model.session
        super().__init__(shared._predictor, shared._pipeline, shared.description)
        self._lease = lease

    def infer_for(self, context: grpc.ServicerContext, clock: Callable[[], int]) -> Infer:
        """Returns what lets a call's batch wait in the queue, no longer than the call does.

        Args:
            context: The call.
            clock: The clock of the model's deadlines, in nanoseconds.
        """
        return partial(
            self._lease.model.infer_checked,
            deadline_ns=deadline_ns(context, clock),
            is_active=context.is_active,
        )

    def tensor_steps(
        self, batch: NDArray[Any], context: grpc.ServicerContext, clock: Callable[[], int]
    ) -> Steps[BatchResult]:
        """Predicts a batch that is one preprocessed tensor, in steps; see ``predict_tensor``.

        Args:
            batch: The batch.
            context: The call, no longer than which it waits in the queue.
            clock: The clock of the model's deadlines, in nanoseconds.
        """
        infer = partial(
            self._lease.model.infer_steps,
            deadline_ns=deadline_ns(context, clock),
            is_active=context.is_active,
        )
        return self._pipeline.tensor_steps(batch, infer)

    def close(self) -> None:
        """Gives the model back; calling it again does nothing."""
        self._lease.release()


class QueuedOpener:
    """Opens sessions.

    Those who ask for the same model with the same options share one, if the agent is served so; otherwise
    each has a model of his own.

    Args:
        find: Finds the model that a request names.
        models: The loaded models.
    """

    def __init__(self, find: ModelOpener, models: ServedModels) -> None:
        self._find = find
        self._models = models

    def __call__(
        self, request: predict_pb2.OpenRequest, trace: TraceScope | None = None
    ) -> Callable[[], Session]:
        """Finds what a request names, and returns what loads it, or takes the one that is loaded.

        Raises:
            InferscopeError: See ``ModelOpener.find``.
        """
        manifest, options = self._find.find(request)
        return lambda: QueuedSession(
            self._models.lease(manifest, options, shared=self._models.options.shares, trace=trace)
        )


def deadline_ns(context: grpc.ServicerContext, clock: Callable[[], int]) -> int | None:
    """Returns the deadline of a call on a clock in nanoseconds; None where it has none."""
    remaining_s: float | None = context.time_remaining()  # None without a deadline, whatever grpc's types say
    if remaining_s is None or remaining_s > _NO_DEADLINE_S:
        return None
    return clock() + round(remaining_s * _NS_PER_S)
