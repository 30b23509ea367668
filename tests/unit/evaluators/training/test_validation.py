"""The validation of a trained model: which samples count, and which of them are right."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray
from training_fakes import Clock, FakeTrainer, manifest

from inferometer.agent.preprocessing.inputs import Tensor
from inferometer.evaluators.datasets.base import Dataset, DatasetIdentity, Sample
from inferometer.evaluators.kinds.training.job import validate
from inferometer.evaluators.tasks.metric import Accuracy
from inferometer.manifests.errors import InputError

RIGHT, SECOND, UNLABELLED, DIVERGED, DAMAGED = range(5)
LABELS = {RIGHT: "c0", SECOND: "c0", UNLABELLED: None, DIVERGED: "c3", DAMAGED: "c1"}


class Labelled(Dataset):
    """A sample for each of ``LABELS``, whose tensor holds its number."""

    def __init__(self) -> None:
        super().__init__(DatasetIdentity("tensors", "labelled", None, None, len(LABELS)))

    def __iter__(self) -> Iterator[Sample]:
        return map(self.sample, LABELS)

    def sample(self, index: int) -> Sample:
        return Sample(f"s{index}", partial(self.read, index), LABELS[index])

    def read(self, index: int) -> Tensor:
        if index == DAMAGED:
            raise InputError("is damaged")
        return Tensor(np.full((3, 8, 8), index, np.float32))


class Diverging(FakeTrainer):
    """Its best class is the number of a sample, and one sample has scores that are no numbers."""

    def scores(self, inputs: NDArray[Any]) -> NDArray[np.float32]:
        found = super().scores(inputs)
        found[inputs[:, 0, 0, 0] == DIVERGED] = np.nan
        return found


def test_samples_with_a_label_and_finite_scores_count_and_failed_ones_are_named() -> None:
    for batch_size in (1, 2, 5):
        found = validate(Diverging(Clock()), Labelled(), manifest(), batch_size)

        assert found is not None
        assert found.accuracy == Accuracy(top1=1, top5=2, evaluated=2)
        assert [each.input_id for each in found.failures] == [f"s{DAMAGED}"]


def test_a_validation_that_is_stopped_has_no_result() -> None:
    assert validate(FakeTrainer(Clock()), Labelled(), manifest(), 2, lambda: True) is None
