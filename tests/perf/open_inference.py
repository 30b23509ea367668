"""Cost of a ``ModelInfer`` of the Open Inference Protocol relative to a bare gRPC echo of the same bytes.

The model echoes 600 KB, so that only the protocol takes time. The client sends prepared messages to the agent
and to a bare grpcio server that returns them; both servers share one process. A separate row shows the cost
of tritonclient on the client side.
"""

from __future__ import annotations

import itertools
import json
import os
import statistics
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from concurrent import futures
from contextlib import ExitStack, contextmanager

import grpc
import numpy as np
import tritonclient.grpc as triton

from inferometer.protos.inference.v2 import grpc_service_pb2 as pb
from tests.perf.grpc_round_trip import CALLS_AT_ONCE, KEPT, ROUNDS, SHAPE, TENSORS, latency_s, rate
from tests.perf.ratios import Row, divided, interleaved, print_table

_UNLIMITED = (("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1))
_KINDS = ("bare", "agent", "tritonclient")


def measure() -> list[Row]:
    """Measures the latency of one call in flight and the throughput of sixteen; see ``grpc_round_trip``."""
    return [
        row
        for title, variables in (("default allocator", {}), ("allocator keeps freed memory", KEPT))
        for row in _measured(title, variables)
    ]


def _measured(title: str, variables: dict[str, str]) -> list[Row]:
    command = [sys.executable, "-m", "tests.perf.open_inference", "call"]
    found = subprocess.run(command, env=os.environ | variables, stdout=subprocess.PIPE, check=True)
    taken = json.loads(found.stdout)
    bare_s, bare_rates = taken["bare_s"], taken["bare_rate"]
    rows = []
    for kind, aim in (("agent", "≤ 1.3"), ("tritonclient", "")):
        name = "ModelInfer" if kind == "agent" else "ModelInfer with tritonclient"
        rows.append(
            Row(
                f"600 KB both ways, one in flight, {title}: {name} / bare echo",
                divided(taken[f"{kind}_s"], bare_s),
                aim,
                f"{statistics.median(taken[f'{kind}_s']) * 1e3:.2f} / "
                f"{statistics.median(bare_s) * 1e3:.2f} ms",
            )
        )
    rows.append(
        Row(
            f"600 KB both ways, {CALLS_AT_ONCE} in flight, {title}: throughput / bare echo",
            divided(taken["agent_rate"], bare_rates),
            "",
            f"{statistics.median(taken['agent_rate']):.0f} / {statistics.median(bare_rates):.0f} calls/s",
        )
    )
    return rows


def _call() -> dict[str, Sequence[float]]:
    with _clients() as calls, futures.ThreadPoolExecutor(CALLS_AT_ONCE) as pool:
        measured: dict[str, Callable[[], float]] = {}
        for kind in _KINDS:
            measured[f"{kind}_s"] = lambda kind=kind: latency_s(calls[kind])  # type: ignore[misc]
        for kind in _KINDS[:2]:
            measured[f"{kind}_rate"] = lambda kind=kind: rate(pool, calls[kind])  # type: ignore[misc]
        taken = interleaved(ROUNDS, measured)
    return dict(taken)


@contextmanager
def _clients() -> Iterator[dict[str, Callable[[], None]]]:
    """Yields a call of the bare echo, one of the agent, and one of the agent through tritonclient."""
    random = np.random.default_rng(0)
    batches = [random.standard_normal(SHAPE, np.float32) for _ in range(TENSORS)]
    item = pb.ModelInferRequest.InferInputTensor(name="data", datatype="FP32", shape=SHAPE)
    requests = [
        pb.ModelInferRequest(
            model_name="Echo", inputs=[item], raw_input_contents=[batch.tobytes()]
        ).SerializeToString()
        for batch in batches
    ]
    next_request, next_batch = itertools.cycle(requests), itertools.cycle(batches)
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
        bare_channel = stack.enter_context(grpc.insecure_channel(bare_address, options=_UNLIMITED))
        echo = bare_channel.unary_unary("/bare/Echo")
        channel = stack.enter_context(grpc.insecure_channel(agent_address, options=_UNLIMITED))
        infer = channel.unary_unary("/inference.GRPCInferenceService/ModelInfer")
        client = stack.enter_context(triton.InferenceServerClient(agent_address))

        def bare() -> None:
            request = next(next_request)
            assert len(echo(request)) == len(request)

        def agent() -> None:
            assert len(infer(next(next_request))) > batches[0].nbytes

        def by_tritonclient() -> None:
            batch = next(next_batch)
            tensor = triton.InferInput("data", batch.shape, "FP32")
            tensor.set_data_from_numpy(batch)
            assert client.infer("Echo", [tensor]).as_numpy("data").shape == SHAPE

        yield {"bare": bare, "agent": agent, "tritonclient": by_tritonclient}


if __name__ == "__main__":
    if sys.argv[1:] == ["call"]:
        print(json.dumps(_call()))
    else:
        print_table("V2 ModelInfer", measure())
