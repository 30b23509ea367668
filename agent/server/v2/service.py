"""The service of the Open Inference Protocol: decodes requests, runs their models, builds the responses."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import ExitStack, aclosing, nullcontext
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from inferometer.agent import __version__
from inferometer.agent.inference.registry import Registry
from inferometer.agent.inference.stages import Inferred
from inferometer.agent.open_inference.codec import (
    BYTES,
    EXTENSION,
    FINAL,
    InferAnswer,
    InferCall,
    TensorSignature,
    check_final,
    check_parameters,
    datatype_of,
    decode_request,
    encode_answer,
    encode_stream_answer,
    failed_answer,
    read_inputs,
    read_text_request,
    text_answer,
    titled,
    v2_version,
    whole_number,
)
from inferometer.agent.protocol.status import NotOfferedError, described
from inferometer.agent.protocol.tensors import array_bytes, pack
from inferometer.agent.server.admission import StreamLimit
from inferometer.agent.server.calls import CallContext, Codec, Method, in_order, methods_of
from inferometer.agent.server.native.call_tracing import CallTrace
from inferometer.agent.server.rest.openai import TextRequest, TextService
from inferometer.agent.server.v2.model_messages import (
    config_message,
    metadata_message,
    read_load_parameters,
    statistics_message,
)
from inferometer.agent.server.v2.repository import NOT_HERE, FoundModel, Repository, named
from inferometer.agent.server.v2.shared_memory import Place, SharedMemory
from inferometer.agent.serving.batching import BatchingOptions
from inferometer.agent.serving.served_model import ServedModel
from inferometer.agent.serving.served_models import ModelState, ServedModels
from inferometer.agent.tracing.recorder import TraceScope
from inferometer.manifests.catalog import Catalog
from inferometer.manifests.errors import InputError, PredictionError, suggestion
from inferometer.protos.inference.v2 import grpc_service_pb2 as pb

_NS_PER_US = 1000

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

    ``policies`` has the priorities and queue policies, which are those of all models. ``clock`` is the clock
    of the served models, for deadlines and times in nanoseconds. Without
    ``shared_memory``, tensors travel only in the messages.
    """

    def __init__(
        self,
        repository: Repository,
        policies: BatchingOptions,
        clock: Callable[[], int],
        shared_memory: SharedMemory | None = None,
    ) -> None:
        self._shared_memory = shared_memory
        self._repository = repository
        self._policies = policies
        self._has_policies = policies.has_policies
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
        if found.manifest.generates:
            raise InputError(
                f"{found.title} generates text; ask for it with generate over HTTP, or with ModelStreamInfer"
            )
        batch = read_inputs(request, found.inputs, found.max_batch_size, found.title)
        read_ns = self._clock()
        lease = self._repository.lease_loaded(found)
        if lease is None:
            # anew: the model may have been loaded otherwise just now
            found = self._repository.find(message.model_name, message.model_version)
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

    def _limits(self, message: pb.ModelInferRequest, call: CallContext) -> tuple[int | None, dict[str, int]]:
        """Returns the deadline of a request, and its arguments for a queue with policies.

        The deadline is that of the call or of the parameter ``timeout``, whichever comes first. A policy that
        delays requests uses ``timeout`` for the delay instead, and a policy may ignore it.
        """
        deadline_ns = call.deadline_ns(self._clock)
        queueing: dict[str, int] = {}
        timeout_us = min(_whole(message, _TIMEOUT, "of microseconds; 0 sets no limit"), _MAX_TIMEOUT_US)
        if self._has_policies:
            queueing["priority"] = _whole(message, _PRIORITY, "from 1, the highest, on; 0 is the default")
            policy = self._policies.policy_of(self._policies.level_of(queueing["priority"]))
            if timeout_us and policy.delays:
                queueing["timeout_ns"] = timeout_us * _NS_PER_US
            if not policy.allow_timeout_override or policy.delays:
                timeout_us = 0
        if not timeout_us:
            return deadline_ns, queueing
        own_ns = self._clock() + timeout_us * _NS_PER_US
        return own_ns if deadline_ns is None else min(own_ns, deadline_ns), queueing


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


_SERVICE = pb.DESCRIPTOR.services_by_name["GRPCInferenceService"]
SERVICE = _SERVICE.full_name
_EXTENSIONS = (
    "binary_tensor_data",
    "classification",
    "generate",
    "model_configuration",
    "model_repository",
    "parameters",
    "statistics",
)
_STATES = {ModelState.LOADED: "READY", ModelState.LOADING: "LOADING", ModelState.UNLOADED: "UNAVAILABLE"}


class InferenceService:
    """Serves the models of the agent over the protocol of KServe and Triton.

    ``is_ready`` returns whether the agent serves and is not stopping. Without ``shared_memory``, clients
    cannot use shared memory.
    """

    def __init__(
        self,
        models: ServedModels,
        catalog: Catalog,
        registry: Registry,
        streams: StreamLimit,
        is_ready: Callable[[], bool],
        max_inputs: int,
        shared_memory: SharedMemory | None = None,
        *,
        texts: TextService,
    ) -> None:
        self._texts, self._tracing = texts, texts.tracing
        self._models = models
        self._streams = streams
        self._is_ready = is_ready
        self.repository = Repository(models, catalog, registry, max_inputs)
        self._shared_memory = shared_memory
        self._inference = Inference(self.repository, models.options.batching, models.clock, shared_memory)

    def methods(self) -> list[Method]:
        """The service's methods."""
        codecs: dict[str, Codec] = {
            "ModelInfer": (decode_request, encode_answer),
            "ModelStreamInfer": (decode_request, encode_stream_answer),
        }
        return methods_of(_SERVICE, self, codecs, aside=["ServerLive", "ServerReady", "ModelReady"])

    def inputs_of(self, name: str, version: str) -> tuple[TensorSignature, ...]:
        """Returns the inputs of a model; raises the errors of ``Repository.find``."""
        return tuple(self.repository.find(name, version).inputs.values())

    async def server_live(self, _: pb.ServerLiveRequest, __: CallContext) -> pb.ServerLiveResponse:
        """Answers that the agent is live."""
        return pb.ServerLiveResponse(live=True)

    async def server_ready(self, _: pb.ServerReadyRequest, __: CallContext) -> pb.ServerReadyResponse:
        """Answers whether the agent serves."""
        return pb.ServerReadyResponse(ready=self._is_ready())

    async def server_metadata(
        self, _: pb.ServerMetadataRequest, __: CallContext
    ) -> pb.ServerMetadataResponse:
        """Describes the agent."""
        extensions = _EXTENSIONS if self._shared_memory is None else (*_EXTENSIONS, EXTENSION)
        return pb.ServerMetadataResponse(name="inferometer", version=__version__, extensions=extensions)

    async def model_infer(self, request: InferCall, call: CallContext) -> InferAnswer:
        """Runs a model on a request."""
        trace = self._tracing.begin(call, exported=True)
        with trace or nullcontext():
            return await self._inference.infer(request, call, trace.scope if trace else None)

    async def model_stream_infer(
        self, requests: AsyncIterator[InferCall], call: CallContext
    ) -> AsyncIterator[InferAnswer | pb.ModelStreamInferResponse]:
        """Runs models on a stream of requests; a failed request is answered in the stream.

        A request has one response, or one for each part of a generated text. As in Triton, the last one is
        the final one, and no empty response follows it.
        """
        trace = self._tracing.begin(call, exported=True)

        async def answer(request: InferCall) -> Any:
            try:
                check_final(request)
                asked = request.message
                if self.repository.find(asked.model_name, asked.model_version).manifest.generates:
                    return self._generated(request, call, trace)
                with trace.request() if trace else nullcontext() as scope:
                    answered = await self._inference.infer(request, call, scope)
                answered.message.parameters[FINAL].bool_param = True
                return answered
            except Exception as error:  # noqa: BLE001 - the boundary of one request, as the dispatcher's is of a call
                return failed_answer(request, described(error, "ModelStreamInfer"))

        with trace or nullcontext(), self._streams.one():
            async with aclosing(in_order(requests, answer)) as answers:
                async for each in answers:
                    yield each

    async def _generated(
        self, request: InferCall, call: CallContext, trace: CallTrace | None
    ) -> AsyncIterator[InferAnswer | pb.ModelStreamInferResponse]:
        """Yields the parts of a text as soon as they are generated, or the error that ends it."""
        message = request.message
        try:
            with ExitStack() as under_way:
                scope = under_way.enter_context(trace.request()) if trace else None
                version, lease = self.repository.language_model(message.model_name, message.model_version)
                given = TextRequest.read({**read_text_request(request), "model": message.model_name})
                _, pieces = await self._texts.begin(given, lease, call, scope, under_way)
                async for piece in pieces:
                    yield text_answer(request, version, piece.text, is_last=piece.is_last)
        except Exception as error:  # noqa: BLE001 - the boundary of one request
            yield failed_answer(request, described(error, "ModelStreamInfer"))

    def model_ready(self, request: pb.ModelReadyRequest, _: CallContext) -> pb.ModelReadyResponse:
        """Answers whether a model is loaded; False for an unknown model, as in Triton."""
        try:
            found = self.repository.find(request.name, request.version)
        except NOT_HERE:
            return pb.ModelReadyResponse(ready=False)
        loaded = self.repository.loaded(found)
        return pb.ModelReadyResponse(ready=self._is_ready() and loaded is not None and loaded.alive > 0)

    def model_metadata(self, request: pb.ModelMetadataRequest, _: CallContext) -> pb.ModelMetadataResponse:
        """Describes a model's inputs and outputs; loads the model, because its outputs are unknown before."""
        found = self.repository.find(request.name, request.version)
        outputs = self.repository.describe(found)[0]
        versions = self.repository.versions(request.name)
        framework = found.manifest.framework.name
        return metadata_message(request.name, versions, framework, tuple(found.inputs.values()), outputs)

    def model_config(self, request: pb.ModelConfigRequest, _: CallContext) -> pb.ModelConfigResponse:
        """Describes how a model is served; loads the model, like ``model_metadata``."""
        found = self.repository.find(request.name, request.version)
        outputs, description = self.repository.describe(found)
        return pb.ModelConfigResponse(
            config=config_message(
                request.name,
                description,
                found.batching,
                found.max_batch_size,
                tuple(found.inputs.values()),
                outputs,
                self.repository.version_policy(request.name),
            )
        )

    def model_statistics(
        self, request: pb.ModelStatisticsRequest, _: CallContext
    ) -> pb.ModelStatisticsResponse:
        """Returns the statistics of a model since it was loaded, or of each loaded model."""
        if not request.name:
            return pb.ModelStatisticsResponse(
                model_stats=[
                    statistics_message(name, v2_version(model.manifest.version), model.statistics.totals)
                    for name, model in named(self._models.loaded)
                ]
            )
        found = self.repository.find(request.name, request.version)
        model = self.repository.loaded(found)
        totals = model.statistics.totals if model else None
        return pb.ModelStatisticsResponse(
            model_stats=[statistics_message(request.name, found.version, totals)]
        )

    def repository_index(
        self, request: pb.RepositoryIndexRequest, _: CallContext
    ) -> pb.RepositoryIndexResponse:
        """Lists all models, or only the loaded ones."""
        self._check_repository(request.repository_name)
        return pb.RepositoryIndexResponse(
            models=[
                pb.RepositoryIndexResponse.ModelIndex(
                    name=entry.name, version=entry.version, state=_STATES[entry.state], reason=entry.reason
                )
                for entry in self.repository.index()
                if entry.state is ModelState.LOADED or not request.ready
            ]
        )

    def repository_model_load(
        self, request: pb.RepositoryModelLoadRequest, _: CallContext
    ) -> pb.RepositoryModelLoadResponse:
        """Loads a model, which stays loaded until it is unloaded or its memory is needed."""
        self._check_repository(request.repository_name)
        parameters = read_load_parameters(request.parameters, self.repository.defaults(request.model_name))
        self.repository.load(request.model_name, parameters)
        return pb.RepositoryModelLoadResponse()

    def repository_model_unload(
        self, request: pb.RepositoryModelUnloadRequest, _: CallContext
    ) -> pb.RepositoryModelUnloadResponse:
        """Unloads a model."""
        self._check_repository(request.repository_name)
        self.repository.unload(request.model_name)
        return pb.RepositoryModelUnloadResponse()

    def system_shared_memory_status(
        self, request: pb.SystemSharedMemoryStatusRequest, call: CallContext
    ) -> pb.SystemSharedMemoryStatusResponse:
        """Describes the registered regions of shared memory."""
        response = pb.SystemSharedMemoryStatusResponse()
        for found in self._offered_memory().regions(request.name, call.record.peer):
            region = response.regions[found.name]
            region.name, region.key = found.name, found.key
            region.offset, region.byte_size = found.offset, found.byte_size
        return response

    def system_shared_memory_register(
        self, request: pb.SystemSharedMemoryRegisterRequest, call: CallContext
    ) -> pb.SystemSharedMemoryRegisterResponse:
        """Registers a region of shared memory."""
        self._offered_memory().register(
            request.name, request.key, request.offset, request.byte_size, call.record.peer
        )
        return pb.SystemSharedMemoryRegisterResponse()

    def system_shared_memory_unregister(
        self, request: pb.SystemSharedMemoryUnregisterRequest, call: CallContext
    ) -> pb.SystemSharedMemoryUnregisterResponse:
        """Releases a region of shared memory, or all of them."""
        self._offered_memory().unregister(request.name, call.record.peer)
        return pb.SystemSharedMemoryUnregisterResponse()

    async def cuda_shared_memory_status(
        self, _: pb.CudaSharedMemoryStatusRequest, __: CallContext
    ) -> pb.CudaSharedMemoryStatusResponse:
        """Describes no regions: there are none on a GPU."""
        return pb.CudaSharedMemoryStatusResponse()

    async def cuda_shared_memory_register(
        self, _: pb.CudaSharedMemoryRegisterRequest, __: CallContext
    ) -> pb.CudaSharedMemoryRegisterResponse:
        """Refuses shared memory on a GPU."""
        raise NotOfferedError("CUDA shared memory is not offered here; use system shared memory")

    async def cuda_shared_memory_unregister(
        self, _: pb.CudaSharedMemoryUnregisterRequest, __: CallContext
    ) -> pb.CudaSharedMemoryUnregisterResponse:
        """Succeeds without doing anything: Triton's load generator releases regions of both kinds."""
        return pb.CudaSharedMemoryUnregisterResponse()

    def _offered_memory(self) -> SharedMemory:
        if self._shared_memory is None:
            raise NotOfferedError(
                "shared memory is not offered here; serve the agent with --shared_memory on the clients' host"
            )
        return self._shared_memory

    @staticmethod
    def _check_repository(name: str) -> None:
        if name:
            raise InputError("the agent has one repository, which has no name; leave repository_name out")
