"""A target under load, one run after the other: a workload, or the probes of a search."""

from __future__ import annotations

import time
from collections.abc import Callable

import numpy as np

from evaluators.loadgen.closed_loop import ClosedLoop, run_closed_loop
from evaluators.loadgen.issued_run import IssuedRun
from evaluators.loadgen.issuer import run_open_loop
from evaluators.loadgen.probe import Probe
from evaluators.loadgen.queries import Outcome
from evaluators.loadgen.record import LoadRun
from evaluators.loadgen.run_watch import IssuerProgress, Stop
from evaluators.loadgen.schedule import Schedule
from evaluators.loadgen.steady_state import steady_from_ns
from evaluators.loadgen.target import LoadTarget
from manifests.errors import EvaluationInterrupted

_WARM_UP_TIMEOUT_MS = 60_000.0


class LoadSession:
    """Runs schedules on a target, and keeps what they gave; satisfies ``probe.Prober``.

    Args:
        target: The system under test.
        timeout_ms: When a query is given up, counted from when it was due.
        stop_requested: Asked while a run goes on; once it says yes, the run ends.
        on_progress: Told how a run goes.
        clock: A monotonic clock in seconds.
    """

    def __init__(
        self,
        target: LoadTarget,
        timeout_ms: float,
        *,
        stop_requested: Callable[[], bool] = lambda: False,
        on_progress: Callable[[IssuerProgress], None] = lambda _: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._target = target
        self._timeout_ms = timeout_ms
        self._stop_requested = stop_requested
        self._on_progress = on_progress
        self._clock = clock
        self._began_s = clock()
        self.runs: list[LoadRun] = []

    def warm_up(self, queries: int) -> None:
        """Sends some queries at once, and forgets them."""
        if queries:
            schedule = Schedule(np.zeros(queries, np.int64), "warm-up", float(queries))
            run_open_loop(
                self._target,
                schedule,
                timeout_ms=_WARM_UP_TIMEOUT_MS,
                stop_requested=self._stop_requested,
            )
        self._began_s = self._clock()

    def run(self, schedule: Schedule, bound_ns: int | None = None, max_late: int | None = None) -> IssuedRun:
        """Runs a schedule, and keeps it; see ``run_open_loop``."""
        issued = run_open_loop(
            self._target,
            schedule,
            timeout_ms=self._timeout_ms,
            bound_ns=bound_ns,
            max_late=max_late,
            stop_requested=self._stop_requested,
            on_progress=self._on_progress,
        )
        self._keep(issued, schedule.rate_qps, schedule.source, schedule.seed, schedule.checksum)
        return issued

    def run_closed(self, loop: ClosedLoop, bound_ns: int | None = None) -> IssuedRun:
        """Keeps queries in flight, and keeps what became of them; see ``run_closed_loop``."""
        issued = run_closed_loop(
            self._target,
            loop,
            timeout_ms=self._timeout_ms,
            bound_ns=bound_ns,
            stop_requested=self._stop_requested,
            on_progress=self._on_progress,
        )
        self._keep(issued, 0.0, str(loop), None, "")
        return issued

    def _keep(self, issued: IssuedRun, rate_qps: float, source: str, seed: int | None, checksum: str) -> None:
        queries = issued.queries.chosen(issued.queries.outcome != Outcome.UNSENT)
        self.runs.append(
            LoadRun(
                rate_qps=rate_qps,
                source=source,
                seed=seed,
                checksum=checksum,
                queries=queries,
                cut_ns=steady_from_ns(queries),
                stopped=issued.stop.value,
                invalid=issued.invalid,
                reasons=issued.reasons,
            )
        )

    @property
    def elapsed_s(self) -> float:
        """How long it has been since the warm-up, in seconds."""
        return self._clock() - self._began_s

    def probe(self, schedule: Schedule, max_late: int, bound_ns: int) -> Probe:
        """Runs a schedule for a search; see ``Prober``.

        Raises:
            EvaluationInterrupted: A stop was requested.
        """
        issued = self.run(schedule, bound_ns, max_late)
        if issued.stop is Stop.INTERRUPTED:
            raise EvaluationInterrupted("stopped in the search; nothing was published")
        stopped = issued.stop is not Stop.COMPLETE
        seed = schedule.seed if schedule.seed is not None else 0
        return Probe(schedule.rate_qps, seed, issued.queries, stopped, issued.invalid or None)
