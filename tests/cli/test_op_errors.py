"""What ``agent op run`` refuses: one line each, before a framework is imported."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

INPUT = ("--input", "lhs=2,3")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ((), "no operator is named; name some, such as add conv2d, or a category, or all of them"),
        (("addd",), 'unknown operator "addd"; did you mean "add" or '),
        (("--category=arithmetics",), 'unknown category "arithmetics"; did you mean "arithmetic"?'),
        (("add", "--shapes=bigg"), 'unknown shapes "bigg"; '),
        (("add", "--shapes=,"), "shapes is empty; give some of small, normal"),
        (("add", "--form=gluonn"), 'unknown form "gluonn"; did you mean "gluon"?'),
        (("add", "--mode=backwards"), 'unknown mode "backwards"; did you mean "backward" or '),
        (("add", "--framework_name=Torch"), 'unknown framework "Torch"; '),
        (("add", "power", *INPUT), "--input is for exactly one operator"),
        (("add", "--all", *INPUT), "--input is for exactly one operator"),
        (("--category=arithmetic", "--param=axis=0"), "--param is for exactly one operator"),
        (("add", "--input=lhs"), '--input "lhs" is not NAME=VALUE, such as data=32,3,224,224'),
        (("add", "--input=lhs=2,x"), "--input lhs=2,x: is not a shape; write sizes of 1 or more"),
        (("add", "--input=lhs=0,1"), "--input lhs=0,1: is not a shape"),
        (("add", "--input=rsh=2,3"), 'operator add: unknown input "rsh"; did you mean "rhs"?'),
        (("add", *INPUT, *INPUT), "--input gives lhs twice; leave out one"),
        (("add", "--param=kernel=3"), 'operator add: unknown parameter "kernel"'),
        (("add", "--gpu", "--device=cpu"), "--gpu and --device=cpu contradict each other"),
        (("add", "--cases=none.yaml"), "none.yaml: cannot be read: No such file"),
    ],
)
def test_what_is_wrong_is_one_line(agent, words, message):
    answer = agent("op", "run", *words)

    assert answer.code == 2
    assert message in answer.error
    assert answer.stdout == ""


RUN = ("op", "run", "sqrt", "--shapes=small", "--framework_name=ONNXRuntime", "-r", "1")
SCORE = ("score", "none.csv", "--task=regression")


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        ((*RUN, "-o", "old.csv"), 7, "old.csv exists; append to it or overwrite it (--append, --overwrite)"),
        ((*RUN, "-o", "old.csv", "-f", "md"), 7, "old.csv exists; overwrite it (--overwrite)"),
        ((*RUN, "-o", "none/new.csv", "--overwrite"), 7, "none/new.csv: the folder none does not exist"),
        ((*RUN, "-o", "old.csv", "--append", "-f", "csv"), 7, "old.csv: has other columns than operator,"),
        ((*RUN, "-o", "old.csv", "--append", "-f", "md"), 7, "this format does not support appending"),
        ((*RUN, "-o", "old.csv", "--append", "--overwrite"), 2, "append and overwrite exclude each other"),
        ((*RUN, "--append"), 2, "append and overwrite are for a file; name one as the output"),
        ((*RUN, "--columns=nosuch"), 2, 'unknown column "nosuch"'),
        ((*RUN, "--sort=-nosuch"), 2, 'unknown column "nosuch"'),
        ((*SCORE, "-o", "old.csv"), 7, "old.csv exists"),
        ((*SCORE, "--sort=nosuch"), 2, 'unknown column "nosuch"'),
    ],
)
def test_what_cannot_be_written_is_refused_before_the_measurement(
    agent, tmp_path, monkeypatch, words, code, message
):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "old.csv").write_text("other\n1\n")

    answer = agent(*words)

    assert (answer.code, answer.stdout) == (code, "")
    assert message in answer.error
    assert "published" not in answer.stderr
    assert (tmp_path / "old.csv").read_text() == "other\n1\n"


def test_a_missing_gpu_has_the_exit_code_of_a_missing_device(agent):
    answer = agent("op", "run", "add", "--gpu", "--gpu_device_id=63", "--framework_name=PyTorch")

    assert answer.code == 3
    assert "cannot use gpu:63" in answer.error


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("- {operator: add\n- x", "cases.yaml: cannot be read as YAML: while parsing"),
        ("operator: add", "cases.yaml: is not a list of cases"),
        ("[]", "cases.yaml: is not a list of cases"),
        ("- add", 'cases.yaml: entry 1: is "add", not a mapping with operator'),
        ("- {operator: add}\n- {operator: ad}", 'cases.yaml: entry 2: unknown operator "ad"; did you mean'),
        ("- {inputs: {lhs: [2]}}", "entry 1: names no operator"),
        ("- {operator: add, input: {}}", 'entry 1: unknown field "input"; did you mean "inputs"?'),
        ("- {operator: add, inputs: [2]}", 'entry 1: inputs is "[2]", not a mapping of names to values'),
        ("- {operator: add, inputs: {lhs: 2x3}}", 'entry 1: inputs: lhs is "2x3"; write a list of sizes'),
        ("- {operator: add, inputs: {lhs: [0]}}", 'entry 1: inputs: lhs is "[0]"'),
        ("- {operator: add, inputs: {lhs: [true]}}", 'entry 1: inputs: lhs is "[True]"'),
        ("- {operator: add, inputs: {lsh: [2]}}", 'entry 1: operator add: unknown input "lsh"'),
        ("- {operator: add, parameters: {axis: 1}}", 'entry 1: operator add: unknown parameter "axis"'),
    ],
)
def test_a_bad_file_is_named_with_its_entry(agent, tmp_path, text, message):
    (tmp_path / "cases.yaml").write_text(text)

    answer = agent("op", "run", f"--cases={tmp_path / 'cases.yaml'}")

    assert answer.code == 2
    assert message in answer.error


def test_a_fault_of_the_syntax_is_named_with_its_line(agent, tmp_path):
    (tmp_path / "cases.yaml").write_text("- operator: add\n- operator: [\n")

    assert "line 3" in agent("op", "run", f"--cases={tmp_path / 'cases.yaml'}").error


def test_help_and_refusals_import_no_framework():
    code = (
        "import sys\nfrom inferometer.client.cli.main import run\n"
        "assert run(['op', 'run', '--help']) == 0\nassert run(['op', 'run', 'addd']) == 2\n"
        "print([name for name in ('torch', 'mxnet', 'onnxruntime') if name in sys.modules])"
    )
    found = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True
    )

    assert found.stdout.splitlines()[-1] == "[]"


def test_operators_categories_and_frameworks_complete(monkeypatch, capfd):
    from inferometer.client.cli.main import run

    def complete(*words: str) -> list[str]:
        capfd.readouterr()
        monkeypatch.setenv("_AGENT_COMPLETE", "bash_complete")
        monkeypatch.setenv("COMP_WORDS", " ".join(("agent", *words)))
        monkeypatch.setenv("COMP_CWORD", str(len(words)))
        assert run([]) == 0
        return [line.partition(",")[2] for line in capfd.readouterr().out.splitlines()]

    assert "add" in complete("op", "run", "ad")
    assert complete("op", "run", "--category", "arith") == ["arithmetic"]
    assert complete("op", "list", "--framework_name", "MXNet,Py") == ["MXNet,PyTorch"]
    assert complete("op", "") == ["list", "run"]


def test_the_list_has_the_forms_of_each_framework(agent):
    rows = agent("op", "list", "--framework_name=ONNXRuntime", "-f", "csv").rows

    [added] = [row for row in rows if row["operator"] == "add"]
    assert added == {
        "operator": "add",
        "category": "arithmetic",
        "onnxruntime": "graph",
        "summary": "lhs + rhs",
    }
    assert {
        row["category"]
        for row in agent(
            "op", "list", "--category=arithmetic", "--framework_name=ONNXRuntime", "-f", "csv"
        ).rows
    } == {"arithmetic"}
    assert "unknown category" in agent("op", "list", "--category=x").error


def test_the_list_has_what_the_table_lacks(agent):
    rows = agent("op", "list", "--uncovered", "--framework_name=ONNXRuntime", "-f", "csv").rows

    names = [row["operator"] for row in rows]
    assert names == sorted(names)
    assert len(names) > 10
    assert "Add" not in names
    assert agent("op", "list", "--uncovered", "--category=gemm").code == 2


def test_a_framework_that_is_not_installed_says_so_in_its_column(agent, monkeypatch):
    from inferometer.agent.inference.registry import FrameworkEntry

    monkeypatch.setattr(FrameworkEntry, "installed_version", property(lambda _: None))

    [row, *_] = agent("op", "list", "--framework_name=MXNet", "-f", "csv").rows

    assert row["mxnet"].startswith("no: framework MXNet is not installed; install it with: pip install")


@pytest.mark.usefixtures("needs_mxnet")
def test_the_table_on_the_page_is_that_of_now():
    from tools.operator_table import PAGE, page

    assert isinstance(PAGE, Path)
    assert PAGE.read_text(encoding="utf-8") == page(), "docs/operators.md is out of date; run: make docs"


def test_the_classes_on_the_page_are_those_of_now():
    from tools.operator_table import CLASSES_PAGE, classes_page

    assert CLASSES_PAGE.read_text(encoding="utf-8") == classes_page(), "it is out of date; run: make docs"
