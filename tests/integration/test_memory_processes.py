"""Memory in fresh processes: known sizes, limits, killed processes, stops, and models of each framework."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest

import inferometer
from inferometer.agent.child_process import end_children, received, sent, start_child
from inferometer.agent.hardware.allocator import VARIABLE
from inferometer.agent.hardware.environment import CPU, Device
from inferometer.agent.inference.session import SessionOptions
from inferometer.agent.inference.stages import BatchResult, InputFailure, Stage, StageTimes, SystemDescription
from inferometer.agent.preprocessing.inputs import Tensors
from inferometer.evaluators.datasets.arrays import synthetic_arrays
from inferometer.evaluators.evaluation import Evaluation, Status
from inferometer.evaluators.jobs.job import JobCallbacks, JobStart, SystemRequest
from inferometer.evaluators.kinds.memory import job
from inferometer.evaluators.kinds.memory.job import memory_job
from inferometer.evaluators.kinds.memory.kind import MemoryKind, MemoryReport
from inferometer.evaluators.kinds.memory.measurement import MIB, MemoryMeasurement, MemoryRequest
from inferometer.manifests.errors import ArtifactError, EvaluationInterrupted, InferometerError
from tests.reports.conftest import describe, on_cpu

pytestmark = pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="Linux alone has it")
_KEPT: list[Any] = []


@dataclass(frozen=True)
class Known:
    """Resources whose framework takes 40 MiB, whose model takes 80, and each input of a batch ``each_mib``.

    ``fails`` is called with the size of a batch before it is predicted, and returns a message or nothing. A
    further instance is a thread or, if ``apart``, a process that takes 120 MiB.
    """

    each_mib: float = 4.0
    fails: Callable[[int], str | None] = lambda _: None
    model_mib: int = 80
    apart: bool = False
    system: SystemDescription = on_cpu().system
    catalog: None = None

    @property
    def registry(self) -> Any:
        return SimpleNamespace(find=lambda _: SimpleNamespace(load=lambda: _keep(40)))

    def find_model(self, request: object) -> Any:
        return self.system.manifest

    def open_loadable(self, request: object, *, notify: object) -> Any:
        _keep(self.model_mib)
        return KnownSystem(self)


class KnownSystem:
    def __init__(self, resources: Known) -> None:
        self._resources = resources
        self.description = replace(resources.system, agent="local")

    def open_another(self, number: int) -> KnownSystem:
        if self._resources.apart:
            child = start_child("an instance", _hold)
            child.receive()
            _KEPT.append(child)
            return self
        return cast("KnownSystem", self._resources.open_loadable(None, notify=None))

    def close(self) -> None:
        if self._resources.apart:
            end_children([_KEPT.pop()])

    def predict_tensor(self, batch: Tensors) -> BatchResult:
        array = next(iter(batch.values()))
        failure = self._resources.fails(len(array))
        np.ones(int(len(array) * self._resources.each_mib * MIB), np.uint8)  # is freed again
        failures = (InputFailure("0", Stage.PREDICT, failure),) if failure else ()
        return BatchResult((), None, failures, StageTimes(0, 0, 0, 0))


def _keep(mib: int) -> None:
    _KEPT.append(np.ones(mib * MIB, np.uint8))


def _hold(connection: Connection) -> None:
    _keep(120)
    sent(connection, "ready")
    received(connection)


def _no_failure(size: int) -> None:
    return None


def _killed_from_20(size: int) -> None:
    if size >= 20:
        os.kill(os.getpid(), signal.SIGKILL)


def _killed(size: int) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def _refused(size: int) -> str:
    return "the shape does not fit"


def measured(
    resources: Known, callbacks: JobCallbacks | None = None, **given: Any
) -> Evaluation[MemoryMeasurement]:
    request = MemoryRequest(**{"predictions": 1, **given})
    [found] = memory_job(request).run(cast("Any", resources), callbacks or JobCallbacks())
    return found


def data_mib(evaluation: Evaluation[MemoryMeasurement]) -> list[float]:
    return [cast("float", row["data_mib"]) for row in MemoryReport().rows([evaluation])]


def test_known_sizes_are_found_and_the_largest_batch_is_estimated_and_tried() -> None:
    started: list[JobStart] = []
    sizes, limit_mib = (8, 40), 400

    found = measured(
        Known(fails=_no_failure),
        JobCallbacks(on_start=started.append),
        batch_sizes=sizes,
        memory_limit_mib=limit_mib,
        tries=6,  # the search ends when the largest is known; an estimate that is one off needs more than two
    )

    first, second, *_ = cast("Any", list(MemoryReport().rows([found])))
    assert found.status is Status.COMPLETE
    assert first["framework_mib"] == pytest.approx(40, rel=0.02)
    assert first["model_mib"] == pytest.approx(80, rel=0.02)
    assert second["batch_mib"] == pytest.approx(40 * 4, rel=0.02)
    assert second["data_mib"] - first["data_mib"] == pytest.approx(32 * 4, rel=0.02)
    capacity: Any = found.measurement.capacity(0)
    assert abs(capacity["error_percent"]) <= 100 / capacity["largest_batch"] + 0.01  # one input
    # what does not fit at the true largest fits no more than the limit allows
    expected = second["data_mib"] + 4 * (capacity["largest_batch"] - 40)
    assert expected == pytest.approx(limit_mib, rel=0.02)
    assert len(started) == 1


def test_the_peak_of_a_batch_leaves_out_the_drawing_of_its_inputs() -> None:
    """All 64 images are drawn, and one is left of them; the batch itself takes more than freed memory has."""
    images = describe("ResNet18", "1.0", "PyTorch", "2.13.0", CPU, 224)
    known = Known(each_mib=64, fails=_no_failure, system=images)

    found = measured(known, batch_sizes=(1,), memory_limit_mib=900, tries=0)

    [row] = MemoryReport().rows([found])
    [drawn] = synthetic_arrays(images.manifest.tensors, 0).values()
    assert drawn.nbytes > 30 * MIB
    assert 63.6 <= cast("float", row["batch_mib"]) <= 68


def test_the_memory_of_threads_is_that_of_their_process() -> None:
    found = measured(Known(fails=_no_failure), batch_sizes=(8,), memory_limit_mib=900, instances=3)

    [row] = cast("Any", list(MemoryReport().rows([found])))
    assert row["instances"] == 3
    assert row["framework_mib"] == pytest.approx(40, rel=0.02)
    assert row["model_mib"] == pytest.approx(3 * 80, rel=0.02)
    assert 8 * 4 <= row["batch_mib"] <= 3 * 8 * 4 + 10  # the batches may be predicted one after the other


def test_the_memory_of_processes_is_their_sum_and_the_limit_is_that_of_all() -> None:
    given: Any = {"batch_sizes": (1, 8), "instances": 2}
    found = measured(Known(fails=_no_failure, apart=True), memory_limit_mib=9000, tries=0, **given)

    first, second = cast("Any", list(MemoryReport().rows([found])))
    assert first["framework_mib"] == pytest.approx(40, rel=0.02)
    assert 80 + 120 < first["model_mib"] < 80 + 120 + 100  # with Python and its modules, but not their files
    assert first["peak_mib"] < second["peak_mib"]
    alone, limit_mib = first["data_mib"] - 120, int(first["data_mib"] - 20)
    assert alone < limit_mib
    found = measured(Known(fails=_no_failure, apart=True), memory_limit_mib=limit_mib, tries=1, **given)
    *_, tried = cast("Any", list(MemoryReport().rows([found])))
    assert (tried["batch_size"], tried["outcome"]) == (1, "does not fit")
    assert "MiB of data in all processes" in tried["failure"]
    assert found.measurement.capacity(0)["largest_batch"] == 0


def test_sizes_are_chosen_up_to_nearly_the_limit() -> None:
    found = measured(Known(each_mib=16, fails=_no_failure), memory_limit_mib=600, tries=0)

    sizes = [each["batch_size"] for each in found.measurement.points]
    assert sizes[:2] == [1, 8]
    assert 0.9 * 600 < data_mib(found)[-1] < 600


@pytest.mark.parametrize(
    ("limit_mib", "fails", "largest"),
    [
        pytest.param(160, _no_failure, 0, id="the model does not fit"),
        pytest.param(2000, _killed_from_20, None, id="killed under the limit"),
    ],
)
def test_out_of_memory_is_a_result(
    limit_mib: int, fails: Callable[[int], str | None], largest: int | None
) -> None:
    found = measured(Known(fails=fails), batch_sizes=(1, 2), memory_limit_mib=limit_mib, tries=1)

    *_, last = MemoryReport().rows([found])
    assert found.status is Status.COMPLETE
    assert found.measurement.capacity(0)["largest_batch"] == largest
    assert last["outcome"] == "does not fit"
    assert last["failure"] == "out of memory" if largest == 0 else "SIGKILL" in str(last["failure"])


@pytest.mark.parametrize(
    ("fails", "reason"), [(_killed, "ended by SIGKILL"), (_refused, "the shape does not fit")]
)
def test_a_model_that_predicts_no_batch_gives_a_failed_evaluation(
    fails: Callable[[int], str | None], reason: str
) -> None:
    found = measured(Known(fails=fails), memory_limit_mib=900)

    assert found.status is Status.FAILED
    assert reason in MemoryKind().unanswered(found.measurement)
    assert [row["outcome"] for row in MemoryReport().rows([found])] == ["failed"]


def test_after_a_stop_the_processes_that_have_ended_are_kept() -> None:
    asked: list[bool] = []

    def stop() -> bool:
        asked.append(len(asked) >= 1)
        return asked[-1]

    found = measured(Known(fails=_no_failure), JobCallbacks(stop_requested=stop), batch_sizes=(1, 2))

    assert found.status is Status.INTERRUPTED
    assert [each["batch_size"] for each in found.measurement.points] == [1]
    with pytest.raises(EvaluationInterrupted):
        measured(Known(), JobCallbacks(stop_requested=lambda: True))


@dataclass(frozen=True)
class Lost(Known):
    """Resources that end the second process that reads them, before it has begun to measure."""

    file: Path = Path()

    def __reduce__(self) -> Any:
        return _count, (self.file,)


def _count(file: Path) -> Known:
    with file.open("a+") as counted:
        if counted.write("x") and counted.tell() >= 2:
            os._exit(3)
    return Known(fails=_no_failure)


def test_a_process_that_is_lost_before_it_begins_is_not_out_of_memory(tmp_path: Path) -> None:
    with pytest.raises(InferometerError, match="batch size 2"):
        measured(Lost(file=tmp_path / "read"), batch_sizes=(1, 2), memory_limit_mib=2, tries=1)


class Counting:
    """The framework of a GPU: 100 MiB of model, and 10 of each input, for which it reserves 12 if it may."""

    limit_bytes, size, loaded = 10**12, 0, False

    @classmethod
    def limit_device_memory(cls, index: int, limit_bytes: int) -> None:
        assert not cls.loaded
        cls.limit_bytes = limit_bytes

    @classmethod
    def read_device_memory(cls, index: int) -> dict[str, int]:
        peaks = {"AllocatedPeak": 100 + 10 * cls.size, "ReservedPeak": 100 + 12 * cls.size}
        found = {"Allocated": 100, "Reserved": 200, **peaks}
        return {f"Device{name}": value * MIB for name, value in found.items()}

    @classmethod
    def fails(cls, size: int) -> str | None:
        cls.size = size
        return "CUDA out of memory" if (100 + 12 * size) * MIB > cls.limit_bytes else None


class NotCounting(Counting):
    """A framework that does not count its memory of a GPU."""

    @classmethod
    def read_device_memory(cls, index: int) -> dict[str, int]:
        return {}


@dataclass(frozen=True)
class OnGpu(Known):
    """Resources whose framework has a GPU of 2,000 MiB; 500 are outside of its allocator."""

    framework: type[Counting] = Counting

    def __reduce__(self) -> Any:
        return _on_gpu, (self.framework,)

    @property
    def registry(self) -> Any:
        return SimpleNamespace(find=lambda _: SimpleNamespace(load=lambda: self.framework))

    def open_loadable(self, request: object, *, notify: object) -> Any:
        self.framework.loaded = True
        return super().open_loadable(request, notify=notify)


def _on_gpu(framework: type[Counting]) -> OnGpu:
    """Opens the resources in a process that has the GPU."""
    job.read_gpu_memory = lambda _: _gpu_memory(framework.loaded)
    return OnGpu(fails=framework.fails, framework=framework)


def _gpu_memory(loaded: bool = False) -> dict[str, int]:
    used = 300 + 700 * loaded
    return {"DeviceUsed": used * MIB, "DeviceFree": (2300 - used) * MIB}


_GPU: Any = {"system": SystemRequest(session=SessionOptions(device=Device.gpus("0")))}


@pytest.mark.parametrize(
    ("limit_mib", "largest"),
    [pytest.param(1000, 33, id="given"), pytest.param(None, 116, id="what is free"), (550, 0)],
)
def test_the_limit_on_a_gpu_bounds_what_the_process_takes_of_it(
    limit_mib: int | None, largest: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(job, "read_gpu_memory", lambda _: _gpu_memory())
    found = measured(OnGpu(), batch_sizes=(1, 8), memory_limit_mib=limit_mib, tries=2, **_GPU)

    first, *_, last = cast("Any", list(MemoryReport().rows([found])))
    assert (first["memory_of"], first["framework_mib"], first["peak_mib"]) == ("device", 500, 610)
    capacity = found.measurement.capacity(0)
    assert (capacity["largest_batch"], capacity["estimated_batch"]) == (largest, largest)
    assert (last["outcome"], last["failure"]) == ("does not fit", "CUDA out of memory")


@pytest.mark.parametrize(
    ("framework", "memory", "message"),
    [
        (NotCounting, _gpu_memory(), "does not count its memory of a GPU; use PyTorch"),
        (Counting, {}, "gpu:0: NVML finds no such GPU, or no driver; measure on the CPU"),
    ],
)
def test_a_gpu_whose_memory_is_not_told_is_refused(
    framework: type[Counting], memory: dict[str, int], message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(job, "read_gpu_memory", lambda _: memory)
    with pytest.raises(InferometerError, match=message):
        measured(OnGpu(framework=framework), batch_sizes=(1,), **_GPU)


def _no_file(size: int) -> str:
    raise ArtifactError("model.onnx: is missing")


def test_an_error_of_the_model_is_raised() -> None:
    with pytest.raises(InferometerError, match="is missing"):
        measured(Known(fails=_no_file), batch_sizes=(1, 2))


@pytest.mark.parametrize("instances", [1, 2])
@pytest.mark.parametrize("framework", ["ONNXRuntime", "PyTorch", "MXNet"])
def test_a_model_of_each_framework_is_measured(
    framework: str, instances: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Any
) -> None:
    monkeypatch.setenv("AGENT_DATA_DIR", str(tmp_path))
    found = inferometer.measure(
        "memory",
        framework=framework,
        publish=False,
        batch_sizes=(1024,),
        predictions=1,
        memory_limit=2000,
        tries=0,
        instances=instances,
    )

    [row] = cast("Any", list(MemoryReport().rows([found])))
    has_processes = framework == "MXNet" and instances == 2  # of which each has the framework
    assert (row["model_mib"] > 40) == has_processes
    assert found.measurement.options["batch_sizes"] == (1024,)
    assert found.measurement.capacity(0)["estimated_batch"] is None  # of one size
    assert all(row[key] > 0 for key in ("framework_mib", "model_mib", "data_mib"))
    assert row["batch_mib"] > instances * 1024 * 16 * 16 * 4 / MIB  # the inputs alone


_MEASURE = """
import json, sys, inferometer
from inferometer.evaluators.kinds.memory.kind import MemoryReport
found = inferometer.measure("memory", publish=False, **json.loads(sys.argv[1]))
print(json.dumps([dict(row) for row in MemoryReport().rows([found])]))
"""


def rows_with(policy: str, data: Path, **given: Any) -> list[dict[str, Any]]:
    """Measures in another process, which has the allocator's policy until it ends; returns the report."""
    done = subprocess.run(
        [sys.executable, "-c", _MEASURE, json.dumps(given)],
        env={**os.environ, VARIABLE: policy, "AGENT_DATA_DIR": str(data)},
        capture_output=True,
        check=False,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    return list(json.loads(done.stdout))


def test_the_exact_allocator_of_onnx_runtime_takes_less(tmp_path: Path) -> None:
    given = {"framework": "ONNXRuntime", "batch_sizes": (4096,), "predictions": 2, "tries": 0}
    [default], [exact] = (rows_with(policy, tmp_path, **given) for policy in ("default", "exact"))

    assert (default["allocator"], exact["allocator"]) == ("default", "exact")
    assert 1 < exact["batch_mib"] < 0.7 * default["batch_mib"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("model", "framework", "limit_mib"),
    [
        ("DigitsCNN", "PyTorch", 500),
        ("DigitsSegmenter", "PyTorch", 700),
        ("AcousticModel", "PyTorch", 700),
        ("ResNet18", "PyTorch", 700),
        ("DigitsCNN", "MXNet", 700),
        ("DigitsSegmenter", "MXNet", 900),
        ("AcousticModel", "MXNet", 1200),
        ("ResNet18", "MXNet", 1100),
        ("DigitsCNN", "ONNXRuntime", 300),
        ("DigitsSegmenter", "ONNXRuntime", 500),
        ("AcousticModel", "ONNXRuntime", 1100),
        ("DeepMNIST", "ONNXRuntime", 500),
    ],
)
def test_with_the_exact_allocator_the_estimated_batch_is_right_to_5_percent(
    model: str, framework: str, limit_mib: int, tmp_path: Path
) -> None:
    weights = "pretrained" if model.startswith("Digits") else "random"
    given = {"model": model, "framework": framework, "weights": weights, "memory_limit": limit_mib}

    row, *_ = rows_with("exact", tmp_path, **given)

    assert row["model_error_percent"] is not None
    assert abs(row["error_percent"]) <= 5
