"""Fixtures of the store tests: evaluations of real types, and databases."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, replace
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import neosqlite
import numpy as np
import pymongo

from inferometer.agent.hardware.environment import Device, Environment, Gpu
from inferometer.agent.inference.stages import InputFailure, Stage, SystemDescription
from inferometer.agent.tasks.predictions import Classifications
from inferometer.agent.tracing.recorder import TraceLevel
from inferometer.evaluators.datasets.base import DatasetIdentity
from inferometer.evaluators.evaluation import Evaluation, Status
from inferometer.evaluators.kinds.batches.measurement import BatchMeasurement, BatchTimes, InputPrediction
from inferometer.evaluators.kinds.batches.request import BatchOptions
from inferometer.evaluators.store.evaluation_store import EvaluationStore
from inferometer.evaluators.store.opening import open_store
from inferometer.evaluators.tasks.metric import Accuracy
from inferometer.manifests.loader import parse_manifest
from inferometer.manifests.schema import ModelManifest
from tests.evaluations import changed

START_S = 30.0
STOP_S = 10.0

MANIFEST: dict[str, Any] = {
    "name": "DigitsCNN",
    "version": "1.0",
    "framework": {"name": "MXNet", "version": ">=1.9"},
    "inputs": [{"type": "image", "parameters": {"dimensions": [1, 8, 8], "color_mode": "GRAY", "mean": 7.5}}],
    "output": {
        "type": "classification",
        "parameters": {"probabilities_transform": "softmax", "labels": ["zéro", "один", "二"]},
    },
    "model": {"graph_path": "digits.json", "weights_path": "digits.params"},
    "attributes": {"$date": "2020-01-01", "a.b": {"_id": 10**30}, "trained": True, "flops": 2**62 + 1},
}


def make_manifest(**changes: Any) -> ModelManifest:
    manifest = parse_manifest(MANIFEST | changes, Path("digits.yml"))
    assert isinstance(manifest, ModelManifest)
    return manifest


def make_batches(count: int, seed: int = 7) -> BatchTimes:
    random = np.random.default_rng(seed)
    times = (random.integers(0, 2**63 - 1, count) for _ in range(4))
    return BatchTimes(np.full(count, 16, np.int64), *times)


def make_predictions(count: int) -> tuple[InputPrediction, ...]:
    return tuple(
        InputPrediction(
            input_id=f"图-{i}",
            expected_label=None if i % 3 else "二",
            prediction=Classifications(
                np.array([[2, 0, 1]], np.int64), np.array([[0.7, 0.2, 0.1]], np.float32)
            ),
        )
        for i in range(count)
    )


def make_system(**changes: Any) -> SystemDescription:
    environment = Environment(
        hostname=changes.pop("hostname", "Bench-1"),
        architecture=changes.pop("architecture", "x86_64"),
        cpu_model="EPYC",
        logical_cores=4,
        physical_cores=None,
        usable_cores=2,
        memory_bytes=2**40,
        operating_system="Linux ☃",
        kernel="6.1",
        python_version="3.11",
        inferometer_version="0.1.0",
        frameworks={"MXNet": "1.9.1"},
        gpus=(Gpu("H100", 80 * 2**30, "GPU-1"),),
        gpu_driver="550.1",
        variables={"OMP_NUM_THREADS": "2"},
        libraries={"oneDNN": "3.12", "BLAS": "MKL ☃"},
        build="AVX2, $where",
        settings={"TF32 in convolutions": "on", "cuDNN autotuning": "off"},
        governor="performance",
    )
    facts: dict[str, Any] = {
        "manifest": make_manifest(),
        "checksums": {"graph": "sha256:" + "0" * 64},
        "framework_version": "1.9.1",
        "device": Device(),
        "threads": None,
        "preprocess_threads": 2,
        "overlap": True,
        "environment": environment,
    }
    return SystemDescription(**facts | changes)


def make_evaluation(**changes: Any) -> Evaluation[Any]:
    """An evaluation; ``changes`` are its fields, those of its measurement, or ``batch_size``."""
    options = BatchOptions(changes.pop("batch_size", 16), 64, num_file_parts=10)
    evaluation = Evaluation(
        id=str(uuid.uuid4()),
        created_at=datetime(2025, 3, 1, 12, 30, 15, 123000, tzinfo=timezone.utc),
        status=Status.COMPLETE,
        system=make_system(),
        dataset=DatasetIdentity("vision", "digits_validation", None, "sha256:" + "1" * 64, 360),
        measurement=BatchMeasurement(
            options=options,
            times=make_batches(3),
            elapsed_ns=2**62 + 3,
            accuracy=Accuracy(351, 360, 360),
            failures=(InputFailure("17.png", Stage.READ, "cannot be decoded"),),
        ),
        trace_level=TraceLevel.MODEL_TRACE,
    )
    return changed(evaluation, **changes)


def plain(evaluation: Evaluation[Any]) -> dict[str, Any]:
    """An evaluation as nested values that ``==`` compares whole, predictions included."""
    content = {name: getattr(evaluation, name) for name in ("id", "created_at", "status", "trace_level")}
    system, measurement = evaluation.system, evaluation.measurement
    return content | {
        "manifest": system.manifest.model_dump(),
        "system": {
            k: v for k, v in asdict(replace(system, manifest=make_manifest())).items() if k != "manifest"
        },
        "dataset": evaluation.dataset,
        "options": measurement.options,
        "times": {k: (v.dtype, v.tolist()) for k, v in asdict(measurement.times).items()},
        "elapsed_ns": measurement.elapsed_ns,
        "accuracy": measurement.accuracy,
        "failures": measurement.failures,
        "predictions": [plain_prediction(prediction) for prediction in measurement.predictions],
    }


def plain_prediction(prediction: InputPrediction) -> tuple[Any, ...]:
    indices, probabilities = prediction.indices, prediction.probabilities
    return (
        prediction.input_id,
        prediction.expected_label,
        (indices.dtype, indices.tolist()),
        (probabilities.dtype, [repr(p) for p in probabilities.tolist()]),
    )


class StoreBackend:
    """One kind of database, in which a test opens stores by name."""

    def __init__(self, address: str | None, data_dir: Path) -> None:
        self.address = address
        self.data_dir = data_dir

    def open(self, name: str) -> EvaluationStore:
        return open_store(self.address, name, self.data_dir)

    @contextmanager
    def documents(self, name: str) -> Iterator[Any]:
        """The collections behind the store, to damage them."""
        if self.address is None:
            with neosqlite.Connection(str(self.data_dir / f"{name}.db")) as connection:
                yield connection
        else:
            address = self.address if "://" in self.address else f"mongodb://{self.address}"
            with pymongo.MongoClient(address, tz_aware=True) as client:
                yield client[name]


class NxServer:
    """A server of MongoDB's protocol as a process of its own, on a free port of the loopback interface."""

    def __init__(self, directory: Path) -> None:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port: int = probe.getsockname()[1]
        command = [str(Path(sys.executable).parent / "nx-27017"), "--data-dir", str(directory / "data")]
        command += ["--host", "127.0.0.1", "-p", str(self.port)]
        command += ["--log-file", str(directory / "nx.log"), "--pid-file", str(directory / "nx.pid")]
        self._process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        try:
            wait_until(self._answers, START_S, "nx-27017 does not listen")
        except BaseException:
            self.stop()
            raise

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    def _answers(self) -> bool:
        assert self._process.poll() is None, f"nx-27017 ended with {self._process.returncode}"
        try:
            with socket.create_connection(("127.0.0.1", self.port), timeout=1):
                return True
        except OSError:
            return False

    def stop(self) -> None:
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGKILL)
        self._process.wait(STOP_S)


@contextmanager
def mongodb_backend(directory: Path) -> Iterator[StoreBackend]:
    """A real MongoDB where ``MONGODB_URI`` names one, else nx-27017."""
    if uri := os.environ.get("MONGODB_URI"):
        yield StoreBackend(uri, directory)
        return
    server = NxServer(directory)
    try:
        yield StoreBackend(server.address, directory)
    finally:
        server.stop()


def wait_until(condition: Any, deadline_s: float, otherwise: str) -> None:
    end = time.monotonic() + deadline_s
    while not condition():
        assert time.monotonic() < end, otherwise
        time.sleep(0.01)  # between two looks at the condition
