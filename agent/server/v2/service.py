"""The service of the Open Inference Protocol: converts requests, calls the agent, converts the results."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import aclosing, nullcontext

from inferometer.agent import __version__
from inferometer.agent.inference.registry import Registry
from inferometer.agent.open_inference.codec import (
    EXTENSION,
    InferAnswer,
    InferCall,
    TensorSignature,
    decode_request,
    encode_answer,
    encode_stream_answer,
    v2_version,
)
from inferometer.agent.protocol.status import NotOfferedError, described
from inferometer.agent.server.admission import MAX_INPUTS, StreamLimit
from inferometer.agent.server.calls import CallContext, Codec, Method, methods_of
from inferometer.agent.server.native.call_tracing import ServerTracing
from inferometer.agent.server.v2.inference import Inference, in_order
from inferometer.agent.server.v2.model_messages import (
    config_message,
    metadata_message,
    read_load_parameters,
    statistics_message,
)
from inferometer.agent.server.v2.repository import NOT_HERE, Repository, named
from inferometer.agent.server.v2.shared_memory import SharedMemory
from inferometer.agent.serving.served_models import ModelState, ServedModels
from inferometer.manifests.catalog import Catalog
from inferometer.manifests.errors import InputError
from inferometer.protos.inference.v2 import grpc_service_pb2 as pb

_SERVICE = pb.DESCRIPTOR.services_by_name["GRPCInferenceService"]
SERVICE = _SERVICE.full_name
_FINAL = "triton_final_response"
_WANTS_FINAL = "triton_enable_empty_final_response"
_EXTENSIONS = (
    "binary_tensor_data",
    "classification",
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
        max_inputs: int = MAX_INPUTS,
        shared_memory: SharedMemory | None = None,
        *,
        tracing: ServerTracing,
    ) -> None:
        self._tracing = tracing
        batching = models.options.batching
        self._models = models
        self._batching = batching
        self._streams = streams
        self._is_ready = is_ready
        self._repository = Repository(models, catalog, registry)
        most = batching.max_batch_size if batching.max_batch_size > 1 else max_inputs
        self._max_batch_size = min(most, max_inputs)
        self._shared_memory = shared_memory
        self._inference = Inference(self._repository, self._max_batch_size, models.clock, shared_memory)

    def methods(self) -> list[Method]:
        """The service's methods."""
        codecs: dict[str, Codec] = {
            "ModelInfer": (decode_request, encode_answer),
            "ModelStreamInfer": (decode_request, encode_stream_answer),
        }
        return methods_of(_SERVICE, self, codecs, aside=["ServerLive", "ServerReady", "ModelReady"])

    def inputs_of(self, name: str, version: str) -> tuple[TensorSignature, ...]:
        """Returns the inputs of a model; raises the errors of ``Repository.find``."""
        return tuple(self._repository.find(name, version).inputs.values())

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

        Each request has one response, which is the final one: as in Triton, no empty response follows.
        """
        trace = self._tracing.begin(call, exported=True)

        async def answer(request: InferCall) -> InferAnswer | pb.ModelStreamInferResponse:
            try:
                _check_final(request)
                with trace.request() if trace else nullcontext() as scope:
                    found = await self._inference.infer(request, call, scope)
                found.message.parameters[_FINAL].bool_param = True
                return found
            except Exception as error:  # noqa: BLE001 - the boundary of one request, as the dispatcher's is of a call
                return _failed(request, described(error, "ModelStreamInfer"))

        with trace or nullcontext(), self._streams.one():
            async with aclosing(in_order(requests, answer)) as answers:
                async for each in answers:
                    yield each

    def model_ready(self, request: pb.ModelReadyRequest, _: CallContext) -> pb.ModelReadyResponse:
        """Answers whether a model is loaded; False for an unknown model, as in Triton."""
        try:
            found = self._repository.find(request.name, request.version)
        except NOT_HERE:
            return pb.ModelReadyResponse(ready=False)
        return pb.ModelReadyResponse(ready=self._is_ready() and self._repository.loaded(found) is not None)

    def model_metadata(self, request: pb.ModelMetadataRequest, _: CallContext) -> pb.ModelMetadataResponse:
        """Describes a model's inputs and outputs; loads the model, because its outputs are unknown before."""
        found = self._repository.find(request.name, request.version)
        with self._repository.lease(found) as model:
            outputs = self._repository.outputs(model)
        versions = self._repository.versions(request.name)
        return metadata_message(request.name, versions, found.manifest, tuple(found.inputs.values()), outputs)

    def model_config(self, request: pb.ModelConfigRequest, _: CallContext) -> pb.ModelConfigResponse:
        """Describes how a model is served; loads the model, like ``model_metadata``."""
        found = self._repository.find(request.name, request.version)
        with self._repository.lease(found) as model:
            outputs = self._repository.outputs(model)
            description = model.description
        return pb.ModelConfigResponse(
            config=config_message(
                request.name,
                description,
                self._batching,
                self._max_batch_size,
                tuple(found.inputs.values()),
                outputs,
                self._repository.version_policy(request.name),
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
        found = self._repository.find(request.name, request.version)
        model = self._repository.loaded(found)
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
                for entry in self._repository.index()
                if entry.state is ModelState.LOADED or not request.ready
            ]
        )

    def repository_model_load(
        self, request: pb.RepositoryModelLoadRequest, _: CallContext
    ) -> pb.RepositoryModelLoadResponse:
        """Loads a model, which stays loaded until it is unloaded or its memory is needed."""
        self._check_repository(request.repository_name)
        parameters = read_load_parameters(request.parameters, self._models.options.session)
        self._repository.load(request.model_name, parameters)
        return pb.RepositoryModelLoadResponse()

    def repository_model_unload(
        self, request: pb.RepositoryModelUnloadRequest, _: CallContext
    ) -> pb.RepositoryModelUnloadResponse:
        """Unloads a model."""
        self._check_repository(request.repository_name)
        self._repository.unload(request.model_name)
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


def _failed(request: InferCall, message: str) -> pb.ModelStreamInferResponse:
    """Returns the response to a failed request, with the id of the request."""
    return pb.ModelStreamInferResponse(
        error_message=message,
        infer_response=pb.ModelInferResponse(
            model_name=request.message.model_name,
            model_version=request.message.model_version,
            id=request.message.id,
            parameters={_FINAL: pb.InferParameter(bool_param=True)},
        ),
    )


def _check_final(request: InferCall) -> None:
    """Raises InputError if the parameter for final responses is neither true nor false."""
    parameters = request.message.parameters
    if _WANTS_FINAL in parameters and not parameters[_WANTS_FINAL].HasField("bool_param"):
        raise InputError(f"parameter {_WANTS_FINAL} must be true or false, in bool_param")
