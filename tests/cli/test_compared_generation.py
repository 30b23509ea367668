"""``agent compare`` on generated answers: real runs of ToyLlama, and stored ones whose truth is known."""

from __future__ import annotations

import json
import os
import uuid
from collections.abc import Sequence
from pathlib import Path

import pytest

import inferometer
from inferometer.evaluators.evaluation import Evaluation
from inferometer.evaluators.store.opening import open_store
from tests.cli.conftest import Agent
from tests.contract.store_fixtures import make_evaluation
from tests.generated_answers import answer, measured
from tests.integration.generation_truth import serving

MEASURE = (
    "measure",
    "generation",
    "--concurrency=1",
    "--max_queries=60",
    "--ignore_eos",
    "--output_tokens=8",
)
DEFAULT = ["ttft_p50", "tpot_p50", "e2e_p50", "tokens", "throughput"]


def keep(*slower: float) -> list[str]:
    """Stores 300 answers for each factor by which they are slower, and returns their ids."""
    store = open_store(None, "inferometer", Path(os.environ["AGENT_DATA_DIR"]))
    evaluations: Sequence[Evaluation] = [
        make_evaluation(
            measurement=measured(
                [answer(100 * n, each * (50 + n % 10), each * (8 + n % 3), reasoning=0) for n in range(300)]
            ),
            id=str(uuid.uuid4()),
        )
        for each in slower
    ]
    for evaluation in evaluations:
        assert store.save(evaluation)
    store.close()
    return [evaluation.id for evaluation in evaluations]


@pytest.mark.real_time
def test_two_runs_of_a_model_in_this_process_are_compared(agent: Agent) -> None:
    runs = [agent(*MEASURE) for _ in range(2)]  # each with a seed of its own
    a, b = (run.figure("evaluation") for run in runs)

    found = agent("compare", a, b, "--threshold=10", "-f", "json")

    assert found.code == 0, found.stderr
    rows = json.loads(found.stdout)
    assert [row["figure"] for row in rows] == DEFAULT
    reported = {row["id"]: row for row in agent("info", "evaluation", "generation", "-f", "csv").rows}
    for side, identity in (("a", a), ("b", b)):
        assert rows[0][side] == pytest.approx(float(reported[identity]["ttft_ms_p50"]))
        assert rows[3][side] == pytest.approx(float(reported[identity]["output_tokens_per_s"]))
    assert all(row["ratio_low"] <= row["ratio"] <= row["ratio_high"] for row in rows)
    assert "differs" not in found.stderr
    noisy = agent("compare", a, b, f"--noise={a},{b}")
    assert noisy.code == 2  # B would be judged by its own runs


@pytest.mark.real_time
def test_a_server_that_takes_twice_as_long_is_found(agent: Agent) -> None:
    load = ("--concurrency=1", "--max_queries=60", "--prompt_tokens=20", "--output_tokens=8", "--warmup=1")
    ids = []
    for first_ms, token_ms in ((20, 2), (40, 4)):
        with serving(first_ms=first_ms, token_ms=token_ms) as server:
            found = agent("measure", "generation", f"--agent=openai+http://{server.address}", *load)
        assert found.code == 0, found.stderr
        ids.append(found.figure("evaluation"))

    worse = agent("compare", *ids, "-f", "csv")

    assert worse.code == 1, worse.stderr
    rows = {row["figure"]: row for row in worse.rows}
    assert {row["verdict"] for row in rows.values()} == {"worse"}
    for figure, ratio in (("ttft_p50", 2), ("tpot_p50", 2), ("e2e_p50", 2), ("tokens", 0.5)):
        assert float(rows[figure]["ratio"]) == pytest.approx(ratio, rel=0.25), figure
    assert "differs" not in worse.stderr


@pytest.mark.real_time
def test_another_load_is_refused(agent: Agent) -> None:
    one = agent(*MEASURE).figure("evaluation")
    two = agent(*MEASURE, "--concurrency=2").figure("evaluation")

    refused = agent("compare", one, two)

    assert refused.code == 2
    loads = "load closed loop, 1 in flight and B closed loop, 2 in flight"
    assert f"A has {loads}, so their figures answer different questions" in refused.error


def test_a_slower_server_is_a_regression_in_the_figures_that_were_asked_for(agent: Agent) -> None:
    a, b = keep(1, 1.2)
    figures = "--figures=ttft_p50,tpot_p90,e2e_p75,tokens"

    worse, better = agent("compare", a, b, figures, "-f", "csv"), agent("compare", b, a, figures)

    assert worse.code == 1, worse.stderr
    rows = {row["figure"]: row for row in worse.rows}
    for figure in ("ttft_p50", "tpot_p90"):
        assert float(rows[figure]["ratio"]) == pytest.approx(1.2)
        assert rows[figure]["verdict"] == "worse"
    assert rows["e2e_p75"]["verdict"] == "worse"
    assert rows["tokens"]["verdict"] == "same"  # the same requests were due at the same times
    assert "no regression; better in ttft_p50, tpot_p90 and e2e_p75; the same in tokens" in better.stdout


@pytest.mark.parametrize("name", ["p50", "ttft_p5o", "icl_p50", "goodput", "max_qps", "top1"])
def test_a_figure_that_they_do_not_have_is_told_in_a_line(agent: Agent, name: str) -> None:
    refused = agent("compare", *keep(1, 1), f"--figures={name}")

    assert refused.code == 2
    has = "ttft_p50, ttft_p90, tpot_p50, tpot_p90, e2e_p50, e2e_p90, tokens, throughput and other percentiles"
    assert refused.error.strip() == f"agent: {name} is not a figure of these evaluations; they have {has}"


def test_the_library_compares_them(agent: Agent) -> None:
    a, b, *noise = keep(1, 1.2, 1, 1.02)

    found = inferometer.compare(a, b, noise=noise, figures=["ttft_p50", "tpot_p50"])

    assert found.worse
    assert [row["figure"] for row in found] == ["ttft_p50", "tpot_p50"]
    assert found[0]["threshold"] == pytest.approx(0.02)
