"""`make bench` starts, and its ratios are computed per round. No test checks how fast anything is."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tests.perf.ratios import Row, divided, interleaved

FIRST = "start_up, dataset, resnet50, reference, tracing, training, grpc"


def _bench(root: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "tests.perf", *arguments], cwd=root, capture_output=True, text=True, timeout=60
    )


def test_the_benchmark_lists_its_sections(root: Path) -> None:
    done = _bench(root, "--help")

    assert done.returncode == 0, done.stderr
    assert FIRST in " ".join(done.stdout.split())


def test_an_unknown_section_is_refused(root: Path) -> None:
    done = _bench(root, "datasets")

    assert done.returncode == 2
    assert f"unknown section datasets; known: {FIRST}" in done.stderr


def test_measurements_take_turns_and_the_first_round_is_dropped() -> None:
    calls: list[str] = []

    def measurement(name: str) -> int:
        calls.append(name)
        return len(calls)

    taken = interleaved(2, {"a": lambda: measurement("a"), "b": lambda: measurement("b")})

    assert calls == ["a", "b", "b", "a", "a", "b"]
    assert taken == {"a": [4, 5], "b": [3, 6]}


def test_a_row_shows_the_median_ratio_of_the_rounds_and_its_spread() -> None:
    row = Row("over / under", divided([2, 9, 4], [1, 3, 1]), "≤ 2", "detail")

    assert row.cells == ("over / under", "3.000 [2.000 – 4.000]", "≤ 2", "detail")


def test_a_row_of_one_round_shows_no_spread() -> None:
    assert Row("over / under", [1.25]).cells[1] == "1.250"
