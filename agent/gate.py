"""A gate between preparing inputs and timing a prediction."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager


class Gate:
    """Lets many threads prepare, or one predict, but never both at once.

    On a CPU the two would fight for the cores and for the interpreter's lock, and the time of a prediction
    would be that of the fight. A thread that wants to predict waits until the inputs under way are prepared,
    and no new one is begun until it is done. With ``overlap`` the gate is always open.
    """

    def __init__(self, overlap: bool) -> None:
        self.overlap = overlap
        self._condition = threading.Condition()
        self._preparing = 0
        self._predicting = 0

    @contextmanager
    def prepare(self) -> Iterator[None]:
        """Held while one input is preprocessed; reading waits for disks and networks, and needs no gate."""
        if self.overlap:
            yield
            return
        with self._condition:
            while self._predicting:
                self._condition.wait()
            self._preparing += 1
        try:
            yield
        finally:
            with self._condition:
                self._preparing -= 1
                self._condition.notify_all()

    @contextmanager
    def predict(self) -> Iterator[None]:
        """Held while one batch is predicted."""
        if self.overlap:
            yield
            return
        with self._condition:
            self._predicting += 1
        try:
            with self._condition:
                while self._preparing:
                    self._condition.wait()
            yield
        finally:
            with self._condition:
                self._predicting -= 1
                self._condition.notify_all()
