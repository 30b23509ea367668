"""The effect of the harness's lag, the time by which it sends queries late, on the result of a run.

A run is invalid if the lag could have changed its result. Its queries are therefore counted twice: from when
they were due, and from when they were sent (``Queries.from_sending``).
"""

from __future__ import annotations

from inferometer.evaluators.load.intervals import PERCENTS, percentile_intervals
from inferometer.evaluators.load.queries import Queries

NEGLIGIBLE_SHARE = 0.01
"""The fraction of a latency bound that counts as no difference."""
NEGLIGIBLE_NS = 1_000_000
"""The difference in latency that is negligible without a bound, in nanoseconds."""


def negligible_ns(bound_ns: int | None) -> float:
    """Returns the largest difference in latency that is negligible, in nanoseconds."""
    return NEGLIGIBLE_NS if bound_ns is None else NEGLIGIBLE_SHARE * bound_ns


def lag_in_percentiles(queries: Queries, cut_ns: int, judged: float, bound_ns: int | None) -> str:
    """Returns why the lag makes a percentile of the latency invalid; empty if it does not.

    It does if the percentile counted from sending is below the 95 % interval of the one counted from when
    queries were due, and lower by more than what is negligible. The judged percentile counts, and each other
    one that has an interval.

    Args:
        queries: The whole run.
        cut_ns: From when on they count.
        judged: The percentile that the bound is for.
        bound_ns: The latency bound; None for none.
    """
    percents = sorted({*PERCENTS, judged}, key=lambda percent: percent != judged)
    as_due = percentile_intervals(queries.since(cut_ns).latency_ns, percents)
    at_best = percentile_intervals(queries.from_sending().since(cut_ns).latency_ns, percents)
    for found, without in zip(as_due, at_best, strict=False):  # none may have been sent
        if found.low_ns is None and found.percent != judged:
            continue
        within_ns = 0.0 if found.low_ns is None else found.value_ns - found.low_ns
        if found.value_ns - without.value_ns > max(within_ns, negligible_ns(bound_ns)):
            values = f"{without.value_ns / 1e6:.3g} ms and not {found.value_ns / 1e6:.3g} ms"
            return lag_text(f"p{found.percent:g} would be {values}")
    return ""


def lag_text(change: str) -> str:
    """Returns the reason why a run with a lag is invalid, with what the result would be without it."""
    return (
        f"without the harness's own lag, which is in none of service, queue, batch and predict, {change}: "
        "stop other work, give a model in this process fewer --threads, or lower the rate"
    )
