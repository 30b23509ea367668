"""The queue of a model is bounded by the number of its requests, and by their size."""

from __future__ import annotations

import numpy as np
import pytest

from inferometer.agent.serving.request_queue import Request, RequestQueue
from inferometer.manifests.errors import QueueFullError

MIB = 1024 * 1024


def request(mebibytes: int) -> Request:
    return Request({"x": np.zeros((1, mebibytes, MIB), np.uint8)}, 0, None, lambda: True)


def test_as_many_wait_as_may_until_a_caller_leaves() -> None:
    queue = RequestQueue(2, "Small 1.0", lambda: 0)
    first, second = request(1), request(1)
    queue.put(first)
    queue.put(second)
    with pytest.raises(QueueFullError, match=r"^model Small 1\.0: its queue of 2 requests is full"):
        queue.put(request(1))

    assert queue.leave(first)
    queue.put(request(1))
    assert len(queue) == 2


def test_as_much_waits_as_may_until_a_batch_begins_or_a_caller_leaves() -> None:
    queue = RequestQueue(100, "Large 1.0", lambda: 0, max_bytes=4 * MIB)
    first, second = request(3), request(1)
    queue.put(first)
    queue.put(second)
    with pytest.raises(
        QueueFullError, match=r"^model Large 1\.0: the waiting requests take up their limit of 4 MiB"
    ):
        queue.put(request(1))

    assert queue.leave(second)
    queue.put(request(1))
    assert queue.begin([first]) == [first]
    queue.put(request(3))
    with pytest.raises(QueueFullError):
        queue.put(request(1))


def test_one_that_is_larger_than_all_that_may_wait_waits_alone() -> None:
    queue = RequestQueue(100, "Large 1.0", lambda: 0, max_bytes=4 * MIB)
    queue.put(request(5))
    with pytest.raises(QueueFullError):
        queue.put(request(1))


def test_strings_take_the_memory_of_their_text() -> None:
    queue = RequestQueue(100, "Words 1.0", lambda: 0, max_bytes=4 * MIB)
    words = np.array([["x" * 3 * MIB, ""]], object)
    queue.put(Request({"x": words}, 0, None, lambda: True))
    queue.put(Request({"x": words[:, 1:]}, 0, None, lambda: True))
    with pytest.raises(QueueFullError, match="take up their limit"):
        queue.put(Request({"x": words}, 0, None, lambda: True))
