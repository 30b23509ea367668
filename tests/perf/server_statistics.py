"""The cost of reading the statistics of a server under load: latency with it and without it, by turns.

An agent in a separate process serves DigitsCNN. Its statistics, its status and its page of metrics are read
at the default rate. The same load without reading runs twice per round: their ratio shows the noise. Rounds
are short and many, and each ratio is the geometric mean of those of the rounds, with its 95 % interval.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import partial

import numpy as np
from numpy.typing import NDArray

from inferometer.agent.inference.registry import Registry
from inferometer.agent.inference.session import SessionOptions
from inferometer.agent.server.server import AgentServer, ServerOptions
from inferometer.client.remote.native.agent import open_remote_agent
from inferometer.evaluators.jobs.options import SERVER_STATISTICS_HZ
from inferometer.evaluators.kinds.load.measurement import Interference
from inferometer.evaluators.load.arrivals import ConstantArrivals, Extent, Schedule
from inferometer.evaluators.load.issuer import RunLimits
from inferometer.evaluators.load.load_session import LoadSession, reader_of
from inferometer.evaluators.load.target import LoadTarget, synthetic_tensors
from inferometer.evaluators.statistics import percentile
from inferometer.manifests.catalog import Catalog
from tests.perf.ratios import Row, interleaved, print_table

ROUNDS = 40
RUN_S = 1.0
RATE_QPS = 200.0
AIM = "≤ 1.01"
_FRAMEWORK = "ONNXRuntime"
_WAYS = {"without": 0.0, "without, again": 0.0, "with": SERVER_STATISTICS_HZ}


def measure(rounds: int = ROUNDS) -> list[Row]:
    """Measures the ratio of p50 and p99 with and without reading, and of two runs without."""
    with ExitStack() as stack:
        address, url = stack.enter_context(_agent())
        options = SessionOptions(threads=1)
        agent = stack.enter_context(open_remote_agent(address, "DigitsCNN", None, _FRAMEWORK, options))
        inputs = synthetic_tensors([each.parameters for each in agent.description.manifest.inputs], 0)
        target = stack.enter_context(agent.load_target(inputs))
        runs = {way: partial(_run, target, url, rate_hz) for way, rate_hz in _WAYS.items()}
        taken = interleaved(rounds, runs)
    found = {way: np.asarray(runs) for way, runs in taken.items()}
    return [
        _row(f"{name}, {RATE_QPS:g}/s", way, found[way][:, place], found["without"][:, place])
        for place, name in enumerate(("p50", "p99"))
        for way in ("with", "without, again")
    ]


def _row(name: str, way: str, over_us: NDArray[np.float64], under_us: NDArray[np.float64]) -> Row:
    ratio = Interference.of(np.stack([under_us, over_us], axis=1))
    assert ratio is not None
    assert ratio.interval is not None
    medians = f"{np.median(over_us):.0f} / {np.median(under_us):.0f} µs"
    ends = f"95 %: {ratio.interval.low:.3f} – {ratio.interval.high:.3f}"
    aim = "1" if way != "with" else AIM if name.startswith("p50") else ""
    return Row(f"{name}: {way} / without", [ratio.ratio], aim, f"{ends}; {medians}")


def _run(target: LoadTarget, url: str, rate_hz: float) -> tuple[float, float]:
    """Returns p50 and p99 of one run, in microseconds."""
    reader = reader_of(target, url, rate_hz)
    session = LoadSession(target, RunLimits(10_000.0), None, reader)
    session.warm_up(16)
    run = session.run(Schedule.drawn(ConstantArrivals(), RATE_QPS, Extent(RUN_S), 0))
    assert not reader.notes, reader.notes
    assert len(run.server) == (3 if rate_hz else 0)
    latency_ns = run.queries.since(run.cut_ns).latency_ns
    return percentile(latency_ns, 50) / 1e3, percentile(latency_ns, 99) / 1e3


@contextmanager
def _agent() -> Iterator[tuple[str, str]]:
    """Serves the model in a separate process; yields its address and the URL of its metrics."""
    command = [sys.executable, "-m", "tests.perf.server_statistics", "serve"]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True) as server:
        assert server.stdout is not None
        try:
            address, url = server.stdout.readline().split()
            yield address, url
        finally:
            server.kill()


def _serve() -> None:
    server = AgentServer(Catalog(), Registry(), ServerOptions(port=0, metrics_port=0))
    server.start()
    print(server.address, server.metrics_url, flush=True)
    sys.stdin.read()


if __name__ == "__main__":
    if sys.argv[1:] == ["serve"]:
        _serve()
    else:
        print_table("Reading the statistics of a server under load", measure())
