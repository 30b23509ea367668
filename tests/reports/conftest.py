"""Three evaluations that differ in everything that a report shows."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timedelta, timezone
from importlib import import_module
from pathlib import Path

import numpy as np
import pytest

from inferometer.agent.hardware.environment import CPU, Device, DeviceKind, Environment
from inferometer.agent.inference.stages import InputFailure, Stage, SystemDescription
from inferometer.agent.tracing.recorder import TraceLevel
from inferometer.evaluators.conditions.conditions import Conditions, HostConditions, Spread, Stability
from inferometer.evaluators.datasets.base import DatasetIdentity
from inferometer.evaluators.evaluation import Evaluation, Status
from inferometer.evaluators.kinds.batches.measurement import BatchMeasurement, BatchTimes
from inferometer.evaluators.kinds.batches.request import BatchOptions
from inferometer.evaluators.kinds.registry import every_kind
from inferometer.evaluators.tasks.metric import Accuracy, Score, ScoreInterval, TaskResult
from inferometer.manifests.loader import parse_manifest
from inferometer.manifests.schema import ModelManifest

MACHINE = Environment(
    hostname="bench-1",
    architecture="x86_64",
    cpu_model="A CPU",
    logical_cores=8,
    physical_cores=4,
    usable_cores=8,
    memory_bytes=16 * 2**30,
    operating_system="An OS 1",
    kernel="6.1",
    python_version="3.11.7",
    inferometer_version="0.1.0",
    frameworks={},
    gpus=(),
    gpu_driver=None,
    variables={"OMP_NUM_THREADS": "1"},
    libraries={"oneDNN": "3.12.0", "BLAS": "MKL 2024.2"},
    build="AVX512, oneDNN, MKL, OpenMP",
    settings={"inter-op threads": "2", "oneDNN": "on"},
    governor="performance",
)


def describe(
    name: str, version: str, framework: str, installed: str, device: Device, size: int = 8
) -> SystemDescription:
    manifest = parse_manifest(
        {
            "name": name,
            "version": version,
            "framework": {"name": framework, "version": ">=1"},
            "inputs": [{"type": "image", "parameters": {"dimensions": [3, size, size]}}],
            "output": {"type": "classification"},
            "model": {"graph_path": "model.onnx"},
        },
        Path("model.yml"),
    )
    assert isinstance(manifest, ModelManifest)
    return SystemDescription(
        manifest=manifest,
        checksums={},
        framework_version=installed,
        device=device,
        threads=1,
        preprocess_threads=2,
        overlap=True,
        environment=MACHINE,
    )


def batch_times(sizes: list[int], predict_ns: list[int]) -> BatchTimes:
    """Times whose other stages would show if a report took them for the predict time."""
    other = np.full(len(sizes), 10**12, np.int64)
    return BatchTimes(np.array(sizes, np.int64), other, other + 1, np.array(predict_ns, np.int64), other + 2)


DISTURBED = Conditions(
    Stability.DISTURBED,
    ("other processes took 48 % of the CPU, in 97 % of the time",),
    hosts=(
        HostConditions("bench-1", 3.0, 2.5, 8, 0.48, 0.97, 0.0, frequency_mhz=Spread(1200.0, 2400.0, 3600.0)),
    ),
)


def on_cpu() -> Evaluation:
    """Six full batches of 16 and a last one of 4, which took far less time, on a machine that others had."""
    return Evaluation(
        id="11111111-1111-4111-8111-111111111111",
        created_at=datetime(2026, 3, 1, 12, 30, 0, 250_000, tzinfo=timezone.utc),
        status=Status.COMPLETE,
        system=describe("DigitsCNN", "1.0", "PyTorch", "2.13.0", CPU),
        dataset=DatasetIdentity("vision", "digits_validation", "1.0", None, 100),
        measurement=BatchMeasurement(
            options=BatchOptions(batch_size=16, partition_list_size=16),
            times=batch_times(
                [16, 16, 16, 16, 16, 16, 4],
                [2_000_000, 1_000_000, 3_000_000, 2_500_000, 9_000_000, 1_500_000, 100_000],
            ),
            elapsed_ns=50_000_000,
            accuracy=Accuracy(top1=98, top5=100, evaluated=100),
            failures=(),
            task_result=TaskResult(
                "classification",
                "top-k accuracy, Wilson intervals",
                100,
                (
                    Score("top-1", 0.98, ScoreInterval(0.93, 0.9945)),
                    Score("top-5", 1.0, ScoreInterval(0.963, 1.0)),
                    Score("ECE", 0.0125),
                ),
            ),
        ),
        trace_level=TraceLevel.APPLICATION_TRACE,
        conditions=DISTURBED,
    )


def on_gpu() -> Evaluation:
    """Four batches of 8, one of which lost an input; interrupted, traced, begun in another time zone."""
    return Evaluation(
        id="22222222-2222-4222-8222-222222222222",
        created_at=datetime(2026, 3, 2, 1, 0, 0, 7_000, tzinfo=timezone(timedelta(hours=2))),
        status=Status.INTERRUPTED,
        system=describe("DigitsCNN", "1.0", "MXNet", "1.9.1", Device(DeviceKind.GPU)),
        dataset=DatasetIdentity("vision", "digits_validation", "1.0", None, 100),
        measurement=BatchMeasurement(
            options=BatchOptions(batch_size=8, partition_list_size=8),
            times=batch_times([8, 8, 7, 8], [123_457, 130_001, 777_777, 120_000]),
            elapsed_ns=3_000_000,
            accuracy=Accuracy(top1=30, top5=31, evaluated=31),
            failures=(InputFailure("cat/7.png", Stage.PREPROCESS, "is damaged"),),
        ),
        trace_level=TraceLevel.FRAMEWORK_TRACE,
    )


def without_a_full_batch() -> Evaluation:
    """Five unlabelled inputs, less than a batch, of a model with a name that csv has to quote."""
    system = describe('Net, "wide"', "2.1", "ONNXRuntime", "1.20.1", CPU)
    return Evaluation(
        id="33333333-3333-4333-8333-333333333333",
        created_at=datetime(2026, 3, 3, tzinfo=timezone.utc),
        status=Status.COMPLETE,
        system=replace(system, environment=replace(MACHINE, hostname="bänk-2", architecture="aarch64")),
        dataset=DatasetIdentity("vision", "/data/holiday photos", None, None, 5),
        measurement=BatchMeasurement(
            options=BatchOptions(batch_size=64, partition_list_size=64),
            times=batch_times([5], [4_000_000]),
            elapsed_ns=8_000_000,
            accuracy=None,
            failures=(),
        ),
        trace_level=TraceLevel.APPLICATION_TRACE,
    )


@pytest.fixture
def evaluations() -> list[Evaluation]:
    return [on_cpu(), on_gpu(), without_a_full_batch()]


@pytest.fixture
def shallow(evaluations: list[Evaluation]) -> list[Evaluation]:
    """Two evaluations that have everything that the shallow reports draw."""
    return [evaluations[0], replace(evaluations[1], trace_level=TraceLevel.MODEL_TRACE)]


@pytest.fixture(scope="session")
def _reported() -> dict[str, list[Evaluation]]:
    modules = [import_module(f"tests.kinds.{kind.name}") for kind in every_kind()]
    evaluations = [on_cpu(), on_gpu(), without_a_full_batch()]
    return {name: found for each in modules for name, found in each.reported(evaluations).items()}


@pytest.fixture
def given(_reported: dict[str, list[Evaluation]]) -> dict[str, list[Evaluation]]:
    """What each report has something to draw of; ``tests/kinds`` has a module for each kind."""
    return {name: list(found) for name, found in _reported.items()}


@pytest.fixture
def workloads(given: dict[str, list[Evaluation]]) -> list[Evaluation]:
    """One that kept its bound mostly, one that was stopped and is invalid, and a closed loop."""
    return given["workload"]


@pytest.fixture
def searches(given: dict[str, list[Evaluation]]) -> list[Evaluation]:
    """One with an answer, one without, and one that the harness was too slow for."""
    return given["max_qps"]


@pytest.fixture
def mixes(given: dict[str, list[Evaluation]]) -> list[Evaluation]:
    """A model that others slow down, one that fails beside others, and one alone that is invalid."""
    return given["mix"]


@pytest.fixture
def mix_searches(given: dict[str, list[Evaluation]]) -> list[Evaluation]:
    """The model that limits its mix, the one beside it, and one whose search was stopped."""
    return given["mix_search"]
