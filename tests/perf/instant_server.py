"""A server of the Open Inference Protocol that answers at once: ``python -m tests.perf.instant_server``.

It reads no tensor: each ``ModelInfer`` gets the same 1 KB, so that a call takes little but the client.
"""

from __future__ import annotations

import asyncio

import grpc
from grpc_health.v1 import health_pb2

from inferometer.protos.inference.v2 import grpc_service_pb2 as pb

SHAPE = (1, 1, 16, 16)
"""Of the input, in FP32: 1 KB."""
MODEL = "Instant"
_SCORES = 256
_SERVICE = "/inference.GRPCInferenceService"
_DAY_S = 86_400.0


def _answers() -> dict[str, bytes]:
    """The encoded answer to each method."""
    tensor = pb.ModelMetadataResponse.TensorMetadata
    output = pb.ModelInferResponse.InferOutputTensor(name="scores", datatype="FP32", shape=[1, _SCORES])
    answers = {
        "ServerReady": pb.ServerReadyResponse(ready=True),
        "ServerMetadata": pb.ServerMetadataResponse(name="instant", version="1"),
        "ModelReady": pb.ModelReadyResponse(ready=True),
        "ModelMetadata": pb.ModelMetadataResponse(
            name=MODEL,
            versions=["1"],
            platform="instant",
            inputs=[tensor(name="data", datatype="FP32", shape=[-1, *SHAPE[1:]])],
            outputs=[tensor(name="scores", datatype="FP32", shape=[-1, _SCORES])],
        ),
        "ModelInfer": pb.ModelInferResponse(
            model_name=MODEL, model_version="1", outputs=[output], raw_output_contents=[bytes(4 * _SCORES)]
        ),
    }
    return {f"{_SERVICE}/{name}": message.SerializeToString() for name, message in answers.items()}


class _Methods(grpc.GenericRpcHandler):
    """The methods, without serializers, and a health watch that lasts."""

    def __init__(self) -> None:
        self._answers = _answers()

    def service(self, handler_call_details: grpc.HandlerCallDetails) -> grpc.RpcMethodHandler | None:
        if handler_call_details.method == "/grpc.health.v1.Health/Watch":
            return grpc.unary_stream_rpc_method_handler(_watch)
        answer = self._answers.get(handler_call_details.method)
        if answer is None:
            return None

        async def answered(request: bytes, context: object) -> bytes:
            return answer

        return grpc.unary_unary_rpc_method_handler(answered)


async def _watch(request: bytes, context: grpc.aio.ServicerContext[bytes, bytes]) -> None:
    serving = health_pb2.HealthCheckResponse(status=health_pb2.HealthCheckResponse.SERVING)
    await context.write(serving.SerializeToString())
    await asyncio.sleep(_DAY_S)


async def _serve() -> None:
    """Serves until the process is ended."""
    server = grpc.aio.server()
    server.add_generic_rpc_handlers((_Methods(),))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    print(f"127.0.0.1:{port}", flush=True)
    await server.wait_for_termination()


if __name__ == "__main__":
    asyncio.run(_serve())
