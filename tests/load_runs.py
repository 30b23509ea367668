"""Runs under load for tests: queries with given latencies, and simulated single-server queues."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from inferometer.evaluators.load.queries import Outcome, Queries

NS_PER_S = 1_000_000_000


def latencies(gaps: NDArray[np.float64], service: NDArray[np.float64]) -> NDArray[np.float64]:
    """Returns the latencies of queries that one server serves in order, beginning idle.

    Lindley's recursion, ``wait[n] = max(0, wait[n-1] + service[n-1] - gap[n])``, as a running minimum.

    Args:
        gaps: Between a query's arrival and the one before it; the first is not used.
        service: How long each takes, in the same unit.
    """
    walk = np.empty(len(service))
    walk[0] = 0.0
    np.cumsum(service[:-1] - gaps[1 : len(service)], out=walk[1:])
    found: NDArray[np.float64] = walk - np.minimum.accumulate(walk) + service
    return found


def run_of(
    scheduled_ns: object,
    latency_ns: object,
    outcome: object = None,
    *,
    lag_ns: int = 0,
    repeated: int = 0,
    **columns: object,
) -> Queries:
    """Returns a run; its queries were answered where ``outcome`` does not say otherwise."""
    scheduled = np.asarray(scheduled_ns, np.int64)
    none = np.full(len(scheduled), -1, np.int64)
    what = np.full(len(scheduled), Outcome.ANSWERED) if outcome is None else np.asarray(outcome, np.int64)
    done = np.where(
        np.isin(what, [Outcome.ANSWERED, Outcome.FAILED]), scheduled + np.asarray(latency_ns, np.int64), -1
    )
    sent = np.where(what == Outcome.UNSENT, -1, scheduled + lag_ns)
    rest = {"queue_ns": none, "predict_ns": none, "batch_size": np.zeros_like(scheduled)}
    rest |= {name: np.asarray(value, np.int64) for name, value in columns.items()}
    return Queries(scheduled, sent, done, what.astype(np.int64), repeated=repeated, **rest)


def simulated(
    random: np.random.Generator, load: float, count: int, *, exponential: bool, service_s: float = 0.01
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Returns when queries were due and their latencies: Poisson arrivals at one server, beginning idle."""
    gaps = random.exponential(service_s / load, count)
    service = random.exponential(service_s, count) if exponential else np.full(count, service_s)
    return (
        np.rint(np.cumsum(gaps) * NS_PER_S).astype(np.int64),
        np.rint(latencies(gaps, service) * NS_PER_S).astype(np.int64),
    )
