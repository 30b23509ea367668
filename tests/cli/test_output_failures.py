"""Output that cannot be written: one line, a nonzero exit code, and no evaluation is lost."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

FEW = ("predict", "dataset", "--framework_name=ONNXRuntime", "--num_file_parts=1")
FULL_DISK = "/dev/full"

needs_full_disk = pytest.mark.skipif(not Path(FULL_DISK).exists(), reason="there is no /dev/full")


def in_shell(arguments: tuple[str, ...], redirection: str) -> subprocess.CompletedProcess[str]:
    """Runs ``agent`` in a process of its own, with its output redirected as a shell does."""
    command = [sys.executable, "-c", "from inferometer.client.cli.main import main; main()", *arguments]
    return subprocess.run(
        ["sh", "-c", f'"$@" {redirection}', "sh", *command],
        env={name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


@needs_full_disk
@pytest.mark.parametrize(
    "arguments", [("--help",), ("--version",), ("info", "models"), (*FEW, "--publish=no")]
)
def test_full_disk_is_one_line(arguments):
    answer = in_shell(arguments, f">{FULL_DISK}")
    assert answer.returncode == 7
    assert answer.stderr.splitlines()[-1] == "agent: the output cannot be written: No space left on device"
    assert "Traceback" not in answer.stderr


@pytest.mark.parametrize("arguments", [("--help",), ("info", "models")])
def test_closed_stdout_is_one_line(arguments):
    answer = in_shell(arguments, ">&-")
    assert answer.returncode == 7
    assert answer.stderr == "agent: the output cannot be written: Bad file descriptor\n"


def test_closed_stderr_does_not_keep_the_answer_back():
    answer = in_shell(("info", "datasets", "-f", "csv"), "2>&-")
    assert answer.returncode == 0
    assert answer.stdout.startswith("name,version,")


@pytest.mark.parametrize(
    "redirection", [pytest.param(f">{FULL_DISK}", marks=needs_full_disk), ">&-", "| true", "<&- >&- 2>&-"]
)
def test_evaluation_is_published_although_its_summary_cannot_be_printed(agent, redirection):
    answer = in_shell(FEW, redirection)
    assert "Traceback" not in answer.stderr
    assert "Exception ignored" not in answer.stderr
    assert len(agent("info", "evaluation", "latency", "-f", "csv").rows) == 1
