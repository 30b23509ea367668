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


@pytest.mark.parametrize(("first", "second"), [("KEEP", "DEFAULT"), ("KEEP", "EXACT"), ("EXACT", "KEEP")])
def test_a_process_that_has_a_policy_cannot_take_another(first: str, second: str) -> None:
    code = f"use_allocator(Allocator.{first}); use_allocator(Allocator.{first}); " + (
        f"use_allocator(Allocator.{second})"
    )
    found = subprocess.run(
        [sys.executable, "-c", FAULTS.format(code)], capture_output=True, check=False, text=True
    )
    assert f"already has {first.lower()}; use another process" in found.stderr


def test_an_option_of_default_precedes_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, "keep")
    use_allocator(Allocator.DEFAULT)
    assert VARIABLE not in os.environ


_FREED = """
from pathlib import Path
from inferometer.agent.hardware.allocator import *
{}
def resident() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1])
b"x" * 30_000_000  # after which glibc by default keeps blocks of up to that size
before, blocks = resident(), [bytearray(b"x" * 8_000_000) for _ in range(9)]
last = bytearray(100)
del blocks[:8]
print((resident() - before) * os.sysconf("SC_PAGE_SIZE"))
"""


def test_the_exact_policy_returns_what_is_freed_to_the_system() -> None:
    left = {
        policy: int(
            subprocess.run(
                [sys.executable, "-c", "import os" + _FREED.format(f"use_allocator(Allocator.{policy})")],
                env={**os.environ, "GLIBC_TUNABLES": ""},
                capture_output=True,
                check=True,
                text=True,
            ).stdout
        )
        for policy in ("DEFAULT", "EXACT")
    }
    assert left["EXACT"] < 12_000_000 < 60_000_000 < left["DEFAULT"]
