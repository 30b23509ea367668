"""A new option is one field in one file: everything else finds it there."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
REQUEST = Path("evaluators/kinds/load/request.py")
LINE = "    force: bool = declared(False"
NEW = '    settle_s: float = declared(0.5, "How long to wait before the run.", "S", within=Range(0, 10))\n'
SCRIPT = """
import contextlib, io, json, sys
from pathlib import Path
import inferometer
from inferometer.client.cli.main import run
from inferometer.client.web.documents import evaluation_document, page_reports
from inferometer.manifests.errors import ConfigurationError
from tools import command_reference, library_arguments

FEW = ("predict", "workload", "--framework_name=ONNXRuntime", "--initial_qps=200", "--min_duration=0.1")
FEW += ("--min_queries=10",)
found = {}

def agent(*words):
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = run(list(map(str, words)))
    return code, out.getvalue(), err.getvalue()

found["help"] = agent("predict", "max-qps", "--help")[1]
found["refused"] = agent(*FEW, "--settle=11")[2]
found["measured"] = agent(*FEW, "--settle=2", "--allow_invalid")
found["shown"] = json.loads(agent("info", "evaluation", "show", "-f", "json")[1])
run_ = inferometer.workload(
    framework="ONNXRuntime", initial_qps=200, min_duration_s=0.1, min_queries=10, settle_s=3.0
)
found["library"] = dict(run_.evaluation.measurement.options.further)
found["page"] = evaluation_document(run_.evaluation, (), page_reports(), None)
try:
    inferometer.workload(settle_s=11.0)
except ConfigurationError as error:
    found["library_refused"] = str(error)
found["reference"] = command_reference.page()
found["arguments"] = library_arguments.text()
plan = Path("plan.yaml")
plan.write_text(
    "name: settling\\ncommand: predict workload\\nparameters: {model_name: DigitsCNN}\\n"
    "variables: {settle: [1, 11]}\\n"
)
found["plan"] = agent("plan", "check", plan)[2]
Path(sys.argv[1]).write_text(json.dumps(found, default=str))
"""


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """The checkout, by links, with one more field in one file."""
    overlay = tmp_path / "source"
    _linked(ROOT, overlay, but=(REQUEST.parts[0], "inferometer"))
    _linked(ROOT / "inferometer", overlay / "inferometer", but=("evaluators",))
    here = Path()
    for part, following in zip(REQUEST.parts[:-1], REQUEST.parts[1:], strict=True):
        here /= part
        _linked(ROOT / here, overlay / here, but=(following,))
    (overlay / "inferometer" / "evaluators").symlink_to(overlay / "evaluators")
    text = (ROOT / REQUEST).read_text()
    assert text.count(LINE) == 1
    (overlay / REQUEST).write_text(text.replace(LINE, NEW + LINE))
    return overlay


def _linked(folder: Path, copy: Path, but: tuple[str, ...]) -> None:
    copy.mkdir(parents=True)
    for each in folder.iterdir():
        if each.name not in (*but, ".git", ".venv", "build", "__pycache__"):
            target = each.resolve() if folder == ROOT / "inferometer" else each
            (copy / each.name).symlink_to(target)


def test_an_option_that_a_request_declares_is_everywhere(source: Path, tmp_path: Path) -> None:
    answer = tmp_path / "found.json"
    own = {"PYTHONPATH": str(source), "AGENT_DATA_DIR": str(tmp_path / "data")}
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, str(answer)],
        env=os.environ | own,
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=170,
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(answer.read_text())

    assert "--settle S" in found["help"]
    assert "How long to wait before the run." in found["help"]
    assert "settle" in found["refused"]
    assert found["measured"][0] == 0, found["measured"]
    assert found["shown"]["load"]["options"]["settle_s"] == 2.0  # stored, and read back
    assert found["library"] == {"settle_s": 3.0}
    assert found["library_refused"] == "settle is 11.0; it must be at least 0 and at most 10"
    assert "--settle=3" in found["page"]["command"]["line"]
    assert ["settle s", "3"] in found["page"]["facts"][0]["rows"]
    assert "| `--settle S` | How long to wait before the run." in found["reference"]
    assert "    settle_s: float\n" in found["arguments"]
    assert "11.0 is not in the range 0<=x<=10" in found["plan"]
    assert "(1 of 2 cells)" in found["plan"]


def test_the_arguments_of_the_library_are_those_of_now() -> None:
    from tools.library_arguments import FILE, MEND, text

    assert FILE.read_text(encoding="utf-8") == text(), f"{FILE.name} is out of date; {MEND}"
