"""How many requests each client may send in a second: a bucket of tokens for each."""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass

MAX_CLIENTS = 10_000
"""Clients that are remembered; with one more, the one that asked for nothing for the longest is forgotten."""


@dataclass(slots=True)
class _Bucket:
    tokens: float
    at_s: float


class TokenBuckets:
    """A bucket of tokens for each client, which fills at a steady rate. Thread-safe.

    Args:
        rate: Tokens that come into a bucket in a second.
        burst: What a bucket holds at the most, and at first.
        clock: A monotonic clock in seconds.
    """

    def __init__(self, rate: float, burst: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._rate = rate
        self._burst = max(1.0, burst)
        self._clock = clock
        self._lock = threading.Lock()
        self._buckets: OrderedDict[str, _Bucket] = OrderedDict()

    def __len__(self) -> int:
        """The number of clients that are remembered."""
        with self._lock:
            return len(self._buckets)

    def take(self, client: str) -> float:
        """Takes a token.

        Returns:
            0 where there was one; else the seconds until there is one, and nothing was taken.
        """
        with self._lock:
            bucket = self._filled(client)
            if bucket.tokens >= 1:
                bucket.tokens -= 1
                return 0.0
            return (1 - bucket.tokens) / self._rate

    def reserve(self, client: str) -> float:
        """Takes a token in advance; returns the seconds until it is there, which the caller is to wait."""
        with self._lock:
            bucket = self._filled(client)
            bucket.tokens -= 1
            return max(0.0, -bucket.tokens / self._rate)

    def _filled(self, client: str) -> _Bucket:
        now_s = self._clock()
        bucket = self._buckets.get(client)
        if bucket is None:
            if len(self._buckets) >= MAX_CLIENTS:
                self._buckets.popitem(last=False)
            bucket = self._buckets[client] = _Bucket(self._burst, now_s)
        self._buckets.move_to_end(client)
        bucket.tokens = min(self._burst, bucket.tokens + (now_s - bucket.at_s) * self._rate)
        bucket.at_s = now_s
        return bucket
