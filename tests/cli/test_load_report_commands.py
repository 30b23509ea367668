"""``info evaluation`` for evaluations under load: rows, plots and single evaluations."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.cli.conftest import Agent, FilledOnce

REPORT = ("info", "evaluation")
WORKLOAD = ("predict", "workload", "--synthetic", "--initial_qps=40", "--min_duration=0.5", "--warmup=2")
SEARCH = ("predict", "max-qps", "--synthetic", "--latency_bound=200", "--initial_qps=50", "--time_budget=2")


@pytest.fixture
def workload(agent: Agent) -> str:
    """The id of a workload of 20 queries or more."""
    answer = agent(*WORKLOAD, "--min_queries=20", "--latency_bound=1000", "--seed=5", "--allow_invalid")
    assert answer.code == 0, answer.stderr
    return answer.figure("evaluation")


@pytest.fixture
def search(agent: Agent, filled_once: FilledOnce) -> str:
    """The id of a search."""
    filled_once(lambda: agent(*SEARCH, "--min_duration=0.1", "--min_queries=10", "--allow_invalid"))
    [row] = agent(*REPORT, "max-qps", "-f", "csv").rows
    return row["id"]


def test_a_workload_is_reported_drawn_and_shown(agent: Agent, workload: str, tmp_path: Path) -> None:
    picture = tmp_path / "workload.svg"

    answer = agent(*REPORT, "workload", "-f", "csv", "--plot", picture)

    assert answer.code == 0
    [row] = answer.rows
    assert row["id"] == workload
    assert row["arrival"] == "poisson"
    assert row["seed"] == "5"
    assert row["queries"] == row["answered"]
    assert int(row["queries"]) >= 15  # without the empty start
    assert float(row["latency_ms_p99"]) >= float(row["latency_ms_p50"]) >= float(row["predict_ms_p50"]) > 0
    svg = picture.read_text()
    assert f"{workload}: " in svg
    assert "latency: due to answer" in svg

    shown = agent(*REPORT, "show", workload)
    assert shown.figure("load") == "poisson at 40 queries/s, seed 5"
    assert row["schedule_checksum"] in shown.stdout
    for misleading in ("inputs predicted", "accuracy", "not known", "throughput", "stages"):
        assert misleading not in shown.stdout
    document = json.loads(agent(*REPORT, "show", workload, "-f", "json").stdout)
    assert document["load"]["options"]["kind"] == "workload"
    assert document["load"]["options"]["latency_bound_ms"] == 1000
    assert document["load"]["workload"]["schedule_checksum"] == row["schedule_checksum"]
    assert document["load"]["workload"]["latency_ms_p99"] == float(row["latency_ms_p99"])
    assert sum(document["load"]["queries_by_batch_size"].values()) == int(row["answered"])
    assert not {"accuracy", "timing", "predicted_inputs", "layers"} & set(document)


@pytest.mark.parametrize("spelling", ["max-qps", "max_qps"])
def test_a_search_is_reported_in_both_spellings_with_its_probes(
    agent: Agent, search: str, spelling: str, tmp_path: Path
) -> None:
    picture = tmp_path / "max_qps.html"

    answer = agent(*REPORT, spelling, "-f", "csv", "--plot", picture)
    probes = agent(*REPORT, spelling, "--probes", "-f", "csv").rows

    assert answer.code == 0
    [row] = answer.rows
    assert (row["id"], row["percentile"], row["latency_bound_ms"]) == (search, "99.0", "200.0")
    assert len(probes) == int(row["probes"]) >= 1
    assert len({probe["schedule_checksum"] for probe in probes}) == len(probes)
    assert sum(float(probe["load_s"]) for probe in probes) == pytest.approx(float(row["load_s"]))
    assert "bound 200 ms for p99" in picture.read_text()

    shown = agent(*REPORT, "show", search)
    assert "search for the highest rate with p99 <= 200 ms" in shown.figure("load")
    assert "at p99 <= 200 ms" in shown.figure("max QPS")
    document = json.loads(agent(*REPORT, "show", search, "-f", "json").stdout)
    assert document["load"]["search"]["method"] == row["method"]
    assert len(document["load"]["probes"]) == len(probes)


def test_reports_on_load_and_on_batches_leave_each_other_alone(agent: Agent, workload: str) -> None:
    for report in ("latency", "duration", "layers", "max-qps"):
        answer = agent(*REPORT, report, "-f", "json")
        assert (answer.code, answer.stdout) == (0, "[]\n")
        assert "no evaluation" in answer.stderr
    assert len(agent(*REPORT, "workload", "-f", "csv", f"--id={workload[:8]}").rows) == 1


def test_all_writes_the_reports_on_load_with_their_pictures(
    agent: Agent, workload: str, tmp_path: Path
) -> None:
    folder = tmp_path / "reports"

    answer = agent(*REPORT, "all", "-o", folder, "--plot", "svg")

    assert answer.code == 0
    assert {path.name for path in folder.glob("*.svg")} == {"workload.svg", "parts.svg"}
    assert (folder / "workload.csv").read_text() == agent(*REPORT, "workload", "-f", "csv").stdout
    assert len((folder / "max_qps.csv").read_text().splitlines()) == 1


def test_probes_and_a_picture_exclude_each_other(agent: Agent, tmp_path: Path) -> None:
    answer = agent(*REPORT, "max-qps", "--probes", "--plot", tmp_path / "a.svg")

    assert answer.code == 2
    assert "leave out --plot" in answer.error
    assert agent(*REPORT, "latency", "--probes").code == 2
    assert list(tmp_path.glob("*.svg")) == []
