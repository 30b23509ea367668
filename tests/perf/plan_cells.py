"""A cell that a plan runs, with its monitor, against the plain command: the figures are the same."""

from __future__ import annotations

import csv
import io
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

from tests.perf.ratios import Row, divided, interleaved

_OPTIONS = {
    "model_name": "DigitsCNN",
    "framework_name": "ONNXRuntime",
    "batch_size": 1,
    "num_file_parts": -1,
    "threads": 1,
}
_FIGURES = {"latency_ms_p50": "p50", "latency_ms_mean": "mean", "end_to_end_inputs_per_s": "end to end"}
_KINDS = ("plain", "again", "plan")
_Taken = dict[str, float]


def measure(rounds: int) -> Sequence[Row]:
    """Returns plan / plain for each figure, beside plain / plain, and the share of the monitor."""
    with tempfile.TemporaryDirectory() as folder:
        place = _Place(Path(folder))
        runs: dict[str, Callable[[], _Taken]] = {
            "plain": place.plain,
            "again": place.plain,
            "plan": place.cell,
        }
        taken = interleaved(rounds, runs)
    rows = []
    for key, name in _FIGURES.items():
        values = {kind: [each[key] for each in taken[kind]] for kind in _KINDS}
        told = " / ".join(f"{statistics.median(values[kind]):.4g}" for kind in ("plan", "plain"))
        rows += [
            Row(
                f"{name}: a cell of a plan / the plain command",
                divided(values["plan"], values["plain"]),
                "",
                told,
            ),
            Row(f"{name}: the plain command / itself", divided(values["again"], values["plain"])),
        ]
    shares = [each["monitor_share"] for each in taken["plan"]]
    return [*rows, Row("CPU time of the monitor / time of the run, one sample a second", shares, "< 0.01")]


class _Place:
    """A data directory, and a plan of one cell that runs again each time."""

    def __init__(self, folder: Path) -> None:
        self._environment = {**os.environ, "AGENT_DATA_DIR": str(folder / "data")}
        self._plan = folder / "plan.yaml"
        content = {"name": "cells", "command": "predict dataset", "parameters": _OPTIONS, "monitor_s": 1}
        self._plan.write_text(json.dumps(content), encoding="utf-8")  # which is YAML too
        self._results = folder / "data" / "plans" / "cells" / "runs"

    def plain(self) -> _Taken:
        """The figures of the plain command."""
        self._agent("predict", "dataset", *(f"--{name}={value}" for name, value in _OPTIONS.items()))
        return self._newest()

    def cell(self) -> _Taken:
        """Those of the cell, and the share of its monitor."""
        self._agent("plan", "resume", str(self._plan), "--rerun=always")
        [result] = self._results.glob("*/result.json")
        monitor = json.loads(result.read_text(encoding="utf-8"))["monitor"]
        return {**self._newest(), "monitor_share": monitor["own_share"]}

    def _newest(self) -> _Taken:
        listed = self._agent("info", "evaluation", "latency", "--limit=1", "--format=csv")
        [row] = csv.DictReader(io.StringIO(listed))
        return {key: float(row[key]) for key in _FIGURES}

    def _agent(self, *words: str) -> str:
        command = [str(Path(sys.executable).with_name("agent")), *words]
        done = subprocess.run(command, env=self._environment, capture_output=True, text=True, check=True)
        return done.stdout
