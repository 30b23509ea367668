"""One inference: a request that was read, the model that it names, and the response."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import grpc

from agent.results import Inferred
from agent.server.models.queued_session import deadline_ns
from agent.server.models.served_model import ServedModel
from agent.server.steps import Steps, Work
from agent.server.v2.messages import InferAnswer, InferCall
from agent.server.v2.outputs import RequestedOutput, add_outputs, requested_outputs
from agent.server.v2.repository import FoundModel, Repository
from agent.server.v2.tensors import read_input
from manifests.errors import InputError
from protos.inference.v2 import grpc_service_pb2 as pb

_NS_PER_US = 1000
_TIMEOUT = "timeout"
_MAX_TIMEOUT_US = 10 * 365 * 24 * 3600 * 1_000_000
"""Ten years: what is longer would not fit into a clock."""


class Inference:
    """Answers requests. Thread-safe.

    Args:
        repository: The models.
        max_batch_size: The most inputs of one request.
        clock: The clock of deadlines and times, in nanoseconds: that of the served models.
    """

    def __init__(self, repository: Repository, max_batch_size: int, clock: Callable[[], int]) -> None:
        self._repository = repository
        self._max_batch_size = max_batch_size
        self._clock = clock

    def steps(self, call: InferCall, context: grpc.ServicerContext) -> Steps[InferAnswer]:
        """Runs the model that a request names on its input, in steps.

        Args:
            call: The request.
            context: What it came with: until when the caller waits for the answer, and whether at all.

        Raises:
            UnknownModelError: There is no such model.
            InputError: The input is not what the model takes, or an output is asked for that it has not.
            InferscopeError: See ``ServedModel.infer`` and ``Repository.use``.
        """
        message, began_ns = call.message, self._clock()
        deadline_ns = self._deadline_ns(message, context)
        found = self._repository.find(message.model_name, message.model_version)
        batch = read_input(call, found.input, self._max_batch_size, found.title)
        read_ns = self._clock()
        lease = self._repository.lease_loaded(found)
        if lease is None:
            lease = yield Work(partial(self._repository.lease, found))
        try:
            model = lease.model
            wanted = yield from self._wanted(message, model, found)
            inferred = yield from model.infer_steps(
                batch, deadline_ns=deadline_ns, is_active=context.is_active
            )
            inferred_ns = self._clock()
            response = pb.ModelInferResponse(
                model_name=message.model_name, model_version=found.manifest.version, id=message.id
            )
            if wanted is None:
                wanted = tuple(map(RequestedOutput, inferred.outputs))
            labels = model.manifest.output.parameters.labels
            answer = add_outputs(response, wanted, inferred.outputs, labels)
        finally:
            lease.release()
        _add_times(response, inferred, read_ns - began_ns, self._clock() - inferred_ns)
        return answer

    def _wanted(
        self, message: pb.ModelInferRequest, model: ServedModel, found: FoundModel
    ) -> Steps[tuple[RequestedOutput, ...] | None]:
        """The outputs that a request names; None for all."""
        if not message.outputs:
            return None
        outputs = self._repository.known_outputs(model)
        if outputs is None:
            outputs = yield Work(partial(self._repository.outputs, model))
        return requested_outputs(message, [output.name for output in outputs], found.title)

    def _deadline_ns(self, message: pb.ModelInferRequest, context: grpc.ServicerContext) -> int | None:
        """Until when the answer is waited for: by the call's deadline, and by the parameter ``timeout``."""
        of_call_ns = deadline_ns(context, self._clock)
        if _TIMEOUT not in message.parameters:
            return of_call_ns
        parameter = message.parameters[_TIMEOUT]
        chosen = parameter.WhichOneof("parameter_choice")
        if chosen not in {"int64_param", "uint64_param"} or getattr(parameter, chosen) < 0:
            raise InputError(f"parameter {_TIMEOUT} is a whole number of microseconds; 0 sets no limit")
        timeout_us = min(int(getattr(parameter, chosen)), _MAX_TIMEOUT_US)
        if not timeout_us:
            return of_call_ns
        own_ns = self._clock() + timeout_us * _NS_PER_US
        return own_ns if of_call_ns is None else min(own_ns, of_call_ns)


def _add_times(
    response: pb.ModelInferResponse, inferred: Inferred, preprocess_ns: int, postprocess_ns: int
) -> None:
    parameters = response.parameters
    parameters["preprocess_ns"].int64_param = preprocess_ns
    parameters["predict_ns"].int64_param = inferred.predict_ns
    parameters["postprocess_ns"].int64_param = postprocess_ns
    if inferred.queue is not None:
        parameters["queue_ns"].int64_param = inferred.queue.queue_ns
        parameters["batch_ns"].int64_param = inferred.queue.batch_ns
        parameters["batch_size"].int64_param = inferred.queue.batch_size
