"""``agent slurm script``: what the scripts hold, how values are quoted, and what is refused."""

from __future__ import annotations

import shlex
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.cli.conftest import Agent, Answer

PLAIN = ("--", "predict", "dataset", "--model_name=DigitsCNN")
PROFILE = """\
clusters:
  narval:
    account: def-someprof
    partition: cpubase
    time: "3:00:00"
    memory: 20G
    cpus_per_task: 4
    modules: [python/3.10, gcc]
    wheels: wheelhouse
    packages: [inferometer, "numpy<2"]
    environment: {AGENT_CACHE_DIR: /scratch/my cache}
  ready:
    virtualenv: env
"""
Script = Callable[..., Answer]


@pytest.fixture
def script(agent: Agent, tmp_path: Path) -> Script:
    """Calls the command with a configuration file that has two clusters."""
    (tmp_path / "config.yaml").write_text(PROFILE)
    return lambda *words: agent("--config", tmp_path / "config.yaml", "slurm", "script", *words)


def directives(answer: Answer) -> list[str]:
    """The options of sbatch in a script, without their quotes."""
    assert answer.code == 0, answer.stderr
    lines = answer.stdout.splitlines()
    return [shlex.split(line)[1] for line in lines if line.startswith("#SBATCH")]


def last(answer: Answer) -> list[str]:
    """The words of the last line."""
    assert answer.code == 0, answer.stderr
    return shlex.split(answer.stdout.splitlines()[-1])


def test_the_convolution_is_the_one_of_the_page(script: Script) -> None:
    answer = script("--example=convolution", "--account=def-someprof")

    assert directives(answer) == [
        "--job-name=convolution",
        "--account=def-someprof",
        "--cpus-per-task=2",
        "--mem=8G",
        "--time=1:00:00",
    ]
    assert last(answer) == [
        *("exec", "agent", "op", "run", "conv2d", "--input=data=32,32,256,256", "--param=channels=32"),
        *("--param=kernel=3,3", "--param=pad=1,1", "--param=bias=false"),
        *("--time_budget=10", "--framework_name=MXNet"),
    ]
    assert "--no-index --find-links wheels 'inferometer[mxnet]'" in answer.stdout
    assert answer.stdout.startswith("#!/bin/bash\n#SBATCH")
    assert answer.stderr == ""


def test_a_gpu_is_asked_for_and_used(script: Script) -> None:
    answer = script("--example=cifar10", "--gpu", "--framework_name=pytorch")

    assert "--gres=gpu:1" in directives(answer)
    assert last(answer)[-2:] == ["--framework_name=PyTorch", "--device=gpu"]
    assert "'inferometer[pytorch]'" in answer.stdout
    assert not [each for each in directives(script("--example=cifar10")) if "gres" in each]


def test_several_nodes_start_tasks_by_srun(script: Script) -> None:
    answer = script("--example=cifar10", "--nodes=2", "--tasks_per_node=2", "--gpu", "--cpus_per_task=3")

    found = directives(answer)
    assert {"--nodes=2", "--tasks-per-node=2", "--cpus-per-task=3", "--output=%N-%j.out"} <= set(found)
    assert "--gres=gpu:2" in found  # one for each task
    assert last(answer)[:5] == [
        "exec",
        "srun",
        "--kill-on-bad-exit=1",
        "--cpus-per-task=$SLURM_CPUS_PER_TASK",
        "agent",
    ]


def test_one_task_of_the_third_script_needs_no_srun(script: Script) -> None:
    answer = script("--example=cifar10", "--nodes=1")

    assert {"--nodes=1", "--tasks-per-node=1", "--output=%N-%j.out"} <= set(directives(answer))
    assert last(answer)[:2] == ["exec", "agent"]


def test_a_profile_is_the_default_of_options(script: Script, tmp_path: Path) -> None:
    answer = script("--cluster=narval", "--time=30", "--job_name=mine", *PLAIN)

    assert directives(answer) == [
        *("--job-name=mine", "--account=def-someprof", "--partition=cpubase"),
        *("--cpus-per-task=4", "--mem=20G", "--time=30"),
    ]
    assert "\nmodule load python/3.10 gcc\n" in answer.stdout
    assert "\nexport AGENT_CACHE_DIR='/scratch/my cache'\n" in answer.stdout
    assert f"--find-links {tmp_path / 'wheelhouse'} inferometer 'numpy<2'\n" in answer.stdout


def test_an_existing_environment_is_activated(script: Script, tmp_path: Path) -> None:
    answer = script("--cluster=ready", *PLAIN)

    assert f"\nsource {tmp_path / 'env/bin/activate'}\n" in answer.stdout
    assert "pip install" not in answer.stdout
    assert '/pip" install' in script("--cluster=ready", "--wheels=other", *PLAIN).stdout


def test_every_word_is_quoted(script: Script) -> None:
    word = "--model_name=it's $HOME; `rm -rf x`"
    answer = script("--account=a b # c", "--", "agent", "predict", "dataset", word)

    assert "--account=a b # c" in directives(answer)
    assert last(answer) == ["exec", "agent", "predict", "dataset", word]


def test_options_of_an_example_are_replaced(script: Script) -> None:
    small = ("--input=data=2,3,8,8", "--param=channels=4", "--runs=3")
    words = last(script("--example=convolution", "--", *small))
    assert [word for word in words if word.startswith(("--input", "--param=channels", "--runs"))] == list(
        small
    )
    assert "--param=kernel=3,3" in words

    words = last(script("--example=cifar10", "--", "--num_batches=3"))
    assert "--num_batches=3" in words
    assert "--num_epochs=1" not in words


def test_a_file_is_not_replaced_unasked(script: Script, tmp_path: Path) -> None:
    path = tmp_path / "job.sh"
    assert script(f"-o{path}", *PLAIN).stdout == ""
    assert path.read_text() == script(*PLAIN).stdout
    again = script(f"-o{path}", *PLAIN)
    assert again.code == 7
    assert "job.sh" in again.error
    assert script(f"-o{path}", "--overwrite", "--time=5", *PLAIN).code == 0
    assert "--time=5" in path.read_text()


@pytest.mark.parametrize(
    ("words", "note"),
    [
        (("--gpu", *PLAIN), "note: the job asks for a GPU that agent predict does not use; add --gpu to it"),
        (("--nodes=2", *PLAIN), "note: each of the 2 tasks runs all of agent predict; "),
    ],
)
def test_what_a_job_would_waste_is_said(script: Script, words: tuple[str, ...], note: str) -> None:
    answer = script(*words)

    assert answer.code == 0
    assert note in answer.error


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ((), "no command is named; put one after --, or name an example: --example=convolution|cifar10"),
        (("--", "agent"), "no command is named"),
        (("--example=conv",), "Invalid value for '--example'"),
        (("--cluster=narwal", *PLAIN), 'unknown cluster "narwal"; did you mean "narval"?'),
        (("--account=a\nb", *PLAIN), "--account: 'a\\nb' has a line break"),
        (("--account=", *PLAIN), "--account is empty; leave it out"),
        (("--job_name=a\u2028b", *PLAIN), "--job_name: 'a\\u2028b' has a line break"),
        (("--output=a\r", *PLAIN), "--output: 'a\\r' has a line break"),
        (("--module=a\nb", *PLAIN), "--module: 'a\\nb' has a line break"),
        (("--wheels=a\nb", *PLAIN), "--wheels: 'a\\nb' has a line break"),
        (("--package=a\nb", *PLAIN), "--package: 'a\\nb' has a line break"),
        (("--virtualenv=a\nb", *PLAIN), "--virtualenv: 'a\\nb/bin/activate' has a line break"),
        ((*PLAIN, "--agent=a\nb"), "has a line break"),
        (
            ("--time=soon", *PLAIN),
            '--time "soon" is not a time; give minutes, hours:minutes:seconds or days-hours',
        ),
        (("--mem=8GB", *PLAIN), '--mem "8GB" is not a size; give memory for each node, such as 8G'),
        (("--nodes=0", *PLAIN), "Invalid value for '--nodes'"),
        (("--virtualenv=env", "--wheels=w", *PLAIN), "--virtualenv is installed already; leave it out"),
        (("--overwrite", *PLAIN), "--overwrite replaces a file; name it with --output_file"),
        (("--", "op", "runn"), "agent op: No such command 'runn'. Did you mean 'run'?"),
        (("--", "op"), "agent op: no command is named"),
        (("--", "-v", "op", "list"), "agent: no command is named; begin with one"),
        (("--", "op", "run", "add", "--runs=x"), "agent op run: Invalid value for '--runs'"),
        (
            ("--example=cifar10", "--framework_name=ONNXRuntime"),
            "does not run in ONNXRuntime; give MXNet or PyTorch",
        ),
        (("--example=cifar10", "--", "10"), '"10" is not an option of the example cifar10'),
        (("--example=convolution", "--", "--runz=3"), "No such option"),
    ],
)
def test_what_is_wrong_is_one_line(script: Script, words: tuple[str, ...], message: str) -> None:
    answer = script(*words)

    assert answer.code == 2
    assert message in answer.error
    assert answer.stdout == ""


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{x: {acount: a}}", "field clusters.x.acount: is not known; fields: account, partition, time"),
        ("{x: {time: 1:00:00}}", "field clusters.x.time: found 3600; allowed: text in quotes: minutes"),
        ("{x: {memory: lots}}", "field clusters.x.memory: found 'lots'; allowed: memory for each node"),
        ('{x: {account: "a\\nb"}}', "field clusters.x.account: found 'a\\nb'; allowed: one line of text"),
        ("{x: {environment: {a b: c}}}", "allowed: names of environment variables"),
        (
            '{x: {environment: {A: "c\\n"}}}',
            "field clusters.x.environment.A: found 'c\\n'; allowed: one line",
        ),
        ("{x: {modules: python}}", "field clusters.x.modules: found 'python'; allowed: a list"),
        ("{x: {cpus_per_task: 0}}", "field clusters.x.cpus_per_task: found 0"),
        ("{x: }", "field clusters.x: found None; allowed: a mapping"),
    ],
)
def test_a_wrong_profile_is_named(agent: Agent, tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "config.yaml").write_text(f"clusters: {text}\n")
    answer = agent("--config", tmp_path / "config.yaml", "slurm", "script", "--cluster=x", *PLAIN)

    assert answer.code == 2
    assert message in answer.error
