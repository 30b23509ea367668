"""A number of batches that was asked for: that many are measured, and that many warm up."""

from __future__ import annotations

import pytest
from dataset_run_fakes import FakeSystem, Numbered, manifest
from hypothesis import given
from hypothesis import strategies as st

from inferometer.evaluators.datasets.arrays import SyntheticDataset
from inferometer.evaluators.jobs.job import DatasetChoice, SystemRequest, inputs_for
from inferometer.evaluators.kinds.batches.request import BatchOptions
from inferometer.evaluators.kinds.batches.run import DatasetRun

PARAMETERS = manifest("raw").inputs[0].parameters


def exactly(batch_size: int, batches: int, warm_up: int, **others: int) -> BatchOptions:
    return BatchOptions(
        batch_size, batch_size, num_file_parts=batches, warmup_num_file_parts=warm_up, **others
    )


def synthetic(batch_size: int, batches: int, warm_up: int) -> SyntheticDataset:
    chosen = inputs_for(
        SystemRequest(),
        DatasetChoice(),
        synthetic=True,
        batch_size=batch_size,
        seed=0,
        least=batch_size * max(batches, warm_up),
    )
    assert chosen.synthetic is not None
    return SyntheticDataset(PARAMETERS.tensors, chosen.synthetic, chosen.seed)


@given(batch_size=st.integers(1, 70), batches=st.integers(1, 12), warm_up=st.integers(0, 15))
def test_synthetic_inputs_fill_so_many_batches_before_and_while_it_is_measured(
    batch_size: int, batches: int, warm_up: int
) -> None:
    system = FakeSystem(kind="raw")
    dataset = synthetic(batch_size, batches, warm_up)

    evaluation = DatasetRun(system, dataset, exactly(batch_size, batches, warm_up)).run()

    assert evaluation.measurement.times.sizes.tolist() == [batch_size] * batches
    assert [len(batch) for batch in system.answered] == [batch_size] * (warm_up + batches)


@pytest.mark.parametrize("warm_up", [0, 1, 9])
def test_warming_up_longer_than_it_is_measured_measures_no_more(warm_up: int) -> None:
    system = FakeSystem(kind="raw")

    evaluation = DatasetRun(system, synthetic(4, 2, warm_up), exactly(4, 2, warm_up)).run()

    assert len(evaluation.measurement.full_ns) == 2
    assert len(system.answered) == warm_up + 2


@pytest.mark.parametrize(
    ("size", "batches", "sizes"),
    [
        (8, 5, [4] * 5),
        (20, 5, [4] * 5),
        (21, 5, [4] * 5),
        (10, 5, [4, 4, 2, 4, 4, 4]),  # the rest of the dataset counts for accuracy, not as a full batch
    ],
)
def test_a_smaller_dataset_is_repeated_until_so_many_full_batches_are_measured_and_no_more(
    size: int, batches: int, sizes: list[int]
) -> None:
    system = FakeSystem()
    options = exactly(4, batches, 0, min_batches=batches)

    measurement = DatasetRun(system, Numbered(size), options).run().measurement

    assert measurement.times.sizes.tolist() == sizes
    assert len(measurement.full_ns) == batches
