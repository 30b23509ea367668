"""A plug-in whose kind cannot be imported: everything else works, and one line says what is wrong."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

Agent = Callable[..., str]


@pytest.fixture
def broken(agent_environment: dict[str, str], tmp_path: Path) -> None:
    """Announces a kind whose module does not exist, as a plug-in does after a half-done upgrade."""
    folder = tmp_path / "site"
    information = folder / "broken-1.dist-info"
    information.mkdir(parents=True)
    (information / "METADATA").write_text("Metadata-Version: 2.1\nName: broken\nVersion: 1\n")
    (information / "entry_points.txt").write_text("[inferometer.kinds]\nsmoke = nowhere:Kind\n")
    agent_environment["PYTHONPATH"] += f":{folder}"


OLD = """
from inferometer_opening import OpeningKind
class Kind(OpeningKind):
    name = "smoke"
    reports = ("opening",)
"""


def test_a_kind_that_names_its_reports_is_left_out(
    broken: None, agent: Agent, agent_environment: dict[str, str], tmp_path: Path
) -> None:
    (tmp_path / "site" / "nowhere.py").write_text(OLD)

    said = agent("info", "evaluations", stream="stderr")

    assert "left out kind smoke: its reports must map each Report to its Plot, or to None" in said


@pytest.mark.usefixtures("broken")
def test_a_kind_that_cannot_be_imported_stops_nothing_else(agent: Agent) -> None:
    # a process tells it once
    assert "smoke: nowhere:Kind cannot be imported" in agent("info", "evaluations", stream="stderr")

    agent("measure", "opening", "--framework_name=ONNXRuntime", "--openings=2")

    assert "opening" in agent("info", "evaluations")
    assert "opening" in agent("measure", "--help")
    assert "kind smoke: nowhere:Kind cannot be imported" in agent("measure", "smoke", code=2, stream="stderr")
