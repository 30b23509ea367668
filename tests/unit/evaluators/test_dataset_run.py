"""The evaluation over a dataset: which samples run, in which batches, and what is stored."""

from __future__ import annotations

import math
from datetime import datetime, timezone
from typing import Any
from uuid import UUID

import numpy as np
import pytest
from dataset_run_fakes import (
    BATCH_NS,
    CLASSES,
    POSTPROCESS_NS,
    PREPROCESS_NS,
    READ_NS,
    Clock,
    FakeSystem,
    Numbered,
    after,
    options,
)
from hypothesis import given
from hypothesis import strategies as st

from inferometer.evaluators.evaluation import Evaluation, Status
from inferometer.evaluators.jobs.job import JobCallbacks, Progress
from inferometer.evaluators.kinds.batches.measurement import BatchMeasurement
from inferometer.evaluators.kinds.batches.run import DatasetRun
from inferometer.evaluators.tasks.metric import Accuracy
from inferometer.manifests.errors import (
    ConfigurationError,
    DatasetError,
    EvaluationFailed,
    EvaluationInterrupted,
)

# which samples, in which batches


@pytest.mark.parametrize(
    ("size", "batch_size", "part", "parts", "sizes"),
    [
        (25, 4, 10, -1, [4, 4, 4, 4, 4, 4, 1]),
        (25, 4, 10, 1, [4, 4, 2]),
        (25, 4, 10, 2, [4, 4, 4, 4, 4]),
        (25, 4, 10, 3, [4, 4, 4, 4, 4, 4, 1]),
        (25, 4, 10, 1000, [4, 4, 4, 4, 4, 4, 1]),
        (25, 25, 10, -1, [25]),
        (25, 64, 10, -1, [25]),
        (25, 10, 3, 4, [10, 2]),
        (1, 1, 1, 1, [1]),
        (8, 4, 4, -1, [4, 4]),
    ],
)
def test_batches_go_across_the_parts_and_only_the_last_is_smaller(
    size: int, batch_size: int, part: int, parts: int, sizes: list[int]
) -> None:
    system, dataset = FakeSystem(), Numbered(size)
    evaluation = DatasetRun(system, dataset, options(batch_size, part, num_file_parts=parts)).run()
    assert evaluation.measurement.times.sizes.tolist() == sizes
    assert [len(batch) for batch in system.answered] == sizes
    assert [id_ for batch in system.answered for id_ in batch] == [f"s{n}" for n in range(sum(sizes))]
    assert dataset.read == list(range(sum(sizes)))
    assert evaluation.status is Status.COMPLETE
    assert evaluation.measurement.accuracy is not None
    assert evaluation.measurement.accuracy.evaluated == sum(sizes)
    full = [taken for taken in sizes if taken == batch_size]
    assert evaluation.measurement.times.full(batch_size).tolist() == [BATCH_NS] * len(full)


@given(
    size=st.integers(1, 40),
    batch_size=st.integers(1, 12),
    part=st.integers(1, 12),
    parts=st.one_of(st.just(-1), st.integers(1, 6)),
    warmup=st.integers(0, 3),
)
def test_any_division_counts_every_sample_once(
    size: int, batch_size: int, part: int, parts: int, warmup: int
) -> None:
    progress: list[Progress] = []
    system = FakeSystem()
    chosen = options(batch_size, part, num_file_parts=parts, warmup_num_file_parts=warmup)
    evaluation = DatasetRun(
        system, Numbered(size), chosen, callbacks=JobCallbacks(on_progress=progress.append)
    ).run()
    measured = size if parts == -1 else min(size, part * parts)
    warm = min(size, max(warmup * part, batch_size)) if warmup else 0
    assert evaluation.measurement.times.sizes.sum() == measured
    assert (evaluation.measurement.times.sizes[:-1] == batch_size).all()
    assert sum(map(len, system.answered)) == warm + measured
    assert progress[-1] == Progress(warm + measured, warm + measured)
    assert [p.done for p in progress] == list(np.cumsum([len(batch) for batch in system.answered]))
    assert {p.total for p in progress} == {warm + measured}


def test_the_warm_up_has_a_full_batch_however_small_the_parts_are() -> None:
    system = FakeSystem()
    DatasetRun(system, Numbered(8), options(4, 1, warmup_num_file_parts=1)).run()
    assert [len(batch) for batch in system.answered] == [4, 4, 4]


def test_the_warm_up_is_neither_timed_nor_counted() -> None:
    clock = Clock()
    system = FakeSystem(clock, bad={"s1"})
    warmed = DatasetRun(
        system, Numbered(10), options(4, 5, num_file_parts=1, warmup_num_file_parts=2), clock=clock
    ).run()
    assert [len(batch) for batch in system.answered] == [4, 4, 2, 4, 1]
    assert warmed.measurement.times.sizes.tolist() == [3, 1]
    assert warmed.measurement.elapsed_ns == 2 * BATCH_NS
    assert [failure.input_id for failure in warmed.measurement.failures] == ["s1"]
    assert warmed.measurement.accuracy is not None
    assert warmed.measurement.accuracy.evaluated == 4
    assert warmed.measurement.options.warmup_num_file_parts == 2


def test_without_a_warm_up_the_system_is_asked_for_one_run() -> None:
    system = FakeSystem()
    DatasetRun(system, Numbered(4), options()).run()
    assert system.runs == ["begun", "ended"]


# what is kept


def test_the_raw_times_of_every_batch_are_kept() -> None:
    clock = Clock()
    clock.now_ns = 77
    evaluation = DatasetRun(FakeSystem(clock), Numbered(10), options(4), clock=clock).run()
    batches = evaluation.measurement.times
    assert batches.sizes.tolist() == [4, 4, 2]
    assert batches.read_ns.tolist() == [READ_NS] * 3
    assert batches.preprocess_ns.tolist() == [PREPROCESS_NS] * 3
    assert batches.predict_ns.tolist() == [BATCH_NS] * 3
    assert batches.postprocess_ns.tolist() == [POSTPROCESS_NS] * 3
    assert {times.dtype for times in (batches.sizes, batches.predict_ns)} == {np.dtype(np.int64)}
    assert evaluation.measurement.elapsed_ns == 3 * BATCH_NS


def test_the_time_after_the_last_batch_does_not_count() -> None:
    clock = Clock()

    def report(progress: Progress) -> None:
        clock.now_ns += 5

    evaluation = DatasetRun(
        FakeSystem(clock), Numbered(8), options(4), clock=clock, callbacks=JobCallbacks(on_progress=report)
    ).run()
    assert evaluation.measurement.elapsed_ns == 2 * BATCH_NS + 5


def test_accuracy_is_counted_over_what_ran() -> None:
    evaluation = DatasetRun(FakeSystem(), Numbered(30), options(4, 10, num_file_parts=1)).run()
    assert evaluation.measurement.accuracy == Accuracy(top1=4, top5=10, evaluated=10)


def test_failed_inputs_are_kept_counted_and_left_out_of_the_accuracy() -> None:
    system = FakeSystem(bad={"s0", "s5", "s8", "s9"})
    evaluation = DatasetRun(system, Numbered(10), options(4)).run()
    assert [failure.input_id for failure in evaluation.measurement.failures] == ["s0", "s5", "s8", "s9"]
    assert evaluation.measurement.times.sizes.tolist() == [3, 3, 0]
    assert evaluation.measurement.times.predict_ns.tolist() == [BATCH_NS, BATCH_NS, 0]
    assert evaluation.measurement.times.full(4).size == 0
    assert evaluation.measurement.accuracy == Accuracy(top1=2, top5=6, evaluated=6)
    assert evaluation.status is Status.COMPLETE


@pytest.mark.parametrize("fails", [range(10), range(9)])
def test_an_evaluation_of_which_every_input_failed_is_failed(fails: range) -> None:
    system = FakeSystem(bad={f"s{number}" for number in fails})
    evaluation = DatasetRun(system, Numbered(10), options(4)).run()
    assert evaluation.status is (Status.FAILED if len(fails) == 10 else Status.COMPLETE)


def test_without_labels_there_is_no_accuracy() -> None:
    assert DatasetRun(FakeSystem(), Numbered(5, [None]), options()).run().measurement.accuracy is None


def test_a_model_that_does_not_classify_has_times_and_no_accuracy() -> None:
    evaluation = DatasetRun(FakeSystem(kind="raw"), Numbered(5), options(), keep_most=None).run()
    assert evaluation.measurement.accuracy is None
    assert evaluation.measurement.predictions == ()
    assert evaluation.measurement.times.sizes.tolist() == [4, 1]


def test_predictions_are_kept_when_they_are_asked_for_with_their_labels() -> None:
    system = FakeSystem(bad={"s1"})
    evaluation = DatasetRun(system, Numbered(6, [*CLASSES, None]), options(4), keep_most=None).run()
    assert [(p.input_id, p.expected_label) for p in evaluation.measurement.predictions] == [
        ("s0", "ant"),
        ("s2", "cat"),
        ("s3", None),
        ("s4", "ant"),
        ("s5", "bee"),
    ]
    assert [p.indices.tolist() for p in evaluation.measurement.predictions] == [[0, 1, 2]] * 5
    assert [p.probabilities.tolist() for p in evaluation.measurement.predictions] == [[0.5] * 3] * 5


def test_predictions_are_not_kept_unless_they_are_asked_for() -> None:
    assert DatasetRun(FakeSystem(), Numbered(6), options()).run().measurement.predictions == ()


def test_an_evaluation_says_what_ran_when_and_with_what() -> None:
    before = datetime.now(timezone.utc)
    system, dataset, chosen = FakeSystem(), Numbered(3), options()
    first, second = (DatasetRun(system, dataset, chosen).run() for _ in range(2))
    assert before.timestamp() - 0.001 <= first.created_at.timestamp() <= second.created_at.timestamp()
    assert first.created_at.tzinfo is timezone.utc
    assert first.created_at.microsecond % 1000 == 0
    assert first.dataset == dataset.identity
    assert first.measurement.options is chosen
    assert first.system == system.description
    assert UUID(first.id) != UUID(second.id)


# stopping


def test_a_stop_keeps_the_batches_that_were_finished() -> None:
    clock = Clock()
    system = FakeSystem(clock)
    progress: list[Progress] = []
    evaluation = DatasetRun(
        system,
        Numbered(20),
        options(4),
        clock=clock,
        callbacks=JobCallbacks(on_progress=progress.append, stop_requested=after(2, system)),
        keep_most=None,
    ).run()
    assert evaluation.status is Status.INTERRUPTED
    assert evaluation.measurement.times.sizes.tolist() == [4, 4]
    assert evaluation.measurement.elapsed_ns == 2 * BATCH_NS
    assert evaluation.measurement.accuracy is not None
    assert evaluation.measurement.accuracy.evaluated == len(evaluation.measurement.predictions) == 8
    assert progress[-1] == Progress(8, 20)
    assert len(system.answered) == 2
    assert system.runs == ["begun", "ended"]


def test_a_stop_after_the_last_batch_is_none() -> None:
    system = FakeSystem()
    evaluation = DatasetRun(
        system, Numbered(8), options(4), callbacks=JobCallbacks(stop_requested=after(2, system))
    ).run()
    assert evaluation.status is Status.COMPLETE


@pytest.mark.parametrize("batches", [0, 1, 2, 3])
def test_a_stop_in_the_warm_up_is_an_interrupted_evaluation_without_a_result(batches: int) -> None:
    system = FakeSystem()
    run = DatasetRun(
        system,
        Numbered(12),
        options(4, 12, warmup_num_file_parts=1),
        callbacks=JobCallbacks(stop_requested=after(batches, system)),
    )
    with pytest.raises(EvaluationInterrupted, match="before a batch was measured"):
        run.run()
    assert len(system.answered) == batches
    assert system.runs == (["begun", "ended"] if batches else [])


def test_fail_on_error_stops_at_the_first_input_that_fails() -> None:
    system = FakeSystem(bad={"s5", "s6", "s9"})
    run = DatasetRun(system, Numbered(20), options(4, fail_on_error=True))
    with pytest.raises(EvaluationFailed) as caught:
        run.run()
    assert not isinstance(caught.value, EvaluationInterrupted)
    message = str(caught.value)
    assert "input s5 failed in read: is broken" in message
    assert "after 4 of 20 inputs" in message
    assert len(message.splitlines()) == 1
    assert len(system.answered) == 2
    assert system.runs == ["begun", "ended"]


def test_fail_on_error_counts_in_the_warm_up_too() -> None:
    system = FakeSystem(bad={"s9"})
    run = DatasetRun(
        system, Numbered(20), options(4, 10, num_file_parts=1, warmup_num_file_parts=2, fail_on_error=True)
    )
    with pytest.raises(EvaluationFailed, match=r"input s9 .* after 8 of 30 inputs"):
        run.run()


# what is refused before the model runs


def test_an_empty_dataset_is_refused() -> None:
    with pytest.raises(DatasetError, match="dataset numbered holds no samples"):
        DatasetRun(FakeSystem(), Numbered(0), options())


def test_a_label_that_the_model_does_not_know_is_refused_before_the_first_prediction() -> None:
    system, dataset = FakeSystem(), Numbered(9, [*CLASSES, "dog"])
    with pytest.raises(DatasetError, match='class "dog" is none of the 3 classes'):
        DatasetRun(system, dataset, options())
    assert (system.answered, dataset.read) == ([], [])


def test_a_label_beyond_what_is_evaluated_does_not_matter() -> None:
    dataset = Numbered(9, [*CLASSES, "dog"])
    assert (
        DatasetRun(FakeSystem(), dataset, options(4, 3, num_file_parts=1)).run().measurement.times.sizes.sum()
        == 3
    )


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("batch_size", 0),
        ("batch_size", -1),
        ("partition_list_size", 0),
        ("num_file_parts", 0),
        ("num_file_parts", -2),
        ("warmup_num_file_parts", -1),
        ("feature_limit", -1),
    ],
)
def test_options_that_make_no_sense_are_refused_by_name(field: str, value: int) -> None:
    with pytest.raises(ConfigurationError, match=f"{field} is {value}; it must be at least") as caught:
        options(**{field: value})
    assert len(str(caught.value).splitlines()) == 1


@pytest.mark.parametrize(
    "field", ["batch_size", "partition_list_size", "num_file_parts", "warmup_num_file_parts", "feature_limit"]
)
def test_a_number_that_no_database_holds_is_refused_before_the_run(field: str) -> None:
    assert getattr(options(**{field: 2**31 - 1}), field) == 2**31 - 1
    with pytest.raises(ConfigurationError, match=f"{field} is {2**31}; it must be at most {2**31 - 1}"):
        options(**{field: 2**31})


@pytest.mark.parametrize(
    ("field", "value"),
    [("batch_size", 1), ("num_file_parts", -1), ("num_file_parts", 1), ("feature_limit", 0)],
)
def test_the_least_options_are_allowed(field: str, value: int) -> None:
    assert getattr(options(**{field: value}), field) == value


def repeated(
    size: int = 10, bad: tuple[str, ...] = (), **given: Any
) -> tuple[FakeSystem, Evaluation[BatchMeasurement]]:
    """A run over ``size`` samples in batches of 4, each of which takes 1 µs."""
    system = FakeSystem(bad=bad)
    run = DatasetRun(system, Numbered(size), options(**given), keep_most=None, clock=system.clock)
    return system, run.run()


def test_repetitions_are_of_full_batches_and_count_for_the_times_alone() -> None:
    system, evaluation = repeated(10, min_batches=7)

    measured = evaluation.measurement
    assert measured.times.sizes.tolist() == [4, 4, 2, 4, 4, 4, 4, 4]
    assert system.answered[3:] == [("s0", "s1", "s2", "s3"), ("s4", "s5", "s6", "s7")] * 2 + [
        ("s0", "s1", "s2", "s3")
    ]
    assert measured.accuracy is not None
    assert measured.accuracy.evaluated == 10
    assert [each.input_id for each in measured.predictions] == [f"s{n}" for n in range(10)]
    assert evaluation.status is Status.COMPLETE
    assert measured.elapsed_ns == 8 * BATCH_NS


def test_an_input_that_fails_each_time_is_one_failure() -> None:
    _, evaluation = repeated(12, bad=("s5",), min_batches=6)

    measured = evaluation.measurement
    assert [failure.input_id for failure in measured.failures] == ["s5"]
    assert len(measured.full_ns) >= 6
    assert measured.accuracy is not None
    assert measured.accuracy.evaluated == 11


def test_a_failure_in_a_repetition_is_recorded() -> None:
    system = FakeSystem()

    def spoil(progress: Progress) -> None:
        if progress.done >= 8:
            system.bad = {"s1"}

    run = DatasetRun(
        system,
        Numbered(8),
        options(min_batches=4),
        callbacks=JobCallbacks(on_progress=spoil),
        clock=system.clock,
    )
    measured = run.run().measurement

    assert [failure.input_id for failure in measured.failures] == ["s1"]


def test_what_can_never_be_full_is_gone_through_once() -> None:
    every = tuple(f"s{n}" for n in range(8))
    for size, bad, status in ((3, (), Status.COMPLETE), (8, every, Status.FAILED)):
        system, evaluation = repeated(size, bad=bad, min_batches=100, min_duration_s=1.0)
        assert len(system.answered) == -(-size // 4)
        assert evaluation.status is status


def test_a_time_budget_ends_repeating_and_not_the_first_pass() -> None:
    _, short = repeated(40, min_batches=1000, time_budget_s=5e-6)
    assert len(short.measurement.times.sizes) == 10

    _, longer = repeated(40, min_batches=1000, time_budget_s=25e-6)
    assert len(longer.measurement.times.sizes) == 25
    assert longer.status is Status.COMPLETE


def test_a_duration_is_measured_at_the_least() -> None:
    _, evaluation = repeated(8, min_duration_s=33.5e-6)

    assert evaluation.measurement.elapsed_ns == 34 * BATCH_NS


def test_a_stop_in_a_repetition_interrupts() -> None:
    system = FakeSystem()
    run = DatasetRun(
        system,
        Numbered(8),
        options(min_batches=100),
        callbacks=JobCallbacks(stop_requested=after(5, system)),
        clock=system.clock,
    )
    evaluation = run.run()

    assert evaluation.status is Status.INTERRUPTED
    assert len(evaluation.measurement.full_ns) == 5


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"min_batches": -1}, "min_batches is -1; it must be at least 0"),
        ({"min_duration_s": -1.0}, "min_duration is -1.0; it must be a finite number of seconds"),
        ({"min_duration_s": math.nan}, "min_duration is nan; it must be a finite number of seconds"),
        ({"min_duration_s": math.inf}, "min_duration is inf; it must be a finite number of seconds"),
        ({"target_ci_percent": 0.0}, "target_ci is 0.0; it must be above 0 and at most 100 percent"),
        ({"target_ci_percent": math.nan}, "target_ci is nan; it must be above 0 and at most 100 percent"),
        ({"time_budget_s": 0.0}, "time_budget is 0.0; it must be above 0 s and finite"),
        ({"time_budget_s": math.inf}, "time_budget is inf; it must be above 0 s and finite"),
        (
            {"min_duration_s": 5.0, "time_budget_s": 2.0},
            "min_duration 5 s is longer than time_budget 2 s; give a longer time_budget, or leave it out",
        ),
    ],
)
def test_lengths_that_make_no_sense_are_one_line(given: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        options(**given)
    assert str(caught.value) == message
