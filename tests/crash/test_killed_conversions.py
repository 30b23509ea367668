"""Conversions that are killed at any moment go on where they were, and never show a part."""

from __future__ import annotations

import os
import random
import subprocess
import sys
import time
from pathlib import Path

import pytest

from inferometer.evaluators.datasets.opening import open_path
from tests.dataset_files import items, write_folder

KILLS = int(os.environ.get("INFEROMETER_CRASH_RUNS", "20")) // 5
SEED = int(os.environ.get("INFEROMETER_CRASH_SEED", "0"))
DEADLINE_S = 100
COUNT = 400
_CONVERTS = """
import sys
from pathlib import Path
from inferometer.evaluators.conversion import convert as module
from inferometer.evaluators.datasets.opening import open_path
module._FLUSHED_EVERY_S = 0.01
source, target, backend = Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3]
def show(what, done, total):
    print(what, done, flush=True)
done = module.convert(open_path(source, "vision"), target, backend, on_progress=show)
print("done", done.resumed, done.samples, flush=True)
"""


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_folder(tmp_path_factory.mktemp("source") / "images", items(COUNT, side=24))


@pytest.mark.parametrize("backend", ["recordio", "caffe_lmdb", "image_folder", "npz"])
def test_a_killed_conversion_goes_on(source: Path, tmp_path: Path, backend: str) -> None:
    number = random.Random(f"{SEED} {backend}")
    target = tmp_path / ("out.npz" if backend == "npz" else "out")
    command = [sys.executable, "-c", _CONVERTS, str(source), str(target), backend]
    deadline_s = time.monotonic() + DEADLINE_S

    for _ in range(KILLS):
        lines = number.randrange(2 * COUNT)
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
            assert process.stdout is not None
            for _, _line in zip(range(lines), process.stdout, strict=False):
                assert time.monotonic() < deadline_s
            process.kill()
        if target.exists():
            break
    if not target.exists():
        done = subprocess.run(command, capture_output=True, text=True, timeout=DEADLINE_S, check=False)
        assert done.returncode == 0, done.stderr
        assert done.stdout.splitlines()[-1].startswith("done ")
        assert done.stdout.splitlines()[-1].endswith(f" {COUNT}")

    found, expected = open_path(target, "vision"), open_path(source, "vision")
    assert [sample.label for sample in found] == [sample.label for sample in expected]
    if backend != "npz":
        assert [s.read() for s in found] == [s.read() for s in expected]
    if list(tmp_path.glob("*.partial")):  # killed after it had published: the next one clears up, and says so
        again = subprocess.run(command, capture_output=True, text=True, timeout=DEADLINE_S, check=False)
        assert f"{target}: exists" in again.stderr
    assert not list(tmp_path.glob("*.partial"))


def test_most_of_the_work_before_a_kill_is_kept(source: Path, tmp_path: Path) -> None:
    command = [sys.executable, "-c", _CONVERTS, str(source), str(tmp_path / "out"), "recordio"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        for line in process.stdout:
            if line == f"checking {COUNT // 2}\n":
                break
        process.kill()

    done = subprocess.run(command, capture_output=True, text=True, timeout=DEADLINE_S, check=True)

    assert done.stdout.splitlines()[-1] == f"done {COUNT} {COUNT}"
    assert "writing" not in done.stdout
