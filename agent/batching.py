"""Dynamic batching: which of the requests that wait are predicted together, and when their batch begins."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from queue import Empty
from typing import Generic, Protocol, TypeVar

from manifests.errors import ConfigurationError

_NS_PER_S = 1_000_000_000
_NS_PER_MS = 1_000_000
_Waiting = TypeVar("_Waiting")
_Taken = TypeVar("_Taken", covariant=True)


@dataclass(frozen=True, slots=True)
class BatchingOptions:
    """How requests are put together.

    Attributes:
        max_batch_size: The most inputs of a batch; 1 predicts each request by itself.
        max_queue_delay_ms: How long the first request of a batch waits for others, in milliseconds.
        preferred_batch_sizes: A batch of one of these sizes waits no longer for others.
        max_queue: The most requests that wait for their batch to begin; one more is refused.

    Raises:
        ConfigurationError: A number is too small, or a preferred size is more than a batch may have.
    """

    max_batch_size: int = 1
    max_queue_delay_ms: float = 0.0
    preferred_batch_sizes: tuple[int, ...] = ()
    max_queue: int = 10_000

    def __post_init__(self) -> None:
        for name in ("max_batch_size", "max_queue"):
            if getattr(self, name) < 1:
                raise ConfigurationError(f"{name} is {getattr(self, name)}; it must be at least 1")
        if not 0 <= self.max_queue_delay_ms < float("inf"):
            raise ConfigurationError(
                f"max_queue_delay_ms is {self.max_queue_delay_ms:g}; it must be at least 0"
            )
        for size in self.preferred_batch_sizes:
            if not 1 <= size <= self.max_batch_size:
                raise ConfigurationError(
                    f"preferred_batch_sizes has {size}; allowed: 1 to max_batch_size, {self.max_batch_size}"
                )


class Waiters(Protocol[_Taken]):
    """The requests that wait, in the order in which they came, and a None behind the last one."""

    def get(self, block: bool = True, timeout: float | None = None) -> _Taken | None:
        """Takes the next one, and waits for it for ``timeout`` seconds, or with None without end.

        Raises:
            Empty: None came.
        """
        ...


def _one(_: object) -> int:
    return 1


class Batcher(Generic[_Waiting]):
    """Puts batches together, for one thread.

    A batch begins as soon as ``max_batch_size`` inputs wait, or its first request has waited for
    ``max_queue_delay_ms``: with 0 it is all that waits when the model is free. One that is not full by then
    begins on time. Until then a batch begins, too, as soon as what waits makes a preferred size: the largest.
    Requests are taken in their order, and each is whole in one batch: one that does not fit any more begins
    the next. One that is larger than a batch may be is a batch of its own.

    Args:
        options: The sizes and the delay.
        clock: The clock by which requests came, in nanoseconds.
        came_ns: When a request came.
        inputs: The number of inputs of a request; by default 1.
        wanted: Whether a request is still to be predicted, asked when its turn comes; by default always.
    """

    def __init__(
        self,
        options: BatchingOptions,
        clock: Callable[[], int],
        came_ns: Callable[[_Waiting], int],
        inputs: Callable[[_Waiting], int] = _one,
        wanted: Callable[[_Waiting], bool] | None = None,
    ) -> None:
        self._max = options.max_batch_size
        self._preferred = frozenset(options.preferred_batch_sizes)
        self._delay_ns = round(options.max_queue_delay_ms * _NS_PER_MS)
        self._clock = clock
        self._came_ns = came_ns
        self._inputs = inputs
        self._wanted = wanted
        self._put_back: deque[_Waiting] = deque()
        self._ended = False

    def next(self, waiters: Waiters[_Waiting]) -> list[_Waiting] | None:
        """Waits for the next batch; None once there is no other.

        Where no more requests come, a batch that is not full waits for none.
        """
        first = self._first(waiters)
        if first is None:
            self._ended = False
            return None
        batch, size = [first], self._inputs(first)
        if self._max == 1:
            return batch
        due_ns = self._came_ns(first) + self._delay_ns
        preferred = 0  # requests at the beginning of the batch that have a preferred size together
        while size < self._max:
            left_ns = due_ns - self._clock()
            if size in self._preferred:
                preferred = len(batch)
            try:
                # without time left, and with a preferred size, what waits already is still taken
                waiting = self._take(waiters, max(0, left_ns) if not preferred else 0)
            except Empty:
                break
            if waiting is None:
                break
            if self._wanted is not None and not self._wanted(waiting):
                continue
            size += self._inputs(waiting)
            if size > self._max:
                self._put_back.appendleft(waiting)
                break
            batch.append(waiting)
        if preferred and size != self._max and self._clock() < due_ns:
            self._put_back.extendleft(reversed(batch[preferred:]))
            del batch[preferred:]
        return batch

    def _first(self, waiters: Waiters[_Waiting]) -> _Waiting | None:
        while (waiting := self._take(waiters, None)) is not None:
            if self._wanted is None or self._wanted(waiting):
                return waiting
        return None

    def _take(self, waiters: Waiters[_Waiting], timeout_ns: int | None) -> _Waiting | None:
        """The next request, of those that were put back or of those that wait; None behind the last one."""
        if self._put_back:
            return self._put_back.popleft()
        if self._ended:
            return None
        block = timeout_ns is None or timeout_ns > 0
        waiting = waiters.get(block, None if timeout_ns is None else timeout_ns / _NS_PER_S)
        self._ended = waiting is None
        return waiting
