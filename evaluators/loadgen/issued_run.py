"""What became of a run that was issued, and whether its figures are to be trusted."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from evaluators.loadgen.queries import Queries
from evaluators.loadgen.query_log import QueryLog
from evaluators.loadgen.run_watch import Stop
from evaluators.statistics import percentile

LAG_SHARE = 0.01
"""The harness's own delay at p99, as a share of the latency bound, above which a run is invalid."""
LAG_WITHOUT_BOUND_NS = 1_000_000


@dataclass(frozen=True, slots=True, eq=False)
class IssuedRun:
    """A run that has ended.

    Attributes:
        queries: Those that were due before it was stopped. One that could not be sent by then, because the
            target had not returned from an earlier one, is ``WAITING``, or ``TIMED_OUT`` after the timeout.
        stop: Why it ended.
        invalid: Why its figures are not to be trusted, in one line; empty where they are.
        reasons: How many queries failed for which reason, the most frequent first.
    """

    queries: Queries
    stop: Stop
    invalid: str
    reasons: Mapping[str, int]

    @classmethod
    def of(cls, log: QueryLog, stop: Stop, ended_ns: int, timeout_ns: int, bound_ns: int | None) -> IssuedRun:
        """Closes the log of a run that was stopped at a time, or whose queries were all sent."""
        log.close(ended_ns, timeout_ns)
        due = int(np.searchsorted(log.scheduled_ns, ended_ns - log.began_ns, "right"))
        queries = log.queries(0, max(due, log.sent_count))
        return cls(queries, stop, lag_reason(queries, bound_ns), log.reasons)


def lag_reason(queries: Queries, bound_ns: int | None) -> str:
    """Why the delay with which queries were sent spoils a run; empty where it does not."""
    lag_ns = queries.lag_ns
    if not len(lag_ns):
        return ""
    found_ns = percentile(lag_ns, 99)
    allowed_ns = LAG_WITHOUT_BOUND_NS if bound_ns is None else LAG_SHARE * bound_ns
    if found_ns <= allowed_ns:
        return ""
    allowed = "1 ms" if bound_ns is None else f"{allowed_ns / 1e6:.3g} ms, 1 % of the bound"
    return (
        f"p99 of the harness's own lag is {found_ns / 1e6:.3g} ms, above {allowed}: stop other work, "
        "give a model in this process fewer --threads, or lower the rate"
    )
