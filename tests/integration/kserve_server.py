"""A small server of the Open Inference Protocol, built only on grpcio and the stubs."""

import json
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from threading import Event
from typing import Any

import grpc
import numpy as np

from inferometer.protos.inference.v2 import grpc_service_pb2 as pb
from inferometer.protos.inference.v2 import model_config_pb2
from inferometer.protos.inference.v2.grpc_service_pb2_grpc import (
    GRPCInferenceServiceServicer,
    add_GRPCInferenceServiceServicer_to_server,
)

DTYPES = {"FP32": np.float32, "UINT8": np.uint8, "INT64": np.int64}
FIELDS = {"FP32": "fp32_contents", "UINT8": "uint_contents", "INT64": "int64_contents"}
HELD_S = 60.0


@dataclass
class Tensor:
    """One input or output of the metadata."""

    name: str
    datatype: str
    shape: tuple[int, ...]

    def message(self) -> pb.ModelMetadataResponse.TensorMetadata:
        return pb.ModelMetadataResponse.TensorMetadata(
            name=self.name, datatype=self.datatype, shape=self.shape
        )


@dataclass
class Served:
    """What the server does: one model, and how it misbehaves.

    Attributes:
        model: From a batch to the outputs by name.
        fails: The status and message that a method is refused with, by its name.
        holds: Methods that answer only when ``release`` is set.
        change: Changes a response before it is sent.
        calls: The metadata of each ModelInfer, with the request.
        statistics: The model's statistics; None for a server without this extension.
        config: The model's configuration instead of that of ``max_batch_size`` and ``config_parameters``.
        loads: The configurations that the model was loaded with; None for a server without this extension.
    """

    model: Callable[[np.ndarray], dict[str, np.ndarray]]
    inputs: tuple[Tensor, ...]
    outputs: tuple[Tensor, ...]
    model_name: str = "Mean"
    versions: tuple[str, ...] = ("1",)
    platform: str = "any_platform"
    server_name: str = "testserver"
    server_ready: bool = True
    model_ready: bool = True
    typed: bool = False
    max_batch_size: int | None = None
    parameters: dict[str, int] = field(default_factory=dict)
    config_parameters: dict[str, str] = field(default_factory=dict)
    fails: dict[str, tuple[grpc.StatusCode, str]] = field(default_factory=dict)
    holds: set[str] = field(default_factory=set)
    change: Callable[[pb.ModelInferResponse], None] = lambda response: None
    release: Event = field(default_factory=Event)
    calls: list[tuple[dict[str, str], pb.ModelInferRequest]] = field(default_factory=list)
    statistics: Callable[[], pb.ModelStatistics] | None = None
    config: model_config_pb2.ModelConfig | None = None
    loads: list[dict[str, Any]] | None = None
    begun: Event = field(default_factory=Event)
    """Set once a call is held; those that open the model begin before."""


class SmallServer(GRPCInferenceServiceServicer):
    """Answers as it was told to."""

    def __init__(self, served: Served) -> None:
        self.served = served

    def _enter(self, method: str, context: grpc.ServicerContext) -> None:
        served = self.served
        if method in served.holds:
            served.begun.set()
            served.release.wait(HELD_S)
        if method in served.fails:
            context.abort(*served.fails[method])

    def _check_model(self, request: Any, context: grpc.ServicerContext, name: str) -> None:
        if name != self.served.model_name:
            context.abort(grpc.StatusCode.NOT_FOUND, f"no model {name} here")

    def ServerReady(self, request, context):
        self._enter("ServerReady", context)
        return pb.ServerReadyResponse(ready=self.served.server_ready)

    def ModelStatistics(self, request, context):
        self._enter("ModelStatistics", context)
        if self.served.statistics is None:
            return super().ModelStatistics(request, context)
        return pb.ModelStatisticsResponse(model_stats=[self.served.statistics()])

    def ServerMetadata(self, request, context):
        self._enter("ServerMetadata", context)
        extensions = ["model_repository"] if self.served.loads is not None else []
        return pb.ServerMetadataResponse(name=self.served.server_name, version="9.8", extensions=extensions)

    def RepositoryModelLoad(self, request, context):
        self._enter("RepositoryModelLoad", context)
        self.served.loads.append(json.loads(request.parameters["config"].string_param))
        return pb.RepositoryModelLoadResponse()

    def ModelReady(self, request, context):
        self._enter("ModelReady", context)
        return pb.ModelReadyResponse(ready=self.served.model_ready)

    def ModelMetadata(self, request, context):
        self._enter("ModelMetadata", context)
        self._check_model(request, context, request.name)
        return pb.ModelMetadataResponse(
            name=request.name,
            versions=self.served.versions,
            platform=self.served.platform,
            inputs=[tensor.message() for tensor in self.served.inputs],
            outputs=[tensor.message() for tensor in self.served.outputs],
        )

    def ModelConfig(self, request, context):
        served = self.served
        self._enter("ModelConfig", context)
        if served.config is not None:
            return pb.ModelConfigResponse(config=served.config)
        if served.max_batch_size is None:
            context.abort(grpc.StatusCode.UNIMPLEMENTED, "not here")
        return pb.ModelConfigResponse(
            config=model_config_pb2.ModelConfig(
                name=request.name,
                max_batch_size=served.max_batch_size,
                parameters={
                    key: model_config_pb2.ModelParameter(string_value=value)
                    for key, value in served.config_parameters.items()
                },
            )
        )

    def ModelInfer(self, request, context):
        served = self.served
        served.calls.append((dict(context.invocation_metadata()), request))
        self._enter("ModelInfer", context)
        self._check_model(request, context, request.model_name)
        [item], [raw] = request.inputs, request.raw_input_contents
        batch = np.frombuffer(raw, DTYPES[item.datatype]).reshape(item.shape)
        outputs = served.model(batch)
        response = pb.ModelInferResponse(model_name=request.model_name, model_version="1")
        for name in [output.name for output in request.outputs] or list(outputs):
            array = outputs[name]
            [datatype] = [key for key, dtype in DTYPES.items() if dtype == array.dtype]
            tensor = response.outputs.add(name=name, datatype=datatype, shape=array.shape)
            if served.typed:
                getattr(tensor.contents, FIELDS[datatype]).extend(array.reshape(-1).tolist())
            else:
                response.raw_output_contents.append(array.tobytes())
        for key, value in served.parameters.items():
            response.parameters[key].int64_param = value
        served.change(response)
        return response


@dataclass
class Running:
    """A server that runs."""

    address: str
    server: grpc.Server


@contextmanager
def running(served: Served):
    """Runs the server on a free port."""
    with ThreadPoolExecutor(8) as pool:
        server = grpc.server(pool, options=(("grpc.max_receive_message_length", -1),))
        add_GRPCInferenceServiceServicer_to_server(SmallServer(served), server)
        port = server.add_insecure_port("127.0.0.1:0")
        server.start()
        try:
            yield Running(f"kserve://127.0.0.1:{port}", server)
        finally:
            served.release.set()
            server.stop(0).wait()
