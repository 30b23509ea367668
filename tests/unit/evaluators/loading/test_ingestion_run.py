"""The run of a loader alone: every nanosecond belongs to a batch, and every failure is named once."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from inferometer.agent.inference.stages import InputFailure, Stage
from inferometer.evaluators.datasets.base import DatasetIdentity
from inferometer.evaluators.evaluation import Evaluation, Status
from inferometer.evaluators.jobs.job import JobCallbacks, Progress
from inferometer.evaluators.kinds.ingestion.job import IngestionRun
from inferometer.evaluators.kinds.ingestion.kind import IngestionSummary
from inferometer.evaluators.kinds.ingestion.request import IngestionLength
from inferometer.evaluators.loading.loader import LoadedBatch, Loader
from inferometer.evaluators.loading.options import DataOptions
from inferometer.manifests.errors import ConfigurationError, EvaluationFailed, EvaluationInterrupted
from tests.unit.evaluators.dataset_run_fakes import description

DEPTHS = (0, 1, 7, 1000)
IDENTITY = DatasetIdentity("tensors", "numbered", None, None, 8)
FAILURE = InputFailure("n3", Stage.READ, "n3 is damaged")
MS = 1_000_000


class Clock:
    """A clock that stands still until it is told to go on."""

    def __init__(self) -> None:
        self.now_ns = 1_000

    def __call__(self) -> int:
        return self.now_ns


class Timed(Loader):
    """Batches of known sizes, of which number n of the run takes n + 1 ms; some samples fail."""

    def __init__(self, clock: Clock, sizes: Sequence[int], failures: tuple[InputFailure, ...] = ()) -> None:
        self.clock = clock
        self.sizes = sizes
        self.failures = failures
        self.loaded = 0
        self.epochs: list[int] = []

    @property
    def batches(self) -> int:
        return len(self.sizes)

    def epoch(self, number: int) -> Iterator[LoadedBatch]:
        self.epochs.append(number)
        for size in self.sizes:
            self.loaded += 1
            self.clock.now_ns += self.loaded * MS
            inputs = np.zeros((size, 2), np.float32)
            yield LoadedBatch(inputs, np.zeros(size, np.int64), self.failures, 2 * size, 3 * size, 10 * size)

    def close(self) -> None:
        pass


def run(loader: Timed, length: IngestionLength, **given: Any) -> Evaluation[Any]:
    running = IngestionRun(loader, 4, length, DataOptions("npz"), clock=loader.clock, **given)
    return running.run(description("raw"), IDENTITY)


def test_batches_are_timed_over_as_many_epochs_as_they_need() -> None:
    loader = Timed(Clock(), [4, 4, 1])

    evaluation = run(loader, IngestionLength(num_batches=5, num_warmup_batches=2))

    measured = evaluation.measurement
    assert evaluation.status is Status.COMPLETE
    assert evaluation.dataset is IDENTITY
    assert measured.times.samples.tolist() == [1, 4, 4, 1, 4]
    assert measured.times.whole_ns.tolist() == [each * MS for each in (3, 4, 5, 6, 7)]
    assert measured.times.read_ns.tolist() == [2, 8, 8, 2, 8]
    assert measured.times.preprocess_ns.tolist() == [3, 12, 12, 3, 12]
    assert measured.times.read_bytes.tolist() == [10, 40, 40, 10, 40]
    assert measured.elapsed_ns == 25 * MS
    assert (measured.batch_size, measured.num_warmup_batches, measured.epochs) == (4, 2, 3)
    assert loader.epochs == [0, 1, 2]
    assert measured.full_ns.tolist() == [4 * MS, 5 * MS, 7 * MS]


class Ahead(Loader):
    """A worker takes 10 ms for a batch of 4, and loads ahead; as a framework's does, if it cannot be held."""

    def __init__(self, clock: Clock, prefetch: int, can_be_held: bool) -> None:
        self.clock = clock
        self.prefetch = prefetch
        self.can_be_held = can_be_held
        self.begun = self.taken = 0
        self.most: float = math.inf
        self.free_at_ns = clock.now_ns
        self.ends_ns: deque[int] = deque()

    @property
    def batches(self) -> int:
        return 16

    def hold(self, batches: int) -> bool:
        self.most = batches if self.can_be_held else self.most
        return self.can_be_held

    def begin(self) -> None:
        """Begins what may be begun by now: a batch takes the place of one that was taken."""
        while not self.ends_ns or (len(self.ends_ns) <= self.prefetch and self.begun < self.most):
            self.begun += 1
            self.free_at_ns = max(self.free_at_ns, self.clock.now_ns) + 10 * MS
            self.ends_ns.append(self.free_at_ns)

    def epoch(self, number: int) -> Iterator[LoadedBatch]:
        if not self.can_be_held:
            self.ends_ns.clear()
            self.free_at_ns = self.clock.now_ns
        for _ in range(self.batches):
            self.begin()
            self.clock.now_ns = max(self.clock.now_ns, self.ends_ns.popleft())
            self.taken += 1
            yield LoadedBatch(np.zeros((4, 2), np.float32), np.zeros(4, np.int64), (), 4 * MS, 6 * MS, 40)

    def close(self) -> None:
        pass


@pytest.mark.parametrize("can_be_held", [True, False], ids=["own", "framework"])
@pytest.mark.parametrize("prefetch", DEPTHS)
@pytest.mark.parametrize("warm_up", [0, 1, 3])
@pytest.mark.parametrize("batches", [1, 5, 400])
def test_what_was_loaded_before_the_clock_started_does_not_count(
    batches: int, warm_up: int, prefetch: int, can_be_held: bool
) -> None:
    loader = Ahead(Clock(), prefetch, can_be_held)
    if not can_be_held:
        loader.begin()  # a framework's iterator reads as soon as it is opened

    def begin() -> None:
        loader.clock.now_ns += 20_000 * MS  # long enough for all that is loaded ahead

    length = IngestionLength(batches, warm_up)
    running = IngestionRun(
        loader, 4, length, DataOptions("npz", workers=1), on_measure=begin, clock=loader.clock
    )
    summary = IngestionSummary.of(running.run(description("raw"), IDENTITY).measurement)

    assert summary.batches == batches
    assert summary.samples_per_s == 400
    assert (summary.busy, summary.contradiction) == (1.0, "")
    if can_be_held:
        assert loader.begun == loader.taken == warm_up + batches


def test_a_rate_that_its_parts_cannot_give_is_said() -> None:
    loader = Timed(Clock(), [4] * 3)
    times = run(loader, IngestionLength(3, 0)).measurement
    parts = times.times.read_ns + times.times.preprocess_ns
    faster = replace(times, times=replace(times.times, whole_ns=parts // 2))

    assert IngestionSummary.of(times).contradiction == ""
    assert IngestionSummary.of(faster).contradiction == (
        "samples took 2.00 times the workers' time: some were loaded before the clock started"
    )
    by_two = replace(faster, data=DataOptions("npz", workers=2))
    assert (IngestionSummary.of(by_two).busy, IngestionSummary.of(by_two).contradiction) == (1.0, "")


@pytest.mark.parametrize(
    ("length", "batches", "epochs"),
    [
        (IngestionLength(num_batches=None, num_epochs=2), 5, 2),
        (IngestionLength(num_batches=2, num_epochs=5), 2, 1),
        (IngestionLength(num_batches=100, num_epochs=1, num_warmup_batches=0), 3, 1),
    ],
)
def test_the_limit_that_is_reached_first_ends_the_run(
    length: IngestionLength, batches: int, epochs: int
) -> None:
    measured = run(Timed(Clock(), [4, 4, 4]), length).measurement

    assert (len(measured.times.whole_ns), measured.epochs) == (batches, epochs)


def test_what_the_caller_does_between_batches_is_part_of_them() -> None:
    loader = Timed(Clock(), [4] * 3)

    def work(_: Progress) -> None:
        loader.clock.now_ns += 100 * MS

    measured = run(loader, IngestionLength(3, 0), callbacks=JobCallbacks(on_progress=work)).measurement

    assert measured.times.whole_ns.tolist() == [1 * MS, 102 * MS, 103 * MS]


def test_the_warm_up_and_its_end_are_not_measured() -> None:
    loader = Timed(Clock(), [4] * 9)
    seen: list[Progress] = []

    def begin() -> None:
        assert [each.done for each in seen] == [1, 2]
        loader.clock.now_ns += 1_000 * MS

    measured = run(
        loader, IngestionLength(2, 2), on_measure=begin, callbacks=JobCallbacks(on_progress=seen.append)
    ).measurement

    assert measured.times.whole_ns.tolist() == [3 * MS, 4 * MS]
    assert seen == [Progress(done, 4) for done in (1, 2, 3, 4)]


def test_a_sample_that_fails_again_counts_once() -> None:
    other = InputFailure("n5", Stage.PREPROCESS, "another")
    measured = run(Timed(Clock(), [3, 3], (FAILURE, other)), IngestionLength(5, 0)).measurement

    assert measured.failures == (FAILURE, other)
    assert measured.full_ns.tolist() == []


def test_the_first_failure_can_end_the_run() -> None:
    with pytest.raises(EvaluationFailed, match="input n3 failed in read: n3 is damaged; stopped because of"):
        run(Timed(Clock(), [3], (FAILURE,)), IngestionLength(5, 0), fail_on_error=True)


def test_an_epoch_without_a_usable_sample_ends_the_run() -> None:
    with pytest.raises(EvaluationFailed, match="no sample of epoch 1 could be used; the first: n3: n3 is"):
        run(Timed(Clock(), [0, 0], (FAILURE,)), IngestionLength(5, 0))


@pytest.mark.parametrize("after", [1, 2, 5])
def test_a_stopped_run_keeps_what_it_measured(after: int) -> None:
    loader = Timed(Clock(), [4, 4])
    length = IngestionLength(num_batches=4, num_warmup_batches=1)

    stopping = JobCallbacks(stop_requested=lambda: loader.loaded >= after)
    if after == 1:
        with pytest.raises(EvaluationInterrupted, match="stopped before a batch was measured"):
            run(loader, length, callbacks=stopping)
        return
    evaluation = run(loader, length, callbacks=stopping)

    assert len(evaluation.measurement.times.whole_ns) == after - 1
    assert evaluation.status is (Status.COMPLETE if after == 5 else Status.INTERRUPTED)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"num_batches": 0}, "num_batches is 0; it must be at least 1"),
        ({"num_warmup_batches": -1}, "num_warmup_batches is -1; it must be at least 0"),
        ({"num_epochs": 0}, "num_epochs is 0; it must be at least 1"),
        ({"num_batches": None}, "neither num_batches nor num_epochs ends the run"),
    ],
)
def test_lengths_that_cannot_be_are_refused(given: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        IngestionLength(**given)


def test_epochs_that_are_all_warm_up_are_refused() -> None:
    length = IngestionLength(num_batches=None, num_epochs=1, num_warmup_batches=2)

    with pytest.raises(
        ConfigurationError, match="num_epochs 1 of 2 batches are all within num_warmup_batches"
    ):
        run(Timed(Clock(), [4, 4]), length)


def test_a_run_in_which_every_sample_failed_is_failed() -> None:
    evaluation = run(Timed(Clock(), [0, 0, 0], (FAILURE,)), IngestionLength(2, 0))

    assert evaluation.status is Status.FAILED
