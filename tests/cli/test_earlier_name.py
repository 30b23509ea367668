"""Data, cache and configuration of the program's earlier name are found in their default places."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tests.cli.conftest import Agent

EARLIER = "inferscope"


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A home whose default directories nothing else names; there is a space in its name."""
    home = tmp_path / "my home"
    for variable in ("AGENT_DATA_DIR", "AGENT_CACHE_DIR"):
        monkeypatch.delenv(variable)
    for name in ("data", "cache", "config"):
        monkeypatch.setenv(f"XDG_{name.upper()}_HOME", str(home / name))
        (home / name).mkdir(parents=True)
    return home


def keep_earlier(home: Path, kind: str, file: str, content: str = "") -> Path:
    (home / kind / EARLIER).mkdir()
    path = home / kind / EARLIER / file
    path.write_text(content)
    return path


def test_a_database_of_the_earlier_name_is_reported_once_with_the_command_that_moves_it(
    agent: Agent, home: Path
) -> None:
    keep_earlier(home, "data", "note.txt")
    assert agent("predict", "dataset", "--num_file_parts=1", "--framework_name=PyTorch").code == 0
    old = home / "data" / EARLIER / f"{EARLIER}.db"
    (home / "data" / "inferometer" / "inferometer.db").rename(old)
    (home / "data" / "inferometer").rmdir()

    found = agent("info", "evaluation", "latency")

    [line, *_] = found.stderr.splitlines()
    assert line.startswith(f"found data of an earlier version in {old.parent}; to keep it, run: ")
    assert found.stderr.count("earlier version") == 1
    made = (home / "data" / "inferometer" / "inferometer.db").read_bytes()
    subprocess.run(["sh", "-c", line.partition("run: ")[2]], check=True)
    moved = agent("info", "evaluation", "latency", "-f", "csv")
    assert moved.stderr == ""
    assert len(moved.rows) == 1
    assert (home / "data" / "inferometer" / "inferometer.db.~1~").read_bytes() == made  # nothing is lost


def test_a_cache_and_a_configuration_of_the_earlier_name_are_reported(agent: Agent, home: Path) -> None:
    keep_earlier(home, "cache", "file")
    keep_earlier(home, "config", "config.yaml")

    lines = agent("info", "models").stderr.splitlines()

    assert sorted(line.partition(" of an earlier")[0] for line in lines) == [
        "found a cache",
        "found configuration",
    ]


def test_nothing_is_reported_where_the_new_directory_is_there_or_another_is_named(
    agent: Agent, home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    keep_earlier(home, "data", f"{EARLIER}.db")
    monkeypatch.setenv("AGENT_DATA_DIR", str(tmp_path / "named"))
    assert "earlier version" not in agent("info", "evaluation", "latency").stderr

    monkeypatch.delenv("AGENT_DATA_DIR")
    (home / "data" / "inferometer").mkdir()
    assert "earlier version" not in agent("info", "evaluation", "latency").stderr
