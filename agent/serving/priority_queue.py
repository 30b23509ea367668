"""The requests that wait for one model, by priorities and queue policies as Triton's dynamic batcher."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from queue import Empty

from inferometer.agent.serving.batching import BatchingOptions
from inferometer.agent.serving.queue_policy import TimeoutAction
from inferometer.agent.serving.request_queue import MAX_WAITING_BYTES, Request, RequestQueue
from inferometer.manifests.errors import QueueFullError


class PriorityQueue(RequestQueue[Request]):
    """Gives out requests of level 1 before those of level 2 and so on, of one level in their order.

    Each level has the limit of its policy; the limit of memory holds for all together.
    """

    def __init__(
        self,
        options: BatchingOptions,
        model: str,
        clock: Callable[[], int],
        max_bytes: int = MAX_WAITING_BYTES,
    ) -> None:
        super().__init__(0, model, clock, max_bytes)
        self._options = options
        levels = max(1, options.priority_levels)
        self._limits = [options.max_queue_of(level) for level in range(1, levels + 1)]
        self._limit = sum(self._limits)
        self._waiting_at = [0] * levels
        self._use(_Levels(levels, clock))

    def put(self, request: Request) -> None:
        """Adds a request, with its place and its timeout by the policy of its level; see ``RequestQueue``."""
        level = self._options.level_of(request.priority)
        request.priority = level
        policy = self._options.policy_of(level)
        timeout_ns = policy.timeout_ns(request.timeout_ns)
        if timeout_ns is not None and policy.timeout_action is TimeoutAction.DELAY:
            request.delayed_ns = request.came_ns + timeout_ns
        elif timeout_ns is not None:
            request.rejected_ns = request.came_ns + timeout_ns
        with self._lock:
            if self._waiting_at[level - 1] >= self._limits[level - 1]:
                raise QueueFullError(
                    f"model {self._model}: its limit of {self._limits[level - 1]} requests of priority "
                    f"{level} wait; try again later"
                )
            self._waiting_at[level - 1] += 1
        try:
            super().put(request)
        except BaseException:
            self._gone(request)
            raise

    def wanted(self, request: Request) -> bool:
        """Whether a request is to be predicted: also not after its timeout, if that rejects it."""
        if request.rejected_ns is not None and self._clock() >= request.rejected_ns and self.leave(request):
            request.fail(self.expired())
            return False
        return super().wanted(request)

    def begin(self, requests: list[Request]) -> list[Request]:
        """Begins a batch; see ``RequestQueue``."""
        begun = super().begin(requests)
        for request in begun:
            self._gone(request)
        return begun

    def leave(self, request: Request) -> bool:
        """Removes a request if its batch has not begun; returns whether it did."""
        if not super().leave(request):
            return False
        self._gone(request)
        return True

    def _gone(self, request: Request) -> None:
        with self._lock:
            self._waiting_at[request.priority - 1] -= 1


class _Levels:
    """A queue like ``queue.SimpleQueue`` with requests by their levels; None, the end mark, comes last."""

    def __init__(self, levels: int, clock: Callable[[], int]) -> None:
        self._clock = clock
        self._changed = threading.Condition()
        self._fresh: list[deque[Request]] = [deque() for _ in range(levels)]
        self._delayed: list[deque[Request]] = [deque() for _ in range(levels)]
        self._marks = 0

    def put(self, request: Request | None) -> None:
        """Adds a request, or an end mark."""
        with self._changed:
            if request is None:
                self._marks += 1
            else:
                self._fresh[request.priority - 1].append(request)
            self._changed.notify()

    def get(self, block: bool = True, timeout: float | None = None) -> Request | None:
        """Takes the next request; raises Empty if there is none, or none comes in time."""
        end_s = None if timeout is None else time.monotonic() + timeout
        with self._changed:
            while (found := self._next()) is None and not self._marks:
                left_s = None if end_s is None else end_s - time.monotonic()
                if not block or (left_s is not None and left_s <= 0):
                    raise Empty
                self._changed.wait(left_s)
            if found is None:
                self._marks -= 1
            return found

    def get_nowait(self) -> Request | None:
        """Takes the next request; raises Empty if there is none."""
        return self.get(block=False)

    def _next(self) -> Request | None:
        for fresh, delayed in zip(self._fresh, self._delayed, strict=True):
            while fresh:
                request = fresh.popleft()
                if request.delayed_ns is None or self._clock() < request.delayed_ns:
                    return request
                delayed.append(request)
            if delayed:
                return delayed.popleft()
        return None
