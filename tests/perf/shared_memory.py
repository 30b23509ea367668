"""Cost of a ``ModelInfer`` whose input lies in shared memory, relative to an empty call (``ServerLive``).

The model returns the first number of its input: the input is large, the output is small, and nothing is
computed. The same call with the bytes of the input in the message stands beside it, and 1 KB shows what a
``ModelInfer`` costs whatever its input. The server runs in a
process of its own, and all calls use one channel, one call at a time.
"""

from __future__ import annotations

import os
import secrets
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path

import grpc
import numpy as np

from inferometer.agent.inference.registry import FrameworkEntry, Registry
from inferometer.agent.open_inference.codec import BYTE_SIZE, REGION, SEGMENTS
from inferometer.agent.server.server import AgentServer, ServerOptions
from inferometer.manifests.catalog import Catalog
from inferometer.protos.inference.v2 import grpc_service_pb2 as pb
from tests.perf.grpc_round_trip import ROUNDS, latency_s
from tests.perf.ratios import Row, divided, interleaved, print_table

_SHAPES = {"1 KB": (1, 1, 16, 16), "600 KB": (1, 1, 375, 400), "38 MB": (1, 3, 1792, 1792)}
_MODEL = """
name: First{size}
framework: {{name: First, version: "*"}}
inputs: [{{type: image, parameters: {{dimensions: {dimensions}, color_mode: {colors}}}}}]
output: {{type: raw}}
model: {{architecture: first}}
"""
_UNLIMITED = (("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1))
_SERVICE = "/inference.GRPCInferenceService"
_BYTES_ROUNDS = 3  # a call with 38 MB takes long


def measure() -> list[Row]:
    """Measures the latency of one call in flight."""
    taken: dict[str, Sequence[float]] = {}
    with _calls() as calls:
        timed = {
            name: partial(latency_s, call) for name, call in calls.items() if not name.startswith("bytes")
        }
        taken |= interleaved(ROUNDS, timed)
        sent = {
            name: partial(latency_s, call) for name, call in calls.items() if not name.startswith("shared")
        }
        for name, times_s in interleaved(_BYTES_ROUNDS, sent).items():
            taken[name if name != "empty" else "empty beside bytes"] = times_s
    return [
        row
        for size in _SHAPES
        for row in (
            _row(
                f"{size} in shared memory / empty call",
                taken[f"shared {size}"],
                taken["empty"],
                "≤ 1.3" if size != "1 KB" else "",
            ),
            _row(f"{size} in the message / empty call", taken[f"bytes {size}"], taken["empty beside bytes"]),
        )
    ]


def _row(name: str, times_s: Sequence[float], empty_s: Sequence[float], aim: str = "") -> Row:
    detail = f"{statistics.median(times_s) * 1e3:.3f} / {statistics.median(empty_s) * 1e3:.3f} ms"
    return Row(name, divided(times_s, empty_s), aim, detail)


@contextmanager
def _calls() -> Iterator[Mapping[str, Callable[[], None]]]:
    """Yields an empty call, and for each size one with shared memory and one with the bytes."""
    with ExitStack() as stack:
        command = [sys.executable, "-m", "tests.perf.shared_memory", "serve"]
        server = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        stack.callback(server.wait)
        assert server.stdin is not None
        assert server.stdout is not None
        stack.callback(server.stdin.close)  # ends the server
        stack.callback(server.stdout.close)
        address = server.stdout.readline().strip()
        channel = stack.enter_context(grpc.insecure_channel(address, options=_UNLIMITED))
        live = channel.unary_unary(f"{_SERVICE}/ServerLive")
        infer = channel.unary_unary(f"{_SERVICE}/ModelInfer")
        register = channel.unary_unary(f"{_SERVICE}/SystemSharedMemoryRegister")
        calls: dict[str, Callable[[], None]] = {"empty": lambda: _called(live, b"")}
        for size, shape in _SHAPES.items():
            tensor = np.random.default_rng(0).standard_normal(shape, np.float32)
            path = SEGMENTS / f"inferometer-perf-{secrets.token_hex(8)}"
            stack.callback(path.unlink)
            path.write_bytes(tensor.tobytes())
            named = pb.SystemSharedMemoryRegisterRequest(
                name=size, key=f"/{path.name}", byte_size=tensor.nbytes
            )
            register(named.SerializeToString())
            item = pb.ModelInferRequest.InferInputTensor(name="data", datatype="FP32", shape=shape)
            request = pb.ModelInferRequest(model_name=f"First{shape[-1]}", inputs=[item])
            with_bytes = pb.ModelInferRequest(
                model_name=request.model_name, inputs=[item], raw_input_contents=[tensor.tobytes()]
            )
            request.inputs[0].parameters[REGION].string_param = size
            request.inputs[0].parameters[BYTE_SIZE].int64_param = tensor.nbytes
            calls[f"shared {size}"] = partial(_called, infer, request.SerializeToString())
            calls[f"bytes {size}"] = partial(_called, infer, with_bytes.SerializeToString())
        yield calls


def _called(method: Callable[[bytes], bytes], request: bytes) -> None:
    assert method(request)


def _serve() -> None:
    """Runs the agent until standard input ends."""
    predictor = "tests.perf.grpc_round_trip:FirstPredictor"
    registry = Registry((FrameworkEntry("First", predictor, ("numpy",), ""),))
    with tempfile.TemporaryDirectory() as folder:
        for shape in _SHAPES.values():
            colors = "GRAY" if shape[1] == 1 else "RGB"
            text = _MODEL.format(size=shape[-1], dimensions=list(shape[1:]), colors=colors)
            Path(folder, f"First{shape[-1]}.yml").write_text(text, encoding="utf-8")
        options = ServerOptions(port=0, shared_memory=True)
        with AgentServer(Catalog([Path(folder)]), registry, options) as server:
            print(server.address, flush=True)
            sys.stdin.read()


if __name__ == "__main__":
    if sys.argv[1:] == ["serve"]:
        _serve()
    else:
        print_table(f"Shared memory, load {os.getloadavg()[0]:.1f}", measure())
