"""The validity of a run under load: the harness's lag, the steady state, and whether the backlog grows.

The lag is the time by which the harness sends queries late. A run is invalid if the lag could have changed
its result. Latencies are therefore measured twice: from when queries were due, and from when they were sent
(``Queries.from_sending``).
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from inferometer.evaluators.load.queries import Outcome, Queries
from inferometer.evaluators.statistics import PERCENTS, percentile_intervals

NEGLIGIBLE_SHARE = 0.01
"""The difference in latency that is negligible, as a fraction of the latency bound or else of the latency."""
NEGLIGIBLE_NS = 1_000_000
"""The difference in latency that is always negligible if there is no bound, in nanoseconds."""


def negligible_ns(bound_ns: int | None) -> float:
    """Returns the largest difference in latency that is negligible, in nanoseconds."""
    return NEGLIGIBLE_NS if bound_ns is None else NEGLIGIBLE_SHARE * bound_ns


def lag_text(change: str) -> str:
    """Returns why a run with a lag is invalid, including what the result would be without the lag."""
    return (
        f"without the harness's own lag, which is in none of service, queue, batch and predict, {change}: "
        "stop other work, give a model in this process fewer --threads, or lower the rate"
    )


def lag_in_percentiles(
    queries: Queries, cut_ns: int, judged: float, bound_ns: int | None, text: Callable[[str], str] = lag_text
) -> str:
    """Returns why the lag makes a percentile of the latency invalid; empty if it does not.

    It does if the percentile measured from sending is below the 95 % interval of the one measured from when
    queries were due, by more than what is negligible. The judged percentile is checked, and any other that
    has an interval.

    Args:
        queries: The whole run.
        cut_ns: The time from which queries are counted.
        judged: The percentile to which the bound applies.
        bound_ns: The latency bound; None for none.
        text: Makes the reason of what a percentile would be.
    """
    percents = sorted({*PERCENTS, judged}, key=lambda percent: percent != judged)
    as_due = percentile_intervals(queries.since(cut_ns).latency_ns, percents)
    at_best = percentile_intervals(queries.from_sending().since(cut_ns).latency_ns, percents)
    for found, without in zip(as_due, at_best, strict=False):  # none may have been sent
        if found.low_ns is None and found.percent != judged:
            continue
        within_ns = 0.0 if found.low_ns is None else found.value_ns - found.low_ns
        if bound_ns is None:
            within_ns = max(within_ns, NEGLIGIBLE_SHARE * without.value_ns)
        if found.value_ns - without.value_ns > max(within_ns, negligible_ns(bound_ns)):
            values = f"{without.value_ns / 1e6:.3f} ms, not {found.value_ns / 1e6:.3f} ms"
            return text(f"p{found.percent:g} would be {values}")
    return ""


EMPTY_START_SHARE = 0.1
"""The share of a run that is cut off at its start, because the queue is empty at first."""
_LEAST_ARRIVALS = 50
_SIGMAS = 2.5
LEAST_GROWN = 2 * _SIGMAS
"""A growing backlog is larger than this: it gains over ``_SIGMAS`` in each of two parts; see ``growing``."""


def steady_from_ns(queries: Queries) -> int:
    """Returns the time from which queries are counted: the first tenth of the run is cut off.

    The first queries of a run find an empty queue and are answered sooner than later ones. The cut is fixed
    before the run rather than chosen according to its latencies. MSER-5, the usual rule that uses them
    (White, "An effective truncation heuristic for bias reduction in simulation output", Simulation 69, 1997;
    batches of five by Spratt, 1998), cuts off where the rest varies least: it discards bursts of late queries
    that fell into the first half, and so reports too low a p99. On simulated M/D/1 and M/M/1 queues at
    50–95 % load, in runs of 600–20,000 queries, it moved the median p99 down by up to 10 percentage points; a
    tenth moved it by less than 2, and removed from the mean some of the effect of the empty start (at 95 %
    and 3,000 queries, the mean was 14 % too low instead of 18 %). A run that is steady from the beginning
    loses a tenth of its queries, and its intervals grow by 5 %.

    No cut makes up for a run that is short compared with the relaxation time of the queue: for exponential
    times, service time / (1 - √load)² (Cohen, "The Single Server Queue", 1982), which is 16 s at 95 % load
    and a service time of 10 ms.

    Returns:
        The time in nanoseconds since the run began; 0 if there are no queries. Queries that were due after
        the run stopped are ignored.
    """
    due_ns = queries.scheduled_ns[queries.outcome != Outcome.UNSENT]
    if not len(due_ns):
        return 0
    first_ns, last_ns = int(due_ns[0]), int(due_ns[-1])
    return first_ns + round((last_ns - first_ns) * EMPTY_START_SHARE)


def backlog(queries: Queries, times_ns: NDArray[np.int64]) -> NDArray[np.int64]:
    """Returns how many queries were due and still in the system, at each of several times.

    A query without an answer leaves the system when any query due after it is answered: a query that hangs is
    not a queue. A query that was never sent is not counted. The times since the run began are int64, and so
    is the result, with one value for each.
    """
    due_ns, left_ns = _due_and_left(queries)
    left_ns = np.sort(left_ns)
    found: NDArray[np.int64] = np.searchsorted(due_ns, times_ns, "right") - np.searchsorted(
        left_ns, times_ns, "right"
    )
    return found


def growing(queries: Queries, now_ns: int) -> bool:
    """Returns whether the backlog grows in a way that happens only above the system's capacity.

    The time since the first arrival is divided into three parts. In both the second and the third part, more
    queries must arrive than leave, by more than 2.5 standard deviations of the difference in a system that is
    just able to keep up: √(arrivals · (1 + cv²)), where cv is the coefficient of variation of the gaps
    between arrivals and 1 stands for the service times. Queries must also leave in both: a system that
    stalls, or takes long for each of many queries, does not lack capacity. A rate of twice the capacity is
    detected after some 150 queries, a tenth above it after some 5,000. Times count from when the run began.
    """
    due_ns, left_ns = _due_and_left(queries)
    due_ns = due_ns[due_ns <= now_ns]
    if len(due_ns) < _LEAST_ARRIVALS:
        return False
    gaps = np.diff(due_ns).astype(np.float64)
    spread = 1 + (gaps.var() / gaps.mean() ** 2 if gaps.any() else 0.0)
    edges = np.linspace(due_ns[0], now_ns, 4)
    for begin, end in ((edges[1], edges[2]), (edges[2], edges[3])):
        come = np.count_nonzero((due_ns > begin) & (due_ns <= end))
        gone = np.count_nonzero((left_ns > begin) & (left_ns <= end))
        if not gone or come - gone <= _SIGMAS * np.sqrt(come * spread):
            return False
    return True


def _due_and_left(queries: Queries) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Returns the times when the queries were due, and when they left the system."""
    there = queries.chosen(queries.outcome != Outcome.UNSENT)
    never = np.iinfo(np.int64).max
    settled = (there.outcome == Outcome.ANSWERED) | (there.outcome == Outcome.FAILED)
    done_ns = np.where(settled, there.done_ns, never)
    answered_ns = np.where(there.outcome == Outcome.ANSWERED, there.done_ns, never)
    overtaken_ns = np.minimum.accumulate(answered_ns[::-1])[::-1]
    return there.scheduled_ns, np.where(settled, done_ns, overtaken_ns)
