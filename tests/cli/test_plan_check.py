"""``agent plan check``: what agents cannot run, and what is missing, before anything starts; and ``stop``."""

from __future__ import annotations

import fcntl
import json

import pytest

from inferometer.client.plan import checking

PLAN = """\
name: digits
command: predict dataset
parameters: {model_name: DigitsCNN, framework_name: ONNXRuntime, num_file_parts: 2}
variables:
  batch_size: [1, 4]
"""
ANYWHERE = ("--agent=127.0.0.1:1",)


@pytest.fixture
def plan(tmp_path):
    path = tmp_path / "digits.yaml"
    path.write_text(PLAN)
    return path


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("-P", "framework_name=Caffe"), 'no agent has framework "Caffe"; they have: '),
        (
            ("-P", "model_name=DigitCNN"),
            'no agent can run model "DigitCNN" in ONNXRuntime; did you mean "Dig',
        ),
        (("-P", "model_version=9"), 'no agent can run model "DigitsCNN" 9 in ONNXRuntime (2 of 2 cells)'),
        (("-P", "model_path=x.onnx"), "model_path x.onnx: works only in this process"),
        (("-V", "agent=[null, 'a:1']"), "agent: the cell names an agent, but the plan already has agents"),
        (("-P", "cell.container=ours:1"), "cell.container: it chooses what runs the model"),
        (("-P", "cell.software=nightly"), "cell.software: it chooses what runs the model"),
        (("-P", "cell.library_path=/opt"), "cell.library_path: it affects what runs the model"),
        (
            ("-P", "cell.nodes=2"),
            "cell.nodes 2, cell.tasks_per_node 1: too few agents can run it, or too few",
        ),
        (("-V", "batch_size=[0, 1]"), "0 is not in the range x>=1. (1 of 2 cells)"),
    ],
)
def test_what_no_agent_can_run_is_found_before_anything_starts(agent, plan, served_agent, words, message):
    answer = agent("plan", "run", plan, f"--agent={served_agent}", *words)

    assert answer.code == 2
    assert message in answer.stderr
    assert "runs  " not in answer.stderr


def test_a_gpu_that_no_agent_has_is_found(agent, plan, served_agent):
    rows = json.loads(agent("info", "system", "-f", "json").stdout)
    if "NVIDIA" in json.dumps(rows):
        pytest.skip("the agent has a GPU")
    answer = agent("plan", "check", plan, f"--agent={served_agent}", "-V", "gpu=[true, false]")
    assert answer.code == 2
    assert answer.error == 'gpu: no agent that can run model "DigitsCNN" has a GPU (2 of 4 cells)'


@pytest.mark.parametrize(
    ("more", "words", "code", "message"),
    [
        ("", ANYWHERE, 6, "none of the agents of plan digits responds: agent 127.0.0.1:1: cannot be reached"),
        ("", ("--agent=any",), 2, '--agent: agent address "any" is not host:port'),
        ("", ("--agent=kserve://a:1",), 2, "--agent: kserve://a:1: a server of the Open Inference Protocol"),
        ("", ("--agent=a:1", "--agent=a:1"), 2, "--agent: a:1 is named twice"),
        ("slurm: {}\n", ANYWHERE, 2, "--agent requires a plan without slurm; leave it out"),
        ("slurm: {}\nagents: [a:1]\n", (), 2, "agents and slurm are both given"),
        ("agents: [a]\n", (), 2, 'digits.yaml: agents: agent address "a" is not host:port'),
    ],
)
def test_agents_that_cannot_be_are_one_line(agent, plan, more, words, code, message):
    plan.write_text(PLAN + more)
    answer = agent("plan", "check", plan, *words)
    assert answer.code == code
    assert message in answer.error


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (
            "command: predict dataset\nparameters: {cell.tasks_per_node: 2}",
            "cell.tasks_per_node: only the tasks of bench training share its work, and agents the inputs of "
            "predict dataset and predict urls; leave it out (1 of 1 cells)",
        ),
        (
            "command: bench training\nparameters: {model: deep_mnist, cell.nodes: 2}",
            "cell.nodes: this machine is one node, not 2; add a section slurm, such as slurm: {} "
            "(1 of 1 cells)",
        ),
        (
            "command: bench training\nparameters: {model: deep_mnist, cell.tasks_per_node: 2, num-ranks: 2}",
            "cell.tasks_per_node determines the ranks; leave out num_ranks (1 of 1 cells)",
        ),
        (
            "command: bench training\nparameters: {model: deep_mnist, cell.nodes: two}",
            'cell.nodes: "two" is not a whole number from 1 to 1024 (1 of 1 cells)',
        ),
        (
            "command: bench training\nparameters: {model: deep_mnist, cell.library_path: '/no/lib:/usr'}",
            "there is no folder /no/lib (1 of 1 cells)",
        ),
    ],
)
def test_tasks_and_libraries_that_a_cell_cannot_have(agent, tmp_path, content, message):
    path = tmp_path / "plan.yaml"
    path.write_text(f"name: a\n{content}\n")
    answer = agent("plan", "check", path)
    assert (answer.code, answer.error) == (2, message)


@pytest.mark.parametrize("command", ["bench training", "op run"])
def test_commands_of_this_process_do_not_go_to_agents(agent, plan, command):
    plan.write_text(f"name: a\ncommand: {command}\nparameters: {{model: alexnet}}\n")
    answer = agent("plan", "check", plan, *ANYWHERE)
    assert answer.code == 2
    assert answer.error == (
        f'agent: command "{command}" runs in its own process, but served agents run only predict; '
        "leave out the agents"
    )


def test_a_secret_reaches_the_agents_and_no_file(agent, plan, secret_agent, tmp_path):
    words = (f"--agent={secret_agent}", "-V", "batch_size=[4]")
    refused = agent("plan", "check", plan, *words)
    assert refused.code == 6
    assert "secret" in refused.error

    answer = agent("plan", "run", plan, *words, "--secret=open sesame")

    assert answer.code == 0, answer.stderr
    files = [path for path in (tmp_path / "data").rglob("*") if path.is_file()]
    assert any(path.name == "run.json" for path in files)
    assert not [path for path in files if b"open sesame" in path.read_bytes()]


@pytest.mark.parametrize(
    ("command", "name"),
    [
        ("predict dataset", "dataset_path"),
        ("predict dataset", "model_path"),
        ("predict urls", "urls_file_path"),
        ("predict workload", "schedule"),
        ("op run", "cases"),
        ("bench training", "data_dir"),
        ("bench ingestion", "data-dir"),
    ],
)
def test_files_that_are_not_there_are_found(agent, tmp_path, command, name):
    there, path = tmp_path / "there", tmp_path / "plan.yaml"
    there.touch()
    path.write_text(
        f"name: a\ncommand: {command}\nvariables: {{{name}: [null, {there}, /no/where, /no/there]}}\n"
    )
    answer = agent("plan", "check", path)
    assert answer.code == 2
    lines = answer.stderr.splitlines()
    assert "/no/where: there is no such file (1 of 4 cells)" in lines
    assert "/no/there: there is no such file (1 of 4 cells)" in lines
    assert f"{there}: there is no such file" not in answer.stderr


@pytest.mark.parametrize("more", ["parameters: {cell.container: 'ours:1'}\n", "slurm: {}\n"])
def test_files_elsewhere_are_not_looked_at(agent, tmp_path, more):
    path = tmp_path / "plan.yaml"
    path.write_text(f"name: a\ncommand: predict dataset\nvariables: {{dataset_path: [/no/where]}}\n{more}")
    assert "there is no such file" not in agent("plan", "check", path).stderr


@pytest.mark.parametrize(
    ("command", "more", "expected"),
    [
        ("predict dataset", "variables: {gpu: [true, false]}", "gpu: this machine has no GPU (1 of 2 cells)"),
        ("op run", "variables: {device: [gpu, cpu, null]}", "device: this machine has no GPU (1 of 3 cells)"),
        (
            "bench training",
            "variables: {num_gpus: [0, 2]}",
            "num_gpus: this machine has no GPU (1 of 2 cells)",
        ),
        ("bench training", "variables: {gpus: ['', '0,1']}", "gpus: this machine has no GPU (1 of 2 cells)"),
        (
            "bench training",
            "variables: {device: [gpu, cpu]}\nparameters: {num_gpus: 1}",
            "device: this machine has no GPU (1 of 2 cells)",
        ),
        ("predict dataset", "parameters: {gpu: true, agent: 'a:1'}", None),
        ("predict dataset", "parameters: {gpu: true, cell.launcher: srun}", None),
        ("predict dataset", "parameters: {gpu: true}\nslurm: {}", None),
    ],
)
def test_a_gpu_that_is_not_here_is_found(agent, tmp_path, monkeypatch, command, more, expected):
    monkeypatch.setattr(checking, "_gpu_here", lambda: False)
    path = tmp_path / "plan.yaml"
    path.write_text(f"name: a\ncommand: {command}\n{more}\n")
    answer = agent("plan", "check", path)
    if expected:
        assert answer.code == 2
        assert expected in answer.stderr.splitlines()
    else:
        assert "this machine has no GPU" not in answer.stderr


def test_stop_says_when_no_driver_runs_the_plan(agent, plan, tmp_path):
    folder = tmp_path / "data" / "plans" / "digits"
    for _ in range(2):
        answer = agent("plan", "stop", plan)
        assert answer.code == 1
        assert answer.error == f"no driver runs plan digits in {folder}"
        assert not (folder / "stop").exists()
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "driver.lock").touch()

    with (folder / "driver.lock").open("ab") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        assert agent("plan", "stop", plan).code == 0
    assert (folder / "stop").exists()
