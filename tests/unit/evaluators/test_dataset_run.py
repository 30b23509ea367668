"""The evaluation over a dataset: which samples run, in which batches, and what is kept of them."""

from __future__ import annotations

from datetime import datetime, timezone
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

from evaluators.dataset_run import DatasetRun, Progress
from evaluators.evaluation import Accuracy, Status
from manifests.errors import ConfigurationError, DatasetError, EvaluationFailed, EvaluationInterrupted

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
    assert evaluation.batches.sizes.tolist() == sizes
    assert [len(batch) for batch in system.answered] == sizes
    assert [id_ for batch in system.answered for id_ in batch] == [f"s{n}" for n in range(sum(sizes))]
    assert dataset.read == list(range(sum(sizes)))
    assert evaluation.status is Status.COMPLETE
    assert evaluation.accuracy is not None
    assert evaluation.accuracy.evaluated == sum(sizes)
    full = [taken for taken in sizes if taken == batch_size]
    assert evaluation.batches.full(batch_size).tolist() == [BATCH_NS] * len(full)


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
    evaluation = DatasetRun(system, Numbered(size), chosen, on_progress=progress.append).run()
    measured = size if parts == -1 else min(size, part * parts)
    warm = min(size, max(warmup * part, batch_size)) if warmup else 0
    assert evaluation.batches.sizes.sum() == measured
    assert (evaluation.batches.sizes[:-1] == batch_size).all()
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
    assert warmed.batches.sizes.tolist() == [3, 1]
    assert warmed.elapsed_ns == 2 * BATCH_NS
    assert [failure.input_id for failure in warmed.failures] == ["s1"]
    assert warmed.accuracy is not None
    assert warmed.accuracy.evaluated == 4
    assert warmed.options.warmup_num_file_parts == 2


def test_without_a_warm_up_the_system_is_asked_for_one_run() -> None:
    system = FakeSystem()
    DatasetRun(system, Numbered(4), options()).run()
    assert system.runs == ["begun", "ended"]


# what is kept


def test_the_raw_times_of_every_batch_are_kept() -> None:
    clock = Clock()
    clock.now_ns = 77
    evaluation = DatasetRun(FakeSystem(clock), Numbered(10), options(4), clock=clock).run()
    batches = evaluation.batches
    assert batches.sizes.tolist() == [4, 4, 2]
    assert batches.read_ns.tolist() == [READ_NS] * 3
    assert batches.preprocess_ns.tolist() == [PREPROCESS_NS] * 3
    assert batches.predict_ns.tolist() == [BATCH_NS] * 3
    assert batches.postprocess_ns.tolist() == [POSTPROCESS_NS] * 3
    assert {times.dtype for times in (batches.sizes, batches.predict_ns)} == {np.dtype(np.int64)}
    assert evaluation.elapsed_ns == 3 * BATCH_NS


def test_the_time_after_the_last_batch_does_not_count() -> None:
    clock = Clock()

    def report(progress: Progress) -> None:
        clock.now_ns += 5

    evaluation = DatasetRun(FakeSystem(clock), Numbered(8), options(4), clock=clock, on_progress=report).run()
    assert evaluation.elapsed_ns == 2 * BATCH_NS + 5


def test_accuracy_is_counted_over_what_ran() -> None:
    evaluation = DatasetRun(FakeSystem(), Numbered(30), options(4, 10, num_file_parts=1)).run()
    assert evaluation.accuracy == Accuracy(top1=4, top5=10, evaluated=10)


def test_failed_inputs_are_kept_counted_and_left_out_of_the_accuracy() -> None:
    system = FakeSystem(bad={"s0", "s5", "s8", "s9"})
    evaluation = DatasetRun(system, Numbered(10), options(4)).run()
    assert [failure.input_id for failure in evaluation.failures] == ["s0", "s5", "s8", "s9"]
    assert evaluation.batches.sizes.tolist() == [3, 3, 0]
    assert evaluation.batches.predict_ns.tolist() == [BATCH_NS, BATCH_NS, 0]
    assert evaluation.batches.full(4).size == 0
    assert evaluation.accuracy == Accuracy(top1=2, top5=6, evaluated=6)
    assert evaluation.status is Status.COMPLETE


def test_without_labels_there_is_no_accuracy() -> None:
    assert DatasetRun(FakeSystem(), Numbered(5, [None]), options()).run().accuracy is None


def test_a_model_that_does_not_classify_has_times_and_no_accuracy() -> None:
    evaluation = DatasetRun(FakeSystem(kind="raw"), Numbered(5), options(), keep_predictions=True).run()
    assert evaluation.accuracy is None
    assert evaluation.predictions == ()
    assert evaluation.batches.sizes.tolist() == [4, 1]


def test_predictions_are_kept_when_they_are_asked_for_with_their_labels() -> None:
    system = FakeSystem(bad={"s1"})
    evaluation = DatasetRun(system, Numbered(6, [*CLASSES, None]), options(4), keep_predictions=True).run()
    assert [(p.input_id, p.expected_label) for p in evaluation.predictions] == [
        ("s0", "ant"),
        ("s2", "cat"),
        ("s3", None),
        ("s4", "ant"),
        ("s5", "bee"),
    ]
    assert [p.indices.tolist() for p in evaluation.predictions] == [[0, 1, 2]] * 5
    assert [p.probabilities.tolist() for p in evaluation.predictions] == [[0.5] * 3] * 5


def test_predictions_are_not_kept_unless_they_are_asked_for() -> None:
    assert DatasetRun(FakeSystem(), Numbered(6), options()).run().predictions == ()


def test_an_evaluation_says_what_ran_when_and_with_what() -> None:
    before = datetime.now(timezone.utc)
    system, dataset, chosen = FakeSystem(), Numbered(3), options()
    first, second = (DatasetRun(system, dataset, chosen).run() for _ in range(2))
    assert before.timestamp() - 0.001 <= first.created_at.timestamp() <= second.created_at.timestamp()
    assert first.created_at.tzinfo is timezone.utc
    assert first.created_at.microsecond % 1000 == 0
    assert first.dataset == dataset.identity
    assert first.options is chosen
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
        stop_requested=after(2, system),
        on_progress=progress.append,
        keep_predictions=True,
    ).run()
    assert evaluation.status is Status.INTERRUPTED
    assert evaluation.batches.sizes.tolist() == [4, 4]
    assert evaluation.elapsed_ns == 2 * BATCH_NS
    assert evaluation.accuracy is not None
    assert evaluation.accuracy.evaluated == len(evaluation.predictions) == 8
    assert progress[-1] == Progress(8, 20)
    assert len(system.answered) == 2
    assert system.runs == ["begun", "ended"]


def test_a_stop_after_the_last_batch_is_none() -> None:
    system = FakeSystem()
    evaluation = DatasetRun(system, Numbered(8), options(4), stop_requested=after(2, system)).run()
    assert evaluation.status is Status.COMPLETE


@pytest.mark.parametrize("batches", [0, 1, 2, 3])
def test_a_stop_in_the_warm_up_is_an_interrupted_evaluation_without_a_result(batches: int) -> None:
    system = FakeSystem()
    run = DatasetRun(
        system, Numbered(12), options(4, 12, warmup_num_file_parts=1), stop_requested=after(batches, system)
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
    assert DatasetRun(FakeSystem(), dataset, options(4, 3, num_file_parts=1)).run().batches.sizes.sum() == 3


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
