"""Runs the command line in this process, with its data and configuration in a temporary folder."""

from __future__ import annotations

import csv
import io
import os
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from client.main import run


@dataclass(frozen=True)
class Answer:
    """What a call of the command line gave."""

    code: int
    stdout: str
    stderr: str

    @property
    def error(self) -> str:
        """The only line on stderr."""
        lines = self.stderr.splitlines()
        assert len(lines) == 1, self.stderr
        return lines[0]

    @property
    def rows(self) -> list[dict[str, str]]:
        """The rows of a csv report."""
        return list(csv.DictReader(io.StringIO(self.stdout)))

    def figure(self, name: str) -> str:
        """A line of the summary."""
        match = re.search(rf"^{name} +(.*)$", self.stdout, re.MULTILINE)
        assert match, self.stdout
        return match[1]


Agent = Callable[..., Answer]


@pytest.fixture(autouse=True)
def _own_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith("AGENT_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("AGENT_DATA_DIR", str(tmp_path / "data"))
    monkeypatch.setenv("AGENT_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.setenv("COLUMNS", "200")


@pytest.fixture
def agent(capsys: pytest.CaptureFixture[str]) -> Agent:
    """Runs ``agent`` with some arguments."""

    def call(*args: str | Path) -> Answer:
        capsys.readouterr()
        code = run([str(arg) for arg in args])
        captured = capsys.readouterr()
        return Answer(code, captured.out, captured.err)

    return call
