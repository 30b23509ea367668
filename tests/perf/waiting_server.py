"""A server of the Open Inference Protocol whose model waits 10 ms: ``python -m tests.perf.waiting_server``.

It serves one request after the other. For each path that it reads on stdin it writes when each request since
the last one was begun and done, in nanoseconds, and how many waited then (int64, n × 3, as ``.npy``), and
prints a line.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import grpc
import numpy as np

from inferometer.protos.inference.v2 import grpc_service_pb2 as pb
from inferometer.protos.inference.v2.grpc_service_pb2_grpc import (
    GRPCInferenceServiceServicer,
    add_GRPCInferenceServiceServicer_to_server,
)

SERVICE_NS = 10_000_000
_CLASSES = 10
_SPIN_NS = 200_000


def wait(duration_ns: int) -> None:
    """Waits for exactly a time; a sleep alone is too long."""
    end_ns = time.perf_counter_ns() + duration_ns
    while (left_ns := end_ns - time.perf_counter_ns()) > 0:
        if left_ns > 2 * _SPIN_NS:
            time.sleep((left_ns - _SPIN_NS) / 1e9)


class OneThread(ThreadPoolExecutor):
    """One thread, and the number of calls that it was given and has not ended."""

    def __init__(self) -> None:
        super().__init__(1)
        self.given = 0
        self._lock = threading.Lock()

    def submit(self, call: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        with self._lock:
            self.given += 1
        return super().submit(self._counted, call, *args, **kwargs)

    def _counted(self, call: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        try:
            return call(*args, **kwargs)
        finally:
            with self._lock:
                self.given -= 1


class WaitingServer(GRPCInferenceServiceServicer):
    """Answers every request after the service time with equal scores; ``thread`` calls it."""

    def __init__(self, thread: OneThread) -> None:
        self.served: list[tuple[int, int, int]] = []
        self._thread = thread

    def ServerReady(self, request: Any, context: Any) -> Any:
        return pb.ServerReadyResponse(ready=True)

    def ServerMetadata(self, request: Any, context: Any) -> Any:
        return pb.ServerMetadataResponse(name="waiting", version="1")

    def ModelReady(self, request: Any, context: Any) -> Any:
        return pb.ModelReadyResponse(ready=True)

    def ModelConfig(self, request: Any, context: Any) -> Any:
        context.abort(grpc.StatusCode.UNIMPLEMENTED, "this server has no configuration")

    def ModelMetadata(self, request: Any, context: Any) -> Any:
        tensor = pb.ModelMetadataResponse.TensorMetadata
        return pb.ModelMetadataResponse(
            name=request.name,
            versions=["1"],
            platform="waiting",
            inputs=[tensor(name="data", datatype="FP32", shape=[-1, 1, 16, 16])],
            outputs=[tensor(name="scores", datatype="FP32", shape=[-1, _CLASSES])],
        )

    def ModelInfer(self, request: Any, context: Any) -> Any:
        begun_ns = time.perf_counter_ns()
        wait(SERVICE_NS)
        rows = int(request.inputs[0].shape[0])
        scores = np.full((rows, _CLASSES), 1 / _CLASSES, np.float32)
        response = pb.ModelInferResponse(model_name=request.model_name, model_version="1")
        response.outputs.add(name="scores", datatype="FP32", shape=scores.shape)
        response.raw_output_contents.append(scores.tobytes())
        self.served.append((begun_ns, time.perf_counter_ns(), self._thread.given - 1))
        return response


def main() -> None:
    """Serves until stdin ends."""
    thread = OneThread()
    server, service = grpc.server(thread), WaitingServer(thread)
    add_GRPCInferenceServiceServicer_to_server(service, server)
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    print(f"127.0.0.1:{port}", flush=True)
    for line in sys.stdin:
        served, service.served = service.served, []
        np.save(line.strip(), np.asarray(served, np.int64).reshape(-1, 3))
        print("written", flush=True)
    server.stop(0).wait()


if __name__ == "__main__":
    main()
