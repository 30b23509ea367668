"""Dynamic batching: which of the queries that wait are predicted together, and when their batch begins."""

from __future__ import annotations

from collections.abc import Callable
from queue import Empty
from typing import Protocol, TypeAlias

from manifests.errors import ConfigurationError

Waiting: TypeAlias = tuple[int, int]
"""A query that waits: its number, and when it came, in nanoseconds."""
_NS_PER_S = 1_000_000_000
_NS_PER_MS = 1_000_000


class Waiters(Protocol):
    """The queries that wait, in the order in which they came, and a None behind the last one."""

    def get(self, block: bool = True, timeout: float | None = None) -> Waiting | None:
        """Takes the next one, and waits for it for ``timeout`` seconds, or with None without end.

        Raises:
            Empty: None came.
        """
        ...


class Batcher:
    """Puts batches together, for one thread.

    A batch begins as soon as ``max_batch_size`` queries wait, or the first of them has waited for
    ``max_queue_delay_ms``: with 0 the queries that wait when the model is free. A batch that is not full by
    then begins on time, and batches of one query never wait for another.

    Args:
        max_batch_size: The most queries of a batch.
        max_queue_delay_ms: How long the first query of a batch waits for others, in milliseconds.
        clock: The clock by which queries came, in nanoseconds.

    Raises:
        ConfigurationError: There is room for no query, or the delay is negative.
    """

    def __init__(self, max_batch_size: int, max_queue_delay_ms: float, clock: Callable[[], int]) -> None:
        if max_batch_size < 1:
            raise ConfigurationError(f"max_batch_size is {max_batch_size}; it must be at least 1")
        if not 0 <= max_queue_delay_ms < float("inf"):
            raise ConfigurationError(f"max_queue_delay_ms is {max_queue_delay_ms:g}; it must be at least 0")
        self._max_batch_size = max_batch_size
        self._delay_ns = round(max_queue_delay_ms * _NS_PER_MS)
        self._clock = clock
        self._ended = False

    def next(self, waiters: Waiters) -> list[Waiting] | None:
        """Waits for the next batch; None once there is no other.

        Where no more queries come, a batch that is not full waits for none.
        """
        first = None if self._ended else waiters.get()
        self._ended = False
        if first is None:
            return None
        batch = [first]
        if self._max_batch_size == 1:
            return batch
        due_ns = first[1] + self._delay_ns
        while len(batch) < self._max_batch_size:
            left_ns = due_ns - self._clock()
            try:
                # without time left, what waits already is still taken
                waiting = waiters.get(left_ns > 0, max(0, left_ns) / _NS_PER_S)
            except Empty:
                return batch
            if waiting is None:
                self._ended = True
                return batch
            batch.append(waiting)
        return batch
