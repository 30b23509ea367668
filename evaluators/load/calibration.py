"""Calibration: the highest rate that this machine sends on time, and the resulting limit of a load."""

from __future__ import annotations

import math
import time
from collections.abc import Callable

import numpy as np

from inferometer.evaluators.load.arrivals import Extent, PoissonArrivals
from inferometer.evaluators.load.issuer import RunLimits, frozen_heap, run_open_loop
from inferometer.evaluators.load.schedule import Schedule
from inferometer.evaluators.load.target import Answers
from inferometer.evaluators.statistics import percentile
from inferometer.manifests.errors import ConfigurationError, SessionError


class NullTarget:
    """A target that answers at once, in the thread that sends; satisfies ``target.QueryTarget``.

    Args:
        clock: The clock of the run, in nanoseconds.
    """

    def __init__(self, clock: Callable[[], int] = time.perf_counter_ns) -> None:
        self._clock = clock
        self._answers: Answers | None = None

    def begin(self, answers: Answers) -> None:
        """Begins a run, whose outcomes go to ``answers``."""
        self._answers = answers

    def submit(self, query: int) -> None:
        """Answers a query.

        Raises:
            SessionError: No run has begun.
        """
        if self._answers is None:
            raise SessionError("no run has begun; call begin before submit")
        self._answers.answered(query, self._clock())

    def end(self, timeout_s: float) -> None:
        """Ends the run; there is nothing to wait for."""
        self._answers = None


LAG_P99_NS = 1_000_000
ALLOWED_SHARE = 0.5
"""The share of the ceiling that a load may have: less can be sent while a target works."""
LEAST_QPS = 1000.0
"""The lowest ceiling. Sending takes some 10 µs: queries that are 1 ms apart are delayed by other work on the
machine and not by the rate, and runs that suffer from it are marked invalid."""
_FIRST_QPS = 16_000.0
_MOST_QPS = 128_000.0
_RUN_S = 0.05
_TRIES = 2
_BUDGET_S = 0.9
_NS_PER_S = 1_000_000_000


def calibrate(
    clock: Callable[[], int] = time.perf_counter_ns, sleep: Callable[[float], None] = time.sleep
) -> float:
    """Measures the highest rate that this machine can send, in queries/s, within a second.

    That is the highest rate found at which the lag to the null target has a p99 below 1 ms, and at least
    ``LEAST_QPS``.

    Rates are doubled, or halved, until one can be sent and its double cannot; then one rate between is tried.
    A rate that fails is tried twice, because other work on the machine is bursty.
    """

    def can_send(rate_qps: float) -> bool:
        """Returns whether a rate can be sent; False too if there is no time to try."""
        for seed in range(_TRIES):
            if clock() > end_ns:
                return False
            schedule = Schedule.drawn(PoissonArrivals(), rate_qps, Extent(_RUN_S), seed)
            run = run_open_loop(NullTarget(clock), schedule, RunLimits(1000), clock=clock, sleep=sleep)
            if percentile(run.queries.lag_ns, 99) < LAG_P99_NS:
                return True
        return False

    with frozen_heap():
        end_ns = clock() + round(_BUDGET_S * _NS_PER_S)  # a large heap takes long to freeze
        can_send(LEAST_QPS)
        rate_qps, found = _FIRST_QPS, can_send(_FIRST_QPS)
        if not found:
            while not found and rate_qps > 2 * LEAST_QPS:
                rate_qps /= 2
                found = can_send(rate_qps)
        else:
            while rate_qps < _MOST_QPS and can_send(2 * rate_qps):
                rate_qps *= 2
        if not found:
            return LEAST_QPS
        between_qps = rate_qps * math.sqrt(2)
        return between_qps if rate_qps < _MOST_QPS and can_send(between_qps) else rate_qps


def peak_qps(schedule: Schedule) -> float:
    """Returns the rate in a schedule's busiest second; its mean rate if it is shorter."""
    offsets_ns = schedule.offsets_ns
    span_ns = int(offsets_ns[-1] - offsets_ns[0])
    if span_ns < _NS_PER_S:
        return max(schedule.rate_qps, (len(offsets_ns) - 1) * _NS_PER_S / span_ns if span_ns else 0.0)
    within = np.searchsorted(offsets_ns, offsets_ns + _NS_PER_S) - np.arange(len(offsets_ns))
    return float(within.max())


def check_load(rate_qps: float, ceiling_qps: float) -> None:
    """Checks that a load is at most half of what this machine can send.

    Args:
        rate_qps: The rate, such as ``peak_qps`` of a schedule. Up to half of ``LEAST_QPS`` every load is
            accepted, so that there is no need to calibrate.
        ceiling_qps: The result of ``calibrate``.

    Raises:
        ConfigurationError: The load is above that.
    """
    allowed_qps = ceiling_qps * ALLOWED_SHARE
    if rate_qps > allowed_qps:
        raise ConfigurationError(
            f"{rate_qps:.0f} queries/s is more than {allowed_qps:.0f}, half of what this machine can send on "
            "time to a system that takes no time; lower the rate, stop other work, or force it with --force"
        )
