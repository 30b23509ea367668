"""A probe: one run of a search at a steady rate, and its figures."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType

import numpy as np

from inferometer.evaluators.load.intervals import PercentileInterval, percentile_intervals
from inferometer.evaluators.load.issuer import Stop
from inferometer.evaluators.load.lag import lag_text
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
        queries: Its queries with their outcomes.
        stopped: Whether it stopped early, because too many queries were late.
    """

    rate_qps: float
    seed: int
    queries: Queries
    stopped: bool = False

    @classmethod
    def of(cls, run: LoadRun) -> Probe:
        """Returns the probe that a run of a search was."""
        return cls(run.rate_qps, run.seed or 0, run.queries, bool(run.stopped))

    def from_sending(self) -> Probe:
        """Returns the probe with latencies that count from when each query was sent."""
        return replace(self, queries=self.queries.from_sending())

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

    def late_share(self, bound_ns: int) -> float:
        """Returns the share of the judged queries that are later than the bound; 0 without any."""
        judged = self.judged(bound_ns)
        return float(np.mean(judged.latency_ns > bound_ns)) if len(judged) else 0.0

    def lag_reason(self, bound_ns: int, late_fraction: float) -> str:
        """Returns why it is invalid: the bound was not kept, and would be without the lag; empty if valid."""
        as_due, as_sent = self.late_share(bound_ns), self.from_sending().late_share(bound_ns)
        if not as_sent <= late_fraction < as_due:
            return ""
        return lag_text(f"{100 * as_sent:.3g} % of the queries would be late and not {100 * as_due:.3g} %")


class Prober:
    """The prober, which runs the probes of a search in a load session, one after the other."""

    def __init__(self, session: LoadSession) -> None:
        self._session = session

    @property
    def elapsed_s(self) -> float:
        """The duration of the search so far, in seconds."""
        return self._session.elapsed_s

    def reconnect(self) -> None:
        """Reconnects for the next probes."""
        self._session.reconnect()

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
        return Probe(schedule.rate_qps, seed, issued.queries, stopped)


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
        latency_ns = Probe.of(run).judged(bound_ns).latency_ns
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
