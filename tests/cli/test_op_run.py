"""``agent op run`` with real operators, and what becomes of its evaluations."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

import inferometer as im
from inferometer.client.cli.output import INTERRUPTED
from inferometer.evaluators.kinds.operators.measurement import OperatorMeasurement
from inferometer.evaluators.kinds.registry import again
from inferometer.manifests.errors import ConfigurationError
from tests.cli.conftest import Agent, FilledOnce

QUICK = ("--threads=1", "--time_budget=0.05")
COUNTED = ("--threads=1", "--runs=150")  # as many as a p90 needs, however slow the machine is
ONNX = ("--framework_name=ONNXRuntime", *QUICK)
ORDER = ["PyTorch", "MXNet", "ONNXRuntime"]


@pytest.fixture
def rows(needs_mxnet: None, agent: Agent, filled_once: FilledOnce, tmp_path: Path) -> list[dict[str, object]]:
    """The rows of ``add`` in three frameworks, whose evaluations are in the database."""
    path = tmp_path / "data" / "rows.json"

    def measure() -> None:
        answer = agent("op", "run", "add", "--shapes=1024x1024", *COUNTED, "-f", "json")
        assert answer.code == 0, answer.stderr
        assert answer.stderr.splitlines()[-1] == "3 rows: 3 measured"
        path.write_text(answer.stdout)

    filled_once(measure)
    found: list[dict[str, object]] = json.loads(path.read_text())
    return found


def test_add_runs_in_three_frameworks_on_equal_inputs(rows):
    assert [row["framework_name"] for row in rows] == ORDER
    assert [row["form"] for row in rows] == ["eager", "nd", "graph"]
    for row in rows:
        assert (row["status"], row["inputs"]) == ("measured", "lhs=1024x1024 rhs=1024x1024")
        assert row["moved_bytes"] == 12_582_912
        assert row["max_difference"] <= 1e-6
        assert row["threads"] == 1
        assert 0 < row["p50_us"] <= row["p90_us"]
        assert row["gbytes_per_s"] == pytest.approx(12.582912 / row["p50_us"] * 1e3)
        assert row["bound"] == "memory"


def test_the_stored_evaluations_are_reported_shown_and_drawn(agent, rows, tmp_path):
    assert agent("info", "evaluation", "op", "-f", "json").code == 0
    reported = json.loads(agent("info", "evaluation", "operators", "-f", "json").stdout)
    assert sorted(row["p50_us"] for row in reported) == sorted(row["p50_us"] for row in rows)
    listed = agent("info", "evaluations", "-f", "csv").rows
    assert {row["kind"] for row in listed} == {"operators"}
    shown = agent("info", "evaluation", "show", rows[1]["id"]).stdout
    assert "1 row: 1 measured" in shown
    assert "add forward, nd, lhs=1024x1024 rhs=1024x1024: p50 " in shown
    document = json.loads(agent("info", "evaluation", "show", rows[0]["id"], "-f", "json").stdout)
    assert document["operators"][0]["status"] == "measured"
    assert document["options"]["dtype"] == "float32"
    drawn = agent("info", "evaluation", "operators", "--plot", tmp_path / "op.svg")
    assert drawn.stderr == f"drawn to {tmp_path / 'op.svg'}\n"
    assert "roof of this machine" in (tmp_path / "op.svg").read_text()


def test_markdown_is_the_table_of_opperf(agent, rows):
    lines = agent("info", "evaluation", "operators", "-f", "markdown").stdout.splitlines()

    times = "Avg Forward Time (ms) | Avg. Backward Time (ms)"
    assert lines[0].startswith(f"| Operator | {times} | Max Mem Usage (Storage) (Bytes) | Inputs |")
    assert len(lines) == 2 + len(rows)
    assert all("{'lhs': (1024, 1024), 'rhs': (1024, 1024)}" in line for line in lines[2:])
    chosen = agent("info", "evaluation", "operators", "-f", "markdown", "--columns=operator,p50_us").stdout
    assert chosen.startswith("| operator | p50 (us) |\n")


def test_all_reports_and_the_page_have_operators(agent, rows, tmp_path):
    assert agent("info", "evaluation", "all", "-o", tmp_path / "all", "-f", "markdown").code == 0
    assert "1024" in (tmp_path / "all" / "operators.md").read_text()
    answer = agent("report", "-o", tmp_path / "page.html")
    assert answer.code == 0
    assert "3 evaluations" in answer.stdout


def test_a_group_is_compared_with_a_group_and_a_framework_with_another(agent, rows):
    ids = {row["framework_name"]: row["id"] for row in rows}
    compared = agent("compare", ids["MXNet"], ids["ONNXRuntime"], "--threshold=10", "-f", "json")
    [row] = json.loads(compared.stdout)
    assert row["framework"] == "ONNXRuntime / MXNet"
    assert row["operator"] == "add"
    assert compared.code == (1 if row["verdict"] == "worse" else 0)
    mixed = agent("compare", f"{ids['MXNet']},{ids['PyTorch']}", ids["ONNXRuntime"])
    assert mixed.code == 2
    assert "have a framework in common" in mixed.error


def test_the_page_gives_the_command_that_measures_it_again(agent, rows, tmp_path, monkeypatch):
    from contextlib import closing

    from inferometer.evaluators.store.evaluation_store import EvaluationFilter
    from inferometer.evaluators.store.opening import open_store

    with closing(open_store(None, "inferometer", tmp_path / "data")) as store:
        found = store.find(EvaluationFilter(evaluation_id=str(rows[2]["id"])))
    line = again(found[0]).line
    expected = "agent op run add --framework_name=ONNXRuntime --input=lhs=1024,1024 --input=rhs=1024,1024"
    assert line == f"{expected} --form=graph {' '.join(COUNTED)}"
    answer = agent(*line.split()[1:], "--runs=5", "--publish=false", "-f", "csv")
    assert (answer.rows[0]["inputs"], answer.rows[0]["runs"]) == ("lhs=1024x1024 rhs=1024x1024", "5")


def test_own_sizes_and_cases_of_a_file_run_and_rows_go_to_a_file(agent, tmp_path):
    cases, path = tmp_path / "cases.yaml", tmp_path / "rows.json"
    cases.write_text("- operator: add\n  inputs: {lhs: [4, 8], rhs: [4, 8]}\n- {operator: add}\n")

    own = agent("op", "run", "add", "--input", "lhs=2,3", "--input", "rhs=2x3", *ONNX, "-f", "csv")
    options = (*ONNX, "-f", "json", "--output_file", path)
    listed = agent("op", "run", f"--cases={cases}", "--shapes=small", *options)

    assert (listed.code, listed.stdout) == (0, "")
    rows = json.loads(path.read_text())
    assert [row["inputs"] for row in own.rows] == ["lhs=2x3 rhs=2x3"]
    assert [row["inputs"] for row in rows] == ["lhs=4x8 rhs=4x8", "lhs=1024x1024 rhs=1024x1024"]
    assert {row["preset"] for row in own.rows + rows} == {"own"}


def test_what_a_framework_lacks_is_a_row_with_the_reason(agent):
    answer = agent("op", "run", "add", "--shapes=small", "--run_backward", *ONNX, "-f", "csv")

    assert answer.code == 0
    assert [(row["mode"], row["status"]) for row in answer.rows] == [
        ("forward", "measured"),
        ("backward", "missing"),
        ("forward_backward", "missing"),
    ]
    assert answer.rows[1]["reason"] == "ONNX Runtime computes no gradients"
    assert answer.stderr.splitlines()[-1] == "3 rows: 1 measured, 2 missing"


def test_a_row_that_failed_is_told_at_once_and_exits_with_1(agent):
    large = "9000000x9000000"
    inputs = ("--input", f"lhs={large}", "--input", f"rhs={large}")

    answer = agent("op", "run", "add", *inputs, *ONNX, "-f", "csv")

    assert answer.code == 1
    [row] = answer.rows
    assert (row["status"], row["p50_us"]) == ("failed", "")
    assert row["reason"].startswith("out of memory: ")
    assert f"failed: add (lhs={large} rhs={large}), forward, in ONNXRuntime graph: " in answer.stderr


@pytest.mark.usefixtures("known_peak")
def test_an_interrupted_run_keeps_its_rows_and_goes_on(agent, tmp_path):
    command = ["op", "run", "add", "--shapes=small,skewed", "--framework_name=ONNXRuntime", "--threads=1"]
    command += ["--time_budget=0.4", "--target_ci=0", "-f", "csv"]
    code = "import sys; from inferometer.client.cli.main import main; main(sys.argv[1:])"
    process = subprocess.Popen(
        [sys.executable, "-c", code, *command],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=dict(os.environ),
        start_new_session=True,
    )
    journal, pause = tmp_path / "data" / "operators", threading.Event()
    try:
        while process.poll() is None and not _lines(journal):
            pause.wait(0.01)
        process.send_signal(signal.SIGINT)
        stdout, stderr = process.communicate(timeout=60)
    finally:
        process.kill()
    assert process.returncode == INTERRUPTED, stderr
    kept = len(stdout.splitlines()) - 1
    assert 1 <= kept < 3
    assert "--resume continues" in stderr

    answer = agent(*command, "--resume")

    assert answer.code == 0, answer.stderr
    assert [row["inputs"] for row in answer.rows] == [
        "lhs=32x32 rhs=32x32",
        "lhs=10000x10 rhs=10000x10",
        "lhs=10000x1 rhs=10000x1",
    ]
    assert answer.rows[0]["p50_us"] == stdout.splitlines()[1].split(",")[6]


def _lines(journal: Path) -> bool:
    """Whether a row is in a journal."""
    return any(path.stat().st_size for path in journal.glob("*.jsonl"))


def test_the_library_measures_the_same(rows):
    sizes = {"lhs": (1024, 1024), "rhs": (1024, 1024)}
    found = im.benchmark_operators("add", inputs=sizes, frameworks="ONNXRuntime", threads=1, runs=20)

    assert found.complete
    [row] = found[0].rows
    assert (row["inputs"], row["runs"], row["status"]) == ("lhs=1024x1024 rhs=1024x1024", 20, "measured")
    assert found.to_dict()["operator"] == ["add"]
    assert isinstance(found[0].evaluation.measurement, OperatorMeasurement)
    assert "add" in repr(found)
    assert "1 row: 1 measured" in repr(found[0])
    compared = im.compare(list(found), str(rows[2]["id"]), threshold=9)
    assert [each["verdict"] for each in compared] == ["undecided"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"shapes": "big"}, 'unknown shapes "big"'),
        ({"forms": "egaer"}, 'unknown form "egaer"; did you mean "eager"?'),
        ({"modes": "backwards"}, 'unknown mode "backwards"; did you mean "backward" or '),
        ({"time_budget": 0}, "time_budget"),
        ({"runs": 1.5}, "runs is 1.5; it must be a whole number"),
        ({"inputs": {"lhs": (2,)}, "categories": "gemm"}, "exactly one operator"),
        ({"values": "random"}, 'unknown values "random"'),
    ],
)
def test_the_library_names_what_is_wrong(arguments, message):
    with pytest.raises(ConfigurationError, match=message.replace("?", r"\?")):
        im.benchmark_operators("add", **arguments)


def test_an_unknown_argument_of_the_library_is_a_type_error():
    with pytest.raises(TypeError, match="unexpected keyword argument 'size'"):
        im.benchmark_operators("add", size=3)
