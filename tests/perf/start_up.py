"""Start-up time of ``agent --help`` relative to an interpreter that only imports click, and of a listing.

``agent info models`` is measured relative to ``agent --help``, after it has cached the manifests. The import
of the library is measured relative to that of click as ``python -X importtime`` tells them, without the start
of the interpreter.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from tests.perf.ratios import Row, divided, interleaved

ROUNDS = 21
AIM = "≤ 2.5"
LISTING_AIM = "≤ 3"


def measure() -> list[Row]:
    """Measures whole processes, from start to end."""
    with tempfile.TemporaryDirectory() as cache:
        return _measure(Path(cache))


def _measure(cache: Path) -> list[Row]:
    agent = str(Path(sys.executable).parent / "agent")
    listing = [agent, "info", "models"]
    environment = {**os.environ, "AGENT_CACHE_DIR": str(cache), "XDG_CONFIG_HOME": str(cache)}
    first_ns = _process_ns(listing, environment)
    taken = interleaved(
        ROUNDS,
        {
            "help": lambda: _process_ns([agent, "--help"]),
            "click": lambda: _process_ns([sys.executable, "-c", "import click"]),
            "models": lambda: _process_ns(listing, environment),
            "import inferometer": lambda: _import_us("inferometer"),
            "import click": lambda: _import_us("click"),
        },
    )
    library_us, alone_us = taken["import inferometer"], taken["import click"]
    help_ms, click_ms, models_ms = (
        statistics.median(taken[name]) / 1e6 for name in ("help", "click", "models")
    )
    return [
        Row(
            "agent --help / python -c 'import click'",
            divided(taken["help"], taken["click"]),
            AIM,
            f"{help_ms:.0f} / {click_ms:.0f} ms",
        ),
        Row(
            "agent info models / agent --help",
            divided(taken["models"], taken["help"]),
            LISTING_AIM,
            f"{models_ms:.0f} / {help_ms:.0f} ms; {first_ns / 1e6:.0f} ms without a cache",
        ),
        Row(
            "import inferometer / import click",
            divided(library_us, alone_us),
            AIM,
            f"{statistics.median(library_us) / 1e3:.1f} / {statistics.median(alone_us) / 1e3:.1f} ms",
        ),
    ]


def _process_ns(command: Sequence[str], environment: Mapping[str, str] | None = None) -> int:
    started_ns = time.perf_counter_ns()
    subprocess.run(command, stdout=subprocess.DEVNULL, check=True, env=environment)
    return time.perf_counter_ns() - started_ns


def _import_us(module: str) -> int:
    """How long an import takes in a fresh interpreter, with all that it imports."""
    command = [sys.executable, "-X", "importtime", "-c", f"import {module}"]
    lines = subprocess.run(command, capture_output=True, text=True, check=True).stderr.splitlines()
    # "import time:   self [us] | cumulative | imported package", one level deeper for each indent
    [cumulative] = [line.split("|")[1] for line in lines if line.partition("| ")[2].endswith(f"| {module}")]
    return int(cumulative)
