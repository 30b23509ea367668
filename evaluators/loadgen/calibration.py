"""Calibration: up to which rate this machine sends queries on time, and whether a load is within that."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from evaluators.loadgen.arrivals import Extent, PoissonArrivals
from evaluators.loadgen.issuer import frozen_heap, run_open_loop
from evaluators.loadgen.null_target import NullTarget
from evaluators.loadgen.schedule import Schedule
from evaluators.statistics import percentile
from manifests.errors import ConfigurationError

LAG_P99_NS = 1_000_000
ALLOWED_SHARE = 0.5
"""The share of the ceiling that a load may be: with a target that works, less can be sent."""
LEAST_QPS = 1000.0
"""The lowest ceiling. Sending takes some 10 µs: what delays queries that are 1 ms apart is other work on the
machine and not the rate, and runs that it spoils are marked invalid."""
_FIRST_QPS = 16_000.0
_MOST_QPS = 128_000.0
_RUN_S = 0.05
_TRIES = 2
_BUDGET_S = 0.9
_NS_PER_S = 1_000_000_000


@dataclass(frozen=True, slots=True)
class Ceiling:
    """What this machine can send.

    Attributes:
        rate_qps: The highest rate that was found to be sent with the lag's p99 below 1 ms.
        lag_p99_ns: The 99th percentile of the lag at that rate; None where only ``LEAST_QPS`` is left.
    """

    rate_qps: float
    lag_p99_ns: float | None


def calibrate(
    clock: Callable[[], int] = time.perf_counter_ns, sleep: Callable[[float], None] = time.sleep
) -> Ceiling:
    """Measures within a second what this machine can send, with the null target.

    Rates are doubled, or halved, until one can be sent and its double cannot, and then once divided between.
    A rate that cannot be sent is tried twice, because other work on the machine comes in bursts.
    """
    end_ns = clock() + round(_BUDGET_S * _NS_PER_S)

    def lag_p99_ns(rate_qps: float) -> float | None:
        """The lag at a rate, where it can be sent and there is time to try."""
        for seed in range(_TRIES):
            if clock() > end_ns:
                return None
            schedule = Schedule.drawn(PoissonArrivals(), rate_qps, Extent(_RUN_S), seed)
            run = run_open_loop(NullTarget(clock), schedule, timeout_ms=1000, clock=clock, sleep=sleep)
            if (found_ns := percentile(run.queries.lag_ns, 99)) < LAG_P99_NS:
                return found_ns
        return None

    with frozen_heap():
        lag_p99_ns(LEAST_QPS)
        rate_qps, found_ns = _FIRST_QPS, lag_p99_ns(_FIRST_QPS)
        if found_ns is None:
            while found_ns is None and rate_qps > 2 * LEAST_QPS:
                rate_qps /= 2
                found_ns = lag_p99_ns(rate_qps)
        else:
            while rate_qps < _MOST_QPS and (more_ns := lag_p99_ns(2 * rate_qps)) is not None:
                rate_qps, found_ns = 2 * rate_qps, more_ns
        if found_ns is None:
            return Ceiling(LEAST_QPS, None)
        between_qps = rate_qps * math.sqrt(2)
        if rate_qps < _MOST_QPS and (between_ns := lag_p99_ns(between_qps)) is not None:
            return Ceiling(between_qps, between_ns)
        return Ceiling(rate_qps, found_ns)


def peak_qps(schedule: Schedule) -> float:
    """Returns the rate in a schedule's busiest second; where it is shorter, its mean rate."""
    offsets_ns = schedule.offsets_ns
    span_ns = int(offsets_ns[-1] - offsets_ns[0])
    if span_ns < _NS_PER_S:
        return max(schedule.rate_qps, (len(offsets_ns) - 1) * _NS_PER_S / span_ns if span_ns else 0.0)
    within = np.searchsorted(offsets_ns, offsets_ns + _NS_PER_S) - np.arange(len(offsets_ns))
    return float(within.max())


def check_load(rate_qps: float, ceiling: Ceiling, force: bool = False) -> None:
    """Refuses a load above half of what this machine can send.

    Args:
        rate_qps: The rate, such as ``peak_qps`` of a schedule. Up to half of ``LEAST_QPS`` nothing is ever
            refused, so that there is no need to calibrate.
        ceiling: What ``calibrate`` found.
        force: Refuse nothing.

    Raises:
        ConfigurationError: It is above that.
    """
    allowed_qps = ceiling.rate_qps * ALLOWED_SHARE
    if rate_qps > allowed_qps and not force:
        raise ConfigurationError(
            f"{rate_qps:.0f} queries/s is more than {allowed_qps:.0f}, half of what this machine can send on "
            "time to a system that takes no time; lower the rate, stop other work, or force it with --force"
        )
