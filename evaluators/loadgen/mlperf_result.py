"""MLPerf's scenarios, and what LoadGen says of a run of one."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

MULTI_STREAM_SAMPLES = 8
"""The samples of a query in the scenario multi_stream."""


class Scenario(str, Enum):
    """A scenario of MLPerf inference."""

    SINGLE_STREAM = "single_stream"
    """One query after the other."""
    MULTI_STREAM = "multi_stream"
    """One query of eight samples after the other."""
    SERVER = "server"
    """Queries at Poisson times, however many wait."""
    OFFLINE = "offline"
    """All samples at once."""

    @property
    def samples_per_query(self) -> int:
        """The samples that LoadGen times together, and so are one value in its percentiles."""
        return MULTI_STREAM_SAMPLES if self is Scenario.MULTI_STREAM else 1


@dataclass(frozen=True, slots=True)
class MlperfResult:
    """What LoadGen found, as its log says it.

    Attributes:
        version: LoadGen's.
        valid: Its verdict.
        reasons: Why it is not valid, and the errors that it met, each in one line.
        queries: How many queries there were; of multi_stream each has eight samples, of offline each sample
            counts as one.
        rate_qps: Queries in a second, of offline samples; None where LoadGen gives no rate (multi_stream).
        mean_ns: The mean latency; None where the run did not come to its end.
        percentiles_ns: Percent and latency, ascending; empty where the run did not come to its end.
        early_stopping_ns: The latency that counts in MLPerf for single_stream and multi_stream: the
            percentile, with a reserve for chance. None in other scenarios, and where it is not known.
        clock_known: Whether the scheduled times kept with the queries are those of LoadGen's own schedule;
            else they are when it issued them.
        log_directory: Where its logs are.
    """

    version: str
    valid: bool
    reasons: tuple[str, ...]
    queries: int
    rate_qps: float | None
    mean_ns: int | None
    percentiles_ns: tuple[tuple[float, int], ...]
    early_stopping_ns: int | None
    clock_known: bool
    log_directory: str
