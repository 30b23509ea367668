"""A model with known outputs in a pipeline, and the clock and waits that its tests use."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
from numpy.typing import NDArray

from inferometer.agent.artifacts.files import Artifacts
from inferometer.agent.hardware.environment import PredictorOptions
from inferometer.agent.inference.pipeline import Pipeline
from inferometer.agent.inference.predictor import Predictor
from inferometer.agent.inference.stages import BatchResult, Postprocessor, Stage
from inferometer.agent.preprocessing.inputs import Input, Payload, Tensor, Tensors
from inferometer.agent.preprocessing.model_preprocessor import ModelPreprocessor
from inferometer.agent.preprocessing.preprocessor import ImagePreprocessor, Preprocessor
from inferometer.agent.tasks.predictions import Classifications
from inferometer.manifests.errors import InputError
from inferometer.manifests.schema import ModelManifest

DEADLINE_S = 20.0
SHORTLY_S = 0.05
"""How long something that must not happen is waited for."""
CLASSES = 10


def manifest(framework: str = "Fake", kind: str = "classification") -> ModelManifest:
    """A model that takes one number, 0…9, and says that this is the class."""
    return ModelManifest.model_validate(
        {
            "name": "Echo",
            "framework": {"name": framework, "version": "*"},
            "inputs": [
                {
                    "type": "image",
                    "parameters": {"dimensions": [1, 1, 1], "color_mode": "GRAY", "input_layer": "number"},
                }
            ],
            "output": {"type": kind, "parameters": {"labels": [str(n) for n in range(CLASSES)]}},
            "model": {"graph_path": "echo"},
        }
    )


class EchoPredictor(Predictor):
    """Gives the class that each input's number is.

    Attributes:
        batches: The numbers of each batch that was predicted.
        during: Called while a batch is predicted, with its number among the batches from 0.
    """

    during: Callable[[int], None] = staticmethod(lambda _: None)

    def __init__(
        self,
        model: ModelManifest | None = None,
        artifacts: Artifacts | None = None,
        options: PredictorOptions | None = None,
    ) -> None:
        super().__init__(model or manifest(), artifacts or Artifacts(), options or PredictorOptions())
        self.batches: list[list[int]] = []
        self.loads = 0
        self.closes = 0

    def load(self) -> None:
        self.loads += 1

    def predict(self, inputs: Tensors) -> Tensors:
        numbers = self.checked_input(inputs).reshape(-1)
        self.batches.append([int(number) for number in numbers])
        self.during(len(self.batches) - 1)
        scores = np.zeros((len(numbers), CLASSES), np.float32)
        scores[np.arange(len(numbers)), numbers.astype(np.int64)] = 1
        return {"scores": scores}

    @property
    def threads(self) -> int | None:
        return self.options.threads or 1

    def close(self) -> None:
        self.closes += 1


class ManualClock:
    """A clock in nanoseconds that goes on only when it is told to; its readings are counted."""

    def __init__(self) -> None:
        self.now_ns = 0
        self.readings = 0
        self._lock = threading.Lock()

    def __call__(self) -> int:
        with self._lock:
            self.readings += 1
            return self.now_ns

    def advance(self, nanoseconds: int) -> None:
        with self._lock:
            self.now_ns += nanoseconds


def number(value: int) -> Tensor:
    return Tensor(np.full((1, 1, 1), value, np.float32))


def inputs(values: Iterable[int], read: Callable[[int], Payload] = number, prefix: str = "") -> list[Input]:
    """One input for each value, read when its turn comes; its id is the value."""
    return [Input(f"{prefix}{value}", lambda value=value: read(value)) for value in values]  # type: ignore[misc]


def wait_until(condition: Callable[[], Any]) -> None:
    """Waits, giving the other threads way, until ``condition`` holds."""
    deadline = time.monotonic() + DEADLINE_S
    pause = threading.Event()
    while not condition():
        assert time.monotonic() < deadline, "what was waited for did not come"
        pause.wait(0.001)


def wait_for(event: threading.Event) -> None:
    assert event.wait(DEADLINE_S), "what was waited for did not come"


PREPROCESS_NS = 100


class TimedPreprocessor(ImagePreprocessor):
    """Takes ``PREPROCESS_NS`` for an image and refuses empty ones."""

    def __init__(self, clock: ManualClock) -> None:
        super().__init__(manifest().inputs[0].parameters)
        self.clock = clock

    def write(self, payload: Payload, out: NDArray[Any]) -> None:
        self.clock.advance(PREPROCESS_NS)
        super().write(payload, out)


def no_fetch(address: str) -> bytes:
    raise InputError(f"{address} is not there")


@contextmanager
def opened(
    predictor: EchoPredictor | None = None,
    *,
    threads: int = 2,
    preprocessor: Preprocessor | ModelPreprocessor | None = None,
    postprocessor: Postprocessor | None = None,
    fetch: Callable[[str], bytes] = no_fetch,
    **options: Any,
) -> Iterator[Pipeline]:
    predictor = predictor or EchoPredictor()
    model = predictor.manifest
    if not isinstance(preprocessor, ModelPreprocessor):
        preprocessor = ModelPreprocessor([preprocessor or ImagePreprocessor(model.inputs[0].parameters)])
    pipeline = Pipeline(
        predictor,
        preprocessor,
        postprocessor or Postprocessor(model.output, 1),
        fetch=fetch,
        threads=threads,
        **options,
    )
    try:
        yield pipeline
    finally:
        pipeline.close()


def answers(result: BatchResult) -> dict[str, int]:
    """The class that each input was given."""
    if result.outputs is None:
        return {}
    assert isinstance(result.outputs, Classifications)
    assert len(result.outputs.indices) == len(result.input_ids)
    return dict(zip(result.input_ids, result.outputs.indices[:, 0].tolist(), strict=True))


def failures(result: BatchResult) -> list[tuple[str, Stage]]:
    return [(failure.input_id, failure.stage) for failure in result.failures]
