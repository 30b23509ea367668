"""Evaluations in fresh Python processes, whose progress, warnings and errors arrive here."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Sequence
from contextlib import closing
from typing import TypeAlias

from inferometer.agent.tracing.span import TraceLevel
from inferometer.evaluators.evaluation import Evaluation, M, Status
from inferometer.evaluators.kinds.batches.run import Progress
from inferometer.evaluators.running.linked_process import LinkedTask
from inferometer.evaluators.running.resources import JobCallbacks, JobPart
from inferometer.evaluators.running.supervision import in_processes
from inferometer.manifests.errors import EvaluationFailed, EvaluationInterrupted

Work: TypeAlias = Callable[[JobCallbacks[Progress]], Generator[Evaluation[M], None, None]]
"""Runs the evaluation. It must be picklable, so it is a module-level function with its arguments."""


def in_fresh_process(
    work: Callable[[JobCallbacks[Progress]], Iterable[Evaluation[M]]], callbacks: JobCallbacks[Progress]
) -> Generator[Evaluation[M], None, None]:
    """Runs ``work`` in a fresh Python process, and yields its evaluations as soon as each is complete.

    The process ignores SIGINT and SIGTERM: ``callbacks.stop_requested`` is passed on to it. Closing the
    iterator ends the process at once.

    Raises:
        EvaluationFailed: The process was killed, or ended early.
        InferometerError: What ``work`` raised.
    """
    task = LinkedTask("the process of the evaluation", work)
    return in_processes([task], callbacks, EvaluationFailed)


def in_turn(
    works: Sequence[tuple[Work[M], TraceLevel | None]], callbacks: JobCallbacks[Progress], *, fresh: bool
) -> Generator[Evaluation[M], None, None]:
    """Runs one work after the other, and yields each evaluation as soon as it is complete.

    No evaluation follows an interrupted one. Close the iterator to end early.

    Args:
        works: Functions that yield one evaluation each, or none in a rank other than 0, with their trace
            levels for ``JobPart``.
        callbacks: Called in this thread.
        fresh: Whether each runs in a fresh process.

    Raises:
        EvaluationInterrupted: A stop was requested between two evaluations.
        InferometerError: What a work raised, or a fresh process was killed.
    """
    for number, (work, level) in enumerate(works, start=1):
        callbacks.on_part(JobPart(number, len(works), level))
        status, stopped = Status.COMPLETE, False
        with closing(in_fresh_process(work, callbacks) if fresh else work(callbacks)) as evaluations:
            for evaluation in evaluations:
                status = evaluation.status
                stopped = callbacks.stop_requested()  # in the last batch, which leaves nothing to interrupt
                yield evaluation
        if status is Status.INTERRUPTED:
            return
        if stopped and number < len(works):
            raise EvaluationInterrupted(f"stopped after {number} of {len(works)} evaluations")
