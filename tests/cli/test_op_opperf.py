"""opperf's command line in ``agent op run``, and its formats beside what opperf's own run of MXNet writes."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

from inferometer.client.evaluating import operators as running
from tests.optional_mxnet import mxnet

OPPERF = os.environ.get("INFEROMETER_OPPERF", "")
QUICK = ("--framework_name=MXNet", "--threads=1", "-w", "1", "-r", "5")


@pytest.fixture
def requested(agent, monkeypatch):
    """Returns the request of ``op run`` and its settings of printing, without measuring."""

    def request(*words):
        found = []
        monkeypatch.setattr(running, "run_operators", lambda *given, **_: found.append(given[1:]) or 0)
        answer = agent("op", "run", "add", *words)
        assert answer.code == 0, answer.stderr
        [(asked, printing)] = found
        return asked, printing

    return request


@pytest.mark.parametrize(
    ("theirs", "ours"),
    [
        (("--ctx", "cpu"), ("--device=cpu",)),
        (("--ctx=gpu",), ("--gpu",)),
        (("--ctx", "gpu(0)"), ("--device=gpu",)),
        (("--ctx", "GPU(3)"), ("--gpu", "--gpu_device_id=3")),
        (("--dtype", "int64"), ("--dtype=int64",)),
        (("-p", "native"), ("--mode=forward", "--mode=backward")),
        (("--profiler", "python"), ("--mode=forward,forward_backward",)),
        (("-w", "25", "-r", "100"), ("--warmup=25", "--runs=100")),
        (("--int64-tensor", "off"), ()),
        (("--int64-tensor", "on"), ("--shapes=huge",)),
        (("-f", "md"), ("--format=md",)),
        (("--output-format", "md", "--output-file", "x.md"), ("-f", "md", "-o", "x.md")),
    ],
)
def test_an_option_of_opperf_is_one_of_ours(theirs, ours, requested):
    assert requested(*theirs) == requested(*ours)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--ctx=tpu",), 'unknown ctx "tpu"; give cpu, gpu, or one GPU, such as gpu(1)'),
        (("--ctx=",), 'unknown ctx ""'),
        (("--ctx=gpu(x)",), 'unknown ctx "gpu(x)"'),
        (("--ctx=cpu", "--gpu"), "--ctx and another option set gpu; leave out one of them"),
        (("--ctx=gpu", "--device=gpu"), "--ctx and another option set device; leave out one of them"),
        (("--ctx=gpu", "--gpu_device_id=1"), "--ctx and another option set gpu_device_id; leave out"),
        (("-p", "cpp"), "'cpp' is not one of 'native', 'python'"),
        (("-p", "python", "--mode=forward"), "--profiler and another option set modes; leave out one"),
        (("-p", "native", "--run_backward"), "--profiler and another option set run_backward; leave out"),
        (("--int64-tensor=yes",), "'yes' is not one of 'off', 'on'"),
        (("--int64-tensor=on", "--shapes=all"), "--int64_tensor and another option set shapes; leave out"),
        (("-f", "md", "--sort=operator"), "format md has fixed columns in a fixed order; leave out"),
        (("-f", "opperf-json", "--columns=inputs"), "format opperf-json has fixed columns in a fixed order"),
    ],
)
def test_what_is_wrong_is_one_line(words, message, agent):
    answer = agent("op", "run", "add", *words)

    assert answer.code == 2
    assert message in answer.error
    assert answer.stdout == ""


def test_an_operator_without_huge_cases_says_so(agent):
    answer = agent("op", "run", "sqrt", "--int64-tensor", "on")

    assert (answer.code, answer.stdout) == (2, "")
    assert "none of the operators has cases of shapes huge; leave out shapes" in answer.error


@pytest.mark.parametrize("command", ["op list", "info evaluation latency", "info evaluations", "info models"])
def test_other_reports_do_not_offer_the_formats(command, agent):
    answer = agent(*command.split(), "-f", "opperf-json")

    assert answer.code == 2
    assert "'opperf-json' is not one of 'table', 'csv', 'json', 'markdown'." in answer.error


@pytest.mark.usefixtures("needs_mxnet")
def test_a_run_writes_the_keys_of_opperf(agent, tmp_path):
    path = tmp_path / "results.json"
    words = ("op", "run", "argmax", "sqrt", "--shapes=small", "--ctx", "cpu", "-p", "native", *QUICK)

    answer = agent(*words, "-f", "opperf-json", "-o", path)

    assert answer.code == 0, answer.stderr
    assert answer.stdout == ""
    found = json.loads(path.read_text())
    theirs = _of_opperf(tmp_path) if OPPERF else _KEYS
    assert {name: [*found[name][0]] for name in theirs} == theirs
    assert found["argmax"][0]["inputs"] == {"data": [16, 24], "axis": 1}
    assert agent("info", "evaluation", "operators", "-f", "opperf-json").stdout == path.read_text()
    heading, *lines = agent("info", "evaluation", "operators", "-f", "opperf-md").stdout.splitlines()
    features = sorted(mxnet.runtime.Features().items())
    assert heading == "# Runtime Features"
    assert lines[: len(features) + 1] == [f"0. {name} : {is_there}" for name, is_there in features] + [
        "# Benchmark Results"
    ]


_MEMORY = "max_storage_mem_alloc_cpu/0"
_KEYS = {
    "argmax": ["inputs", _MEMORY, "avg_time_forward_argmax"],
    "sqrt": ["inputs", _MEMORY, "avg_time_forward_sqrt", "avg_time_backward_sqrt"],
}
"""The keys that opperf writes with MXNet 1.9.1, in their order."""


def _of_opperf(folder):
    """Runs opperf on the same operators, and returns the keys of its results."""
    code = (
        "import json, numpy; numpy.bool = bool; import mxnet\n"
        "from benchmark.opperf.utils.benchmark_utils import run_performance_test as run\n"
        "cases = ('argmax', {'data': (16, 24), 'axis': 1}, False), ('sqrt', {'data': (32, 32)}, True)\n"
        "found = [run(getattr(mxnet.nd, name), [inputs], back, warmup=2, runs=20)[0] "
        "for name, inputs, back in cases]\n"
        "print(json.dumps({name: list(entries[0]) for each in found for name, entries in each.items()}))"
    )
    words, environment = [sys.executable, "-c", code], {**os.environ, "PYTHONPATH": OPPERF}
    return json.loads(subprocess.check_output(words, text=True, env=environment, cwd=folder))
