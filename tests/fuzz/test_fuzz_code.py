"""No text of a file runs as code: each is replaced by code in turn, and what Python then does is watched.

Each group of formats has a process of its own, since an audit hook cannot be removed.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
from hostile_files import DATA, MODELS, SELF_TEST
from mutations import EXAMPLES

_FEW = 15
_MOST_S = 60


def found(names: Iterable[str], folder: Path, examples: int) -> list[dict[str, Any]]:
    """What the process found, a document for each format; one that it began and did not end is a problem."""
    child = Path(__file__).with_name("hostile_files.py")
    done = subprocess.run(
        [sys.executable, str(child), str(examples), str(10**6 if EXAMPLES else _MOST_S), str(folder), *names],
        capture_output=True,
        text=True,
        timeout=None if EXAMPLES else 300,
        check=False,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])},
    )
    lines = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    assert done.returncode == 0, f"{done.returncode}: {lines[-1:]}\n{done.stderr[-3000:]}"
    return [each for each in lines if "format" in each]


@pytest.mark.parametrize("formats", [MODELS, DATA], ids=["models", "data"])
def test_no_text_of_a_file_runs_as_code(formats: dict[str, Any], tmp_path: Path) -> None:
    results = found(formats, tmp_path, EXAMPLES or _FEW)
    assert [each["format"] for each in results] == list(formats)
    assert [each for each in results if each["problems"]] == []
    assert all(each["examples"] == (EXAMPLES or _FEW) for each in results)
    assert sum(each["refused"] for each in results) > len(results)


def test_a_reader_that_runs_what_it_reads_is_found(tmp_path: Path) -> None:
    [result] = found(SELF_TEST, tmp_path, 40)
    problems = " ".join(result["problems"])
    assert "compile <string>" in problems
    assert "exec <string>" in problems
