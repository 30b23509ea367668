"""A target under load: its runs, one after the other, of a workload or of a search."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial

import numpy as np

from inferometer.evaluators.load.closed_loop import ClosedLoop, run_closed_loop
from inferometer.evaluators.load.issuer import IssuedRun, RunLimits, run_open_loop
from inferometer.evaluators.load.load_run import LoadRun
from inferometer.evaluators.load.queries import Outcome
from inferometer.evaluators.load.query_tracing import LoadTrace
from inferometer.evaluators.load.schedule import Schedule
from inferometer.evaluators.load.steady_state import steady_from_ns
from inferometer.evaluators.load.target import LoadTarget

_WARM_UP_TIMEOUT_MS = 60_000.0


class LoadSession:
    """A session that runs schedules on a target, and keeps the runs.

    Args:
        target: The system under test.
        limits: What ends a run early, without a bound.
        trace: Records some queries of each run, but not of the warm-up; None records none.
    """

    def __init__(self, target: LoadTarget, limits: RunLimits, trace: LoadTrace | None = None) -> None:
        self._trace = trace
        self._target = target
        self._limits = limits
        self._began_s = time.monotonic()
        self.runs: list[LoadRun] = []

    def warm_up(self, queries: int) -> None:
        """Sends some queries at once, and discards their outcomes."""
        if queries:
            schedule = Schedule(np.zeros(queries, np.int64), "warm-up", float(queries))
            limits = RunLimits(_WARM_UP_TIMEOUT_MS, stop_requested=self._limits.stop_requested)
            run_open_loop(self._target, schedule, limits)
        self._began_s = time.monotonic()

    def run(self, schedule: Schedule, bound_ns: int | None = None, max_late: int | None = None) -> IssuedRun:
        """Runs a schedule, and keeps the run; see ``RunLimits`` for the bound."""
        limits = replace(self._limits, bound_ns=bound_ns, max_late=max_late)
        issued = self._traced(partial(run_open_loop, self._target, schedule, limits), schedule.rate_qps)
        self._keep(issued, schedule.rate_qps, schedule.source, schedule.seed, schedule.checksum)
        return issued

    def run_closed(self, loop: ClosedLoop) -> IssuedRun:
        """Runs a closed loop, and keeps the run."""
        issued = self._traced(partial(run_closed_loop, self._target, loop, self._limits))
        self._keep(issued, 0.0, str(loop), None, "")
        return issued

    def _traced(self, run: Callable[[], IssuedRun], rate_qps: float = 0.0) -> IssuedRun:
        """Performs a run, and then traces some of its queries."""
        if self._trace is None:
            return run()
        sample = self._trace.begin(self._target)
        issued = run()
        self._trace.record(self._target, sample, issued, rate_qps)
        return issued

    def _keep(self, issued: IssuedRun, rate_qps: float, source: str, seed: int | None, checksum: str) -> None:
        queries = issued.queries.chosen(issued.queries.outcome != Outcome.UNSENT)
        run = issued.kept(rate_qps, source, seed, checksum)
        self.runs.append(replace(run, queries=queries, cut_ns=steady_from_ns(queries)))

    def reconnect(self) -> None:
        """Reconnects to the target for the next runs, if it has a connection."""
        self._target.reconnect()

    @property
    def elapsed_s(self) -> float:
        """The time since the warm-up, in seconds."""
        return time.monotonic() - self._began_s
