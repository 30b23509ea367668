"""Results: predictions in columns, their times, failed inputs, and the description of the open model."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import TypeAlias

from inferometer.agent.hardware.device import Device
from inferometer.agent.hardware.environment import Environment
from inferometer.agent.inference.predictor import Precision, Weights
from inferometer.agent.preprocessing.inputs import Tensors
from inferometer.agent.tasks.predictions import Classifications as Classifications
from inferometer.agent.tasks.predictions import Outputs as Outputs
from inferometer.agent.tasks.predictions import Predictions as Predictions
from inferometer.agent.tasks.predictions import RawOutputs as RawOutputs
from inferometer.manifests.schema import ModelManifest


class Stage(str, Enum):
    """A step of the pipeline."""

    READ = "read"
    PREPROCESS = "preprocess"
    PREDICT = "predict"
    POSTPROCESS = "postprocess"
    SCORE = "score"
    """Not of the pipeline: the evaluation compares a prediction with the dataset's truth."""


@dataclass(frozen=True, slots=True)
class StageTimes:
    """The time of one batch in each stage, in nanoseconds of a monotonic clock.

    ``read_ns`` and ``preprocess_ns`` are sums over the inputs. Several threads may process them at once, so
    that the sums can exceed the elapsed time. ``predict_ns`` begins when the predictor receives the batch in
    host memory, and ends when its outputs are in host memory: it includes transfers and synchronization, and
    excludes preprocessing, postprocessing and waits for other batches.
    """

    read_ns: int
    preprocess_ns: int
    predict_ns: int
    postprocess_ns: int


@dataclass(slots=True)  # each request has one, and to make a frozen one takes three times as long
class QueueTimes:
    """The times of a request that was batched with others, in nanoseconds.

    Attributes:
        queue_ns: From the arrival in the queue until its batch began.
        batch_ns: From then until the prediction began: the batch is assembled in one tensor, and may wait for
            others that use the same model or framework.
        batch_size: The number of inputs in the batch, of all requests.
    """

    queue_ns: int
    batch_ns: int
    batch_size: int


@dataclass(slots=True, eq=False)
class Inferred:
    """The request's rows of the model's outputs, and the times of its batch and, if any, in the queue."""

    outputs: Tensors
    predict_ns: int
    queue: QueueTimes | None = None


Infer: TypeAlias = Callable[[Tensors], Inferred]
"""Runs a model on a preprocessed batch."""


@dataclass(frozen=True, slots=True)
class InputFailure:
    """An input without a prediction: the stage that failed, and the reason in one line."""

    input_id: str
    stage: Stage
    message: str


@dataclass(frozen=True, slots=True, eq=False)
class BatchResult:
    """The result of one batch.

    Attributes:
        input_ids: The inputs that were predicted, in the order of the rows of ``outputs``.
        outputs: Their predictions; None if every input of the batch failed.
        failures: The inputs that were not predicted; together with ``input_ids`` they are the whole batch.
        times: The stage times; ``predict_ns`` covers the inputs that reached the model, without those that
            could not be read or preprocessed.
        queue: The times in the queue; None if the batch was predicted by itself.
    """

    input_ids: tuple[str, ...]
    outputs: Outputs | None
    failures: tuple[InputFailure, ...]
    times: StageTimes
    queue: QueueTimes | None = None


LOCAL_AGENT = "local"
"""The ``agent`` of a system in this process."""


@dataclass(frozen=True, slots=True)
class SystemDescription:
    """An open model and its system.

    If only the server is known, the manifest names it as the framework, and ``framework_version`` is its
    version; empty if unknown. ``threads`` is how many one operator may use on the CPU, None if unknown;
    ``preprocess_threads`` read and preprocess ahead, with ``overlap`` also during predictions.
    ``environment`` is that of the machine that runs the model, as far as it is known. ``agent`` is ``local``
    for this process, else an address. ``seed`` is that of random weights; None for others. ``precision`` is
    what a model in code computes with; None for a model in a file or in memory, which has its own, and where
    a server does not tell it. ``cudnn_benchmark`` is what was asked for; None for the framework's default.
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
