"""A gate between preparing inputs and timing a prediction."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager


class Gate:
    """Lets many threads prepare, or one predict, but never both at once.

    On a CPU the two would fight for the cores and for the interpreter's lock, and the time of a prediction
    would be that of the fight. A thread that wants to predict waits until the inputs under way are prepared,
    and no new one is begun until it is done. Who waited to prepare then goes before the next prediction, so
    that a client who predicts without a pause holds up no other. With ``overlap`` the gate is always open.

    Args:
        overlap: Whether preparing and predicting may go on at once.
        patience_s: Who wants to prepare waits no longer than this for a prediction: it may never end.
            None waits for any time.
        clock: A monotonic clock in seconds.
    """

    def __init__(
        self,
        overlap: bool,
        patience_s: float | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.overlap = overlap
        self._patience_s = patience_s
        self._clock = clock
        self._running_since_s: float | None = None
        self._condition = threading.Condition()
        self._preparing = 0
        self._predicting = 0
        self._waiting_to_prepare = 0
        self._ended_predictions = 0

    @contextmanager
    def prepare(self) -> Iterator[None]:
        """Held while one input is preprocessed; reading waits for disks and networks, and needs no gate."""
        if self.overlap:
            yield
            return
        with self._condition:
            if self._predicting:
                self._wait_for_a_prediction()
            else:
                self._preparing += 1
        try:
            yield
        finally:
            self._end_preparing()

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
                self._running_since_s = self._clock()
            yield
        finally:
            with self._condition:
                self._predicting -= 1
                self._running_since_s = None
                self._ended_predictions += 1
                # Counted here and not when they wake up: the next prediction would be faster.
                self._preparing += self._waiting_to_prepare
                self._waiting_to_prepare = 0
                self._condition.notify_all()

    def _wait_for_a_prediction(self) -> None:
        """Waits, under the lock, until the next prediction has ended and has counted this thread in.

        One that takes too long is not waited for; then the thread counts itself in.
        """
        ended = self._ended_predictions
        self._waiting_to_prepare += 1
        try:
            while self._ended_predictions == ended:
                left_s = self._patience_left_s()
                if left_s == 0:
                    self._waiting_to_prepare -= 1
                    self._preparing += 1
                    return
                self._condition.wait(left_s)
        except BaseException:  # an interrupt
            if self._ended_predictions == ended:
                self._waiting_to_prepare -= 1
            else:
                self._end_preparing()
            raise

    def _patience_left_s(self) -> float | None:
        """How long the prediction under way, or the next one, is waited for; None for any time."""
        if self._patience_s is None or self._running_since_s is None:
            return self._patience_s
        return max(0.0, self._running_since_s + self._patience_s - self._clock())

    def _end_preparing(self) -> None:
        with self._condition:
            self._preparing -= 1
            self._condition.notify_all()
