"""The order of an epoch: every sample once, in equally many batches on every rank."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from inferometer.evaluators.loading.loader import EpochOrder
from inferometer.evaluators.loading.options import LoaderOptions
from inferometer.manifests.errors import ConfigurationError, DatasetError


@given(ranks=st.integers(1, 5), more=st.integers(0, 60), batch_size=st.integers(1, 9), shuffle=st.booleans())
def test_each_sample_is_in_one_batch_of_one_rank(
    ranks: int, more: int, batch_size: int, shuffle: bool
) -> None:
    count = ranks + more
    orders = [
        EpochOrder(count, LoaderOptions(batch_size, shuffle=shuffle, seed=3, rank=rank, ranks=ranks))
        for rank in range(ranks)
    ]
    alone = EpochOrder(count, LoaderOptions(batch_size * ranks, shuffle=shuffle, seed=3))

    batches = [[each.tolist() for each in order.of(4)] for order in orders]

    assert {len(each) for each in batches} == {orders[0].batches}
    steps = list(zip(*batches, strict=True))
    for step in steps:
        sizes = [len(each) for each in step]
        assert min(sizes) >= 1
        assert max(sizes) <= min(min(sizes) + 1, batch_size)
    # together the ranks see in each step what one rank with a larger batch sees
    together = [[place for each in step for place in each] for step in steps]
    assert together == [each.tolist() for each in alone.of(4)][: len(together)]
    seen = [place for step in together for place in step]
    assert len(set(seen)) == len(seen) > count - ranks


def test_without_shuffling_the_order_is_that_of_the_dataset() -> None:
    order = EpochOrder(5, LoaderOptions(2))

    assert [each.tolist() for each in order.of(7)] == [[0, 1], [2, 3], [4]]


def test_the_seed_and_the_epoch_alone_draw_the_order() -> None:
    def places(seed: int, epoch: int) -> list[int]:
        order = EpochOrder(100, LoaderOptions(100, shuffle=True, seed=seed))
        return next(order.of(epoch)).tolist()

    assert sorted(places(1, 0)) == list(range(100))
    assert places(1, 0) == places(1, 0)
    assert len({tuple(places(*given)) for given in ((1, 0), (1, 1), (2, 0), (0, 1))}) == 4


def test_what_does_not_suffice_for_every_rank_is_left_out() -> None:
    first, second, third = (EpochOrder(11, LoaderOptions(3, rank=rank, ranks=3)) for rank in range(3))

    assert first.batches == second.batches == third.batches == 1
    assert [next(each.of(0)).tolist() for each in (first, second, third)] == [[0, 1, 2], [3, 4, 5], [6, 7, 8]]


def test_fewer_samples_than_ranks_are_refused() -> None:
    with pytest.raises(DatasetError, match="has 2 samples, and 3 ranks need one each; use fewer ranks"):
        EpochOrder(2, LoaderOptions(3, ranks=3))


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"batch_size": 0}, "batch_size is 0; it must be at least 1"),
        ({"batch_size": 1, "workers": -1}, "workers is -1; it must be at least 0"),
        ({"batch_size": 1, "seed": -1}, "seed is -1; it must be at least 0"),
        ({"batch_size": 1, "prefetch": 2}, "prefetch is 2, but there are no workers to load ahead"),
        ({"batch_size": 1, "processes": True}, "workers are 0, so none can be a process"),
        ({"batch_size": 1, "rank": 2, "ranks": 2}, "rank is 2 of 2; allowed: 0 to 1"),
        ({"batch_size": 1, "ranks": 0}, "ranks is 0; it must be at least 1"),
    ],
)
def test_options_that_cannot_be_are_refused(given: dict[str, int], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        LoaderOptions(**given)


def test_places_are_whole_numbers_of_64_bits() -> None:
    [batch] = EpochOrder(3, LoaderOptions(3, shuffle=True)).of(0)

    assert batch.dtype == np.int64
