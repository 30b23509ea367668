"""A new option is one field in one file: everything else finds it there."""

from __future__ import annotations

import inspect
import json
import os
import subprocess
import sys
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any, get_type_hints

import pytest

import inferometer
from inferometer.client.cli.output import OUTPUT_NAMES
from inferometer.client.commands import predict, score
from inferometer.evaluators.jobs.options import options_of
from inferometer.evaluators.jobs.request import BatchSystemOptions, DatasetOptions

ROOT = Path(__file__).parents[2]
FRAMEWORK = "--framework_name=ONNXRuntime"
TRAINED = "MXNet" if find_spec("mxnet") else "PyTorch"  # whose import takes four times as long
BENCH = ("--model=DigitsCNN", f"--framework_name={TRAINED}")
DIGITS = "digits_validation"
FUTURE = "from __future__ import annotations\n"
RANGE = "from inferometer.evaluators.jobs.options import Range\n"
NEW = '    settle_s: float = declared(0.5, "How long to wait before the run.", "S", within=Range(0, 10))\n'
SCRIPT = """
import contextlib, io, json, sys
from functools import partial
from pathlib import Path
import inferometer
from inferometer.client.cli.main import run
from inferometer.client.web.documents import evaluation_document, page_reports
from inferometer.manifests.errors import ConfigurationError
from tools import command_reference, library_arguments

answer, function, arguments, *FEW = sys.argv[1:]
few = json.loads(arguments)
measure = partial(getattr(inferometer, function), *few.pop("", ()))
found = {}

def agent(*words):
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = run(list(map(str, words)))
    return code, out.getvalue(), err.getvalue()

found["help"] = agent(*FEW[:2], "--help")[1]
found["refused"] = agent(*FEW, "--settle=11")[2]
found["measured"] = agent(*FEW, "--settle=2")
found["shown"] = json.loads(agent("info", "evaluation", "show", "-f", "json")[1])
run_ = measure(settle_s=3.0, **few)
evaluation = run_[0].evaluation if function == "benchmark_operators" else run_.evaluation
found["page"] = evaluation_document(evaluation, (), page_reports(), None)
try:
    measure(settle_s=11.0, **few)
except ConfigurationError as error:
    found["library_refused"] = str(error)
found["reference"] = command_reference.page()
found["arguments"] = library_arguments.text()
plan = Path("plan.yaml")
plan.write_text(
    f"name: settling\\ncommand: {FEW[0]} {FEW[1]}\\nparameters: {{threads: 1}}\\n"
    "variables: {settle: [1, 11]}\\n"
)
found["plan"] = agent("plan", "check", plan)[2]
Path(answer).write_text(json.dumps(found, default=str))
"""


def with_one_more(request: Path, line: str, overlay: Path) -> None:
    """Makes the checkout, by links, with one more field in one file, before a line."""
    _linked(ROOT, overlay, but=(request.parts[0], "inferometer"))
    _linked(ROOT / "inferometer", overlay / "inferometer", but=("evaluators",))
    here = Path()
    for part, following in zip(request.parts[:-1], request.parts[1:], strict=True):
        here /= part
        _linked(ROOT / here, overlay / here, but=(following,))
    (overlay / "inferometer" / "evaluators").symlink_to(overlay / "evaluators")
    text = (ROOT / request).read_text()
    assert text.count(line) == 1
    (overlay / request).write_text(text.replace(line, NEW + line).replace(FUTURE, FUTURE + RANGE))


def _linked(folder: Path, copy: Path, but: tuple[str, ...]) -> None:
    copy.mkdir(parents=True)
    for each in folder.iterdir():
        if each.name not in (*but, ".git", ".venv", "build", "__pycache__"):
            target = each.resolve() if folder == ROOT / "inferometer" else each
            (copy / each.name).symlink_to(target)


@pytest.mark.usefixtures("known_peak")
@pytest.mark.parametrize(
    ("file", "line", "function", "few", "words", "shown"),
    [
        (
            "kinds/load/request.py",
            "    max_batch_size: int = declared(",
            "workload",
            {"framework": "ONNXRuntime", "initial_qps": 200, "min_duration_s": 0.1, "min_queries": 10},
            (
                *("predict", "workload", FRAMEWORK, "--initial_qps=200", "--min_duration=0.1"),
                *("--min_queries=10", "--allow_invalid"),
            ),
            ("load", "options"),
        ),
        (
            "kinds/batches/request.py",
            "    fail_on_error: bool = declared(",
            "evaluate",
            {"framework": "ONNXRuntime", "batch_size": 16, "num_file_parts": 2},
            ("predict", "dataset", FRAMEWORK, "--batch_size=16", "--num_file_parts=2"),
            ("options",),
        ),
        (
            "kinds/training/request.py",
            "    optimizer: str = declared(",
            "train",
            {"framework": TRAINED, "batch_size": 4, "num_batches": 3},
            (*("bench", "training", *BENCH, "--batch_size=4"), "--num_batches=3"),
            ("training", "options"),
        ),
        (
            "kinds/training/request.py",
            "    drop_cache: bool = declared(",
            "train",
            {"framework": TRAINED, "data": DIGITS, "batch_size": 4, "num_batches": 3},
            ("bench", "training", *BENCH, f"--dataset_name={DIGITS}", "--batch_size=4", "--num_batches=3"),
            ("training", "data"),
        ),
        (
            "kinds/ingestion/request.py",
            "    reader: str = declared(",
            "ingest",
            {"framework": TRAINED, "data": DIGITS, "batch_size": 4, "num_batches": 3},
            ("bench", "ingestion", *BENCH, f"--dataset_name={DIGITS}", "--batch_size=4", "--num_batches=3"),
            ("ingestion", "data"),
        ),
        (
            "kinds/operators/options.py",
            "    runs: int | None = declared(",
            "benchmark_operators",
            {"": ["add"], "frameworks": "ONNXRuntime", "shapes": "8x8", "runs": 3, "threads": 1},
            ("op", "run", "add", FRAMEWORK, "--shapes=8x8", "--runs=3", "--threads=1"),
            ("options",),
        ),
        (
            "jobs/request.py",
            "    cudnn_benchmark: bool | None = declared(",
            "evaluate",
            {"framework": "ONNXRuntime", "batch_size": 16, "num_file_parts": 2},
            ("predict", "dataset", FRAMEWORK, "--batch_size=16", "--num_file_parts=2"),
            (),  # the agent describes the system, and evaluations store what it describes
        ),
    ],
    ids=["load", "batches", "training", "data", "ingestion", "operators", "systems"],
)
def test_an_option_that_a_request_declares_is_everywhere(
    tmp_path: Path,
    file: str,
    line: str,
    function: str,
    few: dict[str, Any],
    words: tuple[str, ...],
    shown: tuple[str, ...],
) -> None:
    source, answer = tmp_path / "source", tmp_path / "found.json"
    with_one_more(Path("evaluators", file), line, source)
    own = {"PYTHONPATH": str(source), "AGENT_DATA_DIR": str(tmp_path / "data")}
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, answer, function, json.dumps(few), *words],
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
    assert found["library_refused"] == "settle is 11.0; it must be at least 0 and at most 10"
    assert "| `--settle S` | How long to wait before the run." in found["reference"]
    assert "    settle_s: float\n" in found["arguments"]
    assert "11.0 is not in the range 0<=x<=10" in found["plan"]
    assert "(1 of 2 cells)" in found["plan"]
    if not shown:
        return
    values = found["shown"]
    for name in shown:
        values = values[name]
    assert values["settle_s"] == 2.0  # stored, and read back
    assert ["settle s", "3"] in found["page"]["facts"][0]["rows"]
    if function != "ingest":  # which no command repeats
        assert "--settle=3" in found["page"]["command"]["line"]


def test_the_arguments_of_the_library_are_those_of_now() -> None:
    from tools.library_arguments import FILE, MEND, text

    assert FILE.read_text(encoding="utf-8") == text(), f"{FILE.name} is out of date; {MEND}"


OF_OUTPUT = {
    *("allow_invalid", "require_stable"),  # the exit code
    *("publish_predictions", "pictures", "picture_count"),
    "allocator",  # of the whole process, which has AGENT_ALLOCATOR
    "mix",  # of another kind, whose function is measure_group
}
"""The options of commands that say what is kept, drawn and answered, and are no arguments."""
OF_PYTHON = {"inputs"}
"""The arguments that no text can give."""


@pytest.mark.parametrize(
    ("commands", "function", "arguments"),
    [
        (("dataset", "urls"), inferometer.evaluate, "EvaluateArguments"),
        (("workload",), inferometer.workload, "WorkloadArguments"),
        (("max-qps",), inferometer.max_qps, "MaxQpsArguments"),
    ],
    ids=["evaluate", "workload", "max_qps"],
)
def test_the_options_of_a_command_are_the_arguments_of_its_function(
    commands: tuple[str, ...], function: Callable[..., Any], arguments: str
) -> None:
    declared = {
        each.name: each.argument
        for request in (BatchSystemOptions, DatasetOptions)
        for each in options_of(request)
    }
    declared["batch_sizes"] = "batch_size"  # the command takes several, as a sweep does
    parameters = {
        str(each.name)
        for name in commands
        for each in predict.predict.commands[name].params
        if each.expose_value
    }
    named = set(inspect.signature(function).parameters) - {"more"} - OF_PYTHON
    typed = get_type_hints(getattr(inferometer, arguments))

    assert {declared.get(name, name) for name in parameters - OF_OUTPUT} == named | set(typed)


def test_the_options_of_a_score_are_the_arguments_of_its_function() -> None:
    parameters = {str(each.name) for each in score.score.params if each.expose_value}
    named = set(inspect.signature(inferometer.score).parameters) - {"more"}

    aside = {*OUTPUT_NAMES, "plot", "per_class"}
    assert parameters - aside == named | set(get_type_hints(inferometer.ScoreArguments))


def test_a_sweep_has_the_arguments_of_an_evaluation_but_those_that_make_several() -> None:
    of_each = {
        name: {*get_type_hints(arguments), *inspect.signature(function).parameters}
        for name, function, arguments in (
            ("evaluate", inferometer.evaluate, inferometer.EvaluateArguments),
            ("sweep", inferometer.sweep, inferometer.SweepArguments),
        )
    }

    assert of_each["evaluate"] - of_each["sweep"] == {"repeat", "leveled"}
    assert not of_each["sweep"] - of_each["evaluate"]
