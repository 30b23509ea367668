"""``agent completion``: what a shell is told, asked as its script does; and the scripts in their shells."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from contextlib import closing
from pathlib import Path

import pytest

from inferometer.client.cli import completion
from inferometer.client.cli.main import run
from inferometer.evaluators.store.opening import open_store
from tests.cli.conftest import Agent
from tests.reports.conftest import on_cpu, without_a_full_batch

_BEFORE = {"zsh": "compdef() { :; }\n"}
"""What an interactive shell has already."""
Complete = Callable[..., list[str]]
ON_CPU, OTHER = on_cpu().id, without_a_full_batch().id
DATASETS = [
    "digits_denoising",
    "digits_detection",
    "digits_segmentation",
    "digits_training",
    "digits_validation",
    "ilsvrc2012_validation",
    "statements_validation",
]


@pytest.fixture
def complete(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Complete:
    """Completes the last of some words, as bash asks for it; nothing may appear on stderr."""

    def call(*words: str) -> list[str]:
        monkeypatch.setattr(completion, "MOST_S", 60.0)
        monkeypatch.setenv("_AGENT_COMPLETE", "bash_complete")
        monkeypatch.setenv("COMP_WORDS", " ".join(["agent", *words]))
        monkeypatch.setenv("COMP_CWORD", str(len(words)))
        capfd.readouterr()
        code = run([])
        out, err = capfd.readouterr()
        assert (code, err) == (0, "")
        return [line.partition(",")[2] for line in out.splitlines()]

    return call


@pytest.fixture
def stored(tmp_path: Path) -> None:
    with closing(open_store(None, "inferometer", tmp_path / "data")) as store:
        store.save(on_cpu())
        store.save(without_a_full_batch())


def test_commands_reports_and_options_complete(complete: Complete) -> None:
    assert complete("comp") == ["compare", "completion"]
    assert complete("predict", "max") == ["max-qps"]
    assert {"latency", "show", "max_qps"} <= set(complete("info", "evaluation", ""))
    assert complete("info", "evaluation", "latency", "--model_n") == ["--model_name"]
    assert complete("info", "evaluation", "latency", "--model-n") == ["--model_name"]
    assert complete("predict", "workload", "--weights", "r") == ["random"]


def test_names_of_models_frameworks_and_datasets_complete(complete: Complete) -> None:
    assert complete("predict", "dataset", "--model_name", "resnet1") == ["ResNet101", "ResNet152", "ResNet18"]
    assert complete("predict", "dataset", "--model-name", "DigitsC") == ["DigitsCNN"]
    # bash makes three words of --framework_name=On
    assert complete("predict", "dataset", "--framework_name", "=", "On") == ["ONNXRuntime"]
    assert complete("predict", "dataset", "--gpu", "=", "false", "--dataset_name", "=") == DATASETS
    assert complete("info", "models", "--name=Alex") == ["AlexNet"]


def test_a_users_own_models_and_datasets_complete(complete: Complete, tmp_path: Path) -> None:
    manifest = "kind: dataset\nname: holidays\ncategory: vision\npath: .\n"
    (tmp_path / "set.yml").write_text(manifest)

    words = ("predict", "dataset", "--manifests", str(tmp_path), "--dataset_name", "")

    assert complete(*words) == sorted([*DATASETS, "holidays"])


def test_ids_complete(complete: Complete, stored: None) -> None:
    assert complete("info", "evaluation", "show", "") == [ON_CPU, OTHER]
    assert complete("info", "evaluation", "latency", "--id", "33") == [OTHER]
    assert complete("compare", ON_CPU, f"{ON_CPU},3") == [f"{ON_CPU},{OTHER}"]
    assert complete("trace", "export", "1") == [ON_CPU]
    assert complete("info", "evaluation", "show", "--database_name=other", "") == []


def test_columns_complete(complete: Complete) -> None:
    assert complete("info", "evaluation", "accuracy", "--columns", "id,top") == [
        "id,top1_accuracy",
        "id,top5_accuracy",
        "id,top1_accuracy_low",
        "id,top1_accuracy_high",
        "id,top5_accuracy_low",
        "id,top5_accuracy_high",
    ]
    assert complete("info", "evaluations", "--sort", "-laten") == ["-latency_ms_p50"]


def test_completion_makes_no_database(complete: Complete, tmp_path: Path) -> None:
    assert complete("info", "evaluation", "show", "") == []
    assert not (tmp_path / "data").exists()


@pytest.mark.parametrize(
    ("words", "variable", "value"),
    [
        (("predict", "dataset", "--model_name", ""), "AGENT_CONFIG", "no-such-file.yaml"),
        (("predict", "dataset", "--model_name", ""), "AGENT_MANIFESTS", "no-such-directory"),
        (("info", "evaluation", "show", ""), "AGENT_DATABASE_ADDRESS", "bolt://x"),
        (("info", "evaluation", "show", ""), "AGENT_DATA_DIR", os.devnull),
    ],
)
def test_what_cannot_be_known_completes_to_nothing_without_an_error(
    complete: Complete, monkeypatch: pytest.MonkeyPatch, words: Sequence[str], variable: str, value: str
) -> None:
    monkeypatch.setenv(variable, value)

    assert complete(*words) == []


def test_an_unknown_instruction_is_no_error_message(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    for instruction in ("tcsh_complete", "bash_everything", "bash"):
        monkeypatch.setenv("_AGENT_COMPLETE", instruction)
        assert run([]) == 1
    monkeypatch.setenv("_AGENT_COMPLETE", "bash_complete")
    for name in ("COMP_WORDS", "COMP_CWORD"):
        monkeypatch.delenv(name, raising=False)
    assert run([]) == 1
    assert capfd.readouterr() == ("", "")


def test_no_framework_is_imported(stored: None) -> None:
    heavy = ("torch", "mxnet", "onnxruntime", "grpc", "matplotlib")
    code = (
        "import os, sys\nfrom inferometer.client.cli import completion\n"
        "from inferometer.client.cli.main import run\ncompletion.MOST_S = 60\n"
        "for words in (['info', 'evaluation', 'show', ''], ['predict', 'dataset', '--model_name', ''],\n"
        "              ['info', 'evaluation', 'latency', '--columns', '']):\n"
        "    os.environ.update(COMP_WORDS=' '.join(['agent', *words]), COMP_CWORD=str(len(words)),\n"
        "                      _AGENT_COMPLETE='bash_complete')\n"
        "    assert run([]) == 0\n"
        f"print(*[name for name in {heavy} if name in sys.modules])"
    )

    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True
    )

    assert done.stdout.splitlines()[-1] == ""
    assert f"plain,{ON_CPU}" in done.stdout


def test_an_unknown_shell_is_one_line(agent: Agent) -> None:
    answer = agent("completion", "tcsh")

    assert answer.code == 2
    assert "'tcsh' is not one of 'bash', 'zsh', 'fish'" in answer.error


@pytest.fixture
def in_shell(agent: Agent, tmp_path: Path) -> Callable[[str, str], list[str]]:
    """Runs a shell with the script of ``agent completion`` and some lines after it."""

    def call(shell: str, lines: str) -> list[str]:
        program = shutil.which(shell)
        if program is None:
            pytest.skip(f"{shell} is not installed")
        (tmp_path / "agent").write_text(
            f"#!/bin/sh\nexec {sys.executable} -c "
            "'from inferometer.client.cli.main import main; main()' \"$@\"\n"
        )
        (tmp_path / "agent").chmod(0o755)
        agent("info", "models")  # reads all manifests, which takes its time
        script = tmp_path / "script"
        script.write_text(_BEFORE.get(shell, "") + agent("completion", shell).stdout + lines)
        environment = os.environ | {"PATH": f"{tmp_path}:{os.environ['PATH']}"}
        done = subprocess.run(
            [program, str(script)], capture_output=True, text=True, timeout=60, env=environment, cwd=tmp_path
        )
        assert (done.returncode, done.stderr) == (0, "")
        return done.stdout.splitlines()

    return call


def test_bash_completes(in_shell: Callable[[str, str], list[str]]) -> None:
    lines = (
        "COMP_WORDS=(agent predict dataset --model_name = DigitsC); COMP_CWORD=5\n"
        '_agent_completion agent; echo "${COMPREPLY[@]}"\ncomplete -p agent\n'
    )

    assert in_shell("bash", lines) == ["DigitsCNN", "complete -o nosort -F _agent_completion agent"]


def test_fish_completes(in_shell: Callable[[str, str], list[str]]) -> None:
    lines = "\n".join(
        f'complete -C "agent {words}"'
        for words in ("predict dataset --model_name=Dig", "info evaluations --columns id,weig", "predict max")
    )

    found = in_shell("fish", lines)

    assert [line.partition("\t")[0] for line in found] == ["--model_name=DigitsCNN", "id,weights", "max-qps"]


def test_the_script_of_zsh_is_one(in_shell: Callable[[str, str], list[str]]) -> None:
    """A terminal is needed to complete anything there."""
    assert in_shell("zsh", "\ntypeset -f _agent_completion >/dev/null && echo defined") == ["defined"]
