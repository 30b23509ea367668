"""Whatever comes from others, the terminal shows clean lines of moderate length."""

from __future__ import annotations

import io
import os
import struct
import subprocess
import sys
from pathlib import Path

import pytest
from PIL import Image

from inferometer.agent.inference.stages import InputFailure, Stage
from inferometer.client.evaluating.running import print_failures, print_predictions
from tests.cli.conftest import Agent
from tests.contract.store_fixtures import make_evaluation, make_manifest, make_predictions, make_system

MAIN = [sys.executable, "-c", "from inferometer.client.cli.main import main; main()"]


def test_a_librarys_warning_is_one_line_without_its_source(tmp_path: Path) -> None:
    file = io.BytesIO()
    Image.new("L", (8, 8)).save(file, "TIFF")
    one_compression = struct.pack("<HHI", 259, 3, 1)
    content = file.getvalue()
    assert content.count(one_compression) == 1
    (tmp_path / "0").mkdir()
    (tmp_path / "0" / "1.tiff").write_bytes(content.replace(one_compression, struct.pack("<HHI", 259, 3, 3)))

    done = subprocess.run(
        [
            *MAIN,
            "predict",
            "dataset",
            "--num_file_parts=-1",
            "--framework_name=ONNXRuntime",
            f"--dataset_path={tmp_path}",
        ],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 1, done.stderr
    lines = done.stderr.splitlines()
    assert "warning: Metadata Warning, tag 259 had too many entries: 3, expected 1" in lines
    assert not [line for line in lines if ".py" in line or "warnings.warn" in line]


@pytest.mark.parametrize("name", ["a\x1b[31mb", "a\nb", "\u202eb", "x" * 5000])
def test_a_name_is_escaped_and_shortened_in_an_error(agent: Agent, name: str) -> None:
    answer = agent("predict", "dataset", "--num_file_parts=-1", f"--model_name={name}")
    assert answer.code == 2
    [line] = answer.stderr.splitlines()
    assert line.isprintable()
    assert len(line) < 2100


def test_a_long_label_and_a_failure_of_many_lines_are_short_lines(capsys: pytest.CaptureFixture[str]) -> None:
    labels = ("a" * 100_000, "b\n\x1b[31m", "c")
    output = {"type": "classification", "parameters": {"labels": list(labels)}}
    evaluation = make_evaluation(
        system=make_system(manifest=make_manifest(output=output)),
        predictions=make_predictions(3),
        failures=(InputFailure("1\n2", Stage.READ, "a\nb\x1b[31m"),),
    )
    print_predictions(evaluation)
    print_failures(evaluation)
    shown = capsys.readouterr().out
    assert "failed: 1\\n2 in read: a\\nb\\x1b[31m" in shown.splitlines()
    assert all(line.isprintable() and len(line) < 300 for line in shown.splitlines())
