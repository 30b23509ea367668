"""The page of the library: its examples run as they stand, and it describes every name."""

from __future__ import annotations

import re
import sys
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import inferometer as im
from inferometer import _OWNERS
from inferometer.evaluators.kinds.load.request import MaxQpsRequest
from inferometer.manifests.files import BUILTIN
from tests.cli.conftest import Agent

PAGE = (Path(__file__).parents[2] / "docs" / "library.md").read_text(encoding="utf-8")
MODEL = BUILTIN / "models" / "DigitsCNN" / "digits_cnn.onnx"
SHORTER = {"deep_mnist": "DigitsCNN", "duration_s=2": "duration_s=0.2", "time_budget_s=5": "time_budget_s=1"}


def test_the_examples_of_the_page_run(agent: Agent, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """They run for less time, and train a smaller model: no figure of them is judged here."""
    import onnxruntime

    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("OMP_NUM_THREADS", "1")  # other tests run beside this one
    monkeypatch.setattr(MaxQpsRequest, "default_min_duration_s", 0.1)
    for package in ("pandas", "pyarrow"):
        found = SimpleNamespace(DataFrame=dict, table=dict, __spec__=ModuleSpec(package, None))
        monkeypatch.setitem(sys.modules, package, found)
    (tmp_path / "resnet50.onnx").write_bytes(MODEL.read_bytes())
    names: dict[str, Any] = {
        "array": np.zeros((128, 1, 16, 16), np.float32),
        "module": onnxruntime.InferenceSession(MODEL, providers=["CPUExecutionProvider"]),
    }
    blocks = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)

    for block in blocks:
        for long, short in SHORTER.items():
            block = block.replace(long, short)
        exec(compile(block, "library.md", "exec"), names)

    assert len(blocks) >= 7
    assert not names["runs"].failures
    assert len(names["runs"]) == 6
    assert len(names["stored"]) > 8


def test_the_page_describes_every_name_of_the_library() -> None:
    public = {
        name
        for owner, given in _OWNERS.items()
        if owner.startswith(("client.api.", "client.serving."))
        for name in given.split()
    }
    described = set(re.findall(r"^\| `(\w+)` \|", PAGE, re.MULTILINE))

    assert public
    assert public <= set(im.__all__)
    assert described == public
