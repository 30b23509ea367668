"""A kind of measurement of a plug-in, in the command line and the library, on the page, and in a plan."""

from __future__ import annotations

import ast
import csv
import io
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

HERE = Path(__file__).parent
Agent = Callable[..., str]
MEASURE = ("measure", "opening", "--framework_name=ONNXRuntime", "--openings=3")
LIBRARY = """
import sys
from pathlib import Path
import inferometer
from inferometer.client.web.documents import evaluation_document, page_reports

found = inferometer.measure("opening", framework="ONNXRuntime", openings=2, pause_s=0.001)
assert len(found.measurement.times_ns) == 2
assert found.measurement.options == {"openings": 2, "pause_s": 0.001}
page = evaluation_document(found, (), page_reports(), lambda _: iter(()))
assert page["command"]["line"].startswith("agent measure opening --model_name=DigitsCNN"), page["command"]
assert page["command"]["line"].endswith("--openings=2 --pause=0.001"), page["command"]
assert any(figure["key"] == "opening_ms_p50" for figure in page["figures"]), page["figures"]
assert page["subtitle"].endswith("opening")
for name, value in {"kind": "opning", "openings": 0, "nap": 1}.items():
    given = {"kind": "opening", name: value}
    try:
        inferometer.measure(given.pop("kind"), **given)
    except inferometer.ConfigurationError as error:
        print(error)
"""


def test_the_kind_imports_inferometer_alone() -> None:
    tree = ast.parse((HERE / "inferometer_opening.py").read_text(encoding="utf-8"))
    modules = {node.module for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}

    assert {module for module in modules if module and module.startswith("inferometer")} == {"inferometer"}


def test_the_command_measures_publishes_reports_and_compares(agent: Agent, tmp_path: Path) -> None:
    assert "opening" in agent("measure", "--help")
    assert "--openings N" in agent("measure", "opening", "--help")
    printed = agent(*MEASURE)
    agent(*MEASURE, "--pause=0.001")

    assert "ms, 3 times" in printed
    rows = list(csv.DictReader(io.StringIO(agent("info", "evaluation", "opening", "-f", "csv"))))
    assert [row["openings"] for row in rows] == ["3", "3"]
    every = list(csv.DictReader(io.StringIO(agent("info", "evaluations", "-f", "csv"))))
    assert {row["kind"] for row in every} == {"opening"}
    assert float(every[0]["latency_ms_p50"]) == float(rows[0]["opening_ms_p50"])
    shown = agent("info", "evaluation", "show", rows[0]["id"])
    assert "ms, 3 times" in shown
    document = json.loads(agent("info", "evaluation", "show", rows[0]["id"], "-f", "json"))
    assert document["elapsed_s"] > 0
    assert document["opening"] == [{"openings": 3, "opening_ms_p50": float(rows[0]["opening_ms_p50"])}]
    agent("info", "evaluation", "all", "-f", "csv", "--plot", "svg", "-o", str(tmp_path / "all"))
    assert (tmp_path / "all" / "opening.csv").is_file()
    refused = agent(
        "info", "evaluation", "opening", "--plot", str(tmp_path / "x.svg"), code=2, stream="stderr"
    )
    assert "report opening has no picture" in refused
    compared = agent("compare", rows[1]["id"], rows[0]["id"], "--threshold=9", "-f", "json")
    assert [row["figure"] for row in json.loads(compared)] == ["p50", "p90", "p99", "throughput"]


@pytest.mark.parametrize(
    ("word", "message"), [("--openings=0", "1<=x<=100"), ("--opening=1", "No such option")]
)
def test_a_wrong_option_is_one_line(agent: Agent, word: str, message: str) -> None:
    assert message in agent("measure", "opening", word, code=2, stream="stderr")


def test_the_library_measures_it_and_the_page_shows_it(agent_environment: dict[str, str]) -> None:
    done = subprocess.run(
        [sys.executable, "-c", LIBRARY], env=agent_environment, capture_output=True, text=True, timeout=120
    )

    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [
        'unknown kind "opning"; did you mean "opening" or "tuning"?',
        "openings is 0; it must be at least 1 and at most 100",
        'unknown option "nap" of opening; known: openings, pause_s',
    ]


def test_a_plan_varies_its_options(agent: Agent, tmp_path: Path) -> None:
    plan = tmp_path / "plan.yaml"
    plan.write_text(
        "name: openings\ncommand: measure opening\n"
        "parameters: {model_name: DigitsCNN, framework_name: ONNXRuntime}\nvariables: {openings: [2, 3]}\n"
    )
    wrong = tmp_path / "wrong.yaml"
    wrong.write_text(plan.read_text().replace("[2, 3]", "[2, 0]"))

    assert "0 is not in the range" in agent("plan", "check", str(wrong), code=2, stream="stderr")
    agent("plan", "run", str(plan))
    table = agent("plan", "report", str(plan), "-f", "csv")
    assert [row["openings"] for row in csv.DictReader(io.StringIO(table))] == ["2", "3"]
    assert "opening_ms_p50" in table
