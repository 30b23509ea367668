"""``agent tune`` on a real model: the answer, the table, and the configuration that ``agent serve`` takes."""

from __future__ import annotations

import base64
import gzip
import json
import os
import re
from pathlib import Path

import pytest

from inferometer.client.api.configuration import load_configuration
from tests.cli.conftest import Agent, served

TUNE = (
    *("tune", "--framework_name=ONNXRuntime", "--synthetic", "--latency_bound=300", "--warmup=4"),
    *("--instances=1,2", "--threads=1", "--max_batch_size=1,4", "--min_duration=0.1", "--time_budget=60"),
)


def test_a_tuning_is_told_stored_and_served(agent: Agent, tmp_path: Path) -> None:
    file = tmp_path / "tuned.yml"

    found = agent(*TUNE, f"--write_config={file}")

    assert found.code == 0, found.stderr
    assert "tuning for at most 60 s" in found.stdout
    best = found.figure("best")
    serving = load_configuration(file).serving
    told = (
        f"instances {serving.instances}, threads {serving.threads}, batch {serving.max_batch_size}, "
        f"delay {serving.max_queue_delay_ms:g} ms"
    )
    assert best == told
    assert serving.threads == 1
    rows = agent("info", "evaluation", "tuning", "-f", "csv").rows
    assert {(row["instances"], row["max_batch_size"]) for row in rows} == {
        (instances, size) for instances in "12" for size in "14"
    }
    assert rows[0]["instances"] == str(serving.instances)
    assert [bool(row["stopped"]) for row in rows] == [False, True, True, True]
    identity = found.figure("evaluation")
    shown = json.loads(agent("info", "evaluation", "show", identity, "-f", "json").stdout)
    assert len(shown["tuning"]["trials"]) == 4
    page = tmp_path / "page.html"
    assert agent("report", "-o", str(page)).code == 0
    parts = re.findall(r'<script type="text/plain"[^>]*>([^<]*)</script>', page.read_text(encoding="utf-8"))
    text = "".join(gzip.decompress(base64.b64decode(part)).decode() for part in parts)
    assert "Pareto front" in text
    assert "agent measure tuning --model_name=DigitsCNN" in text
    assert "--instances=1,2 --threads=1 --max_batch_size=1,4" in text
    with served(environment={**os.environ, "AGENT_CONFIG": str(file)}) as (address, _):
        assert agent("status", address).code == 0


def test_a_file_that_exists_is_not_replaced(agent: Agent, tmp_path: Path) -> None:
    file = tmp_path / "tuned.yml"
    file.write_text("serving: {}\n")

    found = agent(*TUNE, f"--write_config={file}")

    assert found.code == 7
    assert f"{file} exists; name another file" in found.error
    assert file.read_text() == "serving: {}\n"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--max_batch_size=0,4"], "'--max_batch_size': 0 is not in the range x>=1."),
        (["--max_batch_size=four"], "'--max_batch_size': four is not a number; write one, or several"),
        (["--threads=1,1"], "'--threads': 1,1 names 1 twice; leave out one"),
        (["--instances=65"], "instances is 65; it must be at least 1 and at most 64"),
        (["--max_queue_delay_ms=soon"], 'max_queue_delay_ms is "soon"; give numbers, separated by commas'),
        (["--max_queue_delay_ms=1,1.0"], "max_queue_delay_ms is [1.0, 1.0]; give each value once"),
        (["--rate=0"], "0"),
        (["--max_memory=0"], "'--max_memory': 0 is not in the range x>=1."),
        (["--max_memory=100", "--gpu"], "leave it out"),
        (["--agent=127.0.0.1:1"], "leave out agent"),
        (["--time_budget=1"], "time_budget is 1 s"),
        (["--dataset_name=digits_validation"], "synthetic needs no dataset"),
    ],
)
def test_wrong_input_is_refused_before_a_model_is_opened(
    agent: Agent, options: list[str], message: str
) -> None:
    found = agent(*TUNE, *options)

    assert found.code == 2
    assert message in found.error
    assert not found.stdout
