"""A probe: one run of a search at a steady rate, and its figures."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

import numpy as np
from numpy.typing import NDArray

from inferometer.evaluators.load.intervals import PercentileInterval, percentile_intervals
from inferometer.evaluators.load.issuer import Stop
from inferometer.evaluators.load.load_run import LoadRun
from inferometer.evaluators.load.load_session import LoadSession
from inferometer.evaluators.load.queries import Outcome, Queries
from inferometer.evaluators.load.schedule import Schedule
from inferometer.manifests.errors import EvaluationInterrupted

_MEDIAN, _FAR_TAIL, _FAR_TAIL_QUERIES = 50.0, 99.9, 1000
_START_BOUNDS = 10
_START_SHARE = 0.25


@dataclass(frozen=True, slots=True, eq=False)
class Probe:
    """One run of a search.

    Attributes:
        rate_qps: The rate of its schedule.
        seed: The seed of its schedule.
        queries: What became of its queries.
        stopped: Whether it stopped early, because too many queries were late.
        invalid: Why it says nothing about the system, as when the harness lagged; None if it is valid.
    """

    rate_qps: float
    seed: int
    queries: Queries
    stopped: bool = False
    invalid: str | None = None

    def judged(self, bound_ns: int) -> Queries:
        """Returns the queries whose latency is compared with the bound.

        The start with an empty queue, and so with low latencies, is left out: ten bounds, and at most a
        quarter of the run. So are, if the run was stopped, the queries that were due less than a bound before
        its end: it is unknown which of them would have been in time.
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

    def certain(self, bound_ns: int, late_fraction: float) -> bool:
        """Whether the harness's lag cannot have moved the percentile across the bound.

        If each query is sent at most L late, a system that serves queries in order completes each at most L
        later, and never sooner. So the bound is kept if it was kept in spite of the lag, and is not kept if
        too many queries are later than the bound plus L.
        """
        if _late_fraction(self.judged(bound_ns), bound_ns) <= late_fraction:
            return True
        lagged_ns = bound_ns + int(self.queries.lag_ns.max(initial=0))
        return _late_fraction(self.judged(lagged_ns), lagged_ns) > late_fraction

    def unqueued(self) -> NDArray[np.bool_]:
        """Returns, as n values, which queries were sent when every one before them had been settled."""
        done_ns = np.maximum.accumulate(self.queries.done_ns)
        free_ns = np.concatenate([np.zeros(1, np.int64), done_ns[:-1]])[: len(done_ns)]
        pending = np.cumsum(self.queries.outcome == Outcome.WAITING)
        settled = np.concatenate([np.zeros(1, np.int64), pending[:-1]])[: len(done_ns)] == 0
        found: NDArray[np.bool_] = (self.queries.sent_ns >= free_ns) & settled
        return found


def _late_fraction(queries: Queries, bound_ns: int) -> float:
    """The fraction of queries that are later than a bound; not a number without queries."""
    return float(np.mean(queries.latency_ns > bound_ns)) if len(queries) else math.nan


class Prober:
    """Runs the probes of a search in a load session, one after the other."""

    def __init__(self, session: LoadSession) -> None:
        self._session = session

    @property
    def elapsed_s(self) -> float:
        """The duration of the search so far, in seconds."""
        return self._session.elapsed_s

    def probe(self, schedule: Schedule, max_late: int, bound_ns: int) -> Probe:
        """Runs a schedule, and returns once its queries have their outcomes or it was stopped.

        Args:
            schedule: When queries are due.
            max_late: The run stops once more queries than this are later than the bound.
            bound_ns: The latency bound. A query without an answer is late once the bound has passed.

        Raises:
            EvaluationInterrupted: A stop was requested.
        """
        issued = self._session.run(schedule, bound_ns, max_late)
        if issued.stop is Stop.INTERRUPTED:
            raise EvaluationInterrupted("stopped in the search; nothing was published")
        stopped = issued.stop is not Stop.COMPLETE
        seed = schedule.seed if schedule.seed is not None else 0
        return Probe(schedule.rate_qps, seed, issued.queries, stopped, issued.invalid or None)


@dataclass(frozen=True, slots=True)
class ProbeSummary:
    """The figures of a probe.

    Attributes:
        judged: How many queries the search judged, without the empty start; see ``Probe.judged``.
        late_fraction: The fraction of them that were later than the bound, or had no right answer; None if no
            query was judged.
        percentiles: Of their latency by percent, ascending: the median, the percentile that the bound is for,
            and 99.9 if there are 1,000 queries; empty if no query was judged.
    """

    judged: int
    late_fraction: float | None
    percentiles: Mapping[float, PercentileInterval]

    @classmethod
    def of(cls, run: LoadRun, bound_ns: int | None, percentile: float) -> ProbeSummary:
        """Computes the figures of a run of a search.

        Args:
            run: The run.
            bound_ns: The latency bound of the search.
            percentile: The percentile that the bound is for, in percent.

        Raises:
            ValueError: There is no bound.
        """
        if bound_ns is None:
            raise ValueError("a probe is judged by a latency bound, and the options have none")
        probe = Probe(run.rate_qps, run.seed or 0, run.queries, bool(run.stopped), run.invalid or None)
        latency_ns = probe.judged(bound_ns).latency_ns
        count = len(latency_ns)
        percents = {_MEDIAN, percentile, *([_FAR_TAIL] if count >= _FAR_TAIL_QUERIES else [])}
        found = percentile_intervals(latency_ns, sorted(percents))
        return cls(
            judged=count,
            late_fraction=float(np.mean(latency_ns > bound_ns)) if count else None,
            percentiles=MappingProxyType({each.percent: each for each in found}),
        )


def load_s(run: LoadRun) -> float:
    """Returns the time from the beginning of a run to its last arrival or answer, in seconds."""
    queries = run.queries
    return max(int(queries.scheduled_ns.max(initial=0)), int(queries.done_ns.max(initial=0))) / 1e9
