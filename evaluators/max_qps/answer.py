"""The result of a search for the highest rate that keeps a latency bound."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

from inferometer.evaluators.kinds.rate_search.measurement import RateSearchMeasurement
from inferometer.evaluators.load.load_run import LoadRun
from inferometer.evaluators.max_qps.probe import Probe

NEAR = 1.25
"""Probes count towards the answer if their rate is within this factor of it."""
_FIGURES = 2
_MOST_DECIMALS = 6
_MOST_INVALID = 0.5


class Method(str, Enum):
    """The basis of an answer."""

    SINGLE_SERVER = "single server"
    """The service times of queries; see ``single_server``."""
    LATE_FRACTION = "late fraction"
    """A monotone curve of the fraction of late queries against the rate; see ``late_fraction``."""
    BRACKET = "bracket"
    """One rate that kept the bound and one that did not, when the search ended."""
    AT_LEAST = "at least"
    """The highest rate that the harness can send kept the bound."""
    NONE = "none"
    """No rate keeps the bound."""


@dataclass(frozen=True, slots=True, eq=False)
class MaxQps:
    """The result of a search.

    Attributes:
        rate_qps: The highest rate that keeps the bound; None if no rate does or none was found.
        low_qps: The lower end of its 95 % interval; of a bracket, a rate that kept the bound; None for none.
        high_qps: The upper end; of a bracket, a rate that did not keep the bound; None for none.
        method: The basis of the answer.
        reason: A note, in one line, or empty.
        probes: Every run of the search, in order.
    """

    rate_qps: float | None
    low_qps: float | None
    high_qps: float | None
    method: Method
    reason: str
    probes: Sequence[Probe]


def rate_text(method: Method, rate_qps: float | None, low_qps: float | None, high_qps: float | None) -> str:
    """Returns an answer in queries/s with as many digits as its interval allows: ``76.9 [75.8, 78.0]``.

    See ``MaxQps`` for the arguments.
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


def invalid_reason(search: RateSearchMeasurement) -> str:
    """Returns why the answer of a search cannot be trusted; empty if it can, or if there is none.

    An answer rests on the queries of the probes near it. If more than half of them are of invalid probes, it
    says more about the harness, or about what else the machine did, than about the system.
    """
    if search.answer is None:
        return ""
    near = _near(search)
    invalid = [run for run in near if run.invalid]
    queries = sum(len(run.queries) for run in near)
    if sum(len(run.queries) for run in invalid) <= _MOST_INVALID * queries:
        return ""
    return (
        f"{len(invalid)} of {len(near)} probes near the answer are invalid; the last: {invalid[-1].invalid}"
    )


def _near(search: RateSearchMeasurement) -> Sequence[LoadRun]:
    """Returns the probes near an answer's interval; all if it has no rate, or none is near."""
    answer = search.answer
    if answer is None or answer.rate_qps is None:
        return search.probes
    low_qps = answer.rate_qps if answer.low_qps is None else answer.low_qps
    high_qps = answer.rate_qps if answer.high_qps is None else answer.high_qps
    # what was sent above the highest rate that this machine can send says nothing about that rate
    highest_qps = answer.rate_qps if answer.method == Method.AT_LEAST.value else high_qps * NEAR
    near = [run for run in search.probes if low_qps / NEAR <= run.rate_qps <= highest_qps]
    return near or search.probes
