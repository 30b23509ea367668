"""Scripted models behind a queue, and a clock that only the test advances."""

from __future__ import annotations

import threading
import time
from types import SimpleNamespace

import numpy as np

from inferometer.agent.inference.stages import Inferred, whole_batch_outputs
from inferometer.agent.serving.batching import BatchingOptions
from inferometer.agent.serving.served_model import ServedModel
from inferometer.manifests.errors import PredictionError
from inferometer.manifests.inputs import TensorElementType, TensorSpec

DEADLINE_S = 20.0
LAYER = "numbers"
PREDICT_NS = 7


class Clock:
    """A clock that stands still until it is told."""

    def __init__(self) -> None:
        self.now_ns = 1000

    def __call__(self) -> int:
        return self.now_ns


class FakeSession:
    """A model that doubles rows of two numbers.

    It stays in one thread, unless ``any_thread`` is set.

    A batch with a 13 fails, one with a 66 crashes. While ``held``, a prediction waits.
    """

    processors = ()
    is_alive = True

    def __init__(self, name: str = "Double", *, dynamic: bool = False) -> None:
        parameters = SimpleNamespace(input_layer=LAYER)
        manifest = SimpleNamespace(
            name=name,
            version="1.0",
            inputs=[SimpleNamespace(parameters=parameters)],
            tensors=(TensorSpec(LAYER, TensorElementType.FLOAT32, (None if dynamic else 2,)),),
            source=None,
        )
        self.description = SimpleNamespace(manifest=manifest)
        self.batches: list[list[list[float]]] = []
        self.go = threading.Event()
        self.go.set()
        self.closed = False
        self.any_thread = False
        self.is_free = True
        self.thread_ns = 0
        """The processor time, to which each prediction adds ``predict_ns``."""
        self.predict_ns = PREDICT_NS
        self.threads: list[str] = []
        self.answer = lambda batch: {"doubled": batch * 2}

    def hold(self) -> None:
        self.go.clear()

    def whole_batch_outputs(self, outputs, size) -> frozenset[str]:
        return whole_batch_outputs(outputs, size, {})

    def infer(self, tensors) -> Inferred:
        batch = tensors[LAYER]
        assert not self.closed
        self.batches.append(batch.tolist())
        self.threads.append(threading.current_thread().name)
        self.thread_ns += self.predict_ns
        assert self.go.wait(DEADLINE_S)
        if (batch == 66).any():
            raise ZeroDivisionError("a fault of the predictor")
        if (batch == 13).any():
            raise PredictionError(f"the framework failed on {len(batch)}")
        return Inferred(self.answer(batch), self.predict_ns)

    def open_another(self, number: int) -> FakeSession:
        return FakeSession()

    def close(self) -> None:
        assert not self.closed
        self.closed = True


def served(session: FakeSession, clock: Clock | None = None, **options) -> ServedModel:
    """A served model on a fake one."""
    given = {"clock": clock} if clock else {}
    given["thread_ns"] = lambda: session.thread_ns
    return ServedModel(session, BatchingOptions(**options), unix_ns=lambda: 5_000_000, **given)


def rows(*values: float):
    """A batch with a row of twice each value."""
    return np.array([[value, value] for value in values], np.float32)


class Caller(threading.Thread):
    """Asks in a thread of its own, and keeps what came of it."""

    def __init__(self, model: ServedModel, *values: float, **limits) -> None:
        super().__init__(daemon=True)
        self._ask = lambda: model.infer({LAYER: rows(*values)}, **limits)
        self.answer: Inferred | None = None
        self.error: BaseException | None = None
        self.start()

    def run(self) -> None:
        try:
            self.answer = self._ask()
        except BaseException as error:  # noqa: BLE001 - raised again where the answer is taken
            self.error = error

    def done(self) -> Caller:
        self.join(DEADLINE_S)
        assert not self.is_alive(), "a caller waits for ever"
        return self

    @property
    def numbers(self) -> list[float]:
        """The answer's first column."""
        self.done()
        if self.error is not None:
            raise self.error
        return self.answer.outputs["doubled"][:, 0].tolist()


def wait_for(condition) -> None:
    """Waits until ``condition`` holds; fails after a deadline."""
    deadline_s = time.monotonic() + DEADLINE_S
    pause = threading.Event()
    while not condition():
        assert time.monotonic() < deadline_s, "what is waited for does not come"
        pause.wait(0.002)
