"""A limit on how long an agent may owe an answer in a stream, which gRPC has for whole calls only."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from types import TracebackType


class AnswerWatch:
    """Breaks a call off that owes an answer for too long; entered while an answer is waited for.

    Entering and leaving it sets a number and wakes nobody, as what is waited for may be being timed: a thread
    looks at that number when an answer could be overdue, so about once in ``timeout_s``.

    Args:
        timeout_s: How long one answer may take, in seconds; None watches nothing.
        break_off: Ends the call; it is called once, in the watching thread.
    """

    def __init__(self, timeout_s: float | None, break_off: Callable[[], object]) -> None:
        self.timeout_s = timeout_s
        self.expired = False
        """Whether the call was broken off for want of an answer."""
        self._break_off = break_off
        self._due_s: float | None = None
        self._owed = 1
        self._closed = False
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None

    def owing(self, answers: int) -> AnswerWatch:
        """Returns itself, to be entered while the first of so many answers is waited for."""
        self._owed = answers
        return self

    @property
    def limit_s(self) -> float:
        """How long the answer that is waited for may take, in seconds."""
        return (self.timeout_s or 0.0) * self._owed

    def __enter__(self) -> None:
        if self.timeout_s is None:
            return
        self._due_s = time.monotonic() + self.limit_s
        if self._thread is None and not self._closed:
            self._thread = threading.Thread(target=self._look, name="answer-watch", daemon=True)
            self._thread.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._due_s = None

    def close(self) -> None:
        """Ends the watching; calling it again does nothing."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    def _look(self) -> None:
        timeout_s = self.timeout_s or 0.0
        with self._changed:
            while not self._closed:
                due_s = self._due_s
                left_s = timeout_s if due_s is None else due_s - time.monotonic()
                if left_s <= 0:
                    self.expired = True
                    break
                # No longer than the shortest limit: the next one may be shorter than this.
                self._changed.wait(min(left_s, timeout_s))
        if self.expired:
            self._break_off()
