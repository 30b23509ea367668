"""Which queries are predicted together, and when their batch begins, in virtual time."""

from queue import Empty

import pytest

from evaluators.loadgen.batching import Batcher
from manifests.errors import ConfigurationError

MS = 1_000_000


class ArrivingQueries:
    """Queries that come at times of a clock, which it moves while it is waited for them."""

    def __init__(self, *times_ms, ended=False):
        self._items = [(query, ms * MS) for query, ms in enumerate(times_ms)]
        self._ended = ended
        self.now_ns = 0

    def clock(self):
        return self.now_ns

    def get(self, block=True, timeout=None):
        if not self._items:
            if self._ended:
                self._ended = False
                return None
            return self._nothing(block, timeout)
        came_ns = self._items[0][1]
        limit_ns = self.now_ns + round((timeout or 0) * 1e9) if block else self.now_ns
        if came_ns > limit_ns and timeout is not None:
            return self._nothing(block, timeout)
        self.now_ns = max(self.now_ns, came_ns)
        return self._items.pop(0)

    def _nothing(self, block, timeout):
        assert timeout is not None, "it would wait for ever"
        self.now_ns += round(timeout * 1e9) if block else 0
        raise Empty


def batches(waiters, count, max_batch_size, delay_ms, service_ms=0):
    """The queries of batches, and when each began."""
    batcher = Batcher(max_batch_size, delay_ms, waiters.clock)
    found = []
    for _ in range(count):
        batch = batcher.next(waiters)
        found.append(([query for query, _ in batch], waiters.now_ns / MS) if batch is not None else None)
        waiters.now_ns += service_ms * MS
    return found


def test_a_full_batch_begins_at_once():
    assert batches(ArrivingQueries(0, 1, 2, 3), 1, max_batch_size=3, delay_ms=50) == [([0, 1, 2], 2)]


def test_a_batch_that_is_not_full_begins_when_its_first_query_has_waited_long_enough():
    found = batches(ArrivingQueries(10, 13, 30), 2, max_batch_size=8, delay_ms=5)

    assert found == [([0, 1], 15), ([2], 35)]


def test_a_query_that_comes_just_in_time_is_taken_along():
    assert batches(ArrivingQueries(10, 15), 1, max_batch_size=8, delay_ms=5) == [([0, 1], 15)]


def test_the_delay_counts_from_when_the_first_query_came_and_not_from_when_the_model_was_free():
    found = batches(ArrivingQueries(0, 0, 1, 3, 28), 3, max_batch_size=2, delay_ms=5, service_ms=20)

    # the third and fourth came while the first two were predicted
    assert found == [([0, 1], 0), ([2, 3], 20), ([4], 40)]


def test_without_delay_what_waits_when_the_model_is_free_is_one_batch():
    found = batches(ArrivingQueries(0, 4, 5, 6, 11), 3, max_batch_size=4, delay_ms=0, service_ms=10)

    assert found == [([0], 0), ([1, 2, 3], 10), ([4], 20)]


def test_a_batch_of_one_waits_for_nobody():
    found = batches(ArrivingQueries(3, 4), 2, max_batch_size=1, delay_ms=1000)

    assert found == [([0], 3), ([1], 4)]


def test_when_no_more_come_the_rest_does_not_wait():
    waiters = ArrivingQueries(0, 1, 2, ended=True)

    assert batches(waiters, 3, max_batch_size=2, delay_ms=1000) == [([0, 1], 1), ([2], 2), None]


@pytest.mark.parametrize(
    ("size", "delay_ms", "line"),
    [
        (0, 0.0, "max_batch_size is 0; it must be at least 1"),
        (1, -0.5, "max_queue_delay_ms is -0.5; it must be at least 0"),
        (1, float("nan"), "max_queue_delay_ms is nan; it must be at least 0"),
    ],
)
def test_numbers_that_make_no_sense_are_refused(size, delay_ms, line):
    with pytest.raises(ConfigurationError) as raised:
        Batcher(size, delay_ms, lambda: 0)

    assert str(raised.value) == line
