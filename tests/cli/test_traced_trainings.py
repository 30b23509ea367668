"""Trainings that are traced down to the layer: their reports, their export, and what leaves them out."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import pytest

from tests.cli.conftest import Agent

TRAIN = ("bench", "training", "--model=cifar10_lenet", "--batch_size=4", "--num_batches=3")
REPORT = ("info", "evaluation")
WEIGHTED = {
    "PyTorch": {"aten::conv2d", "aten::linear", "ConvolutionBackward0", "AddmmBackward0"},
    "MXNet": {"Convolution", "FullyConnected", "_backward_Convolution", "_backward_FullyConnected"},
}
"""The types of the layers with weights, forward and backward."""


@pytest.mark.parametrize("framework", WEIGHTED)
def test_a_traced_training_has_its_layers_in_both_directions(
    agent: Agent, framework: str, tmp_path: Path
) -> None:
    answer = agent(*TRAIN, f"--framework_name={framework}", "--trace_level=FRAMEWORK_TRACE")
    assert answer.code == 0
    assert "under the framework's profiler" in answer.stdout

    rows = agent(*REPORT, "layers", "-f", "csv").rows
    assert sum(float(row["share_percent"]) for row in rows) == pytest.approx(100)
    assert {row["occurrences"] for row in rows} == {"3"}
    phases = list(dict.fromkeys(row["phase"] for row in rows))
    assert phases == ["forward", "loss", "backward", "update"]
    weighted = [row for row in rows if row["layer_type"] in WEIGHTED[framework]]
    there, back = (
        [row["layer_name"] for row in weighted if row["phase"] == phase] for phase in ("forward", "backward")
    )
    assert len(set(there)) == 5
    assert back == there[::-1]

    runs = agent(*REPORT, "layers", "--raw", "-f", "csv").rows
    assert len(runs) == 3 * len(rows)
    assert {row["inputs"] for row in runs} == {"4"}
    tree = agent(*REPORT, "layer_tree", "-f", "csv").rows
    assert sum(int(row["layers"]) for row in tree) == len(rows)
    assert "no calls to a device" not in agent(*REPORT, "layers").stderr
    exports(agent, answer.figure("evaluation"), tmp_path)


def exports(agent: Agent, evaluation: str, folder: Path) -> None:
    """Exports a trace in each format, and draws its pictures."""
    spans = json.loads(agent("trace", "export", evaluation, "-f", "chrome").stdout)["traceEvents"]
    names = {span["name"] for span in spans}
    assert {"warm_up", "measure", "train_step", "wait", "copy", "train", "forward", "backward"} <= names
    assert parents_of(agent, evaluation)["train"] == {"train_step"}
    assert "<svg" in agent("trace", "export", evaluation, "-f", "flamegraph").stdout
    for report in ("layers", "layer_tree", "eventflow"):
        picture = folder / f"{report}.svg"
        assert agent(*REPORT, report, "--plot", picture).code == 0
        assert picture.read_text().startswith("<?xml") or "<svg" in picture.read_text()


def parents_of(agent: Agent, evaluation: str) -> Mapping[str, set[str]]:
    """The names of the parents of the spans of each name."""
    rows = agent(*REPORT, "eventflow", "--id", evaluation, "-f", "csv").rows
    names = {row["span_id"]: row["name"] for row in rows}
    found: dict[str, set[str]] = {}
    for row in rows:
        found.setdefault(row["name"], set()).add(names.get(row["parent_id"], ""))
    return found


def test_figures_of_training_leave_out_what_ran_under_a_profiler(agent: Agent) -> None:
    assert agent(*TRAIN, "--framework_name=PyTorch", "--trace_level=FRAMEWORK_TRACE").code == 0
    assert agent(*TRAIN, "--framework_name=PyTorch", "--trace_level=MODEL_TRACE").code == 0

    report = agent(*REPORT, "training", "-f", "csv")
    assert len(report.rows) == 1
    assert "left out 1 of 2" in report.stderr
    assert len(agent(*REPORT, "training", "--include_profiled", "-f", "csv").rows) == 2
    steps = agent(*REPORT, "training_steps", "-f", "csv").rows
    assert all(row["forward_us"] for row in steps)


def test_a_training_that_is_not_traced_keeps_no_spans(agent: Agent) -> None:
    answer = agent(*TRAIN, "--framework_name=PyTorch", "--trace_level=NO_TRACE")
    assert answer.code == 0
    assert "has no trace" in agent("trace", "export", answer.figure("evaluation")).error


def test_an_unknown_level_is_one_line(agent: Agent) -> None:
    answer = agent(*TRAIN, "--trace_level=FRAMEWORK")
    assert answer.code != 0
    assert "FRAMEWORK" in answer.error


def test_bench_inference_is_traced_too(agent: Agent) -> None:
    words = ("bench", "inference", *TRAIN[2:], "--framework_name=PyTorch", "--trace_level=FRAMEWORK_TRACE")
    assert agent(*words).code == 0
    assert {row["phase"] for row in agent(*REPORT, "layers", "-f", "csv").rows} == {""}
