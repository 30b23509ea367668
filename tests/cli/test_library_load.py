"""Load, searches, comparisons and served agents by the library, against what the command line shows."""

from __future__ import annotations

import asyncio
import json
import math
import os
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import pytest

import inferometer as im
from inferometer.client.api import runner
from inferometer.client.api.invocation import FRAMEWORK, MANIFESTS, VARIABLES
from inferometer.client.api.runner import StopRequest
from inferometer.client.cli.main import cli
from tests.cli.conftest import Agent

SOME = {"framework": "ONNXRuntime", "synthetic": True}


def test_a_workload_has_the_figures_of_its_report(agent: Agent) -> None:
    run = im.workload(**SOME, initial_qps=60, duration_s=0.5, latency_bound_ms=1000, percentile=90)

    [row] = agent("info", "evaluation", "workload", "-f", "csv").rows
    assert row["id"] == run.id
    assert run.p50_ms == float(row["latency_ms_p50"])
    assert run.p99_ms == float(row["latency_ms_p99"])
    assert run.goodput_qps == float(row["goodput_qps"])
    assert run.achieved_qps == float(row["achieved_qps"])
    assert [each.percent for each in run.percentiles] == [50, 90, 95, 99, 99.9]
    assert run.percentile(50).value_ms == run.p50_ms
    assert run.rows[0]["achieved_qps"] == run.achieved_qps
    assert run.reason == row["invalid"]
    assert run.valid is (row["invalid"] == "")
    assert run.complete
    with pytest.raises(im.ConfigurationError, match="percentile 98 was not computed; available: 50, 90"):
        run.percentile(98)
    assert "goodput" in repr(run)
    assert "<svg" in run._repr_html_()


def test_a_search_has_the_answer_of_its_report(agent: Agent) -> None:
    found = im.max_qps(**SOME, initial_qps=200, min_duration_s=0.1, min_queries=20, time_budget_s=2)

    [row] = agent("info", "evaluation", "max-qps", "-f", "csv").rows
    assert row["id"] == found.id
    figures = {"max_qps": found.rate_qps, "max_qps_low": found.low_qps, "max_qps_high": found.high_qps}
    assert {name: float(row[name]) if row[name] else None for name in figures} == figures
    assert (found.method, found.note, found.reason) == (row["method"], row["note"], row["invalid"])
    assert "max QPS" in repr(found)


def test_a_load_that_is_stopped_is_returned_and_not_published(
    agent: Agent, monkeypatch: pytest.MonkeyPatch
) -> None:
    class PressedLater(StopRequest):
        def __call__(self) -> bool:
            asked.append(None)
            return len(asked) > 1

    asked: list[None] = []
    monkeypatch.setattr(runner, "StopRequest", PressedLater)

    run = im.workload(**SOME, initial_qps=50, duration_s=60)

    assert not run.complete
    assert not run.valid
    assert run.reason
    assert len(run.evaluation.measurement.run.queries) > 0
    assert len(im.evaluations()) == 0


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"percentile": 100}, "percentile is 100; it must be above 0 and below 100"),
        ({"initial_qps": -1}, "initial_qps is -1; it must be above 0"),
        ({"initial_qps": math.nan}, "initial_qps is nan"),
        ({"duration_s": 0}, "duration is 0; it must be above 0"),
        ({"duration_s": 1, "min_queries": 3}, "duration sets the whole duration; leave out min_queries"),
        ({"concurrency": 0}, "concurrency is 0; it must be at least 1"),
        ({"max_batch_size": 5000}, "max_batch_size is 5000; it must be at least 1 and at most 4096"),
        ({"scenario": "offlin"}, 'unknown scenario "offlin"; known: single_stream'),
        ({"seed": -1}, "seed is -1"),
        ({"weights": "good"}, 'unknown weights "good"'),
        ({"schedule": Path("nowhere.csv")}, "nowhere.csv: cannot be read"),
    ],
)
def test_a_load_that_cannot_be_is_one_line(agent: Agent, wrong: dict[str, Any], said: str) -> None:
    with pytest.raises(im.InferometerError, match=said) as error:
        im.workload(**wrong)
    assert "\n" not in str(error.value)


def test_an_argument_that_does_not_exist_is_a_type_error(agent: Agent) -> None:
    with pytest.raises(TypeError, match="treads"):
        im.workload(treads=1)  # type: ignore[call-arg]


def test_a_comparison_is_that_of_the_command(agent: Agent) -> None:
    runs = [im.evaluate(framework="ONNXRuntime", batch_size=16, min_batches=60) for _ in range(3)]

    found = im.compare(runs[0], runs[1].id[:8], accuracy_threshold=0.1)

    answer = agent("compare", runs[0].id, runs[1].id, "--accuracy_threshold=0.1", "-f", "csv")
    assert [row["figure"] for row in found] == [row["figure"] for row in answer.rows]
    assert [row["verdict"] for row in found] == [row["verdict"] for row in answer.rows]
    assert found.to_dict()["ratio"][0] == float(answer.rows[0]["ratio"])
    assert found.worse is (answer.code == 1)
    assert answer.stderr.splitlines()[-1] == found.conclusion
    assert [line for line in answer.stderr.splitlines() if line in found.notes] == list(found.notes)
    assert repr(found).endswith(found.conclusion)
    assert "<svg" in found._repr_html_()
    assert [row["figure"] for row in im.compare(runs[0], runs[1:], figures=["p50"])] == ["p50"]
    assert im.compare(runs[0], runs[1], figures="top1").conclusion == "no regression; the same in top1"
    for wrong, said in (
        ({"b": runs[0]}, "is on both sides"),
        ({"b": []}, "B holds no evaluation"),
        ({"b": 3}, "B holds 3; give results of evaluate"),
        ({"b": "nothing"}, "holds no evaluation or group nothing"),
        ({"threshold": -1}, "threshold is -1; it must be at least 0"),
        ({"noise": runs, "threshold": 0.1}, "leave out one"),
        ({"figures": "p50x"}, "p50x is not a figure of these evaluations"),
    ):
        with pytest.raises(im.InferometerError, match=said):
            im.compare(**{"a": runs[0], "b": runs[1], **wrong})  # type: ignore[arg-type]


@pytest.fixture
def closed() -> Iterator[list[im.ServedAgent]]:
    """Agents, which are closed whatever happens."""
    agents: list[im.ServedAgent] = []
    yield agents
    for each in agents:
        each.close()


def test_models_are_served_until_the_end_of_the_block(agent: Agent, closed: list[im.ServedAgent]) -> None:
    async def in_a_notebook() -> im.Run:
        with im.serve(secret="open sesame", max_batch_size=4) as served:
            closed.append(served)
            assert "this is not its secret" in agent("status", served.address, "--secret=wrong").stderr
            assert agent("status", served.address, "--secret=open sesame").stderr == ""
            monkey.setenv("AGENT_SECRET", "open sesame")
            return im.evaluate(framework="ONNXRuntime", batch_size=16, min_batches=3, agent=served.address)

    with pytest.MonkeyPatch.context() as monkey:
        run = asyncio.run(in_a_notebook())

    [served] = closed
    assert run.evaluation.system.agent == served.address
    assert repr(served) == "<agent closed>"
    assert agent("status", served.address).code != 0
    served.close()


def test_settings_of_a_model_are_those_of_the_argument_or_else_of_the_file(
    agent: Agent, closed: list[im.ServedAgent], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def served(**given: Any) -> tuple[int, int]:
        """The largest batch and the instances of DigitsCNN."""
        closed.append(im.serve(http_port=0, max_batch_size=4, threads=1, **given))
        url = f"{closed[-1].http_url}/v2/models/DigitsCNN@ONNXRuntime/config"
        with urllib.request.urlopen(url, timeout=30) as answer:
            config = json.loads(answer.read())
        return config["max_batch_size"], config["instance_group"][0]["count"]

    file = tmp_path / "configuration.yml"
    file.write_text("serving: {models: {DigitsCNN: {instances: 3}}}")
    monkeypatch.setenv("AGENT_CONFIG", str(file))
    assert served() == (4, 3)
    assert served(models={}) == (4, 1)
    assert served(models={"digitscnn": {"instances": 2, "max_batch_size": 2}}) == (2, 2)


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"models": ["DigitsCNN"]}, r"models: found .*; allowed: "),
        ({"models": {"DigitsCNN": {"instances": 0}}}, "models.DigitsCNN.instances"),
        ({"models": {"DigitsCNN": {"pin": True}}}, r"^models.DigitsCNN.pin: is not known; fields: max_batch"),
        ({"models": {"DigitsCNN": {"preferred_batch_sizes": [4]}}}, "DigitsCNN: preferred_batch_sizes"),
        (
            {"models": {"DigitsCNN": {"gpus": [0, 1]}}},
            "^serving.models.DigitsCNN: gpu:0,1: each GPU needs an",
        ),
        ({"models": {"DigitsCNN": {"gpus": [-1]}}}, '^serving.models.DigitsCNN: gpus is "-1"; give indices'),
        ({"port": -1}, "port is -1"),
        ({"host": "0.0.0.0"}, "can be reached by others"),
        ({"tls_cert": "here.pem"}, "tls_cert is given without tls_key"),
        ({"max_queue": 0}, "max_queue is 0; it must be at least 1"),
        ({"advertise": "a b"}, '"a b" is not an address'),
        ({"weights": "good"}, 'unknown weights "good"'),
    ],
)
def test_an_agent_that_cannot_be_is_one_line(agent: Agent, wrong: dict[str, Any], said: str) -> None:
    with pytest.raises(im.ConfigurationError, match=said):
        im.serve(**wrong)


def test_the_environment_sets_what_it_sets_for_the_command(
    agent: Agent, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    variables = {option.envvar for option in _options(cli) if option.envvar}
    assert {*VARIABLES.values(), FRAMEWORK, MANIFESTS} <= variables

    monkeypatch.setenv("AGENT_FRAMEWORK", "Nope")
    with pytest.raises(im.InferometerError, match='unknown framework "Nope"'):
        im.evaluate()
    (tmp_path / "mine.yml").write_text("kind: nothing")
    monkeypatch.setenv("AGENT_MANIFESTS", os.pathsep.join([str(tmp_path), str(tmp_path / "missing")]))
    with pytest.raises(im.ConfigurationError, match="missing"):
        im.evaluate()
    monkeypatch.delenv("AGENT_MANIFESTS")
    monkeypatch.setenv("AGENT_DATABASE_ADDRESS", "localhost:nowhere")
    with pytest.raises(im.InferometerError, match="nowhere"):
        im.evaluations()


def _options(command: click.Command) -> Iterator[click.Option]:
    yield from (parameter for parameter in command.params if isinstance(parameter, click.Option))
    if isinstance(command, click.Group):
        context = click.Context(command)
        for name in command.list_commands(context):
            yield from _options(command.get_command(context, name) or click.Command(name))
