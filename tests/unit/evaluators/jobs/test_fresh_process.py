"""Work in a fresh process: what it gives, how it fails, how it is stopped."""

from __future__ import annotations

import os
import signal
import struct
import time
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from typing import Any

import pytest

from inferometer.evaluators.evaluation import Evaluation, Status
from inferometer.evaluators.jobs.job import JobCallbacks, Progress
from inferometer.evaluators.jobs.linked_process import in_fresh_process
from inferometer.evaluators.kinds.batches.measurement import BatchMeasurement
from inferometer.evaluators.kinds.batches.run import DatasetRun
from inferometer.manifests.errors import DatasetError, EvaluationFailed
from tests.unit.evaluators.dataset_run_fakes import FakeSystem, Numbered, options

Found = Iterator[Evaluation[BatchMeasurement]]
DEADLINE_S = 60.0


def evaluates(callbacks: JobCallbacks) -> Found:
    callbacks.on_warning(f"from {os.getpid()}")
    yield DatasetRun(FakeSystem(), Numbered(20), options(), callbacks=callbacks).run()
    callbacks.on_warning("later")


def fails(callbacks: JobCallbacks) -> Found:
    raise DatasetError(f"no dataset in {callbacks.stop_requested()}")
    yield


def ends(how: int, callbacks: JobCallbacks) -> Found:
    if how < 0:
        os.kill(os.getpid(), -how)
    os._exit(how)
    yield


def ends_in_a_message(callbacks: JobCallbacks) -> Found:
    """Is killed when the length of a message and a part of it are written."""
    connection = callbacks.on_progress.__self__._connection  # type: ignore[attr-defined]
    os.write(connection.fileno(), struct.pack("!i", 1000) + b"half")
    os.kill(os.getpid(), signal.SIGKILL)
    yield


def waits(callbacks: JobCallbacks) -> Found:
    """Measures until it is stopped; Ctrl-C in a terminal reaches this process too."""
    for number in (signal.SIGINT, signal.SIGTERM):
        os.kill(os.getpid(), number)
    callbacks.on_warning(str(os.getpid()))
    deadline_s = time.monotonic() + DEADLINE_S

    def stopped() -> bool:
        return callbacks.stop_requested() or time.monotonic() > deadline_s

    stopping = replace(callbacks, stop_requested=stopped)
    yield DatasetRun(FakeSystem(), Numbered(20), options(min_batches=10**9), callbacks=stopping).run()


def callbacks_of(warnings: list[str], **given: Any) -> JobCallbacks:
    return JobCallbacks(on_warning=warnings.append, **given)


def test_an_evaluation_comes_back_from_another_process() -> None:
    warnings: list[str] = []
    progress: list[Progress] = []

    [evaluation] = in_fresh_process(evaluates, callbacks_of(warnings, on_progress=progress.append))

    assert evaluation.status is Status.COMPLETE
    assert evaluation.measurement.predicted_inputs == 20
    assert warnings[0].startswith("from ")
    assert warnings != [f"from {os.getpid()}", "later"]
    assert warnings[1:] == ["later"]
    assert progress[-1] == Progress(20, 20)


def test_an_error_is_the_same_here() -> None:
    with pytest.raises(DatasetError, match=r"^no dataset in False$"):
        list(in_fresh_process(fails, JobCallbacks()))


@pytest.mark.parametrize(
    ("how", "message"),
    [
        (-signal.SIGKILL, "was ended by SIGKILL before it was complete; the kernel does that when memory"),
        (-signal.SIGSEGV, "was ended by SIGSEGV before it was complete$"),
        (3, "ended with code 3 before it was complete$"),
    ],
)
def test_a_process_that_ends_early_is_one_line(how: int, message: str) -> None:
    with pytest.raises(EvaluationFailed, match=f"^the process of the evaluation {message}") as caught:
        list(in_fresh_process(partial(ends, how), JobCallbacks()))
    assert len(str(caught.value).splitlines()) == 1


def test_a_stop_reaches_it_and_gives_what_was_measured() -> None:
    passes: list[bool] = []
    callbacks = JobCallbacks(
        on_progress=lambda progress: passes.append(progress.done >= progress.total),
        stop_requested=lambda: any(passes),
    )

    [evaluation] = in_fresh_process(waits, callbacks)

    assert evaluation.status is Status.INTERRUPTED
    assert evaluation.measurement.predicted_inputs >= 20


def test_what_raises_here_ends_it_there() -> None:
    seen: list[str] = []

    def raise_it(line: str) -> None:
        seen.append(line)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        list(in_fresh_process(waits, JobCallbacks(on_warning=raise_it)))
    with pytest.raises(ProcessLookupError):
        os.kill(int(seen[0]), 0)


def test_a_process_that_is_killed_while_it_tells_is_one_error() -> None:
    with pytest.raises(EvaluationFailed, match="was ended by SIGKILL before it was complete"):
        list(in_fresh_process(ends_in_a_message, JobCallbacks()))
