"""Sweeps by the library and by ``predict dataset``: failing cells, interrupted ones, and their table."""

from __future__ import annotations

import sys
from types import SimpleNamespace
from typing import Any

import pytest

import inferometer as im
from inferometer.client.api import runner
from inferometer.client.api.runner import StopRequest
from tests.cli.conftest import Agent

SIXES = ["6/0000.png", "6/0018.png"]
FEW = ("--framework_name=ONNXRuntime", "--num_file_parts=6")


def test_a_sweep_is_a_group_whose_failures_lose_nothing(agent: Agent) -> None:
    runs = im.sweep(framework=["ONNXRuntime", "Nope"], batch_size=[8, 16], min_batches=3)

    assert [run.evaluation.measurement.batch_size for run in runs] == [8, 16]
    assert runs.complete
    assert len({run.evaluation.group_id for run in runs}) == 1
    assert runs[0].evaluation.group_id is not None
    assert list(runs.failures) == [f"DigitsCNN on Nope, batch size {size}" for size in (8, 16)]
    assert [row["id"] for row in im.evaluations()] == [run.id for run in reversed(runs)]
    table = runs.to_dict()
    assert table["id"] == [runs[0].id, runs[1].id, None, None]
    assert table["latency_ms_p50"] == [runs[0].latency.p50_ms, runs[1].latency.p50_ms, None, None]
    assert table["throughput_inputs_per_s"][:2] == [run.throughput_per_s for run in runs]
    assert table["framework_name"] == ["ONNXRuntime"] * 2 + ["Nope"] * 2
    assert 'unknown framework "Nope"' in table["failure"][2]
    assert 'DigitsCNN on Nope, batch size 8 failed: unknown framework "Nope"' in repr(runs)
    assert repr(runs).splitlines()[0].startswith("model")
    assert "<svg" in runs._repr_html_()


def test_the_first_score_of_another_task_is_in_the_table(agent: Agent) -> None:
    runs = im.sweep(
        ["DigitsCNN", "DigitsEmbedder"],
        framework="ONNXRuntime",
        dataset="digits_validation",
        sample_ids=SIXES,
        batch_size=2,
        min_batches=1,
        publish=False,
    )
    table = runs.to_dict()
    assert (table["score_name"], table["score"]) == ([None, "recall@1"], [None, 1.0])
    assert table["top1_accuracy"] == [1.0, None]
    assert list(table)[-2:] == ["score_name", "score"]


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"batch_size": []}, "batch_size is empty"),
        ({"batch_size": [8, 16, 8]}, "batch_size names 8 twice"),
        ({"batch_size": [8, 0]}, "batch_size is 0"),
        ({"threads": [1, 0]}, "threads is 0; it must be at least 1"),
        ({"framework": ["Nope", "Nupe"]}, 'unknown framework "Nope"'),
    ],
)
def test_a_sweep_without_an_evaluation_is_an_error(agent: Agent, wrong: dict[str, Any], said: str) -> None:
    with pytest.raises(im.InferometerError, match=said):
        im.sweep(**wrong)
    assert len(im.evaluations()) == 0


def test_ctrl_c_keeps_the_cells_of_a_sweep(agent: Agent, monkeypatch: pytest.MonkeyPatch) -> None:
    class PressedInTheSecond(StopRequest):
        def begin(self, stops: str) -> None:
            super().begin(stops)
            begun.append(stops)

        def __call__(self) -> bool:
            asked.extend(begun[1:])
            return len(asked) > 20

    begun: list[str] = []
    asked: list[str] = []
    monkeypatch.setattr(runner, "StopRequest", PressedInTheSecond)

    runs = im.sweep(framework="ONNXRuntime", batch_size=[90, 9, 30], min_batches=60)

    assert not runs.complete
    assert [run.complete for run in runs] == [True, False]


def test_ctrl_c_while_a_model_opens_keeps_the_cells_before(
    agent: Agent, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened = []

    def open_system(self: object, request: Any, **options: Any) -> Any:
        opened.append(request)
        if len(opened) > 1:
            raise KeyboardInterrupt
        return real(self, request, **options)

    from inferometer.client.api.runner import Systems

    real = Systems.open_system
    monkeypatch.setattr(Systems, "open_system", open_system)

    runs = im.sweep(framework="ONNXRuntime", batch_size=[90, 45], min_batches=2)
    assert (len(runs), runs.complete) == (1, False)
    with pytest.raises(KeyboardInterrupt):
        im.sweep(framework="ONNXRuntime", batch_size=[90, 45], min_batches=2)


def test_the_command_prints_one_table(agent: Agent) -> None:
    answer = agent("predict", "dataset", *FEW, "--batch_size=4,8,600")

    assert answer.code == 0, answer.stderr
    head, *rows = answer.stdout.splitlines()
    assert len(rows) == 3
    cells = [dict(zip(head.split("  "), row.split("  "), strict=False)) for row in rows]
    assert all("DigitsCNN" in row for row in rows), cells
    assert "p50 (ms)" in head
    assert "stability" in head
    assert "1 of 3, DigitsCNN on ONNXRuntime, batch size 4:" in answer.stderr.splitlines()
    [group] = [line.split()[1] for line in answer.stderr.splitlines() if line.startswith("group")]
    stored = agent("info", "evaluation", "latency", "--id", group, "-f", "csv").rows
    assert [row["batch_size"] for row in stored] == ["600", "8", "4"]
    assert [row["id"] in line for row, line in zip(reversed(stored), rows, strict=True)] == [True] * 3


def test_a_failing_size_is_a_row_and_the_exit_code(agent: Agent, monkeypatch: pytest.MonkeyPatch) -> None:
    from inferometer.client.api.runner import Systems

    def open_system(self: object, request: Any, **options: Any) -> Any:
        opened.append(request)
        if len(opened) == 1:
            raise im.OutOfMemoryError("no memory for a batch of 4")
        return real(self, request, **options)

    opened: list[Any] = []
    real = Systems.open_system
    monkeypatch.setattr(Systems, "open_system", open_system)

    answer = agent("predict", "dataset", *FEW, "-b", "4,8")

    assert answer.code == 1
    assert "failed: no memory for a batch of 4" in answer.stderr.splitlines()
    assert "no memory for a batch of 4" in answer.stdout.splitlines()[1]
    assert [row["batch_size"] for row in im.evaluations()] == [8]


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (["dataset", "-b", "4,8", "--repeat=2"], "repeat and leveled apply to one evaluation"),
        (["dataset", "-b", "4,8", "--leveled"], "repeat and leveled apply to one evaluation"),
        (["dataset", "-b", "4,x"], "4,x is not a number; write one, or several separated by commas"),
        (["dataset", "-b", "4,4"], "4,4 names 4 twice"),
        (["dataset", "-b", "4,0"], "0 is not in the range x>=1"),
        (["urls", "-b", "4,8", "--urls_file_path=x"], "only predict dataset accepts several values"),
    ],
)
def test_sizes_that_cannot_be_are_one_line(agent: Agent, given: list[str], said: str) -> None:
    answer = agent("predict", *given)

    assert answer.code == 2
    assert said in answer.error
    assert answer.stdout == ""


def test_tables_go_to_other_programs_that_are_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = im.Evaluations([])
    for package, make in (("pandas", rows.to_pandas), ("pyarrow", rows.to_arrow)):
        monkeypatch.setitem(sys.modules, package, None)
        with pytest.raises(im.ConfigurationError, match=f"{package} is not installed; pip install {package}"):
            make()
        monkeypatch.setitem(sys.modules, package, SimpleNamespace(DataFrame=dict, table=dict))
        assert make()["latency_ms_p50"] == []
