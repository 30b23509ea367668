"""tools/train_digits_cnn.py generates the committed files, and detects differences.

Slow: one test trains the model once more, about 12 s on one core. The other is about how differences are
reported; it takes the committed weights for those of a training, which the first test shows them to be.
"""

from __future__ import annotations

import hashlib
import importlib
import os
import re
import shutil
import subprocess
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest
import torch

from inferometer.manifests.files import BUILTIN

ROOT = Path(__file__).resolve().parent.parent.parent
SCRIPT = ROOT / "tools" / "train_digits_cnn.py"


def check() -> subprocess.CompletedProcess[str]:
    """Runs the script as its user does: without pytest's warning filters."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONWARNINGS"}
    return subprocess.run(
        [sys.executable, SCRIPT, "--check"],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        timeout=150,
        check=False,
    )


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    """The script in this process, with the committed weights instead of a training."""
    for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
        monkeypatch.setenv(name, "1")  # as the script sets it, and does not set it back
    monkeypatch.syspath_prepend(SCRIPT.parent)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # as for a user, who asks for none
        script = importlib.import_module(SCRIPT.stem)
        monkeypatch.setattr(
            script, "train", lambda *_: script.FORMATS[0].read_weights(script.BUILTIN / script.MODEL)
        )
        yield script


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
def test_the_script_says_which_weights_and_which_images_are_not_its_own(
    script: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
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

    monkeypatch.setattr(sys, "argv", [SCRIPT.name, "--check", str(tmp_path)])

    assert script.main() == 1

    said = capsys.readouterr().out
    assert re.search(r"^PyTorch: fc2.bias differs by up to 2.0e-04; allowed: 1e-04$", said, re.M)
    assert re.search(r"digits_validation.zip: 2 files are in one zip only.*\d/0007.png", said)
    assert said.count("differs") == 1
