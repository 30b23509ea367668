"""Instances of a served model: 1, 2 and 4 with the same number of threads in total, at most one per core.

Each way runs in a process of its own, which serves the model without a network and keeps 8 requests of one
input in flight. A second process with one instance is the A/A control. The weights are random. Operators of
CIFAR10_LeNet are too small for several threads, unlike those of ResNet50.
"""

from __future__ import annotations

import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from functools import partial

import numpy as np

from inferometer.agent.hardware.environment import Weights, usable_cores
from inferometer.agent.inference.registry import Registry
from inferometer.agent.inference.session import SessionOptions, open_session, select_model
from inferometer.agent.preprocessing.inputs import blank_batch
from inferometer.agent.serving.batching import BatchingOptions
from inferometer.agent.serving.served_model import ServedModel
from inferometer.manifests.catalog import Catalog
from tests.perf.ratios import Row, divided, interleaved, print_table

FRAMEWORKS = ("PyTorch", "MXNet", "ONNXRuntime")
MODELS = {"CIFAR10_LeNet": 400, "ResNet50": 16}
"""The number of requests of a round, by model."""
THREADS = 4 if usable_cores() >= 4 else 2 if usable_cores() >= 2 else 1
IN_FLIGHT = 8
ROUNDS = 5
WAYS = {"1": 1, "1 again": 1} | {str(count): count for count in (2, 4) if count <= THREADS}


def measure(rounds: int = ROUNDS) -> list[Row]:
    """Measures each installed framework."""
    installed = [name for name in FRAMEWORKS if Registry().versions.get(name)]
    return [row for model in MODELS for name in installed for row in _measured(model, name, rounds)]


def _measured(model: str, framework: str, rounds: int) -> Iterator[Row]:
    with ExitStack() as stack:
        served = {way: stack.enter_context(_served(model, framework, count)) for way, count in WAYS.items()}
        taken = interleaved(rounds, {way: partial(_rate, process) for way, process in served.items()})
    medians = {way: statistics.median(rates) for way, rates in taken.items()}
    for way in list(WAYS)[1:]:
        yield Row(
            f"{model} in {framework}: throughput of {way} × {THREADS // WAYS[way]} threads / 1 × {THREADS}",
            divided(taken[way], taken["1"]),
            "1" if WAYS[way] == 1 else "",
            f"{medians[way]:.0f} / {medians['1']:.0f} requests/s",
        )


@contextmanager
def _served(model: str, framework: str, instances: int) -> Iterator[subprocess.Popen[str]]:
    """Serves a model in a separate process until the block ends."""
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.perf.instances", model, framework, str(instances)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        process.stdout.readline()  # the model is open
        yield process
    finally:
        process.stdin.close()  # ends the process
        process.wait()
        process.stdout.close()


def _rate(process: subprocess.Popen[str]) -> float:
    """Requests per second of one round."""
    assert process.stdin is not None
    assert process.stdout is not None
    print("go", file=process.stdin, flush=True)
    return float(process.stdout.readline())


def _serve(model: str, framework: str, instances: int) -> None:
    """Answers each line of standard input with the rate of a round, until standard input ends."""
    registry = Registry()
    manifest = select_model(Catalog(), registry, model, None, framework, Weights.RANDOM)
    session = open_session(
        manifest, SessionOptions(threads=THREADS // instances, weights=Weights.RANDOM), registry
    )
    served = ServedModel(session, BatchingOptions(instances=instances), open_instance=session.open_another)
    batch = {name: np.asarray(tensor) for name, tensor in blank_batch(manifest.tensors).items()}
    with ThreadPoolExecutor(IN_FLIGHT) as pool:
        print("open", flush=True)
        for _ in sys.stdin:
            began_s = time.perf_counter()
            for _ in pool.map(lambda _: served.infer(batch), range(MODELS[model])):
                pass
            print(MODELS[model] / (time.perf_counter() - began_s), flush=True)
    served.close()
    served.wait_closed()


if __name__ == "__main__":
    if len(sys.argv) == 4:
        _serve(sys.argv[1], sys.argv[2], int(sys.argv[3]))
    else:
        print_table("Instances of a served model", measure())
