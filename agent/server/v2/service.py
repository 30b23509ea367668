"""The service of the Open Inference Protocol: convert, call, convert."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator
from typing import Any

import grpc

from agent import __version__
from agent.registry import Registry
from agent.server.limits import MAX_INPUTS
from agent.server.models.model_statistics import Totals
from agent.server.models.served_models import ModelState, ServedModels
from agent.server.rpc import Methods
from agent.server.status import described
from agent.server.steps import taken
from agent.server.stream_limit import StreamLimit
from agent.server.v2.infer_stream import OrderedAnswers
from agent.server.v2.inference import Inference
from agent.server.v2.load_parameters import read_load_parameters
from agent.server.v2.messages import (
    InferAnswer,
    InferCall,
    decode_request,
    encode_answer,
    encode_stream_answer,
)
from agent.server.v2.model_messages import config_message, metadata_message, statistics_message
from agent.server.v2.repository import NOT_HERE, Repository, named
from manifests.catalog import Catalog
from manifests.errors import InputError
from protos.inference.v2 import grpc_service_pb2 as pb

SERVICE = pb.DESCRIPTOR.services_by_name["GRPCInferenceService"].full_name
_EXTENSIONS = ("classification", "model_configuration", "model_repository", "parameters", "statistics")
_STATES = {
    ModelState.LOADED: "READY",
    ModelState.LOADING: "LOADING",
    ModelState.UNLOADED: "UNAVAILABLE",
}


class InferenceService:
    """Serves the models of the agent by the protocol of KServe and Triton.

    Args:
        models: Holds the loaded ones.
        catalog: All models.
        registry: The frameworks.
        streams: Lets streams in.
        is_ready: Whether the agent answers requests, and is not about to stop.
        max_inputs: The most inputs of a request.
    """

    def __init__(
        self,
        models: ServedModels,
        catalog: Catalog,
        registry: Registry,
        streams: StreamLimit,
        is_ready: Callable[[], bool],
        max_inputs: int = MAX_INPUTS,
    ) -> None:
        batching = models.options.batching
        self._models = models
        self._batching = batching
        self._streams = streams
        self._is_ready = is_ready
        self._repository = Repository(models, catalog, registry)
        most = batching.max_batch_size if batching.max_batch_size > 1 else max_inputs
        self._max_batch_size = min(most, max_inputs)
        self._inference = Inference(self._repository, self._max_batch_size, models.clock)

    def handlers(self) -> dict[str, grpc.RpcMethodHandler[Any, Any]]:
        """The service's methods by name."""
        methods = Methods(SERVICE)
        behaviours: dict[str, Callable[[Any, grpc.ServicerContext], Any]] = {
            "ServerLive": self.server_live,
            "ServerReady": self.server_ready,
            "ServerMetadata": self.server_metadata,
            "ModelReady": self.model_ready,
            "ModelMetadata": self.model_metadata,
            "ModelConfig": self.model_config,
            "ModelStatistics": self.model_statistics,
            "RepositoryIndex": self.repository_index,
            "RepositoryModelLoad": self.repository_model_load,
            "RepositoryModelUnload": self.repository_model_unload,
        }
        handlers = {
            name: methods.unary(
                name,
                behaviour,
                getattr(pb, f"{name}Request").FromString,
                getattr(pb, f"{name}Response").SerializeToString,
            )
            for name, behaviour in behaviours.items()
        }
        handlers["ModelInfer"] = methods.in_steps(
            "ModelInfer", self._inference.steps, decode_request, encode_answer
        )
        handlers["ModelStreamInfer"] = methods.both_stream(
            "ModelStreamInfer", self.model_stream_infer, decode_request, encode_stream_answer
        )
        return handlers

    def server_live(self, _: pb.ServerLiveRequest, __: grpc.ServicerContext) -> pb.ServerLiveResponse:
        """Says that there is an agent."""
        return pb.ServerLiveResponse(live=True)

    def server_ready(self, _: pb.ServerReadyRequest, __: grpc.ServicerContext) -> pb.ServerReadyResponse:
        """Says whether it answers requests."""
        return pb.ServerReadyResponse(ready=self._is_ready())

    def server_metadata(
        self, _: pb.ServerMetadataRequest, __: grpc.ServicerContext
    ) -> pb.ServerMetadataResponse:
        """Says what the agent is."""
        return pb.ServerMetadataResponse(name="inferscope", version=__version__, extensions=_EXTENSIONS)

    def model_ready(self, request: pb.ModelReadyRequest, _: grpc.ServicerContext) -> pb.ModelReadyResponse:
        """Says whether a model is loaded; one that is not known is not, as in Triton."""
        try:
            found = self._repository.find(request.name, request.version)
        except NOT_HERE:
            return pb.ModelReadyResponse(ready=False)
        return pb.ModelReadyResponse(ready=self._is_ready() and self._repository.loaded(found) is not None)

    def model_metadata(
        self, request: pb.ModelMetadataRequest, _: grpc.ServicerContext
    ) -> pb.ModelMetadataResponse:
        """Says what a model takes and gives; loads it, because only then its outputs are known."""
        found = self._repository.find(request.name, request.version)
        with self._repository.use(found) as model:
            outputs = self._repository.outputs(model)
        versions = self._repository.versions(request.name)
        return metadata_message(request.name, versions, found.manifest, found.input, outputs)

    def model_config(self, request: pb.ModelConfigRequest, _: grpc.ServicerContext) -> pb.ModelConfigResponse:
        """Says how a model is served; loads it, as ``model_metadata`` does."""
        found = self._repository.find(request.name, request.version)
        with self._repository.use(found) as model:
            outputs = self._repository.outputs(model)
            description = model.description
        return pb.ModelConfigResponse(
            config=config_message(
                request.name, description, self._batching, self._max_batch_size, found.input, outputs
            )
        )

    def model_statistics(
        self, request: pb.ModelStatisticsRequest, _: grpc.ServicerContext
    ) -> pb.ModelStatisticsResponse:
        """Says what a model has done since it was loaded, or what each loaded one has."""
        if not request.name:
            return pb.ModelStatisticsResponse(
                model_stats=[
                    statistics_message(name, model.manifest.version, model.statistics.totals)
                    for name, model in named(self._models.loaded)
                ]
            )
        found = self._repository.find(request.name, request.version)
        model = self._repository.loaded(found)
        totals = Totals() if model is None else model.statistics.totals
        return pb.ModelStatisticsResponse(
            model_stats=[statistics_message(request.name, found.manifest.version, totals)]
        )

    def repository_index(
        self, request: pb.RepositoryIndexRequest, _: grpc.ServicerContext
    ) -> pb.RepositoryIndexResponse:
        """Lists the models, all or those that are loaded."""
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
        self, request: pb.RepositoryModelLoadRequest, _: grpc.ServicerContext
    ) -> pb.RepositoryModelLoadResponse:
        """Loads a model, which stays until it is unloaded or its memory is wanted."""
        self._check_repository(request.repository_name)
        parameters = read_load_parameters(request.parameters, self._models.options.session)
        self._repository.load(request.model_name, parameters)
        return pb.RepositoryModelLoadResponse()

    def repository_model_unload(
        self, request: pb.RepositoryModelUnloadRequest, _: grpc.ServicerContext
    ) -> pb.RepositoryModelUnloadResponse:
        """Unloads a model."""
        self._check_repository(request.repository_name)
        self._repository.unload(request.model_name)
        return pb.RepositoryModelUnloadResponse()

    def model_stream_infer(
        self, calls: Iterator[InferCall], context: grpc.ServicerContext
    ) -> Generator[InferAnswer | pb.ModelStreamInferResponse, None, None]:
        """Runs models on request after request; one that fails is answered in the stream."""

        def answer(call: InferCall) -> InferAnswer | pb.ModelStreamInferResponse:
            try:
                return taken(self._inference.steps(call, context))
            except Exception as error:  # noqa: BLE001 - the boundary of one request, as ``answered`` is of a call
                return _failed(call, described(error, "ModelStreamInfer"))

        with self._streams.one():
            yield from OrderedAnswers(calls, answer).results()

    @staticmethod
    def _check_repository(name: str) -> None:
        if name:
            raise InputError("the agent has one repository, which has no name; leave repository_name out")


def _failed(call: InferCall, message: str) -> pb.ModelStreamInferResponse:
    """The answer that says why there is none; the id says to what."""
    return pb.ModelStreamInferResponse(
        error_message=message,
        infer_response=pb.ModelInferResponse(
            model_name=call.message.model_name, model_version=call.message.model_version, id=call.message.id
        ),
    )
