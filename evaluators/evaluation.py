"""The evaluation: what ran, on what, how long each batch took, and how often it was right."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from enum import Enum

import numpy as np
from numpy.typing import NDArray

from agent.description import SystemDescription
from agent.device import DeviceKind
from agent.results import InputFailure
from agent.trace_level import TraceLevel
from agent.tracing.span import SpanChunk
from evaluators.datasets.base import DatasetIdentity
from evaluators.loadgen.record import LoadRecord
from manifests.errors import ConfigurationError

_LARGEST = 2**31 - 1  # larger numbers fit into neither a request nor every database


class Status(str, Enum):
    """How an evaluation ended. Reports show complete ones unless they are asked for more."""

    COMPLETE = "complete"
    INTERRUPTED = "interrupted"


@dataclass(frozen=True, slots=True)
class EvaluationOptions:
    """What an evaluation was asked for.

    Attributes:
        batch_size: Inputs in one batch; the last batch may hold fewer.
        partition_list_size: Inputs in one part of the dataset, the unit that ``num_file_parts`` counts.
        num_file_parts: Parts that were evaluated; -1 means all.
        warmup_num_file_parts: Parts that were run first, without being measured.
        feature_limit: The number of best classes kept for each input; 0 means all.
        fail_on_error: Whether the first failed input stops the evaluation.
        trace_level: How deep the evaluation looked.

    Raises:
        ConfigurationError: A number makes no sense; it is named.
    """

    batch_size: int
    partition_list_size: int
    num_file_parts: int = -1
    warmup_num_file_parts: int = 1
    feature_limit: int = 5
    fail_on_error: bool = False
    trace_level: TraceLevel = TraceLevel.APPLICATION_TRACE

    def __post_init__(self) -> None:
        for name, least in (
            ("batch_size", 1),
            ("partition_list_size", 1),
            ("warmup_num_file_parts", 0),
            ("feature_limit", 0),
            ("num_file_parts", -1),
        ):
            value = getattr(self, name)
            if name == "num_file_parts" and (value == 0 or value < least):
                raise ConfigurationError(f"{name} is {value}; it must be at least 1, or -1 for all")
            if value < least:
                raise ConfigurationError(f"{name} is {value}; it must be at least {least}")
            if value > _LARGEST:
                raise ConfigurationError(f"{name} is {value}; it must be at most {_LARGEST}")


@dataclass(frozen=True, slots=True, eq=False)
class BatchTimes:
    """The raw times of the measured batches in nanoseconds, one entry a batch, as ``StageTimes`` has them.

    Attributes:
        sizes: int64; the inputs that were predicted, without the failed ones.
        read_ns: int64; summed over the inputs.
        preprocess_ns: int64; summed over the inputs.
        predict_ns: int64; from host memory to host memory, synchronised with the device.
        postprocess_ns: int64.
    """

    sizes: NDArray[np.int64]
    read_ns: NDArray[np.int64]
    preprocess_ns: NDArray[np.int64]
    predict_ns: NDArray[np.int64]
    postprocess_ns: NDArray[np.int64]

    def full(self, batch_size: int) -> NDArray[np.int64]:
        """The predict times, in nanoseconds, of the batches that held ``batch_size`` inputs.

        A smaller batch, be it the last one or one with failed inputs, takes another time, so that it is left
        out of the latency at this batch size.
        """
        full: NDArray[np.int64] = self.predict_ns[self.sizes == batch_size]
        return full


@dataclass(frozen=True, slots=True)
class Accuracy:
    """How many inputs were classified right, of those that were evaluated.

    Attributes:
        top1: Inputs whose most probable class is their label.
        top5: Inputs whose label is among the five most probable classes, or among all where there are fewer.
        evaluated: Inputs with a label and a prediction; the failed ones do not count.
    """

    top1: int
    top5: int
    evaluated: int

    @property
    def top1_share(self) -> float | None:
        """``top1`` as a share of the evaluated inputs, 0…1; None when there are none."""
        return self.top1 / self.evaluated if self.evaluated else None

    @property
    def top5_share(self) -> float | None:
        """``top5`` as a share of the evaluated inputs, 0…1; None when there are none."""
        return self.top5 / self.evaluated if self.evaluated else None


@dataclass(frozen=True, slots=True, eq=False)
class InputPrediction:
    """The prediction of one input, as ``--publish_predictions`` keeps it.

    Attributes:
        input_id: The input.
        expected_label: Its class, where the dataset tells.
        indices: int64, k; the best classes, the most probable first.
        probabilities: float32, k.
    """

    input_id: str
    expected_label: str | None
    indices: NDArray[np.int64]
    probabilities: NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class TraceSummary:
    """The trace of an evaluation, without its spans.

    Attributes:
        trace_id: 32 hexadecimal digits.
        span_count: The spans that were kept.
        dropped: Spans that were recorded, and left out because there were too many.
        notes: What the trace cannot give and why, one line each.
        url: Where a person finds it in Jaeger; None where it was not exported.
    """

    trace_id: str
    span_count: int
    dropped: int = 0
    notes: tuple[str, ...] = ()
    url: str | None = None


@dataclass(frozen=True, slots=True, eq=False)
class Evaluation:
    """One run of one model over one dataset, and everything needed to run it again.

    Attributes:
        id: A UUID.
        created_at: When it began, in UTC.
        status: How it ended.
        system: The model, its framework and its machine.
        dataset: What it ran over.
        options: What was asked for.
        batches: The raw times.
        elapsed_ns: From the first measured batch's reading to the last one's postprocessing.
        accuracy: None where the dataset has no labels or the model does not classify.
        failures: The inputs that were not predicted.
        predictions: The predictions, if they were asked for; empty in an evaluation that the store returns.
        trace: What was traced; None for a run at NO_TRACE.
        spans: The trace's spans; empty in an evaluation that the store returns.
        group_id: The same for evaluations that belong together, such as a run at each trace level.
        load: What queries under load gave; None for an evaluation batch by batch, and only then are there
            ``batches``.
    """

    id: str
    created_at: datetime
    status: Status
    system: SystemDescription
    dataset: DatasetIdentity
    options: EvaluationOptions
    batches: BatchTimes
    elapsed_ns: int
    accuracy: Accuracy | None
    failures: tuple[InputFailure, ...]
    predictions: tuple[InputPrediction, ...] = ()
    trace: TraceSummary | None = None
    spans: tuple[SpanChunk, ...] = ()
    group_id: str | None = None
    load: LoadRecord | None = None

    @property
    def profiled(self) -> bool:
        """Whether it ran under the framework's profiler, so that its latency is not the model's."""
        remote = self.system.device.kind is DeviceKind.REMOTE  # whose framework is not known
        return self.options.trace_level > TraceLevel.MODEL_TRACE and not remote
