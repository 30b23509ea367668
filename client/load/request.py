"""What ``predict workload`` and ``predict max-qps`` are asked for."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from agent.device import CPU, Device, DeviceKind
from agent.predictor import Weights
from agent.session import SessionOptions
from client.load.defaults import (
    PROBE_MIN_DURATION_S,
    PROBE_MIN_QUERIES,
    WORKLOAD_MIN_DURATION_S,
    WORKLOAD_MIN_QUERIES,
)
from evaluators.loadgen.arrivals import ArrivalProcess, Extent, arrival_process
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
    weights: str
    seed: int
    gpu: bool
    gpu_device_id: int
    threads: int | None
    publish: bool
    database_address: str | None
    database_name: str | None
    initial_qps: float
    arrival: str
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
    duration: float | None = None
    schedule: Path | None = None
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
        )

    @property
    def process(self) -> ArrivalProcess:
        """How queries arrive.

        Raises:
            ConfigurationError: There is no such process.
        """
        return arrival_process(self.arrival)

    def load_options(self, drawn: Schedule | None) -> LoadOptions:
        """What is kept of the options; ``drawn`` is the schedule of a workload."""
        search = self.kind is LoadKind.MAX_QPS
        return LoadOptions(
            kind=self.kind,
            arrival=drawn.source if drawn else str(self.process),
            rate_qps=drawn.rate_qps if drawn else self.initial_qps,
            percentile=self.percentile,
            latency_bound_ms=self.latency_bound,
            timeout_ms=self.timeout_ms,
            min_duration_s=self.duration_s(PROBE_MIN_DURATION_S if search else WORKLOAD_MIN_DURATION_S),
            min_queries=self.min_queries or (PROBE_MIN_QUERIES if search else WORKLOAD_MIN_QUERIES),
            max_duration_s=self.duration,
            seed=self.seed,
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

    def workload_schedule(self) -> Schedule:
        """Returns the schedule of a workload: of its file, or drawn.

        Raises:
            ConfigurationError: It cannot be read, or the numbers make no sense.
        """
        if self.schedule is not None:
            return Schedule.read(self.schedule)
        if self.duration is not None:
            extent = Extent(self.duration, 1, self.duration)
        else:
            least_s = self.duration_s(WORKLOAD_MIN_DURATION_S)
            extent = Extent(least_s, self.min_queries or WORKLOAD_MIN_QUERIES)
        return Schedule.drawn(self.process, self.initial_qps, extent, self.seed)

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
