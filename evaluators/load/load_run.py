"""One run under load: its schedule, its queries and how it ended."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from inferometer.evaluators.load.queries import Queries


def bound_ns_of(bound_ms: float) -> int:
    """Returns a latency bound in nanoseconds: the nearest, as 2.01 ms is a little less in binary."""
    return round(bound_ms * 1_000_000)


@dataclass(frozen=True, slots=True, eq=False)
class LoadRun:
    """One schedule and the outcomes of its queries.

    Attributes:
        rate_qps: The requested rate; 0 for a closed loop.
        source: The source of the schedule, such as an arrival process or a file.
        seed: The seed it was drawn from; None for a file and for a closed loop.
        checksum: ``sha256:…`` of the schedule; empty for a closed loop.
        queries: The queries that were due before the run ended.
        cut_ns: Queries that were due before this are the empty start, and in no figure.
        stopped: Why the run ended before its schedule; empty if it did not.
        invalid: Why its figures cannot be trusted; empty if they can.
        reasons: How many queries failed for which reason.
    """

    rate_qps: float
    source: str
    seed: int | None
    checksum: str
    queries: Queries
    cut_ns: int = 0
    stopped: str = ""
    invalid: str = ""
    reasons: Mapping[str, int] = field(default_factory=dict)
