"""The formats of opperf, byte for byte: golden files that opperf's own code wrote, and that code beside ours.

opperf's code runs where ``INFEROMETER_OPPERF`` names a checkout of MXNet; ``python -m
tests.reports.test_opperf_formats`` writes the golden files with it.
"""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from inferometer.agent.hardware.environment import Device, DeviceKind
from inferometer.evaluators.evaluation import Evaluation
from inferometer.evaluators.kinds.operators.measurement import OperatorMeasurement
from inferometer.evaluators.kinds.operators.options import Mode
from inferometer.evaluators.kinds.operators.report import OpperfReport
from inferometer.evaluators.reports.writer import write
from inferometer.manifests.errors import OutputError
from tests.reported_operators import ADD, BACKWARD, CONV, FAILED, MISSING, measured

GOLDEN = Path(__file__).parent / "golden"
OPPERF = os.environ.get("INFEROMETER_OPPERF", "")
FILES = [(profiler, ending) for profiler in ("native", "python") for ending in ("json", "md")]

KERNEL = {"kernel": (3, 3), "bias": False, "layout": "NCHW | é", "scale": 0.5}
LINE, PLANE = {"data": (32, 3, 64), "weight": (64, 3, 3)}, CONV.shapes
NATIVE: dict[str, list[dict[str, Any]]] = {
    "Convolution": [
        {
            "inputs": {**PLANE, **KERNEL},
            "avg_time_forward_Convolution": 9.0,
            "avg_time_backward_Convolution": 22.0,
        },
        {
            "inputs": {**LINE, **KERNEL},
            "max_storage_mem_alloc_gpu/1": 4194.304,
            "avg_time_forward_Convolution": 0.0123,
        },
    ],
    "broadcast_add": [
        {
            "inputs": {"lhs": (1024, 1024), "rhs": (1024, 1024)},
            "max_storage_mem_alloc_gpu/1": 4194.304,
            "avg_time_forward_broadcast_add": 1.0496,
        }
    ],
}
PYTHON: dict[str, list[dict[str, Any]]] = {
    "Convolution": [
        {
            "inputs": {**PLANE, "kernel": (3, 3), "bias": False},
            "avg_time_Convolution": 31.0,
            "p50_time_Convolution": 31.0,
            "p90_time_Convolution": 31.8,
            "p99_time_Convolution": 31.98,
        }
    ],
    "argmax": [
        {
            "inputs": {"data": (32, 32), "axis": 0},
            "avg_time_argmax": 0.01234567,
            "p50_time_argmax": 0.01234567,
            "p90_time_argmax": 0.01234567,
            "p99_time_argmax": 0.01234567,
        }
    ],
}
"""What opperf has in memory for the rows below; it prints times of the native profiler with four decimals."""
EXPECTED = {"native": NATIVE, "python": PYTHON}
BUILD = "✔ BLAS_OPEN, ✔ OPENMP, ✖ BLAS_MKL, ✖ CUDA, ✖ CUDNN"
FEATURES = {each.split()[1]: each for each in sorted(BUILD.split(", "), key=lambda each: each.split()[1])}
"""The features of MXNet, as a predictor tells them, and as opperf has them in memory."""


@pytest.fixture
def evaluated(evaluations: list[Evaluation]) -> dict[str, Evaluation[OperatorMeasurement]]:
    """The rows by profiler, on a second GPU, and not in the order of their names."""
    environment = replace(evaluations[0].system.environment, build=BUILD)
    system = replace(evaluations[0].system, device=Device(DeviceKind.GPU, 1), environment=environment)
    first = replace(evaluations[0], system=system)
    add = replace(ADD, api="nd.broadcast_add", form="nd")
    plane = replace(CONV, api="nd.Convolution", form="nd", parameters=KERNEL)
    backward = replace(BACKWARD, api="nd.Convolution", form="nd", parameters=KERNEL)
    line = replace(plane, shapes=LINE, times_ns=np.array([12_345] * 3), peak_memory_bytes=4 << 20)
    alone = replace(CONV, api="nd.Convolution", form="nd")
    both = replace(alone, mode=Mode.BOTH, times_ns=np.array([30, 31, 32]) * 1_000_000)
    forward = replace(MISSING, mode=Mode.FORWARD, api="nd.argmax", status=ADD.status)
    argmax = replace(forward, times_ns=np.array([12_345_670] * 10), block=1000, form="nd")
    without = replace(MISSING, mode=Mode.BOTH)  # it has no gradient
    return {
        "native": measured(first, add, plane, backward, line, FAILED),
        "python": measured(first, argmax, without, alone, both),
    }


def text(ending: str, *evaluations: Evaluation[OperatorMeasurement]) -> str:
    stream, report = io.StringIO(), OpperfReport()
    write(report.columns, report.rows(evaluations), report.layouts[f"opperf-{ending}"], stream)
    return stream.getvalue()


def of_opperf(profiler: str, ending: str, path: Path) -> None:
    """Writes the expected results with opperf's ``save_to_file``."""
    code = (
        "import sys; from ast import literal_eval as read; from benchmark.opperf.utils import common_utils\n"
        "results, path, ending, profiler = read(sys.stdin.read()), *sys.argv[1:]\n"
        f"features = {{'runtime_features': {FEATURES}}}\n"
        "common_utils.save_to_file(results, path, ending, features, profiler)"
    )
    words = [sys.executable, "-c", code, str(path), ending, profiler]
    environment = {**os.environ, "PYTHONPATH": OPPERF}
    subprocess.run(words, input=repr(EXPECTED[profiler]), text=True, check=True, env=environment)


@pytest.mark.parametrize(("profiler", "ending"), FILES)
def test_the_text_is_that_which_opperf_wrote(profiler, ending, evaluated):
    golden = (GOLDEN / f"opperf_{profiler}.{ending}").read_text(encoding="utf-8")

    assert text(ending, evaluated[profiler]) == golden


@pytest.mark.skipif(not OPPERF, reason="INFEROMETER_OPPERF names no checkout of MXNet")
@pytest.mark.parametrize(("profiler", "ending"), FILES)
def test_opperf_writes_the_same_bytes(profiler, ending, evaluated, tmp_path):
    of_opperf(profiler, ending, tmp_path / "theirs")

    assert text(ending, evaluated[profiler]).encode() == (tmp_path / "theirs").read_bytes()


def test_all_variants_are_in_one_list_and_mixed_profilers_in_two_tables(evaluated):
    both = evaluated["native"], evaluated["python"]

    found = json.loads(text("json", *both))
    assert [(name, len(entries)) for name, entries in found.items()] == [
        ("Convolution", 3),
        ("argmax", 1),
        ("broadcast_add", 1),
    ]
    native, python = ((GOLDEN / f"opperf_{each}.md").read_text(encoding="utf-8") for each in EXPECTED)
    features, table = python.split("# Benchmark")
    assert native.startswith(features)
    assert text("md", *both) == f"{native}\n# Benchmark{table}"


@pytest.mark.parametrize("build", ["AVX512, oneDNN", BUILD.replace("✖ CUDA", "✔ CUDA")])
def test_rows_of_several_builds_have_no_list_of_features(evaluated, build):
    environment = replace(evaluated["python"].system.environment, build=build)
    other = replace(evaluated["python"], system=replace(evaluated["python"].system, environment=environment))

    assert text("md", evaluated["native"], other).startswith("# Benchmark Results")
    assert ("# Runtime Features" in text("md", other)) is ("✔" in build)


def test_a_parameter_can_be_infinite(evaluations):
    row = replace(ADD, parameters={"high": float("inf")})

    [[entry]] = json.loads(text("json", measured(evaluations[0], row))).values()
    assert entry["inputs"] == {"lhs": [1024, 1024], "rhs": [1024, 1024], "high": float("inf")}


def test_without_rows_there_is_an_object_or_a_heading():
    assert text("json") == "{}"
    assert text("md").count("\n") == 2


def test_rows_cannot_be_appended(evaluated, tmp_path):
    (tmp_path / "out").write_text("{}")
    report = OpperfReport()

    with pytest.raises(OutputError, match="out: this format does not support appending; name another file"):
        write(report.columns, (), report.layouts["md"], tmp_path / "out", append=True)

    assert (tmp_path / "out").read_text() == "{}"


if __name__ == "__main__":
    for profiler, ending in FILES:
        of_opperf(profiler, ending, GOLDEN / f"opperf_{profiler}.{ending}")
