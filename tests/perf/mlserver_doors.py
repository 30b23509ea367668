"""The agent's doors against those of MLServer: 1 KB over gRPC, and 1 KB and 600 KB over HTTP, both ways.

Over HTTP the agent gets and gives binary tensors, and MLServer JSON, as it has no binary tensors. Both models
return their input. See ``mlserver_peer`` for the environment of MLServer.
"""

from __future__ import annotations

import http.client
import itertools
import json
import statistics
import sys
import threading
from collections.abc import Callable, Sequence
from concurrent import futures
from contextlib import ExitStack
from functools import partial

import grpc
import numpy as np

from inferometer.protos.inference.v2 import grpc_service_pb2 as pb
from tests.perf import mlserver_peer
from tests.perf.grpc_round_trip import rate
from tests.perf.hot_path import SHAPES, model_name
from tests.perf.mlserver_peer import PYTHON, mlserver
from tests.perf.peers import started, when_ready
from tests.perf.ratios import Row, divided, interleaved

ROUNDS = 5
IN_FLIGHT = (1, 16)
_CALLS = {"1 KB": 400, "600 KB": 60}
_RUNTIME = mlserver_peer.RUNTIME.replace('"first", tensor.reshape(len(tensor), -1)[:, :1]', '"data", tensor')
Call = Callable[[], None]


def measure() -> list[Row]:
    """Returns the agent's throughput over MLServer's, by door, size and calls in flight; none without it."""
    if PYTHON is None:
        return []
    with ExitStack() as stack:
        ours = _agent(stack)
        theirs = stack.enter_context(mlserver(PYTHON, stack, _RUNTIME))
        calls = {
            ("gRPC", "1 KB"): (_grpc(stack, ours[0], model_name("1 KB")), _grpc(stack, theirs[0], "noop")),
            **{
                ("HTTP", size): (
                    _binary(ours[1], model_name(size), SHAPES[size]),
                    _json(theirs[1], "noop", SHAPES[size]),
                )
                for size in SHAPES
            },
        }
        pools = {count: stack.enter_context(futures.ThreadPoolExecutor(count)) for count in IN_FLIGHT}
        taken = interleaved(
            ROUNDS,
            {
                (*key, side, count): partial(rate, pools[count], call, _CALLS[key[1]])
                for key, pair in calls.items()
                for side, call in zip(("agent", "mlserver"), pair, strict=True)
                for count in IN_FLIGHT
            },
        )
    rows = []
    for (door, size), count in itertools.product(calls, IN_FLIGHT):
        one, other = (taken[door, size, side, count] for side in ("agent", "mlserver"))
        detail = f"{statistics.median(one):.0f} / {statistics.median(other):.0f} calls/s"
        aim = "≥ 2" if door == "gRPC" else "≥ 3"
        name = f"{size} over {door}, {count} in flight: throughput / that of MLServer"
        rows.append(Row(name, divided(one, other), aim, detail))
    return rows


def _agent(stack: ExitStack) -> Sequence[str]:
    """The addresses of an agent's doors."""
    return started(stack, [sys.executable, "-m", "tests.perf.hot_path", "serve", "agent"])


def _grpc(stack: ExitStack, address: str, model: str) -> Call:
    infer = stack.enter_context(grpc.insecure_channel(address)).unary_unary(
        "/inference.GRPCInferenceService/ModelInfer"
    )
    shape = SHAPES["1 KB"]
    item = pb.ModelInferRequest.InferInputTensor(name="data", datatype="FP32", shape=shape)
    content = np.random.default_rng(0).random(shape, np.float32).tobytes()
    request = pb.ModelInferRequest(model_name=model, inputs=[item], raw_input_contents=[content])
    encoded = request.SerializeToString()

    def call() -> None:
        assert len(infer(encoded, timeout=60.0)) > len(content)

    return when_ready(call)


def _binary(address: str, model: str, shape: Sequence[int]) -> Call:
    content = np.random.default_rng(0).random(shape, np.float32).tobytes()
    item = {
        "name": "data",
        "datatype": "FP32",
        "shape": list(shape),
        "parameters": {"binary_data_size": len(content)},
    }
    head = json.dumps({"inputs": [item], "parameters": {"binary_data_output": True}}).encode()
    headers = {"Inference-Header-Content-Length": str(len(head)), "Content-Type": "application/octet-stream"}
    return _posted(address, model, head + content, headers, len(content))


def _json(address: str, model: str, shape: Sequence[int]) -> Call:
    values = np.random.default_rng(0).random(shape, np.float32).ravel()
    item = {"name": "data", "datatype": "FP32", "shape": list(shape), "data": values.tolist()}
    body = json.dumps({"inputs": [item]}).encode()
    return _posted(address, model, body, {"Content-Type": "application/json"}, values.nbytes)


def _posted(address: str, model: str, body: bytes, headers: dict[str, str], least: int) -> Call:
    """A request over a connection of its thread, which waits for Nagle's algorithm on no side."""
    own = threading.local()
    host, port = address.removeprefix("http://").split(":")

    def call() -> None:
        if not hasattr(own, "connection"):
            own.connection = http.client.HTTPConnection(host, int(port), timeout=60)
        own.connection.request("POST", f"/v2/models/{model}/infer", body, headers)
        answer = own.connection.getresponse()
        content = answer.read()
        assert answer.status == 200, content
        assert len(content) > least

    return when_ready(call)
