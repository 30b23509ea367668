"""Reports on evaluations of several kinds: the overview, and the reports on traces."""

from __future__ import annotations

import json
from abc import abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import ClassVar, TypeAlias

import numpy as np
from numpy.typing import NDArray

from inferometer.agent.tracing.recorder import NO_BATCH, NO_PARENT, SpanChunk, TraceLevel, span_id_text
from inferometer.evaluators.evaluation import Evaluation, Measurement, SpanSource
from inferometer.evaluators.kinds.batches.measurement import BatchMeasurement
from inferometer.evaluators.kinds.registry import kind_of
from inferometer.evaluators.kinds.training.measurement import TrainingMeasurement
from inferometer.evaluators.reports.base import (
    EVALUATION_COLUMNS,
    INVALID_COLUMN,
    NAME_COLUMNS,
    NS_PER_US,
    SCORE_COLUMNS,
    STABILITY_COLUMN,
    STATUS_COLUMN,
    VERDICT_COLUMN,
    Column,
    M,
    Report,
    Row,
    Value,
    describe,
    describe_names,
    describe_verdict,
    in_us,
    row_of,
)
from inferometer.evaluators.statistics import carried_percentile, trimmed_mean
from inferometer.evaluators.traces.layers import Layer, layers


class OverviewReport(Report[Measurement]):
    """One row for each evaluation of every kind; a figure that its kind does not have is empty.

    p50 is that of full batches, of queries under load, of training steps, or of the wait for a loader's
    batch. The rate is in inputs/s for batches, in samples/s for training and loaders, in answered queries/s
    for workloads, and in queries/s for the answer of a search. Operators have neither: each of their rows has
    its own. ``verdict`` is ``INVALID``, with ``invalid`` as the reason, or else ``stability``.
    """

    name = "evaluations"
    summary = "every evaluation, with its main figures and the verdict on its conditions"
    columns = (
        *EVALUATION_COLUMNS[:2],
        Column("kind", "kind"),
        *EVALUATION_COLUMNS[2:],
        Column("latency_ms_p50", "p50 (ms)"),
        Column("rate_per_s", "rate (1/s)", decimals=1),
        VERDICT_COLUMN,
        Column("top1_accuracy", "top-1", decimals=4),
        replace(STABILITY_COLUMN, detail=2),
        INVALID_COLUMN,
        STATUS_COLUMN,
        *SCORE_COLUMNS,
    )

    def rows(self, evaluations: Sequence[Evaluation[Measurement]]) -> Iterator[Row]:
        for evaluation in evaluations:
            measurement, kind = evaluation.measurement, kind_of(evaluation)
            yield {
                **dict.fromkeys(column.key for column in self.columns),
                **describe(evaluation),
                **describe_names(evaluation),
                "kind": kind.title,
                **kind.overview(measurement),
                **describe_verdict(evaluation, kind.invalid(measurement)),
            }


Traced: TypeAlias = BatchMeasurement | TrainingMeasurement
"""The measurements whose traces contain batches and layers; in training, a batch is a step."""
TRACED = (BatchMeasurement, TrainingMeasurement)

TRACED_COLUMNS: tuple[Column[Evaluation], ...] = (
    *NAME_COLUMNS,
    Column("trace_level", "trace level", detail=1, value="trace_level.name"),
    STABILITY_COLUMN,
)


class TraceReport(Report[M]):
    """A report on the spans of each traced evaluation."""

    level: ClassVar[TraceLevel]
    """The lowest trace level with which the report works."""
    of_full_batches: ClassVar[bool] = False
    """Whether the report covers only full batches."""

    def rows(self, evaluations: Sequence[Evaluation[M]]) -> Iterator[Row]:
        """Yields nothing, because the rows require the spans; see ``rows_of``."""
        return iter(())

    def rows_of(self, evaluations: Sequence[Evaluation[M]], spans: SpanSource) -> Iterator[Row]:
        """Yields the rows of the ``evaluations`` with a trace of ``level`` or deeper, in order.

        Args:
            evaluations: The evaluations.
            spans: Yields an evaluation's spans, which are read once, chunk by chunk.

        Raises:
            StoreError: Spans cannot be read.
        """
        for evaluation in evaluations:
            if evaluation.trace is not None and evaluation.trace_level >= self.level:
                yield from self.rows_of_one(evaluation, spans(evaluation.id))

    @abstractmethod
    def rows_of_one(self, evaluation: Evaluation[M], chunks: Iterator[SpanChunk]) -> Iterator[Row]:
        """Yields the rows of one evaluation."""


_RUNTIME_CALL = "runtime call"
_PHASE_COLUMN = Column("phase", "phase", detail=1)
"""The phase of a training step; empty in inference."""
_MEAN_COLUMNS = (
    Column("occurrences", "times", detail=1),
    Column("duration_us_trimmed_mean", "trimmed mean (us)", decimals=1),
)
_TOTAL_COLUMNS = (
    Column("total_us", "total (us)", decimals=1, detail=1),
    Column("share_percent", "share (%)", decimals=2),
)


def _layer_figures(
    durations_ns: NDArray[np.int64], total_ns: int, whole_ns: int, percents: Sequence[int] = ()
) -> dict[str, Value]:
    """Returns the values of ``_MEAN_COLUMNS``, of percentile columns, and of ``_TOTAL_COLUMNS``."""
    return {
        "occurrences": len(durations_ns),
        "duration_us_trimmed_mean": trimmed_mean(durations_ns) / NS_PER_US,
        **{f"duration_us_p{each}": in_us(carried_percentile(durations_ns, each)) for each in percents},
        "total_us": total_ns / NS_PER_US,
        "share_percent": 100 * total_ns / whole_ns if whole_ns else None,
    }


_HEAVIEST = 10


class LayerRunsReport(TraceReport[Traced]):
    """One row for each layer of each measured batch, full or not; shown by ``layers --raw``.

    ``started_at_ns`` is on the clock of the trace. Times are measured under the framework's profiler.
    """

    name = "layer_runs"
    summary = "every time that a layer ran, under the framework's profiler"
    level = TraceLevel.FRAMEWORK_TRACE
    takes = TRACED
    columns = (
        *TRACED_COLUMNS,
        Column("batch", "batch"),
        Column("inputs", "inputs"),
        Column("layer_index", "index"),
        Column("layer_name", "layer"),
        Column("layer_type", "type"),
        _PHASE_COLUMN,
        Column("started_at_ns", "started (ns since 1970)", detail=1),
        Column("duration_us", "duration (us)", decimals=1),
    )

    def rows_of_one(self, evaluation: Evaluation[Traced], chunks: Iterator[SpanChunk]) -> Iterator[Row]:
        """Yields a row for each span of a layer, with one chunk in memory at a time."""
        described = row_of(TRACED_COLUMNS, evaluation)
        sizes = evaluation.measurement.traced_sizes.tolist()
        for chunk in chunks:
            for position, batch, start_ns, duration_ns in chunk.values(
                "kind", "batch", "start_ns", "duration_ns"
            ):
                kind = chunk.kinds[position]
                if kind.level is not TraceLevel.FRAMEWORK_TRACE or batch == NO_BATCH:
                    continue
                index, type_ = kind.attribute("layer_index"), kind.attribute("layer_type")
                phase = kind.attribute("phase")
                yield {
                    **described,
                    "batch": batch,
                    "inputs": sizes[batch] if batch < len(sizes) else None,
                    "layer_index": index if isinstance(index, int) else None,
                    "layer_name": kind.name,
                    "layer_type": type_ if isinstance(type_, str) else "",
                    "phase": phase if isinstance(phase, str) else "",
                    "started_at_ns": start_ns,
                    "duration_us": duration_ns / NS_PER_US,
                }


_LAYER: tuple[Column[Layer], ...] = (
    Column("layer_index", "index", value="index"),
    Column("layer_name", "layer", value="name"),
    Column("layer_type", "type", value="type"),
    Column("phase", "phase", detail=1, value="phase"),
    Column("input_shapes", "inputs", detail=1, value=lambda of: " ".join(of.input_shapes)),
    Column("output_shapes", "outputs", detail=2, value=lambda of: " ".join(of.output_shapes)),
    *_MEAN_COLUMNS,
    Column("duration_us_p50", "p50 (us)", decimals=1, detail=1),
    Column("duration_us_p99", "p99 (us)", decimals=1, detail=1),
    *_TOTAL_COLUMNS,
    Column("allocated_bytes", "allocated (bytes)", detail=2, value="allocated_bytes"),
    Column("peak_bytes", "peak (bytes)", detail=2, value="peak_bytes"),
)


class LayersReport(TraceReport[Traced]):
    """One row for each layer of each evaluation, over its full batches, in the order of execution.

    Times are measured under the framework's profiler, which slows layers down: they show where the time goes,
    not how long the model takes. For that, see ``latency`` for evaluations traced no deeper than MODEL_TRACE.
    ``share_percent`` is the layer's share of the time of all layers; the shares add up to 100.
    """

    name = "layers"
    summary = "the time and memory of each layer, under the framework's profiler"
    level = TraceLevel.FRAMEWORK_TRACE
    of_full_batches = True
    takes = TRACED
    columns = (*TRACED_COLUMNS, *_LAYER)

    def rows_of_one(self, evaluation: Evaluation[Traced], chunks: Iterator[SpanChunk]) -> Iterator[Row]:
        found = layers(chunks, evaluation.measurement.full)
        totals = [int(layer.durations_ns.sum()) for layer in found]
        for layer, total_ns in zip(found, totals, strict=True):
            yield {
                **row_of(TRACED_COLUMNS, evaluation),
                **row_of(_LAYER, layer),
                **_layer_figures(layer.durations_ns, total_ns, sum(totals), percents=(50, 99)),
            }


class LayerTreeReport(TraceReport[Traced]):
    """One row for each type of layer and phase of each evaluation, over its full batches, the slowest first.

    ``layers`` counts the layers of a type, ``occurrences`` their executions. Times are measured under the
    framework's profiler; see ``LayersReport``. ``allocated_bytes`` is the sum over the layers of the type.
    """

    name = "layer_tree"
    summary = "layers by their type: how many, their time and its share, their memory"
    level = TraceLevel.FRAMEWORK_TRACE
    of_full_batches = True
    takes = TRACED
    columns = (
        *TRACED_COLUMNS,
        Column("layer_type", "type"),
        _PHASE_COLUMN,
        Column("layers", "layers"),
        *_MEAN_COLUMNS,
        *_TOTAL_COLUMNS,
        Column("allocated_bytes", "allocated (bytes)", detail=2),
    )

    def rows_of_one(self, evaluation: Evaluation[Traced], chunks: Iterator[SpanChunk]) -> Iterator[Row]:
        types: dict[tuple[str, str], list[Layer]] = {}
        for layer in layers(chunks, evaluation.measurement.full):
            types.setdefault((layer.type, layer.phase), []).append(layer)
        totals = {key: sum(int(x.durations_ns.sum()) for x in found) for key, found in types.items()}
        whole_ns = sum(totals.values())
        for key, found in sorted(types.items(), key=lambda item: -totals[item[0]]):
            durations_ns = np.concatenate([layer.durations_ns for layer in found])
            memory = [layer.allocated_bytes for layer in found if layer.allocated_bytes is not None]
            yield {
                **row_of(TRACED_COLUMNS, evaluation),
                "layer_type": key[0],
                "phase": key[1],
                "layers": len(found),
                **_layer_figures(durations_ns, totals[key], whole_ns),
                "allocated_bytes": sum(memory) if memory else None,
            }


@dataclass(slots=True, eq=False)
class _Kernel:
    activity: str
    durations_ns: list[NDArray[np.int64]] = field(default_factory=list)

    @property
    def is_of_host(self) -> bool:
        return self.activity == _RUNTIME_CALL


class KernelsReport(TraceReport[Traced]):
    """One row for each kernel, copy or runtime call on the device in each layer, the slowest first.

    A kernel's time is not part of the time of the layer that launched it: the two run concurrently.
    """

    name = "cuda_launch"
    aliases = ("kernels",)
    summary = "kernels, copies and runtime calls of a GPU, by layer"
    level = TraceLevel.SYSTEM_LIBRARY_TRACE
    of_full_batches = True
    takes = TRACED
    columns = (
        *TRACED_COLUMNS,
        Column("layer_name", "layer"),
        Column("kernel_name", "kernel"),
        Column("activity", "activity"),
        *_MEAN_COLUMNS,
        *_TOTAL_COLUMNS,
    )

    def rows_of_one(self, evaluation: Evaluation[Traced], chunks: Iterator[SpanChunk]) -> Iterator[Row]:
        """Yields a row for each kernel in an evaluation's layers.

        ``share_percent`` is the share of all kernels and copies, or of all runtime calls (on the host).
        """
        found = _kernels(chunks, evaluation.measurement.full)
        totals = {key: sum(int(d.sum()) for d in kernel.durations_ns) for key, kernel in found.items()}
        whole_ns = {
            of_host: sum(totals[key] for key, kernel in found.items() if kernel.is_of_host is of_host)
            for of_host in (True, False)
        }
        for key, kernel in sorted(found.items(), key=lambda item: -totals[item[0]]):
            layer_name, kernel_name = key
            yield {
                **row_of(TRACED_COLUMNS, evaluation),
                "layer_name": layer_name,
                "kernel_name": kernel_name,
                "activity": kernel.activity,
                **_layer_figures(
                    np.concatenate(kernel.durations_ns), totals[key], whole_ns[kernel.is_of_host]
                ),
            }


def _kernels(chunks: Iterator[SpanChunk], batches: NDArray[np.bool_]) -> dict[tuple[str, str], _Kernel]:
    """Returns the spans of SYSTEM_LIBRARY_TRACE by the name of their layer and their own name.

    A layer's span precedes the spans below it, and batches follow one another: the names of a batch's layers
    are dropped with the batch.
    """
    found: dict[tuple[str, str], _Kernel] = {}
    layer_of: dict[int, str] = {}
    current = -1
    for chunk in chunks:
        for row, (position, span_id, parent_id, batch) in enumerate(
            chunk.values("kind", "span_id", "parent_id", "batch")
        ):
            kind = chunk.kinds[position]
            if batch != current:
                current = batch
                layer_of.clear()
            if kind.level is TraceLevel.FRAMEWORK_TRACE:
                layer_of[span_id] = kind.name
            elif kind.level in (TraceLevel.ML_LIBRARY_TRACE, TraceLevel.SYSTEM_LIBRARY_TRACE):
                layer = layer_of[span_id] = layer_of.get(parent_id, "")
                counted = 0 <= batch < len(batches) and batches[batch]
                if counted and kind.level is TraceLevel.SYSTEM_LIBRARY_TRACE:
                    activity = str(kind.attribute("activity") or _RUNTIME_CALL)
                    kernel = found.setdefault((layer, kind.name), _Kernel(activity))
                    kernel.durations_ns.append(chunk.duration_ns[row : row + 1])
    return found


def heaviest(layers: Sequence[Row]) -> Sequence[Row]:
    """Returns the ten rows of the ``layers`` report with the largest shares of time, the largest first."""
    return sorted(layers, key=lambda row: -float(row["share_percent"] or 0))[:_HEAVIEST]


class EventflowReport(TraceReport[Traced]):
    """One row for each span, in the order stored, which is mostly that in which the spans ended."""

    name = "eventflow"
    only_drawn = True
    summary = "every span of the traces"
    level = TraceLevel.APPLICATION_TRACE
    takes = TRACED
    columns = (
        Column("id", "id", is_id=True),
        Column("span_id", "span", detail=1),
        Column("parent_id", "parent", detail=1),
        Column("name", "name"),
        Column("level", "level"),
        Column("start_unix_ns", "start (ns since 1970)", detail=1),
        Column("duration_us", "duration (us)"),
        Column("batch", "batch"),
        Column("thread", "thread", detail=1),
        Column("attributes", "attributes", detail=1),
    )

    def rows_of_one(self, evaluation: Evaluation[Traced], chunks: Iterator[SpanChunk]) -> Iterator[Row]:
        """Yields a row for each span of an evaluation; ``attributes`` is a JSON object."""
        for chunk in chunks:
            attributes = [json.dumps(dict(kind.attributes), ensure_ascii=False) for kind in chunk.kinds]
            for position, span_id, parent_id, start_ns, duration_ns, batch, thread in chunk.values():
                kind = chunk.kinds[position]
                yield {
                    "id": evaluation.id,
                    "span_id": span_id_text(span_id),
                    "parent_id": None if parent_id == NO_PARENT else span_id_text(parent_id),
                    "name": kind.name,
                    "level": kind.level.name,
                    "start_unix_ns": start_ns,
                    "duration_us": duration_ns / NS_PER_US,
                    "batch": None if batch == NO_BATCH else batch,
                    "thread": thread,
                    "attributes": attributes[position],
                }
