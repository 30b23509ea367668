"""Results: predictions in columns, their times, failed inputs, and a description of the open model.

``Postprocessor`` converts outputs to predictions according to the model's task.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from types import MappingProxyType
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from inferometer.agent.hardware.environment import Device, Environment, Precision, Weights
from inferometer.agent.preprocessing.inputs import Origin, Tensors
from inferometer.agent.tasks.predictions import OF_WHOLE_BATCH, Outputs, PredictedInputs, RawOutputs
from inferometer.agent.tasks.registry import POSTPROCESSORS
from inferometer.manifests.errors import PredictionError
from inferometer.manifests.schema import ModelManifest, ModelOutput


class Stage(str, Enum):
    """A step of the pipeline."""

    READ = "read"
    PREPROCESS = "preprocess"
    PREDICT = "predict"
    POSTPROCESS = "postprocess"
    SCORE = "score"
    """Not part of the pipeline: the evaluation compares predictions with the dataset's ground truth."""


@dataclass(frozen=True, slots=True)
class StageTimes:
    """The time that one batch took in each stage, in nanoseconds of a monotonic clock.

    ``read_ns`` and ``preprocess_ns`` are sums over the inputs. Several threads may process them at once, so
    these sums can exceed the elapsed time. ``predict_ns`` is measured from when the predictor receives the
    batch in host memory until its outputs are in host memory: it includes transfers and synchronization, and
    excludes preprocessing, postprocessing and waits for other batches.
    """

    read_ns: int
    preprocess_ns: int
    predict_ns: int
    postprocess_ns: int


@dataclass(slots=True)  # each request has one, and to make a frozen one takes three times as long
class QueueTimes:
    """The times of a request that was batched with other requests, in nanoseconds.

    Attributes:
        queue_ns: From the request's arrival in the queue until its batch began.
        batch_ns: From then until the prediction began: the batch is assembled into one tensor, and may wait
            for other batches that use the same model or framework.
        batch_size: The number of inputs in the batch, over all of its requests.
    """

    queue_ns: int
    batch_ns: int
    batch_size: int


@dataclass(slots=True, eq=False)
class Inferred:
    """The request's rows of the model's outputs, and its batch's times and, if it was queued, queue times."""

    outputs: Tensors
    predict_ns: int
    queue: QueueTimes | None = None


Infer: TypeAlias = Callable[[Tensors], Inferred]
"""Runs a model on a preprocessed batch."""


@dataclass(frozen=True, slots=True)
class InputFailure:
    """An input without a prediction: the stage that failed, and the reason on one line."""

    input_id: str
    stage: Stage
    message: str


@dataclass(frozen=True, slots=True, eq=False)
class BatchResult:
    """The result of one batch.

    Attributes:
        input_ids: The inputs that were predicted, in the order of the rows of ``outputs``.
        outputs: The predictions; None if every input of the batch failed.
        failures: The inputs that were not predicted; with ``input_ids``, they make up the whole batch.
        times: The stage times; ``predict_ns`` covers the inputs that reached the model, not those that could
            not be read or preprocessed.
        queue: The times in the queue; None if the batch was not queued.
    """

    input_ids: tuple[str, ...]
    outputs: Outputs | None
    failures: tuple[InputFailure, ...]
    times: StageTimes
    queue: QueueTimes | None = None

    def shares_memory(self, batch: Tensors) -> bool:
        """Returns whether the outputs may share the batch's memory, as when a model returns its input."""
        tensors = self.outputs.tensors if isinstance(self.outputs, RawOutputs) else {}
        return any(
            np.may_share_memory(tensor, array) for tensor in tensors.values() for array in batch.values()
        )


LOCAL_AGENT = "local"
"""The value of ``agent`` for a system in this process."""


@dataclass(frozen=True, slots=True)
class SystemDescription:
    """An open model and the system that runs it.

    If only the server is known, the manifest names it as the framework, and ``framework_version`` is the
    server's version, empty if unknown. ``threads`` is the number of threads per operator on the CPU, None if
    unknown. ``preprocess_threads`` read and preprocess ahead, with ``overlap`` also during predictions.
    ``environment`` describes the machine that runs the model, as far as known. ``agent`` is ``local`` for
    this process, otherwise an address. ``seed`` is the seed of random weights, None for others. ``precision``
    is set for a model in code; it is None for a model in a file or in memory, which has its own, or if a
    server does not report it. ``cudnn_benchmark`` is the requested value; None for the framework's default.
    """

    manifest: ModelManifest
    checksums: Mapping[str, str]
    framework_version: str
    device: Device
    threads: int | None
    preprocess_threads: int
    overlap: bool
    environment: Environment
    agent: str = LOCAL_AGENT
    weights: Weights = Weights.PRETRAINED
    seed: int | None = None
    precision: Precision | None = Precision.FLOAT32
    cudnn_benchmark: bool | None = None


class Postprocessor:
    """Converts a model's outputs to predictions, according to the model's task. Thread-safe.

    ``feature_limit`` limits how much a task keeps, such as the best classes of each input; 0 keeps all.
    ``fixed`` is ``Predictor.fixed_outputs``.

    Attributes:
        wants_inputs: Whether the task uses information about the inputs besides their number.
        invalid_row: The reason reported for an input whose row is invalid.

    Raises:
        ConfigurationError: The task has no postprocessing here.
        ManifestError: The manifest lacks a field that the task requires.
    """

    def __init__(
        self, output: ModelOutput, feature_limit: int, fixed: Mapping[str, int] = MappingProxyType({})
    ) -> None:
        self._task = POSTPROCESSORS.find(output.type)(output, feature_limit)
        self._is_raw = output.type == "raw"
        self._fixed = fixed
        self.wants_inputs = self._task.wants_inputs
        self.invalid_row = self._task.invalid_row

    def __call__(
        self, tensors: Tensors, size: int, origins: Sequence[Origin | None] = ()
    ) -> tuple[Outputs, NDArray[np.bool_]]:
        """Returns the predictions for a batch's valid rows, and a mask of these rows.

        The mask has an entry for each input, which is false if an output cannot be a prediction, for example
        if a score is not a finite number.

        Args:
            tensors: The model's outputs.
            size: The number of inputs.
            origins: The origin of each input; empty for tasks that do not use it.

        Raises:
            PredictionError: The outputs do not match the manifest.
        """
        inputs = PredictedInputs.of(size, origins) if origins else PredictedInputs(size)
        if not (size == 1 and self._task.takes_unbatched):
            hint = "; for a model of one input at a time, use batch_size 1"
            whole = whole_batch_outputs(
                tensors, inputs.rows, self._fixed, hint if self._task.takes_unbatched else ""
            )
            if whole and not self._is_raw:
                tensors = {name: OF_WHOLE_BATCH if name in whole else each for name, each in tensors.items()}
        return self._task(tensors, inputs)


def whole_batch_outputs(
    tensors: Tensors, size: int, fixed: Mapping[str, int], hint: str = ""
) -> frozenset[str]:
    """Returns the names of the outputs of a batch that belong to the whole batch, such as a loss.

    They are single numbers, and tensors whose first axis has the ``fixed`` size that the model declares. A
    fixed size of 1 is ignored for one input: some exporters write it for the batch axis. For
    ``fixed``, see ``Predictor.fixed_outputs``.

    Raises:
        PredictionError: Another output does not have a row for each input; the message ends with ``hint``.
    """
    whole = {
        name
        for name, tensor in tensors.items()
        if not tensor.ndim or (len(tensor) == fixed.get(name) and not len(tensor) == size == 1)
    }
    for name, tensor in tensors.items():
        if name not in whole and len(tensor) != size:
            raise PredictionError(
                f"output {name} has shape {list(tensor.shape)} for a batch of {size} inputs{hint}"
            )
    return frozenset(whole)
