"""The page: the size of a report and how soon it can be used, the first answer of a server, what it disturbs.

``measure`` has the first three figures against their aims. ``measure_beside`` evaluates while the page is
open in a browser and while it is not, and compares two evaluations without it as well.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from pathlib import Path

from inferometer.evaluators.store.opening import open_store
from tests.browser.webdriver import Browser, missing_programs
from tests.page_samples import DATABASE, steady
from tests.perf.ratios import Row, divided, interleaved

FEW, MANY = 1_000, 10_000
BATCHES = 300
ROUNDS = 5
MOST_MB, MOST_INTERACTIVE_S, MOST_FIRST_S = 2.0, 2.0, 0.3
_AGENT = str(Path(sys.executable).parent / "agent")
_EVALUATE = ("predict", "dataset", "--framework_name=ONNXRuntime", "--batch_size=16", "--min_duration=4")


def measure() -> list[Row]:
    """Measures a report of 1,000 evaluations, and the first page of a server over 10,000."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        _fill(folder, MANY)
        report = folder / "report.html"
        started_s = time.perf_counter()
        _run(folder, "report", "-o", str(report), f"--limit={FEW}")
        written_s = time.perf_counter() - started_s
        megabytes = report.stat().st_size / 1e6
        rows = [
            Row(
                f"report of {FEW:,} evaluations of {BATCHES} batches / {MOST_MB:g} MB",
                [megabytes / MOST_MB],
                "≤ 1",
                f"{megabytes:.2f} MB, written in {written_s:.1f} s",
            )
        ]
        if not missing_programs():
            rows.append(_interactive(report))
        return [*rows, _first_page(folder)]


def measure_beside() -> list[Row]:
    """Measures p50 of an evaluation with the page open, and without it twice."""
    if missing_programs():
        return []
    with tempfile.TemporaryDirectory() as name, closing(Browser()) as browser:
        folder = Path(name)
        _fill(folder, 100)

        def alone() -> float:
            browser.open("data:text/html,<body data-ready='1'>")
            return _p50_ms(folder)

        def beside() -> float:
            with _served(folder) as url:
                browser.open(url)
                browser.wait("return document.getElementById('state').textContent === 'live'")
                found = _p50_ms(folder)
                browser.open("data:text/html,<body data-ready='1'>")
                return found

        taken = interleaved(ROUNDS, {"alone": alone, "again": alone, "open": beside})
    medians = {name: statistics.median(each) for name, each in taken.items()}
    return [
        Row(
            "p50 again / p50 (A/A)",
            divided(taken["again"], taken["alone"]),
            "",
            f"{medians['again']:.3f} / {medians['alone']:.3f} ms",
        ),
        Row(
            "p50 with the page open / p50 without",
            divided(taken["open"], taken["alone"]),
            "within A/A",
            f"{medians['open']:.3f} / {medians['alone']:.3f} ms",
        ),
    ]


def _fill(folder: Path, count: int) -> None:
    with closing(open_store(None, DATABASE, folder)) as store:
        for number in range(1, count + 1):
            store.save(steady(number, 1 + number % 7 / 10, BATCHES))


def _environment(folder: Path) -> Mapping[str, str]:
    return {**os.environ, "AGENT_DATA_DIR": str(folder), "XDG_CONFIG_HOME": str(folder)}


def _run(folder: Path, *words: str) -> str:
    done = subprocess.run(
        [_AGENT, *words], env=_environment(folder), check=True, capture_output=True, text=True
    )
    return done.stdout


def _p50_ms(folder: Path) -> float:
    _run(folder, *_EVALUATE)
    (row,) = json.loads(_run(folder, "info", "evaluation", "latency", "--limit=1", "-f", "json"))
    return float(row["latency_ms_p50"])


def _interactive(report: Path) -> Row:
    """From the start of the navigation until the table is there and a click on a heading has sorted it."""
    seconds = []
    with closing(Browser()) as browser:
        for _ in range(ROUNDS):
            browser.open(report.as_uri())
            browser.click("th.of-latency_ms_p50 button")
            browser.wait("return document.querySelector('th[aria-sort=descending].of-latency_ms_p50')")
            seconds.append(browser.run("return performance.now()") / 1000)
    return Row(
        f"report interactive / {MOST_INTERACTIVE_S:g} s",
        [each / MOST_INTERACTIVE_S for each in seconds],
        "≤ 1",
        f"{statistics.median(seconds):.2f} s until it is sorted by p50",
    )


def _first_page(folder: Path) -> Row:
    """The page and its first rows, asked for at once when the server says that it is ready."""
    seconds = []
    for _ in range(ROUNDS):
        with _served(folder) as url:
            started_s = time.perf_counter()
            for path in ("", "api/evaluations?limit=50"):
                with urllib.request.urlopen(url + path, timeout=30) as answer:
                    answer.read()
            seconds.append(time.perf_counter() - started_s)
    return Row(
        f"first page of {MANY:,} evaluations / {MOST_FIRST_S * 1000:g} ms",
        [each / MOST_FIRST_S for each in seconds],
        "≤ 1",
        f"{statistics.median(seconds) * 1000:.0f} ms",
    )


@contextmanager
def _served(folder: Path) -> Iterator[str]:
    program = subprocess.Popen(
        [_AGENT, "web", "--port=0"], env=_environment(folder), stdout=subprocess.PIPE, text=True
    )
    try:
        assert program.stdout is not None
        yield program.stdout.readline().removeprefix("page on ").strip()
    finally:
        program.terminate()
        program.communicate()
