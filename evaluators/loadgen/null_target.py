"""The null target: answers each query at once, so that only the harness itself takes time."""

from __future__ import annotations

import time
from collections.abc import Callable

from evaluators.loadgen.target import Answers
from manifests.errors import SessionError


class NullTarget:
    """Satisfies ``target.QueryTarget``. Answers come in the thread that sends.

    Args:
        clock: The clock of the run, in nanoseconds.
    """

    def __init__(self, clock: Callable[[], int] = time.perf_counter_ns) -> None:
        self._clock = clock
        self._answers: Answers | None = None

    def begin(self, answers: Answers) -> None:
        """Is told of a run that begins, and who takes its answers."""
        self._answers = answers

    def submit(self, query: int) -> None:
        """Answers a query.

        Raises:
            SessionError: No run has begun.
        """
        if self._answers is None:
            raise SessionError("no run has begun; call begin before submit")
        self._answers.answered(query, self._clock())

    def end(self, timeout_s: float) -> None:
        """Ends the run; there is nothing to wait for."""
        self._answers = None
