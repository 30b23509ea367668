"""The answers of ``predict max-qps`` on a foreign server, beside the rate that its service times allow."""

from __future__ import annotations

import csv
import io
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from tests.perf.ratios import Row

SEARCHES = 10
BUDGET_S = 30
BOUND_MS = 100
_AGENT = (sys.executable, "-c", "from inferometer.client.cli.main import main; main()")
_SIMULATED = 800_000
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
    """Searches with another seed each time."""
    with tempfile.TemporaryDirectory() as name, _server() as server:
        found = [_search(Path(name), server, seed) for seed in range(SEARCHES)]
    valid = [each for each in found if each.valid]
    apart = sum(
        one.low_qps > other.high_qps or other.low_qps > one.high_qps for one in valid for other in valid
    )
    return [
        Row(
            "max-qps / the rate that the server's service times allow",
            [each.rate_qps / each.truth_qps for each in found],
            "0.99 – 1.01",
            f"{sum(each.holds for each in found)} of {len(found)} intervals hold it; "
            f"{len(valid)} are called valid, of which {apart // 2} pairs exclude each other",
        ),
        Row(
            "half the width of the interval / the answer",
            [(each.high_qps - each.low_qps) / 2 / each.rate_qps for each in found],
        ),
    ]


def _search(folder: Path, server: _Server, seed: int) -> _Found:
    data = folder / str(seed)
    environment = {**os.environ, "AGENT_DATA_DIR": str(data)}
    options = (
        *(f"--agent=kserve://{server.address}", "--model_name=DigitsCNN", "--synthetic", f"--seed={seed}"),
        *(f"--latency_bound={BOUND_MS}", f"--time_budget={BUDGET_S}", "--min_duration=1", "--initial_qps=20"),
    )
    subprocess.run([*_AGENT, "predict", "max-qps", *options], env=environment, stdout=subprocess.DEVNULL)
    report = [*_AGENT, "info", "evaluation", "max-qps", "-f", "csv"]
    rows = subprocess.run(report, env=environment, check=True, capture_output=True, text=True).stdout
    [row] = csv.DictReader(io.StringIO(rows))
    return _Found(
        float(row["max_qps"] or "nan"),
        float(row["max_qps_low"] or 0),
        float(row["max_qps_high"] or "inf"),
        not row["invalid"],
        _highest_qps(_occupied_s(server.served_ns(folder / f"{seed}.npy"))),
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
