"""What runs now is told to other processes, at most once a second, and whatever way it ends."""

from __future__ import annotations

import errno
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from inferometer.client.api.progress import FOLDER, RunningFile, running_now
from inferometer.evaluators.jobs.job import JobStart, Progress
from tests.page_samples import steady

START = JobStart(steady(1).system, "digits", 450)
_KILLED = """
import os, signal, sys
from pathlib import Path
from inferometer.client.api.progress import RunningFile
from inferometer.evaluators.jobs.job import JobStart
from tests.page_samples import steady
RunningFile(Path(sys.argv[1])).begin(JobStart(steady(1).system, "digits", 450))
os.kill(os.getpid(), signal.SIGKILL)
"""


class Clock:
    """Seconds that pass when they are told to."""

    def __init__(self) -> None:
        self.now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


def test_progress_is_written_at_most_once_a_second(tmp_path: Path) -> None:
    clock = Clock()
    file = RunningFile(tmp_path, clock)
    file.begin(START)
    told = []
    for done, passed_s in ((16, 0.0), (32, 0.5), (48, 0.6), (64, 0.2), (80, 1.0)):
        clock.now_s += passed_s
        file(Progress(done, 450))
        (running,) = running_now(tmp_path)
        told.append((running.done, running.text))
    file.close()

    assert told == [
        (0, "starting"),
        (0, "starting"),
        (48, "48 of 450 inputs"),
        (48, "48 of 450 inputs"),
        (80, "80 of 450 inputs"),
    ]
    assert running_now(tmp_path) == []
    assert not (tmp_path / FOLDER).exists()


def test_load_tells_its_own_line(tmp_path: Path) -> None:
    clock = Clock()
    file = RunningFile(tmp_path, clock)
    file.begin(JobStart(START.system, "digits", 450, "poisson"))
    clock.now_s += 2
    file(Progress(40, 100, "", "  0.5 s  40/100 sent  19.5 answers/s  p99 2.0 ms  backlog 3"))
    (running,) = running_now(tmp_path)
    file.close()

    assert running.text == "0.5 s  40/100 sent  19.5 answers/s  p99 2.0 ms  backlog 3"
    assert (running.done, running.total, running.work) == (40, 100, "poisson")


def test_a_killed_process_leaves_a_file_that_counts_for_nothing_and_goes_with_the_next(
    tmp_path: Path,
) -> None:
    done = subprocess.run(
        [sys.executable, "-c", _KILLED, str(tmp_path)], cwd=Path(__file__).parents[2], timeout=60
    )
    assert done.returncode < 0
    left = list((tmp_path / FOLDER).iterdir())

    assert len(left) == 1
    assert json.loads(left[0].read_bytes())["title"] == "DigitsCNN 1.0"
    assert running_now(tmp_path) == []
    file = RunningFile(tmp_path)
    file.begin(START)
    assert len(running_now(tmp_path)) == 1
    assert not left[0].exists()
    file.close()


def test_a_folder_that_cannot_be_written_is_no_error(tmp_path: Path) -> None:
    (tmp_path / FOLDER).write_text("a file")
    file = RunningFile(tmp_path)

    file.begin(START)
    file(Progress(1, 2))
    file.close()
    assert running_now(tmp_path) == []


def test_a_file_system_without_locks_keeps_no_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr("fcntl.flock", refuse)
    file = RunningFile(tmp_path)
    file.begin(START)
    file.close()
    assert list(tmp_path.rglob(".*")) == []


def test_a_file_that_is_being_written_is_left_out(tmp_path: Path) -> None:
    file = RunningFile(tmp_path)
    file.begin(START)
    (path,) = (tmp_path / FOLDER).iterdir()
    path.write_bytes(b'{"title": "Digi')

    assert running_now(tmp_path) == []
    file.close()
