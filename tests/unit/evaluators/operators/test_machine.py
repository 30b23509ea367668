"""What the machine gives: the size of its cache, copies beyond it, its peak, and the memory of a run."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from inferometer.agent.operators.operator import OperatorRunner, RunnerOptions
from inferometer.evaluators.kinds.operators.measuring import MemoryPeak
from inferometer.evaluators.kinds.operators.peak import (
    copies_beyond,
    last_level_cache_bytes,
    machine_peak,
    sweep,
)
from tests.integration.operator_frameworks import Numbers

MIB = 1 << 20


def cache(folder: Path, *found: tuple[str, str, str]) -> Path:
    for number, content in enumerate(found):
        index = folder / f"index{number}"
        index.mkdir()
        for name, text in zip(("level", "type", "size"), content, strict=True):
            (index / name).write_text(text + "\n")
    return folder


def test_the_last_level_is_read_from_the_system(tmp_path: Path) -> None:
    found = cache(tmp_path, ("1", "Data", "48K"), ("2", "Unified", "2M"), ("3", "Unified", "33792K"))
    assert last_level_cache_bytes(found) == 33 * MIB


def test_instructions_are_no_last_level_and_without_any_there_is_a_guess(tmp_path: Path) -> None:
    assert last_level_cache_bytes(cache(tmp_path, ("1", "Data", "32K"), ("1", "Instruction", "64K"))) == 32768
    assert last_level_cache_bytes(tmp_path / "none") == 32 * MIB
    (tmp_path / "index0" / "size").write_text("large")
    assert last_level_cache_bytes(tmp_path) == 32 * MIB


def test_copies_exceed_twice_the_cache() -> None:
    assert copies_beyond(32 * MIB, 12 * MIB) * 12 > 64
    assert copies_beyond(32 * MIB, 500 * MIB) == 2
    assert copies_beyond(32 * MIB, 100) == 64
    assert sweep(MIB)() == 2 * MIB // 64, "one number of each line"


def test_a_peak_is_measured_once_and_kept_by_machine_threads_and_type(tmp_path: Path) -> None:
    file = tmp_path / "machine_peaks.json"
    file.write_text("{")  # a damaged file is no obstacle
    peak = machine_peak("a processor", 1, "float32", tmp_path)
    assert peak is not None
    assert 1e8 < peak.flops_per_s < 1e14
    assert 1e8 < peak.bytes_per_s < 1e13
    assert peak.cache_bytes == last_level_cache_bytes()

    content = json.loads(file.read_text())
    assert len(content) == 1
    content[next(iter(content))]["flops_per_s"] = 5.0
    file.write_text(json.dumps(content))

    again = machine_peak("a processor", 1, "bfloat16", tmp_path)
    assert again is not None
    assert again.flops_per_s == 5.0


class Allocating(Numbers):
    """Its allocator held 7 bytes at most."""

    def peak_memory_bytes(self) -> int | None:
        return 7


@pytest.mark.parametrize("kind", [Numbers, Allocating])
def test_memory_is_that_of_the_allocator_or_the_growth_of_the_process(kind: type[OperatorRunner]) -> None:
    peak = MemoryPeak(kind(RunnerOptions(threads=1)))
    held = np.ones(64 * MIB, np.uint8)
    found, of = peak.read()
    if kind is Allocating:
        assert (found, of) == (7, "allocator")
    elif found is not None:  # where the system lets a process reset its peak
        assert 63 * MIB <= found < 80 * MIB  # the kernel counts pages of each core late
        assert of == "process"
    assert held.sum() == 64 * MIB
