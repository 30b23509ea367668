"""The cost of inferometer as a client under load, beside the least that a client in Python does.

Both put the same rate on a server that answers at once, each in a process of its own, by turns. Each reports
its latency from when a query was due, its lag, and the processor time of its process during the run: ours
from the first report of progress to the last, so without opening the model and what is done after the run.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from statistics import median
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

from tests.perf.ratios import Row, divided, interleaved, print_table

if TYPE_CHECKING:
    from inferometer.evaluators.jobs.job import JobResources, SystemRequest

ROUNDS = 5
RUN_S = 10.0
RATES = (300, 1_000)
AIM = "≤ 1.1"
CORES = "INFEROMETER_CLIENT_CORES"
"""Two core numbers, such as ``2,3``: that of the server and that of the clients; by default none is fixed."""
_NAMES = {
    "p50": "p50 from due to answer",
    "cpu": "processor time of a query",
    "p99": "p99 from due to answer",
}
_MANIFEST = """
name: Instant
framework: {name: PyTorch, version: "*"}
inputs: [{type: image, parameters: {dimensions: [1, 16, 16], color_mode: GRAY}}]
output: {type: raw}
model: {architecture: instant}
"""


def measure(rounds: int = ROUNDS) -> list[Row]:
    """Measures both clients at each rate."""
    with ExitStack() as stack:
        server = stack.enter_context(_process(0, "instant_server"))
        clients = {
            name: stack.enter_context(_process(1, *command, server.first_line))
            for name, command in {"minimal": ("minimal_client",), "ours": ("load_client", "ours")}.items()
        }
        measurements = {
            f"{name} {rate}": partial(client.asked, rate)
            for rate in RATES
            for name, client in clients.items()
        }
        taken = interleaved(rounds, measurements)
    return [row for rate in RATES for row in _rows(rate, taken[f"ours {rate}"], taken[f"minimal {rate}"])]


def _rows(
    rate: int, ours: Sequence[Mapping[str, float]], minimal: Sequence[Mapping[str, float]]
) -> list[Row]:
    def middle(runs: Sequence[Mapping[str, float]], figure: str) -> float:
        return median(run[figure] for run in runs)

    lags = " / ".join(f"{middle(runs, 'lag50'):.0f}, {middle(runs, 'lag99'):.0f}" for runs in (ours, minimal))
    return [
        Row(
            f"{rate:,}/s: {name} / a minimal client's",
            divided([run[figure] for run in ours], [run[figure] for run in minimal]),
            AIM if figure != "p99" else "",
            f"{middle(ours, figure):.0f} / {middle(minimal, figure):.0f} µs"
            + (f"; lag p50, p99: {lags} µs" if figure == "p50" else ""),
        )
        for figure, name in _NAMES.items()
    ]


class _Process:
    """A process of this benchmark, which prints a line once it is ready."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process
        self.first_line = self._line()

    def asked(self, rate: int) -> Mapping[str, float]:
        """The figures of one run of a client."""
        assert self._process.stdin is not None
        self._process.stdin.write(f"{json.dumps([rate, RUN_S])}\n")
        self._process.stdin.flush()
        found: Mapping[str, float] = json.loads(self._line())
        return found

    def _line(self) -> str:
        assert self._process.stdout is not None
        return self._process.stdout.readline().strip()


@contextmanager
def _process(place: int, module: str, *arguments: str) -> Iterator[_Process]:
    cores = os.environ.get(CORES, "").split(",")
    fixed = ["taskset", "-c", cores[place]] if len(cores) > place and cores[place] else []
    command = [*fixed, sys.executable, "-m", f"tests.perf.{module}", *arguments]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True) as process:
        try:
            yield _Process(process)
        finally:
            process.kill()


def _ours(address: str) -> None:
    """Runs the job of ``predict workload`` for each line on stdin."""
    from inferometer.client.remote.kserve.opening import ModelChoice, open_kserve
    from inferometer.evaluators.jobs.job import SystemRequest
    from inferometer.manifests.catalog import Catalog

    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "Instant.yml").write_text(_MANIFEST, encoding="utf-8")
        catalog = Catalog([Path(folder)])

        def open_loadable(request: SystemRequest, **_: object) -> Any:
            return open_kserve(f"kserve://{address}", catalog, ModelChoice("Instant"))

        kept = {"catalog": catalog, "cache": None, "data_directory": Path(folder)}
        resources = cast("JobResources", SimpleNamespace(**kept, open_loadable=open_loadable))
        system = SystemRequest(model_name="Instant", agents=(f"kserve://{address}",))
        print("ready", flush=True)
        for line in sys.stdin:
            rate, seconds = json.loads(line)
            print(json.dumps(_workload(resources, system, rate, seconds)), flush=True)


def _workload(
    resources: JobResources, system: SystemRequest, rate: float, seconds: float
) -> Mapping[str, float]:
    from inferometer.evaluators.evaluation import Progress
    from inferometer.evaluators.jobs.job import JobCallbacks
    from inferometer.evaluators.kinds.load.job import LoadJob
    from inferometer.evaluators.kinds.load.measurement import LoadMeasurement
    from inferometer.evaluators.kinds.load.request import WorkloadRequest
    from inferometer.evaluators.load.queries import Outcome
    from tests.perf.minimal_client import cpu_s, figures

    seen: list[tuple[int, float]] = []

    def on_progress(progress: Progress) -> None:
        seen.append((progress.done, cpu_s()))

    def on_start(start: object) -> None:
        seen.clear()

    request = WorkloadRequest(
        system=system, synthetic=True, initial_qps=rate, duration_s=seconds, force=True, warm_up_queries=0
    )
    callbacks = JobCallbacks(on_progress=on_progress, on_start=on_start)
    [evaluation] = LoadJob(request).run(resources, callbacks)
    assert isinstance(evaluation.measurement, LoadMeasurement)
    run = evaluation.measurement.run
    queries = run.queries
    if lost := len(queries) - queries.count(Outcome.ANSWERED):
        why = run.stopped or "; ".join(run.reasons)
        print(f"{rate:,}/s: {lost} of {len(queries)} queries without an answer: {why}", file=sys.stderr)
    (first, first_s), (last, last_s) = seen[0], seen[-1]
    return figures(queries.latency_ns, queries.lag_ns, last_s - first_s, last - first)


if __name__ == "__main__":
    if sys.argv[1:2] == ["ours"]:
        _ours(sys.argv[2])
    else:
        print_table(f"The client under load, load {os.getloadavg()[0]:.1f}", measure())
