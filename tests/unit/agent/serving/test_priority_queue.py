"""Priorities and queue policies: who is predicted first, who is delayed, and who is refused."""

from __future__ import annotations

import asyncio
from queue import Empty

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from served_fakes import LAYER, Caller, Clock, FakeSession, rows, served, wait_for

from inferometer.agent.serving.batching import BatchingOptions, PriorityQueue, QueuePolicy, TimeoutAction
from inferometer.agent.serving.request_queue import Request
from inferometer.manifests.errors import DeadlineError, QueueFullError, SessionError

MS = 1_000_000
DELAY = QueuePolicy(TimeoutAction.DELAY, default_timeout_microseconds=1000)
REJECT = QueuePolicy(TimeoutAction.REJECT, default_timeout_microseconds=1000)


def options(levels=3, default=2, policy=None, **policies):
    return BatchingOptions(
        priority_levels=levels,
        default_priority_level=default,
        default_queue_policy=policy or QueuePolicy(),
        priority_queue_policy=tuple((int(level.lstrip("p")), each) for level, each in policies.items()),
    )


class Queue(PriorityQueue):
    """A queue with a clock of its own, and requests with a number each."""

    def __init__(self, chosen: BatchingOptions, **more) -> None:
        self.clock = Clock()
        super().__init__(chosen, "Double 1.0", self.clock, **more)

    def add(self, number: int, priority: int = 0, timeout_ns: int | None = None) -> Request:
        request = Request({"x": np.full((1, 1), number)}, self.clock(), None, lambda: True)
        request.priority, request.timeout_ns = priority, timeout_ns
        self.put(request)
        return request

    def taken(self) -> list[int]:
        """The numbers of all that is predicted, in order."""
        found = []
        while True:
            try:
                request = self.get(False)
            except Empty:
                return found
            found += [int(each.batch["x"][0, 0]) for each in self.begin([request])]


def test_higher_priorities_come_first_and_equal_ones_in_their_order():
    queue = Queue(options())
    for number, priority in enumerate([3, 1, 2, 3, 1, 0, 2]):
        queue.add(number, priority)
    assert len(queue) == 7
    assert queue.taken() == [1, 4, 2, 5, 6, 0, 3]
    assert len(queue) == 0


@pytest.mark.parametrize("priority", [0, 4, 2**63])
def test_no_priority_and_one_too_many_are_the_default(priority):
    queue = Queue(options(default=2))
    queue.add(3, 3)
    queue.add(0, priority)
    queue.add(1, 1)
    assert queue.taken() == [1, 0, 3]


@given(st.lists(st.integers(1, 3), max_size=30))
def test_no_request_is_lost_and_each_level_keeps_its_order(priorities):
    queue = Queue(options())
    for number, priority in enumerate(priorities):
        queue.add(number, priority)
    assert queue.taken() == sorted(range(len(priorities)), key=lambda number: priorities[number])


def test_a_delayed_request_waits_for_those_of_its_level_and_above_but_not_for_lower_ones():
    queue = Queue(options(policy=DELAY))
    queue.add(0, 2)
    queue.clock.now_ns += 1 * MS  # 0 has waited for its timeout
    for number, priority in ((1, 3), (2, 2), (3, 1)):
        queue.add(number, priority)
    assert queue.taken() == [3, 2, 0, 1]


def test_a_request_sets_a_shorter_timeout_where_the_policy_allows_it():
    fixed = QueuePolicy(TimeoutAction.DELAY, 1000, allow_timeout_override=False)
    for policy, expected in ((DELAY, [1, 0]), (fixed, [0, 1])):
        queue = Queue(options(policy=policy))
        queue.add(0, timeout_ns=MS // 2)
        queue.clock.now_ns += MS // 2
        queue.add(1, timeout_ns=5 * MS)
        assert queue.taken() == expected
    queue.add(2, timeout_ns=5 * MS)
    queue.clock.now_ns += 1 * MS
    queue.add(3)
    assert queue.taken() == [3, 2]  # which must not wait longer than the default


def test_a_rejected_request_fails_with_its_reason_and_frees_its_place():
    queue = Queue(options(policy=REJECT, p1=QueuePolicy(max_queue_size=1)))
    late = queue.add(0)
    queue.add(1, 1)
    queue.clock.now_ns += 1 * MS
    queue.add(2)
    assert queue.taken() == [1, 2]
    with pytest.raises(
        DeadlineError, match=r"^model Double 1\.0: the request's timeout expired in the queue"
    ):
        _ = late.outcome
    assert len(queue) == 0


def test_each_level_has_its_own_limit():
    queue = Queue(options(policy=QueuePolicy(max_queue_size=2), p1=QueuePolicy(max_queue_size=1)))
    queue.add(0, 1)
    with pytest.raises(QueueFullError, match="its queue of 1 requests of priority 1 is full; try again"):
        queue.add(1, 1)
    first = queue.add(2)
    queue.add(3)
    with pytest.raises(QueueFullError, match="its queue of 2 requests of priority 2 is full"):
        queue.add(4)
    assert queue.leave(first)
    queue.add(5)
    assert queue.taken() == [0, 3, 5]
    queue.add(6, 1)


def test_the_limit_of_memory_is_that_of_all_levels_and_refuses_without_taking_a_place():
    queue = Queue(options(policy=QueuePolicy(max_queue_size=2)), max_bytes=8)
    queue.add(0, 1)
    for _ in range(3):
        with pytest.raises(QueueFullError, match="take up their limit"):
            queue.add(1, 2)
    assert queue.taken() == [0]
    queue.add(2, 2)


def test_the_end_mark_comes_after_all_that_wait_and_a_closed_queue_takes_no_more():
    queue = Queue(options())
    queue.add(0, 3)
    queue.close()
    assert queue.get().batch["x"][0, 0] == 0
    assert queue.get() is None
    with pytest.raises(SessionError):
        queue.add(1)


def test_clearing_fails_every_level():
    queue = Queue(options())
    waiting = [queue.add(number, 1 + number % 3) for number in range(6)]
    queue.clear(SessionError("the device is lost"))
    assert queue.get() is None
    assert len(queue) == 0
    for request in waiting:
        with pytest.raises(SessionError, match="the device is lost"):
            _ = request.outcome


def test_waiting_for_a_request_ends_with_the_time():
    with pytest.raises(Empty):
        Queue(options()).get(True, 0.001)


def test_a_rejected_caller_does_not_wait_for_the_prediction_under_way_and_is_counted():
    session = FakeSession()
    session.hold()
    clock = Clock()
    model = served(session, clock, default_queue_policy=REJECT)
    first = Caller(model, 1)
    wait_for(lambda: session.batches)
    second = Caller(model, 2)
    wait_for(lambda: model.waiting == 1)
    clock.now_ns += 2 * MS
    assert isinstance(second.done().error, DeadlineError)
    assert model.waiting == 0
    session.go.set()
    assert first.numbers == [2]  # a prediction that has begun has no timeout
    assert model.statistics.totals.failures == 1
    assert session.batches == [rows(1).tolist()]
    model.close()
    assert model.wait_closed(20)


@pytest.mark.parametrize(("levels", "order"), [(0, [1, 2, 3, 4]), (3, [1, 3, 4, 2])])
def test_a_model_predicts_its_requests_by_priority_if_it_has_levels(levels, order):
    session = FakeSession()
    session.hold()
    model = served(session, priority_levels=levels, default_priority_level=min(levels, 2))

    async def ask() -> None:
        asked = [asyncio.ensure_future(model.infer_async({LAYER: rows(1)}))]
        while not session.batches:
            await asyncio.sleep(0)
        for number, priority in ((2, 3), (3, 1), (4, 0)):
            asked.append(asyncio.ensure_future(model.infer_async({LAYER: rows(number)}, priority=priority)))
            while model.waiting < len(asked) - 1:
                await asyncio.sleep(0)
        session.go.set()
        answers = await asyncio.gather(*asked)
        assert [answer.outputs["doubled"][0, 0] for answer in answers] == [2, 4, 6, 8]

    asyncio.run(asyncio.wait_for(ask(), 20))
    assert [batch[0][0] for batch in session.batches] == order
    model.close()
    assert model.wait_closed(20)
