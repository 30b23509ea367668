"""Memory of a served agent over 100,000 requests, and the cost of observing a call.

``agent serve`` runs in a separate process, with metrics and with the watch for hanging predictions. Clients
send DigitsCNN one digit per request over the Open Inference Protocol.
"""

from __future__ import annotations

import asyncio
import subprocess
import sys
import tempfile
from collections import namedtuple
from collections.abc import Awaitable, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from time import perf_counter
from typing import Any

import grpc
import numpy as np
import psutil

from inferometer.agent.server.calls import CallContext, CallObserver, Calls, Method
from inferometer.agent.server.metrics import Metrics
from inferometer.agent.server.observation import AccessLog
from inferometer.agent.server.rpc import Dispatcher
from inferometer.agent.serving.prediction_watch import AgentLoad
from inferometer.protos.inference.v2 import grpc_service_pb2 as pb
from inferometer.protos.inference.v2.grpc_service_pb2_grpc import GRPCInferenceServiceStub
from tests.perf.ratios import Row

REQUESTS = 100_000
FIRST = 10_000
CLIENTS = 8
INTERCEPTED = 50_000
_MIB = 1024 * 1024
_Details = namedtuple("_Details", ("method", "invocation_metadata"))


def measure() -> list[Row]:
    """Sends all the requests, which takes some minutes, and times the dispatcher alone."""
    return [_memory(), *_observing()]


def _memory() -> Row:
    with _served() as (address, process), ThreadPoolExecutor(CLIENTS) as pool:
        sizes = []
        began_s = perf_counter()
        for count in (FIRST, REQUESTS - FIRST):
            done = [pool.submit(_send, address, count // CLIENTS) for _ in range(CLIENTS)]
            for future in done:
                future.result()
            sizes.append(process.memory_info().rss)
        rate = REQUESTS / (perf_counter() - began_s)
    return Row(
        f"resident memory after {REQUESTS:,} requests / after {FIRST:,}",
        [sizes[1] / sizes[0]],
        "≤ 1.05",
        f"{sizes[1] / _MIB:.1f} / {sizes[0] / _MIB:.1f} MiB, {rate:.0f} requests/s",
    )


@contextmanager
def _served() -> Iterator[tuple[str, psutil.Process]]:
    with tempfile.TemporaryDirectory() as folder:
        process = subprocess.Popen(
            [
                *(sys.executable, "-c", "from inferometer.client.cli.main import main; main()", "serve"),
                *("--port=0", "--metrics_port=0", "--max_batch_size=8"),
            ],
            stdout=subprocess.PIPE,
            text=True,
            env={"AGENT_DATA_DIR": folder, "PATH": ""},
        )
        assert process.stdout is not None
        try:
            yield process.stdout.readline().removeprefix("serving on ").strip(), psutil.Process(process.pid)
        finally:
            process.terminate()
            process.communicate(timeout=60)


def _send(address: str, count: int) -> None:
    with grpc.insecure_channel(address, options=[("grpc.use_local_subchannel_pool", 1)]) as channel:
        stub = GRPCInferenceServiceStub(channel)
        signature = stub.ModelMetadata(pb.ModelMetadataRequest(name="DigitsCNN")).inputs[0]
        batch = np.zeros((1, *signature.shape[1:]), np.float32)
        tensor = pb.ModelInferRequest.InferInputTensor(
            name=signature.name, datatype=signature.datatype, shape=batch.shape
        )
        request = pb.ModelInferRequest(
            model_name="DigitsCNN", inputs=[tensor], raw_input_contents=[batch.tobytes()]
        )
        for _ in range(count):
            stub.ModelInfer(request)


class _Context:
    """The part of a call that the dispatcher uses."""

    def invocation_metadata(self) -> tuple[tuple[str, str], ...]:
        return (("user-agent", "grpc-python"), ("authorization", "Bearer secret"))

    def set_trailing_metadata(self, metadata: object) -> None: ...

    def peer(self) -> str:
        return ""


async def _nothing(request: bytes, _: CallContext) -> bytes:
    return request


def _observing() -> list[Row]:
    """Returns the microseconds that the dispatcher and its observers take for a call, without gRPC."""
    path = "inference.GRPCInferenceService/ModelInfer"
    details: Any = _Details(f"/{path}", ())
    context: Any = _Context()
    rows = []
    kinds: dict[str, list[CallObserver]] = {
        "log alone": [AccessLog()],
        "log and metrics": [AccessLog(), Metrics(AgentLoad)],
    }
    with ThreadPoolExecutor(1) as pool:
        for title, observers in kinds.items():
            method = Method(path, _nothing, bytes, bytes)
            dispatcher = Dispatcher([method], Calls(pool, pool, observers=observers))

            async def call(dispatcher: Dispatcher = dispatcher) -> None:
                handler: Any = dispatcher.service(details)
                await handler.unary_unary(b"", context)

            taken = [asyncio.run(_call_us(call)) for _ in range(5)]
            rows.append(Row(f"dispatching and observing a call, {title}, µs", taken, "a few"))
    return rows


async def _call_us(call: Callable[[], Awaitable[None]]) -> float:
    began_s = perf_counter()
    for _ in range(INTERCEPTED):
        await call()
    return (perf_counter() - began_s) / INTERCEPTED * 1e6
