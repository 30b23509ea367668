"""``agent compare`` on runs that the test makes."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cli.conftest import Agent

pytestmark = pytest.mark.real_time
PATIENT = "--latency_bound=60000"
"""A bound that allows a lag of 600 ms: what a busy machine does to a run is not what is compared."""


def test_a_schedule_that_was_written_is_compared_with_its_replay(agent: Agent, tmp_path: Path) -> None:
    workload = ("predict", "workload", "--framework_name=ONNXRuntime", "--synthetic", PATIENT)
    path = tmp_path / "schedule.csv"
    drawn = agent(
        *(*workload, "--initial_qps=100", "--arrival=ramp:over_s=1", "--duration=0.5"),
        f"--write_schedule={path}",
    )
    replayed = agent(*workload, f"--schedule={path}")

    answer = agent("compare", drawn.figure("evaluation"), replayed.figure("evaluation"), "--threshold=10")

    assert answer.code == 0, answer.stderr
    assert "differs" not in answer.stderr


def test_a_model_that_waits_for_a_batch_is_found_to_be_slower(agent: Agent) -> None:
    """B's queries wait 60 ms for others; A's do not."""
    workload = (
        *("predict", "workload", "--framework_name=ONNXRuntime", "--synthetic", "--initial_qps=40"),
        *(PATIENT, "--min_duration=1.2", "--min_queries=50", "--max_batch_size=64"),
    )
    quick = [agent(*workload, f"--seed={seed}").figure("evaluation") for seed in (1, 2)]
    slow = [
        agent(*workload, f"--seed={seed}", "--max_queue_delay_ms=60").figure("evaluation") for seed in (1, 2)
    ]

    answer = agent("compare", ",".join(quick), ",".join(slow), "--figures=p50", "-f", "csv")

    assert answer.code == 1, answer.stderr
    assert "differs: max queue delay: 0 ms (A), 60 ms (B)" in answer.stderr
    assert float(answer.rows[0]["b"]) > 30  # those that come while a batch waits wait less
    assert agent("compare", *quick, "--figures=p50", "--threshold=10").code == 0


def test_a_slower_model_is_found_in_the_scenario_offline(agent: Agent) -> None:
    """Without batches DigitsCNN is several times slower; how many samples there are is up to LoadGen."""
    offline = (
        *("predict", "workload", "--framework_name=PyTorch", "--scenario=offline", "--synthetic"),
        *("--min_duration=1", "--threads=1"),
    )
    batched, single = (agent(*offline, f"--max_batch_size={size}").figure("evaluation") for size in (32, 1))

    answer = agent("compare", batched, single, "-f", "csv")
    percentile = agent("compare", batched, single, "--figures=throughput,p99")

    assert answer.code == 1, answer.stderr
    [row] = answer.rows
    assert (row["figure"], row["unit"], row["verdict"]) == ("throughput", "queries/s", "worse")
    assert float(row["ratio_low"]) <= float(row["ratio"]) <= float(row["ratio_high"]) < 0.9
    assert percentile.code == 2
    assert "p99 is not a figure of these queries: all were due at once" in percentile.error
    [reported] = agent("info", "evaluation", "workload", "--id", single, "-f", "csv").rows
    assert float(reported["latency_ms_p50"]) > 0
    assert reported["latency_ms_p50_low"] == reported["latency_ms_p50_high"] == ""
