"""``--columns`` and ``--sort``, on reports and on listings, in every format."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from inferometer.evaluators.store.opening import open_store
from tests.cli.conftest import Agent
from tests.reports.conftest import on_cpu, without_a_full_batch

LATENCY = ("info", "evaluation", "latency")


@pytest.fixture(autouse=True)
def stored(tmp_path: Path) -> Sequence[str]:
    """Evaluations with batch sizes 64, 16 and 16, the newest first, the first without a latency."""
    fast = on_cpu()
    times = replace(fast.measurement.times, predict_ns=fast.measurement.times.predict_ns // 2)
    fast = replace(fast, id="00000000-0000-4000-8000-000000000000")
    fast = replace(fast, measurement=replace(fast.measurement, times=times))
    fast = replace(fast, created_at=fast.created_at.replace(day=2))
    with closing(open_store(None, "inferometer", tmp_path / "data")) as store:
        for evaluation in (on_cpu(), fast, without_a_full_batch()):
            store.save(evaluation)
    return [without_a_full_batch().id, fast.id, on_cpu().id]


def test_the_chosen_columns_are_all_that_csv_and_json_have(agent: Agent, stored: Sequence[str]) -> None:
    chosen = (*LATENCY, "--columns=id,latency_ms_mean,Batch Size,id")

    rows = agent(*chosen, "-f", "csv").rows
    objects = json.loads(agent(*chosen, "-f", "json").stdout)

    assert [list(row) for row in rows] == [["id", "latency_ms_mean", "batch_size"]] * 3
    assert [list(each) for each in objects] == [["id", "latency_ms_mean", "batch_size"]] * 3
    assert [row["id"] for row in rows] == stored
    assert [float(row["latency_ms_mean"] or "nan") for row in rows[1:]] == [
        each["latency_ms_mean"] for each in objects[1:]
    ]


def test_a_heading_without_its_unit_and_a_name_with_hyphens_are_names(agent: Agent) -> None:
    answer = agent(*LATENCY, "--columns=mean,batch-size,MODEL,throughput", "-f", "csv", "--limit=1")

    assert answer.stdout.splitlines()[0] == "latency_ms_mean,batch_size,model_name,throughput_inputs_per_s"


def test_rows_are_sorted_by_columns_that_need_not_be_shown(agent: Agent, stored: Sequence[str]) -> None:
    no_latency, fast, slow = stored

    def ids(order: str) -> list[str]:
        answer = agent(*LATENCY, "--columns=id", "--sort", order, "-f", "csv")
        assert answer.code == 0, answer.stderr
        return [row["id"] for row in answer.rows]

    assert ids("latency_ms_mean") == [fast, slow, no_latency]
    assert ids("-latency_ms_mean") == [slow, fast, no_latency], "what is not known comes last"
    assert ids("batch_size,-created_at") == [fast, slow, no_latency]
    assert ids("-batch_size,created_at") == [no_latency, slow, fast]
    assert ids("model_name") == [fast, slow, no_latency]


def test_a_file_that_is_appended_to_keeps_the_chosen_columns(agent: Agent, tmp_path: Path) -> None:
    file = tmp_path / "out.csv"
    chosen = (*LATENCY, "-f", "csv", "-o", file, "--append")

    assert agent(*chosen, "--columns=id,model").code == 0
    assert agent(*chosen, "--columns=id,model", "--no_header").code == 0
    other = agent(*chosen, "--columns=id,threads")

    assert other.code == 7
    assert "has other columns than id,threads" in other.error
    lines = list(csv.reader(io.StringIO(file.read_text())))
    assert lines[0] == ["id", "model_name"]
    assert len(lines) == 7


@pytest.mark.parametrize(
    ("command", "column", "order"),
    [
        (("evaluations",), "kind", "-rate"),
        (("models", "--name=DigitsCNN"), "framework_name", "-framework"),
        (("frameworks",), "name", "name"),
        (("datasets",), "license", "name"),
        (("system",), "value", "name"),
        (("evaluation", "max-qps"), "max_qps", "-max_qps"),
    ],
)
def test_listings_have_the_options_too(agent: Agent, command: Sequence[str], column: str, order: str) -> None:
    answer = agent("info", *command, f"--columns={column}", f"--sort={order}", "-f", "csv")

    assert answer.code == 0, answer.stderr
    assert answer.stdout.splitlines()[0] == column


def test_a_listing_is_sorted(agent: Agent) -> None:
    rows = agent("info", "models", "--name=DigitsCNN", "--sort=-framework", "-f", "csv").rows

    assert [row["framework_name"] for row in rows] == ["PyTorch", "ONNXRuntime", "MXNet"]


@pytest.mark.parametrize(
    ("option", "said"),
    [
        ("--columns=id,latncy_ms_mean", 'unknown column "latncy_ms_mean"; did you mean "latency_ms_mean"'),
        ("--sort=-batchsize", 'unknown column "batchsize"; did you mean "batch_size"'),
        ("--columns=", "columns names no column; give names with commas between"),
        ("--sort= , ", "sort names no column; give names with commas between"),
    ],
)
def test_a_name_that_is_none_is_one_line(agent: Agent, option: str, said: str) -> None:
    answer = agent(*LATENCY, option)

    assert answer.code == 2
    assert said in answer.error
    assert answer.stdout == ""
