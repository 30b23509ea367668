"""``agent bench … --repeat``: fresh processes, one group, and the interval over the processes."""

from __future__ import annotations

import json

import pytest

from inferometer.evaluators.statistics import values_for_percentile
from tests.cli.conftest import Agent

DIGITS = "manifests/builtin/datasets/digits_validation/digits_validation.zip"
TINY = ("--model=DigitsCNN", "--batch_size=2", f"--num_batches={values_for_percentile(50)}")
LOADED = ("--model=DigitsCNN", f"--data_dir={DIGITS}", "--batch_size=25", "--num_batches=12")


@pytest.mark.parametrize(
    ("phase", "flags", "report"),
    [
        ("training", (*TINY, "--framework_name=MXNet"), "training"),
        ("inference", (*LOADED, "--framework_name=ONNXRuntime", "--weights=pretrained"), "latency"),
        ("ingestion", LOADED, "ingestion"),
    ],
)
def test_repetitions_are_a_group_with_an_interval_over_its_processes(
    agent: Agent, phase: str, flags: tuple[str, ...], report: str
) -> None:
    answer = agent("bench", phase, *flags, "--repeat=2")
    assert answer.code == 0, answer.stderr
    assert [line[:6] for line in answer.stderr.splitlines()] == ["1 of 2", "2 of 2"]
    over = answer.figure("processes")
    assert over.startswith("p50 ")
    assert over.endswith("ms over 2 processes")
    assert "  mean " in over
    rows = agent("info", "evaluation", report, "-f", "csv").rows
    assert len(rows) == 2
    documents = [
        json.loads(agent("info", "evaluation", "show", row["id"], "-f", "json").stdout) for row in rows
    ]
    assert {each["group_id"] for each in documents} == {answer.figure("group")}


def test_ranks_are_repeated_too_and_each_repetition_trains_the_same(agent: Agent) -> None:
    flags = (*TINY, "--framework_name=PyTorch", "--num_ranks=2", "--repeat=2")
    answer = agent("bench", "training", *flags)
    assert answer.code == 0, answer.stderr
    assert answer.figure("processes").endswith("ms over 2 processes")
    rows = agent("info", "evaluation", "training", "-f", "csv").rows
    assert [row["ranks"] for row in rows] == ["2", "2"]
    assert len({row["last_loss"] for row in rows}) == 1


def test_ranks_of_a_launcher_are_not_repeated(agent: Agent, monkeypatch: pytest.MonkeyPatch) -> None:
    launched = {"RANK": "0", "WORLD_SIZE": "2", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "2"}
    meets = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29500"}
    flags = (*TINY, "--framework_name=PyTorch", "--repeat=2")
    for name, value in (launched | meets).items():
        monkeypatch.setenv(name, value)
    answer = agent("bench", "training", *flags)
    assert answer.code == 2
    assert "this one was started as rank 0 of 2; start all ranks again instead" in answer.error


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (("--repeat=0",), "--repeat"),
        (("--repeat=many",), "--repeat"),
        (("--repeat=2", "--save_weights=one"), "save_weights names one file, but repeat=2 trains 2 models"),
    ],
)
def test_what_cannot_be_repeated_is_one_line(agent: Agent, flags: tuple[str, ...], message: str) -> None:
    answer = agent("bench", "training", *TINY, *flags)
    assert answer.code == 2
    assert message in answer.error


def test_the_first_failure_ends_the_repetitions(agent: Agent) -> None:
    answer = agent("bench", "ingestion", "--model=DigitsCNN", "--data_dir=missing", "--repeat=3")
    assert answer.code == 4
    begun, error = answer.stderr.splitlines()
    assert begun == "1 of 3:"
    assert error.startswith("agent: dataset missing does not exist")
