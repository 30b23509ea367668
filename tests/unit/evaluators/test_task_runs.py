"""The evaluation of a model of any task: scores, samples that cannot be scored, and times without scoring."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from dataset_run_fakes import BATCH_NS, Clock, FakeSystem, Numbered, description, options

from inferometer.agent.hardware.environment import Weights
from inferometer.agent.inference.stages import BatchResult, SystemDescription
from inferometer.agent.preprocessing.inputs import Input
from inferometer.agent.tasks.predictions import Values
from inferometer.evaluators.kinds.batches.run import DatasetRun
from inferometer.manifests.errors import ConfigurationError, DatasetError, EvaluationFailed

METRIC = '''
from inferometer import DatasetError, PredictionError, Score, TaskMetric, TaskResult

class Summing(TaskMetric):
    """Sums up the values; it takes a second for each sample, and refuses "bad" and unreadable ones."""

    task = "summing"
    clock = None

    def __init__(self, manifest):
        super().__init__(manifest)
        self.total, self.count = 0.0, 0

    def check(self, sample):
        if sample.label == "unknown":
            raise DatasetError("the model does not know it")

    def add(self, sample, prediction):
        self.clock.now_ns += 1_000_000_000
        if sample.label == "bad":
            raise PredictionError("the map has another size")
        if sample.label == "unreadable":
            raise DatasetError("its truth cannot be read")
        if sample.label is not None:
            self.total += float(prediction.values[0, 0])
            self.count += 1

    def result(self):
        scores = (Score("sum", self.total, None, "m"),)
        return TaskResult(self.task, "sum 1", self.count, scores) if self.count else None
'''


class Summed(FakeSystem):
    """Answers each sample with its number."""

    weights = Weights.PRETRAINED
    overlap = False

    @property
    def description(self) -> SystemDescription:
        return replace(description("summing"), weights=self.weights, overlap=self.overlap)

    def predict(self, inputs: Sequence[Input]) -> BatchResult:
        found = super().predict(inputs)
        values = np.array([[float(id_[1:])] for id_ in found.input_ids], np.float32)
        return replace(found, outputs=Values(values) if found.input_ids else None)


@pytest.fixture(autouse=True)
def clock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Clock:
    """A clock that the metric moves on; the metric is that of an installed plug-in."""
    (tmp_path / "summing_metric.py").write_text(METRIC)
    info = tmp_path / "summing-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: summing\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[inferometer.metrics]\nsumming = summing_metric:Summing\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(__import__("sys").modules, "summing_metric", raising=False)
    import summing_metric  # type: ignore[import-not-found]

    summing_metric.Summing.clock = Clock()
    found: Clock = summing_metric.Summing.clock
    return found


def test_the_scores_are_those_of_the_metric_and_what_cannot_be_scored_has_failed(clock: Clock) -> None:
    labels = ("good", "bad", None, "unreadable", "good")
    run = DatasetRun(Summed(clock, bad={"s9"}), Numbered(10, labels), options(4), clock=clock, keep_most=None)
    measured = run.run().measurement

    assert measured.task_result is not None
    assert (measured.task_result.samples, measured.task_result.score("sum")) == (3, 0 + 4 + 5)
    assert measured.accuracy is None
    assert [(f.input_id, f.stage.value, f.message) for f in measured.failures] == [
        ("s1", "score", "the map has another size"),
        ("s3", "score", "its truth cannot be read"),
        ("s6", "score", "the map has another size"),
        ("s9", "read", "is broken"),
        ("s8", "score", "its truth cannot be read"),
    ]
    assert measured.times.sizes.tolist() == [4, 4, 1]
    kept = [each.prediction.columns()["values"].tolist() for each in measured.predictions]
    assert kept == [[[float(n)]] for n in range(9)]


def test_the_time_of_scoring_does_not_count_where_the_model_waits_for_it(clock: Clock) -> None:
    run = DatasetRun(Summed(clock), Numbered(10), options(4, min_batches=4), clock=clock)
    assert run.run().measurement.elapsed_ns == 5 * BATCH_NS


def test_it_counts_where_inputs_are_prepared_meanwhile(clock: Clock) -> None:
    system = Summed(clock)
    system.overlap = True
    elapsed_ns = DatasetRun(system, Numbered(10), options(4), clock=clock).run().measurement.elapsed_ns
    assert elapsed_ns == 3 * BATCH_NS + 8 * 1_000_000_000  # the last batch ends before its scoring


def test_a_sample_that_cannot_be_scored_stops_a_run_that_may_not_fail(clock: Clock) -> None:
    run = DatasetRun(Summed(clock), Numbered(10, ("good", "bad")), options(4, fail_on_error=True))
    with pytest.raises(EvaluationFailed, match="input s1 failed in score: the map has another size"):
        run.run()


def test_a_dataset_that_does_not_fit_is_refused_before_the_model_runs(clock: Clock) -> None:
    with pytest.raises(DatasetError, match="does not know it"):
        DatasetRun(Summed(clock), Numbered(10, ("good", "unknown")), options(4))


def test_random_weights_are_not_scored(clock: Clock) -> None:
    system = Summed(clock)
    system.weights = Weights.RANDOM
    found = DatasetRun(system, Numbered(10, ("unknown",)), options(4), clock=clock).run()
    assert found.measurement.task_result is None
    assert found.measurement.failures == ()


def test_a_metric_that_cannot_be_imported_is_named(
    clock: Clock, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "summing_metric.py").write_text("import no_such_module")
    monkeypatch.delitem(__import__("sys").modules, "summing_metric")
    with pytest.raises(
        ConfigurationError, match=r"metric of output\.type .summing., summing_metric:Summing, c"
    ):
        DatasetRun(Summed(clock), Numbered(10), options(4))
