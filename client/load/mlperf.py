"""``predict workload --scenario``: MLPerf's scenarios, by LoadGen."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from client.load.defaults import INITIAL_QPS, LATENCY_BOUND_MS, WORKLOAD_MIN_DURATION_S, WORKLOAD_MIN_QUERIES
from client.load.request import LoadRequest
from evaluators.loadgen.mlperf_result import Scenario
from evaluators.loadgen.mlperf_run import MlperfRun, check_loadgen, expected_qps, run_mlperf
from evaluators.loadgen.mlperf_settings import MlperfSettings, least_queries
from evaluators.loadgen.record import LoadOptions, LoadRecord, LoadRun
from evaluators.loadgen.run_watch import IssuerProgress, Stop
from evaluators.loadgen.target import QueryTarget
from manifests.errors import EvaluationInterrupted, OutputError

_WINDOW = 256
_NS_PER_MS = 1_000_000


@dataclass(frozen=True, slots=True)
class MlperfWork:
    """A scenario that LoadGen is to put on the system.

    Attributes:
        settings: What it is asked for; the rate is 0 where it is measured before the run.
        options: What is kept of that.
    """

    settings: MlperfSettings
    options: LoadOptions

    @classmethod
    def of(cls, request: LoadRequest, scenario: Scenario) -> MlperfWork:
        """Returns the work of a request that names a scenario.

        Raises:
            ConfigurationError: LoadGen is not installed, or the numbers make no sense.
        """
        check_loadgen()
        server = scenario is Scenario.SERVER
        bound_ms = request.latency_bound or (LATENCY_BOUND_MS if server else None)
        settings = MlperfSettings(
            scenario=scenario,
            rate_qps=request.rate_qps if server else request.initial_qps or 0.0,
            bound_ns=round((bound_ms or LATENCY_BOUND_MS) * _NS_PER_MS),
            percentile=request.percentile,
            min_duration_s=request.duration_s(WORKLOAD_MIN_DURATION_S),
            min_queries=request.min_queries or max(WORKLOAD_MIN_QUERIES, least_queries(request.percentile)),
            seed=request.seed,
            timeout_ms=request.timeout_ms,
            window=max(_WINDOW, 4 * request.max_batch_size),
        )
        options = replace(
            request.load_options(None),
            arrival=f"mlperf {scenario.value}",
            rate_qps=settings.rate_qps if server else 0.0,
            latency_bound_ms=bound_ms,
            min_duration_s=settings.min_duration_s,
            min_queries=settings.min_queries,
            scenario=scenario,
        )
        return cls(settings, options)

    def __str__(self) -> str:
        """How it is announced."""
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
    ) -> tuple[LoadRecord, bool]:
        """Runs it.

        Args:
            target: The system under test.
            inputs: How many inputs it has.
            directory: For LoadGen's logs; is made, and is taken away again if the run does not end by itself.
            stop_requested: Asked four times a second; once it says yes, the run ends.
            on_progress: Told four times a second.

        Returns:
            What was measured, and whether it came to its end.

        Raises:
            EvaluationInterrupted: It was stopped before a query was issued.
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
        with _logs(directory) as keep:
            run = run_mlperf(
                target,
                settings,
                inputs,
                directory,
                stop_requested=stop_requested,
                on_progress=on_progress,
            )
            whole = run.issued.stop is not Stop.INTERRUPTED
            if whole:
                keep()
        if not len(run.issued.queries):
            raise EvaluationInterrupted("stopped before a query was sent; nothing was published")
        return LoadRecord(self.options, (self._load_run(run),), mlperf=run.result if whole else None), whole

    def _load_run(self, run: MlperfRun) -> LoadRun:
        """The run as it is kept. Nothing is cut off as the empty start: LoadGen counts it, too."""
        return LoadRun(
            rate_qps=self.options.rate_qps,
            source=self.options.arrival,
            seed=self.settings.seeds[0],
            checksum=run.checksum,
            queries=run.issued.queries,
            cut_ns=0,
            stopped=run.issued.stop.value,
            invalid=run.issued.invalid,
            reasons=run.issued.reasons,
        )


@contextmanager
def _logs(directory: Path) -> Iterator[Callable[[], None]]:
    """Makes the folder, and takes it away in the end unless the function that it gives was called.

    Raises:
        OutputError: It cannot be made.
    """
    try:
        directory.mkdir(parents=True)
    except OSError as error:
        raise OutputError(f"{directory}: cannot be made for LoadGen's logs: {error.strerror}") from error
    kept: list[bool] = []
    try:
        yield lambda: kept.append(True)
    finally:
        if not kept:
            shutil.rmtree(directory, ignore_errors=True)
