"""The load commands on a scripted model: output, stored data, and Ctrl-C."""

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from fake_framework import SCRIPT, wait_for

from inferometer.client.cli.main import run
from inferometer.client.cli.output import INTERRUPTED, INVALID
from inferometer.evaluators.evaluation import Status
from inferometer.evaluators.load.queries import Outcome
from inferometer.evaluators.store.evaluation_store import EvaluationFilter
from inferometer.evaluators.store.opening import open_store

DEADLINE_S = 60


@pytest.fixture
def where(environment, manifest_folder, spawn_agent):
    """The arguments that choose the scripted model, in this process or at an agent."""

    def chosen(remote, **script):
        (manifest_folder / SCRIPT).write_text(json.dumps(script))
        if remote:
            place = [f"--agent={spawn_agent().address}"]
        else:
            place = ["--framework_name=Fake", f"--manifests={manifest_folder}"]
        return ["--model_name=Scripted", "--synthetic", "--warmup=0", *place]

    return chosen


def kept():
    """The evaluations that are published, whatever became of them."""
    data = Path(os.environ["AGENT_DATA_DIR"])
    if not data.exists():
        return []
    store = open_store(None, "inferometer", data)
    try:
        return list(store.find(EvaluationFilter(include_interrupted=True)))
    finally:
        store.close()


@pytest.mark.parametrize("remote", [False, True], ids=["here", "agent"])
def test_the_summary_and_what_is_kept_name_each_query_once(where, capfd, remote):
    command = ["predict", "workload", *where(remote, fails=[3, 4], stalls={"10": 3}), "--timeout_ms=2000"]
    code = run(
        [
            *(*command, "--arrival=constant", "--initial_qps=100", "--min_duration=0.2", "--min_queries=20"),
            "--allow_invalid",
        ]
    )
    printed = capfd.readouterr()

    assert code == 0, printed.err
    [evaluation] = kept()
    stored = evaluation.measurement.run
    assert len(stored.queries) == 20
    assert stored.queries.count(Outcome.FAILED) == 2
    assert stored.queries.count(Outcome.ANSWERED) == 8
    assert stored.queries.count(Outcome.TIMED_OUT) == 10
    [reason] = stored.reasons
    shown = re.search(r"^queries +(\d+) \((.*)\), after (\d+) of", printed.out, re.M)
    assert shown, printed.out
    outcomes = {name: int(count) for count, name in re.findall(r"(\d+) (\w+)", shown[2])}
    assert int(shown[1]) + int(shown[3]) == 20
    assert sum(outcomes.values()) == int(shown[1])
    assert outcomes["failed"] == 2
    assert outcomes["timed_out"] == 10
    assert f"2 failed: {reason}" in printed.out


OPEN_LOOP = ("workload", "--initial_qps=50", "--duration=60")
SINGLE_STREAM = ("workload", "--scenario=single_stream", "--initial_qps=500", "--min_duration=60")
OFFLINE = ("workload", "--scenario=offline", "--initial_qps=500", "--min_duration=60")
SEARCH = ("max-qps", "--initial_qps=50", "--latency_bound=100", "--min_duration=2", "--time_budget=60")


@pytest.mark.parametrize(
    ("load", "remote"),
    [
        pytest.param(OPEN_LOOP, False, id="workload"),
        pytest.param(OPEN_LOOP, True, id="workload at an agent"),
        pytest.param(("workload", "--concurrency=2", "--duration=60"), True, id="closed loop at an agent"),
        pytest.param(SEARCH, False, id="search"),
        pytest.param(SINGLE_STREAM, False, id="single stream"),
        pytest.param(SINGLE_STREAM, True, id="single stream at an agent"),
        pytest.param(
            ("workload", "--scenario=server", "--initial_qps=50", "--min_duration=60"), False, id="server"
        ),
        pytest.param(OFFLINE, False, id="offline", marks=pytest.mark.real_time),
    ],
)
def test_ctrl_c_publishes_nothing_half_and_says_what_it_had(where, manifest_folder, load, remote):
    name, *options = load
    command = [sys.executable, "-c", "from inferometer.client.cli.main import main; main()", "predict", name]
    with subprocess.Popen(
        [*command, *where(remote, service_s=0.002, mark=20), *options],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=manifest_folder,
    ) as process:
        try:
            marked(process, manifest_folder / "mark")
            process.send_signal(signal.SIGINT)
            stdout, stderr = process.communicate(timeout=DEADLINE_S)
        finally:
            process.kill()

    assert process.returncode == INTERRUPTED, stderr
    assert "Traceback" not in stderr
    [asked] = stderr.splitlines()
    assert asked.startswith("stopping")
    announced, interrupted, *_ = stdout.splitlines()
    assert "Scripted" in announced
    assert interrupted.startswith("INTERRUPTED")
    assert re.search(r"^queries +[1-9]\d* \(|^probes .* [1-9]\d* queries .*interrupted", stdout, re.M), stdout
    assert all(evaluation.status is Status.INTERRUPTED for evaluation in kept())
    assert ("not published" in stdout) == (not kept())
    assert list((Path(os.environ["AGENT_DATA_DIR"]) / "mlperf").glob("*")) == []


@pytest.mark.real_time
@pytest.mark.parametrize("scenario", ["single_stream", "multi_stream", "server"])
def test_a_scenario_on_a_model_that_hangs_is_left_and_says_so(where, manifest_folder, scenario):
    """LoadGen itself would wait for ever. In a process of its own, for it is left behind there."""
    command = [
        sys.executable,
        "-c",
        "from inferometer.client.cli.main import main; main()",
        "predict",
        "workload",
    ]
    options = [f"--scenario={scenario}", "--initial_qps=100", "--min_queries=50", "--timeout_ms=300"]
    with subprocess.Popen(
        [*command, *where(remote=False, hangs=[3]), *options, "--min_duration=1"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=manifest_folder,
    ) as process:
        try:
            wait_for(lambda: kept() or process.poll() is not None)
            (manifest_folder / "go").touch()  # the session waits for a prediction under way when it is closed
            stdout, stderr = process.communicate(timeout=DEADLINE_S)
        finally:
            process.kill()

    assert process.returncode == INVALID, stderr
    assert "Traceback" not in stderr
    [evaluation] = kept()
    stored = evaluation.measurement.run
    assert stored.stopped == "no query was answered for as long as the timeout"
    assert stored.queries.count(Outcome.ANSWERED) == 3
    assert stored.queries.count(Outcome.TIMED_OUT) >= 1
    assert "have no right answer" in stored.invalid
    assert not evaluation.measurement.mlperf.valid
    assert evaluation.measurement.mlperf.percentiles_ns == ()
    assert re.search(r"^LoadGen +INVALID.*\n +the run was cancelled", stdout, re.M), stdout


def test_ctrl_c_before_an_answer_and_again_ends_at_once(where, manifest_folder):
    """The model hangs in its first prediction."""
    command = [
        sys.executable,
        "-c",
        "from inferometer.client.cli.main import main; main()",
        "predict",
        "workload",
    ]
    with subprocess.Popen(
        [*command, *where(remote=False, mark=0, hangs=[0]), "--initial_qps=50", "--duration=60"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=manifest_folder,
    ) as process:
        try:
            marked(process, manifest_folder / "mark")
            process.send_signal(signal.SIGINT)
            assert process.stderr.readline().startswith("stopping")
            process.send_signal(signal.SIGINT)
            _, stderr = process.communicate(timeout=DEADLINE_S)
        finally:
            process.kill()

    assert process.returncode == INTERRUPTED, stderr
    assert "Traceback" not in stderr
    assert kept() == []


def marked(process, path):
    """Waits until so many predictions were made as the script says."""
    wait_for(lambda: path.exists() or process.poll() is not None)
    assert process.poll() is None, process.stderr.read()
