"""The agent against MLServer: a 600 KB float32 input in a ModelInfer of the Open Inference Protocol.

MLServer runs in a separate environment, whose Python ``INFEROMETER_MLSERVER_PYTHON`` names
(``python -m venv peer && peer/bin/pip install mlserver==1.7.1``); without the variable, the section is
skipped. Both models return the first number of the tensor. The client is the same for both: it sends prepared
messages over plain gRPC.
"""

from __future__ import annotations

import itertools
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent import futures
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path

import grpc
import numpy as np

from inferometer.protos.inference.v2 import grpc_service_pb2 as pb
from tests.perf.grpc_round_trip import CALLS_AT_ONCE, SHAPE, THROUGHPUT_CALLS
from tests.perf.peers import free_ports, started, when_ready
from tests.perf.ratios import Row, divided, interleaved

PYTHON = os.environ.get("INFEROMETER_MLSERVER_PYTHON")
_AGENT = [sys.executable, "-m", "tests.perf.grpc_round_trip", "serve"]
ROUNDS = 5
_UNLIMITED = (("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1))
RUNTIME = """
import numpy as np
from mlserver import MLModel
from mlserver.codecs import NumpyCodec
from mlserver.types import InferenceResponse


class NoOp(MLModel):
    async def load(self):
        return True

    async def predict(self, payload):
        tensor = NumpyCodec.decode_input(payload.inputs[0])
        answer = NumpyCodec.encode_output("first", tensor.reshape(len(tensor), -1)[:, :1])
        return InferenceResponse(model_name=self.name, outputs=[answer])
"""


def measure() -> list[Row]:
    """Measures both servers with one call in flight and with sixteen; returns no rows without MLServer."""
    if PYTHON is None:
        return []
    with ExitStack() as stack:
        calls = {
            "agent": call_of(stack, started(stack, _AGENT)[1], "First"),
            "mlserver": call_of(stack, stack.enter_context(mlserver(PYTHON, stack))[0], "noop"),
        }
        pool = stack.enter_context(futures.ThreadPoolExecutor(CALLS_AT_ONCE))
        taken = interleaved(
            ROUNDS,
            {
                (name, flying): partial(_measured, pool, call, flying)
                for name, call in calls.items()
                for flying in (1, CALLS_AT_ONCE)
            },
        )
    rows = []
    for flying, aims in ((1, ("", "")), (CALLS_AT_ONCE, ("≥ 4", "≤ 0.3"))):
        ours, theirs = (list(taken[name, flying]) for name in ("agent", "mlserver"))
        for place, (what, unit) in enumerate((("throughput", "calls/s"), ("p99", "ms"))):
            over, under = [run[place] for run in ours], [run[place] for run in theirs]
            detail = f"{statistics.median(over):.1f} / {statistics.median(under):.1f} {unit}"
            name = f"{flying} in flight: {what} / that of MLServer"
            rows.append(Row(name, divided(over, under), aims[place], detail))
    return rows


def _measured(pool: futures.ThreadPoolExecutor, call: Callable[[], None], flying: int) -> tuple[float, float]:
    """Returns the calls per second with ``flying`` calls in flight, and their p99 in milliseconds."""

    def timed(_: int) -> float:
        started_s = time.perf_counter()
        call()
        return time.perf_counter() - started_s

    calls = THROUGHPUT_CALLS if flying > 1 else THROUGHPUT_CALLS // 2
    started_s = time.perf_counter()
    found = list(pool.map(timed, range(calls)) if flying > 1 else map(timed, range(calls)))
    return calls / (time.perf_counter() - started_s), float(np.percentile(found, 99)) * 1e3


def call_of(stack: ExitStack, address: str, model: str) -> Callable[[], None]:
    """Returns a call of a model of a server, once the server has answered it."""
    channel = stack.enter_context(grpc.insecure_channel(address, options=_UNLIMITED))
    infer = channel.unary_unary("/inference.GRPCInferenceService/ModelInfer")
    item = pb.ModelInferRequest.InferInputTensor(name="data", datatype="FP32", shape=SHAPE)
    random = np.random.default_rng(0)
    requests = itertools.cycle(
        pb.ModelInferRequest(
            model_name=model,
            inputs=[item],
            raw_input_contents=[random.standard_normal(SHAPE, np.float32).tobytes()],
        ).SerializeToString()
        for _ in range(4)
    )

    def call() -> None:
        assert infer(next(requests), timeout=60.0)

    return when_ready(call)


@contextmanager
def mlserver(python: str, stack: ExitStack, runtime: str = RUNTIME) -> Iterator[tuple[str, str]]:
    """Starts MLServer with one model, ``noop``, and yields its addresses of gRPC and HTTP."""
    folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
    port, *others = free_ports(3)
    settings = {"host": "127.0.0.1", "grpc_port": port, "http_port": others[0], "metrics_port": others[1]}
    # without workers the model runs in the server's process, which is faster for a model that does nothing
    (folder / "settings.json").write_text(json.dumps({**settings, "debug": False, "parallel_workers": 0}))
    (folder / "model-settings.json").write_text(json.dumps({"name": "noop", "implementation": "noop.NoOp"}))
    (folder / "noop.py").write_text(runtime)
    server = subprocess.Popen(
        [python, "-m", "mlserver.cli.main", "start", str(folder)],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(folder)},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        yield f"127.0.0.1:{port}", f"127.0.0.1:{others[0]}"
    finally:
        server.terminate()
        server.wait()
