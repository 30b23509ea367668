"""The single-server model: how a system that serves one query after the other behaves at another rate.

Whether p99 at a rate is below a bound is decided by one query in a hundred, and late queries are bursty:
minutes of load give few bursts, and with them an answer that is off by several percent. But if a system
serves its queries one by one, in order, with service times that do not depend on what waits behind, every
query shows the service time, and the latencies at any rate follow from those times and the arrivals (Lindley
1952). ``served_queries`` extracts them from a run, ``SingleServer.fitted`` accepts them only if they are
consistent with such a system, and the answer rests on all queries rather than on the late ones.

Between a client and a server over a network, part of a query's time passes while the server is free for
another: on the wire, and while threads wake up. That delay shows in queries that found the server idle, but
not in the intervals at which queries that waited are done; the model treats it as a constant.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from inferometer.evaluators.load.arrivals import ArrivalProcess
from inferometer.evaluators.load.queries import Outcome, Queries
from inferometer.evaluators.statistics import random_state, t_quantile_95

SIMULATED_QUERIES = 400_000
GROUPS = 10
"""The number of groups of service times; their answers are compared to estimate the error."""
_LEAST_SERVICE_TIMES = 200
_BLOCK = 32
_DISORDERED_SHARE = 0.005
_TOLERATED_SHARE = 0.05
_TOLERATED_SIGMA = 3.5
_BATCHES = 20
_LEAST_BATCHES = 8
_LEAST_RUNS = 3
_LEAST_FOR_DELAY = 20
_MOST_DELAY = 0.5
_DELAY_ROUNDS = 4
_STEPS = 40
_NEAR = (0.98, 1.02)
_CLOSE_LOG = 0.005
_CLOSE_SHARE = 1e-4
_CLOSE_END = 0.1
_END_STEPS = 5
_LEAST_SLOPE = 0.5
_NS_PER_S = 1_000_000_000


@dataclass(frozen=True, slots=True, eq=False)
class ServedQueries:
    """The answered queries of a run, in the order in which they were sent.

    Attributes:
        sent_s: float64, n; when they were sent, so that no time includes the harness's own lag.
        free_s: float64, n; when all previous ones were done. The first one finds the system idle.
        done_s: float64, n; when they were done, moved back if an earlier one was done later.
        disordered: The number of queries that were done before one sent earlier.
    """

    sent_s: NDArray[np.float64]
    free_s: NDArray[np.float64]
    done_s: NDArray[np.float64]
    disordered: int

    def __len__(self) -> int:
        return len(self.sent_s)

    @property
    def backlog_s(self) -> NDArray[np.float64]:
        """float64, n; the time from when each query was sent until those before it were done, 0 or more."""
        return np.maximum(self.free_s - self.sent_s, 0.0)

    def service_s(self, delay_s: float = 0.0) -> NDArray[np.float64]:
        """Returns how long each query occupied a single server that serves in order: float64, n.

        During ``delay_s`` of a query's time, the server is free for others.
        """
        occupied_s: NDArray[np.float64] = self.done_s - np.maximum(self.sent_s + delay_s, self.free_s)
        return occupied_s


def served_queries(queries: Queries) -> ServedQueries:
    """Extracts the answered queries from a run."""
    answered = queries.chosen(queries.outcome == Outcome.ANSWERED)
    order = np.argsort(answered.sent_ns, kind="stable")
    sent, done = answered.sent_ns[order], answered.done_ns[order]
    disordered = int(np.count_nonzero(np.diff(done) < 0))
    done = np.maximum.accumulate(done)
    free = np.concatenate([sent[:1], done[:-1]])
    return ServedQueries(sent / _NS_PER_S, free / _NS_PER_S, done / _NS_PER_S, disordered)


@lru_cache(maxsize=2)  # every estimate of a search simulates the same arrivals
def _units(process: ArrivalProcess, count: int, seed: int) -> NDArray[np.float64]:
    units = process.units(count, seed)
    units.setflags(write=False)
    return units


@dataclass(frozen=True, slots=True)
class Speed:
    """How the mean service time varies from run to run, as fractions of the mean.

    If the speed of the machine changes, consecutive runs differ by more than their queries explain. That part
    of the variance is estimated by the method of moments (DerSimonian and Laird, "Meta-analysis in clinical
    trials", Controlled Clinical Trials 7, 1986).

    Attributes:
        half: Half of the 95 % interval of the mean over all runs; 0 if the runs do not differ.
        between_half: Half of the 95 % interval of one more run's mean, without the error of its own queries.
    """

    half: float = 0.0
    between_half: float = 0.0

    @classmethod
    def of(cls, runs: Sequence[NDArray[np.float64]]) -> Speed:
        """Compares the service times of runs; fewer than three are treated as not differing."""
        long = [run for run in runs if len(run) >= _BATCHES]
        if len(long) < _LEAST_RUNS:
            return cls()
        means = np.asarray([run.mean() for run in long])
        batches = ([part.mean() for part in np.array_split(run, _BATCHES)] for run in long)
        within = np.asarray([np.var(each, ddof=1) / _BATCHES for each in batches])
        weights = 1 / np.maximum(within, (_CLOSE_SHARE * means) ** 2)
        total = weights.sum()
        excess = float((weights * (means - np.average(means, weights=weights)) ** 2).sum()) - (len(means) - 1)
        between = max(0.0, excess / (total - (weights**2).sum() / total))
        if not between:
            return cls()
        both = 1 / (1 / weights + between)
        quantile = t_quantile_95(len(long) - 1) / float(np.average(means, weights=both))
        return cls(quantile / math.sqrt(both.sum()), quantile * math.sqrt(between))


class SingleServer:
    """A single server, simulated with known service times.

    Args:
        service_s: float64; the service times, in the order of observation.
        process: The arrival process.
        seed: The seed of the simulation.
        simulated: The number of queries to simulate.
        speed: How the mean service time varies from run to run.
        delay_s: The time that each query takes besides its service, while the server is free for others.
    """

    def __init__(
        self,
        service_s: NDArray[np.float64],
        process: ArrivalProcess,
        seed: int,
        simulated: int = SIMULATED_QUERIES,
        speed: Speed | None = None,
        delay_s: float = 0.0,
    ) -> None:
        self._service_s = service_s
        self._delay_s = delay_s
        self._speed = speed or Speed()
        self._process = process
        each = simulated // GROUPS
        self._units = _units(process, each * GROUPS, seed).reshape(GROUPS, each)
        random = random_state((seed, 1))
        block = min(_BLOCK, max(1, len(service_s) // GROUPS))
        bounds = np.linspace(0, len(service_s), GROUPS + 1).astype(np.int64)
        places = []
        for first, last in zip(bounds[:-1].tolist(), bounds[1:].tolist(), strict=True):
            starts = random.randint(first, max(first + 1, last - block + 1), -(-each // block))
            places.append((starts[:, None] + np.arange(block)).ravel()[:each])
        self._simulated_s = service_s[np.minimum(np.stack(places), len(service_s) - 1)]
        self._done_s = np.cumsum(self._simulated_s, axis=1)  # when each is done if the server never waits

    @classmethod
    def fitted(
        cls,
        runs: Sequence[ServedQueries],
        process: ArrivalProcess,
        seed: int,
        simulated: int = SIMULATED_QUERIES,
    ) -> SingleServer | None:
        """Returns the fitted model; None if the observations are too few or not those of a single server."""
        count = sum(map(len, runs))
        # two that are sent at nearly the same time may change places on the way
        if count < _LEAST_SERVICE_TIMES or sum(run.disordered for run in runs) > _DISORDERED_SHARE * count:
            return None
        backlog_s = np.concatenate([run.backlog_s for run in runs])
        delay_s = _delay_s(np.concatenate([run.service_s() for run in runs]), backlog_s)
        services_s = [run.service_s(delay_s) for run in runs]
        service_s = np.concatenate(services_s)
        waited, idle = backlog_s > delay_s, backlog_s <= 0
        long = waited & (backlog_s > np.median(backlog_s[waited])) if waited.any() else waited
        # queries must take as long whether or not they had to wait, and however long
        pairs = ((waited, idle), (long, waited & ~long), (waited, ~waited & ~idle))
        if not all(_alike(service_s, some, others) for some, others in pairs):
            return None
        return cls(service_s, process, seed, simulated, Speed.of(services_s), delay_s)

    @property
    def capacity_qps(self) -> float:
        """The rate above which the queue grows without bound."""
        return float(1 / self._service_s.mean())

    def late_fractions(self, rate_qps: float, bound_s: float) -> NDArray[np.float64]:
        """Returns the share of queries later than a bound, separately for each group of service times."""
        times_s = self._process.times_s(self._units, rate_qps)
        shares = []
        for arrivals_s, service_s, done_s in zip(times_s, self._simulated_s, self._done_s, strict=True):
            # Lindley's recursion, wait[n] = max(0, wait[n-1] + service[n-1] - gap[n]), as a running minimum,
            # with the sums over service times and gaps taken once and not at every rate
            walk = done_s - arrivals_s
            waits_end = walk - service_s
            walk -= np.minimum.accumulate(waits_end, out=waits_end)
            shares.append(np.count_nonzero(walk > bound_s - self._delay_s) / len(walk))
        return np.asarray(shares)

    def _end_qps(self, rate: float, guess: float, bound_s: float, late_fraction: float) -> float:
        """Returns an end of the interval; beyond it, the allowed share is outside the groups' t interval.

        Late queries in few groups, due to stalls that another run may not have, thus widen the interval.

        At ``rate``, the mean of the groups' shares equals ``late_fraction``; ``guess``, above or below it, is
        the end if shares were linear.
        """
        sign = -1.0 if guess > rate else 1.0

        def outside(at: float) -> float:
            if at <= 0:
                return sign
            shares = self.late_fractions(at, bound_s)
            error = float(shares.std(ddof=1)) / math.sqrt(GROUPS)
            return late_fraction - float(shares.mean()) - sign * t_quantile_95(GROUPS - 1) * error

        inner, outer, step = rate, guess, guess - rate
        for _ in range(_END_STEPS):
            if sign * outside(outer) > 0:
                break
            step *= 2
            inner, outer = outer, float(np.clip(outer + step, 0.0, self.capacity_qps))
        while abs(outer - inner) > max(_CLOSE_END * abs(outer - rate), _CLOSE_SHARE * rate):
            middle = (inner + outer) / 2
            if sign * outside(middle) > 0:
                outer = middle
            else:
                inner = middle
        return outer

    def solve(self, bound_s: float, late_fraction: float, near_qps: float | None = None) -> SolvedRate | None:
        """Returns the rate at which a share of the queries, above 0, is later than a bound.

        A guess, ``near_qps``, saves simulations. Returns None if even queries that never wait are late too
        often.
        """
        if np.mean(self._service_s + self._delay_s > bound_s) >= late_fraction:
            return None
        floor = 1 / self._simulated_s.size
        low, high = 0.0, self.capacity_qps
        low_log, high_log = np.log(floor / late_fraction), np.log(1 / late_fraction)
        rate, shares = high, np.ones(GROUPS)
        for step in range(_STEPS):
            middle = (low + high) / 2
            secant = low + (high - low) * -low_log / (high_log - low_log)
            edge = 0.02 * (high - low)
            first = near_qps * _NEAR[step] if near_qps and step < len(_NEAR) else middle
            rate = float(np.clip(first if step < len(_NEAR) else secant, low + edge, high - edge))
            shares = self.late_fractions(rate, bound_s)
            found_log = np.log(max(float(shares.mean()), floor) / late_fraction)
            if abs(found_log) < _CLOSE_LOG or high - low < _CLOSE_SHARE * rate:
                break
            if found_log > 0:
                high, high_log = rate, found_log
            else:
                low, low_log = rate, found_log
        return self._with_error(rate, shares, bound_s, late_fraction)

    def _with_error(
        self, rate: float, shares: NDArray[np.float64], bound_s: float, late_fraction: float
    ) -> SolvedRate:
        """Returns the rate with its error, derived from the spread of the groups' shares and the slope."""
        step = 0.02
        above, below = (float(self.late_fractions(rate * (1 + s), bound_s).mean()) for s in (step, -step))
        floor = 1 / self._simulated_s.size
        slope = (np.log(max(above, floor)) - np.log(max(below, floor))) / (2 * step)
        mean = max(float(shares.mean()), floor)
        share_error = float(shares.std(ddof=1)) / np.sqrt(GROUPS) / mean
        slope = max(slope, _LEAST_SLOPE)
        spread = share_error * np.sqrt(self._simulated_s.size)
        quantile = t_quantile_95(GROUPS - 1)
        # a server that is slower by a part keeps the bound up to a rate that is lower by as much
        error = max(share_error / slope, self._speed.half / quantile, _CLOSE_SHARE)
        half, speed_qps = quantile * rate * error, rate * self._speed.half
        return SolvedRate(
            rate_qps=rate,
            error_qps=float(rate * error),
            low_qps=min(
                self._end_qps(rate, max(rate - half, 0.0), bound_s, late_fraction), max(rate - speed_qps, 0.0)
            ),
            high_qps=max(self._end_qps(rate, rate + half, bound_s, late_fraction), rate + speed_qps),
            slope=float(slope),
            spread=float(spread),
            between_qps=rate * self._speed.between_half,
        )


@dataclass(frozen=True, slots=True)
class SolvedRate:
    """A rate at which a given share of the queries is late.

    Attributes:
        rate_qps: The rate.
        error_qps: Its standard error, based on how much the groups of service times differ.
        low_qps: The lower end of its 95 % interval.
        high_qps: The upper end of that interval.
        slope: The slope of the logarithm of the share against the logarithm of the rate.
        spread: This divided by √n is the relative standard error of the share that n queries show at that
            rate. Because late queries are bursty, it is more than 1 / √share.
        between_qps: Half of the 95 % interval of one more run's rate, based on how much runs differ.
    """

    rate_qps: float
    error_qps: float
    low_qps: float
    high_qps: float
    slope: float
    spread: float
    between_qps: float = 0.0


def _delay_s(service_s: NDArray[np.float64], backlog_s: NDArray[np.float64]) -> float:
    """Returns how many seconds longer queries take that found the system idle than those that had to wait.

    It is 0 if there are too few queries, or if the difference is too large for a delay: more than half of a
    service time. The service times are those without a delay.
    """
    idle = backlog_s <= 0
    delay_s = 0.0
    for _ in range(_DELAY_ROUNDS):  # those that waited for less than the delay did not wait at the server
        waited = backlog_s > delay_s
        if min(np.count_nonzero(idle), np.count_nonzero(waited)) < _LEAST_FOR_DELAY:
            return 0.0
        served_s = float(service_s[waited].mean())
        delay_s = max(float(service_s[idle].mean()) - served_s, 0.0)
    return delay_s if delay_s <= _MOST_DELAY * served_s else 0.0


def _alike(service_s: NDArray[np.float64], some: NDArray[np.bool_], others: NDArray[np.bool_]) -> bool:
    """Returns whether two kinds of queries take equally long, within a tolerance or chance (batch means)."""
    differences = []
    for part in np.array_split(np.arange(len(service_s)), _BATCHES):
        first, second = part[some[part]], part[others[part]]
        if len(first) and len(second):
            differences.append(service_s[first].mean() - service_s[second].mean())
    if len(differences) < _LEAST_BATCHES:
        return True
    found = np.asarray(differences)
    error = found.std(ddof=1) / np.sqrt(len(found))
    allowed = max(_TOLERATED_SHARE * float(service_s.mean()), _TOLERATED_SIGMA * float(error))
    return bool(abs(found.mean()) <= allowed)
