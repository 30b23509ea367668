"""Further instances of a model in every framework give the same outputs as the first one, also at once."""

from __future__ import annotations

import sys
import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from inferometer.agent.hardware.environment import Weights
from inferometer.agent.inference.registry import Registry
from inferometer.agent.inference.session import SessionOptions, open_session, select_model
from inferometer.agent.serving.batching import BatchingOptions
from inferometer.agent.serving.served_model import ServedModel
from inferometer.manifests.catalog import Catalog


@pytest.mark.parametrize("framework", ["PyTorch", "MXNet", "ONNXRuntime"])
def test_instances_predict_at_once_what_one_predicts(framework: str) -> None:
    registry = Registry()
    manifest = select_model(Catalog(), registry, "DigitsCNN", None, framework)
    [tensor] = manifest.tensors
    random = np.random.default_rng(3)
    batches = [
        {tensor.name: random.random((1 + n % 3, *tensor.sized()), dtype=np.float32)} for n in range(60)
    ]
    session = open_session(manifest, SessionOptions(threads=1), registry)
    expected = [session.infer(batch).outputs for batch in batches]
    model = ServedModel(session, BatchingOptions(instances=3), open_instance=session.open_another)
    try:
        with ThreadPoolExecutor(8) as pool:
            found = list(pool.map(lambda batch: model.infer(batch).outputs, batches))
    finally:
        model.close()
        assert model.wait_closed(30)

    for one, other in zip(expected, found, strict=True):
        assert one.keys() == other.keys()
        for name in one:
            np.testing.assert_array_equal(one[name], other[name])


@pytest.mark.parametrize("framework", ["PyTorch", "ONNXRuntime"])
def test_frameworks_of_threads_compute_without_the_interpreters_lock(framework: str) -> None:
    registry = Registry()
    weights = SessionOptions(threads=1, weights=Weights.RANDOM)
    manifest = select_model(Catalog(), registry, "CIFAR10_LeNet", None, framework, Weights.RANDOM)
    [tensor] = manifest.tensors
    batch = {tensor.name: np.zeros((256, *tensor.sized()), np.float32)}
    begun, ended = threading.Event(), threading.Event()
    interval_s = sys.getswitchinterval()

    def predict() -> None:
        begun.set()
        session.infer(batch)
        ended.set()

    with open_session(manifest, weights, registry) as session:
        session.infer(batch)
        sys.setswitchinterval(1e6)  # a thread that computes with the lock keeps it
        try:
            for _ in range(100):  # this thread may be late on a busy machine
                begun.clear()
                ended.clear()
                thread = threading.Thread(target=predict)
                thread.start()
                begun.wait()
                ran_meanwhile = not ended.is_set()
                thread.join()
                if ran_meanwhile:
                    return
        finally:
            sys.setswitchinterval(interval_s)
    pytest.fail(f"{framework} keeps the interpreter's lock")
