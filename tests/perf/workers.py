"""Workers behind one port: throughput with 16 calls in flight, each on a connection of its own.

Agents of one, two and four workers run side by side, and a second one of one worker for A/A. A model that
sleeps for 1 ms in one thread shows whether throughput follows the workers, even on two cores. DigitsCNN
in ONNX Runtime, with one thread per operator, shows what the messages gain where the client shares the cores.
The clients are processes of their own, so that their event loop does not limit the rate.
"""

from __future__ import annotations

import asyncio
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import AsyncExitStack, ExitStack, contextmanager
from functools import partial
from pathlib import Path

import grpc
import numpy as np

from inferometer.protos.inference.v2 import grpc_service_pb2 as pb
from tests.perf.ratios import Row, divided, interleaved, print_table

IN_FLIGHT = 16
CLIENTS = 2
RUN_S = 2.0
ROUNDS = 5
SLEEPING = "Sleeping"
DIGITS = "DigitsCNN@ONNXRuntime"
WORKERS = {"1": 1, "1 again": 1, "2": 2, "4": 4}
AIMS = {(SLEEPING, "2"): "≥ 1.8", (SLEEPING, "4"): "≥ 2.5 on more than two cores"}
_SERVE = "from inferometer.client.cli.main import main; main()"
_PLUGIN = """
import time
from inferometer import FrameworkEntry, Predictor


class Sleeping(Predictor):
    @property
    def threads(self):
        return 1

    def load(self):
        pass

    def predict(self, inputs):
        time.sleep(0.001)
        return inputs

    def close(self):
        pass


FRAMEWORK = FrameworkEntry("Sleeping", "sleeping_framework:Sleeping", ("numpy",), "pip install sleeping")
"""
_MANIFEST = """
name: Sleeping
framework: {name: Sleeping, version: "*"}
inputs: [{type: image, parameters: {dimensions: [1, 16, 16], color_mode: GRAY}}]
output: {type: raw}
model: {architecture: sleeping}
"""
_SHAPE = (1, 1, 16, 16)


def measure() -> list[Row]:
    """Measures both models with each number of workers."""
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        environment = _environment(folder)
        agents = {
            name: stack.enter_context(_served(folder, count, environment)) for name, count in WORKERS.items()
        }
        return [row for model in (SLEEPING, DIGITS) for row in _rows(model, agents)]


def _rows(model: str, agents: dict[str, str]) -> list[Row]:
    for address in agents.values():
        _load(address, model)
    taken = interleaved(ROUNDS, {name: partial(_rate, at, model) for name, at in agents.items()})
    return [
        Row(
            f"{model}: calls/s with {name} / with 1",
            divided(taken[name], taken["1"]),
            AIMS.get((model, name), ""),
            " / ".join(f"{statistics.median(taken[each]):.0f}" for each in (name, "1")),
        )
        for name in agents
        if name != "1"
    ]


def _environment(folder: Path) -> dict[str, str]:
    """Installs the model that sleeps as a plug-in."""
    info = folder / "sleeping-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: sleeping\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(
        "[inferometer.frameworks]\nsleeping = sleeping_framework:FRAMEWORK\n"
    )
    (folder / "sleeping_framework.py").write_text(_PLUGIN)
    (folder / "manifests").mkdir()
    (folder / "manifests" / "Sleeping.yml").write_text(_MANIFEST)
    path = os.pathsep.join([str(folder), os.environ.get("PYTHONPATH", "")])
    return {**os.environ, "PYTHONPATH": path, "AGENT_DATA_DIR": str(folder), "OMP_NUM_THREADS": "1"}


@contextmanager
def _served(folder: Path, workers: int, environment: dict[str, str]) -> Iterator[str]:
    options = [f"--workers={workers}", f"--manifests={folder / 'manifests'}", "--grace_s=5", "--drain_s=0"]
    # a quick model would be predicted on the event loop at times, which is another comparison
    options.append("--inline_predict_us=0")
    command = [sys.executable, "-c", _SERVE, "serve", "--port=0", *options]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as process:
        assert process.stdout is not None
        try:
            yield process.stdout.readline().split()[-1]
        finally:
            process.send_signal(signal.SIGTERM)
            process.wait(60)


def _load(address: str, model: str) -> None:
    with grpc.insecure_channel(address) as channel:
        load = channel.unary_unary(
            "/inference.GRPCInferenceService/RepositoryModelLoad",
            pb.RepositoryModelLoadRequest.SerializeToString,
            pb.RepositoryModelLoadResponse.FromString,
        )
        load(pb.RepositoryModelLoadRequest(model_name=model), timeout=120)


def _rate(address: str, model: str) -> float:
    """The answered calls per second of all clients together."""
    command = [sys.executable, "-m", "tests.perf.workers", address, model]
    with ExitStack() as stack:
        clients = [
            stack.enter_context(subprocess.Popen(command, stdout=subprocess.PIPE, text=True))
            for _ in range(CLIENTS)
        ]
        return sum(float(client.communicate(timeout=120)[0]) for client in clients)


async def _closed_loops(address: str, model: str, in_flight: int) -> float:
    """Keeps calls in flight on a connection each; returns how many a second were answered."""
    tensor = pb.ModelInferRequest.InferInputTensor(name="data", datatype="FP32", shape=_SHAPE)
    content = np.zeros(_SHAPE, np.float32).tobytes()
    request = pb.ModelInferRequest(model_name=model, inputs=[tensor], raw_input_contents=[content])
    sent = request.SerializeToString()
    answered = 0

    async def loop(channel: grpc.aio.Channel) -> None:
        nonlocal answered
        infer = channel.unary_unary("/inference.GRPCInferenceService/ModelInfer")
        while time.perf_counter() < end_s:
            await infer(sent)
            answered += began_s <= time.perf_counter() < end_s

    options = [("grpc.use_local_subchannel_pool", 1)]
    async with AsyncExitStack() as stack:
        made = (grpc.aio.insecure_channel(address, options) for _ in range(in_flight))
        channels = [await stack.enter_async_context(channel) for channel in made]
        for channel in channels:
            await channel.channel_ready()
        began_s = time.perf_counter() + RUN_S / 4  # the other client has started, too
        end_s = began_s + RUN_S
        await asyncio.gather(*map(loop, channels))
    return answered / RUN_S


if __name__ == "__main__":
    if len(sys.argv) > 1:
        print(asyncio.run(_closed_loops(sys.argv[1], sys.argv[2], IN_FLIGHT // CLIENTS)))
    else:
        print_table(f"Workers behind one port, load {os.getloadavg()[0]:.1f}", measure())
