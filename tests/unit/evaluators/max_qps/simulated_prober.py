"""Systems that serve queries in virtual time, and the prober that loads them instead of a load session."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
from load_runs import latencies
from numpy.typing import NDArray

from inferometer.evaluators.load.arrivals import Schedule
from inferometer.evaluators.load.queries import LoadRun, Outcome, Queries, Stop

Floats = NDArray[np.float64]
System = Callable[[Floats, np.random.RandomState], Floats]
"""Takes when queries arrive, and returns when each is done, in seconds; infinity for never."""


def deterministic(service_s: float) -> System:
    def serve(arrivals_s: Floats, random: np.random.RandomState) -> Floats:
        gaps = np.diff(arrivals_s, prepend=0.0)
        return arrivals_s + latencies(gaps, np.full(len(arrivals_s), service_s))

    return serve


def exponential(service_s: float) -> System:
    def serve(arrivals_s: Floats, random: np.random.RandomState) -> Floats:
        service = random.standard_exponential(len(arrivals_s)) * service_s
        return arrivals_s + latencies(np.diff(arrivals_s, prepend=0.0), service)

    return serve


def hesitant(service_s: float, idle_s: float, stall_s: float) -> System:
    """Takes twice as long for a query after having been idle for a time, and stalls once in 500 queries."""

    def serve(arrivals_s: Floats, random: np.random.RandomState) -> Floats:
        stalls_s = np.where(random.random_sample(len(arrivals_s)) < 0.002, stall_s, 0.0).tolist()
        done, now = np.empty(len(arrivals_s)), -np.inf
        for number, arrival in enumerate(arrivals_s.tolist()):
            slower = 1 + (arrival - now >= idle_s)
            now = done[number] = max(arrival, now) + slower * service_s + stalls_s[number]
        return done

    return serve


def two_servers(service_s: float) -> System:
    """One queue before two servers, each of which takes as long for every query.

    Queries are then done in order, so that each server takes every other one.
    """
    one = deterministic(service_s)

    def serve(arrivals_s: Floats, random: np.random.RandomState) -> Floats:
        done = np.empty(len(arrivals_s))
        for server in (slice(0, None, 2), slice(1, None, 2))[: len(arrivals_s)]:
            done[server] = one(arrivals_s[server], random)
        return done

    return serve


def batching(each_s: float, query_s: float, most: int) -> System:
    """Serves all that wait at once, up to ``most``: a batch of n takes ``each_s + n * query_s``."""

    def serve(arrivals_s: Floats, random: np.random.RandomState) -> Floats:
        done = np.empty(len(arrivals_s))
        arrivals = arrivals_s.tolist()
        first, now = 0, 0.0
        while first < len(arrivals):
            now = max(now, arrivals[first])
            last = bisect_right(arrivals, now, first, min(first + most, len(arrivals)))
            now += each_s + (last - first) * query_s
            done[first:last] = now
            first = last
        return done

    return serve


def losing(system: System, share: float) -> System:
    """Never answers a share of its queries."""

    def serve(arrivals_s: Floats, random: np.random.RandomState) -> Floats:
        lost = random.random_sample(len(arrivals_s)) < share
        return np.where(lost, np.inf, system(arrivals_s, random))

    return serve


@dataclass
class SimulatedProber:
    """Runs schedules on a system in virtual time, beginning idle, as a ``LoadSession``.

    Attributes:
        system: What serves.
        seed: Of what the system draws.
        lags_above_qps: From this rate on the harness lags.
        lag_s: By how much it then sends each query too late.
        lost: What becomes of queries that are never answered.
        connections: By how much the speed of the system differs between connections (standard deviation).
        machine: By how much it is faster than usual all along.
    """

    system: System
    seed: int = 0
    lags_above_qps: float = np.inf
    lag_s: float = 0.2
    lost: Outcome = Outcome.TIMED_OUT
    connections: float = 0.0
    machine: float = 0.0

    def __post_init__(self) -> None:
        self.elapsed_s = 0.0
        self.runs: list[LoadRun] = []
        self._random = np.random.RandomState(self.seed)
        self._speeds = np.random.RandomState(self.seed + 1)
        self.reconnect()

    def reconnect(self) -> None:
        self._speed = 1 + self.machine + self.connections * self._speeds.standard_normal()

    def run(self, schedule: Schedule, bound_ns: int, max_late: int, name: str) -> LoadRun:
        due = schedule.offsets_ns
        lags = schedule.rate_qps > self.lags_above_qps
        sent = due + round(self.lag_s * 1e9) if lags else due
        done_s = self.system(sent / 1e9 * self._speed, self._random) / self._speed
        answered = np.isfinite(done_s)
        done = np.where(answered, np.rint(np.where(answered, done_s, 0) * 1e9), -1).astype(np.int64)
        nothing = np.full(len(due), -1, np.int64)
        outcome = np.where(answered, Outcome.ANSWERED, self.lost).astype(np.int64)
        queries = Queries(due, sent, done, outcome, nothing, nothing, np.zeros(len(due), np.int64))
        late_ns = np.sort(due[queries.latency_ns > bound_ns] + bound_ns)
        stopped = len(late_ns) > max_late
        end_ns = int(max(done.max(), due[-1]))
        if stopped:
            end_ns = int(late_ns[max_late])
            queries = ended(queries, end_ns)
        self.elapsed_s += end_ns / 1e9
        stop = Stop.HOPELESS if stopped else Stop.COMPLETE
        source, seed = schedule.source, schedule.seed
        run = LoadRun(schedule.rate_qps, source, seed, "", queries, stopped=stop.value)
        self.runs.append(run)
        return run


def ended(queries: Queries, end_ns: int) -> Queries:
    """What is known of queries at a time."""
    sent = queries.scheduled_ns <= end_ns
    known = sent & (queries.done_ns >= 0) & (queries.done_ns <= end_ns)
    gone = sent & (queries.done_ns < 0)
    outcome = np.select([~sent, known | gone], [Outcome.UNSENT, queries.outcome], Outcome.WAITING)
    return replace(
        queries,
        sent_ns=np.where(sent & (queries.sent_ns <= end_ns), queries.sent_ns, -1),
        done_ns=np.where(known, queries.done_ns, -1),
        outcome=outcome.astype(np.int64),
    )
