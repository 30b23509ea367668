"""Requests that put a model under load: workloads, and searches for the highest rate.

Because help shows their options, slow imports happen only where they are needed.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from inferometer.evaluators.jobs import options
from inferometer.evaluators.jobs.options import (
    COUNT,
    NOT_NEGATIVE,
    POSITIVE,
    SEED,
    Range,
    check_number,
    check_options,
    declared,
    further,
)
from inferometer.evaluators.jobs.request import ModelRequest, SampledTraces, trace_sample_option
from inferometer.manifests.errors import ConfigurationError

if TYPE_CHECKING:
    from inferometer.evaluators.kinds.load.measurement import LoadOptions, Scenario
    from inferometer.evaluators.load.arrivals import ArrivalProcess, Extent

BATCHING = ("max_batch_size", "max_queue_delay_ms", "instances")
"""The options of a model in this process that are fields of ``BatchingOptions``."""
_SAME = (
    *("percentile", "latency_bound_ms", "timeout_ms", "warm_up_queries"),
    *(*BATCHING, "include_preprocess"),
)
_KEPT = {
    *_SAME,
    *("initial_qps", "arrival", "min_duration_s", "min_queries"),
    *("duration_s", "concurrency", "scenario", "tolerance", "time_budget_s"),  # fields of LoadOptions
    *("force", "trace_sample", "repeat", "schedule", "write_schedule"),  # which change no figure
    *("tracer_address", "trace_url", "server_statistics_hz", "metrics_url", "gpus"),
}
"""The options that evaluations store in fields of their own, or not at all."""
MOST_INSTANCES = 64
INSTANCES = Range(1, MOST_INSTANCES)
AUTO = "auto"
_URL = re.compile(r"https?://[^\s/@,]+(/\S*)?", re.IGNORECASE)
_LEAST_PROBES = 4
_ROUNDING = 1 + 1e-9  # 4 × 0.3 is more than 1.2


def _both(workload: float, probe: float) -> str:
    """Returns a text with the defaults for a workload and for a probe."""
    return f"{workload:g}, and {probe:g} for a probe of a search"


def _number_or_auto(text: str) -> int | str:
    """Returns a number of instances, or ``AUTO``, which a request replaces by a number."""
    text = text.strip().lower()
    if text == AUTO or text.isdecimal():
        return text if text == AUTO else int(text)
    raise ConfigurationError(f'instances is "{text}"; it must be a whole number or {AUTO}')


def instances_option(what: str) -> Any:
    """Returns the field for a number of instances; ``set_instances`` replaces ``AUTO``."""
    return declared(
        1,
        f"{what}; auto: as many as the cores allow with --threads or OMP_NUM_THREADS each, or with one "
        "thread; on GPUs, one for each.",
        "N|auto",
        within=INSTANCES,
        made=_number_or_auto,
    )


def set_instances(request: Any) -> None:
    """Replaces ``AUTO`` by as many instances as fit the cores; refuses it for a model on an agent."""
    if request.instances == AUTO:
        if request.system.agents:
            raise ConfigurationError("instances applies only to a model in this process; leave it out")
        fitting = min(request.system.session.fitting_instances(), MOST_INSTANCES)
        object.__setattr__(request, "instances", fitting)


def check_metrics(request: Any) -> None:
    """Refuses a metrics_url that is no URL, or that a server_statistics_hz of 0 would not read."""
    for url in map(str.strip, (request.metrics_url or "").split(",")):
        if url and not _URL.fullmatch(url):
            shown = url.rpartition("@")[2]  # without a password
            raise ConfigurationError(f'metrics_url "{shown}" is not http://HOST:PORT/metrics')
    if request.metrics_url and request.server_statistics_hz == 0:
        raise ConfigurationError("server_statistics_hz of 0 reads no metrics; leave out one of the two")


def _scenario(name: str) -> Scenario:
    from inferometer.evaluators.kinds.load.measurement import Scenario

    try:
        return Scenario(name.strip().lower())
    except ValueError as error:
        known = ", ".join(each.value for each in Scenario)
        raise ConfigurationError(f'unknown scenario "{name}"; known: {known}') from error


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadRequest(SampledTraces, ModelRequest):
    """A model under load: what a workload and a search have in common.

    Attributes not listed here are as in ``LoadOptions``; batches and instances are only for a model in this
    process, which leaves ``SPARE_CORES`` to the thread that sends the queries.

    Attributes:
        synthetic: Whether the inputs are random tensors instead of a dataset's inputs.

    Raises:
        ConfigurationError: Two options exclude each other, or a number is out of its range.
    """

    default_min_duration_s: ClassVar[float]
    default_min_queries: ClassVar[int]

    synthetic: bool = False
    seed: int = 0
    initial_qps: float | None = declared(
        None,
        "Queries per second: the rate, or the start of a search.",
        "QPS",
        within=POSITIVE,
        default_text=f"{options.INITIAL_QPS:g}",
    )
    arrival: str | None = declared(
        None,
        "Arrival process: constant, poisson, gamma:cv=2, bursts:on_s=1,off_s=1, "
        "ramp:from_share=0.1,to_share=1,over_s=60.",
        "PROCESS",
        default_text=options.ARRIVAL,
    )
    percentile: float = declared(
        options.PERCENTILE,
        "Latency percentile that the bound applies to.",
        "P",
        within=Range(0, 100, open=True),
    )
    latency_bound_ms: float | None = None
    min_duration_s: float | None = declared(
        None,
        "Minimum duration of the run.",
        "S",
        within=NOT_NEGATIVE,
        default_text=_both(options.WORKLOAD_MIN_DURATION_S, options.PROBE_MIN_DURATION_S),
    )
    min_queries: int | None = declared(
        None,
        "Minimum number of queries.",
        "N",
        within=COUNT,
        default_text=_both(options.WORKLOAD_MIN_QUERIES, options.PROBE_MIN_QUERIES),
    )
    timeout_ms: float = declared(
        options.QUERY_TIMEOUT_MS, "Timeout of a query, from the time it was due.", "MS", within=COUNT
    )
    warm_up_queries: int = declared(
        options.WARM_UP_QUERIES,
        "Queries to send before the run without measuring them.",
        "N",
        within=NOT_NEGATIVE,
        flags=("--warmup",),
    )
    force: bool = declared(False, "Send even more than this machine can send on time.")
    max_batch_size: int = declared(
        1, "Maximum number of queries per batch, in this process.", "N", within=Range(1, 4096)
    )
    max_queue_delay_ms: float = declared(
        0.0, "How long the first query of a batch waits for others.", "MS", within=NOT_NEGATIVE
    )
    instances: int = instances_option(
        "Instances of the model, which predict at the same time, in this process"
    )
    gpus: str | None = declared(
        None, "Run on these GPUs instead, by index, which the instances take in turn, in this process.", "N,N"
    )
    pin: bool = declared(
        False, "Bind each instance to cores of its own, as many as it has threads, in this process."
    )
    include_preprocess: bool = declared(
        False, "Also preprocess under load; by default inputs are preprocessed before the run."
    )
    trace_sample: float | None = trace_sample_option()
    server_statistics_hz: float | None = declared(
        None,
        "How often per second to read the server's statistics during the run; 0 reads none.",
        "HZ",
        within=Range(0, 100),
        default_text=f"{options.SERVER_STATISTICS_HZ:g} if the model runs on a server",
    )
    metrics_url: str | None = declared(
        None, "Also read Prometheus metrics of the server at this URL, or at several, with commas.", "URL"
    )
    repeat: int = declared(
        1, "Repeat N times, opening the model anew each time, as one group.", "N", within=Range(1, 1000)
    )

    def __post_init__(self) -> None:
        if self.gpus is not None:
            device = self.system.session.device.gpus(str(self.gpus))
            session = replace(self.system.session, device=device)
            object.__setattr__(self, "system", replace(self.system, session=session))
        set_instances(self)
        for name in (*BATCHING, "gpus", "pin"):
            if self.system.agents and getattr(self, name) != LoadRequest.__dataclass_fields__[name].default:
                raise ConfigurationError(f"{name} applies only to a model in this process; leave it out")
        check_options(self)
        self.system.session.device.check_instances(self.instances)
        check_number("seed", self.seed, SEED)
        if self.synthetic and (self.dataset.path or self.dataset.name):
            raise ConfigurationError("synthetic needs no dataset; leave out dataset_name and dataset_path")
        check_metrics(self)
        self.system.check_batches(self.max_batch_size)
        if len(self.system.agents) > 1:
            raise ConfigurationError(
                f"{len(self.system.agents)} agents are named, but a load needs exactly one; name one, or any"
            )

    @property
    def process(self) -> ArrivalProcess:
        """The arrival process of the queries; raises ConfigurationError if there is no such process."""
        from inferometer.evaluators.load.arrivals import arrival_process

        return arrival_process(self.arrival or options.ARRIVAL)

    @property
    def rate_qps(self) -> float:
        """The rate, or the first rate of a search."""
        return self.initial_qps or options.INITIAL_QPS

    @property
    def least_duration_s(self) -> float:
        """The minimum duration for which queries are sent."""
        return self.default_min_duration_s if self.min_duration_s is None else self.min_duration_s

    @property
    def least_queries(self) -> int:
        """The minimum number of queries."""
        return self.min_queries or self.default_min_queries

    def load_options(self) -> LoadOptions:
        """Returns the options that an evaluation stores of the request."""
        from inferometer.evaluators.kinds.load.measurement import LoadOptions

        return LoadOptions(
            arrival=str(self.process),
            rate_qps=self.rate_qps,
            min_duration_s=self.least_duration_s,
            min_queries=self.least_queries,
            seed=self.seed,
            **{name: getattr(self, name) for name in _SAME},
            further=further(self, _KEPT),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkloadRequest(LoadRequest):
    """A workload of queries as they arrive in production; by default, the arrival process draws them.

    Attributes:
        duration_s: The exact duration; None sets only a minimum duration and number of queries.
    """

    default_min_duration_s: ClassVar[float] = options.WORKLOAD_MIN_DURATION_S
    default_min_queries: ClassVar[int] = options.WORKLOAD_MIN_QUERIES

    duration_s: float | None = declared(None, "Duration of the run.", "S", within=POSITIVE)
    latency_bound_ms: float | None = declared(
        None, "Latency bound for goodput and validity.", "MS", within=POSITIVE, flags=("--latency_bound",)
    )
    schedule: Path | None = declared(
        None,
        "Send queries at the offsets in this file: one per line in seconds, or a csv with offset_ns.",
        "FILE",
        reads=True,
    )
    write_schedule: Path | None = declared(
        None, "Also write the schedule to this file, for use with --schedule.", "FILE"
    )
    concurrency: int | None = declared(
        None,
        "Keep N queries in flight instead: each response triggers the next query (closed loop).",
        "N",
        within=COUNT,
    )
    scenario: Scenario | None = declared(
        None,
        "Let MLPerf's LoadGen send a scenario instead, and compare its figures with ours: "
        "single_stream, multi_stream, server, offline.",
        "NAME",
        choices=("single_stream", "multi_stream", "server", "offline"),
        made=_scenario,
    )

    def __post_init__(self) -> None:
        LoadRequest.__post_init__(self)
        least, drawn = ("min_duration_s", "min_queries"), ("initial_qps", "arrival", "write_schedule")
        not_of_mlperf = ("arrival", "schedule", "write_schedule", "concurrency", "duration_s")
        self._refuse("duration_s", "sets the whole duration", *least)
        self._refuse("scenario", "leaves it to MLPerf's LoadGen when queries are sent", *not_of_mlperf)
        unread = ("tracer_address", "trace_sample", "server_statistics_hz", "metrics_url")
        self._refuse("scenario", "has LoadGen send the queries", *unread)
        self._refuse("concurrency", "sends a query when a response arrives", "schedule", *drawn)
        self._refuse("schedule", "sets when each query is due", *drawn, "duration_s", *least)

    def _refuse(self, name: str, reason: str, *excluded: str) -> None:
        """Rejects options that conflict with another given option."""
        if getattr(self, name) is None:
            return
        if given := [other.removesuffix("_s") for other in excluded if getattr(self, other) is not None]:
            raise ConfigurationError(f"{name.removesuffix('_s')} {reason}; leave out {' and '.join(given)}")

    def load_options(self) -> LoadOptions:
        """Returns the options that an evaluation stores of the request; see ``LoadRequest``."""
        kept = LoadRequest.load_options(self)
        return replace(kept, max_duration_s=self.duration_s, concurrency=self.concurrency)

    @property
    def extent(self) -> Extent:
        """The duration for which queries are sent, and their number.

        Raises:
            ConfigurationError: A number is out of range.
        """
        from inferometer.evaluators.load.arrivals import Extent

        if self.duration_s is not None:
            return Extent(self.duration_s, 1, self.duration_s)
        return Extent(self.least_duration_s, self.least_queries)


@dataclass(frozen=True, slots=True, kw_only=True)
class MaxQpsRequest(LoadRequest):
    """A search for the highest rate at which a latency percentile stays within the bound.

    Attributes:
        max_rate_qps: The highest rate to try: half of what this machine can send; None sets no limit.

    Raises:
        ConfigurationError: Two options exclude each other, a number is out of its range, or the arrival
            process has no steady rate.
    """

    default_min_duration_s: ClassVar[float] = options.PROBE_MIN_DURATION_S
    default_min_queries: ClassVar[int] = options.PROBE_MIN_QUERIES

    latency_bound_ms: float = declared(
        options.LATENCY_BOUND_MS,
        "Bound for the latency percentile.",
        "MS",
        within=Range(0.001, 3_600_000),
        flags=("--latency_bound",),
    )
    tolerance: float = declared(
        options.TOLERANCE,
        "Target for half the width of the answer's interval, by this search alone.",
        "SHARE",
        within=Range(0.0001, 1),
    )
    time_budget_s: float = declared(
        options.TIME_BUDGET_S, "Time limit of the search.", "S", within=Range(1, 7 * 86_400)
    )
    max_rate_qps: float | None = None

    def __post_init__(self) -> None:
        from inferometer.evaluators.load.arrivals import RampArrivals

        LoadRequest.__post_init__(self)
        process = self.process
        check_number("initial_qps", self.rate_qps, Range(1e-6, 1e9))
        check_number("percentile", self.percentile, Range(1, 99.999))
        check_number("min_duration_s", self.least_duration_s, Range(0.01, 86_400))
        check_number("min_queries", self.least_queries, Range(1, 100_000_000))
        check_number("max_rate_qps", self.max_rate_qps, POSITIVE)
        if isinstance(process, RampArrivals):
            raise ConfigurationError("arrival ramp has no steady rate to search for; use poisson or gamma")
        least_s = _LEAST_PROBES * (self.least_duration_s + 2 * self.latency_bound_ms / 1e3)
        if least_s > self.time_budget_s * _ROUNDING:
            raise ConfigurationError(
                f"time_budget is {self.time_budget_s:g} s; with this min_duration and latency_bound "
                f"it must be at least {least_s:g} s"
            )
        if self.rate_qps * self.time_budget_s < _LEAST_PROBES:
            raise ConfigurationError(
                f"initial_qps is {self.rate_qps:g}: a time_budget of {self.time_budget_s:g} s has fewer "
                f"than {_LEAST_PROBES} queries at this rate; raise one of the two"
            )

    @property
    def late_fraction(self) -> float:
        """The share of queries that are allowed to be later than the bound."""
        return 1 - self.percentile / 100

    def load_options(self) -> LoadOptions:
        """Returns the options that an evaluation stores of the request; see ``LoadRequest``."""
        kept = LoadRequest.load_options(self)
        return replace(kept, tolerance=self.tolerance, time_budget_s=self.time_budget_s)
