"""What a search for the highest rate that keeps a latency bound is asked for."""

from __future__ import annotations

from dataclasses import dataclass, field

from evaluators.loadgen.arrivals import ArrivalProcess, PoissonArrivals, RampArrivals
from evaluators.loadgen.record import bound_ns_of
from manifests.errors import ConfigurationError

_LEAST_PROBES = 4


@dataclass(frozen=True, slots=True)
class MaxQpsOptions:
    """What a search is asked for.

    Attributes:
        latency_bound_ms: The bound of the latencies, from when a query is due.
        initial_qps: The first rate.
        percentile: Of the latencies that must keep the bound, in percent.
        tolerance: Half the width of the interval that is aimed at, as a share of the rate.
        time_budget_s: How long the search may take.
        min_duration_s: How long a probe is at the least.
        min_queries: How many queries a confirming probe has at the least.
        process: How queries arrive.
        seed: Every schedule is drawn from a seed of its own that follows from this one.
        max_rate_qps: The highest rate that the harness can issue; None where that is not known.

    Raises:
        ConfigurationError: A number makes no sense, or the process has no steady rate.
    """

    latency_bound_ms: float
    initial_qps: float = 10.0
    percentile: float = 99.0
    tolerance: float = 0.01
    time_budget_s: float = 600.0
    min_duration_s: float = 5.0
    min_queries: int = 100
    process: ArrivalProcess = field(default_factory=PoissonArrivals)
    seed: int = 0
    max_rate_qps: float | None = None

    def __post_init__(self) -> None:
        ranges = (
            ("latency_bound", self.latency_bound_ms, 0.001, 3_600_000, "ms"),
            ("initial_qps", self.initial_qps, 1e-6, 1e9, "queries/s"),
            ("percentile", self.percentile, 1, 99.999, "%"),
            ("tolerance", self.tolerance, 1e-4, 1, "as a share of the rate"),
            ("min_duration", self.min_duration_s, 0.01, 86_400, "s"),
            ("time_budget", self.time_budget_s, 0.01, 7 * 86_400, "s"),
            ("min_queries", self.min_queries, 1, 100_000_000, "queries"),
        )
        for name, value, least, most, unit in ranges:
            if not least <= value <= most:
                raise ConfigurationError(f"{name} is {value:g}; allowed: {least:g}…{most:g} {unit}")
        if self.seed < 0:
            raise ConfigurationError(f"seed is {self.seed}; it must be 0 or more")
        if self.max_rate_qps is not None and not self.max_rate_qps > 0:
            raise ConfigurationError(f"max_rate is {self.max_rate_qps:g} queries/s; it must be above 0")
        if isinstance(self.process, RampArrivals):
            raise ConfigurationError("arrival ramp has no steady rate to search for; use poisson or gamma")
        probe_s = self.min_duration_s + 2 * self.latency_bound_ms / 1e3
        if _LEAST_PROBES * probe_s > self.time_budget_s:
            raise ConfigurationError(
                f"time_budget is {self.time_budget_s:g} s; with this min_duration and latency_bound "
                f"it must be at least {_LEAST_PROBES * probe_s:g} s"
            )
        if self.initial_qps * self.time_budget_s < _LEAST_PROBES:
            raise ConfigurationError(
                f"initial_qps is {self.initial_qps:g}: a time_budget of {self.time_budget_s:g} s has fewer "
                f"than {_LEAST_PROBES} queries then; raise one of the two"
            )

    @property
    def latency_bound_ns(self) -> int:
        """The bound in nanoseconds."""
        return bound_ns_of(self.latency_bound_ms)

    @property
    def late_share(self) -> float:
        """The share of queries that may be later than the bound."""
        return 1 - self.percentile / 100
