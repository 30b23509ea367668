"""What ``predict workload`` and ``predict max-qps`` are asked for."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from agent.device import CPU, Device, DeviceKind
from agent.predictor import Weights
from agent.session import SessionOptions
from client.load.defaults import (
    ARRIVAL,
    INITIAL_QPS,
    PROBE_MIN_DURATION_S,
    PROBE_MIN_QUERIES,
    SPARE_CORES,
    WORKLOAD_MIN_DURATION_S,
    WORKLOAD_MIN_QUERIES,
)
from evaluators.loadgen.arrivals import ArrivalProcess, Extent, arrival_process
from evaluators.loadgen.closed_loop import ClosedLoop
from evaluators.loadgen.record import LoadKind, LoadOptions
from evaluators.loadgen.schedule import Schedule
from manifests.errors import ConfigurationError


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadRequest:
    """The options of both commands, under their names on the command line."""

    kind: LoadKind
    model_name: str
    model_version: str | None
    framework_name: str | None
    agent_address: str | None
    open_timeout: float
    weights: str
    seed: int
    gpu: bool
    gpu_device_id: int
    threads: int | None
    repeat: int
    publish: bool
    database_address: str | None
    database_name: str | None
    initial_qps: float | None
    arrival: str | None
    percentile: float
    latency_bound: float | None
    min_duration_s: float | None
    min_queries: int | None
    timeout_ms: float
    warm_up_queries: int
    max_batch_size: int
    max_queue_delay_ms: float
    include_preprocess: bool
    synthetic: bool
    dataset_name: str | None
    dataset_path: Path | None
    force: bool = False
    duration: float | None = None
    schedule: Path | None = None
    write_schedule: Path | None = None
    concurrency: int | None = None
    scenario: str | None = None
    tolerance: float | None = None
    time_budget: float | None = None

    @property
    def session_options(self) -> SessionOptions:
        """What the model is opened with."""
        return SessionOptions(
            device=Device(DeviceKind.GPU, self.gpu_device_id) if self.gpu else CPU,
            threads=self.threads,
            weights=Weights(self.weights.lower()),
            seed=self.seed,
            spare_cores=SPARE_CORES,
        )

    @property
    def process(self) -> ArrivalProcess:
        """How queries arrive.

        Raises:
            ConfigurationError: There is no such process.
        """
        return arrival_process(self.arrival or ARRIVAL)

    @property
    def rate_qps(self) -> float:
        """The rate, or the first one of a search."""
        return self.initial_qps or INITIAL_QPS

    def load_options(self, work: Schedule | ClosedLoop | None) -> LoadOptions:
        """What is kept of the options; ``work`` is what a workload sends."""
        search = self.kind is LoadKind.MAX_QPS
        if isinstance(work, Schedule):
            arrival, rate_qps = work.source, work.rate_qps
        else:
            arrival, rate_qps = (str(work), 0.0) if work else (str(self.process), self.rate_qps)
        return LoadOptions(
            kind=self.kind,
            arrival=arrival,
            rate_qps=rate_qps,
            percentile=self.percentile,
            latency_bound_ms=self.latency_bound,
            timeout_ms=self.timeout_ms,
            min_duration_s=self.duration_s(PROBE_MIN_DURATION_S if search else WORKLOAD_MIN_DURATION_S),
            min_queries=self.min_queries or (PROBE_MIN_QUERIES if search else WORKLOAD_MIN_QUERIES),
            max_duration_s=self.duration,
            seed=self.seed,
            concurrency=self.concurrency,
            max_batch_size=self.max_batch_size,
            max_queue_delay_ms=self.max_queue_delay_ms,
            include_preprocess=self.include_preprocess,
            warm_up_queries=self.warm_up_queries,
            time_budget_s=self.time_budget,
            tolerance=self.tolerance,
        )

    def duration_s(self, default_s: float) -> float:
        """How long queries are sent at the least."""
        return default_s if self.min_duration_s is None else self.min_duration_s

    def workload(self) -> Schedule | ClosedLoop:
        """Returns what a workload sends: the schedule of its file, or one that is drawn, or a closed loop.

        Raises:
            ConfigurationError: The file cannot be read, or the numbers make no sense.
        """
        if self.schedule is not None:
            return Schedule.read(self.schedule)
        if self.concurrency is not None:
            return ClosedLoop(self.concurrency, self.extent)
        return Schedule.drawn(self.process, self.rate_qps, self.extent, self.seed)

    @property
    def draws(self) -> bool:
        """Whether a workload's schedule is drawn, and neither that of a file nor left to others."""
        return self.schedule is None and self.concurrency is None and self.scenario is None

    @property
    def extent(self) -> Extent:
        """How long a workload sends queries, and how many.

        Raises:
            ConfigurationError: A number makes no sense.
        """
        if self.duration is not None:
            return Extent(self.duration, 1, self.duration)
        least_s = self.duration_s(WORKLOAD_MIN_DURATION_S)
        return Extent(least_s, self.min_queries or WORKLOAD_MIN_QUERIES)

    def check(self) -> None:
        """Refuses options that exclude each other.

        Raises:
            ConfigurationError: Some do.
        """
        if self.dataset_path and self.dataset_name:
            raise ConfigurationError(
                "--dataset_path and --dataset_name both name a dataset; give one of them"
            )
        if self.synthetic and (self.dataset_path or self.dataset_name):
            raise ConfigurationError(
                "--synthetic needs no dataset; leave out --dataset_name and --dataset_path"
            )
        if self.duration is not None and (self.min_duration_s is not None or self.min_queries is not None):
            raise ConfigurationError("--duration is all of it; leave out --min_duration and --min_queries")
        whole = {
            "--initial_qps": self.initial_qps,
            "--arrival": self.arrival,
            "--write_schedule": self.write_schedule,
        }
        if self.scenario is not None:
            others = {
                "--arrival": self.arrival,
                "--schedule": self.schedule,
                "--write_schedule": self.write_schedule,
                "--concurrency": self.concurrency,
                "--duration": self.duration,
            }
            self._refuse(others, "--scenario leaves it to MLPerf's LoadGen when queries are sent")
        if self.concurrency is not None:
            self._refuse({"--schedule": self.schedule, **whole}, "--concurrency sends when an answer comes")
        if self.schedule is not None:
            extent = {
                "--duration": self.duration,
                "--min_duration": self.min_duration_s,
                "--min_queries": self.min_queries,
            }
            self._refuse({**whole, **extent}, "--schedule says when each query is due")

    @staticmethod
    def _refuse(options: Mapping[str, object], reason: str) -> None:
        if given := [name for name, value in options.items() if value is not None]:
            raise ConfigurationError(f"{reason}; leave out {' and '.join(given)}")
