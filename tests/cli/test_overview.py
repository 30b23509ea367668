"""``agent info evaluations``, the newest evaluation, and options with hyphens."""

from __future__ import annotations

import pytest

from tests.cli.conftest import Agent

BATCHES = ("predict", "dataset", "--framework_name=PyTorch", "--batch_size=16", "--num_file_parts=3")
LOAD = (
    "predict",
    "workload",
    "--framework_name=PyTorch",
    "--synthetic",
    "--initial_qps=40",
    "--allow_invalid",
)
SEARCH = (
    "predict",
    "max-qps",
    "--framework_name=PyTorch",
    "--synthetic",
    "--time_budget=3",
    "--allow_invalid",
)
SHORT = ("--min_duration=0.3", "--min_queries=10", "--latency_bound=200")


def test_every_kind_of_evaluation_is_listed_the_newest_first(agent: Agent) -> None:
    batches = agent(*BATCHES).figure("evaluation")
    load = agent(*LOAD, *SHORT).figure("evaluation")
    search = agent(*SEARCH, *SHORT).figure("evaluation")

    rows = agent("info", "evaluations", "-f", "csv").rows

    assert [(row["id"], row["kind"]) for row in rows] == [
        (search, "max QPS"),
        (load, "workload"),
        (batches, "batches"),
    ]
    reports = ("max-qps", "max_qps"), ("workload", "achieved_qps"), ("latency", "throughput_inputs_per_s")
    for row, (report, rate) in zip(rows, reports, strict=True):
        [own] = agent("info", "evaluation", report, "-f", "csv").rows
        assert row["rate_per_s"] == own[rate]
        assert row["latency_ms_p50"] == own.get("latency_ms_p50", "")
        assert row["invalid"] == own.get("invalid", "")
        assert row["stability"] == own["conditions"].split(":")[0]
    [accuracy] = agent("info", "evaluation", "accuracy", "-f", "csv").rows
    assert [row["top1_accuracy"] for row in rows] == ["", "", accuracy["top1_accuracy"]]
    [one] = agent("info", "evaluations", "--limit=1", "-f", "csv").rows
    assert one["id"] == search


def test_without_an_evaluation_the_list_is_empty_and_there_is_no_newest(agent: Agent) -> None:
    assert agent("info", "evaluations", "-f", "csv").rows == []
    answer = agent("info", "evaluation", "show")
    assert answer.code == 2
    assert "holds no evaluation yet; agent predict publishes them" in answer.error


def test_the_newest_evaluation_is_shown_without_an_id(agent: Agent) -> None:
    agent(*BATCHES)
    newest = agent(*BATCHES).figure("evaluation")

    assert agent("info", "evaluation", "show").figure("evaluation") == f"{newest}  complete"


@pytest.mark.parametrize("size", [("--batch-size=16",), ("--batch-size", "16"), ("--batch_size", "16")])
def test_an_option_may_have_hyphens(agent: Agent, size: tuple[str, ...]) -> None:
    answer = agent(
        "predict", "dataset", "--framework-name=PyTorch", *size, "--num-file-parts", "1", "--gpu=false"
    )

    assert answer.code == 0, answer.stderr
    assert "per batch of 16" in answer.stdout


def test_a_value_keeps_its_hyphens_and_an_unknown_option_its_name(agent: Agent) -> None:
    assert "no-such-model" in agent("predict", "dataset", "--model-name", "no-such-model").error
    assert "--no-such-option" in agent("predict", "dataset", "--no-such-option").error
