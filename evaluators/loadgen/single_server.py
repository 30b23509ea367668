"""The single-server model: what a system that serves one query after the other does at another rate.

Whether p99 at a rate is below a bound is decided by one query in a hundred, and late queries come in
bunches: minutes of load give few bunches, and with them an answer that is off by several percent. But where a
system serves its queries one by one, in order, and takes as long for each whatever waits behind it, every
query tells how long one takes, and the latencies at any rate follow from those times and the arrivals
(Lindley 1952). ``service_times`` takes the times out of a run, ``SingleServer.fitted`` accepts them only if
they look as they must in such a system, and the answer rests on all queries rather than on the late ones.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from evaluators.loadgen.arrivals import ArrivalProcess
from evaluators.loadgen.queries import Outcome, Queries

SIMULATED_QUERIES = 400_000
GROUPS = 10
"""Groups of service times whose answers are compared for the error of the whole."""
_LEAST_SERVICE_TIMES = 200
_BLOCK = 32
_OUT_OF_ORDER_SHARE = 0.002
_TOLERATED_SHARE = 0.05
_TOLERATED_SIGMA = 3.5
_BATCHES = 20
_LEAST_BATCHES = 8
_STEPS = 40
_NEAR = (0.98, 1.02)
_CLOSE_LOG = 0.005
_CLOSE_SHARE = 1e-4
_LEAST_SLOPE = 0.5
_NS_PER_S = 1_000_000_000


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


@dataclass(frozen=True, slots=True, eq=False)
class ServiceTimes:
    """How long the queries of a run took by themselves, if one server served them in order.

    Attributes:
        service_s: float64; from the later of its arrival and the end of the one before it to its end.
        waited: bool; whether the one before it was still being served when it came.
        backlog_s: float64; how long it had to wait.
        in_order: Whether the queries ended in the order in which they came.
    """

    service_s: NDArray[np.float64]
    waited: NDArray[np.bool_]
    backlog_s: NDArray[np.float64]
    in_order: bool


def service_times(queries: Queries) -> ServiceTimes:
    """Takes the service times out of a run's answered queries; see ``ServiceTimes``.

    They count from when a query was sent, so that the harness's own delay is in none.
    """
    answered = queries.chosen(queries.outcome == Outcome.ANSWERED)
    order = np.argsort(answered.sent_ns, kind="stable")
    sent, done = answered.sent_ns[order], answered.done_ns[order]
    if not len(sent):
        return ServiceTimes(np.empty(0), np.empty(0, np.bool_), np.empty(0), in_order=False)
    disordered = np.count_nonzero(np.diff(done) < 0)
    done = np.maximum.accumulate(done)
    free = np.concatenate([sent[:1], done[:-1]])
    begun = np.maximum(sent, free)
    return ServiceTimes(
        service_s=(done - begun) / _NS_PER_S,
        waited=free > sent,
        backlog_s=(begun - sent) / _NS_PER_S,
        in_order=disordered <= _OUT_OF_ORDER_SHARE * len(sent),
    )


class SingleServer:
    """A server with known service times, simulated.

    Args:
        service_s: float64; service times in the order in which they were seen.
        process: How queries arrive.
        seed: Of the simulation.
        simulated: How many queries are simulated.
    """

    def __init__(
        self,
        service_s: NDArray[np.float64],
        process: ArrivalProcess,
        seed: int,
        simulated: int = SIMULATED_QUERIES,
    ) -> None:
        self._service_s = service_s
        self._process = process
        each = simulated // GROUPS
        self._units = process.units(each * GROUPS, seed).reshape(GROUPS, each)
        random = np.random.RandomState(np.random.MT19937(np.random.SeedSequence((seed, 1))))
        block = min(_BLOCK, max(1, len(service_s) // GROUPS))
        bounds = np.linspace(0, len(service_s), GROUPS + 1).astype(np.int64)
        places = []
        for first, last in zip(bounds[:-1].tolist(), bounds[1:].tolist(), strict=True):
            starts = random.randint(first, max(first + 1, last - block + 1), -(-each // block))
            places.append((starts[:, None] + np.arange(block)).ravel()[:each])
        self._simulated_s = service_s[np.minimum(np.stack(places), len(service_s) - 1)]

    @classmethod
    def fitted(
        cls,
        runs: Sequence[ServiceTimes],
        process: ArrivalProcess,
        seed: int,
        simulated: int = SIMULATED_QUERIES,
    ) -> SingleServer | None:
        """Returns the model of what was seen; None where it is too little, or not of a single server."""
        service_s = np.concatenate([run.service_s for run in runs])
        if len(service_s) < _LEAST_SERVICE_TIMES or not all(run.in_order for run in runs):
            return None
        waited = np.concatenate([run.waited for run in runs])
        backlog_s = np.concatenate([run.backlog_s for run in runs])
        if not _independent(service_s, waited, backlog_s):
            return None
        return cls(service_s, process, seed, simulated)

    @property
    def capacity_qps(self) -> float:
        """The rate above which the queue grows without end."""
        return float(1 / self._service_s.mean())

    def late_shares(self, rate_qps: float, bound_s: float) -> NDArray[np.float64]:
        """Returns the share of queries later than a bound, by each group of service times by itself."""
        times_s = self._process.times_s(self._units, rate_qps)
        shares = []
        for arrivals_s, service_s in zip(times_s, self._simulated_s, strict=True):
            gaps_s = np.diff(arrivals_s, prepend=0.0)
            shares.append(np.mean(latencies(gaps_s, service_s) > bound_s))
        return np.asarray(shares)

    def solve(self, bound_s: float, late_share: float, near_qps: float | None = None) -> SolvedRate | None:
        """Returns the rate at which a share of the queries is later than a bound.

        Args:
            bound_s: The bound.
            late_share: The share, above 0.
            near_qps: Where the rate is thought to be, which saves simulations; None where that is not known.

        Returns:
            None where even queries that never wait are too often late.
        """
        if np.mean(self._service_s > bound_s) >= late_share:
            return None
        floor = 1 / self._simulated_s.size
        low, high = 0.0, self.capacity_qps
        low_log, high_log = np.log(floor / late_share), np.log(1 / late_share)
        rate, shares = high, np.ones(GROUPS)
        for step in range(_STEPS):
            middle = (low + high) / 2
            secant = low + (high - low) * -low_log / (high_log - low_log)
            edge = 0.02 * (high - low)
            first = near_qps * _NEAR[step] if near_qps and step < len(_NEAR) else middle
            rate = float(np.clip(first if step < len(_NEAR) else secant, low + edge, high - edge))
            shares = self.late_shares(rate, bound_s)
            found_log = np.log(max(float(shares.mean()), floor) / late_share)
            if abs(found_log) < _CLOSE_LOG or high - low < _CLOSE_SHARE * rate:
                break
            if found_log > 0:
                high, high_log = rate, found_log
            else:
                low, low_log = rate, found_log
        return self._with_error(rate, shares, bound_s)

    def _with_error(self, rate: float, shares: NDArray[np.float64], bound_s: float) -> SolvedRate:
        """The rate with the error that the groups' shares differ by, through the slope of the share."""
        step = 0.02
        above, below = (float(self.late_shares(rate * (1 + s), bound_s).mean()) for s in (step, -step))
        floor = 1 / self._simulated_s.size
        slope = (np.log(max(above, floor)) - np.log(max(below, floor))) / (2 * step)
        mean = max(float(shares.mean()), floor)
        share_error = float(shares.std(ddof=1)) / np.sqrt(GROUPS) / mean
        slope = max(slope, _LEAST_SLOPE)
        spread = share_error * np.sqrt(self._simulated_s.size)
        return SolvedRate(rate, float(rate * share_error / slope), float(slope), float(spread))


@dataclass(frozen=True, slots=True)
class SolvedRate:
    """A rate at which a share of the queries is late.

    Attributes:
        rate_qps: The rate.
        error_qps: Its standard error, by how much the groups of service times differ.
        slope: By how much the logarithm of the share grows with that of the rate.
        spread: The standard error of the share that n queries show at that rate, as a part of it, is this
            over the root of n. Late queries come in bunches, so it is more than 1 / root of the share.
    """

    rate_qps: float
    error_qps: float
    slope: float
    spread: float


def _independent(
    service_s: NDArray[np.float64], waited: NDArray[np.bool_], backlog_s: NDArray[np.float64]
) -> bool:
    """Whether queries take as long whether or not they had to wait, and however long."""
    halves = waited & (backlog_s > np.median(backlog_s[waited])) if waited.any() else waited
    return _alike(service_s, waited, ~waited) and _alike(service_s, halves, waited & ~halves)


def _alike(service_s: NDArray[np.float64], some: NDArray[np.bool_], others: NDArray[np.bool_]) -> bool:
    """Whether two kinds of queries take the same time, up to a tolerance or to chance (batch means)."""
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
