"""Memory that is freed and taken again: paged in anew by default, and kept where that is asked for."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from inferometer.agent.hardware.allocator import (
    VARIABLE,
    Allocator,
    allocator_in_use,
    use_allocator,
    use_allocator_of_environment,
)
from inferometer.agent.hardware.environment import read_environment
from inferometer.manifests.errors import ConfigurationError

FAULTS = """
import resource
from inferometer.agent.hardware.allocator import *
{}
size = 80_000_000
for _ in range(20):  # until the heap has a place
    b"x" * size
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(10):
    b"x" * size
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


def faults(policy: str, **variables: str) -> int:
    """The page faults of ten arrays of 80 MB."""
    found = subprocess.run(
        [sys.executable, "-c", FAULTS.format(policy)],
        env={**os.environ, "GLIBC_TUNABLES": "", **variables},
        capture_output=True,
        check=True,
        text=True,
    )
    return int(found.stdout)


def test_only_a_process_that_keeps_its_memory_is_not_paged_in_again() -> None:
    each = 80_000_000 // os.sysconf("SC_PAGE_SIZE")
    assert faults("use_allocator(Allocator.DEFAULT)") > 5 * each
    assert faults("use_allocator(Allocator.KEEP)") < each
    assert faults("use_allocator_of_environment()", AGENT_ALLOCATOR="keep") < each


def test_the_environment_tells_the_policy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(VARIABLE, raising=False)
    use_allocator_of_environment()
    assert allocator_in_use() is Allocator.DEFAULT
    assert read_environment({}).settings == {"memory allocator": "default"}
    for policy in ("exact", "keep"):
        monkeypatch.setenv(VARIABLE, policy)
        assert read_environment({}).settings == {"memory allocator": policy}
    monkeypatch.setenv(VARIABLE, "hoard")
    with pytest.raises(ConfigurationError, match='AGENT_ALLOCATOR is "hoard"; allowed: default, keep, exact'):
        use_allocator_of_environment()


@pytest.mark.parametrize("other", ["DEFAULT", "EXACT"])
def test_a_process_that_keeps_its_memory_cannot_go_back(other: str) -> None:
    code = f"use_allocator(Allocator.KEEP); use_allocator(Allocator.{other})"
    found = subprocess.run(
        [sys.executable, "-c", FAULTS.format(code)], capture_output=True, check=False, text=True
    )
    assert "already keeps its memory; use another process" in found.stderr


def test_an_option_precedes_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, "keep")
    use_allocator(Allocator.EXACT)
    assert os.environ[VARIABLE] == "exact"
    use_allocator(Allocator.DEFAULT)
    assert VARIABLE not in os.environ
