"""A run of which every input failed is kept as failed, and nothing counts it."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from inferometer.agent.frameworks.onnxruntime import predictor
from inferometer.evaluators.evaluation import Evaluation, Status
from inferometer.evaluators.store.evaluation_store import EvaluationFilter
from inferometer.evaluators.store.opening import open_store
from inferometer.manifests.errors import PredictionError
from tests.cli.conftest import Agent

ONNX = "--framework_name=ONNXRuntime"
DATASET = ("predict", "dataset", ONNX, "--num_file_parts=1")
LOAD = (ONNX, "--synthetic", "--min_duration=0.1", "--min_queries=4", "--warmup=0", "--allow_invalid")
MAX_QPS = ("predict", "max-qps", "--latency_bound=50", "--initial_qps=20", "--time_budget=1", *LOAD)


def fail(*_: object, **__: object) -> None:
    raise PredictionError("no memory")


def kept() -> list[Evaluation]:
    store = open_store(None, "inferometer", Path(os.environ["AGENT_DATA_DIR"]))
    try:
        assert store.find(EvaluationFilter()) == []
        return list(store.find(EvaluationFilter(include_interrupted=True)))
    finally:
        store.close()


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (DATASET, "failed: every input; the first: "),
        ((*DATASET, "--min_batches=20"), "failed: every input; the first: "),
        (("predict", "workload", "--initial_qps=40", *LOAD), "failed: no query was answered; "),
        (("predict", "workload", "--concurrency=2", *LOAD), "failed: no query was answered; "),
        (MAX_QPS, "failed: no query was answered; "),
    ],
    ids=["dataset", "repeated", "workload", "closed", "max-qps"],
)
def test_a_run_without_a_right_answer_is_failed(
    agent: Agent, monkeypatch: pytest.MonkeyPatch, arguments: tuple[str, ...], line: str
) -> None:
    monkeypatch.setattr(predictor.ONNXRuntimePredictor, "predict", fail)

    answer = agent(*arguments)

    assert answer.code == 1, answer.stderr
    assert [each for each in answer.stderr.splitlines() if line in each], answer.stderr
    [evaluation] = kept()
    assert evaluation.status is Status.FAILED
    assert agent("info", "evaluations", "-f", "csv").rows == []
    [row] = agent("info", "evaluations", "-f", "csv", "--include_interrupted").rows
    assert row["id"] == evaluation.id
    refused = agent("compare", evaluation.id, evaluation.id)
    assert refused.code == 2
    assert "has failed: all of its inputs failed; leave it out" in refused.stderr


def test_pictures_that_all_fail_are_a_failed_run(agent: Agent, tmp_path: Path) -> None:
    (tmp_path / "a.png").write_bytes(b"no image")
    urls = tmp_path / "urls.txt"
    urls.write_text(f"{tmp_path / 'a.png'}\n")

    answer = agent("predict", "urls", ONNX, f"--urls_file_path={urls}")

    assert answer.code == 1
    assert "failed: every input; the first: " in answer.stderr
    assert [evaluation.status for evaluation in kept()] == [Status.FAILED]


def test_one_right_answer_is_enough(agent: Agent) -> None:
    assert agent(*DATASET).code == 0
