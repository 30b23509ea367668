"""The jobs called from Python, without the command line: evaluations, load, callbacks and interruption."""

from __future__ import annotations

import dataclasses
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from inferometer.agent.inference.registry import Registry
from inferometer.agent.inference.session import Session, SessionOptions, open_session, select_model
from inferometer.agent.inference.stages import BatchResult, StageTimes
from inferometer.agent.preprocessing.inputs import batch_size
from inferometer.agent.tasks.predictions import RawOutputs
from inferometer.agent.tracing.recorder import TraceLevel, TraceScope
from inferometer.evaluators.evaluation import Status
from inferometer.evaluators.jobs.job import (
    DatasetChoice,
    JobCallbacks,
    JobPart,
    JobStart,
    Notify,
    Progress,
    SystemRequest,
)
from inferometer.evaluators.kinds.batches.job import evaluate
from inferometer.evaluators.kinds.batches.request import BatchOptions, EvaluationRequest
from inferometer.evaluators.kinds.load.job import LoadJob
from inferometer.evaluators.kinds.load.measurement import LoadMeasurement
from inferometer.evaluators.kinds.load.request import MaxQpsRequest, WorkloadRequest
from inferometer.manifests.catalog import Catalog
from inferometer.manifests.errors import ConfigurationError, DatasetError, EvaluationInterrupted
from inferometer.manifests.schema import ModelManifest
from tests.unit.evaluators.dataset_run_fakes import description

DIGITS = SystemRequest(framework_name="ONNXRuntime", session=SessionOptions(threads=1, preprocess_threads=1))


class Resources:
    """Opens models in this process, with the program's manifests and no command line."""

    def __init__(self, folder: Path) -> None:
        self.catalog = Catalog()
        self.cache = None
        self.data_directory = folder / "data"
        self.registry = Registry.discover()

    def check_system(self, request: SystemRequest) -> ModelManifest:
        return select_model(
            self.catalog, self.registry, request.model_name, request.model_version, request.framework_name
        )

    def open_system(
        self, request: SystemRequest, *, warm_up: bool, notify: Notify, trace: TraceScope | None
    ) -> Session:
        return open_session(self.check_system(request), request.session, self.registry, trace=trace)

    def open_loadable(self, request: SystemRequest, *, notify: Notify) -> Any:
        return Instant()


class Instant:
    """Answers every batch at once. It runs in this process, on one of two cores."""

    in_process = True
    description = dataclasses.replace(description("raw"), threads=1)

    def predict_tensor(self, batch: Any) -> BatchResult:
        ids = tuple(map(str, range(batch_size(batch))))
        return BatchResult(ids, RawOutputs({"raw": np.zeros((len(ids), 1))}), (), StageTimes(0, 0, 1, 0))

    def close(self) -> None:
        pass


class Seen:
    """Keeps what the callbacks are called with."""

    def __init__(self, stop_after: int | None = None) -> None:
        self.parts: list[JobPart] = []
        self.starts: list[JobStart] = []
        self.progress: list[Any] = []
        self.warnings: list[str] = []
        self.stop_after = stop_after

    def callbacks(self) -> JobCallbacks:
        return JobCallbacks(
            self.parts.append,
            self.starts.append,
            self.progress.append,
            self.warnings.append,
            lambda: self.stop_after is not None and len(self.progress) >= self.stop_after,
        )


@pytest.fixture
def resources(tmp_path: Path) -> Resources:
    return Resources(tmp_path)


def digits(trace_level: TraceLevel = TraceLevel.APPLICATION_TRACE, **given: Any) -> EvaluationRequest:
    options = BatchOptions(16, 16, num_file_parts=3, warmup_num_file_parts=1)
    return EvaluationRequest(
        system=DIGITS, dataset=DatasetChoice(), options=options, trace_level=trace_level, **given
    )


TWO_LEVELS = digits(TraceLevel.FRAMEWORK_TRACE, leveled=True)


def workload(**given: Any) -> WorkloadRequest:
    chosen = {"synthetic": True, "duration_s": 0.6, "initial_qps": 100.0, "warm_up_queries": 0, **given}
    return WorkloadRequest(system=SystemRequest(), **chosen)


def test_an_evaluation_is_made_of_a_request_and_prints_nothing(
    resources: Resources, capfd: pytest.CaptureFixture[str]
) -> None:
    seen = Seen()

    [evaluation] = evaluate(digits(), resources, seen.callbacks())

    assert evaluation.status is Status.COMPLETE
    assert evaluation.system.manifest.name == "DigitsCNN"
    accuracy = evaluation.measurement.accuracy
    assert accuracy is not None
    assert (accuracy.evaluated, accuracy.top1 > 40) == (48, True)
    assert seen.parts == [JobPart(1, 1, TraceLevel.APPLICATION_TRACE)]
    [start] = seen.starts
    assert (start.inputs, start.input_count) == ("digits_validation", 450)
    assert seen.progress[-1] == Progress(64, 64)
    assert [progress.done for progress in seen.progress] == [16, 32, 48, 64]
    assert tuple(capfd.readouterr()) == ("", "")


def test_each_level_of_a_leveled_evaluation_is_yielded_when_it_is_done(resources: Resources) -> None:
    seen = Seen()
    request = digits(TraceLevel.FRAMEWORK_TRACE, leveled=True)

    with closing(evaluate(request, resources, seen.callbacks())) as evaluations:
        first = next(evaluations)
        assert len(seen.parts) == 1
        [second] = evaluations

    assert [part.trace_level for part in seen.parts] == [TraceLevel.MODEL_TRACE, TraceLevel.FRAMEWORK_TRACE]
    assert [e.trace_level for e in (first, second)] == [part.trace_level for part in seen.parts]
    assert first.group_id == second.group_id is not None
    assert first.trace is not None
    assert first.trace.span_count > 0


def test_repeated_evaluations_are_of_fresh_processes_that_take_turns(resources: Resources) -> None:
    seen = Seen()
    request = replace(digits(TraceLevel.FRAMEWORK_TRACE, leveled=True, repeat=2), keep_most=None)

    evaluations = list(evaluate(request, resources, seen.callbacks()))

    levels = [TraceLevel.MODEL_TRACE, TraceLevel.FRAMEWORK_TRACE] * 2
    assert [each.trace_level for each in evaluations] == levels == [part.trace_level for part in seen.parts]
    assert [each.process for each in evaluations] == [1, 2, 3, 4]
    assert len({each.group_id for each in evaluations} - {None}) == 1
    assert len(seen.starts) == 4
    assert seen.progress[-1] == Progress(64, 64)
    assert all(len(each.measurement.predictions) == 48 for each in evaluations)


def test_a_whole_dataset_is_measured_enough_unless_something_speaks_against_it() -> None:
    whole = BatchOptions(16, 16)
    by_default = EvaluationRequest(options=whole).options_at(TraceLevel.APPLICATION_TRACE)
    assert by_default == replace(whole, target_ci_percent=5.0)

    assert EvaluationRequest(options=whole).options_at(TraceLevel.MODEL_TRACE) == whole
    assert digits().options_at(TraceLevel.APPLICATION_TRACE) == digits().options
    urls = EvaluationRequest(options=whole, dataset=DatasetChoice(urls_path=Path("list")))
    assert urls.options_at(TraceLevel.APPLICATION_TRACE) == whole
    once = EvaluationRequest(options=whole, measure_enough=False)
    assert once.options_at(TraceLevel.APPLICATION_TRACE) == whole
    asked = replace(urls, options=replace(whole, min_batches=7))
    assert asked.options_at(TraceLevel.FULL_TRACE) == asked.options
    with pytest.raises(ConfigurationError, match=r"^time_budget limits how long the dataset is repeated"):
        replace(urls, options=replace(whole, time_budget_s=3.0))


def test_a_stop_ends_the_job_with_what_was_measured(resources: Resources) -> None:
    seen = Seen(stop_after=2)  # after one batch of the warm-up, and one that is measured

    [evaluation] = evaluate(TWO_LEVELS, resources, seen.callbacks())

    assert evaluation.status is Status.INTERRUPTED
    assert evaluation.measurement.accuracy is not None
    assert evaluation.measurement.accuracy.evaluated == 16
    assert len(seen.parts) == 1


def test_a_stop_in_the_last_batch_of_an_evaluation_ends_the_group(resources: Resources) -> None:
    """As on the command line, where what was asked is forgotten once the evaluation is published."""
    seen = Seen(stop_after=4)
    evaluations = evaluate(TWO_LEVELS, resources, seen.callbacks())

    assert next(evaluations).status is Status.COMPLETE
    seen.stop_after = None

    with pytest.raises(EvaluationInterrupted, match=r"^stopped after 1 of 2 evaluations$"):
        next(evaluations)
    assert len(seen.parts) == 1


def test_a_stop_before_anything_was_measured_is_an_error(resources: Resources) -> None:
    with pytest.raises(EvaluationInterrupted):
        list(evaluate(digits(), resources, Seen(stop_after=0).callbacks()))


def test_a_request_that_makes_no_sense_cannot_be_made() -> None:
    with pytest.raises(ConfigurationError, match="is only one level"):
        digits(leveled=True)
    with pytest.raises(ConfigurationError, match="data_backend is the format of dataset_path"):
        DatasetChoice(name="a", backend="mnist")
    with pytest.raises(ConfigurationError, match="a load needs exactly one"):
        WorkloadRequest(system=SystemRequest(agents=("a:1", "b:1")))
    with pytest.raises(
        ConfigurationError, match="sends a query when a response arrives; leave out initial_qps"
    ):
        workload(concurrency=2)


def test_a_path_beside_a_name_is_for_datasets_that_users_obtain() -> None:
    with pytest.raises(ConfigurationError, match="both name a dataset"):
        DatasetChoice(name="digits_validation", path=Path("b")).open(Catalog(), None)
    with pytest.raises(DatasetError, match="nowhere: cannot be read"):
        DatasetChoice(name="ilsvrc2012_validation", path=Path("nowhere")).open(Catalog(), None)


def test_a_workload_gives_progress_warnings_and_an_evaluation(
    resources: Resources, capfd: pytest.CaptureFixture[str]
) -> None:
    seen = Seen()

    [evaluation] = LoadJob(workload()).run(resources, seen.callbacks())

    load = evaluation.measurement
    assert isinstance(load, LoadMeasurement)
    assert load.options.max_duration_s == 0.6
    assert evaluation.status is Status.COMPLETE
    assert len(load.run.queries) > 20
    assert all(each.counted == "" and " answers/s" in str(each) for each in seen.progress)
    assert seen.progress[-1].done > 0
    [start] = seen.starts
    assert "queries at 100 queries/s (poisson)" in start.work
    [warning] = seen.warnings
    assert warning.startswith("threads per operator: 1; one of 2 cores is left")
    assert tuple(capfd.readouterr()) == ("", "")


def test_repeated_workloads_are_a_group(resources: Resources) -> None:
    evaluations = list(LoadJob(workload(repeat=2)).run(resources))

    assert len({evaluation.id for evaluation in evaluations}) == 2
    assert len({evaluation.group_id for evaluation in evaluations} - {None}) == 1


def test_a_stopped_workload_is_an_interrupted_evaluation_of_the_queries_until_then(
    resources: Resources,
) -> None:
    [evaluation] = LoadJob(workload(duration_s=60.0, repeat=3)).run(resources, Seen(1).callbacks())

    assert evaluation.status is Status.INTERRUPTED
    assert isinstance(evaluation.measurement, LoadMeasurement)
    assert 0 < len(evaluation.measurement.run.queries) < 1000


def test_progress_without_a_known_total_says_only_what_is_done() -> None:
    assert str(Progress(5000, 0)) == "5,000 inputs"
    assert str(Progress(5, 10, "rows", "add")) == "5 of 10 rows, add"


def test_a_search_that_makes_no_sense_is_refused_before_a_model_is_opened() -> None:
    with pytest.raises(ConfigurationError, match="time_budget is 1"):
        LoadJob(MaxQpsRequest(system=SystemRequest(), synthetic=True, force=True, time_budget_s=1.0))
