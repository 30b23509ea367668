"""The worker processes of a loader end with the process that has it, however that ends."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest

DEADLINE_S = 30.0
ROOT = Path(__file__).parents[2]
_SCRIPT = """
from inferometer.evaluators.loading.loader import DatasetLoader
from inferometer.evaluators.loading.loader import LoaderOptions
from tests.unit.evaluators.loading.tensor_datasets import PARAMETERS, Numbered

loader = DatasetLoader(Numbered(64), PARAMETERS, LoaderOptions(4, workers=2, processes=True, prefetch=2))
epoch = loader.epoch(0)
next(epoch)
print(*loader.processes, flush=True)
{end}
"""
_ENDLESS = """
number = 0
while True:
    for batch in loader.epoch(number):
        number += 1
"""


@contextmanager
def running(end: str) -> Iterator[tuple[subprocess.Popen[str], list[psutil.Process]]]:
    """A process with a loader, in a group of its own, and its workers."""
    command = [sys.executable, "-c", _SCRIPT.format(end=end)]
    pipe = subprocess.PIPE
    with subprocess.Popen(
        command, cwd=ROOT, stdin=pipe, stdout=pipe, stderr=pipe, text=True, start_new_session=True
    ) as process:
        try:
            assert process.stdout is not None
            yield process, [psutil.Process(int(pid)) for pid in process.stdout.readline().split()]
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)


def assert_gone(workers: list[psutil.Process]) -> None:
    assert len(workers) == 2
    deadline_s = time.monotonic() + DEADLINE_S
    while left := [each for each in workers if lives(each)]:
        assert time.monotonic() < deadline_s, left


def lives(process: psutil.Process) -> bool:
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


@pytest.mark.usefixtures("children_take_interrupts")
@pytest.mark.parametrize("whole_group", [True, False], ids=["a terminal", "kill -INT"])
def test_an_interrupt_ends_the_workers_without_a_word_of_theirs(whole_group: bool) -> None:
    with running(_ENDLESS) as (process, workers):
        (os.killpg if whole_group else os.kill)(process.pid, signal.SIGINT)
        _, errors = process.communicate(timeout=DEADLINE_S)
        assert_gone(workers)

    assert process.returncode == -signal.SIGINT
    assert errors.count("KeyboardInterrupt") == 1


def test_workers_end_when_their_process_is_killed() -> None:
    with running(_ENDLESS) as (process, workers):
        process.kill()
        process.wait(DEADLINE_S)
        assert_gone(workers)


def test_workers_survive_a_signal_to_end_that_their_process_ignores() -> None:
    ending = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); print(flush=True); input()"
    with running(ending) as (process, workers):
        assert process.stdout is not None
        process.stdout.readline()
        for worker in workers:
            worker.terminate()
        os.kill(process.pid, signal.SIGTERM)
        assert all(worker.is_running() for worker in workers)


@pytest.mark.parametrize("end", ["", "del epoch", "raise RuntimeError", "loader.close(); loader.close()"])
def test_workers_end_with_a_process_that_does_not_close_its_loader(end: str) -> None:
    with running(end) as (process, workers):
        _, errors = process.communicate(timeout=DEADLINE_S)
        assert_gone(workers)

    assert process.returncode == (1 if "raise" in end else 0)
    assert ("RuntimeError" in errors) == bool(errors) == ("raise" in end)
