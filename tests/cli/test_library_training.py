"""The Python library: trainings and loaders alone, their figures, and what cannot be."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import inferometer as im
from inferometer.client.api import runner
from inferometer.client.api.runner import StopRequest
from tests.cli.conftest import Agent

FRAMEWORKS = ("PyTorch", "MXNet")
TINY: dict[str, Any] = {"batch_size": 4, "num_batches": 12}
DIGITS = "digits_validation"


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_a_training_has_the_figures_of_the_command_line(agent: Agent, framework: str) -> None:
    run = im.train("deep_mnist", framework=framework, **TINY)

    assert run.complete
    assert run.latency.batches == 12
    assert run.latency.p50_ms == pytest.approx(float(np.median(run.times_ms)))
    assert run.losses.shape == (1, 13)
    assert run.losses.dtype == np.float64
    assert run.times.whole_ns.shape == (1, 12)
    assert run.parts.communicate_ms is not None
    assert run.parts.forward_ms is not None
    assert run.bound == "compute"
    assert run.accuracy is None
    assert run.conditions is not None
    assert len(run.steps) == 12
    assert run.steps.to_dict()["loss"] == pytest.approx(run.losses[0, 1:])
    [row] = agent("info", "evaluation", "training", "-f", "csv").rows
    assert row["id"] == run.id == run.rows[0]["id"]
    assert float(row["step_ms_p50"]) == run.latency.p50_ms
    assert float(row["throughput_samples_per_s"]) == run.throughput_per_s
    assert float(row["wait_ms"]) == run.parts.wait_ms
    assert "bound by    compute" in repr(run)


def test_it_is_trained_as_by_the_command_line(agent: Agent) -> None:
    run = im.train(
        "DigitsCNN", framework="PyTorch", learning_rate=0.1, momentum=0.5, optimizer="nag", seed=3, **TINY
    )
    flags = ("--lr=0.1", "--momentum=0.5", "--optimizer=nag", "--seed=3", "--batch_size=4")
    agent("bench", "training", "--model=DigitsCNN", "--framework_name=PyTorch", *flags, "--num_batches=12")
    [other, mine] = agent("info", "evaluation", "training", "-f", "csv").rows
    assert mine["id"] == run.id
    assert mine["last_loss"] == other["last_loss"]
    compared = im.compare(run, other["id"], threshold=5)
    assert not [note for note in compared.notes if note.startswith("differs")]


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_a_dataset_is_learned_validated_and_kept(agent: Agent, tmp_path: Path, framework: str) -> None:
    run = im.train(
        "DigitsCNN",
        framework=framework,
        data=DIGITS,
        validation=DIGITS,
        batch_size=50,
        num_epochs=2,
        workers=1,
        shuffle=True,
        save_weights=tmp_path / "weights",
        publish=False,
    )
    assert run.accuracy is not None
    assert run.accuracy.evaluated == 450
    assert run.losses[0, -1] < run.losses[0, 0]
    assert (tmp_path / "weights").stat().st_size > 0
    assert len(im.evaluations()) == 0


def test_two_trainings_are_compared(agent: Agent) -> None:
    first, second = (im.train("DigitsCNN", framework="MXNet", **TINY) for _ in range(2))
    found = im.compare(first, second, threshold=5)
    assert {row["figure"] for row in found} >= {"p50", "throughput"}
    assert [row["kind"] for row in im.evaluations()] == ["training", "training"]


def test_a_loader_alone_has_the_figures_of_the_command_line(agent: Agent) -> None:
    run = im.ingest("DigitsCNN", data=DIGITS, batch_size=50, num_batches=20)
    assert run.complete
    assert run.latency.batches == len(run.times_ms) == 20
    assert run.times.samples.sum() == 1000
    [row] = agent("info", "evaluation", "ingestion", "-f", "csv").rows
    assert row["id"] == run.id == run.rows[0]["id"]
    assert float(row["samples_per_s"]) == run.throughput_per_s
    assert run.bytes_per_s is not None
    assert [each["kind"] for each in im.evaluations()] == ["ingestion"]
    assert "page cache" in repr(run)
    other = im.ingest("DigitsCNN", data=DIGITS, batch_size=50, num_batches=20, publish=False)
    assert "throughput" in im.compare(run.id, other, threshold=5).to_dict()["figure"]


def test_a_notebook_gets_the_picture(agent: Agent) -> None:
    trained = im.train("DigitsCNN", framework="PyTorch", **TINY)
    loaded = im.ingest("DigitsCNN", data=DIGITS, batch_size=50, num_batches=10)
    for run in (trained, loaded):
        shown = run._repr_html_()
        assert run.id in shown
        assert "<svg" in shown
    assert "loss" in trained._repr_html_()


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"model": "deep_mnits"}, 'unknown model "deep_mnits"; did you mean'),
        ({"model": object()}, "model is object; give the name of a model"),
        ({"batch_size": 0}, "batch_size is 0; it must be at least 1"),
        ({"batch_size": "8"}, "batch_size is '8'; it must be a whole number"),
        ({"num_batches": 1.5}, "num_batches is 1.5; it must be a whole number"),
        ({"num_epochs": 1}, "num_epochs and num_batches both end the run"),
        ({"learning_rate": -1.0}, "learning_rate is -1.0"),
        ({"optimizer": "sdg"}, "sdg"),
        ({"precision": "int8"}, 'unknown precision "int8"'),
        ({"framework": "PyTroch"}, "PyTroch"),
        ({"weights": "good"}, 'unknown weights "good"'),
        ({"data": "digits_validatoin"}, "digits_validatoin"),
        ({"data_backend": "npz"}, "data_backend npz requires a path"),
        ({"drop_cache": True}, "drop_cache is for files"),
        ({"loader": "fibres"}, 'unknown loader "fibres"; give threads or processes'),
        ({"workers": -1}, "workers is -1"),
        ({"communication": "goo"}, 'unknown communication "goo"; did you mean "gloo"'),
        ({"api": "gluon"}, "api gluon is one of MXNet's"),
        ({"ranks": 0}, "ranks is 0"),
        ({"trace_level": "DEEP"}, "DEEP"),
        ({"save_weights": "/"}, "/: exists already"),
    ],
)
def test_a_wrong_value_of_a_training_is_one_line(agent: Agent, wrong: dict[str, Any], said: str) -> None:
    given = {"model": "deep_mnist", "framework": "PyTorch", **TINY} | wrong
    with pytest.raises(im.InferometerError) as error:
        im.train(**given)
    assert said in str(error.value)
    assert "\n" not in str(error.value)
    assert len(im.evaluations()) == 0


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"data": None}, "ingestion reads a dataset"),
        ({"data": "missing/here"}, "missing/here does not exist"),
        ({"reader": "mine"}, "reader is mine"),
        ({"reader": "framework", "loader": "processes"}, "a framework's reader uses threads"),
        ({"prefetch": -1}, "prefetch is -1"),
        ({"loader": 3}, 'unknown loader "3"'),
    ],
)
def test_a_wrong_value_of_a_loader_is_one_line(agent: Agent, wrong: dict[str, Any], said: str) -> None:
    with pytest.raises(im.InferometerError) as error:
        im.ingest("DigitsCNN", **({"data": DIGITS} | wrong))
    assert said in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("function", [im.train, im.ingest])
def test_an_unknown_argument_is_a_type_error(function: Any) -> None:
    with pytest.raises(TypeError, match="unexpected keyword argument 'batchsize'"):
        function("deep_mnist", data=DIGITS, batchsize=4)
    for name in ("save_path", "tracer_address"):
        with pytest.raises(TypeError, match=f"unexpected keyword argument '{name}'"):
            im.train("deep_mnist", num_batches=1, **{name: "x"})


def test_numbers_of_numpy_are_stored(agent: Agent) -> None:
    im.train("deep_mnist", batch_size=np.int64(4), num_batches=np.int64(2))  # type: ignore[arg-type]
    assert len(im.evaluations()) == 1


def test_ctrl_c_keeps_the_steps(agent: Agent, monkeypatch: pytest.MonkeyPatch) -> None:
    class PressedAfterFive(StopRequest):
        def __call__(self) -> bool:
            asked.append(None)
            return len(asked) > 5

    asked: list[None] = []
    monkeypatch.setattr(runner, "StopRequest", PressedAfterFive)
    run = im.train("deep_mnist", framework="PyTorch", batch_size=1, num_batches=100_000)
    assert not run.complete
    assert 0 < len(run.times_ms) <= 6


@pytest.mark.parametrize(
    "call",
    [
        # which starts a scheduler and a server beside the ranks
        'im.train(framework="MXNet", batch_size=2, num_batches=3, ranks=2)',
        f'im.train(framework="MXNet", data="{DIGITS}", num_batches=3, workers=1, loader="processes")',
    ],
)
def test_a_script_needs_no_guard_for_processes(agent: Agent, tmp_path: Path, call: str) -> None:
    script = tmp_path / "script.py"
    script.write_text(f"import inferometer as im\nprint('begins')\nrun = {call}\nprint(run.losses.shape)\n")
    done = subprocess.run(
        [sys.executable, str(script)], capture_output=True, text=True, timeout=120, env=dict(os.environ)
    )
    assert done.returncode == 0, done.stderr
    shape = "(2, 4)" if "ranks" in call else "(1, 4)"
    assert done.stdout.splitlines() == ["begins", shape]
    assert len(im.evaluations()) == 1


def test_ranks_of_a_launcher_are_refused(agent: Agent, monkeypatch: pytest.MonkeyPatch) -> None:
    launched = {"RANK": "1", "WORLD_SIZE": "2", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2"}
    for name, value in (launched | {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29500"}).items():
        monkeypatch.setenv(name, value)
    with pytest.raises(im.ConfigurationError, match="a launcher has started this process as rank 1 of 2"):
        im.train("deep_mnist", framework="PyTorch", **TINY)
