"""The measurement of a search for the highest rate that keeps a latency bound."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from inferometer.evaluators.kinds.load.measurement import LoadOptions
from inferometer.evaluators.load.load_run import LoadRun


@dataclass(frozen=True, slots=True)
class RateAnswer:
    """The answer of a search.

    Attributes:
        rate_qps: The highest rate that keeps the bound; None if no rate does.
        low_qps: The lower end of its 95 % interval; None if there is none.
        high_qps: The upper end, likewise.
        method: The method of its computation.
        note: A remark of one line; empty for none.
    """

    rate_qps: float | None
    low_qps: float | None
    high_qps: float | None
    method: str
    note: str = ""


@dataclass(frozen=True, slots=True, eq=False)
class RateSearchMeasurement:
    """One search.

    Attributes:
        options: The options.
        probes: The run of each tried rate, in order.
        elapsed_ns: The duration of the search without the warm-up.
        answer: None for a stopped search.
    """

    kind: ClassVar[str] = "rate_search"

    options: LoadOptions
    probes: Sequence[LoadRun]
    elapsed_ns: int
    answer: RateAnswer | None = None

    @property
    def batch_size(self) -> int:
        """The maximum number of queries in a batch."""
        return self.options.max_batch_size
