"""What a terminal shows of the commands that are used most, over evaluations that never change.

python -m tests.cli.screens    writes the golden files anew
"""

from __future__ import annotations

import io
import os
import re
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import closing, redirect_stderr, redirect_stdout
from dataclasses import replace
from datetime import datetime, timedelta, timezone
from pathlib import Path
from unittest import mock

import numpy as np

from inferometer.agent.architectures import sources
from inferometer.agent.hardware.environment import CPU, Device, DeviceKind, Gpu
from inferometer.agent.inference.registry import FrameworkEntry
from inferometer.agent.tracing.recorder import SpanKind, SpanRecorder, TraceContext, TraceLevel
from inferometer.client.cli.main import run
from inferometer.client.commands import info
from inferometer.evaluators.conditions.conditions import Conditions, Stability
from inferometer.evaluators.datasets.base import DatasetIdentity
from inferometer.evaluators.evaluation import Evaluation, Status, TraceSummary
from inferometer.evaluators.kinds.batches.measurement import BatchMeasurement, BatchTimes
from inferometer.evaluators.kinds.batches.request import BatchOptions
from inferometer.evaluators.kinds.load.measurement import LoadMeasurement, RateAnswer, RateSearchMeasurement
from inferometer.evaluators.load.queries import Outcome
from inferometer.evaluators.load.validity import lag_text
from inferometer.evaluators.store.opening import open_store
from inferometer.evaluators.tasks.metric import Accuracy
from tests.reports.conftest import MACHINE, describe
from tests.reports.loads import OPTIONS, SEARCH, queries
from tests.reports.loads import run as load_run

GOLDEN = Path(__file__).parent / "golden"
WIDTHS = (80, 100, 120, 200)
BEGAN = datetime(2026, 3, 1, 12, 30, tzinfo=timezone.utc)
INSTALLED = {"PyTorch": "2.13.0", "MXNet": "1.9.1"}
IDS = (
    "574e64be-4ff6-4e3a-9af4-c3e53e2aa3c1",
    "354964b3-9c1d-4b77-8a53-5d2c1f0e7a10",
    "51d105a2-745f-43f2-8315-299e0da85071",
    "c07a9d3e-1b52-4f6f-9e0b-2f1a44d8e6b5",
    "8e2b7c64-6d0f-4c0a-b1d9-70f3a2c5d418",
    "a9f40d17-35e8-47c2-93b6-e8d17c20f5a3",
    "0d6c81f9-f2a4-4d38-8c75-b94e60a1d327",
    "e1f2a7c5-90b3-4b1e-a6d4-57c8093fd26e",
)
SCREENS: Mapping[str, Sequence[str]] = {
    "evaluations": ("info", "evaluations"),
    "latency": ("info", "evaluation", "latency"),
    "accuracy": ("info", "evaluation", "accuracy"),
    "workload": ("info", "evaluation", "workload"),
    "max_qps": ("info", "evaluation", "max-qps"),
    "layers": ("info", "evaluation", "layers"),
    "show": ("info", "evaluation", "show", IDS[3]),
    "models": ("info", "models", "--framework_name=PyTorch"),
    "frameworks": ("info", "frameworks"),
    "compare": ("compare", IDS[0], IDS[2]),
    "columns": ("info", "evaluation", "latency", "--columns=id,model,framework,batch size,p50,conditions"),
    "help": ("info", "evaluations", "--help"),
}
"""The commands, by the names of their golden files."""


class Terminal(io.StringIO):
    """Text that says it is a terminal."""

    def isatty(self) -> bool:
        """It is."""
        return True


def screen(command: Sequence[str], width: int, folder: Path) -> str:
    """Returns what a terminal of a width shows of a command, in plain text.

    Args:
        command: The words after ``agent``.
        width: In characters.
        folder: Where the database is; see ``store``.
    """
    environment = {name: value for name, value in os.environ.items() if not name.startswith("AGENT_")}
    environment |= {"COLUMNS": str(width), "TERM": "xterm", "XDG_CONFIG_HOME": str(folder)}
    environment |= {"AGENT_DATA_DIR": str(folder / "data"), "AGENT_CACHE_DIR": str(folder / "cache")}
    installed = property(lambda entry: INSTALLED.get(entry.name))
    terminal = Terminal()
    with (
        mock.patch.dict(os.environ, environment, clear=True),
        mock.patch.object(FrameworkEntry, "installed_version", installed),
        mock.patch.object(sources, "find_spec", return_value=None),
        mock.patch.object(info, "find_spec", return_value=None),
        redirect_stdout(terminal),
        redirect_stderr(terminal),
    ):
        run(list(command))
    return re.sub(r"\x1b\[[0-9;]*[A-Za-z]|\r", "", terminal.getvalue())


def store(folder: Path) -> None:
    """Writes the evaluations into a database, from the oldest to the newest."""
    with closing(open_store(None, "inferometer", folder / "data")) as opened:
        for evaluation in evaluations():
            opened.save(evaluation)


def evaluations() -> list[Evaluation]:
    """Batches in three systems, one of them traced, two workloads, and two searches, one of them invalid."""
    stable = Conditions(Stability.STABLE, ())
    disturbed = Conditions(
        Stability.DISTURBED, ("other processes took 48 % of the CPU, in 97 % of the time",)
    )
    pytorch = _batches(0, "PyTorch", 1_400_000, conditions=stable)
    mxnet = _batches(1, "MXNet", 1_120_000, conditions=stable)
    slower = _batches(2, "PyTorch", 1_650_000, conditions=disturbed)
    return [
        pytorch,
        mxnet,
        slower,
        _traced(_batches(3, "PyTorch", 6_200_000, "ResNet50", conditions=stable)),
        _workload(pytorch, 4, 100.0, [1 + n * 7 % 12 for n in range(1200)]),
        _workload(mxnet, 5, 400.0, [3 + n * 11 % 40 for n in range(1200)], late=True),
        _search(pytorch, 6),
        _search(mxnet, 7, lag_text("0.2 % of the queries would be late, not 4.2 %")),
    ]


def _times(count: int, batch_size: int, typical_ns: int) -> BatchTimes:
    """Times around the typical one, of full batches and a last smaller one."""
    number = np.arange(count, dtype=np.int64)
    spread = (number * 7919 % 101 - 50) * (typical_ns // 1000) + (number % 97 == 0) * typical_ns
    predict = typical_ns + spread
    sizes = np.full(count, batch_size, np.int64)
    sizes[-1] = max(1, batch_size // 4)
    return BatchTimes(sizes, predict // 9, predict // 5, predict, predict // 20)


def _batches(
    place: int, framework: str, typical_ns: int, model: str = "DigitsCNN", *, conditions: Conditions
) -> Evaluation[BatchMeasurement]:
    device = CPU if model == "DigitsCNN" else Device(DeviceKind.GPU)
    system = describe(model, "1.0", framework, INSTALLED[framework], device)
    gpus = () if device is CPU else (Gpu("NVIDIA H200", 139 * 2**30, "GPU-1"),)
    times = _times(700, 16, typical_ns)
    return Evaluation(
        id=IDS[place],
        created_at=BEGAN + timedelta(minutes=7 * place),
        status=Status.COMPLETE,
        system=replace(system, threads=2, environment=replace(MACHINE, gpus=gpus)),
        dataset=DatasetIdentity("vision", "digits_validation", "1.0", None, 450),
        measurement=BatchMeasurement(
            options=BatchOptions(batch_size=16, partition_list_size=16),
            times=times,
            elapsed_ns=int(sum(getattr(times, f"{n}_ns").sum() for n in ("read", "predict", "postprocess"))),
            accuracy=Accuracy(top1=447, top5=450, evaluated=450),
            failures=(),
        ),
        trace_level=TraceLevel.APPLICATION_TRACE,
        conditions=conditions,
    )


def _traced(evaluation: Evaluation[BatchMeasurement]) -> Evaluation[BatchMeasurement]:
    """The evaluation with the layers of its first batches."""
    recorder = SpanRecorder(TraceContext("0af7651916cd43dd8448eb211c80319c"), TraceLevel.FRAMEWORK_TRACE)
    layers = [
        ("conv1", "Convolution", "16x3x224x224 64x3x7x7", 410),
        ("bn1", "BatchNorm", "16x64x112x112", 60),
        ("layer1.0.conv1", "Convolution", "16x64x56x56 64x64x1x1", 120),
        ("layer1.0.conv2", "Convolution", "16x64x56x56 64x64x3x3", 230),
        ("layer1.0.downsample.0", "Convolution", "16x64x56x56 256x64x1x1", 190),
        ("layer4.2.conv3", "Convolution", "16x512x7x7 2048x512x1x1", 140),
        ("fc", "Linear", "16x2048 1000x2048 1000", 85),
    ]
    for batch in range(12):
        start_ns = batch * 10_000_000
        for index, (name, kind, shapes, typical_us) in enumerate(layers):
            attributes = {"layer_index": index, "layer_type": kind, "input_shapes": tuple(shapes.split(" "))}
            span = SpanKind.of(name, TraceLevel.FRAMEWORK_TRACE, **attributes)
            recorder.add(span, start_ns, start_ns + typical_us * 1000 + batch * 100, 1, batch=batch)
            start_ns += 1_000_000
    return replace(
        evaluation,
        trace_level=TraceLevel.FRAMEWORK_TRACE,
        trace=TraceSummary(recorder.context.trace_id, len(recorder)),
        spans=recorder.chunks(),
    )


def _workload(
    evaluation: Evaluation, place: int, rate_qps: float, latency_ms: Sequence[float], *, late: bool = False
) -> Evaluation:
    outcomes = [
        Outcome.TIMED_OUT if late and n % 60 == 59 else Outcome.ANSWERED for n in range(len(latency_ms))
    ]
    measured = load_run(queries(latency_ms, outcomes, gap_ms=1000 / rate_qps), rate_qps)
    options = replace(OPTIONS, rate_qps=rate_qps)
    return _under_load(evaluation, place, LoadMeasurement(options, measured, 12_000_000_000))


def _search(evaluation: Evaluation, place: int, invalid: str = "") -> Evaluation:
    rates = (16.0, 32.0, 64.0, 128.0, 110.0, 118.0)
    runs = (load_run(queries([1 + n * rate / 64 % 11 for n in range(600)]), rate) for rate in rates)
    kept = tuple(replace(each, invalid=invalid) for each in runs)
    answer = RateAnswer(120.04, 118.7, 121.3, "single server")
    return _under_load(evaluation, place, RateSearchMeasurement(SEARCH, kept, 60_000_000_000, answer))


def _under_load(
    evaluation: Evaluation, place: int, measurement: LoadMeasurement | RateSearchMeasurement
) -> Evaluation:
    return replace(
        evaluation,
        id=IDS[place],
        created_at=BEGAN + timedelta(minutes=7 * place),
        measurement=measurement,
        trace_level=TraceLevel.NO_TRACE,
    )


def golden(name: str, width: int) -> Path:
    """The golden file of a command at a width."""
    return GOLDEN / f"{name}_{width}.txt"


def main() -> None:
    """Writes the golden files."""
    GOLDEN.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        store(Path(folder))
        for name, command in SCREENS.items():
            for width in WIDTHS:
                golden(name, width).write_text(screen(command, width, Path(folder)), encoding="utf-8")


if __name__ == "__main__":
    main()
