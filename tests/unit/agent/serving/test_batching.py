"""Which requests are batched, and when their batch begins, in virtual time."""

import itertools
from queue import Empty
from typing import NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from inferometer.agent.serving.batching import Batcher, BatchingOptions
from inferometer.manifests.errors import ConfigurationError

MS = 1_000_000


class Query(NamedTuple):
    number: int
    came_ns: int
    inputs: int


class ArrivingQueries:
    """A queue of queries that arrive at times of a clock, which it moves while they are waited for."""

    def __init__(self, *times_ms, ended=False, sizes=None, unwanted=()):
        sizes = sizes or [1] * len(times_ms)
        self._items = [
            Query(n, ms * MS, size) for n, (ms, size) in enumerate(zip(times_ms, sizes, strict=True))
        ]
        self._unwanted = unwanted
        self._ended = ended
        self.now_ns = 0

    def clock(self):
        return self.now_ns

    def wanted(self, query):
        return query.number not in self._unwanted

    def get(self, block=True, timeout=None):
        if not self._items:
            if self._ended:
                self._ended = False
                return None
            return self._nothing(block, timeout)
        came_ns = self._items[0].came_ns
        limit_ns = self.now_ns + round((timeout or 0) * 1e9) if block else self.now_ns
        if came_ns > limit_ns and timeout is not None:
            return self._nothing(block, timeout)
        self.now_ns = max(self.now_ns, came_ns)
        return self._items.pop(0)

    def _nothing(self, block, timeout):
        assert timeout is not None, "it would wait for ever"
        self.now_ns += round(timeout * 1e9) if block else 0
        raise Empty


def batches(waiters, count, max_batch_size, delay_ms, service_ms=0, preferred=(), form_of=None):
    """The queries of batches, and when each began."""
    options = BatchingOptions(max_batch_size, delay_ms, preferred)
    batcher = Batcher(options, waiters.clock, waiters, form_of)
    found = []
    for _ in range(count):
        batch = batcher.next()
        found.append(([query.number for query in batch], waiters.now_ns / MS) if batch is not None else None)
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


def test_a_request_of_several_inputs_is_whole_in_one_batch():
    found = batches(ArrivingQueries(0, 0, 0, ended=True, sizes=(2, 3, 1)), 2, max_batch_size=4, delay_ms=5)

    # the second does not fit beside the first, and the third does not overtake it
    assert found == [([0], 0), ([1, 2], 0)]


def test_a_request_that_is_larger_than_a_batch_is_one_of_its_own():
    found = batches(ArrivingQueries(0, 0, 0, ended=True, sizes=(1, 9, 1)), 3, max_batch_size=4, delay_ms=5)

    assert found == [([0], 0), ([1], 0), ([2], 0)]


def test_a_preferred_size_waits_no_longer():
    found = batches(ArrivingQueries(0, 1, 2), 2, max_batch_size=8, delay_ms=50, preferred=(2, 4))

    assert found == [([0, 1], 1), ([2], 52)]


def test_of_what_waits_the_largest_preferred_size_is_taken():
    found = batches(
        ArrivingQueries(0, 1, 1, 1, 1, 1), 2, max_batch_size=8, delay_ms=50, service_ms=5, preferred=(2, 4)
    )

    assert found == [([0, 1, 2, 3], 1), ([4, 5], 6)]


def test_what_has_waited_long_enough_is_not_cut_to_a_preferred_size():
    found = batches(
        ArrivingQueries(0, 1, 2, 3), 2, max_batch_size=8, delay_ms=5, service_ms=20, preferred=(1, 2)
    )

    assert found == [([0], 0), ([1, 2, 3], 20)]


def test_a_request_that_is_not_wanted_any_more_is_in_no_batch():
    found = batches(ArrivingQueries(0, 0, 0, 0, ended=True, unwanted={0, 2}), 2, max_batch_size=2, delay_ms=5)

    assert found == [([1, 3], 0), None]


@given(
    arrivals=st.lists(st.tuples(st.integers(0, 20), st.integers(1, 6)), max_size=30),
    max_batch_size=st.integers(1, 6),
    delay_ms=st.integers(0, 10),
    service_ms=st.integers(0, 10),
    preferred=st.sets(st.integers(1, 6)),
)
def test_each_request_is_in_one_batch_in_order_and_none_waits_longer_than_the_delay_for_others(
    arrivals, max_batch_size, delay_ms, service_ms, preferred
):
    times_ms = list(itertools.accumulate(gap for gap, _ in arrivals))
    counts = [count for _, count in arrivals]
    waiters = ArrivingQueries(*times_ms, ended=True, sizes=counts)
    fitting = tuple(size for size in preferred if size <= max_batch_size)
    free_ms = 0
    found = []
    for queries, began_ms in begun_batches(waiters, max_batch_size, delay_ms, fitting):
        found += queries
        size = sum(counts[query] for query in queries)
        assert size <= max_batch_size or len(queries) == 1
        assert began_ms >= times_ms[queries[-1]]
        assert began_ms <= max(free_ms, times_ms[queries[0]] + delay_ms)
        waiters.now_ns += service_ms * MS
        free_ms = began_ms + service_ms

    assert found == list(range(len(arrivals)))


def begun_batches(waiters, max_batch_size, delay_ms, preferred):
    """Each batch's queries and when it began, in milliseconds."""
    options = BatchingOptions(max_batch_size, delay_ms, preferred)
    batcher = Batcher(options, waiters.clock, waiters)
    while (batch := batcher.next()) is not None:
        yield [query.number for query in batch], waiters.now_ns / MS


@pytest.mark.parametrize(
    ("options", "line"),
    [
        ({"max_batch_size": 0}, "max_batch_size is 0; it must be at least 1"),
        ({"max_queue": 0}, "max_queue is 0; it must be at least 1"),
        ({"max_queue_delay_ms": -0.5}, "max_queue_delay_ms is -0.5; it must be at least 0"),
        ({"max_queue_delay_ms": float("nan")}, "max_queue_delay_ms is nan; it must be at least 0"),
        (
            {"max_batch_size": 4, "preferred_batch_sizes": (4, 5)},
            "preferred_batch_sizes has 5; allowed: 1 to max_batch_size, 4",
        ),
        (
            {"max_batch_size": 4, "preferred_batch_sizes": (0,)},
            "preferred_batch_sizes has 0; allowed: 1 to max_batch_size, 4",
        ),
    ],
)
def test_numbers_that_make_no_sense_are_refused(options, line):
    with pytest.raises(ConfigurationError) as raised:
        BatchingOptions(**options)

    assert str(raised.value) == line


@pytest.mark.parametrize(
    ("forms", "wanted"), [("aab", [[0, 1], [2]]), ("aba", [[0], [1], [2]]), ("abbbb", [[0], [1, 2, 3], [4]])]
)
def test_a_request_of_another_form_begins_the_next_batch_and_is_not_waited_for(forms, wanted):
    waiters = ArrivingQueries(*[0] * len(forms))
    found = batches(waiters, len(wanted), 3, delay_ms=50, form_of=lambda query: forms[query.number])
    assert [numbers for numbers, _ in found] == wanted
    assert found[-2][1] == 0


def test_a_batch_of_a_preferred_size_leaves_what_came_after_it_to_the_next_ones_in_order():
    waiters = ArrivingQueries(0, 0, 0, 0)
    found = batches(waiters, 3, 4, delay_ms=50, preferred=(2,), form_of=lambda query: "aaab"[query.number])
    assert [numbers for numbers, _ in found] == [[0, 1], [2], [3]]
