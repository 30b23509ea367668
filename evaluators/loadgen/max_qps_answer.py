"""The answer of a search for the highest rate that keeps a latency bound."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

from evaluators.loadgen.probe import Probe

_FIGURES = 2
_MOST_DECIMALS = 6


class Method(str, Enum):
    """What an answer rests on."""

    SINGLE_SERVER = "single server"
    """The times that queries take by themselves; see ``single_server``."""
    LATE_SHARE = "late share"
    """A monotone curve of the share of late queries against the rate; see ``late_share``."""
    BRACKET = "bracket"
    """One rate that kept the bound and one that did not: the search ended before it knew more."""
    AT_LEAST = "at least"
    """The highest rate that the harness can issue kept the bound."""
    NONE = "none"
    """No rate keeps the bound."""


@dataclass(frozen=True, slots=True, eq=False)
class MaxQps:
    """What a search found.

    Attributes:
        rate_qps: The highest rate that keeps the bound; None where none does or none was found.
        low_qps: The lower end of its 95 % interval; of a bracket, a rate that kept the bound; None for none.
        high_qps: The upper end; of a bracket, a rate that did not keep the bound; None for none.
        method: What the answer rests on.
        reason: What else there is to say, in one line; empty for nothing.
        latency_bound_ms: The bound.
        percentile: Of the latencies that the bound is for, in percent.
        probes: Every run of the search, in order.
    """

    rate_qps: float | None
    low_qps: float | None
    high_qps: float | None
    method: Method
    reason: str
    latency_bound_ms: float
    percentile: float
    probes: Sequence[Probe]

    def __str__(self) -> str:
        """As ``max QPS 76.9 [75.8, 78.0] at p99 <= 100 ms``."""
        rate = rate_text(self.method, self.rate_qps, self.low_qps, self.high_qps)
        return f"max QPS {rate} at p{self.percentile:g} <= {self.latency_bound_ms:g} ms"


def rate_text(method: Method, rate_qps: float | None, low_qps: float | None, high_qps: float | None) -> str:
    """Returns an answer in queries/s with as many digits as its interval tells: ``76.9 [75.8, 78.0]``.

    Args:
        method: What the answer rests on.
        rate_qps: See ``MaxQps``, here and below.
        low_qps: The lower end.
        high_qps: The upper end.
    """
    if method is Method.NONE:
        return "none"
    if rate_qps is None:
        return f"below {high_qps:.4g}" if high_qps is not None else "unknown"
    if low_qps is None or high_qps is None or method is Method.AT_LEAST:
        return f"at least {rate_qps:.4g}"
    half = max((high_qps - low_qps) / 2, rate_qps * 1e-6)
    decimals = min(max(_FIGURES - 1 - math.floor(math.log10(half)), 0), _MOST_DECIMALS)
    return f"{rate_qps:.{decimals}f} [{low_qps:.{decimals}f}, {high_qps:.{decimals}f}]"
