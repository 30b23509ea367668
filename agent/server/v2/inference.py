"""Inference: from requests that were read, over the models that they name, to the responses."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from inferometer.agent.inference.results import Inferred
from inferometer.agent.protocol.tensors import array_bytes
from inferometer.agent.protocol.v2_datatypes import BYTES, datatype_of
from inferometer.agent.server.rpc import CallContext
from inferometer.agent.server.v2.messages import InferAnswer, InferCall
from inferometer.agent.server.v2.repository import FoundModel, Repository
from inferometer.agent.server.v2.tensors import check_parameters, read_input, shown
from inferometer.agent.serving.served_model import ServedModel
from inferometer.agent.tracing.recorder import TraceScope
from inferometer.manifests.errors import InputError, PredictionError, suggestion
from inferometer.protos.inference.v2 import grpc_service_pb2 as pb

_NS_PER_US = 1000
_Request = TypeVar("_Request")
_Answer = TypeVar("_Answer")

_AHEAD = 16
"""Requests of a stream that are worked on, or answered and not yet sent, at once: enough for a batch."""
_CLASSIFICATION = "classification"
_TIMEOUT = "timeout"
_MAX_TIMEOUT_US = 10 * 365 * 24 * 3600 * 1_000_000
"""Ten years: what is longer would not fit into a clock."""


@dataclass(frozen=True, slots=True)
class RequestedOutput:
    """An output that a request wants: its tensor, or as many of the best ``classes``."""

    name: str
    classes: int = 0


class Inference:
    """Answers requests. Thread-safe.

    ``clock`` is that of the served models, for deadlines and times in nanoseconds.
    """

    def __init__(self, repository: Repository, max_batch_size: int, clock: Callable[[], int]) -> None:
        self._repository = repository
        self._max_batch_size = max_batch_size
        self._clock = clock

    async def infer(
        self, request: InferCall, call: CallContext, trace: TraceScope | None = None
    ) -> InferAnswer:
        """Runs the model that a request names on its input, as long as its call is active.

        ``trace`` is the request's own span, None where it is not traced.

        Raises:
            UnknownModelError: There is no such model.
            InputError: The input is not what the model takes, or the model lacks an output that is requested.
            InferometerError: See ``ServedModel.infer`` and ``Repository.lease``.
        """
        message, began_ns = request.message, self._clock()
        deadline_ns = self._deadline_ns(message, call)
        found = self._repository.find(message.model_name, message.model_version)
        batch = read_input(request, found.input, self._max_batch_size, found.title)
        read_ns = self._clock()
        lease = self._repository.lease_loaded(found)
        if lease is None:
            lease = await call.in_thread(self._repository.lease, found)
        try:
            model = lease.model
            wanted = await self._wanted(message, model, found, call)
            inferred = await model.infer_async(
                batch, deadline_ns=deadline_ns, is_active=call.is_active, trace=trace
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

    async def _wanted(
        self, message: pb.ModelInferRequest, model: ServedModel, found: FoundModel, call: CallContext
    ) -> tuple[RequestedOutput, ...] | None:
        """The outputs that a request names; None for all."""
        if not message.outputs:
            return None
        outputs = self._repository.known_outputs(model)
        if outputs is None:
            outputs = await call.in_thread(self._repository.outputs, model)
        return requested_outputs(message, [output.name for output in outputs], found.title)

    def _deadline_ns(self, message: pb.ModelInferRequest, call: CallContext) -> int | None:
        """The end of the call's deadline or of the parameter ``timeout``, whichever comes first."""
        of_call_ns = call.deadline_ns(self._clock)
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


async def in_order(
    requests: AsyncIterator[_Request], answer: Callable[[_Request], Awaitable[_Answer]]
) -> AsyncGenerator[_Answer, None]:
    """Yields the answers to requests in the order of the requests.

    Each request gets a task as soon as it is received, so that requests of one stream wait in their model's
    queue together and can be predicted together. Closing the generator cancels what has no answer. An error
    that ``requests`` raises comes after the last answer; one that ``answer`` raises ends the stream.
    """
    begun: asyncio.Queue[asyncio.Task[_Answer] | None] = asyncio.Queue()
    task: asyncio.Task[_Answer] | None
    under_way: set[asyncio.Task[_Answer]] = set()
    places = asyncio.Semaphore(_AHEAD)

    async def answered(request: _Request) -> _Answer:
        return await answer(request)

    async def receive() -> None:
        try:
            async for request in requests:
                await places.acquire()
                task = asyncio.create_task(answered(request))
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
    message: pb.ModelInferRequest, known: Sequence[str], what: str
) -> tuple[RequestedOutput, ...]:
    """Returns the outputs that a request names, of the ``known`` ones of a model that errors call ``what``.

    Raises InputError if it names one that is not there, or one twice.
    """
    found: dict[str, RequestedOutput] = {}
    for item in message.outputs:
        if item.name not in known:
            raise InputError(f'{what}: has no output "{shown(item.name)}"; {suggestion(item.name, known)}')
        if item.name in found:
            raise InputError(f'{what}: output "{item.name}" is requested twice')
        where = f'{what}: output "{item.name}"'
        check_parameters(item.parameters, where)
        found[item.name] = RequestedOutput(item.name, _classes(item, where))
    return tuple(found.values())


def add_outputs(
    response: pb.ModelInferResponse,
    wanted: Sequence[RequestedOutput],
    tensors: Mapping[str, NDArray[Any]],
    labels: Sequence[str],
) -> InferAnswer:
    """Writes the heads of the ``wanted`` outputs into a response, and returns it with their content.

    ``labels`` are the names of the model's classes, where it has any.

    Raises:
        PredictionError: The model did not give an output, or none that can be sent.
        InputError: Classes are wanted of an output that is no scores of classes.
    """
    raw: list[bytes | memoryview] = []
    for output in wanted:
        array = tensors.get(output.name)
        if array is None:
            raise PredictionError(f'the model gave no output "{output.name}"')
        if output.classes:
            shape, content = _best_classes(array, output, labels)
            response.outputs.add(name=output.name, datatype=BYTES, shape=shape)
            raw.append(content)
        else:
            response.outputs.add(name=output.name, datatype=datatype_of(array.dtype).name, shape=array.shape)
            raw.append(array_bytes(array))
    return InferAnswer(response, raw)


def _classes(item: pb.ModelInferRequest.InferRequestedOutputTensor, where: str) -> int:
    if _CLASSIFICATION not in item.parameters:
        return 0
    parameter = item.parameters[_CLASSIFICATION]
    chosen = parameter.WhichOneof("parameter_choice")
    if chosen not in {"int64_param", "uint64_param"} or getattr(parameter, chosen) < 1:
        raise InputError(f"{where}: {_CLASSIFICATION} is the number of classes: a whole number from 1 on")
    return int(getattr(parameter, chosen))


def _best_classes(
    array: NDArray[Any], output: RequestedOutput, labels: Sequence[str]
) -> tuple[tuple[int, ...], bytes]:
    """The shape and the elements of ``score:class:label``, the best first; of equal ones the first class."""
    if array.ndim < 2 or any(side != 1 for side in array.shape[2:]) or array.dtype.kind not in "iuf":
        raise InputError(
            f'output "{output.name}": {_CLASSIFICATION} is of scores, inputs × classes; '
            f"this is {array.dtype} of shape {list(array.shape)}"
        )
    scores = array.reshape(array.shape[:2])
    order = np.argsort(-scores.astype(np.float64), axis=1, kind="stable")[:, : output.classes]
    texts = (
        f"{row[place]:f}:{place}" + (f":{labels[place]}" if place < len(labels) else "")
        for row, places in zip(scores, order, strict=True)
        for place in places
    )
    content = b"".join(struct.pack("<I", len(text)) + text for text in (text.encode() for text in texts))
    return order.shape, content
