"""Fixtures of the architecture tests: the checkout, its packages, and fresh interpreters."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterable
from pathlib import Path

import pytest

PACKAGES = ("agent", "client", "evaluators", "manifests", "protos")

_LOADED = """
import json, sys
{code}
found = [name for name in {names!r} if name in sys.modules]
print("\\n" + json.dumps(found))
"""


@pytest.fixture(scope="session")
def root() -> Path:
    """The root of the checkout."""
    return Path(__file__).parents[2]


@pytest.fixture(scope="session")
def bin_directory() -> Path:
    """Where the commands of this environment are."""
    return Path(sys.executable).parent


@pytest.fixture
def loaded_by(root: Path) -> Callable[[str, Iterable[str]], list[str]]:
    """Runs code in a fresh interpreter and tells which of some modules it has loaded."""

    def run(code: str, names: Iterable[str]) -> list[str]:
        program = _LOADED.format(code=code, names=list(names))
        done = subprocess.run(
            [sys.executable, "-c", program], cwd=root, capture_output=True, text=True, timeout=120
        )
        assert done.returncode == 0, done.stderr
        loaded: list[str] = json.loads(done.stdout.splitlines()[-1])
        return loaded

    return run
