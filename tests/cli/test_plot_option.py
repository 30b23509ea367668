"""``--plot`` of the reports on the command line."""

from __future__ import annotations

import json
import shutil
import sys
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest

from tests.cli.conftest import Agent

EVALUATE = ("predict", "dataset", "--framework_name=ONNXRuntime", "--batch_size=16", "--num_file_parts=2")
REPORT = ("info", "evaluation")
SVG = "{http://www.w3.org/2000/svg}"


@pytest.fixture(scope="module")
def stored(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder for the evaluations that the tests share."""
    return tmp_path_factory.mktemp("evaluated") / "data"


@pytest.fixture
def evaluated(agent: Agent, stored: Path, tmp_path: Path) -> None:
    """Two evaluations, which run once and are copied into the store of each test."""
    if not stored.exists():
        for level in ("MODEL_TRACE", "FRAMEWORK_TRACE"):
            assert agent(*EVALUATE, f"--trace_level={level}").code == 0
        shutil.copytree(tmp_path / "data", stored)
    else:
        shutil.copytree(stored, tmp_path / "data")


@pytest.mark.usefixtures("evaluated")
@pytest.mark.parametrize("report", ["latency", "accuracy", "duration", "layers", "layer_tree", "eventflow"])
def test_every_report_draws_each_format_and_prints_its_rows(
    agent: Agent, report: str, tmp_path: Path
) -> None:
    without = agent(*REPORT, report, "-f", "csv").stdout

    for ending, start in (("svg", b"<svg "), ("png", b"\x89PNG\r\n\x1a\n"), ("html", b"<!DOCTYPE html>")):
        path = tmp_path / f"picture.{ending}"
        answer = agent(*REPORT, report, "-f", "csv", "--plot", path)
        assert (answer.code, answer.stdout) == (0, without)
        assert answer.stderr.splitlines()[-1] == f"drawn to {path}"
        assert path.read_bytes().startswith(start)


@pytest.mark.usefixtures("evaluated")
def test_the_picture_shows_the_rows_that_are_printed(agent: Agent, tmp_path: Path) -> None:
    path = tmp_path / "layers.svg"

    answer = agent(*REPORT, "layers", "--top_layers=3", "-f", "json", "--plot", path)

    names = {row["layer_name"] for row in json.loads(answer.stdout)}
    texts = {element.text for element in ElementTree.parse(path).iter(f"{SVG}text")}
    assert len(names) == 3
    assert sum(any(f"  {name}" in (text or "") for text in texts) for name in names) == 3
    assert not any("other layer" in (text or "") for text in texts)


@pytest.mark.usefixtures("evaluated")
def test_overwrite_is_for_the_picture_and_for_the_rows(agent: Agent, tmp_path: Path) -> None:
    path, rows = tmp_path / "a.svg", tmp_path / "a.csv"
    path.write_text("mine")

    refused = agent(*REPORT, "accuracy", "--plot", path)
    assert refused.code == 7
    assert refused.error.endswith("a.svg exists; overwrite it (--overwrite), or name another file")
    assert refused.stdout == ""
    assert path.read_text() == "mine"

    assert agent(*REPORT, "accuracy", "--plot", path, "--overwrite").code == 0
    assert path.read_text().startswith("<svg")
    both = ("--plot", path, "-o", rows, "-f", "csv")
    assert agent(*REPORT, "accuracy", *both, "--overwrite").code == 0
    assert agent(*REPORT, "accuracy", *both, "--overwrite").code == 0
    assert len(rows.read_text().splitlines()) == 3
    assert agent(*REPORT, "accuracy", *both).code == 7
    path.unlink()
    assert agent(*REPORT, "accuracy", *both, "--append").code == 0
    assert len(rows.read_text().splitlines()) == 5
    assert "choose one" in agent(*REPORT, "accuracy", *both, "--append", "--overwrite").error


def test_what_cannot_be_drawn_is_refused_before_the_database_is_opened(agent: Agent, tmp_path: Path) -> None:
    (tmp_path / "folder.svg").mkdir()
    away = "--database_address=127.0.0.1:1"
    for name, code, said in (
        ("a.pdf", 2, 'ends in ".pdf"; allowed: .html, .svg, .png'),
        ("a", 2, "has no ending; allowed"),
        ("none/a.svg", 7, "does not exist"),
        ("folder.svg", 7, "is a folder"),
    ):
        answer = agent(*REPORT, "latency", away, "--plot", tmp_path / name)
        assert answer.code == code
        assert said in answer.error
    same = agent(
        *REPORT, "latency", away, "--plot", tmp_path / "a.svg", "-o", tmp_path / "x" / ".." / "a.svg"
    )
    assert same.code == 2
    assert "cannot both go" in same.error
    assert sorted(path.name for path in tmp_path.iterdir()) == ["folder.svg"]


def test_without_rows_it_is_said_and_no_file_is_written(agent: Agent, tmp_path: Path) -> None:
    path = tmp_path / "a.html"

    answer = agent(*REPORT, "latency", "--plot", path)

    assert answer.code == 0
    assert f"nothing to draw: {path} is not written" in answer.stderr
    assert not path.exists()


@pytest.mark.usefixtures("evaluated")
def test_without_matplotlib_reports_still_print(
    agent: Agent, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in [name for name in sys.modules if name.startswith("inferometer.evaluators.drawing")]:
        monkeypatch.delitem(sys.modules, module)
    monkeypatch.setitem(sys.modules, "matplotlib", None)

    answer = agent(*REPORT, "latency", "--plot", tmp_path / "a.svg")

    assert answer.code == 2
    assert 'pip install "inferometer[plot]"' in answer.error
    assert agent(*REPORT, "latency").code == 0
