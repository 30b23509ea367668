"""A served agent under a day's worth of calls in fast motion: ``make soak``.

``agent serve`` runs in a separate process with metrics, a log of calls and the address of a collector. In
each round clients send small and large calls, calls that fail, are cancelled or have a trace, clients are
killed while they send, and models are unloaded and loaded again. After each round stand the agent's resident
memory, threads, file descriptors and temporary files. They must stay as they were after the first round, and
memory as it was after half of the rounds: the first ones fill caches and the allocator's arenas.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import grpc
import numpy as np
import onnx
import psutil
from onnx import TensorProto, helper

from inferometer.protos.inference.v2 import grpc_service_pb2 as pb
from inferometer.protos.inference.v2.grpc_service_pb2_grpc import GRPCInferenceServiceStub
from inferometer.protos.inferometer.v1 import predict_pb2

CLIENTS = 8
ROUNDS = 10
SMALL_CALLS, LARGE_CALLS, FAILING_CALLS = 1_000_000, 10_000, 100_000
OTHER_CALLS, KILLED, RELOADS = 10_000, 20, 50
"""Over all rounds: calls of each other kind, killed clients, and models that are loaded again."""
MOST_MEMORY = 1.05
"""At the end over half-time: 500,000 calls that leave 40 bytes each are found."""
MOST_MORE_THREADS = 2
MOST_MORE_DESCRIPTORS = 4
_MIB = 1024 * 1024
_TIMEOUT_S = 60
_SETTLING_S = 12.0
"""After a round, for what the agent notices late, such as killed clients, and for memory that it releases."""
_SECRET = "a secret of the soak's own"
_LOGIN = ("authorization", f"Bearer {_SECRET}")
_INFER = "/inference.GRPCInferenceService/ModelInfer"
_PREDICT, _OPEN = "/inferometer.v1.PredictService/Predict", "/inferometer.v1.PredictService/Open"
_MANIFEST = """
name: {name}
version: 1.0
framework: {{name: ONNXRuntime, version: '>=1'}}
inputs: [{{type: image, parameters: {{dimensions: [3, 224, 224], input_layer: data}}}}]
output: {{type: raw}}
model: {{graph_path: {name}.onnx}}
"""
_KILLED_CLIENT = """
import sys
from tests.soak.__main__ import Sender
sender = Sender(sys.argv[1])
print("ready", flush=True)
while True:
    sender.large()
"""


class Sender:
    """Sends calls of each kind over one connection."""

    def __init__(self, address: str) -> None:
        self._channel = grpc.insecure_channel(
            address, options=[("grpc.use_local_subchannel_pool", 1), ("grpc.max_receive_message_length", -1)]
        )
        self._stub = GRPCInferenceServiceStub(self._channel)
        self._small = _infer("DigitsCNN", (1, 16, 16)).SerializeToString()
        self._large = _infer("Echo", (3, 224, 224)).SerializeToString()
        self._failures = itertools.cycle(_failures())

    def small(self) -> None:
        """One digit."""
        self._send(_INFER, self._small).result()

    def large(self) -> None:
        """600 KB both ways."""
        self._send(_INFER, self._large).result()

    def failing(self) -> None:
        """The next way to fail."""
        way = next(self._failures)
        call = self._send(way.method, way.request, *way.metadata, timeout_s=way.timeout_s)
        # a client that wakes late may have the answer before it notices that its time is over
        in_time = way.timeout_s < _TIMEOUT_S and call.code() is grpc.StatusCode.OK
        if call.code() is not way.code and not in_time:
            raise AssertionError(f"{way} ended with {call.code()}: {call.details()}")

    def cancelled(self) -> None:
        """A call that its client leaves."""
        call = self._send(_INFER, self._large)
        call.cancel()
        call.code()

    def traced(self) -> None:
        """A call whose trace goes to the collector."""
        parent = f"00-{os.urandom(16).hex()}-{os.urandom(8).hex()}-01"
        self._send(_INFER, self._small, _LOGIN, ("traceparent", parent)).result()

    def reload(self) -> None:
        """Unloads a model and loads it again."""
        self._stub.RepositoryModelUnload(
            pb.RepositoryModelUnloadRequest(model_name="Echo"), metadata=[_LOGIN], timeout=_TIMEOUT_S
        )
        self._stub.RepositoryModelLoad(
            pb.RepositoryModelLoadRequest(model_name="Echo"), metadata=[_LOGIN], timeout=_TIMEOUT_S
        )

    def _send(
        self, method: str, request: bytes, *metadata: tuple[str, str], timeout_s: float = _TIMEOUT_S
    ) -> grpc.Future:
        call = self._channel.unary_unary(method)
        return call.future(request, metadata=metadata or (_LOGIN,), timeout=timeout_s)


@dataclass(frozen=True, slots=True)
class Failure:
    """A call that fails, and the code that it ends with."""

    code: grpc.StatusCode
    method: str
    request: bytes = field(repr=False)
    metadata: tuple[tuple[str, str], ...] = ()
    timeout_s: float = _TIMEOUT_S


def _failures() -> list[Failure]:
    """The ways to fail; in most of them the request has 600 KB, as a client's mistake may have."""
    shape = (3, 224, 224)
    right = _infer("Echo", shape)
    short, surplus, unknown, typed, sideways = (_infer("Echo", shape) for _ in range(5))
    short.raw_input_contents[0] = short.raw_input_contents[0][:-4]
    surplus.raw_input_contents.append(b"")
    unknown.inputs[0].name = "date"
    typed.inputs[0].datatype = "FP33"
    sideways.inputs[0].shape[:] = [1, 2**63 - 1, 2, 2]
    session = predict_pb2.PredictRequest(session_id="closed", batch=None, padding=bytes(600_000))
    invalid, absent = grpc.StatusCode.INVALID_ARGUMENT, grpc.StatusCode.NOT_FOUND
    refused = grpc.StatusCode.UNAUTHENTICATED
    whole = right.SerializeToString()
    requests = [_infer("DigitsCNN", shape), short, surplus, unknown, typed, sideways]
    return [
        *(Failure(invalid, _INFER, each.SerializeToString()) for each in requests),
        Failure(absent, _INFER, _infer("Nothing", shape).SerializeToString()),
        Failure(grpc.StatusCode.INTERNAL, _INFER, _infer("Faulty", shape).SerializeToString()),
        Failure(absent, _PREDICT, session.SerializeToString()),
        Failure(absent, _OPEN, predict_pb2.OpenRequest(model_name="x" * 60_000).SerializeToString()),
        Failure(invalid, _INFER, b"\xff" * 600_000),
        Failure(grpc.StatusCode.RESOURCE_EXHAUSTED, _INFER, whole * 2),
        Failure(grpc.StatusCode.UNIMPLEMENTED, f"{_INFER}Later", whole),
        Failure(refused, _INFER, whole, (("authorization", "Bearer guessed"),)),
        Failure(refused, _PREDICT, session.SerializeToString(), (("x", "y"),)),
        Failure(grpc.StatusCode.DEADLINE_EXCEEDED, _INFER, whole, timeout_s=0.0005),
    ]


def _infer(model: str, shape: tuple[int, ...]) -> pb.ModelInferRequest:
    batch = np.zeros((1, *shape), np.float32)
    tensor = pb.ModelInferRequest.InferInputTensor(name="data", datatype="FP32", shape=batch.shape)
    return pb.ModelInferRequest(model_name=model, inputs=[tensor], raw_input_contents=[batch.tobytes()])


def _save_model(folder: Path, name: str, node: onnx.NodeProto, *constants: onnx.TensorProto) -> None:
    """Writes a model of one operator, from ``data`` to ``out``, with its manifest."""
    data = helper.make_tensor_value_info("data", TensorProto.FLOAT, ("batch", 3, 224, 224))
    out = helper.make_tensor_value_info("out", TensorProto.FLOAT, None)
    graph = helper.make_graph([node], name, [data], [out], constants)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    onnx.save(model, folder / f"{name}.onnx")
    (folder / f"{name}.yml").write_text(_MANIFEST.format(name=name))


@contextmanager
def _served(folder: Path) -> Iterator[tuple[str, psutil.Process]]:
    (folder / "models").mkdir()
    _save_model(folder / "models", "Echo", helper.make_node("Identity", ["data"], ["out"]))
    wrong = helper.make_tensor("shape", TensorProto.INT64, [1], [7])  # what no input can be reshaped to
    _save_model(folder / "models", "Faulty", helper.make_node("Reshape", ["data", "shape"], ["out"]), wrong)
    configuration = {"manifests": [str(folder / "models")], "framework": "ONNXRuntime"}
    (folder / "config.yml").write_text(json.dumps(configuration))
    (folder / "tmp").mkdir()
    command = [
        *(sys.executable, "-c", "from inferometer.client.cli.main import main; main()"),
        *("serve", "--port=0", "--metrics_port=0", "-v"),
        *("--max_batch_size=8", "--max_message_mb=1", "--threads=1"),
        "--tracer_address=127.0.0.1:9",
    ]
    environment = {
        **os.environ,
        "AGENT_CONFIG": str(folder / "config.yml"),
        "AGENT_DATA_DIR": str(folder / "data"),
        "AGENT_SECRET": _SECRET,
        "TMPDIR": str(folder / "tmp"),
    }
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=log, text=True)
    assert process.stdout is not None
    try:
        yield process.stdout.readline().removeprefix("serving on ").strip(), psutil.Process(process.pid)
    finally:
        process.terminate()
        process.communicate(timeout=_TIMEOUT_S)


@dataclass(frozen=True, slots=True)
class Usage:
    """What the agent holds when nothing is under way."""

    memory_bytes: int
    threads: int
    descriptors: int
    temporary_files: int

    @classmethod
    def of(cls, process: psutil.Process, folder: Path) -> Usage:
        """Reads it from the system."""
        files = sum(1 for path in (folder / "tmp").rglob("*") if path.is_file())
        return cls(process.memory_info().rss, process.num_threads(), process.num_fds(), files)

    def __str__(self) -> str:
        """As a line of the table."""
        return (
            f"{self.memory_bytes / _MIB:8.1f} MiB  {self.threads:4} threads  "
            f"{self.descriptors:4} descriptors  {self.temporary_files:4} temporary files"
        )

    def is_flat_from(self, first: Usage, half: Usage) -> bool:
        """Whether it is as it was after the first round, and its memory as after half of them."""
        return (
            self.memory_bytes <= MOST_MEMORY * half.memory_bytes
            and self.threads <= first.threads + MOST_MORE_THREADS
            and self.descriptors <= first.descriptors + MOST_MORE_DESCRIPTORS
            and self.temporary_files <= first.temporary_files
        )


def _round(address: str, senders: list[Sender], share: float) -> None:
    """Sends a share of all calls, each kind from all clients at once."""

    def send(kind: str, count: int) -> None:
        each = max(1, round(count * share) // len(senders))
        for done in [pool.submit(_repeat, getattr(sender, kind), each) for sender in senders]:
            done.result()

    with ThreadPoolExecutor(len(senders)) as pool:
        send("small", SMALL_CALLS)
        send("large", LARGE_CALLS)
        send("failing", FAILING_CALLS)
        for kind in ("cancelled", "traced"):
            send(kind, OTHER_CALLS)
    for _ in range(max(1, round(KILLED * share))):
        _kill_a_client(address)
    for _ in range(max(1, round(RELOADS * share))):
        senders[0].reload()


def _repeat(call: Callable[[], None], count: int) -> None:
    for _ in range(count):
        call()


def _kill_a_client(address: str) -> None:
    client = subprocess.Popen([sys.executable, "-c", _KILLED_CLIENT, address], stdout=subprocess.PIPE)
    assert client.stdout is not None
    client.stdout.readline()
    time.sleep(0.05)  # in the middle of a call
    client.send_signal(signal.SIGKILL)
    client.communicate()


def main() -> int:
    """Runs the rounds and prints a line for each; returns 1 if something grew."""
    parser = argparse.ArgumentParser(prog="python -m tests.soak", description=__doc__)
    parser.add_argument("--share", type=float, default=1.0, help="how much of the calls, such as 0.01 to try")
    share = parser.parse_args().share
    with tempfile.TemporaryDirectory() as name, _served(Path(name)) as (address, process):
        senders = [Sender(address) for _ in range(CLIENTS)]
        usages = []
        began_s = time.monotonic()
        for number in range(ROUNDS):
            _round(address, senders, share / ROUNDS)
            time.sleep(_SETTLING_S)
            usages.append(Usage.of(process, Path(name)))
            print(f"{number + 1:3}  {time.monotonic() - began_s:7.0f} s  {usages[-1]}", flush=True)
        first, half = usages[0], usages[ROUNDS // 2 - 1]
        flat = usages[-1].is_flat_from(first, half)
    print("flat" if flat else f"grew: after the first round {first}; after half of them {half}")
    return 0 if flat else 1


if __name__ == "__main__":
    sys.exit(main())
