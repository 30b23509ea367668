"""``predict workload --scenario`` on a real model: MLPerf's four scenarios, locally and with an agent."""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from inferometer.agent.inference.registry import Registry
from inferometer.agent.server.server import AgentServer, ServerOptions
from inferometer.client.cli.output import INVALID
from inferometer.evaluators.evaluation import Evaluation
from inferometer.evaluators.kinds.load.measurement import LoadMeasurement, Scenario
from inferometer.evaluators.load.queries import Outcome
from inferometer.evaluators.store.evaluation_store import EvaluationFilter
from inferometer.evaluators.store.opening import open_store
from inferometer.manifests.catalog import Catalog
from tests.cli.conftest import Agent, Answer

# 64 queries are the fewest with which LoadGen's early stopping can be satisfied at p90. How many queries come
# in a time depends on the machine: only the scenario server, whose schedule is fixed before, has a duration.
SHORT = ("predict", "workload", "--framework_name=ONNXRuntime", "--percentile=90", "--warmup=2")
SCENARIO = (*SHORT, "--min_duration=0", "--min_queries=64", "--latency_bound=5000", "--allow_invalid")
SERVER = ("--min_duration=0.3", "--initial_qps=300")


@pytest.fixture(scope="module")
def served() -> Iterator[str]:
    with AgentServer(Catalog(), Registry(), ServerOptions(port=0)) as server:
        yield server.address


def kept(answer: Answer) -> Evaluation:
    store = open_store(None, "inferometer", Path(os.environ["AGENT_DATA_DIR"]))
    try:
        [found] = store.find(EvaluationFilter(evaluation_id=answer.figure("evaluation")))
    finally:
        store.close()
    return found


def check(agent: Agent, answer: Answer, scenario: Scenario) -> None:
    """The figures are of both, are kept, are of the same queries, and are shown again."""
    assert answer.code == 0, answer.stderr
    load = kept(answer).measurement
    assert isinstance(load, LoadMeasurement)
    assert load.options.scenario is scenario
    run = load.run
    result = load.mlperf
    assert result is not None
    assert result.valid, result.reasons
    assert result.queries >= 64
    assert len(run.queries) == result.queries * scenario.samples_per_query
    assert run.queries.count(Outcome.ANSWERED) == len(run.queries)
    assert run.cut_ns == 0
    if scenario is Scenario.SERVER:
        assert run.rate_qps == 300
        assert run.checksum.startswith("sha256:")
        assert run.queries.scheduled_ns[-1] >= 300_000_000
    logs = Path(answer.figure("logs"))
    assert logs == Path(os.environ["AGENT_DATA_DIR"]) / "mlperf" / answer.figure("evaluation")
    assert result.log_directory == str(logs)
    assert "Result is : VALID" in (logs / "mlperf_log_summary.txt").read_text()
    assert answer.figure("LoadGen").startswith(f"VALID, {scenario.value}, {result.queries} ")
    [loadgen_ms, ours_ms] = re.findall(r"p50 +LoadGen (\S+) ms  ours (\S+) ms", answer.stdout)[0]
    assert float(loadgen_ms) == pytest.approx(result.percentiles_ns[0][1] / 1e6, abs=0.001)
    assert 0 < float(ours_ms) <= float(loadgen_ms)
    assert "%" in answer.figure("compared")
    again = agent("info", "evaluation", "show", answer.figure("evaluation"))
    assert again.code == 0, again.stderr
    assert answer.figure("LoadGen") in again.stdout
    assert answer.figure("logs") in again.stdout
    shown = agent("info", "evaluation", "show", answer.figure("evaluation"), "-f", "json").stdout
    document = json.loads(shown)["load"]
    assert document["options"]["scenario"] == scenario.value
    assert document["mlperf"]["log_directory"] == answer.figure("logs")


@pytest.mark.parametrize("scenario", Scenario)
def test_a_scenario_gives_loadgens_figures_beside_ours(agent: Agent, scenario: Scenario) -> None:
    more = {Scenario.SERVER: SERVER, Scenario.OFFLINE: ("--synthetic", "--include_preprocess=false")}.get(
        scenario, ()
    )
    check(agent, agent(*SCENARIO, f"--scenario={scenario.value}", "--max_batch_size=4", *more), scenario)


@pytest.mark.parametrize("scenario", [Scenario.SINGLE_STREAM, Scenario.SERVER])
def test_a_scenario_is_put_on_a_served_agent(agent: Agent, served: str, scenario: Scenario) -> None:
    more = SERVER if scenario is Scenario.SERVER else ()
    check(agent, agent(*SCENARIO, f"--scenario={scenario.value}", f"--agent={served}", *more), scenario)


def test_too_few_queries_are_invalid_to_loadgen_and_it_says_why(agent: Agent) -> None:
    answer = agent(*SHORT, "--scenario=single_stream", "--min_duration=0", "--min_queries=5")

    assert answer.code == INVALID, answer.stderr
    assert answer.figure("LoadGen").startswith("INVALID")
    assert "Need to process at least 64 queries for early stopping" in answer.stdout
    load = kept(answer).measurement
    assert isinstance(load, LoadMeasurement)
    assert load.mlperf is not None
    assert not load.mlperf.valid


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        (("--arrival=constant",), "leave out arrival"),
        (("--schedule=x.csv",), "leave out schedule"),
        (("--concurrency=2",), "leave out concurrency"),
        (("--write_schedule=x.csv",), "leave out write_schedule"),
    ],
)
def test_what_does_not_go_together_with_a_scenario_is_refused(
    agent: Agent, wrong: tuple[str, ...], said: str
) -> None:
    answer = agent(*SCENARIO, "--scenario=server", *wrong)

    assert answer.code == 2
    assert answer.error.startswith("agent: scenario leaves it to MLPerf's LoadGen when queries are sent"), (
        answer.error
    )
    assert said in answer.error


def test_an_unknown_scenario_and_a_duration_are_refused(agent: Agent) -> None:
    unknown = agent(*SCENARIO, "--scenario=token_stream")
    assert unknown.code == 2
    assert "token_stream" in unknown.error
    duration = agent(*SHORT, "--scenario=server", "--duration=3")
    assert duration.code == 2
    assert "leave out duration" in duration.error


def test_without_loadgen_it_is_said_how_to_install_it(agent: Agent, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "inferometer.evaluators.kinds.load.mlperf_library", raising=False)
    monkeypatch.delattr("inferometer.evaluators.kinds.load.mlperf_library", raising=False)
    monkeypatch.setitem(sys.modules, "mlperf_loadgen", None)

    answer = agent(*SCENARIO, "--scenario=server")

    assert answer.code == 2
    assert 'pip install "inferometer[mlperf]"' in answer.error
    without = agent(*SHORT, "--duration=0.1", "--initial_qps=50", "--synthetic", "--allow_invalid")
    assert without.code == 0
