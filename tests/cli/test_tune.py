"""``agent tune`` on a real model: the answer, the table, and the configuration that ``agent serve`` takes."""

from __future__ import annotations

import base64
import gzip
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from inferometer.agent.hardware.environment import Precision
from inferometer.client.api.configuration import load_configuration
from inferometer.client.api.results import find_one
from inferometer.evaluators.evaluation import Status
from inferometer.evaluators.store.opening import open_store
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


@pytest.fixture(scope="module")
def tuned_agent() -> Iterator[dict[str, str]]:
    """The addresses of an agent that has its own settings for the model, by protocol."""
    with pytest.MonkeyPatch.context() as patch, tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "config.yaml"
        file.write_text("serving: {models: {DigitsCNN: {max_batch_size: 3, threads: 1}}}")
        patch.setenv("AGENT_CONFIG", str(file))
        with served("--http_port=0") as (address, process):
            assert process.stdout is not None
            url = process.stdout.readline().split()[-1]
            kserve = url.replace("http://", "kserve+http://")
            name = "DigitsCNN@ONNXRuntime"
            yield {
                "native": address,
                "grpc": f"kserve://{address}/{name}",
                "http": f"{kserve}/{name}",
                "url": url,
            }


def served_as(url: str) -> Any:
    """The configuration of the model at the agent."""
    with urllib.request.urlopen(f"{url}/v2/models/DigitsCNN@ONNXRuntime/config", timeout=60) as answer:
        return json.loads(answer.read())


@pytest.mark.parametrize("wire", ["native", "grpc", "http"])
def test_an_agent_is_tuned_and_then_serves_as_before(
    agent: Agent, tuned_agent: dict[str, str], tmp_path: Path, wire: str
) -> None:
    before, file = served_as(tuned_agent["url"]), tmp_path / "tuned.yml"
    assert (before["max_batch_size"], before["instance_group"][0]["count"]) == (3, 1)

    found = agent(*TUNE, f"--agent={tuned_agent[wire]}", "--time_budget=8", f"--write_config={file}")

    assert found.code == 0, found.stderr
    serving = load_configuration(file).serving
    rows = agent("info", "evaluation", "tuning", "-f", "csv", "--limit=1").rows
    assert {(row["instances"], row["threads"], row["max_batch_size"]) for row in rows[:4]} == {
        (instances, "1", size) for instances in "12" for size in "14"
    }
    assert rows[0]["instances"] == str(serving.instances)
    assert all(float(row["capacity_qps"]) > 0 for row in rows[:4])
    assert served_as(tuned_agent["url"]) == before


def test_ctrl_c_leaves_an_agent_as_before(tuned_agent: dict[str, str], tmp_path: Path) -> None:
    before = served_as(tuned_agent["url"])
    main = "from inferometer.client.cli.main import main; main()"
    command = [sys.executable, "-c", main, *TUNE, f"--agent={tuned_agent['native']}"]
    command += ["--instances=2,3", "--min_duration=3", "--time_budget=300", "--force"]
    environment = {**os.environ, "AGENT_DATA_DIR": str(tmp_path)}
    with subprocess.Popen(
        command, stderr=subprocess.PIPE, stdout=subprocess.PIPE, env=environment
    ) as process:
        end_s = time.monotonic() + 60
        while served_as(tuned_agent["url"])["instance_group"][0]["count"] == 1:
            assert process.poll() is None, process.communicate()
            assert time.monotonic() < end_s
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=60)

    assert process.returncode == 130
    assert served_as(tuned_agent["url"]) == before


def test_an_interrupted_tuning_is_resumed_only_as_it_was_begun(agent: Agent) -> None:
    whole = agent(*TUNE)
    with closing(open_store(None, "inferometer", Path(os.environ["AGENT_DATA_DIR"]))) as store:
        begun = find_one(store, whole.figure("evaluation"))
        stopped = replace(begun, id="stopped", status=Status.INTERRUPTED)
        host = replace(begun.system.environment, hostname="another")
        store.save(stopped)
        store.save(replace(stopped, id="elsewhere", system=replace(begun.system, environment=host)))
        store.save(replace(stopped, id="changed", system=replace(begun.system, checksums={})))
    refused = [
        ([f"--resume={begun.id}"], f"evaluation {begun.id} is no interrupted tuning"),
        (["--resume=stopped", "--percentile=95"], "stopped cannot be resumed with another percentile"),
        (["--resume=elsewhere"], "model or machine; what differs: environment.hostname"),
        (["--resume=changed"], "another model or machine; what differs: checksums"),
        (["--resume=unknown"], "holds no evaluation unknown"),
    ]
    for options, message in refused:
        found = agent(*TUNE, *options)
        assert found.code == 2
        assert message in found.error

    resumed = agent(*TUNE, "--resume=stopped", "--time_budget=59")

    assert resumed.code == 0, resumed.stderr
    count = len(begun.measurement.probes)
    assert resumed.figure("resumed") == f"{count} of {count} probes are those of evaluation stopped"
    for name in ("best", "answer", "another"):
        assert resumed.figure(name) == whole.figure(name)


def test_the_tuning_of_an_agent_is_resumed_with_its_first_probes(
    agent: Agent, tuned_agent: dict[str, str]
) -> None:
    before, system = served_as(tuned_agent["url"]), f"--agent={tuned_agent['native']}"
    whole = agent(*TUNE, system, "--time_budget=8")
    with closing(open_store(None, "inferometer", Path(os.environ["AGENT_DATA_DIR"]))) as store:
        begun = find_one(store, whole.figure("evaluation"))
        trials = [
            replace(each, probes=[n for n in each.probes if n < 5]) for each in begun.measurement.trials
        ]
        first = replace(begun.measurement, probes=begun.measurement.probes[:5], trials=tuple(trials))
        store.save(replace(begun, id="stopped", status=Status.INTERRUPTED, measurement=first))

    resumed = agent(*TUNE, system, "--time_budget=8", "--resume=stopped")

    assert resumed.code == 0, resumed.stderr
    assert resumed.figure("resumed").startswith("5 of ")
    assert "4 answered a burst" in resumed.figure("raced")
    assert "none" not in resumed.figure("best")
    assert served_as(tuned_agent["url"]) == before


def test_precisions_are_tuned_and_the_tuning_is_resumed(agent: Agent, tmp_path: Path) -> None:
    file = tmp_path / "tuned.yml"
    command = [*TUNE, "--framework_name=PyTorch", "--instances=1", "--max_batch_size=4"]
    command += ["--dtype=bfloat16,float32", "--synthetic=false", "--min_score=0.9"]

    whole = agent(*command, f"--write_config={file}")

    assert whole.code == 0, whole.stderr
    best = whole.figure("best").rsplit(", ", 1)[1]
    rows = agent("info", "evaluation", "tuning", "-f", "csv").rows
    assert {row["precision"] for row in rows} == {"bfloat16", "float32"}
    assert rows[0]["precision"] == best
    assert whole.figure("score").startswith("top-1 0.99")
    assert all(float(row["score_low"]) < float(row["score"]) < float(row["score_high"]) for row in rows)
    assert f"# for clients with --dtype={best}" in file.read_text()
    assert load_configuration(file).serving.max_batch_size == 4
    with closing(open_store(None, "inferometer", Path(os.environ["AGENT_DATA_DIR"]))) as store:
        begun = find_one(store, whole.figure("evaluation"))
        assert begun.system.precision == Precision(best)  # the evaluation describes the best
        for name, precision in (("one", Precision.BFLOAT16), ("other", Precision.FLOAT32)):
            system = replace(begun.system, precision=precision)  # that of the probe that was interrupted
            store.save(replace(begun, id=name, status=Status.INTERRUPTED, system=system))
    for name in ("one", "other"):
        resumed = agent(*command, f"--resume={name}")
        assert resumed.code == 0, resumed.stderr
        assert resumed.figure("best") == whole.figure("best")
        assert resumed.figure("score") == whole.figure("score")
    refused = agent(*command, "--resume=one", "--dtype=float32")
    assert (refused.code, "another dtype" in refused.error) == (2, True)


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
        (["--time_budget=1"], "time_budget is 1 s"),
        (["--dataset_name=digits_validation"], "synthetic needs no dataset"),
        (["--dtype=float32,bfloat16"], "a file and has its own precision"),
        (["--min_score=0.9"], "min_score needs a dataset with labels"),
        (["--synthetic=false", "--min_score=97"], "min_score is 97, but the highest top-1 is 0.9933"),
        (["--dtype=float32,int8"], 'unknown precision "int8"'),
        (["--dtype=float32,float16", "--agent=localhost:1"], "an agent serves the model in one precision"),
    ],
)
def test_wrong_input_is_refused_before_a_model_is_opened(
    agent: Agent, options: list[str], message: str
) -> None:
    found = agent(*TUNE, *options)

    assert found.code == 2
    assert message in found.error
    assert not found.stdout
