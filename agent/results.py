"""What a model answers: predictions in columns, the times they took, and the inputs that failed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from agent.predictor import Tensors


class Stage(str, Enum):
    """A step of the pipeline."""

    READ = "read"
    PREPROCESS = "preprocess"
    PREDICT = "predict"
    POSTPROCESS = "postprocess"


@dataclass(frozen=True, slots=True)
class StageTimes:
    """How long one batch took in each stage, in nanoseconds of a monotonic clock.

    ``read_ns`` and ``preprocess_ns`` are sums over the inputs, which several threads may work on at once, so
    that they can exceed the time that passed. ``predict_ns`` runs from handing the batch, in host memory, to
    the predictor until its outputs are back in host memory: it holds the transfers and the synchronisation,
    and no pre- or postprocessing, nor any waiting for another batch.
    """

    read_ns: int
    preprocess_ns: int
    predict_ns: int
    postprocess_ns: int


@dataclass(frozen=True, slots=True)
class QueueTimes:
    """What became of a request that waited for others to be predicted with it, in nanoseconds.

    Attributes:
        queue_ns: From when it was ready for the model until its batch began.
        batch_ns: From then until the prediction began: the batch is put together in one tensor, and may wait
            for others that use the same model or framework.
        batch_size: The inputs in the batch, of all requests together.
    """

    queue_ns: int
    batch_ns: int
    batch_size: int


@dataclass(frozen=True, slots=True, eq=False)
class Inferred:
    """What a model alone gave for one request.

    Attributes:
        outputs: The model's outputs, the request's rows of them.
        predict_ns: How long the prediction took of the batch that the request was in; see ``StageTimes``.
        queue: How long it waited before; None where there was no queue.
    """

    outputs: Tensors
    predict_ns: int
    queue: QueueTimes | None = None


Infer: TypeAlias = Callable[[NDArray[Any]], Inferred]
"""Runs a model on a preprocessed batch."""


@dataclass(frozen=True, slots=True)
class InputFailure:
    """An input without a prediction: in which stage it failed, and why, in one line."""

    input_id: str
    stage: Stage
    message: str


@dataclass(frozen=True, slots=True, eq=False)
class Classifications:
    """The best classes of each input, the most probable first.

    Attributes:
        indices: int64, inputs × k; places in the model's list of labels.
        probabilities: float32, inputs × k, after the manifest's transform.
    """

    indices: NDArray[np.int64]
    probabilities: NDArray[np.float32]


@dataclass(frozen=True, slots=True, eq=False)
class RawOutputs:
    """The model's output tensors as they are, each with the batch as its first axis."""

    tensors: Tensors


Outputs: TypeAlias = Classifications | RawOutputs


def shares_memory(outputs: Outputs | None, batch: NDArray[Any]) -> bool:
    """Whether outputs may be in the memory of the batch, as those of a model that returns its input are."""
    return isinstance(outputs, RawOutputs) and any(
        np.may_share_memory(tensor, batch) for tensor in outputs.tensors.values()
    )


@dataclass(frozen=True, slots=True, eq=False)
class BatchResult:
    """What one batch gave.

    Attributes:
        input_ids: The inputs that were predicted, in the order of the rows of ``outputs``.
        outputs: Their predictions; None when every input of the batch failed.
        failures: The inputs that were not predicted; with ``input_ids`` they make up the whole batch.
        times: How long the stages took; ``predict_ns`` is that of the inputs that were
            handed to the model: without those that could not be read or preprocessed.
        queue: How long it waited for a batch of several requests; None where it was predicted by itself.
    """

    input_ids: tuple[str, ...]
    outputs: Outputs | None
    failures: tuple[InputFailure, ...]
    times: StageTimes
    queue: QueueTimes | None = None
