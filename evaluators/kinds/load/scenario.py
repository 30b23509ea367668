"""A scenario of MLPerf as the load of a job: LoadGen's settings, its logs, and the record that is kept."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from inferometer.evaluators.jobs.defaults import INITIAL_QPS, LATENCY_BOUND_MS, WORKLOAD_MIN_QUERIES
from inferometer.evaluators.kinds.load.measurement import LoadMeasurement, LoadOptions, Scenario
from inferometer.evaluators.kinds.load.request import WorkloadRequest
from inferometer.evaluators.load.issuer import IssuerProgress, Stop
from inferometer.evaluators.load.load_run import bound_ns_of
from inferometer.evaluators.load.target import QueryTarget
from inferometer.evaluators.mlperf.run import check_loadgen, expected_qps, run_mlperf
from inferometer.evaluators.mlperf.settings import MlperfSettings, least_queries
from inferometer.manifests.errors import EvaluationInterrupted, OutputError

_WINDOW = 256


@dataclass(frozen=True, slots=True)
class MlperfWork:
    """A scenario that LoadGen puts on the system.

    Attributes:
        settings: The settings of LoadGen; the rate is 0 if it is measured before the run.
        options: What an evaluation keeps of the request.
    """

    settings: MlperfSettings
    options: LoadOptions

    @classmethod
    def of(cls, request: WorkloadRequest, scenario: Scenario) -> MlperfWork:
        """Returns the work of a request that names a scenario.

        Raises:
            ConfigurationError: LoadGen is not installed, or the numbers make no sense.
        """
        check_loadgen()
        server = scenario is Scenario.SERVER
        bound_ms = request.latency_bound_ms or (LATENCY_BOUND_MS if server else None)
        settings = MlperfSettings(
            scenario=scenario,
            rate_qps=request.rate_qps if server else request.initial_qps or 0.0,
            bound_ns=bound_ns_of(bound_ms or LATENCY_BOUND_MS),
            percentile=request.percentile,
            min_duration_s=request.least_duration_s,
            min_queries=request.min_queries or max(WORKLOAD_MIN_QUERIES, least_queries(request.percentile)),
            seed=request.seed,
            timeout_ms=request.timeout_ms,
            window=max(_WINDOW, 4 * request.max_batch_size),
        )
        options = replace(
            request.load_options(),
            arrival=f"mlperf {scenario.value}",
            rate_qps=settings.rate_qps if server else 0.0,
            latency_bound_ms=bound_ms,
            min_duration_s=settings.min_duration_s,
            min_queries=settings.min_queries,
            scenario=scenario,
        )
        return cls(settings, options)

    def __str__(self) -> str:
        """Returns the load in one line."""
        s = self.settings
        rate = f", {s.rate_qps:g} queries/s" if s.scenario is Scenario.SERVER else ""
        return (
            f"LoadGen's scenario {s.scenario.value}{rate}, at least {s.min_queries} queries "
            f"and {s.min_duration_s:g} s"
        )

    def run(
        self,
        target: QueryTarget,
        inputs: int,
        directory: Path,
        stop_requested: Callable[[], bool],
        on_progress: Callable[[IssuerProgress], None],
    ) -> tuple[LoadMeasurement, bool]:
        """Runs the scenario, with LoadGen's logs in a new folder, which is removed if the run is interrupted.

        Returns:
            The measurement, still without its duration, and whether the run completed.

        Raises:
            EvaluationInterrupted: The run was stopped before a query was issued.
            OutputError: The logs cannot be written or read.
        """
        settings = self.settings
        if not settings.rate_qps:
            found_qps = expected_qps(
                target,
                settings.scenario,
                window=settings.window,
                timeout_ms=settings.timeout_ms,
                stop_requested=stop_requested,
            )
            settings = replace(settings, rate_qps=found_qps or INITIAL_QPS)
        if stop_requested():
            raise EvaluationInterrupted("stopped before a query was sent; nothing was published")
        try:
            directory.mkdir(parents=True)
        except OSError as error:
            raise OutputError(f"{directory}: cannot be made for LoadGen's logs: {error.strerror}") from error
        whole = False
        try:
            run = run_mlperf(
                target, settings, inputs, directory, stop_requested=stop_requested, on_progress=on_progress
            )
            whole = run.issued.stop is not Stop.INTERRUPTED
        finally:
            if not whole:
                shutil.rmtree(directory, ignore_errors=True)
        if not len(run.issued.queries):
            raise EvaluationInterrupted("stopped before a query was sent; nothing was published")
        mlperf = run.result if whole else None
        options, seed = self.options, self.settings.seeds[0]
        kept = run.issued.kept(options.rate_qps, options.arrival, seed, run.checksum)
        return LoadMeasurement(options, replace(kept, invalid=run.invalid), 0, mlperf), whole
