"""A probe: one run at a steady rate, by which a search finds out how late queries are there."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from evaluators.loadgen.queries import Outcome, Queries
from evaluators.loadgen.schedule import Schedule

_START_BOUNDS = 10
_START_SHARE = 0.25


@dataclass(frozen=True, slots=True, eq=False)
class Probe:
    """One run of a search.

    Attributes:
        rate_qps: The rate of its schedule.
        seed: What its schedule was drawn from.
        queries: What became of its queries.
        stopped: Whether it was stopped early, because too many queries were late.
        invalid: Why it says nothing about the system, as when the harness lagged; None where it does.
    """

    rate_qps: float
    seed: int
    queries: Queries
    stopped: bool = False
    invalid: str | None = None

    def judged(self, bound_ns: int) -> Queries:
        """Returns the queries whose latency is held against the bound.

        The empty start is left out, when there is no queue yet and latencies flatter: ten bounds, and at most
        a quarter of the run. So are, of a run that was stopped, the queries that were due less than a bound
        before its end: it is not known which of them would have been in time.
        """
        sent = self.queries.chosen(self.queries.outcome != Outcome.UNSENT)
        if not len(sent):
            return sent
        last_ns = int(sent.scheduled_ns[-1])
        judged = sent.since(min(_START_BOUNDS * bound_ns, int(_START_SHARE * last_ns)))
        if self.stopped and np.any(judged.outcome == Outcome.WAITING):
            end_ns = int(max(sent.sent_ns.max(), sent.done_ns.max()))
            judged = judged.chosen(judged.scheduled_ns < end_ns - bound_ns)
        return judged

    def certain(self, bound_ns: int, late_share: float) -> bool:
        """Whether the harness's lag cannot have changed on which side of the bound its percentile is.

        Where each query is sent at most L too late, a system that serves its queries in order is done with
        each at most L later than it would have been, and never sooner. So the bound is kept if it was kept in
        spite of the lag, and is not kept if too many queries are later than the bound and L together.
        """
        if _late_share(self.judged(bound_ns), bound_ns) <= late_share:
            return True
        lagged_ns = bound_ns + int(self.queries.lag_ns.max(initial=0))
        return _late_share(self.judged(lagged_ns), lagged_ns) > late_share

    def unqueued(self) -> NDArray[np.bool_]:
        """Returns, as n values, which queries were sent when every one before them had been settled."""
        done_ns = np.maximum.accumulate(self.queries.done_ns)
        free_ns = np.concatenate([np.zeros(1, np.int64), done_ns[:-1]])[: len(done_ns)]
        pending = np.cumsum(self.queries.outcome == Outcome.WAITING)
        settled = np.concatenate([np.zeros(1, np.int64), pending[:-1]])[: len(done_ns)] == 0
        found: NDArray[np.bool_] = (self.queries.sent_ns >= free_ns) & settled
        return found


def _late_share(queries: Queries, bound_ns: int) -> float:
    """The share of queries that are later than a bound; not a number without queries."""
    return float(np.mean(queries.latency_ns > bound_ns)) if len(queries) else math.nan


class Prober(Protocol):
    """Puts load on a system, one run after the other, for a search."""

    @property
    def elapsed_s(self) -> float:
        """How long the search has taken so far, in seconds."""
        ...

    def probe(self, schedule: Schedule, max_late: int, bound_ns: int) -> Probe:
        """Runs a schedule, and returns once its queries are settled or it was stopped.

        Args:
            schedule: When queries are due.
            max_late: The run is stopped once more queries than this are later than the bound.
            bound_ns: The latency bound. A query without an answer is late once the bound is over.
        """
        ...
