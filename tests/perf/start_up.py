"""How long ``agent --help`` takes, against an interpreter that imports click and nothing else."""

from __future__ import annotations

import statistics
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from tests.perf.ratios import Row, divided, interleaved

ROUNDS = 21
AIM = "≤ 2.5"


def measure() -> list[Row]:
    """Measures whole processes, from their start to their end."""
    agent = str(Path(sys.executable).parent / "agent")
    taken = interleaved(
        ROUNDS,
        {
            "help": lambda: _process_ns([agent, "--help"]),
            "click": lambda: _process_ns([sys.executable, "-c", "import click"]),
        },
    )
    help_ms, click_ms = (statistics.median(taken[name]) / 1e6 for name in ("help", "click"))
    return [
        Row(
            "agent --help / python -c 'import click'",
            divided(taken["help"], taken["click"]),
            AIM,
            f"{help_ms:.0f} / {click_ms:.0f} ms",
        )
    ]


def _process_ns(command: Sequence[str]) -> int:
    started_ns = time.perf_counter_ns()
    subprocess.run(command, stdout=subprocess.DEVNULL, check=True)
    return time.perf_counter_ns() - started_ns
