"""The Python library: an evaluation, what it shows, and the evaluations that are stored."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import inferometer as im
from inferometer.client.api import runner
from inferometer.client.api.runner import StopRequest
from inferometer.evaluators.store.evaluation_store import EvaluationStore
from inferometer.manifests.errors import StoreError
from tests.cli.conftest import Agent

FRAMEWORKS = ("PyTorch", "MXNet", "ONNXRuntime")


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_an_evaluation_has_the_figures_of_the_command_line(agent: Agent, framework: str) -> None:
    run = im.evaluate(framework=framework, batch_size=16, min_batches=60)

    assert run.complete
    assert run.latency.batches >= 60
    assert run.latency.p50_ms == pytest.approx(float(np.median(run.times_ms)))
    assert run.latency.interval_ms is None or run.latency.interval_ms[0] <= run.latency.p50_ms
    assert run.latency.p99_ms is None
    assert run.accuracy is not None
    assert (run.accuracy.top1, run.accuracy.evaluated) == (447 / 450, 450)
    assert run.conditions is not None
    assert run.conditions.verdict in {"stable", "disturbed", "unstable", "not known"}
    [row] = agent("info", "evaluation", "latency", "-f", "csv").rows
    assert row["id"] == run.id
    assert float(row["latency_ms_p50"]) == run.latency.p50_ms
    assert float(row["throughput_inputs_per_s"]) == run.throughput_per_s
    shown = agent("info", "evaluation", "show", run.id)
    assert shown.figure("latency") in repr(run)


def test_a_dataset_is_a_name_or_a_path(agent: Agent, tmp_path: Path) -> None:
    images = np.zeros((10, 8, 8), np.uint8)
    np.savez(tmp_path / "mine.npz", images=images, labels=np.zeros(10, np.int64))

    of_path = im.evaluate(dataset=tmp_path / "mine.npz", batch_size=5, min_batches=2, publish=False)
    of_text = im.evaluate(dataset=str(tmp_path / "mine.npz"), batch_size=5, min_batches=2, publish=False)
    of_name = im.evaluate(dataset="digits_validation", batch_size=90, min_batches=2, publish=False)

    evaluated = [run.accuracy and run.accuracy.evaluated for run in (of_path, of_text, of_name)]
    assert evaluated == [10, 10, 450]
    assert len(im.evaluations()) == 0
    with pytest.raises(im.InferometerError, match="digits_validation"):
        im.evaluate(dataset="digits_validatoin")


def test_a_part_of_a_dataset_is_evaluated_recorded_and_compared_only_with_itself(agent: Agent) -> None:
    found = [
        im.evaluate(batch_size=2, min_batches=12, sample_ids=ids)
        for ids in (["3/0002.png", "6/0000.png"], ["6/0000.png", "3/0002.png"], ["6/0000.png", "8/0001.png"])
    ]
    assert [run.accuracy and run.accuracy.evaluated for run in found] == [2, 2, 2]
    shown = agent("info", "evaluation", "show", found[0].id)
    assert shown.figure("samples") == "2 by id: 6/0000.png, 3/0002.png"
    same, other = (agent("compare", found[0].id, run.id) for run in found[1:])
    assert "samples of the dataset" not in same.stdout + same.stderr
    assert (
        "samples of the dataset: 2 by id: 6/0000.png, 3/0002.png (A), 2 by id: 6/0000.png, 8/" in other.stderr
    )
    assert "top1" in same.stdout
    assert "top1" not in other.stdout
    load = im.workload(sample_ids=["8/0001.png"], concurrency=1, duration_s=0.2, publish=False)
    assert load.evaluation.dataset.sample_ids == ("8/0001.png",)


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"model": "DigitsCNM"}, 'unknown model "DigitsCNM"'),
        ({"sample_ids": "1"}, 'sample_ids is "1"; give a list of ids'),
        ({"sample_ids": ["6/0000.pgn"]}, 'has no sample "6/0000.pgn"'),
        ({"sample_ids": ["1"], "synthetic": True}, "sample_ids apply only to a dataset"),
        ({"weights": "good"}, 'unknown weights "good"; give pretrained or random'),
        ({"batch_size": 0}, "batch_size is 0"),
        ({"gpu": True}, "cannot use gpu:0"),
        ({"time_budget_s": -1.0}, "time_budget"),
    ],
)
def test_a_wrong_value_is_one_line(agent: Agent, wrong: dict[str, object], said: str) -> None:
    with pytest.raises(im.InferometerError, match=said) as error:
        im.evaluate(**wrong)  # type: ignore[arg-type]
    assert "\n" not in str(error.value)
    assert len(im.evaluations()) == 0


def test_ctrl_c_keeps_what_was_measured(agent: Agent, monkeypatch: pytest.MonkeyPatch) -> None:
    class PressedAfterFive(StopRequest):
        def __call__(self) -> bool:
            asked.append(None)
            return len(asked) > 5

    asked: list[None] = []
    monkeypatch.setattr(runner, "StopRequest", PressedAfterFive)

    run = im.evaluate(batch_size=16, min_batches=10_000)

    assert not run.complete
    assert 0 < run.latency.batches <= 5
    assert "interrupted" in agent("info", "evaluation", "show", run.id).figure("evaluation")


def test_an_evaluation_that_cannot_be_published_is_kept_in_a_file(
    agent: Agent, monkeypatch: pytest.MonkeyPatch
) -> None:
    def gone(*_: object) -> bool:
        raise StoreError("database gone")

    with monkeypatch.context() as patch:
        patch.setattr(EvaluationStore, "save", gone)
        with pytest.raises(StoreError, match="database gone; the evaluation was kept in ") as error:
            im.evaluate(batch_size=16, min_batches=5)
    file = str(error.value).rpartition(" ")[2]
    assert agent("database", "import", file).code == 0
    assert len(im.evaluations()) == 1


def test_stored_evaluations_are_rows_the_newest_first(agent: Agent) -> None:
    runs = [im.evaluate(framework=name, batch_size=16, min_batches=5) for name in FRAMEWORKS]
    agent(
        "predict",
        "workload",
        "--synthetic",
        "--initial_qps=40",
        "--min_duration=0.3",
        "--min_queries=12",
        "--allow_invalid",
    )

    every = im.evaluations()
    assert [row["kind"] for row in every] == ["workload", *["batches"] * 3]
    assert [row["id"] for row in every[1:]] == [run.id for run in reversed(runs)]
    assert every.to_dict()["latency_ms_p50"][1:] == [row["latency_ms_p50"] for row in every[1:]]
    assert [row["id"] for row in im.evaluations(framework="mxnet")] == [runs[1].id]
    assert [row["id"] for row in im.evaluations(model="DigitsCNN", limit=1)] == [every[0]["id"]]
    with pytest.raises(im.ConfigurationError, match="limit is 0"):
        im.evaluations(limit=0)


def test_a_notebook_gets_tables_in_which_nothing_runs(agent: Agent) -> None:
    run = im.evaluate(batch_size=16, min_batches=5)
    assert "<td" in run._repr_html_()
    assert run.id in run._repr_html_()
    rows = im.Evaluations([{**im.evaluations()[0], "model_name": "<script>alert(1)</script>"}])
    assert "<script>" not in rows._repr_html_()
    assert "&lt;script&gt;" in rows._repr_html_()


def test_repetitions_and_levels_are_a_group_whose_last_is_returned(agent: Agent) -> None:
    few = {"framework": "ONNXRuntime", "batch_size": 16, "num_file_parts": 3}
    run = im.evaluate(**few, repeat=2)

    assert [each.evaluation.process for each in run.group] == [1, 2]
    assert run is run.group[-1]
    assert len({each.evaluation.group_id for each in run.group}) == 1
    assert "over 2 processes" in repr(run)
    assert [row["id"] for row in im.evaluations()] == [each.id for each in reversed(run.group)]
    leveled = im.evaluate(**few, leveled=True, publish=False)
    levels = [each.evaluation.trace_level for each in leveled.group]
    assert levels == [im.TraceLevel.MODEL_TRACE, im.TraceLevel.FRAMEWORK_TRACE]
    loads = im.workload(framework="ONNXRuntime", concurrency=1, duration_s=0.2, repeat=2, publish=False)
    assert len({each.id for each in loads.group}) == 2
    assert im.evaluate(**few, publish=False).group[0].evaluation.process is None


def test_the_library_has_the_options_of_the_command(agent: Agent, tmp_path: Path) -> None:
    run = im.evaluate(
        framework="ONNXRuntime",
        batch_size=8,
        num_file_parts=2,
        partition_list_size=12,
        preprocess_threads=2,
        overlap=True,
        fail_on_error=True,
        trace_level="model_trace",
        publish=False,
    )
    evaluation = run.evaluation
    options, system = evaluation.measurement.options, evaluation.system
    assert (options.num_file_parts, options.partition_list_size, options.fail_on_error) == (2, 12, True)
    assert (system.preprocess_threads, system.overlap) == (2, True)
    assert evaluation.trace_level is im.TraceLevel.MODEL_TRACE
    assert evaluation.measurement.predicted_inputs == 24
    with pytest.raises(im.ConfigurationError, match='unknown trace level "DEEP"'):
        im.evaluate(trace_level="DEEP")
    for wrong, kind in (
        ({"min_duration_s": "5"}, "min_duration is '5'; it must be a number"),
        ({"batch_size": "8"}, "batch_size is '8'; it must be a whole number"),
        ({"overlap": 1}, "overlap is 1; it must be True or False"),
        ({"num_file_parts": 0}, "num_file_parts is 0; it must be at least 1, or -1 for all"),
        ({"batch_size": np.int64(2**31)}, "batch_size is 2147483648; it must be at most 2147483647"),
        *(({name: 3}, f"{name} is 3; it must be text") for name in ("weights", "precision", "trace_level")),
        ({"sample_ids": 3}, "sample_ids is 3; it must be a list"),
        ({"duplicate_input": 2}, "duplicate_input repeats the list of urls_file_path; give both"),
        ({"urls_file_path": "list", "dataset": "digits_validation"}, "both name inputs; give one of them"),
    ):
        with pytest.raises(im.ConfigurationError, match=kind):
            im.evaluate(**wrong)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=r"evaluate\(\) got an unexpected keyword argument 'treads'"):
        im.evaluate(treads=1)  # type: ignore[call-arg]
