"""Inference: runs the models that decoded requests name, and builds the responses."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypedDict, TypeVar

import numpy as np
from numpy.typing import NDArray

from inferometer.agent.inference.results import Inferred
from inferometer.agent.open_inference.codec import (
    BYTES,
    InferAnswer,
    InferCall,
    check_parameters,
    datatype_of,
    read_inputs,
    titled,
    whole_number,
)
from inferometer.agent.protocol.tensors import array_bytes, pack
from inferometer.agent.server.calls import CallContext
from inferometer.agent.server.v2.repository import FoundModel, Repository
from inferometer.agent.server.v2.shared_memory import Place, SharedMemory
from inferometer.agent.serving.served_model import ServedModel
from inferometer.agent.tracing.recorder import TraceScope
from inferometer.manifests.errors import InputError, PredictionError, suggestion
from inferometer.protos.inference.v2 import grpc_service_pb2 as pb

_NS_PER_US = 1000
_Request = TypeVar("_Request")
_Answer = TypeVar("_Answer")

_AHEAD = 16
"""How many requests of a stream may be in progress or answered but not yet sent: enough for a batch."""
_CLASSIFICATION = "classification"
_TIMEOUT = "timeout"
_PRIORITY = "priority"
_MAX_TIMEOUT_US = 10 * 365 * 24 * 3600 * 1_000_000
"""Ten years, the maximum: longer times would not fit into a clock."""


@dataclass(slots=True)  # to make a frozen one takes three times as long
class RequestedOutput:
    """A requested output: its tensor, or its top ``classes`` classes.

    It is written to its ``place`` in shared memory or, if it has none, into the response.
    """

    name: str
    classes: int = 0
    place: Place | None = None


class Inference:
    """Answers requests. Thread-safe.

    ``clock`` is the clock of the served models, for deadlines and times in nanoseconds. Without
    ``shared_memory``, tensors travel only in the messages.
    """

    def __init__(
        self,
        repository: Repository,
        max_batch_size: int,
        clock: Callable[[], int],
        shared_memory: SharedMemory | None = None,
    ) -> None:
        self._shared_memory = shared_memory
        self._repository = repository
        self._batching = repository.batching
        self._has_policies = repository.batching.has_policies
        self._max_batch_size = max_batch_size
        self._clock = clock

    async def infer(
        self, request: InferCall, call: CallContext, trace: TraceScope | None = None
    ) -> InferAnswer:
        """Runs the model that a request names on its inputs, while its call is active.

        ``trace`` is the request's own span; None if it is not traced.

        Raises:
            UnknownModelError: The model does not exist.
            NotFoundError: The region of shared memory does not exist.
            InputError: The input does not match the model, or the model lacks a requested output.
            InferometerError: See ``ServedModel.infer`` and ``Repository.lease``.
        """
        message, began_ns = request.message, self._clock()
        if self._shared_memory is not None:
            request = self._shared_memory.with_inputs(request, call.record.peer)
        deadline_ns, queueing = self._limits(message, call)
        found = self._repository.find(message.model_name, message.model_version)
        batch = read_inputs(request, found.inputs, self._max_batch_size, found.title)
        read_ns = self._clock()
        lease = self._repository.lease_loaded(found)
        if lease is None:
            lease = await call.in_thread(self._repository.lease, found)
        try:
            model = lease.model
            wanted = await self._wanted(message, model, found, call)
            inferred = await model.infer_async(
                batch, deadline_ns=deadline_ns, is_active=call.is_active, trace=trace, **queueing
            )
            inferred_ns = self._clock()
            response = pb.ModelInferResponse(
                model_name=message.model_name, model_version=found.version, id=message.id
            )
            if wanted is None:  # all, or the model's outputs were not known before
                names, peer = list(inferred.outputs), call.record.peer
                wanted = requested_outputs(message, names, found.title, self._shared_memory, peer)
                wanted = wanted or tuple(map(RequestedOutput, names))
            labels = model.manifest.output.parameters.labels
            answer = add_outputs(response, wanted, inferred.outputs, labels)
        finally:
            lease.release()
        _add_times(response, inferred, read_ns - began_ns, self._clock() - inferred_ns)
        return answer

    async def _wanted(
        self, message: pb.ModelInferRequest, model: ServedModel, found: FoundModel, call: CallContext
    ) -> tuple[RequestedOutput, ...] | None:
        """Returns the outputs that a request names; None means all, also if they are unknown."""
        if not message.outputs:
            return None
        outputs = self._repository.known_outputs(model)
        if outputs is None:
            outputs = await call.in_thread(self._repository.outputs, model)
        if not outputs:
            return None
        names = [output.name for output in outputs]
        return requested_outputs(message, names, found.title, self._shared_memory, call.record.peer)

    def _limits(self, message: pb.ModelInferRequest, call: CallContext) -> tuple[int | None, _Queueing]:
        """Returns the deadline of a request, and its options for a queue with policies.

        The deadline is that of the call or of the parameter ``timeout``, whichever comes first. A policy that
        delays requests uses ``timeout`` for the delay instead, and a policy may ignore it.
        """
        deadline_ns = call.deadline_ns(self._clock)
        queueing = _Queueing()
        timeout_us = min(_whole(message, _TIMEOUT, "of microseconds; 0 sets no limit"), _MAX_TIMEOUT_US)
        if self._has_policies:
            queueing["priority"] = _whole(message, _PRIORITY, "from 1, the highest, on; 0 is the default")
            policy = self._batching.policy_of(self._batching.level_of(queueing["priority"]))
            if timeout_us and policy.delays:
                queueing["timeout_ns"] = timeout_us * _NS_PER_US
            if not policy.allow_timeout_override or policy.delays:
                timeout_us = 0
        if not timeout_us:
            return deadline_ns, queueing
        own_ns = self._clock() + timeout_us * _NS_PER_US
        return own_ns if deadline_ns is None else min(own_ns, deadline_ns), queueing


class _Queueing(TypedDict, total=False):
    """The arguments of ``ServedModel.infer_async`` for a queue with policies."""

    priority: int
    timeout_ns: int


def _whole(message: pb.ModelInferRequest, name: str, what: str) -> int:
    """Returns a non-negative integer parameter; 0 if the request has none."""
    number = whole_number(message.parameters, name)
    if number < 0:
        raise InputError(f"parameter {name} must be a whole number {what}")
    return number


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


async def in_order(
    requests: AsyncIterator[_Request], answer: Callable[[_Request], Coroutine[Any, Any, _Answer]]
) -> AsyncGenerator[_Answer, None]:
    """Yields the answers to requests in the order of the requests.

    Each request gets a task as soon as it is received. Requests of one stream therefore wait in their model's
    queue together and can be predicted together. Closing the generator cancels unanswered requests. An error
    in ``requests`` is raised after the last answer; an error in ``answer`` ends the stream.
    """
    begun: asyncio.Queue[asyncio.Task[_Answer] | None] = asyncio.Queue()
    task: asyncio.Task[_Answer] | None
    under_way: set[asyncio.Task[_Answer]] = set()
    places = asyncio.Semaphore(_AHEAD)

    async def receive() -> None:
        try:
            async for request in requests:
                await places.acquire()
                task = asyncio.create_task(answer(request))
                under_way.add(task)
                task.add_done_callback(under_way.discard)
                begun.put_nowait(task)
        finally:
            begun.put_nowait(None)

    receiving = asyncio.create_task(receive())
    try:
        while (task := await begun.get()) is not None:
            yield await task
            places.release()
        await receiving
    finally:
        tasks = (receiving, *under_way)
        for each in tasks:
            each.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        task = None
        del tasks, receiving, each  # one may have the error whose traceback has this frame


def requested_outputs(
    message: pb.ModelInferRequest,
    known: Sequence[str],
    what: str,
    shared_memory: SharedMemory | None = None,
    peer: str = "",
) -> tuple[RequestedOutput, ...]:
    """Returns the ``known`` outputs that a request names; errors refer to the model as ``what``.

    ``peer`` is the sender of the request. Raises InputError if an output is unknown or named twice, and the
    errors of ``SharedMemory.place``.
    """
    found: dict[str, RequestedOutput] = {}
    for item in message.outputs:
        name = item.name
        if name not in known:
            raise InputError(f"{what}: has no {titled('output', name)}; {suggestion(name, known)}")
        if name in found:
            raise InputError(f'{what}: output "{name}" is requested twice')
        if not item.parameters:
            found[name] = RequestedOutput(name)
            continue
        where = f'{what}: output "{name}"'
        place = None
        if shared_memory is None:
            check_parameters(item.parameters, where)
        else:
            place = shared_memory.place(item.parameters, where, peer)
        found[name] = RequestedOutput(name, _classes(item, where), place)
    return tuple(found.values())


def add_outputs(
    response: pb.ModelInferResponse,
    wanted: Sequence[RequestedOutput],
    tensors: Mapping[str, NDArray[Any]],
    labels: Sequence[str],
) -> InferAnswer:
    """Writes the descriptions of the ``wanted`` outputs into a response, and returns it with their content.

    ``labels`` are the names of the model's classes, if any.

    Raises:
        PredictionError: The model did not return an output, or returned one that cannot be sent.
        InputError: Classes are requested for an output that does not hold class scores, or an output does not
            fit into its place in shared memory.
    """
    raw: list[bytes | memoryview] = []
    content: bytes | memoryview
    for output in wanted:
        array = tensors.get(output.name)
        if array is None:
            raise PredictionError(f'the model returned no output "{output.name}"')
        if output.classes:
            shape, content = _best_classes(array, output, labels)
            described = response.outputs.add(name=output.name, datatype=BYTES, shape=shape)
        else:
            datatype = datatype_of(array.dtype)
            content = array_bytes(array)
            described = response.outputs.add(name=output.name, datatype=datatype.name, shape=array.shape)
        if output.place is not None:
            for name, parameter in output.place.write(content, f'output "{output.name}"').items():
                described.parameters[name].CopyFrom(parameter)
            content = b""  # the response has contents for every output, as Triton's
        raw.append(content)
    return InferAnswer(response, raw)


def _classes(item: pb.ModelInferRequest.InferRequestedOutputTensor, where: str) -> int:
    if _CLASSIFICATION not in item.parameters:
        return 0
    number = whole_number(item.parameters, _CLASSIFICATION)
    if number < 1:
        raise InputError(f"{where}: {_CLASSIFICATION} must be a number of classes: a whole number from 1 on")
    return number


def _best_classes(
    array: NDArray[Any], output: RequestedOutput, labels: Sequence[str]
) -> tuple[tuple[int, ...], bytes]:
    """Returns the shape and the elements, ``score:class:label``, the best first and ties in class order."""
    if array.ndim < 2 or any(side != 1 for side in array.shape[2:]) or array.dtype.kind not in "iuf":
        raise InputError(
            f'output "{output.name}": {_CLASSIFICATION} needs scores, inputs × classes; '
            f"this is {array.dtype} of shape {list(array.shape)}"
        )
    scores = array.reshape(array.shape[:2])
    order = np.argsort(-scores.astype(np.float64), axis=1, kind="stable")[:, : output.classes]
    texts = (
        f"{row[place]:f}:{place}" + (f":{labels[place]}" if place < len(labels) else "")
        for row, places in zip(scores, order, strict=True)
        for place in places
    )
    return order.shape, pack(text.encode() for text in texts)
