"""What a served agent adds to a tensor's way to a model, beside the least that a server in Python can do.

Four servers, each in a process of its own, answer the same ``ModelInfer`` messages, in turns: a bare grpcio
echo, a minimal grpc.aio handler that parses the request, hands it to one thread with a null model and
answers, the agent, and, where ``INFEROMETER_BEFORE_PYTHON`` names the Python of another checkout, the agent
of that. The model returns its input. The processor time of the server's process per call stands beside the
wall-clock time: on a machine that others use it is the figure to trust.

In this process, a null model is asked 1,000 times a second; what counts is the time until it is called.
"""

from __future__ import annotations

import itertools
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent import futures
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import grpc
import numpy as np

from inferometer.agent.inference.registry import FrameworkEntry, Registry
from inferometer.agent.inference.session import Session, SessionOptions, open_session
from inferometer.agent.preprocessing.inputs import Tensors
from inferometer.agent.server.server import AgentServer, ServerOptions
from inferometer.agent.serving.batching import BatchingOptions
from inferometer.agent.serving.served_model import ServedModel
from inferometer.evaluators.load.local_target import LocalTarget
from inferometer.evaluators.load.target import synthetic_tensors
from inferometer.manifests.catalog import Catalog
from inferometer.protos.inference.v2 import grpc_service_pb2 as pb
from tests.perf.grpc_round_trip import CALLS_AT_ONCE, KEPT, TENSORS, EchoPredictor
from tests.perf.ratios import Row, divided, interleaved, print_table

BEFORE = "INFEROMETER_BEFORE_PYTHON"
SHAPES = {"1 KB": (1, 1, 16, 16), "600 KB": (1, 1, 375, 400)}
CALLS = {"1 KB": 600, "600 KB": 240}
ROUNDS = 9
RATE = 1_000
QUERIES = 1_000
MOST_TO_MODEL_S = 50e-6
_METHOD = "/inference.GRPCInferenceService/ModelInfer"
_UNLIMITED = (("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1))
_OF_PROCESS = 2  # CPUCLOCK_SCHED, see clock_getcpuclockid(3)
_AIMS = {
    ("1 KB", "minimal", 1): ("≤ 1.1", ""),
    ("1 KB", "minimal", CALLS_AT_ONCE): ("", "≥ 0.9"),
    ("600 KB", "bare", 1): ("≤ 1.25", ""),
    ("600 KB", "bare", CALLS_AT_ONCE): ("", "≥ 0.8"),
}


@dataclass(frozen=True, slots=True)
class Block:
    """Calls in a row: seconds of a call at the median, calls a second, and processor seconds a call."""

    call_s: float
    rate: float
    processor_s: float


def measure(rounds: int = ROUNDS) -> list[Row]:
    """Measures the servers with an allocator that keeps freed memory, as a long-running server has it."""
    rows = []
    with _servers() as servers:
        for size in SHAPES:
            for in_flight in (1, CALLS_AT_ONCE):
                rows += _beside_each_other(servers, size, in_flight, rounds)
    return [*rows, *_measure_queues(rounds)]


def _measure_queues(rounds: int) -> list[Row]:
    """Measures how long a query takes to reach a null model of this process."""
    with ExitStack() as stack:
        taken = interleaved(rounds, {"served model": _to_served_model(stack), "load": _to_load_target(stack)})
    names = {"served model": "ServedModel.infer", "load": "target of the load generator"}
    return [
        Row(
            f"{names[kind]}, {RATE:,}/s: p50 until a null model is called / {MOST_TO_MODEL_S * 1e6:.0f} µs",
            [statistics.median(each) / MOST_TO_MODEL_S for each in times_s],
            "≤ 1",
            f"{statistics.median(map(statistics.median, times_s)) * 1e6:.0f} µs",
        )
        for kind, times_s in taken.items()
    ]


def _to_served_model(stack: ExitStack) -> Callable[[], Sequence[float]]:
    session: Any = stack.enter_context(_null_session())
    model = ServedModel(session, BatchingOptions())
    stack.callback(model.wait_closed, 5.0)
    stack.callback(model.close)
    batch = {session.description.manifest.tensors[0].name: np.zeros(SHAPES["1 KB"], np.float32)}
    return lambda: _until_called(lambda _: model.infer(batch))


def _to_load_target(stack: ExitStack) -> Callable[[], Sequence[float]]:
    session = stack.enter_context(_null_session())
    parameters = session.description.manifest.inputs[0].parameters
    target = stack.enter_context(LocalTarget(session, synthetic_tensors([parameters], 1, count=1)))

    def run() -> Sequence[float]:
        target.begin(_Ignored())
        try:
            return _until_called(target.submit)
        finally:
            target.end(5.0)

    return run


def _until_called(send: Callable[[int], object]) -> Sequence[float]:
    """Sends queries at a rate, and returns the seconds from each until the model was called."""
    NullPredictor.called_s.clear()
    sent_s, begin_s = [], time.perf_counter()
    for query in range(QUERIES):
        time.sleep(max(0.0, begin_s + query / RATE - time.perf_counter()))
        sent_s.append(time.perf_counter())
        send(query)
    while len(NullPredictor.called_s) < QUERIES:
        time.sleep(1 / RATE)
    return [called_s - each_s for called_s, each_s in zip(NullPredictor.called_s, sent_s, strict=True)]


@contextmanager
def _null_session() -> Iterator[Session]:
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "Instant.yml").write_text(
            MODEL.format(name="Instant", dimensions=list(SHAPES["1 KB"][1:])), encoding="utf-8"
        )
        (manifest,) = Catalog([Path(folder)]).find_models("Instant")
        entry = FrameworkEntry("Echo", f"{NullPredictor.__module__}:NullPredictor", ("numpy",), "")
        with open_session(manifest, SessionOptions(), Registry((entry,))) as session:
            yield session


def _beside_each_other(
    servers: Mapping[str, Server], size: str, in_flight: int, rounds: int
) -> Iterator[Row]:
    with futures.ThreadPoolExecutor(in_flight) as pool:
        blocks = interleaved(
            rounds, {kind: partial(server.block, size, pool, in_flight) for kind, server in servers.items()}
        )
    for kind, reference in (
        ("agent", "minimal"),
        ("agent", "bare"),
        ("minimal", "bare"),
        ("agent", "before"),
    ):
        if reference not in blocks:
            continue
        found, beside = blocks[kind], blocks[reference]
        name = f"{size} both ways, {in_flight} in flight: {kind} / {reference}"
        at_most, at_least = _AIMS.get((size, reference, in_flight), ("", "")) if kind == "agent" else ("", "")
        if in_flight == 1:
            yield _row(f"{name}, round trip", found, beside, "call_s", at_most, 1e6, "µs")
        else:
            yield _row(f"{name}, throughput", found, beside, "rate", at_least, 1, "calls/s")
        yield _row(f"{name}, server's CPU per call", found, beside, "processor_s", "", 1e6, "µs")


def _row(
    name: str, found: Sequence[Block], beside: Sequence[Block], what: str, aim: str, scale: float, unit: str
) -> Row:
    mine, others = ([getattr(block, what) for block in side] for side in (found, beside))
    detail = f"{statistics.median(mine) * scale:.0f} / {statistics.median(others) * scale:.0f} {unit}"
    return Row(name, divided(mine, others), aim, detail)


class Server:
    """A server in a process of its own, and a channel to it."""

    def __init__(self, python: str, kind: str, stack: ExitStack) -> None:
        command = [python, __file__, "serve", kind]
        process = subprocess.Popen(
            command, env=os.environ | KEPT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        stack.callback(process.wait)
        assert process.stdin is not None
        assert process.stdout is not None
        stack.callback(process.stdin.close)  # ends the server
        stack.callback(process.stdout.close)
        channel = grpc.insecure_channel(process.stdout.readline().split()[0], options=_UNLIMITED)
        self._infer = stack.enter_context(channel).unary_unary(_METHOD)
        self._requests = {size: itertools.cycle(_requests(size)) for size in SHAPES}
        self._clock = (~process.pid << 3) | _OF_PROCESS

    def block(self, size: str, pool: futures.ThreadPoolExecutor, in_flight: int) -> Block:
        """Sends a block of calls, so many at once."""
        requests, least = self._requests[size], 4 * int(np.prod(SHAPES[size]))

        def call(request: bytes) -> float:
            began_s = time.perf_counter()
            assert len(self._infer(request)) > least
            return time.perf_counter() - began_s

        prepared = list(itertools.islice(requests, CALLS[size]))
        processor_s, began_s = time.clock_gettime(self._clock), time.perf_counter()
        times_s = list(map(call, prepared) if in_flight == 1 else pool.map(call, prepared))
        taken_s, processor_s = time.perf_counter() - began_s, time.clock_gettime(self._clock) - processor_s
        return Block(statistics.median(times_s), len(prepared) / taken_s, processor_s / len(prepared))


@contextmanager
def _servers() -> Iterator[Mapping[str, Server]]:
    pythons = dict.fromkeys(("bare", "minimal", "agent"), sys.executable)
    if before := os.environ.get(BEFORE):
        pythons["before"] = before
    with ExitStack() as stack:
        yield {
            kind: Server(python, "agent" if kind == "before" else kind, stack)
            for kind, python in pythons.items()
        }


def _requests(size: str) -> list[bytes]:
    """As tritonclient sends them: with an id and the name of the output."""
    random = np.random.default_rng(0)
    item = pb.ModelInferRequest.InferInputTensor(name="data", datatype="FP32", shape=SHAPES[size])
    return [
        pb.ModelInferRequest(
            model_name=model_name(size),
            id=str(number),
            inputs=[item],
            outputs=[pb.ModelInferRequest.InferRequestedOutputTensor(name="data")],
            raw_input_contents=[random.standard_normal(SHAPES[size], np.float32).tobytes()],
        ).SerializeToString()
        for number in range(TENSORS)
    ]


def model_name(size: str) -> str:
    """The name of the model for tensors of a size."""
    return "Echo" + size.replace(" ", "")


MODEL = """
name: {name}
framework: {{name: Echo, version: "*"}}
inputs: [{{type: image, parameters: {{dimensions: {dimensions}, color_mode: GRAY}}}}]
output: {{type: raw}}
model: {{architecture: echo}}
"""


class _Ignored:
    """Takes outcomes, and does nothing with them; satisfies ``load.target.Answers``."""

    def answered(self, query: int, done_ns: int, **times_ns: int) -> None:
        pass

    def failed(self, query: int, done_ns: int, reason: str) -> None:
        raise AssertionError(reason)


class NullPredictor(EchoPredictor):
    """Notes when it was called."""

    called_s: ClassVar[list[float]] = []

    def predict(self, inputs: Tensors) -> Tensors:
        self.called_s.append(time.perf_counter())
        return inputs


def _serve_agent(folder: str) -> None:
    entry = FrameworkEntry("Echo", "tests.perf.grpc_round_trip:EchoPredictor", ("numpy",), "")
    for size, shape in SHAPES.items():
        name = model_name(size)
        text = MODEL.format(name=name, dimensions=list(shape[1:]))
        Path(folder, f"{name}.yml").write_text(text, encoding="utf-8")
    catalog, registry = Catalog([Path(folder)]), Registry((entry,))
    # as ``agent serve`` on a port for metrics, which count each call
    options = ServerOptions(port=0, metrics_port=0, http_port=0)
    with AgentServer(catalog, registry, options) as server:
        print(server.address, server.http_url, flush=True)
        sys.stdin.read()


def _serve_bare(_: str) -> None:
    echo = grpc.unary_unary_rpc_method_handler(lambda request, _: request)
    service, method = _METHOD[1:].split("/")
    server = grpc.server(futures.ThreadPoolExecutor(32), options=_UNLIMITED)
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(service, {method: echo}),))
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    print(f"127.0.0.1:{port}", flush=True)
    sys.stdin.read()
    server.stop(0).wait()


def _serve_minimal(_: str) -> None:
    import asyncio

    async def serve() -> None:
        loop = asyncio.get_running_loop()
        thread = futures.ThreadPoolExecutor(1)

        async def infer(request: pb.ModelInferRequest, _: Any) -> pb.ModelInferResponse:
            item = request.inputs[0]
            tensor = np.frombuffer(request.raw_input_contents[0], np.float32).reshape(tuple(item.shape))
            output = await loop.run_in_executor(thread, lambda: tensor)
            return pb.ModelInferResponse(
                model_name=request.model_name,
                model_version="1",
                id=request.id,
                outputs=[
                    pb.ModelInferResponse.InferOutputTensor(name="data", datatype="FP32", shape=output.shape)
                ],
                raw_output_contents=[output.tobytes()],
            )

        method = grpc.unary_unary_rpc_method_handler(
            infer, pb.ModelInferRequest.FromString, pb.ModelInferResponse.SerializeToString
        )
        service, name = _METHOD[1:].split("/")
        server = grpc.aio.server(options=_UNLIMITED)
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(service, {name: method}),))
        port = server.add_insecure_port("127.0.0.1:0")
        await server.start()
        print(f"127.0.0.1:{port}", flush=True)
        await loop.run_in_executor(None, sys.stdin.read)
        await server.stop(0)

    asyncio.run(serve())


_SERVERS: Mapping[str, Callable[[str], None]] = {
    "agent": _serve_agent,
    "bare": _serve_bare,
    "minimal": _serve_minimal,
}

if __name__ == "__main__":
    if sys.argv[1:2] == ["serve"]:
        with tempfile.TemporaryDirectory() as scratch:
            _SERVERS[sys.argv[2]](scratch)
    else:
        print_table("The way of a tensor", measure())
