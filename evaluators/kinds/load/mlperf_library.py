"""MLPerf's library LoadGen, which only this module imports.

LoadGen runs in a thread of its own, because it cannot be stopped. A run that must end early is abandoned: its
thread blocks when it issues its next query, and never continues.
"""

from __future__ import annotations

import ctypes
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import mlperf_loadgen

from inferometer.evaluators.kinds.load.measurement import Scenario
from inferometer.evaluators.kinds.load.mlperf_settings import MlperfSettings
from inferometer.manifests.errors import ConfigurationError, OutputError

_THREAD = "mlperf-loadgen"
_LEAVE_S = 1.0
_LOOK_S = 0.01
_NS_PER_S = 1_000_000_000
_SCENARIOS = {
    Scenario.SINGLE_STREAM: mlperf_loadgen.TestScenario.SingleStream,
    Scenario.MULTI_STREAM: mlperf_loadgen.TestScenario.MultiStream,
    Scenario.SERVER: mlperf_loadgen.TestScenario.Server,
    Scenario.OFFLINE: mlperf_loadgen.TestScenario.Offline,
}


class LoadGenRun:
    """One run of LoadGen, which chooses from ``inputs`` inputs, with an empty directory for its logs.

    ``issue`` is called in LoadGen's thread with the ids of a query's samples, to be passed to ``complete``,
    and with the numbers of their inputs; it must not raise.

    Raises:
        ConfigurationError: A run that was abandoned in this process is still blocked.
    """

    def __init__(
        self,
        settings: MlperfSettings,
        inputs: int,
        issue: Callable[[Sequence[int], Sequence[int]], None],
        directory: Path,
    ) -> None:
        if any(thread.name == _THREAD for thread in threading.enumerate()):
            raise ConfigurationError(
                "a run of LoadGen was stopped in this process, which cannot run another; restart it"
            )
        self._settings = settings
        self._inputs = inputs
        self._issue = issue
        self._directory = directory
        self._ended = threading.Event()
        self._left = threading.Event()
        self._held = threading.Event()
        self._never = threading.Lock()
        self._never.acquire()
        self._error: Exception | None = None
        self._thread = threading.Thread(target=self._run, name=_THREAD, daemon=True)

    def start(self) -> None:
        """Starts the run, which begins to issue queries."""
        self._thread.start()

    def wait(self, timeout_s: float) -> bool:
        """Waits at most ``timeout_s``; returns whether the run has ended, raises OutputError if it failed."""
        if not self._ended.wait(timeout_s):
            return False
        self._thread.join()
        if self._error is not None:
            raise OutputError(f"LoadGen has failed: {self._error}") from self._error
        return True

    @staticmethod
    def complete(response: int) -> None:
        """Tells LoadGen that a sample is done; must be called once for each sample."""
        mlperf_loadgen.QuerySamplesComplete([mlperf_loadgen.QuerySampleResponse(response, 0, 0)])

    def leave(self, complete_open: Callable[[], None]) -> None:
        """Ends the run early if its last query was issued; otherwise abandons it.

        ``complete_open`` completes each sample that was issued but is not complete.
        """
        self._left.set()
        deadline_s = time.monotonic() + _LEAVE_S
        while time.monotonic() < deadline_s and not self._held.is_set():
            complete_open()
            if self._ended.wait(_LOOK_S):
                self._thread.join()
                return
        _end_process_without_destructors()

    def _run(self) -> None:
        sut = mlperf_loadgen.ConstructSUT(self._on_issue, lambda: None)  # it holds no query back
        # the inputs are in memory already, and stay there
        library = mlperf_loadgen.ConstructQSL(self._inputs, self._inputs, lambda _: None, lambda _: None)
        try:
            # without the name of an audit's settings: else a file audit.config of the folder would be taken
            mlperf_loadgen.StartTestWithLogSettings(
                sut, library, _test_settings(self._settings), _log_settings(self._directory), ""
            )
        except Exception as error:  # noqa: BLE001 - raised again in ``wait``
            self._error = error
        finally:
            mlperf_loadgen.DestroyQSL(library)
            mlperf_loadgen.DestroySUT(sut)
            self._ended.set()

    def _on_issue(self, samples: Sequence[mlperf_loadgen.QuerySample]) -> None:
        if self._left.is_set() and self._settings.scenario is not Scenario.OFFLINE:
            self._held.set()
            self._never.acquire()
        self._issue([sample.id for sample in samples], [sample.index for sample in samples])


def _test_settings(settings: MlperfSettings) -> mlperf_loadgen.TestSettings:
    """Converts the settings to LoadGen's own form."""
    test = mlperf_loadgen.TestSettings()
    test.scenario = _SCENARIOS[settings.scenario]
    test.mode = mlperf_loadgen.TestMode.PerformanceOnly
    test.min_duration_ms = round(settings.min_duration_s * 1000)
    test.min_query_count = settings.min_queries
    test.schedule_rng_seed, test.sample_index_rng_seed, test.qsl_rng_seed = settings.seeds
    test.multi_stream_samples_per_query = Scenario.MULTI_STREAM.samples_per_query
    share = settings.percentile / 100
    test.single_stream_target_latency_percentile = share
    test.multi_stream_target_latency_percentile = share
    test.server_target_latency_percentile = share
    test.server_target_latency_ns = settings.bound_ns
    test.server_target_qps = settings.rate_qps
    test.offline_expected_qps = settings.rate_qps
    test.single_stream_expected_latency_ns = _NS_PER_S / settings.rate_qps
    test.multi_stream_expected_latency_ns = _NS_PER_S / settings.rate_qps
    return test


def _log_settings(directory: Path) -> mlperf_loadgen.LogSettings:
    """Returns log settings that write to files only.

    The trace is off: it takes a kilobyte per query and halves the speed of LoadGen.
    """
    output = mlperf_loadgen.LogOutputSettings()
    output.outdir = str(directory)
    output.copy_summary_to_stdout = False
    output.copy_detail_to_stdout = False
    settings = mlperf_loadgen.LogSettings()
    settings.log_output = output
    settings.enable_trace = False
    return settings


def _end_process_without_destructors() -> None:
    """Lets this process end without running C++ destructors: LoadGen's crash while its thread exists.

    After Python has ended, glibc calls functions registered by ``on_exit`` before them, with the exit code.
    """
    libc = ctypes.CDLL(None)
    if hasattr(libc, "on_exit"):
        libc.on_exit(ctypes.cast(libc._exit, ctypes.c_void_p), None)
