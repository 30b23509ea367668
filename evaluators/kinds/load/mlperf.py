"""A run of an MLPerf scenario: LoadGen issues the queries, which are also timed by our own clock.

``MlperfWork`` makes a scenario the load of a job: LoadGen's settings, its logs, and the record that is
stored.
"""

from __future__ import annotations

import shutil
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

from inferometer.evaluators.jobs.options import INITIAL_QPS, LATENCY_BOUND_MS, WORKLOAD_MIN_QUERIES
from inferometer.evaluators.kinds.load.measurement import LoadMeasurement, LoadOptions, MlperfResult, Scenario
from inferometer.evaluators.kinds.load.mlperf_settings import (
    MlperfLog,
    MlperfSettings,
    least_queries,
    server_schedule,
)
from inferometer.evaluators.kinds.load.request import WorkloadRequest
from inferometer.evaluators.load.arrivals import Extent, Schedule
from inferometer.evaluators.load.issuer import RunLimits, RunWatch, frozen_heap
from inferometer.evaluators.load.load_session import ClosedLoop, run_closed_loop
from inferometer.evaluators.load.queries import LoadRun, Outcome, Queries, QueryLog, Stop, bound_ns_of
from inferometer.evaluators.load.target import QueryTarget
from inferometer.evaluators.load.validity import lag_in_percentiles
from inferometer.manifests.errors import ConfigurationError, EvaluationInterrupted, OutputError, explained

_NS_PER_S = 1_000_000_000
_ROOM_S = 0.05
_SILENT_TIMEOUTS = 2
_PROBE_S = 0.5
_PROBES_S = 2.5
_AGREEMENT = 0.9
_RESERVE = 1.25


def check_loadgen() -> None:
    """Raises ConfigurationError if LoadGen is not installed, or cannot be imported."""
    try:
        from inferometer.evaluators.kinds.load import mlperf_library  # noqa: F401 - only whether it can be imported
    except (ImportError, AttributeError) as error:
        reason = " ".join(str(error).split())
        raise ConfigurationError(
            f"--scenario needs MLPerf's LoadGen, which cannot be imported ({reason}); "
            'install it with: pip install "inferometer[mlperf]"'
        ) from error


def expected_qps(target: QueryTarget, scenario: Scenario, window: int, limits: RunLimits) -> float | None:
    """Measures the rate that LoadGen should expect, with a margin.

    LoadGen prepares as many queries as this rate requires: if it is too low, LoadGen runs out of them before
    the minimum duration, and the run is INVALID. A half-second probe may find a system that is still warming
    up, or a busy machine, so probes are repeated until one agrees with the fastest before it, or for 2.5 s,
    and the fastest is used. ``window`` is the number of samples in flight in the offline scenario. Progress
    is not reported.

    Returns:
        The rate; None if no query was answered.
    """
    samples = scenario.samples_per_query
    flight = window if scenario is Scenario.OFFLINE else samples
    loop = ClosedLoop(flight, Extent(_PROBE_S, flight))
    quiet = RunLimits(limits.timeout_ms, stop_requested=limits.stop_requested)
    fastest_qps, probed_s = 0.0, 0.0
    while probed_s < _PROBES_S:
        run = run_closed_loop(target, loop, quiet)
        answered = run.queries.chosen(run.queries.outcome == Outcome.ANSWERED)
        if not len(answered) or limits.stop_requested():
            break
        probe_s = max(1, int(answered.done_ns.max())) / _NS_PER_S
        rate_qps = len(answered) / probe_s / samples
        before_qps, fastest_qps = fastest_qps, max(fastest_qps, rate_qps)
        if min(before_qps, rate_qps) >= _AGREEMENT * fastest_qps:
            break
        probed_s += max(probe_s, _PROBE_S)
    return _RESERVE * fastest_qps or None


def run_mlperf(
    target: QueryTarget,
    settings: MlperfSettings,
    inputs: int,
    directory: Path,
    limits: RunLimits,
    clock: Callable[[], int] = time.perf_counter_ns,
) -> tuple[LoadRun, MlperfResult]:
    """Runs a scenario of LoadGen on a target, and waits for its end.

    LoadGen knows neither timeouts nor failures. A sample that fails or times out is reported to it as
    complete, so that it goes on, and counted here; the run is then invalid. A run is abandoned when a stop is
    requested, and when nothing was answered within twice the timeout and at least two samples timed out.
    LoadGen cannot be stopped: its thread then stays blocked, and this process cannot run it again.

    LoadGen chooses from ``inputs`` inputs and logs to ``directory``, which must be empty. A query times out
    from when it was issued or, offline, from when it was sent to the target. The clock is monotonic, and the
    same as the target's.

    Returns:
        The samples as timed by our own clock, in the order of issue, and LoadGen's result. Scheduled times
        are when LoadGen issued the query (server: when it was due; offline: when the run began). The checksum
        is that of LoadGen's schedule in the server scenario; empty if unknown.

    Raises:
        ConfigurationError: LoadGen is not installed, or a run of it was abandoned in this process.
        OutputError: LoadGen failed, or wrote no log.
    """
    check_loadgen()
    from inferometer.evaluators.kinds.load.mlperf_library import LoadGenRun

    schedule = Schedule(np.empty(0, np.int64), settings.scenario.value, 0.0)
    log = QueryLog(schedule, clock())
    window = settings.window if settings.scenario is Scenario.OFFLINE else 0
    sut = _SystemUnderTest(target, window, inputs, log, LoadGenRun.complete, clock)
    run = LoadGenRun(settings, inputs, sut.issue, directory)
    with frozen_heap():
        target.begin(sut)
        ended = False
        try:
            run.start()
            watch = RunWatch(log, limits, None, 0)
            stop = _watched(run.wait, sut, log, watch, limits.timeout_ns, clock)
            ended = stop is Stop.COMPLETE
            ended_ns = clock()
        finally:
            sut.stopped = True
            if not ended:
                run.leave(sut.complete_open)
            target.end(0.0)
    if sut.error is not None:
        raise sut.error
    timed = LoadRun.of(log, schedule, stop, ended_ns, limits.timeout_ns)
    return _closed(timed, settings, MlperfLog(directory))


def _watched(
    wait: Callable[[float], bool],
    sut: _SystemUnderTest,
    log: QueryLog,
    watch: RunWatch,
    timeout_ns: int,
    clock: Callable[[], int],
) -> Stop:
    """Waits for the end and times out samples; returns why the run must be abandoned, if it must."""
    replied, quiet_ns, given_up = 0, clock(), 0
    while not wait(max(0, watch.next_ns - clock()) / _NS_PER_S):
        now_ns = clock()
        if now_ns < watch.next_ns:
            continue
        stop = watch.look(now_ns)
        if stop or sut.error is not None:
            return stop or Stop.INTERRUPTED
        given_up += sut.complete_given_up()
        if log.replied_count != replied:
            replied, quiet_ns, given_up = log.replied_count, now_ns, 0
        elif given_up >= 2 and now_ns - quiet_ns >= _SILENT_TIMEOUTS * timeout_ns:
            return Stop.SILENT
    return Stop.COMPLETE


def _closed(run: LoadRun, settings: MlperfSettings, loadgen: MlperfLog) -> tuple[LoadRun, MlperfResult]:
    """Returns the run with the times at which its samples were due, as far as they are known."""
    queries, clock_known, checksum = run.queries, True, ""
    if settings.scenario is Scenario.OFFLINE:
        queries = replace(queries, scheduled_ns=np.zeros(len(queries), np.int64))
    elif settings.scenario is Scenario.SERVER:
        schedule, next_ns = server_schedule(settings)
        clock_known = loadgen.generated == (len(schedule), next_ns) and len(queries) <= len(schedule)
        if clock_known:
            queries = on_schedule(queries, schedule)
            checksum = schedule.checksum
    wrong = len(queries) - queries.count(Outcome.ANSWERED)
    failures = f"{wrong} of {len(queries)} samples have no right answer, but LoadGen counts each as answered"
    lag = lag_in_percentiles(queries, 0, settings.percentile, settings.bound_ns) if checksum else ""
    invalid = "; ".join(filter(None, (failures if wrong else "", lag)))
    result = loadgen.result(settings.scenario, ended=run.stop is Stop.COMPLETE, clock_known=clock_known)
    return replace(run, queries=queries, checksum=checksum, invalid=invalid), result


def on_schedule(queries: Queries, schedule: Schedule) -> Queries:
    """Returns the queries with the times at which they are due in LoadGen's schedule.

    LoadGen does not report when it began. Our times are measured from its first query, which may have been
    late. No query is sent before it is due: if one seems to be, all times are shifted accordingly.

    Args:
        queries: The first queries of the schedule, in its order.
        schedule: When each query was due.
    """
    due_ns = schedule.offsets_ns[: len(queries)]
    sent = queries.sent_ns >= 0
    late_ns = max(0, int(np.max((due_ns - queries.sent_ns)[sent], initial=0)))
    return replace(
        queries,
        scheduled_ns=due_ns,
        sent_ns=np.where(sent, queries.sent_ns + late_ns, queries.sent_ns),
        done_ns=np.where(queries.done_ns >= 0, queries.done_ns + late_ns, queries.done_ns),
    )


@dataclass(eq=False)
class _SystemUnderTest:
    """The adapter between LoadGen's samples and the target's answers (``target.Answers``). Thread-safe.

    The target predicts input n modulo ``inputs``, so sample k, of input i, is sent as k · inputs + i. At most
    ``window`` samples are in flight; 0 sets no limit.
    """

    target: QueryTarget
    window: int
    inputs: int
    log: QueryLog
    complete: Callable[[int], None]
    clock: Callable[[], int]
    stopped: bool = False
    """Whether new samples are ignored and completed at once."""
    error: Exception | None = None
    """The exception that the target raised, if any."""
    _open: dict[int, int] = field(default_factory=dict)
    """LoadGen's ids of the incomplete samples, keyed by sample number."""
    _room: threading.Event = field(default_factory=threading.Event)

    def issue(self, responses: Sequence[int], indices: Sequence[int]) -> None:
        """Sends a query to the target, in LoadGen's thread; must not raise."""
        now_ns = self.clock()
        if not self.log.sent_count:
            self.log.begin(now_ns)
        for response, index in zip(responses, indices, strict=True):
            if self.window:
                self._wait_for_room()
                now_ns = self.clock()
            if self.stopped:
                self.complete(response)
                continue
            sample = self.log.sent_unscheduled(now_ns)
            self._open[sample] = response
            try:
                self.target.submit(sample * self.inputs + index)
            except Exception as error:  # noqa: BLE001 - it must not reach LoadGen's C++; the run raises it
                self.error, self.stopped = error, True

    def _wait_for_room(self) -> None:
        while len(self._open) >= self.window and not self.stopped:
            self._room.clear()
            if len(self._open) >= self.window:
                self._room.wait(_ROOM_S)

    def answered(self, query: int, done_ns: int, **times: int) -> None:
        """Records an answer."""
        sample = query // self.inputs
        self.log.answered(sample, done_ns, **times)
        self._settle(sample)

    def failed(self, query: int, done_ns: int, reason: str) -> None:
        """Records a failure."""
        sample = query // self.inputs
        self.log.failed(sample, done_ns, reason)
        self._settle(sample)

    def _settle(self, sample: int) -> bool:
        """Completes a sample if it is still incomplete; returns whether it was."""
        response = self._open.pop(sample, None)
        if response is None:
            return False
        self.complete(response)
        self._room.set()
        return True

    def complete_given_up(self) -> int:
        """Completes the samples that have timed out; returns their number."""
        if not (samples := sorted(self._open.copy())):
            return 0
        outcome = self.log.queries(samples[0], samples[-1] + 1).outcome
        return sum(self._settle(n) for n in samples if outcome[n - samples[0]] == Outcome.TIMED_OUT)

    def complete_open(self) -> None:
        """Completes every incomplete sample."""
        for sample in self._open.copy():
            self._settle(sample)


_WINDOW = 256


@dataclass(frozen=True, slots=True)
class MlperfWork:
    """A scenario by which LoadGen puts the system under load.

    Attributes:
        settings: The settings of LoadGen; the rate is 0 if it is measured before the run.
        options: The options of the request that an evaluation stores.
    """

    settings: MlperfSettings
    options: LoadOptions

    @classmethod
    def of(cls, request: WorkloadRequest, scenario: Scenario) -> MlperfWork:
        """Returns the work of a request for a scenario; raises ConfigurationError if that cannot run."""
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
        """Returns a one-line description of the load."""
        s = self.settings
        rate = f", {s.rate_qps:g} queries/s" if s.scenario is Scenario.SERVER else ""
        return (
            f"LoadGen's scenario {s.scenario.value}{rate}, at least {s.min_queries} queries "
            f"and {s.min_duration_s:g} s"
        )

    def run(
        self, target: QueryTarget, inputs: int, directory: Path, limits: RunLimits
    ) -> tuple[LoadMeasurement, bool]:
        """Runs the scenario with LoadGen's logs in a new folder, which is removed if the run is interrupted.

        Returns:
            The measurement, whose duration is not yet set, and whether the run completed.

        Raises:
            EvaluationInterrupted: The run was stopped before a query was issued.
            OutputError: The logs cannot be written or read.
        """
        settings = self.settings
        if not settings.rate_qps:
            found_qps = expected_qps(target, settings.scenario, settings.window, limits)
            settings = replace(settings, rate_qps=found_qps or INITIAL_QPS)
        if limits.stop_requested():
            raise EvaluationInterrupted("stopped before a query was sent; nothing was published")
        with explained(OutputError, f"{directory}: cannot create LoadGen's log folder"):
            directory.mkdir(parents=True)
        whole = False
        try:
            run, result = run_mlperf(target, settings, inputs, directory, limits)
            whole = run.stop is not Stop.INTERRUPTED
        finally:
            if not whole:
                shutil.rmtree(directory, ignore_errors=True)
        if not len(run.queries):
            raise EvaluationInterrupted("stopped before a query was sent; nothing was published")
        options = self.options
        run = replace(run, rate_qps=options.rate_qps, source=options.arrival, seed=self.settings.seeds[0])
        return LoadMeasurement(options, run, 0, result if whole else None), whole
