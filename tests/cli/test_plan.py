"""``agent plan``: real cells on this machine, what is resumed, and what is refused."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys

import pytest

PLAN = """\
name: digits
command: predict dataset
parameters:
  model_name: DigitsCNN
  framework_name: ONNXRuntime
  num_file_parts: {val: "${exp.inputs}", type: int}
  exp.inputs: 20
variables:
  batch_size: [1, 4]
"""


@pytest.fixture
def plan(tmp_path):
    path = tmp_path / "digits.yaml"
    path.write_text(PLAN)
    return path


def test_a_plan_runs_and_is_not_run_again(agent, plan):
    first = agent("plan", "run", plan)

    assert first.code == 0, first.stderr
    assert first.stderr.splitlines()[0] == "checked     2 cells: found none that cannot run"
    assert first.stderr.splitlines()[-1] == "runs        2: 2 complete"
    listed = agent("info", "evaluation", "latency", "-f", "json", "--sort=batch_size")
    assert [row["batch_size"] for row in json.loads(listed.stdout)] == [1, 4]

    again = agent("plan", "resume", plan)
    assert again.code == 0
    assert not any(line.startswith("runs        0") for line in again.stderr.splitlines())
    assert again.stderr.splitlines()[-1] == "runs        2: 2 complete"
    assert len(json.loads(agent("info", "evaluation", "latency", "-f", "json").stdout)) == 2
    status = agent("plan", "status", plan, "--all")
    assert status.stdout.splitlines()[1] == "runs        2: 2 complete"
    assert len(status.stdout.splitlines()) == 4
    assert agent("plan", "watch", plan).stdout.splitlines()[-1] == "runs        2: 2 complete"


def test_watching_ends_where_runs_wait_and_nobody_goes_on(agent, plan):
    watched = agent("plan", "watch", plan)

    assert watched.code == 1
    assert watched.stdout.splitlines()[-1] == "runs        2: 2 waiting"
    assert watched.stderr.splitlines() == [f"no driver runs the plan: agent plan resume {plan} continues it"]


def test_the_status_has_the_figures_of_the_monitor(agent, plan):
    plan.write_text(f"{PLAN}monitor_s: 0.05\n")
    assert agent("plan", "run", plan, "-V", "batch_size=[4]").code == 0

    [line] = agent("plan", "status", plan, "--all", "-V", "batch_size=[4]").stdout.splitlines()[2:]

    assert re.search(r"batch_size=4  \(CPU \d+ %, at most [\d,]+ MiB(, GPU \d+ \d+ %)*\)$", line), line


def test_cells_are_printed_as_they_run(agent, plan):
    answer = agent("plan", "expand", plan, "-V", "batch_size=[2]", "-P", "exp.inputs=5")

    [line] = answer.stdout.splitlines()
    assert line[12:] == (
        "  agent predict dataset --model_name=DigitsCNN --framework_name=ONNXRuntime --num_file_parts=5 "
        "--batch_size=2"
    )


@pytest.mark.parametrize("command", ["expand", "status", "watch"])
def test_what_only_shows_a_plan_loads_nothing_that_measures(agent, plan, command):
    code = (
        "import sys\nfrom inferometer.client.cli.main import run\n"
        f"run(['plan', '{command}', {str(plan)!r}])\n"
        "print(*[name for name in ('numpy', 'PIL', 'psutil') if name in sys.modules])"
    )

    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

    assert len(done.stdout.splitlines()) > 1
    assert done.stdout.splitlines()[-1] == ""


def test_an_extension_of_the_command_line_makes_cells(agent, plan):
    extension = "{condition: {batch_size: 4}, cases: [{seed: 1}, {seed: 2}]}"
    answer = agent("plan", "expand", plan, "-E", extension)
    assert [line.rpartition("--")[2] for line in answer.stdout.splitlines()] == [
        "batch_size=1",
        "seed=1",
        "seed=2",
    ]


def test_a_value_from_outside_keeps_the_type_and_the_domain(agent, plan):
    typed = "  exp.inputs: 20\n  seed: {val: 1, type: int, val_domain: [1, 2]}\n"
    plan.write_text(PLAN.replace("  exp.inputs: 20\n", typed))

    allowed = agent("plan", "expand", plan, "-P", "seed=2", "-V", "batch_size=[3]")
    assert allowed.code == 0
    assert allowed.stdout.count("--seed=2") == 1  # the two batch sizes became one
    refused = agent("plan", "expand", plan, "-P", "seed=3")
    assert refused.code == 2
    assert 'parameter seed: "3" is not in its domain: 1, 2' in refused.stderr


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("-P", "model_name=DigitCNN"), 'unknown model "DigitCNN"; did you mean "DigitsCNN" or '),
        (("-P", "batchsize=4"), "No such option '--batchsize'"),
        (
            ("-V", "batch_size=[0, 1]"),
            "Invalid value for '-b' / '--batch_size': 0 is not in the range x>=1. (1 of 2 cells)",
        ),
        (("-P", "batch_size"), '-P "batch_size" is not NAME=VALUE, such as batch_size=4'),
        (("-P", "exp.inputs=many"), 'parameter num_file_parts: "many" is not of type int'),
        (("-P", "exp.inputs=${exp.input}"), 'unknown reference "exp.input"; did you mean "exp.inputs"?'),
        (("-P", "cell.software=nightly"), 'unknown software "nightly"'),
    ],
)
def test_what_cannot_run_is_found_before_anything_starts(agent, plan, words, message):
    answer = agent("plan", "run", plan, *words)

    assert answer.code == 2
    assert message in answer.stderr
    assert "complete" not in answer.stderr
    assert "failed" not in answer.stderr


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("name: a\n", "command: Field required"),
        ("name: a\ncommand: predict dataset\nvariable: {}\n", "variable: Extra inputs are not permitted"),
        ("name: a\ncommand: serve\n", 'command "serve" cannot run in cells; '),
        ("name: a\ncommand: predict\n", "agent predict: no command is named"),
        (f"{PLAN}constraints: ['${{batch_size}} > 4']\n", "exclude and the constraints leave no cell"),
        ("- a\n", "is not a mapping with name, command, parameters and variables"),
        ("name: a/b\ncommand: predict dataset\n", "name: String should match"),
        (f"{PLAN}  cell.slurm: [--gres=gpu:1]\n", "cell.slurm: the plan has no section slurm"),
    ],
)
def test_what_is_no_plan_is_one_line(agent, tmp_path, text, message):
    path = tmp_path / "plan.yaml"
    path.write_text(text)
    answer = agent("plan", "check", path)
    assert answer.code == 2
    assert message in answer.stderr
    assert len(answer.stderr.splitlines()) == 1


CLUSTERS = """\
clusters:
  narval: {account: def-someprof, time: "1:00:00", cpus_per_task: 2, modules: [python/3.10], virtualenv: env}
"""
SBATCH = """\
#!/bin/sh
printf '%s\\n' "$@" > sbatch.txt
case "$*" in *nowhere*) echo 'sbatch: error: invalid partition specified: nowhere' >&2; exit 1;; esac
"""


@pytest.fixture
def sbatch(tmp_path, monkeypatch):
    """A stand-in for sbatch, which writes its options into sbatch.txt; some partition does not exist."""
    program = tmp_path / "bin" / "sbatch"
    program.parent.mkdir()
    program.write_text(SBATCH)
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{program.parent}:{os.environ['PATH']}")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "config.yaml").write_text(CLUSTERS)
    (tmp_path / "env").symlink_to(sys.prefix)
    return tmp_path / "sbatch.txt"


def test_the_profile_of_a_cluster_comes_before_what_the_plan_says(agent, plan, sbatch):
    slurm = "slurm: {cluster: narval, exclusive: false, arguments: [--time=5]}\n"
    plan.write_text(f"{PLAN}{slurm}")
    options = ("-V", "threads=[1]", "-P", 'cell.slurm=["--cpus-per-task=${threads}"]')

    answer = agent("--config=config.yaml", "plan", "check", plan, *options)

    assert answer.code == 0, answer.stderr
    assert sbatch.read_text().split() == [
        *("--test-only", "--account=def-someprof", "--cpus-per-task=2", "--time=1:00:00"),
        *("--time=5", "--cpus-per-task=1"),
    ]


@pytest.mark.parametrize(
    ("command", "slurm", "message"),
    [
        ("check", "cluster: naval", 'unknown cluster "naval"; did you mean "narval"?'),
        ("run", "cluster: naval", 'unknown cluster "naval"; did you mean "narval"?'),
        ("resume", "cluster: naval", 'unknown cluster "naval"; did you mean "narval"?'),
        ("check", "arguments: [--partition=nowhere]", "Slurm: invalid partition specified: nowhere (2 of 2 "),
        ("run", "arguments: [--partition=nowhere]", "Slurm: invalid partition specified: nowhere (2 of 2 "),
        ("run", "python: /nowhere", "there is no interpreter /nowhere (1 of 2 cells)"),
    ],
)
def test_what_a_cluster_lacks_is_found_before_anything_starts(agent, plan, sbatch, command, slurm, message):
    plan.write_text(f"{PLAN}slurm: {{{slurm}}}\n")
    answer = agent("--config=config.yaml", "plan", command, plan)
    assert answer.code == 2
    assert message in answer.stderr.splitlines()[0]
    assert len(answer.stderr.splitlines()) == 1


def test_options_of_sbatch_begin_with_a_dash(agent, plan, sbatch):
    plan.write_text(f"{PLAN}slurm: {{}}\n")
    answer = agent("plan", "check", plan, "-V", "cell.slurm=[--gres=gpu:1, gpu]")
    assert answer.code == 2
    assert answer.stderr.splitlines() == [
        "cell.slurm: 'gpu' is not a single-line option of sbatch, such as --gres=gpu:1 (1 of 4 cells)"
    ]


def test_a_run_that_fails_is_told_and_runs_again_if_asked_for(agent, plan):
    words = ("-P", "exp.inputs=20", "-P", "dataset_path=/nowhere", "-V", "batch_size=[1]")
    first = agent("plan", "run", plan, "--unchecked", *words)
    assert first.code == 1
    [failed] = [line for line in first.stderr.splitlines() if line.startswith("failed ")]
    assert "/nowhere" in failed
    assert agent("plan", "resume", plan, *words).stderr.splitlines()[-1] == "runs        1: 1 failed"
    again = agent("plan", "resume", plan, "--rerun=onfail", *words)
    assert any(line.startswith("failed ") for line in again.stderr.splitlines())


def test_an_import_from_dlbs_is_a_plan(agent, tmp_path):
    config = {
        "parameters": {"exp.phase": "training", "exp.framework": "pytorch", "exp.num_batches": 2},
        "variables": {"exp.model": ["alexnet", "resnet18"], "exp.replica_batch": [2, 4]},
    }
    source, target = tmp_path / "config.json", tmp_path / "plan.yaml"
    source.write_text(json.dumps(config))

    assert agent("plan", "import-dlbs", source, "-o", target).code == 0
    expanded = agent("plan", "expand", target)

    assert len(expanded.stdout.splitlines()) == 4, expanded.stderr
    assert all("bench training" in line for line in expanded.stdout.splitlines())
    on_cpu = agent("plan", "check", target, "-P", "gpus=")  # DLBS's default is the GPU 0
    assert on_cpu.code == 0, on_cpu.stderr
    assert agent("plan", "import-dlbs", source, "-o", target).code != 0

    renamed = agent("plan", "expand", target, "-V", "exp.replica_batch=[8]", "-P", "exp.num_batches=3")
    assert len(renamed.stdout.splitlines()) == 2, renamed.stderr
    assert all("--num_batches=3" in each and "--batch_size=8" in each for each in renamed.stdout.splitlines())
    for given in ("-P", "-V"):
        refused = agent("plan", "expand", target, given, "exp.framwork=mxnet")
        assert refused.code == 2
        assert "exp.framwork: the plan has no such parameter" in refused.stderr
        assert 'did you mean "exp.framework"' in refused.stderr


SCRIPT = """\
action=run
if false; then
    python $DLBS_ROOT/python/dlbs/experimenter.py $action --config=./config.json `#all of them`\\
        -Pexp.model='"alexnet"' -Vexp.gpus='["", "0"]'
fi
python $experimenter print-config
python $experimenter $action -Pexp.framework='"mxnet"' -Pmxnet.rank=$1 -Pexp.replica_batch=4
python $experimenter $action -Pexp.framework='"caffe2"'
"""


def test_a_script_of_dlbs_becomes_a_plan_for_each_command_line(agent, tmp_path):
    folder, target = tmp_path / "scripts", tmp_path / "plan.yaml"
    folder.mkdir()
    (folder / "config.json").write_text('{"parameters": {"exp.framework": "pytorch", "exp.model": "vgg16"}}')
    (folder / "all.sh").write_text(SCRIPT)

    answer = agent("plan", "import-dlbs", folder / "all.sh", "0", "-o", target)
    assert answer.code == 0, answer.stderr
    lines = answer.stderr.splitlines()
    assert [line for line in lines if not line.startswith("no equal ")] == [
        "imported    all-1: experiments in DLBS: 2, cells: 2",
        "left out    all-2: print-config makes no plan; the actions that do: run, build, validate",
        "imported    all-3: experiments in DLBS: 1, cells: 1",
        "left out    all-4: DLBS's configuration: none of its 1 experiments has an equivalent here: "
        "exp.framework=caffe2: not among the supported frameworks of DLBS: mxnet, pytorch",
    ]
    expanded = [agent("plan", "expand", tmp_path / f"plan-{each}.yaml").stdout for each in (1, 2)]
    assert [len(each.splitlines()) for each in expanded] == [2, 1]
    assert "--model_name=alexnet --gpus=0" in expanded[0]
    assert "--framework_name=mxnet --batch_size=4" in expanded[1]

    unset = agent("plan", "import-dlbs", folder / "all.sh")
    assert unset.code == 0
    assert 'left out    all-3: line 7: "$1" has no value without a shell; set the variable' in unset.stderr
    again = agent("plan", "import-dlbs", folder / "all.sh", "0", "-o", target)
    assert again.code != 0
    assert f"{tmp_path / 'plan-1.yaml'}: cannot be written: File exists" in again.stderr


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--", "run", "-Pexp.modle='a'"], "experimenter.py: -P exp.modle: 'a' is not JSON: "),
        (["--", "run", "-Pa=\n1\n2"], "experimenter.py: -P a: 1 2 is not JSON: "),
        (["--", "run", '-Pexp.modle="a"'], 'unknown parameter "exp.modle"; did you mean "exp.model"?'),
        (["--", "run", "--config=none.json"], "none.json: cannot be read: No such file or directory"),
        (["--", "print-config"], "print-config makes no plan; the actions that do: run, build, validate"),
        (["--", "python", "a/experimenter.py", "rn"], 'unknown action "rn"'),
        (["none.sh"], "none.sh: cannot be read: No such file or directory"),
        ([], "Missing argument"),
    ],
)
def test_what_dlbs_would_not_read_is_refused_in_one_line(agent, words, message):
    refused = agent("plan", "import-dlbs", *words)
    assert (refused.code, refused.stdout) == (2, "")
    assert message in refused.error


def test_a_simulated_cell_is_printed_and_does_not_run(agent, plan, tmp_path):
    words = ("-P", "exp.inputs=20", "-P", "exp.status=simulate", "-V", "batch_size=[1,2]")
    shown = agent("plan", "run", plan, *words)
    assert shown.code == 0, shown.stderr
    expanded = agent("plan", "expand", plan, *words).stdout.splitlines()
    assert len(expanded) == 2
    assert shown.stdout.splitlines() == [line.split("  ", 1)[1] for line in expanded]
    assert shown.stdout.startswith("agent predict dataset ")
    assert (
        agent("plan", "status", plan, *words).stdout.splitlines()[0].split(": ")[1].startswith("2 cells, 0")
    )

    extension = "condition: {batch_size: 2}\nparameters: {exp.status: disabled}"
    left = agent("plan", "expand", plan, "-P", "exp.status=ok", "-V", "batch_size=[1,2]", "-E", extension)
    assert [line.split()[0] for line in left.stdout.splitlines()] == [
        line.split()[0] for line in expanded if "--batch_size=1 " in f"{line} "
    ]

    # two values of a parameter that is no option make equal cells, of which one is disabled, or only printed
    for status in ("disabled", "simulate"):
        twin = (
            "-V",
            "exp.twin=[a,b]",
            "-E",
            f"{{condition: {{exp.twin: a}}, parameters: {{exp.status: {status}}}}}",
        )
        assert (
            agent("plan", "expand", plan, *words[:2], "-V", "batch_size=[1,2]", *twin).stdout.count("\n") == 2
        )
        told = agent("plan", "status", plan, *words[:2], "-V", "batch_size=[1,2]", *twin).stdout
        assert told.splitlines()[0].split(": ")[1].startswith("2 cells, 2 runs")


def test_a_simulated_cell_requires_nothing_of_this_machine(agent, plan):
    words = ("-P", "exp.status=simulate", "-P", "cell.launcher=nosuchlauncher", "-P", "cell.nodes=2")
    assert agent("plan", "run", plan, *words).code == 0
    assert "nosuchlauncher is not installed" in agent("plan", "check", plan, *words[2:]).stderr


def test_an_option_by_two_names_is_refused(agent, plan):
    refused = agent("plan", "check", plan, "-P", "batch-size=2")
    assert refused.code == 2
    assert "batch-size and batch_size are the same option; leave one of them out" in refused.stderr


ENGINE = f"""\
#!{sys.executable}
import os, sys
if sys.argv[1] == "inspect":
    print({os.getpid()})
if sys.argv[1] != "run":
    sys.exit(0)
words, given = iter(sys.argv[2:]), {{}}
for word in words:
    if word == "--env":
        name, _, value = next(words).partition("=")
        os.environ[name] = value
    elif word == "--volume":
        given.setdefault("volumes", []).append(next(words).split(":")[0])
    elif word == "--entrypoint":
        program, image, *arguments = words
assert image == "ours:1"
if program == "python":
    os.execv(sys.executable, [sys.executable, *arguments])
assert program == "agent"
assert os.environ["AGENT_DATA_DIR"] in given["volumes"]
from inferometer.client.cli.main import main
main(arguments)
"""
"""Runs the entry point of an image that is this environment, as an engine would."""


def test_a_cell_runs_in_a_container(agent, plan, tmp_path, monkeypatch):
    engine = tmp_path / "bin" / "docker"
    engine.parent.mkdir()
    engine.write_text(ENGINE)
    engine.chmod(0o755)
    monkeypatch.setenv("PATH", f"{engine.parent}:{os.environ['PATH']}")

    plan.write_text(f"{PLAN}monitor_s: 0.05\n")
    answer = agent("plan", "run", plan, "-P", "cell.container=ours:1", "-V", "batch_size=[4]")

    assert answer.code == 0, answer.stderr
    [path] = tmp_path.rglob("result.json")
    seen = json.loads(path.read_text())["monitor"]
    # the engine's process, and that of this test, which the engine gives as the container's
    assert seen["processes"]["max"] >= 2
    [row] = json.loads(agent("info", "evaluation", "latency", "-f", "json").stdout)
    assert row["batch_size"] == 4
