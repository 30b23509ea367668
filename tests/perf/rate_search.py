"""The answers of ``predict max-qps``, beside the rate that service times allow, and beside each other.

MLServer runs in an environment of its own; see ``mlserver_peer``.
"""

from __future__ import annotations

import csv
import io
import math
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
from numpy.typing import NDArray

from inferometer.agent.inference.stages import BatchResult, StageTimes
from inferometer.evaluators.kinds.load.measurement import lag_reason
from inferometer.evaluators.kinds.load.request import MaxQpsRequest
from inferometer.evaluators.kinds.load.search import search_max_qps
from inferometer.evaluators.kinds.load.single_server import served_queries
from inferometer.evaluators.load.issuer import RunLimits
from inferometer.evaluators.load.load_session import LoadSession
from inferometer.evaluators.load.local_target import LocalTarget
from inferometer.evaluators.load.queries import bound_ns_of
from inferometer.evaluators.load.target import PreparedInputs
from tests.perf.mlserver_peer import PYTHON, call_of, mlserver
from tests.perf.ratios import Row
from tests.perf.waiting_server import SERVICE_NS, wait

SEARCHES = 10
BUDGET_S = 30
BOUND_MS = 100
_AGENT = (sys.executable, "-c", "from inferometer.client.cli.main import main; main()")
_SIMULATED = 4_000_000
"""With a fifth of it, the truth itself had a standard error of 0.4 %."""
_INPUTS = PreparedInputs.of_batch({"data": np.zeros((1, 1, 16, 16), np.float32)}, "zeros")
_MLSERVER_MODEL = """
import time

import numpy as np
from mlserver import MLModel
from mlserver.codecs import NumpyCodec
from mlserver.types import InferenceResponse


class NoOp(MLModel):
    async def load(self):
        return True

    async def predict(self, payload):
        end_s = time.perf_counter() + 0.004
        while time.perf_counter() < end_s:
            pass
        scores = np.full((payload.inputs[0].shape[0], 10), 0.1, np.float32)
        return InferenceResponse(model_name=self.name, outputs=[NumpyCodec.encode_output("scores", scores)])
"""
_MOST_BETWEEN_NS = 5_000_000
"""What is longer between two requests is no service: those that waited were cancelled at a probe's end."""


@dataclass(frozen=True, slots=True)
class _Found:
    """The answer of a search in queries/s, whether it was called valid, and the truth of its time."""

    rate_qps: float
    low_qps: float
    high_qps: float
    valid: bool
    truth_qps: float

    @property
    def holds(self) -> bool:
        """Whether the interval holds the truth."""
        return self.low_qps <= self.truth_qps <= self.high_qps


def measure() -> list[Row]:
    """Searches with another seed each time on a server whose model waits."""
    with tempfile.TemporaryDirectory() as name, _server() as server:
        found = []
        for seed in range(SEARCHES):
            answer = _search(Path(name), server.address, seed)
            served_ns = server.served_ns(Path(name) / f"{seed}.npy")
            found.append(replace(answer, truth_qps=_highest_qps(_occupied_s(served_ns))))
    return _rows(found, "the rate that the server's service times allow")


def measure_mlserver() -> list[Row]:
    """The same on MLServer, whose model computes for 4 ms; the truth is the median of the answers."""
    if PYTHON is None:
        return []
    with tempfile.TemporaryDirectory() as name, ExitStack() as stack:
        address = stack.enter_context(mlserver(PYTHON, stack, _MLSERVER_MODEL))[0]
        call_of(stack, address, "noop")
        found = [_search(Path(name), f"{address}/noop", seed) for seed in range(SEARCHES)]
    median_qps = float(np.median([each.rate_qps for each in found]))
    return _rows([replace(each, truth_qps=median_qps) for each in found], "their median")


def measure_constant() -> list[Row]:
    """The same on a model of this process that takes 10 ms for each query."""
    found = []
    for seed in range(SEARCHES):
        with LocalTarget(_Constant(), _INPUTS) as target:
            session = LoadSession(target, RunLimits(10_000.0))
            session.warm_up(20)
            request = MaxQpsRequest(
                latency_bound_ms=BOUND_MS,
                initial_qps=20,
                tolerance=0.01,
                time_budget_s=BUDGET_S,
                min_duration_s=1,
                seed=seed,
            )
            answer = search_max_qps(request, session)
        served = [served_queries(run.queries) for run in session.runs]
        occupied_s = np.concatenate([each.service_s()[each.backlog_s > 0] for each in served])
        found.append(
            _Found(
                answer.rate_qps or math.nan,
                answer.low_qps or 0.0,
                answer.high_qps or math.inf,
                not any(lag_reason(run, bound_ns_of(BOUND_MS), 0.01) for run in session.runs),
                _highest_qps(occupied_s),
            )
        )
    return _rows(found, "the rate that its service times allow", "≤ 0.015")


def _rows(found: Sequence[_Found], truth: str, narrow: str = "") -> list[Row]:
    valid = [each for each in found if each.valid]
    apart = sum(
        one.low_qps > other.high_qps or other.low_qps > one.high_qps for one in valid for other in valid
    )
    return [
        Row(
            f"max-qps / {truth}",
            [each.rate_qps / each.truth_qps if each.truth_qps else math.inf for each in found],
            "0.99 – 1.01",
            f"{sum(each.holds for each in found)} of {len(found)} intervals hold it; "
            f"{len(valid)} are called valid, of which {apart // 2} pairs exclude each other",
        ),
        Row(
            "half the width of the interval / the answer",
            [(each.high_qps - each.low_qps) / 2 / each.rate_qps for each in found],
            narrow,
        ),
    ]


class _Constant:
    """A session whose every prediction takes as long."""

    description = SimpleNamespace(manifest=SimpleNamespace(tensors=[SimpleNamespace(name="data")]))

    def predict_tensor(self, batch: Mapping[str, NDArray[np.float32]]) -> BatchResult:
        wait(SERVICE_NS)
        return BatchResult(tuple(map(str, range(len(batch["data"])))), None, (), StageTimes(0, 0, 0, 0))


def _search(folder: Path, address: str, seed: int) -> _Found:
    data = folder / str(seed)
    environment = {**os.environ, "AGENT_DATA_DIR": str(data)}
    options = (
        *(f"--agent=kserve://{address}", "--model_name=DigitsCNN", "--synthetic", f"--seed={seed}"),
        *(f"--latency_bound={BOUND_MS}", f"--time_budget={BUDGET_S}", "--min_duration=1", "--initial_qps=20"),
    )
    subprocess.run(
        [*_AGENT, "predict", "max-qps", *options], env=environment, check=True, stdout=subprocess.DEVNULL
    )
    report = [*_AGENT, "info", "evaluation", "max-qps", "-f", "csv"]
    rows = subprocess.run(report, env=environment, check=True, capture_output=True, text=True).stdout
    [row] = csv.DictReader(io.StringIO(rows))
    return _Found(
        float(row["max_qps"] or "nan"),
        float(row["max_qps_low"] or 0),
        float(row["max_qps_high"] or "inf"),
        not row["invalid"],
        math.nan,
    )


class _Server:
    """The server in a process of its own."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process
        self.address = self._line()

    def served_ns(self, path: Path) -> NDArray[np.int64]:
        """When each request since the last call was begun and done, how many waited then: int64, n × 3."""
        assert self._process.stdin is not None
        self._process.stdin.write(f"{path}\n")
        self._process.stdin.flush()
        self._line()
        served_ns: NDArray[np.int64] = np.load(path)
        return served_ns

    def _line(self) -> str:
        assert self._process.stdout is not None
        return self._process.stdout.readline().strip()


@contextmanager
def _server() -> Iterator[_Server]:
    command = [sys.executable, "-m", "tests.perf.waiting_server"]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True) as process:
        try:
            yield _Server(process)
        finally:
            process.kill()


def _occupied_s(served_ns: NDArray[np.int64]) -> NDArray[np.float64]:
    """How long each request kept the server from the next, where the next one waited."""
    begun, done, waiting = served_ns[np.argsort(served_ns[:, 0])].T
    waited = (waiting[:-1] > 0) & (begun[1:] - done[:-1] < _MOST_BETWEEN_NS)
    return np.diff(begun)[waited] / 1e9


def _highest_qps(occupied_s: NDArray[np.float64]) -> float:
    """The rate at which one query in a hundred is later than the bound, by simulation (Lindley 1952)."""
    random = np.random.default_rng(5)
    service = random.choice(occupied_s, _SIMULATED)
    gaps = random.standard_exponential(_SIMULATED)
    low, high = 0.0, float(1 / service.mean())
    for _ in range(22):
        rate = (low + high) / 2
        walk = np.cumsum(service) - np.cumsum(gaps / rate)
        latency_s = walk - np.minimum.accumulate(walk - service)
        low, high = (low, rate) if np.mean(latency_s > BOUND_MS / 1e3) > 0.01 else (rate, high)
    return low
