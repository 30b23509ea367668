"""Cost of the load generator itself: how late it sends, up to which rate, in comparison with LoadGen.

The null system responds at once, in the sending thread. With it, LoadGen's latency in the scenario server and
inferometer's, both from the time a query was due to its response, are the lag of the harness. LoadGen is
called through its Python binding.
"""

from __future__ import annotations

import importlib.util
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from inferometer.agent.inference.registry import Registry
from inferometer.agent.inference.session import SessionOptions, open_session, select_model
from inferometer.agent.server.server import AgentServer, ServerOptions
from inferometer.client.remote.native.agent import RemoteTarget, open_remote_agent
from inferometer.evaluators.load.arrivals import (
    ArrivalProcess,
    ConstantArrivals,
    Extent,
    PoissonArrivals,
    Schedule,
)
from inferometer.evaluators.load.issuer import RunLimits, run_open_loop
from inferometer.evaluators.load.load_session import ClosedLoop, NullTarget, run_closed_loop
from inferometer.evaluators.load.local_target import LocalTarget
from inferometer.evaluators.load.queries import Queries
from inferometer.evaluators.load.target import Answers, QueryTarget, synthetic_tensors
from inferometer.evaluators.statistics import percentile
from inferometer.manifests.catalog import Catalog
from tests.perf.ratios import Row, divided, interleaved

ROUNDS = 5
RUN_S = 1.0
AIMS_MS = {1_000: 0.5, 10_000: 1.0}
PROCESSES = {"constant": ConstantArrivals(), "poisson": PoissonArrivals()}
LEAST_CEILING = 10_000
CEILINGS = tuple(round(2_500 * 2 ** (step / 2)) for step in range(13))
CEILING_LAG_MS = 1.0
CEILING_S = 0.3
CLOSED_S = 0.5
MODEL_QPS = 200
MODELS = ("PyTorch", "ONNXRuntime")

Figures = Sequence[float]
Measurement = Callable[[], Figures]


def measure(rounds: int = ROUNDS) -> list[Row]:
    """Measures the null system, and then models; without LoadGen, only inferometer's side."""
    return [*_measure_null(rounds), *_measure_models(rounds)]


def _measure_null(rounds: int) -> list[Row]:
    """Measures the cost of sending before a framework is in the process."""
    with_loadgen = importlib.util.find_spec("mlperf_loadgen") is not None
    measurements: dict[str, Measurement] = {
        f"{name} {rate}": partial(_null_run, process, rate)
        for rate in AIMS_MS
        for name, process in PROCESSES.items()
    }
    measurements["ceiling"] = partial(_ceiling, partial(_null_run, PROCESSES["poisson"]))
    measurements["closed"] = _closed_qps
    if with_loadgen:
        measurements |= {f"loadgen {rate}": partial(_loadgen_server, rate) for rate in AIMS_MS}
        measurements["loadgen ceiling"] = partial(_ceiling, _loadgen_server)
        measurements["loadgen closed"] = _loadgen_single_stream
    else:
        print(
            "LoadGen is not installed; skipping it. To install it: pip install 'inferometer[mlperf]'",
            flush=True,
        )
    taken = interleaved(rounds, measurements)
    rows = [
        _over_aim(f"{name}, {rate:,}/s", taken[f"{name} {rate}"], aim_ms)
        for rate, aim_ms in AIMS_MS.items()
        for name in PROCESSES
    ]
    rows.append(_ceiling_row(taken["ceiling"]))
    if with_loadgen:
        return rows + _beside_loadgen(taken)
    rates = [run[0] for run in taken["closed"]]
    return [*rows, Row("null system, closed loop of 1: queries/s", rates)]


def _measure_models(rounds: int) -> list[Row]:
    """Measures the cost of sending while a model predicts."""
    with ExitStack() as stack:
        measurements: dict[str, Measurement] = {}
        for framework in MODELS:
            measurements |= _with_model(framework, stack)
        taken = interleaved(rounds, measurements)
    return [row for framework in MODELS for row in _model_rows(framework, taken)]


def _over_aim(what: str, runs: Sequence[Figures], aim_ms: float) -> Row:
    """Returns the p99 of the lag, relative to its maximum."""
    p50_ms, p99_ms = _medians(runs)[:2]
    return Row(
        f"null system, {what}: p99 of the lag / {aim_ms:g} ms",
        [run[1] / aim_ms for run in runs],
        "≤ 1",
        f"p50 {p50_ms * 1e3:.1f}, p99 {p99_ms * 1e3:.1f} µs",
    )


def _ceiling_row(runs: Sequence[Figures]) -> Row:
    return Row(
        f"null system, poisson: highest rate with p99 of the lag < 1 ms / {LEAST_CEILING:,}/s",
        [run[0] / LEAST_CEILING for run in runs],
        "≥ 1",
        f"{_medians(runs)[0]:,.0f}/s; {CEILINGS[-1]:,}/s is the highest rate tried",
    )


def _beside_loadgen(taken: Mapping[str, Sequence[Figures]]) -> list[Row]:
    """Returns inferometer's figures relative to LoadGen's."""
    rows = [
        Row(
            f"null system, poisson, {rate:,}/s: p99 of due to answered / LoadGen's",
            divided(
                [run[2] for run in taken[f"poisson {rate}"]], [run[1] for run in taken[f"loadgen {rate}"]]
            ),
            "",
            f"{_medians(taken[f'poisson {rate}'])[2] * 1e3:.1f} / "
            f"{_medians(taken[f'loadgen {rate}'])[1] * 1e3:.1f} µs",
        )
        for rate in AIMS_MS
    ]
    for name, what in (
        ("ceiling", "poisson: highest rate with p99 < 1 ms"),
        ("closed", "closed loop of 1: queries/s"),
    ):
        ours, theirs = ([run[0] for run in taken[key]] for key in (name, f"loadgen {name}"))
        detail = f"{statistics.median(ours):,.0f} / {statistics.median(theirs):,.0f}/s"
        rows.append(Row(f"null system, {what} / LoadGen's", divided(ours, theirs), "", detail))
    return rows


def _model_rows(framework: str, taken: Mapping[str, Sequence[Figures]]) -> list[Row]:
    local, remote = taken[f"{framework} here"], taken[f"{framework} agent"]
    named = f"DigitsCNN, {framework}, poisson, {MODEL_QPS}/s"
    return [
        _model_row(f"{named}, here", local),
        _model_row(f"{named}, agent", remote),
        Row(
            f"{named}: handing a query to an agent / to a session here",
            divided([run[2] for run in remote], [run[2] for run in local]),
            "",
            f"{_medians(remote)[2]:.1f} / {_medians(local)[2]:.1f} µs",
        ),
    ]


def _model_row(what: str, runs: Sequence[Figures]) -> Row:
    p50_ms, p99_ms = _medians(runs)[:2]
    detail = f"p50 {p50_ms * 1e3:.1f}, p99 {p99_ms * 1e3:.1f} µs"
    return Row(f"{what}: p99 of the lag / 1 ms", [run[1] for run in runs], "≤ 1", detail)


def _medians(runs: Sequence[Figures]) -> list[float]:
    return [statistics.median(column) for column in zip(*runs, strict=True)]


def _null_run(process: ArrivalProcess, rate_qps: int, run_s: float = RUN_S) -> Figures:
    """Returns the lag's p50 and p99 and the latency's p99, in milliseconds; infinite if not all were sent."""
    schedule = Schedule.drawn(process, rate_qps, Extent(run_s), 0)
    return _lag_ms(run_open_loop(NullTarget(), schedule, RunLimits(1_000)).queries, len(schedule))


def _lag_ms(queries: Queries, wanted: int) -> Figures:
    if len(queries) != wanted:
        return [float("inf")] * 3
    lag_ns, latency_ns = queries.lag_ns, queries.latency_ns
    return [percentile(lag_ns, 50) / 1e6, percentile(lag_ns, 99) / 1e6, percentile(latency_ns, 99) / 1e6]


def _ceiling(run: Callable[[int, float], Figures]) -> Figures:
    """Returns the highest rate, in steps of √2, at which p99 is below 1 ms.

    Each rate is tried three times, because other work on the machine is bursty. If the first rate fails too,
    the result is half of it.
    """
    found = CEILINGS[0] / 2
    for rate in CEILINGS:
        if all(run(rate, CEILING_S)[1] >= CEILING_LAG_MS for _ in range(3)):
            break
        found = rate
    return [float(found)]


def _closed_qps() -> Figures:
    loop = ClosedLoop(1, Extent(CLOSED_S))
    queries = run_closed_loop(NullTarget(), loop, RunLimits(1_000)).queries
    return [len(queries) / float(queries.done_ns[-1]) * 1e9]


def _loadgen_server(rate_qps: int, run_s: float = RUN_S) -> Figures:
    """Returns LoadGen's latency since a query was due: p50 and p99 in milliseconds."""
    rate = f"*.Server.target_qps = {rate_qps}\n*.Server.target_latency = 1000\n"
    logged = _loadgen(rate, "Server", run_s)
    return [float(logged[f"{percent}.00 percentile latency (ns)"]) / 1e6 for percent in (50, 99)]


def _loadgen_single_stream() -> Figures:
    logged = _loadgen("*.SingleStream.target_latency = 0.003\n", "SingleStream", CLOSED_S)
    return [float(logged["QPS w/ loadgen overhead"])]


def _loadgen(settings: str, scenario: str, run_s: float) -> Mapping[str, str]:
    """Runs LoadGen on a null system and returns its summary by name."""
    import mlperf_loadgen as loadgen

    def answer(samples: Sequence[Any]) -> None:
        loadgen.QuerySamplesComplete([loadgen.QuerySampleResponse(sample.id, 0, 0) for sample in samples])

    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "user.conf").write_text(
            f"{settings}*.{scenario}.min_duration = {round(run_s * 1e3)}\n"
            f"*.{scenario}.min_query_count = 100\n"
            f"*.{scenario}.max_duration = {round(run_s * 1e4)}\n"
        )
        test = loadgen.TestSettings()
        test.scenario = getattr(loadgen.TestScenario, scenario)
        test.mode = loadgen.TestMode.PerformanceOnly
        test.FromConfig(str(Path(folder) / "user.conf"), "*", scenario, 2)
        log = loadgen.LogSettings()
        log.log_output.outdir = folder
        log.enable_trace = False
        system = loadgen.ConstructSUT(answer, lambda: None)
        library = loadgen.ConstructQSL(64, 64, lambda _: None, lambda _: None)
        try:
            loadgen.StartTestWithLogSettings(system, library, test, log)
        finally:
            loadgen.DestroyQSL(library)
            loadgen.DestroySUT(system)
        lines = (Path(folder) / "mlperf_log_summary.txt").read_text().splitlines()
    pairs = (line.split(":", 1) for line in lines if ":" in line)
    return {name.strip(): value.strip() for name, value in pairs}


class _TimedTarget:
    """A target whose ``submit`` is timed; satisfies ``target.QueryTarget``."""

    def __init__(self, target: QueryTarget) -> None:
        self._target = target
        self.submit_ns: list[int] = []

    def begin(self, answers: Answers) -> None:
        self._target.begin(answers)

    def submit(self, query: int) -> None:
        began_ns = time.perf_counter_ns()
        self._target.submit(query)
        self.submit_ns.append(time.perf_counter_ns() - began_ns)

    def end(self, timeout_s: float) -> None:
        self._target.end(timeout_s)


def _with_model(framework: str, stack: ExitStack) -> Mapping[str, Measurement]:
    """Returns measurements: the lag's p50 and p99 in milliseconds, and ``submit``'s median microseconds."""
    registry = Registry()
    manifest = select_model(Catalog(), registry, "DigitsCNN", framework=framework)
    inputs = synthetic_tensors([manifest.inputs[0].parameters], 0)
    options = SessionOptions(threads=1)
    session = stack.enter_context(open_session(manifest, options, registry))
    here = stack.enter_context(LocalTarget(session, inputs))
    agent = stack.enter_context(_agent())
    remote = stack.enter_context(open_remote_agent(agent, "DigitsCNN", None, framework, options))
    there = stack.enter_context(RemoteTarget(remote, inputs))
    schedule = Schedule.drawn(PoissonArrivals(), MODEL_QPS, Extent(RUN_S), 0)

    def run(target: QueryTarget) -> Figures:
        timed = _TimedTarget(target)
        queries = run_open_loop(timed, schedule, RunLimits(10_000)).queries
        p50_ms, p99_ms, _ = _lag_ms(queries, len(schedule))
        return [p50_ms, p99_ms, float(np.median(timed.submit_ns)) / 1e3]

    return {f"{framework} here": lambda: run(here), f"{framework} agent": lambda: run(there)}


@contextmanager
def _agent() -> Iterator[str]:
    """Yields the address of an agent in a separate process."""
    command = [sys.executable, "-m", "tests.perf.issue_rate", "serve"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            yield process.stdout.readline().strip()
        finally:
            process.stdin.close()  # ends the agent


def _serve() -> None:
    with AgentServer(Catalog(), Registry(), ServerOptions(port=0)) as server:
        print(server.address, flush=True)
        sys.stdin.read()


if __name__ == "__main__":
    if sys.argv[1:] == ["serve"]:
        _serve()
    else:
        raise SystemExit("usage: python -m tests.perf load")
