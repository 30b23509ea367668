"""A scenario of MLPerf: LoadGen decides when queries are issued, and our clocks run beside its own."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from evaluators.loadgen.arrivals import Extent
from evaluators.loadgen.closed_loop import ClosedLoop, run_closed_loop
from evaluators.loadgen.issued_run import IssuedRun, lag_reason
from evaluators.loadgen.issuer import frozen_heap
from evaluators.loadgen.mlperf_logs import MlperfLog
from evaluators.loadgen.mlperf_result import MlperfResult, Scenario
from evaluators.loadgen.mlperf_settings import MlperfSettings, server_schedule
from evaluators.loadgen.queries import Outcome, Queries
from evaluators.loadgen.query_log import QueryLog
from evaluators.loadgen.run_watch import IssuerProgress, RunLimits, RunWatch, Stop
from evaluators.loadgen.schedule import Schedule
from evaluators.loadgen.target import QueryTarget
from manifests.errors import ConfigurationError

_NS_PER_S = 1_000_000_000
_ROOM_S = 0.05
_SILENT_TIMEOUTS = 2
_PROBE_S = 0.5
_PROBES_S = 2.5
_AGREEMENT = 0.9
_RESERVE = 1.25


@dataclass(frozen=True, slots=True, eq=False)
class MlperfRun:
    """What a run gave.

    Attributes:
        issued: The samples by our own clocks, in the order in which LoadGen issued them. They were scheduled
            when LoadGen issued their query (server: when it was due; offline: when the run began).
        checksum: Of the schedule of the scenario server, where that is known; else empty.
        result: What LoadGen says.
    """

    issued: IssuedRun
    checksum: str
    result: MlperfResult


def check_loadgen() -> None:
    """Makes sure that LoadGen can be had.

    Raises:
        ConfigurationError: It is not installed, or cannot be imported.
    """
    try:
        from evaluators.loadgen import mlperf_library  # noqa: F401 - whether it can be had
    except (ImportError, AttributeError) as error:
        reason = " ".join(str(error).split())
        raise ConfigurationError(
            f"--scenario needs MLPerf's LoadGen, which cannot be imported ({reason}); "
            'install it with: pip install "inferscope[mlperf]"'
        ) from error


def expected_qps(
    target: QueryTarget,
    scenario: Scenario,
    *,
    window: int,
    timeout_ms: float,
    stop_requested: Callable[[], bool] = lambda: False,
) -> float | None:
    """Measures the rate that LoadGen is to expect, with some reserve.

    LoadGen prepares as many queries as this rate needs: with one that is too low it runs out of them before
    the minimum duration, and the run is INVALID. A probe of half a second may meet a system that is still
    warming up, or a machine that does something else. So probes are repeated until one agrees with the
    fastest before it, or they have taken 2.5 s together, and the fastest counts.

    Args:
        target: The system under test.
        scenario: Whose queries are counted, those of multi_stream with their eight samples.
        window: As many samples are in flight in the scenario offline.
        timeout_ms: When a query is given up.
        stop_requested: Once it says yes, there is no further probe.

    Returns:
        The rate; None where no query was answered.
    """
    samples = scenario.samples_per_query
    flight = window if scenario is Scenario.OFFLINE else samples
    loop = ClosedLoop(flight, Extent(_PROBE_S, flight))
    fastest_qps, probed_s = 0.0, 0.0
    while probed_s < _PROBES_S:
        run = run_closed_loop(target, loop, timeout_ms=timeout_ms, stop_requested=stop_requested)
        answered = run.queries.chosen(run.queries.outcome == Outcome.ANSWERED)
        if not len(answered) or stop_requested():
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
    *,
    stop_requested: Callable[[], bool] = lambda: False,
    on_progress: Callable[[IssuerProgress], None] = lambda _: None,
    clock: Callable[[], int] = time.perf_counter_ns,
) -> MlperfRun:
    """Has LoadGen put a scenario on a target, and waits for its end.

    LoadGen has no timeout, and knows no failures. A sample that has failed, or is given up, is completed to
    it, so that it goes on, and counted here; the run is invalid then. A run is left when a stop is requested,
    and when in twice the timeout nothing was answered and two samples at the least were given up. LoadGen
    cannot be stopped: it then stays behind in a thread that is held, and this process can run it no more.

    Args:
        target: The system under test.
        settings: What is asked for.
        inputs: How many inputs the target has, of which LoadGen chooses.
        directory: An empty one, for LoadGen's logs.
        stop_requested: Asked four times a second; once it says yes, the run ends.
        on_progress: Told four times a second.
        clock: A monotonic clock in nanoseconds, the same as the target's.

    Raises:
        ConfigurationError: LoadGen is not installed, or a run of it was left in this process.
        OutputError: LoadGen has failed, or has written no log.
    """
    check_loadgen()
    from evaluators.loadgen.mlperf_library import LoadGenRun

    limits = RunLimits(settings.timeout_ms, None, None, None, stop_requested, on_progress)
    log = QueryLog(Schedule(np.empty(0, np.int64), settings.scenario.value, 0.0), clock())
    sut = _SystemUnderTest(target, settings, inputs, log, LoadGenRun.complete, clock)
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
    return _closed(log, settings, stop, ended_ns, limits.timeout_ns, MlperfLog(directory))


def _watched(
    wait: Callable[[float], bool],
    sut: _SystemUnderTest,
    log: QueryLog,
    watch: RunWatch,
    timeout_ns: int,
    clock: Callable[[], int],
) -> Stop:
    """Waits for the end, gives samples up, and says why the run has to be left."""
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


def _closed(
    log: QueryLog, settings: MlperfSettings, stop: Stop, ended_ns: int, timeout_ns: int, loadgen: MlperfLog
) -> MlperfRun:
    """The run with the times at which its samples were due, as far as these are known."""
    issued = IssuedRun.of(log, stop, ended_ns, timeout_ns, None)
    queries, clock_known, checksum = issued.queries, True, ""
    if settings.scenario is Scenario.OFFLINE:
        queries = replace(queries, scheduled_ns=np.zeros(len(queries), np.int64))
    elif settings.scenario is Scenario.SERVER:
        schedule, next_ns = server_schedule(settings)
        clock_known = loadgen.generated == (len(schedule), next_ns) and len(queries) <= len(schedule)
        if clock_known:
            queries = replace(queries, scheduled_ns=schedule.offsets_ns[: len(queries)])
            checksum = schedule.checksum
    reasons = (_failures(queries), lag_reason(queries, settings.bound_ns) if checksum else "")
    issued = replace(issued, queries=queries, invalid="; ".join(filter(None, reasons)))
    ended = stop is Stop.COMPLETE
    return MlperfRun(
        issued, checksum, loadgen.result(settings.scenario, ended=ended, clock_known=clock_known)
    )


def _failures(queries: Queries) -> str:
    """Why failures spoil a run; empty where there are none."""
    wrong = len(queries) - queries.count(Outcome.ANSWERED)
    if not wrong:
        return ""
    return f"{wrong} of {len(queries)} samples have no right answer, and LoadGen takes each for answered"


class _SystemUnderTest:
    """What LoadGen issues to, and what takes the target's answers (``target.Answers``). Thread-safe.

    The target predicts input n modulo their number: sample number k of input i is handed to it as
    k · inputs + i, which tells both.
    """

    def __init__(
        self,
        target: QueryTarget,
        settings: MlperfSettings,
        inputs: int,
        log: QueryLog,
        complete: Callable[[int], None],
        clock: Callable[[], int],
    ) -> None:
        self.stopped = False
        """Whether what is issued is completed at once, and counts for nothing."""
        self.error: Exception | None = None
        """What the target has raised."""
        self._target = target
        self._window = settings.window if settings.scenario is Scenario.OFFLINE else 0
        self._inputs = inputs
        self._log = log
        self._complete = complete
        self._clock = clock
        self._open: dict[int, int] = {}
        """By the number of a sample what LoadGen knows it by, from when it is issued until it is complete."""
        self._room = threading.Event()

    def issue(self, responses: Sequence[int], indices: Sequence[int]) -> None:
        """Takes a query, in LoadGen's thread; nothing may be raised there."""
        now_ns = self._clock()
        if not self._log.sent_count:
            self._log.begin(now_ns)
        for response, index in zip(responses, indices, strict=True):
            if self._window:
                self._wait_for_room()
                now_ns = self._clock()
            if self.stopped:
                self._complete(response)
                continue
            sample = self._log.sent_unscheduled(now_ns)
            self._open[sample] = response
            try:
                self._target.submit(sample * self._inputs + index)
            except Exception as error:  # noqa: BLE001 - it would go through LoadGen's C++; the run raises it
                self.error, self.stopped = error, True

    def _wait_for_room(self) -> None:
        while len(self._open) >= self._window and not self.stopped:
            self._room.clear()
            if len(self._open) >= self._window:
                self._room.wait(_ROOM_S)

    def answered(
        self,
        query: int,
        done_ns: int,
        *,
        queue_ns: int = -1,
        batch_ns: int = -1,
        predict_ns: int = -1,
        batch_size: int = 0,
    ) -> None:
        """Takes an answer."""
        sample = query // self._inputs
        self._log.answered(
            sample,
            done_ns,
            queue_ns=queue_ns,
            batch_ns=batch_ns,
            predict_ns=predict_ns,
            batch_size=batch_size,
        )
        self._settle(sample)

    def failed(self, query: int, done_ns: int, reason: str) -> None:
        """Takes a failure."""
        sample = query // self._inputs
        self._log.failed(sample, done_ns, reason)
        self._settle(sample)

    def _settle(self, sample: int) -> bool:
        """Completes a sample, if it is not; returns whether it did."""
        response = self._open.pop(sample, None)
        if response is None:
            return False
        self._complete(response)
        self._room.set()
        return True

    def complete_given_up(self) -> int:
        """Completes the samples that the log has given up; returns their number."""
        samples = sorted(self._open.copy())
        if not samples:
            return 0
        outcome = self._log.queries(samples[0], samples[-1] + 1).outcome
        return sum(
            self._settle(sample) for sample in samples if outcome[sample - samples[0]] == Outcome.TIMED_OUT
        )

    def complete_open(self) -> None:
        """Completes every sample that is not."""
        for sample in self._open.copy():
            self._settle(sample)
