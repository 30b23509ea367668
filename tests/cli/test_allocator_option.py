"""``--allocator``: it acts in the process that measures, and is recorded, repeated and compared."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from inferometer.evaluators.kinds.registry import again
from inferometer.evaluators.store.evaluation_store import EvaluationFilter
from inferometer.evaluators.store.opening import open_store
from tests.cli.conftest import Agent

FEW = ("--num_batches=2", "--num_warmup_batches=1", "--batch_size=2")
ONNX = ("--framework_name=ONNXRuntime", "--threads=1")
COMMANDS = {
    "repeated": ("predict", "dataset", *ONNX, "--synthetic", "--min_batches=2", "--repeat=2"),
    "training": ("bench", "training", "--model=DigitsCNN", "--framework_name=MXNet", "--threads=1", *FEW),
    "op": ("op", "run", "relu", "--shapes=small", *ONNX, "--runs=2"),
}


def run(*arguments: str) -> str:
    """Runs a command in a process of its own, which may keep its memory, and returns what it prints."""
    command = [sys.executable, "-c", "from inferometer.client.cli.main import main; main()", *arguments]
    done = subprocess.run(command, capture_output=True, check=False, text=True, timeout=170)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.usefixtures("known_peak")
@pytest.mark.parametrize("name", COMMANDS)
def test_the_policy_is_recorded_shown_and_repeated(agent: Agent, name: str) -> None:
    run(*COMMANDS[name], "--allocator=keep")
    store = open_store(None, "inferometer", Path(os.environ["AGENT_DATA_DIR"]))
    found = list(store.find(EvaluationFilter()))
    assert len(found) == (2 if name == "repeated" else 1)
    for evaluation in found:
        assert evaluation.system.environment.settings["memory allocator"] == "keep"
        assert "--allocator=keep" in again(evaluation).line
    first = found[0]
    other = replace(first.system.environment, settings={"memory allocator": "default"})
    assert store.save(replace(first, id="other", system=replace(first.system, environment=other)))
    assert "memory allocator keep" in agent("info", "evaluation", "show", first.id).stdout
    compared = agent("compare", "other", first.id)
    assert "memory allocator" in compared.stdout + compared.stderr
    store.close()


def test_another_word_is_refused(agent: Agent) -> None:
    assert "keep" in agent(*COMMANDS["op"], "--allocator=hoard").error
