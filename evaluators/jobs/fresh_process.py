"""Evaluations in a fresh Python process, whose progress, warnings and errors arrive here."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable
from typing import TypeAlias

from inferometer.evaluators.dataset_run import Progress
from inferometer.evaluators.evaluation import Evaluation
from inferometer.evaluators.jobs.linked_process import LinkedTask
from inferometer.evaluators.jobs.resources import JobCallbacks
from inferometer.evaluators.jobs.supervision import in_processes
from inferometer.evaluators.measurements.batches import BatchMeasurement
from inferometer.manifests.errors import EvaluationFailed

Work: TypeAlias = Callable[[JobCallbacks[Progress]], Iterable[Evaluation[BatchMeasurement]]]
"""Evaluates; pickle can pass it on, so that it is a function of a module with its arguments."""


def in_fresh_process(
    work: Work, callbacks: JobCallbacks[Progress]
) -> Generator[Evaluation[BatchMeasurement], None, None]:
    """Runs ``work`` in a fresh Python process, and yields its evaluations as soon as each is complete.

    The process ignores SIGINT and SIGTERM: ``callbacks.stop_requested`` is passed on to it. Closing the
    iterator ends the process at once.

    Raises:
        EvaluationFailed: The process was killed, or ended early.
        InferometerError: What ``work`` raised.
    """
    task = LinkedTask("the process of the evaluation", work)
    return in_processes([task], callbacks, EvaluationFailed)
