"""The time that a loader takes appears in the wait of real training steps, and nowhere else."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import closing

import numpy as np
import pytest

from inferometer.agent.hardware.environment import PredictorOptions, Weights
from inferometer.agent.inference.registry import Registry
from inferometer.agent.inference.session import select_model
from inferometer.agent.inference.stages import SystemDescription
from inferometer.agent.preprocessing.inputs import Payload, Tensor
from inferometer.agent.training.trainer import Trainer, TrainerOptions, open_trainer
from inferometer.evaluators.datasets.base import Dataset, DatasetIdentity, Sample
from inferometer.evaluators.kinds.training.measurement import Bound, TrainingMeasurement, TrainingSummary
from inferometer.evaluators.kinds.training.request import TrainingOptions
from inferometer.evaluators.kinds.training.training_run import TrainingRun
from inferometer.evaluators.loading.loader import DatasetLoader, LoaderOptions
from inferometer.evaluators.loading.options import DataOptions
from inferometer.manifests.catalog import Catalog

pytestmark = pytest.mark.real_time
BATCH_SIZE, STEPS = 8, 20
ADDED_NS = 20_000_000


class SlowInputs(Dataset):
    """Random inputs of DeepMNIST, each of which takes ``delay_ns`` to read."""

    def __init__(self, delay_ns: int) -> None:
        super().__init__(DatasetIdentity("test", "slow inputs", None, None, BATCH_SIZE * STEPS))
        self._delay_ns = delay_ns
        self._input = Tensor(np.random.default_rng(0).random(784, np.float32))

    def __iter__(self) -> Iterator[Sample]:
        for number in range(len(self)):
            yield Sample(str(number), self._read, str(number % 10))

    def _read(self) -> Payload:
        until_ns = time.monotonic_ns() + self._delay_ns
        while (left_ns := until_ns - time.monotonic_ns()) > 0:
            time.sleep(left_ns / 2e9 if left_ns > 1_000_000 else 0)  # a device that is slow
        return self._input


@pytest.fixture(scope="module", params=["PyTorch", "MXNet"])
def opened(request: pytest.FixtureRequest) -> Iterator[tuple[Trainer, SystemDescription]]:
    registry = Registry()
    manifest = select_model(Catalog(), registry, "DeepMNIST", framework=request.param, weights=Weights.RANDOM)
    options = TrainerOptions(predictor=PredictorOptions(threads=1, weights=Weights.RANDOM))
    trainer, description = open_trainer(manifest, options, registry)
    with closing(trainer):
        yield trainer, description


def trained(
    opened: tuple[Trainer, SystemDescription], delay_ns: int, prefetch: int = 0
) -> TrainingMeasurement:
    """Trains on batches whose samples together take ``delay_ns`` to read, one after the other."""
    trainer, description = opened
    dataset = SlowInputs(delay_ns // BATCH_SIZE)
    options = LoaderOptions(BATCH_SIZE, workers=1 if prefetch else 0, prefetch=prefetch)
    parameters = description.manifest.inputs[0].parameters
    with closing(DatasetLoader(dataset, parameters, options, lambda label: int(label or 0))) as loader:
        evaluation = TrainingRun(
            trainer,
            description,
            loader,
            dataset.identity,
            TrainingOptions(batch_size=BATCH_SIZE, num_batches=STEPS, num_warmup_batches=3, parts_every=0),
            DataOptions(backend="test", workers=options.workers, prefetch=prefetch),
        ).run()
    assert evaluation is not None
    return evaluation.measurement


def median_ns(measured: TrainingMeasurement, part: str) -> float:
    return float(np.median(getattr(measured.times, f"{part}_ns")))


def test_what_loading_takes_longer_is_waited_for_and_computing_takes_as_long(
    opened: tuple[Trainer, SystemDescription],
) -> None:
    before, slow, after = (trained(opened, delay_ns) for delay_ns in (0, ADDED_NS, 0))

    added_ns = median_ns(slow, "wait") - median_ns(before, "wait")
    assert added_ns == pytest.approx(ADDED_NS, rel=0.1)
    computed = [median_ns(each, "compute") for each in (before, slow, after)]
    spread = max(0.05, abs(computed[2] / computed[0] - 1))
    assert computed[1] == pytest.approx((computed[0] + computed[2]) / 2, rel=spread)


def test_a_loader_that_works_ahead_is_not_waited_for_until_it_is_the_slower_one(
    opened: tuple[Trainer, SystemDescription],
) -> None:
    compute_ns = int(median_ns(trained(opened, 0), "compute"))

    faster = trained(opened, compute_ns // 3, prefetch=2)
    slower = trained(opened, 6 * compute_ns, prefetch=2)  # also where the machine slows down meanwhile

    assert median_ns(faster, "wait") < 0.05 * median_ns(faster, "compute")
    assert TrainingSummary.of(faster).bound is Bound.COMPUTE
    assert median_ns(slower, "wait") > median_ns(slower, "compute")
    assert TrainingSummary.of(slower).bound is Bound.LOADER
