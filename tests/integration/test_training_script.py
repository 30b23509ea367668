"""tools/train_digits_cnn.py makes what is committed, and tells what is not.

Slow: each test trains the model once more, about 12 s on one core.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from manifests.files import BUILTIN

ROOT = Path(__file__).resolve().parent.parent.parent
SCRIPT = ROOT / "tools" / "train_digits_cnn.py"


def check(*folder: str) -> subprocess.CompletedProcess[str]:
    """Runs the script as its user does: without pytest's warning filters."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONWARNINGS"}
    return subprocess.run(
        [sys.executable, str(SCRIPT), "--check", *folder],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        timeout=150,
        check=False,
    )


def put_checksum(manifest: Path, field: str, file: Path) -> None:
    value = "sha256:" + hashlib.sha256(file.read_bytes()).hexdigest()
    text = manifest.read_text(encoding="utf-8")
    manifest.write_text(re.sub(rf"{field}: \S+", f"{field}: {value}", text), encoding="utf-8")


@pytest.mark.timeout(180)
def test_the_script_makes_the_committed_dataset_and_weights() -> None:
    result = check()
    assert result.returncode == 0, result.stdout + result.stderr
    accuracies = re.findall(r"^(\w+): top-1 ([0-9.]+) over (\d+)", result.stdout, re.MULTILINE)
    assert [framework for framework, _, _ in accuracies] == ["PyTorch", "MXNet", "ONNXRuntime"]
    assert len({(accuracy, count) for _, accuracy, count in accuracies}) == 1
    stated = re.search(r"top1_accuracy: (\S+)", (BUILTIN / "models/DigitsCNN/mxnet.yml").read_text("utf-8"))
    assert stated is not None
    assert accuracies[0][1] == stated[1]


@pytest.mark.timeout(180)
def test_the_script_says_which_weights_and_which_images_are_not_its_own(tmp_path: Path) -> None:
    shutil.copytree(BUILTIN, tmp_path, dirs_exist_ok=True)
    weights = tmp_path / "models/DigitsCNN/digits_cnn.pt"
    state = torch.load(weights, weights_only=True)
    state["fc2.bias"][3] += 2e-4
    state["fc1.bias"][3] += 2e-5
    torch.save(state, weights)
    put_checksum(tmp_path / "models/DigitsCNN/pytorch.yml", "weights_checksum", weights)
    dataset = tmp_path / "datasets/digits_validation/digits_validation.zip"
    content = dataset.read_bytes()
    assert content.count(b"/0007.png") == 2
    dataset.write_bytes(content.replace(b"/0007.png", b"/9007.png"))
    put_checksum(tmp_path / "datasets/digits_validation/digits_validation.yml", "checksum", dataset)

    result = check(str(tmp_path))

    assert result.returncode == 1, result.stdout + result.stderr
    assert re.search(r"^PyTorch: fc2.bias differs by up to 2.0e-04; allowed: 1e-04$", result.stdout, re.M)
    assert re.search(r"digits_validation.zip: 2 files are in one zip only.*\d/0007.png", result.stdout)
    assert result.stdout.count("differs") == 1
