"""Damaged datasets are read or refused in one clean line, and never end the process.

Each format is damaged in a process of its own with a bound on its memory: a crash, a hang or a huge
allocation is its exit code.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = int(os.environ.get("INFEROMETER_FUZZ_EXAMPLES", "0"))
FORMATS = (
    "recordio",
    "recordio_indexed",
    "recordio_index",
    "lmdb_large",
    "lmdb_small",
    "cifar_binary",
    "cifar_python",
    "cifar_archive",
    "mnist",
    "mnist_gzip",
    "ilsvrc_tar",
    "ilsvrc_meta",
    "coco",
    "voc",
)


@pytest.mark.parametrize("name", FORMATS)
def test_a_damaged_dataset_is_read_or_refused(name: str, tmp_path: Path) -> None:
    child = Path(__file__).with_name("damaged_datasets.py")
    command = [sys.executable, str(child), name, str(EXAMPLES or 75), str(tmp_path)]
    done = subprocess.run(
        command,
        capture_output=True,
        text=True,
        timeout=170 if not EXAMPLES else None,
        check=False,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])},
    )

    assert done.returncode == 0, f"{done.returncode}\n{done.stdout}\n{done.stderr}"
    counts = dict(part.split("=") for part in done.stdout.split())
    assert int(counts["opened"]) > 0
    assert int(counts["refused"]) + int(counts["with_failures"]) > 0
