"""The time that a loader takes appears in the wait of real training steps, and nowhere else."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import closing
from functools import partial

import numpy as np
import pytest

from inferometer.agent.hardware.environment import PredictorOptions, Weights
from inferometer.agent.inference.registry import Registry
from inferometer.agent.inference.session import select_model
from inferometer.agent.inference.stages import SystemDescription
from inferometer.agent.preprocessing.inputs import Payload, Tensor
from inferometer.agent.training.trainer import Trainer, TrainerOptions, open_trainer
from inferometer.evaluators.datasets.base import Dataset, DatasetIdentity, Sample
from inferometer.evaluators.jobs.job import JobCallbacks
from inferometer.evaluators.kinds.training.measurement import Bound, TrainingMeasurement, TrainingSummary
from inferometer.evaluators.kinds.training.request import TrainingOptions
from inferometer.evaluators.kinds.training.training_run import TrainingRun
from inferometer.evaluators.loading.loader import DatasetLoader
from inferometer.evaluators.loading.options import DataOptions, LoaderOptions
from inferometer.manifests.catalog import Catalog

pytestmark = pytest.mark.real_time
BATCH_SIZE, WARM_UP, FEW, MANY = 8, 4, 10, 40
ADDED_NS = 20_000_000
DEADLINE_S = 20.0


class SlowInputs(Dataset):
    """Random inputs of DeepMNIST, which take ``delay_ns`` a batch to read, or else none in every other batch.

    Attributes:
        took_ns: How long the reading of each batch took, which is longer if the machine has other work.
        begun: The number of inputs whose reading has begun.
    """

    def __init__(self, delay_ns: int, steps: int, *, every: int = 1) -> None:
        batches = WARM_UP + steps
        super().__init__(DatasetIdentity("test", "slow inputs", None, None, BATCH_SIZE * batches))
        self._delays_ns = [0 if batch % every else delay_ns // BATCH_SIZE for batch in range(batches)]
        self._input = Tensor(np.random.default_rng(0).random(784, np.float32))
        self.took_ns = np.zeros(batches, np.int64)
        self.begun = 0

    def __iter__(self) -> Iterator[Sample]:
        for number in range(len(self)):
            yield Sample(str(number), partial(self._read, number), str(number % 10))

    def _read(self, number: int) -> Payload:
        begun_ns, batch = time.perf_counter_ns(), number // BATCH_SIZE
        self.begun = max(self.begun, number + 1)
        until_ns = begun_ns + self._delays_ns[batch]
        while (left_ns := until_ns - time.perf_counter_ns()) > 0:
            time.sleep(left_ns / 2e9 if left_ns > 1_000_000 else 0)  # a device that is slow
        self.took_ns[batch] += time.perf_counter_ns() - begun_ns
        return self._input

    def has_loaded(self, batch: int) -> bool:
        """Whether a loader with one worker has loaded a batch: it has begun the next one, if there is one."""
        return batch + 1 >= len(self.took_ns) or self.begun > (batch + 1) * BATCH_SIZE


@pytest.fixture(scope="module", params=["PyTorch", "MXNet"])
def opened(request: pytest.FixtureRequest) -> Iterator[tuple[Trainer, SystemDescription]]:
    registry = Registry()
    manifest = select_model(Catalog(), registry, "DeepMNIST", framework=request.param, weights=Weights.RANDOM)
    options = TrainerOptions(predictor=PredictorOptions(threads=1, weights=Weights.RANDOM))
    trainer, description = open_trainer(manifest, options, registry)
    with closing(trainer):
        yield trainer, description


def trained(
    opened: tuple[Trainer, SystemDescription],
    dataset: SlowInputs,
    prefetch: int = 0,
    after_step: Callable[[int], None] = lambda _: None,
) -> TrainingMeasurement:
    """Trains on the batches of a dataset; ``after_step`` gets the number of steps, outside of their times."""
    trainer, description = opened
    options = LoaderOptions(BATCH_SIZE, workers=1 if prefetch else 0, prefetch=prefetch)
    parameters = description.manifest.inputs[0].parameters
    with closing(DatasetLoader(dataset, parameters, options, lambda label: int(label or 0))) as loader:
        evaluation = TrainingRun(
            trainer,
            description,
            loader,
            dataset.identity,
            TrainingOptions(
                batch_size=BATCH_SIZE,
                num_batches=len(dataset.took_ns) - WARM_UP,
                num_warmup_batches=WARM_UP,
                parts_every=0,
            ),
            DataOptions(backend="test", workers=options.workers, prefetch=prefetch),
            callbacks=JobCallbacks(on_progress=lambda progress: after_step(progress.done)),
        ).run()
    assert evaluation is not None
    return evaluation.measurement


def test_what_loading_takes_longer_is_waited_for_and_computing_takes_as_long(
    opened: tuple[Trainer, SystemDescription],
) -> None:
    dataset = SlowInputs(ADDED_NS, MANY, every=2)
    times = trained(opened, dataset).times

    wait_ns, compute_ns, whole_ns = (each[0] for each in (times.wait_ns, times.compute_ns, times.whole_ns))
    slow = np.arange(WARM_UP, WARM_UP + MANY) % 2 == 0
    beside_ns = wait_ns - dataset.took_ns[WARM_UP:]
    assert (dataset.took_ns[WARM_UP:][slow] >= ADDED_NS).all()
    assert (beside_ns >= 0).all()
    assert np.median(beside_ns[slow]) - np.median(beside_ns[~slow]) < 0.1 * ADDED_NS
    assert (wait_ns + times.copy_ns[0] + compute_ns <= whole_ns).all()
    # of neighbours, as the machine may slow down meanwhile; four standard errors of the median of their noise
    ratios = np.log(compute_ns[slow] / compute_ns[~slow])
    noise = 1.4826 * np.median(np.abs(ratios - np.median(ratios))) * np.sqrt(np.pi / 2 / len(ratios))
    assert abs(np.median(ratios)) < max(0.05, 4 * noise)


def test_a_loader_that_works_ahead_is_not_waited_for_until_it_is_the_slower_one(
    opened: tuple[Trainer, SystemDescription],
) -> None:
    compute_ns = int(np.median(trained(opened, SlowInputs(0, FEW)).times.compute_ns))
    ahead, inputs = [], SlowInputs(compute_ns // 3, 2 * FEW)

    def catch_up(steps: int) -> None:
        """Waits for a loader that other work of the machine has held up, which few steps have to."""
        ahead.append(inputs.has_loaded(steps))
        deadline_s = time.monotonic() + DEADLINE_S
        while not inputs.has_loaded(steps):
            assert time.monotonic() < deadline_s
            time.sleep(0.001)

    faster = trained(opened, inputs, prefetch=2, after_step=catch_up)
    slower = trained(opened, SlowInputs(6 * compute_ns, FEW), prefetch=2)  # also if the machine slows down

    assert np.mean(ahead) > 0.5
    assert np.median(faster.times.wait_ns) < 0.05 * np.median(faster.times.compute_ns)
    assert TrainingSummary.of(faster).bound is Bound.COMPUTE
    assert np.median(slower.times.wait_ns) > np.median(slower.times.compute_ns)
    assert TrainingSummary.of(slower).bound is Bound.LOADER
