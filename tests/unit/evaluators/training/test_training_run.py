"""The training loop: which steps are measured, what a step's time holds, and what ends a run."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from training_fakes import (
    COPY_NS,
    IDENTITY,
    OVERHEAD_NS,
    PARTS,
    STEP_NS,
    WAIT_NS,
    Clock,
    FakeLoader,
    FakeTrainer,
    description,
)

from inferometer.agent.tracing.recorder import SpanRecorder, TraceContext, TraceLevel, TraceScope
from inferometer.agent.training.trainer import Rank
from inferometer.evaluators.evaluation import Evaluation, Status
from inferometer.evaluators.jobs.job import JobCallbacks, Progress
from inferometer.evaluators.kinds.training.measurement import Bound, TrainingMeasurement, TrainingSummary
from inferometer.evaluators.kinds.training.request import TrainingOptions
from inferometer.evaluators.kinds.training.training_run import TrainingRun
from inferometer.evaluators.loading.options import DataOptions
from inferometer.manifests.errors import ConfigurationError, EvaluationFailed, EvaluationInterrupted


class Made:
    """A run over a loader of some batches; each step has a little time of nobody's."""

    def __init__(
        self,
        options: TrainingOptions,
        sizes: tuple[int, ...] = (4, 4, 2),
        *,
        data: DataOptions = DataOptions(),  # noqa: B008 - frozen
        rank: Rank = Rank(),  # noqa: B008 - frozen
        loss: str = "cross_entropy",
        bad: tuple[str, ...] = (),
        stop_after: int | None = None,
        **given: Any,
    ) -> None:
        self.clock = Clock()
        self.trainer = FakeTrainer(self.clock, rank, loss)
        self.loader = FakeLoader(self.clock, sizes, bad)
        self.progress: list[Progress] = []
        self.measured_from: list[int] = []

        def progress(found: Progress) -> None:
            self.clock.now_ns += OVERHEAD_NS
            self.progress.append(found)

        self.run = TrainingRun(
            self.trainer,
            description(),
            self.loader,
            IDENTITY,
            options,
            data,
            callbacks=JobCallbacks(
                on_progress=progress,
                stop_requested=lambda: stop_after is not None and len(self.trainer.sizes) >= stop_after,
            ),
            on_measure=lambda: self.measured_from.append(len(self.trainer.sizes)),
            clock=self.clock,
            **given,
        )

    def evaluation(self) -> Evaluation[TrainingMeasurement]:
        found = self.run.run()
        assert found is not None
        return found


def options(num_batches: int | None = 5, **given: Any) -> TrainingOptions:
    return TrainingOptions(**{"batch_size": 4, "num_batches": num_batches, "num_warmup_batches": 1, **given})


def test_steps_go_on_over_epochs_until_num_batches_are_measured() -> None:
    made = Made(options(5))
    measurement = made.evaluation().measurement
    assert made.trainer.sizes == [4, 4, 2, 4, 4, 2]
    assert measurement.times.samples.tolist() == [[4, 2, 4, 4, 2]]
    assert measurement.epochs == 2
    assert made.measured_from == [1]
    assert made.progress[-1] == Progress(6, 6)


def test_num_epochs_ends_a_run_and_includes_the_warm_up() -> None:
    made = Made(options(None, num_epochs=2))
    assert made.evaluation().measurement.times.samples.tolist() == [[4, 2, 4, 4, 2]]
    assert made.loader.closed_epochs == [0, 1]


def test_a_step_lasts_from_the_end_of_the_one_before_so_that_the_steps_are_the_elapsed_time() -> None:
    made = Made(options(5))
    measurement = made.evaluation().measurement
    times = measurement.times
    assert times.wait_ns.tolist() == [[WAIT_NS] * 5]
    assert times.copy_ns.tolist() == [[COPY_NS] * 5]
    assert times.compute_ns.tolist() == [[STEP_NS] * 5]
    # what a caller does with the progress is in the step after, but none of the warm-up in the first one
    step_ns = WAIT_NS + COPY_NS + STEP_NS
    assert times.whole_ns.tolist() == [[step_ns, *[step_ns + OVERHEAD_NS] * 4]]
    assert int(times.whole_ns.sum()) == measurement.elapsed_ns
    summary = TrainingSummary.of(measurement)
    assert summary.throughput_samples_per_s is not None
    assert summary.throughput_samples_per_s * measurement.elapsed_ns / 1e9 == pytest.approx(16, rel=1e-9)


def test_spans_of_the_warm_up_and_of_the_measured_steps_lie_below_a_span_each() -> None:
    made = Made(options(2, num_warmup_batches=1))
    recorder = SpanRecorder(TraceContext.new(), TraceLevel.FRAMEWORK_TRACE, clock=made.clock)
    made = Made(
        options(2, num_warmup_batches=1),
        trace=TraceScope.top(recorder),
        trace_level=TraceLevel.FRAMEWORK_TRACE,
    )
    evaluation = made.evaluation()

    assert evaluation.trace_level is TraceLevel.FRAMEWORK_TRACE
    assert made.trainer.timed == [0, 1, 2]
    assert evaluation.measurement.times.parts_at.tolist() == [0, 1]
    found = [
        (chunk.kinds[kind].name, id_, parent)
        for chunk in recorder.chunks()
        for kind, id_, parent in chunk.values("kind", "span_id", "parent_id")
    ]
    names = {id_: name for name, id_, _ in found}
    steps = [names[parent] for name, _, parent in found if name == "train_step"]
    assert steps == ["warm_up", "measure", "measure"]
    assert recorder.notes == ("no layers: Fake has no profiler for training",)


def test_all_ranks_time_the_parts_that_the_level_needs_without_a_scope() -> None:
    made = Made(options(2), rank=Rank(1, 2), trace_level=TraceLevel.MODEL_TRACE)
    made.run.run()
    assert made.trainer.timed == [0, 1, 2]


def test_a_run_without_a_warm_up_measures_its_first_step() -> None:
    made = Made(options(3, num_warmup_batches=0))
    measurement = made.evaluation().measurement
    assert made.measured_from == [0]
    assert len(measurement.times.wait_ns[0]) == 3
    assert measurement.losses.tolist() == [[1, 1 / 2, 1 / 3]]


def test_every_loss_is_kept_with_those_of_the_warm_up() -> None:
    measurement = Made(options(2, num_warmup_batches=2)).evaluation().measurement
    assert measurement.losses.tolist() == [[1, 1 / 2, 1 / 3, 1 / 4]]


@pytest.mark.parametrize(("every", "timed"), [(2, [1, 3, 5]), (10, [1]), (1, [1, 2, 3, 4, 5]), (0, [])])
def test_the_parts_of_some_measured_steps_are_timed(every: int, timed: list[int]) -> None:
    made = Made(options(5, parts_every=every))
    times = made.evaluation().measurement.times
    assert made.trainer.timed == timed
    assert times.parts_at.tolist() == [step - 1 for step in timed]
    assert times.forward_ns.tolist() == [[PARTS.forward_ns] * len(timed)]
    assert times.communicate_ns.tolist() == [[PARTS.communicate_ns] * len(timed)]


def test_data_on_the_device_is_placed_once_and_copied_in_no_step() -> None:
    made = Made(options(5), (4,), data=DataOptions(place="device"))
    measurement = made.evaluation().measurement
    assert len(made.trainer.placed) == 1
    assert measurement.times.copy_ns.tolist() == [[0] * 5]
    assert measurement.times.wait_ns[0, 1:].tolist() == [0] * 4
    assert made.trainer.sizes == [4] * 6


def test_a_stopped_run_keeps_what_was_measured() -> None:
    evaluation = Made(options(5), stop_after=3).evaluation()
    assert evaluation.status is Status.INTERRUPTED
    assert len(evaluation.measurement.times.wait_ns[0]) == 2
    assert int(evaluation.measurement.times.whole_ns.sum()) == evaluation.measurement.elapsed_ns


def test_a_run_that_is_stopped_in_the_warm_up_measures_nothing() -> None:
    with pytest.raises(EvaluationInterrupted, match="before a step was measured"):
        Made(options(5), stop_after=1).evaluation()


def test_a_sample_that_fails_is_recorded_once_and_trains_nothing() -> None:
    made = Made(options(5), (3, 4), bad=("broken.jpg",))
    failures = made.evaluation().measurement.failures
    assert [failure.input_id for failure in failures] == ["broken.jpg"]
    assert made.trainer.sizes == [3, 4, 3, 4, 3, 4]


def test_fail_on_error_ends_the_run_at_the_first_sample_that_fails() -> None:
    with pytest.raises(EvaluationFailed, match=r"input broken\.jpg failed in read: is broken"):
        Made(options(5), bad=("broken.jpg",), fail_on_error=True).evaluation()


def test_a_batch_without_usable_samples_is_no_step() -> None:
    made = Made(options(5), (0, 4), bad=("broken.jpg",))
    assert made.evaluation().measurement.times.samples.tolist() == [[4] * 5]
    assert made.trainer.sizes == [4] * 6


def test_an_epoch_without_usable_samples_ends_the_run() -> None:
    with pytest.raises(EvaluationFailed, match=r"no sample of epoch 1 could be used; the first: broken\.jpg"):
        Made(options(5), (0, 0), bad=("broken.jpg",)).evaluation()


def test_rank_0_has_the_times_of_all_ranks_and_the_slowest_counts() -> None:
    made = Made(options(5, ranks=2), (4, 4), rank=Rank(0, 2))
    measurement = made.evaluation().measurement
    assert measurement.times.wait_ns.tolist() == [[WAIT_NS] * 5, [2 * WAIT_NS] * 5]
    assert measurement.elapsed_ns == int(measurement.times.whole_ns[1].sum())
    summary = TrainingSummary.of(measurement)
    assert summary.wait_ns == 2 * WAIT_NS
    assert measurement.times.slowest_ns.tolist() == measurement.times.whole_ns[1].tolist()


def test_another_rank_makes_no_evaluation() -> None:
    assert Made(options(5, ranks=2), (4, 4), rank=Rank(1, 2)).run.run() is None


def test_a_label_is_a_sequence_of_one_for_ctc() -> None:
    made = Made(options(1, num_warmup_batches=0), loss="ctc")
    made.evaluation()
    assert made.trainer.placed[0].targets.tolist() == [[1], [2], [3], [1]]


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"num_batches": None}, "neither num_batches nor num_epochs"),
        ({"num_batches": None, "num_epochs": 1, "num_warmup_batches": 3}, "all within num_warmup_batches 3"),
    ],
)
def test_a_run_has_an_end_and_something_to_measure(given: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        Made(options(**given))


def test_the_iterator_of_an_interrupted_epoch_is_closed() -> None:
    made = Made(options(1))
    made.evaluation()
    assert made.loader.closed_epochs == [0]


def test_the_longest_part_bounds_a_step_without_prefetch() -> None:
    summary = TrainingSummary.of(Made(options(5)).evaluation().measurement)
    assert summary.bound is Bound.COMPUTE
    assert np.isclose(summary.compute_ns or 0, STEP_NS)
