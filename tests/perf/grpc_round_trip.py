"""The ``Predict`` round trip with a 600 KB float32 tensor against a bare grpcio echo of the same bytes.

Both servers run in one process and both clients in another. The model returns its input, so that 600 KB
travel in each direction. Each call sends the next of several tensors, as a real client does: a single tensor
would stay in the processor's cache on one side only. Each round measures the two alternately, so that other
work on the machine affects both equally.
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
from collections.abc import Callable, Iterator, Sequence
from concurrent import futures
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import grpc
import numpy as np

from inferometer.agent.inference.predictor import Predictor
from inferometer.agent.inference.registry import FrameworkEntry, Registry
from inferometer.agent.preprocessing.inputs import Tensors
from inferometer.agent.server.server import AgentServer, ServerOptions
from inferometer.client.remote.native.agent import open_remote_agent
from inferometer.manifests.catalog import Catalog
from tests.perf.ratios import Row, divided, interleaved, print_table

SHAPE = (1, 1, 375, 400)  # float32: 600 000 bytes
TENSORS = 8
CALLS_AT_ONCE = 16
LATENCY_CALLS = 60
THROUGHPUT_CALLS = 300
ROUNDS = 9
KEPT = {"MALLOC_TRIM_THRESHOLD_": str(128 << 20), "MALLOC_MMAP_THRESHOLD_": str(32 << 20)}
"""Settings with which glibc keeps freed memory, so that the next message does not page it in again."""
MODEL = """
name: Echo
framework: {name: Echo, version: "*"}
inputs: [{type: image, parameters: {dimensions: [1, 375, 400], color_mode: GRAY}}]
output: {type: raw}
model: {architecture: echo}
"""
_UNLIMITED = (("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1))


class EchoPredictor(Predictor):
    """Returns its input."""

    threads = None
    any_thread = True

    def load(self) -> None:
        pass

    def predict(self, inputs: Tensors) -> Tensors:
        return inputs

    def close(self) -> None:
        pass


class FirstPredictor(EchoPredictor):
    """Returns the first number of each input."""

    def predict(self, inputs: Tensors) -> Tensors:
        return {"first": inputs["data"].reshape(len(inputs["data"]), -1)[:, :1]}


def measure() -> list[Row]:
    """Measures the latency with one call in flight and the throughput with sixteen.

    Both are measured with the default allocator, and again with one that keeps freed memory, on both sides
    and for both the agent and the bare echo.
    """
    return [
        row
        for title, variables in (("default allocator", {}), ("allocator keeps freed memory", KEPT))
        for row in _measured(title, variables)
    ]


def _measured(title: str, variables: dict[str, str]) -> list[Row]:
    """Measures in a separate process, because the allocator reads its settings at the start."""
    command = [sys.executable, "-m", "tests.perf.grpc_round_trip", "call"]
    found = subprocess.run(command, env=os.environ | variables, stdout=subprocess.PIPE, check=True)
    bare_s, agent_s, bare_rates, agent_rates = json.loads(found.stdout)
    return [
        Row(
            f"600 KB both ways, one in flight, {title}: round trip / bare echo",
            divided(agent_s, bare_s),
            "≤ 1.25",
            f"{statistics.median(agent_s) * 1e3:.2f} / {statistics.median(bare_s) * 1e3:.2f} ms",
        ),
        Row(
            f"600 KB both ways, {CALLS_AT_ONCE} in flight, {title}: throughput / bare echo",
            divided(agent_rates, bare_rates),
            "≥ 0.8",
            f"{statistics.median(agent_rates):.0f} / {statistics.median(bare_rates):.0f} calls/s",
        ),
    ]


def _call() -> tuple[Sequence[float], ...]:
    """Returns seconds per call and calls per second, of the bare echo and of the agent, in each round."""
    with _clients() as (bare, agent), futures.ThreadPoolExecutor(CALLS_AT_ONCE) as pool:
        taken = interleaved(
            ROUNDS,
            {
                "bare_s": lambda: latency_s(bare),
                "agent_s": lambda: latency_s(agent),
                "bare_rate": lambda: rate(pool, bare),
                "agent_rate": lambda: rate(pool, agent),
            },
        )
    return tuple(taken[name] for name in ("bare_s", "agent_s", "bare_rate", "agent_rate"))


def latency_s(call: Callable[[], None]) -> float:
    """Returns the median seconds of a call, one at a time."""
    times_s = []
    for _ in range(LATENCY_CALLS):
        started_s = time.perf_counter()
        call()
        times_s.append(time.perf_counter() - started_s)
    return statistics.median(times_s)


def rate(pool: futures.ThreadPoolExecutor, call: Callable[[], None], calls: int = THROUGHPUT_CALLS) -> float:
    """Returns the calls per second with as many in flight as the pool has threads."""
    started_s = time.perf_counter()
    for done in [pool.submit(call) for _ in range(calls)]:
        done.result()
    return calls / (time.perf_counter() - started_s)


@contextmanager
def _clients() -> Iterator[tuple[Callable[[], None], Callable[[], None]]]:
    """Yields a call of the bare echo and one of the agent, both with the same tensors."""
    random = np.random.default_rng(0)
    batches = [random.standard_normal(SHAPE, np.float32) for _ in range(TENSORS)]
    next_batch = itertools.cycle(batches)
    next_content = itertools.cycle([batch.tobytes() for batch in batches])
    with ExitStack() as stack:
        server = subprocess.Popen(
            [sys.executable, "-m", "tests.perf.grpc_round_trip", "serve"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        stack.callback(server.wait)
        assert server.stdin is not None
        assert server.stdout is not None
        stack.callback(server.stdin.close)  # ends the server
        stack.callback(server.stdout.close)
        bare_address, agent_address = server.stdout.readline().split()
        channel = stack.enter_context(grpc.insecure_channel(bare_address, options=_UNLIMITED))
        echo = channel.unary_unary("/bare/Echo")
        remote = stack.enter_context(open_remote_agent(agent_address, "Echo"))

        def bare() -> None:
            assert len(echo(next(next_content))) == batches[0].nbytes

        def agent() -> None:
            outputs: Any = remote.predict_tensor(next(next_batch)).outputs
            assert outputs.tensors["data"].shape == SHAPE

        yield bare, agent


def _serve() -> None:
    """Runs both servers until standard input ends."""
    entries = (("Echo", EchoPredictor), ("First", FirstPredictor))
    registry = Registry(
        tuple(FrameworkEntry(n, f"{__name__}:{made.__name__}", ("numpy",), "") for n, made in entries)
    )
    echo = grpc.method_handlers_generic_handler(
        "bare", {"Echo": grpc.unary_unary_rpc_method_handler(lambda request, _: request)}
    )
    with tempfile.TemporaryDirectory() as folder:
        for name, _ in entries:
            Path(folder, f"{name}.yml").write_text(MODEL.replace("Echo", name), encoding="utf-8")
        options = ServerOptions(port=0)
        bare = grpc.server(futures.ThreadPoolExecutor(options.workers), options=_UNLIMITED)
        bare.add_generic_rpc_handlers((echo,))
        port = bare.add_insecure_port("127.0.0.1:0")
        bare.start()
        with AgentServer(Catalog([Path(folder)]), registry, options) as server:
            print(f"127.0.0.1:{port}", server.address, flush=True)
            sys.stdin.read()
        bare.stop(0).wait()


if __name__ == "__main__":
    if sys.argv[1:] == ["serve"]:
        _serve()
    elif sys.argv[1:] == ["call"]:
        print(json.dumps(_call()))
    else:
        print_table("gRPC Predict", measure())
