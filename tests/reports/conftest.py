"""Three evaluations that differ in everything that a report shows."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timedelta, timezone
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
from inferometer.evaluators.reports.base import REPORTS
from inferometer.evaluators.tasks.metric import Accuracy, Score, ScoreInterval, TaskResult
from inferometer.manifests.loader import parse_manifest
from inferometer.manifests.schema import ModelManifest
from tests.evaluations import changed
from tests.generated_answers import sixty
from tests.ingestion_evaluations import few, many
from tests.memory_points import MEASURED
from tests.reported_operators import operators_in
from tests.reported_operators import several as operators
from tests.reports.loads import (
    calm,
    closed,
    hopeless,
    interrupted,
    limiting,
    loaded,
    overloaded,
    searched,
    silenced,
    slowed,
    unjudged,
    unlimited,
    unlimiting,
)
from tests.reports.pictures import LOADS, SHALLOW, traced
from tests.training_evaluations import make_training
from tests.tuned_hosts import tuned_host

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


@pytest.fixture
def workloads(evaluations: list[Evaluation]) -> list[Evaluation]:
    """One that kept its bound mostly, one that was stopped and is invalid, and a closed loop."""
    return [calm(evaluations[0]), overloaded(evaluations[1]), closed(evaluations[2])]


@pytest.fixture
def searches(evaluations: list[Evaluation]) -> list[Evaluation]:
    """One with an answer, one without, and one that the harness was too slow for."""
    return [searched(evaluations[0]), hopeless(evaluations[1]), unlimited(evaluations[2])]


@pytest.fixture
def mixes(evaluations: list[Evaluation]) -> list[Evaluation]:
    """A model that others slow down, one that fails beside others, and one alone that is invalid."""
    return [slowed(evaluations[0]), silenced(evaluations[1]), unjudged(evaluations[2])]


@pytest.fixture
def mix_searches(evaluations: list[Evaluation]) -> list[Evaluation]:
    """The model that limits its mix, the one beside it, and one whose search was stopped."""
    return [limiting(evaluations[0]), unlimiting(evaluations[1]), interrupted(evaluations[2])]


@pytest.fixture
def given(
    shallow: list[Evaluation],
    workloads: list[Evaluation],
    searches: list[Evaluation],
    mixes: list[Evaluation],
    mix_searches: list[Evaluation],
) -> dict[str, list[Evaluation]]:
    """What each report has something to draw of."""
    deep = [traced(evaluation) for evaluation in shallow]
    loads = dict(zip(LOADS, (workloads, searches, workloads, mixes, mix_searches), strict=True))
    loads |= {"ingestion": [many(shallow[0]), few(shallow[1])]}
    system = shallow[0].system
    alone, halved = make_training(system), make_training(system, batch_size=16, whole_ms=18.0)
    together = make_training(system, ranks=2, whole_ms=11.0, communicate_ms=1.0)
    loads |= {name: [alone, together] for name in ("training", "training_steps", "weak_scaling")}
    loads["strong_scaling"] = [halved, together]
    each = {"labels": ["cat", "dog"], "F1": [0.5, 0.25], "true": [3, 1], "predicted": [2, 2]}
    scores = TaskResult("classification", "F1", 4, (Score("F1", 0.375),), {"per_class": each})
    loads["classes"] = [changed(evaluation, task_result=scores) for evaluation in shallow]
    loads["memory"] = [changed(evaluation, measurement=MEASURED) for evaluation in shallow]
    loads["tuning"] = [loaded(shallow[0], 7, tuned_host()), loaded(shallow[1], 8, tuned_host(rate_qps=100.0))]
    loads["generation"] = [changed(evaluation, measurement=sixty()) for evaluation in shallow]
    loads["operators"] = [operators(shallow[0]), operators_in("MXNet", shallow[0])]
    return {name: loads.get(name, shallow if name in SHALLOW else deep) for name in REPORTS}
