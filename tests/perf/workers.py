"""Workers behind one port: throughput with 4 and 16 calls in flight, each on a connection of its own.

Agents of one, two and four workers run side by side, and a second one of one worker for A/A. A model that
computes for 1 ms of processor time in one thread shows whether throughput follows the workers, which takes
more cores than workers, as the clients need some. DigitsCNN in ONNX Runtime, with one thread per operator,
shows what the messages gain; with ``INFEROMETER_TRITON``, as in the section ``triton``, also beside Triton.
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
from itertools import product
from pathlib import Path

import grpc
import numpy as np

from inferometer.agent.hardware.environment import usable_cores
from inferometer.protos.inference.v2 import grpc_service_pb2 as pb
from tests.perf import triton_peer
from tests.perf.ratios import Row, divided, interleaved, print_table

IN_FLIGHT = (4, 16)
CLIENTS = 2
RUN_S = 1.0
ROUNDS = 5
COMPUTING = "Computing"
DIGITS = "DigitsCNN@ONNXRuntime"
WORKERS = {"1": 1, "1 again": 1, "2": 2, "4": 4}
CORES = usable_cores()
AIMS = {(COMPUTING, "2"): (1.8, 4), (COMPUTING, "4"): (3.2, 8)}
"""The least ratio, and the cores that it takes, of which the clients use some."""
_TRITON = "Triton"
_SERVE = "from inferometer.client.cli.main import main; main()"
_PLUGIN = """
import hashlib
import time
from inferometer import FrameworkEntry, Predictor


class Computing(Predictor):
    @property
    def threads(self):
        return 1

    def load(self):
        pass

    def predict(self, inputs):
        end_s = time.thread_time() + 0.001 * len(next(iter(inputs.values())))
        while time.thread_time() < end_s:
            hashlib.sha256(bytes(16384))  # releases the interpreter
        return inputs

    def close(self):
        pass


FRAMEWORK = FrameworkEntry("Computing", "computing_framework:Computing", ("numpy",), "pip install computing")
"""
_MANIFEST = """
name: Computing
framework: {name: Computing, version: "*"}
inputs: [{type: image, parameters: {dimensions: [1, 16, 16], color_mode: GRAY}}]
output: {type: raw}
model: {architecture: computing}
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
        for address, model in product(agents.values(), (COMPUTING, DIGITS)):
            _load(address, model)
        peers = {}
        if triton_peer.FOLDER:
            peers[_TRITON] = stack.enter_context(triton_peer.triton(Path(triton_peer.FOLDER)))
            triton_peer.call_of(stack, peers[_TRITON], "DigitsCNN")()  # once it serves
        return [
            *_rows(COMPUTING, agents, max(IN_FLIGHT)),
            *(row for count in IN_FLIGHT for row in _rows(DIGITS, agents | peers, count)),
        ]


def _rows(model: str, servers: dict[str, str], in_flight: int) -> list[Row]:
    names = {name: "DigitsCNN" if name == _TRITON else model for name in servers}
    ways = {name: partial(_rate, at, names[name], in_flight) for name, at in servers.items()}
    taken = interleaved(ROUNDS, ways)
    compared = [(name, "1") for name in servers if name not in ("1", _TRITON)]
    if _TRITON in servers:
        compared += [(name, _TRITON) for name in servers if name not in ("1 again", _TRITON)]
    noise = max(abs(ratio - 1) for ratio in divided(taken["1 again"], taken["1"]))
    rows = []
    for over, under in compared:
        ratios = divided(taken[over], taken[under])
        aim = 1.0 if over == "1 again" else 0.8 if under == _TRITON else None
        least, cores = AIMS.get((model, over), (aim, 1))
        text = "" if least is None else f"1 ± {noise:.2f}" if over == "1 again" else f"≥ {least}"
        if least is not None and over != "1 again":
            held = statistics.median(ratios) * (1 + noise) >= least
            text += " holds" if held else " does not hold" if cores <= CORES else f" takes {cores} cores"
        detail = " / ".join(f"{statistics.median(taken[each]):.0f}" for each in (over, under))
        title = f"{model}, {in_flight} in flight: calls/s with {over} / with {under}"
        rows.append(Row(title, ratios, text, detail))
    return rows


def _environment(folder: Path) -> dict[str, str]:
    """Installs the model that computes as a plug-in."""
    info = folder / "computing-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: computing\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(
        "[inferometer.frameworks]\ncomputing = computing_framework:FRAMEWORK\n"
    )
    (folder / "computing_framework.py").write_text(_PLUGIN)
    (folder / "manifests").mkdir()
    (folder / "manifests" / "Computing.yml").write_text(_MANIFEST)
    path = os.pathsep.join([str(folder), os.environ.get("PYTHONPATH", "")])
    return {**os.environ, "PYTHONPATH": path, "AGENT_DATA_DIR": str(folder), "OMP_NUM_THREADS": "1"}


@contextmanager
def _served(folder: Path, workers: int, environment: dict[str, str]) -> Iterator[str]:
    options = [f"--workers={workers}", f"--manifests={folder / 'manifests'}", "--grace_s=5", "--drain_s=0"]
    # a quick model would be predicted on the event loop at times, which is another comparison
    options += ["--inline_predict_us=0", "--max_batch_size=16"]
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


def _rate(address: str, model: str, in_flight: int) -> float:
    """The answered calls per second of all clients together."""
    command = [sys.executable, "-m", "tests.perf.workers", address, model, str(in_flight)]
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
        print(asyncio.run(_closed_loops(sys.argv[1], sys.argv[2], int(sys.argv[3]) // CLIENTS)))
    else:
        print_table(f"Workers behind one port, load {os.getloadavg()[0]:.1f}", measure())
