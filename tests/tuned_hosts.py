"""Hosts whose service times are known, and the prober that tunes them in virtual time."""

from __future__ import annotations

import heapq
import math
from bisect import bisect_right
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import product
from typing import Any

import numpy as np

from inferometer.agent.inference.session import SessionOptions
from inferometer.evaluators.jobs.job import SystemRequest
from inferometer.evaluators.kinds.tuning.figures import Trial, TuningMeasurement
from inferometer.evaluators.kinds.tuning.race import Race
from inferometer.evaluators.kinds.tuning.request import Configuration, TuningRequest
from inferometer.evaluators.load.arrivals import Schedule
from inferometer.evaluators.load.queries import LoadRun, Outcome, Queries, Stop

OPENING_S = 0.1
NS_PER_S = 1_000_000_000


@dataclass(frozen=True)
class Host:
    """A model on a host.

    Attributes:
        cores: The cores.
        fixed_s: The part of a batch's time that does not depend on its size, with one thread.
        query_s: The time of a query beyond that.
        parallel: The share of the time that threads divide among them (Amdahl).
        sharing: By how much each further instance slows down all of them.
        noise: The standard deviation of the logarithm of a batch's time.
        idle_watts: Its power without work.
        core_watts: What each thread adds during a batch.
    """

    cores: int
    fixed_s: float
    query_s: float
    parallel: float = 0.5
    sharing: float = 0.0
    noise: float = 0.05
    idle_watts: float = 20.0
    core_watts: float = 10.0

    @classmethod
    def drawn(cls, seed: int) -> Host:
        """A host at random."""
        random = np.random.RandomState(1000 + seed)
        return cls(
            int(random.choice([2, 4, 8])),
            10 ** random.uniform(-3.5, -2.3),
            10 ** random.uniform(-4, -2.7),
            random.uniform(0.4, 0.97),
            random.uniform(0, 0.12),
            random.uniform(0.02, 0.2),
        )

    def bound_ms(self, seed: int) -> float:
        """A latency bound for this host, a few times a query's own time."""
        factor = float(np.random.RandomState(seed).choice([4, 10, 30]))
        return min(max(1e3 * factor * (self.fixed_s + self.query_s), 5.0), 200.0)

    def batch_s(self, configuration: Configuration, size: int) -> float:
        """The median time of a batch."""
        threads = configuration.threads or 1
        scaling = (1 - self.parallel) + self.parallel / threads
        busy = max(1.0, configuration.instances * threads / self.cores)
        shared = 1 + self.sharing * (configuration.instances - 1)
        cast = 0.6 if configuration.precision == "bfloat16" else 1.0
        return (self.fixed_s + self.query_s * size) * scaling * busy * shared * cast


class SimulatedProber:
    """Serves a host's model in virtual time, and loads it as ``LoadSession`` does.

    Args:
        host: The host.
        seed: Of the noise.
        interrupted_after: The number of runs after which a stop is requested; None for never.
    """

    def __init__(self, host: Host, seed: int = 0, interrupted_after: int | None = None) -> None:
        self.elapsed_s = 0.0
        self.runs: list[LoadRun] = []
        self.used: list[Configuration] = []
        self.watts = 0.0  # the mean power during the last run
        self._host = host
        self._random = np.random.RandomState(seed)
        self._interrupted_after = interrupted_after

    def use(self, c: Configuration) -> str:
        if c.instances * (c.threads or 1) > 2 * self._host.cores:
            return "there is no room"
        if not self.used or c != self.used[-1]:
            self.elapsed_s += OPENING_S
        self.used.append(c)
        self._batch_s = [self._host.batch_s(c, size) for size in range(c.max_batch_size + 1)]
        return ""

    def reconnect(self) -> None:
        """There is no connection."""

    def read_peak_bytes(self) -> int:
        """The peak of the memory since the last call, which is not simulated."""
        return 0

    def keep(self, run: LoadRun, elapsed_s: float) -> None:
        """Keeps a run of an earlier session."""
        self.runs.append(run)
        self.elapsed_s = elapsed_s

    def run(
        self, schedule: Schedule, bound_ns: int | None = None, max_late: int | None = None, name: str = ""
    ) -> LoadRun:
        due = schedule.offsets_ns
        done, late_ns = self._served(due, bound_ns, max_late)
        outcome = np.full(len(due), int(Outcome.ANSWERED), np.int64)
        end_ns, stop = int(done.max()), Stop.COMPLETE
        if max_late is not None and len(late_ns) > max_late:
            end_ns, stop = int(late_ns[max_late]), Stop.HOPELESS
            known = (done >= 0) & (done <= end_ns)
            outcome = np.where(known, outcome, int(Outcome.WAITING))
            done = np.where(known, done, -1)
        if len(self.runs) == self._interrupted_after:
            stop = Stop.INTERRUPTED
        nothing = np.full(len(due), -1, np.int64)
        queries = Queries(due, due.copy(), done, outcome, nothing, nothing, np.zeros_like(due), repeated=0)
        sent = queries.chosen(due <= end_ns)
        self.elapsed_s += end_ns / NS_PER_S
        busy = self._busy_s * (self.used[-1].threads or 1) * NS_PER_S / end_ns
        self.watts = self._host.idle_watts + self._host.core_watts * busy
        self.runs.append(
            LoadRun(
                *(schedule.rate_qps, schedule.source, schedule.seed, schedule.checksum, sent),
                stopped=stop.value,
            )
        )
        return self.runs[-1]

    def _served(self, due: np.ndarray, bound_ns: int | None, max_late: int | None) -> tuple[np.ndarray, ...]:
        """When each query is done in ns, or -1 behind those that end the run; and when queries are late."""
        c, arrivals, count = self.used[-1], (due / NS_PER_S).tolist(), len(due)
        most, delay_s = c.max_batch_size, c.max_queue_delay_ms / 1e3
        noise = np.exp(self._host.noise * self._random.standard_normal(count)).tolist()
        free, done = [0.0] * c.instances, np.full(count, -1.0)
        bound_s = math.inf if bound_ns is None else bound_ns / NS_PER_S
        first = number = late = 0
        self._busy_s = 0.0
        while first < count and (max_late is None or late <= max_late):
            begin = max(free[0], arrivals[first])
            if delay_s:
                full = arrivals[first + most - 1] if first + most <= count else math.inf
                begin = max(begin, min(arrivals[first] + delay_s, full))
            last = bisect_right(arrivals, begin, first, min(first + most, count))
            end = begin + self._batch_s[last - first] * noise[number]
            heapq.heapreplace(free, end)
            self._busy_s += end - begin
            done[first:last] = end
            if end - arrivals[first] > bound_s:
                late += sum(end - arrival > bound_s for arrival in arrivals[first:last])
            first, number = last, number + 1
        done_ns = np.where(done < 0, -1, np.rint(done * NS_PER_S)).astype(np.int64)
        if bound_ns is None:
            return done_ns, np.empty(0, np.int64)
        return done_ns, np.sort(due[(done_ns >= 0) & (done_ns - due > bound_ns)] + bound_ns)


def race_of(
    request: TuningRequest, space: Iterable[Configuration], prober: Any, limit_qps: float = math.inf
) -> Race:
    """The race of configurations that a prober serves."""
    return Race(request, map(Trial, space), prober, limit_qps)


def request_of(seed: int, latency_bound_ms: float, **options: object) -> TuningRequest:
    """The request to tune a model with a seed."""
    system = SystemRequest(session=SessionOptions(seed=seed))
    values = {"time_budget_s": 86_400.0, **options}
    return TuningRequest(system=system, latency_bound_ms=latency_bound_ms, **values)  # type: ignore[arg-type]


def tuned_host(*, whole: bool = True, **options: object) -> TuningMeasurement:
    """The tuning of a host with four configurations in each precision.

    Of one that is not ``whole``, it has the first 13 runs.
    """
    request = request_of(0, 60.0, max_batch_size=(1, 8), **options)
    axes = product(request.precisions, (1, 2), (1, 8))
    space = [Configuration(count, 1, size, 0.0, precision) for precision, count, size in axes]
    prober = SimulatedProber(Host(2, 0.004, 0.001), interrupted_after=None if whole else 12)
    race = race_of(request, space, prober)
    assert race.run() is whole
    answer = race.answer() if whole else None
    load, runs = request.load.load_options(), tuple(prober.runs)
    return TuningMeasurement(load, runs, 7, answer, race.trials(), request.asked)


def highest_qps(
    host: Host, c: Configuration, bound_ms: float, queries: int, near_qps: float | None = None, seed: int = 5
) -> float:
    """The highest rate at which one query in a hundred is later than the bound, by bisection to 0.3 %."""
    units = np.random.RandomState(seed).standard_exponential(queries).cumsum()
    sizes = range(1, c.max_batch_size + 1)
    high = 1.05 * max(c.instances * size / host.batch_s(c, size) for size in sizes)
    low = high / 200
    if near_qps is not None:
        low, high = 0.9 * near_qps, 1.1 * near_qps
    while high / low > 1.003:
        rate = math.sqrt(low * high)
        prober = SimulatedProber(host, seed)
        prober.use(c)
        schedule = Schedule(np.rint(units / rate * NS_PER_S).astype(np.int64), "units", rate, seed)
        broken = prober.run(schedule, round(bound_ms * 1e6), queries // 100).stopped
        low, high = (low, rate) if broken else (rate, high)
    return math.sqrt(low * high)
