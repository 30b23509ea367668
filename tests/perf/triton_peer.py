"""The agent against real Triton: DigitsCNN in ONNX Runtime over ModelInfer, with dynamic batching in both.

``INFEROMETER_TRITON`` names the folder ``pytriton/tritonserver`` of the unpacked wheel ``nvidia-pytriton``,
whose binary runs on a CPU with its Python backend; without it, the section is skipped. Both run the same file
with one thread. The client is the same for both: it sends prepared messages over plain gRPC.
"""

from __future__ import annotations

import itertools
import os
import shutil
import statistics
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Callable, Iterator
from concurrent import futures
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path

import grpc
import numpy as np
import onnxruntime

import inferometer.manifests
from inferometer.protos.inference.v2 import grpc_service_pb2 as pb
from tests.perf.grpc_round_trip import rate
from tests.perf.peers import free_ports, when_ready
from tests.perf.ratios import Row, divided, interleaved

FOLDER = os.environ.get("INFEROMETER_TRITON")
ROUNDS = 7
IN_FLIGHT = (1, 4, 16)
_CALLS = 600
_MOST = 16
_MODEL = Path(inferometer.manifests.__file__).parent / "builtin/models/DigitsCNN/digits_cnn.onnx"
_CONFIG = f"""
name: "DigitsCNN"
backend: "python"
max_batch_size: {_MOST}
input [{{ name: "data" data_type: TYPE_FP32 dims: [ 1, 16, 16 ] }}]
output [{{ name: "scores" data_type: TYPE_FP32 dims: [ 10 ] }}]
dynamic_batching {{ }}
instance_group [{{ kind: KIND_CPU count: 1 }}]
"""
_PACKAGES = str(Path(onnxruntime.__file__).parents[1])
_BACKEND = f"""
import sys

sys.path.insert(0, {_PACKAGES!r})  # the process of the backend knows no PYTHONPATH
import numpy as np
import onnxruntime
import triton_python_backend_utils as utils


class TritonPythonModel:
    def initialize(self, args):
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = options.inter_op_num_threads = 1
        self.session = onnxruntime.InferenceSession({str(_MODEL)!r}, options, ["CPUExecutionProvider"])
        self.input = self.session.get_inputs()[0].name

    def execute(self, requests):
        inputs = [utils.get_input_tensor_by_name(each, "data").as_numpy() for each in requests]
        batch = inputs[0] if len(inputs) == 1 else np.concatenate(inputs)
        [scores] = self.session.run(None, {{self.input: batch}})
        ends = np.cumsum([len(each) for each in inputs])[:-1]
        return [utils.InferenceResponse([utils.Tensor("scores", part)]) for part in np.split(scores, ends)]
"""


def measure() -> list[Row]:
    """Returns the agent's throughput over Triton's, by the calls in flight; no rows without Triton."""
    if FOLDER is None:
        return []
    with ExitStack() as stack:
        calls = {
            "agent": call_of(stack, stack.enter_context(_agent()), "DigitsCNN@ONNXRuntime"),
            "triton": call_of(stack, stack.enter_context(triton(Path(FOLDER))), "DigitsCNN"),
        }
        pools = {count: stack.enter_context(futures.ThreadPoolExecutor(count)) for count in IN_FLIGHT}
        taken = interleaved(
            ROUNDS,
            {
                (name, count): partial(rate, pools[count], call, _CALLS)
                for name, call in calls.items()
                for count in IN_FLIGHT
            },
        )
    rows = []
    for count in IN_FLIGHT:
        ours, theirs = taken["agent", count], taken["triton", count]
        detail = f"{statistics.median(ours):.0f} / {statistics.median(theirs):.0f} calls/s"
        rows.append(
            Row(f"{count} in flight: throughput / that of Triton", divided(ours, theirs), "≥ 0.8", detail)
        )
    return rows


def call_of(stack: ExitStack, address: str, model: str) -> Callable[[], None]:
    """Waits until a server answers for a model; returns what calls it."""
    channel = stack.enter_context(grpc.insecure_channel(address))
    infer = channel.unary_unary("/inference.GRPCInferenceService/ModelInfer")
    item = pb.ModelInferRequest.InferInputTensor(name="data", datatype="FP32", shape=(1, 1, 16, 16))
    random = np.random.default_rng(0)
    requests = itertools.cycle(
        pb.ModelInferRequest(
            model_name=model,
            inputs=[item],
            raw_input_contents=[random.random((1, 1, 16, 16), np.float32).tobytes()],
        ).SerializeToString()
        for _ in range(16)
    )

    def call() -> None:
        assert infer(next(requests), timeout=60.0)

    return when_ready(call)


@contextmanager
def _agent() -> Iterator[str]:
    command = [str(Path(sys.executable).with_name("agent")), "serve", "--port=0", "--threads=1"]
    command += [f"--max_batch_size={_MOST}"]
    server = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert server.stdout is not None
    try:
        yield server.stdout.readline().split()[-1]
    finally:
        server.terminate()
        server.wait()
        server.stdout.close()


@contextmanager
def triton(folder: Path) -> Iterator[str]:
    """Serves the model in Triton; yields its address."""
    with tempfile.TemporaryDirectory() as held:
        repository = Path(held) / "models"
        model = repository / "DigitsCNN"
        (model / "1").mkdir(parents=True)
        (model / "config.pbtxt").write_text(_CONFIG, encoding="utf-8")
        (model / "1" / "model.py").write_text(_BACKEND, encoding="utf-8")
        version = f"{sys.version_info.major}.{sys.version_info.minor}"
        backends = Path(held) / "backends" / "python"
        shutil.copytree(folder / "backends" / "python", backends)
        [stub] = (folder / "python_backend_stubs" / version).iterdir()
        shutil.copy(stub, backends)  # Triton looks for it beside its library
        (backends / stub.name).chmod(0o755)
        [port] = free_ports(1)
        bundled = folder.parents[1] / "nvidia_pytriton.libs"
        libraries = (bundled, sysconfig.get_config_var("LIBDIR"))
        server = subprocess.Popen(
            [
                str(folder / "bin" / "tritonserver"),
                f"--model-repository={repository}",
                f"--backend-directory={backends.parent}",
                f"--grpc-port={port}",
                "--grpc-address=127.0.0.1",
                "--allow-http=false",
                "--allow-metrics=false",
            ],
            env={**os.environ, "LD_LIBRARY_PATH": ":".join(map(str, libraries))},
            stdout=subprocess.DEVNULL,
            stderr=None if os.environ.get("INFEROMETER_TRITON_LOG") else subprocess.DEVNULL,
        )
        try:
            yield f"127.0.0.1:{port}"
        finally:
            server.terminate()
            server.wait()
