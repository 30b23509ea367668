"""The kind of measurement that evaluates a model over a dataset, batch by batch."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from inferometer.agent.tracing.recorder import TraceLevel
from inferometer.evaluators.drawing.charts import Drawing
from inferometer.evaluators.drawing.traces import EventflowPlot, KernelsPlot, LayersPlot, LayerTreePlot
from inferometer.evaluators.evaluation import Evaluation, SpanSource, measures
from inferometer.evaluators.jobs.options import options_of, words
from inferometer.evaluators.jobs.request import BatchSystemOptions
from inferometer.evaluators.kinds.batches.documents import BatchDocuments
from inferometer.evaluators.kinds.batches.measurement import BatchMeasurement, InputPrediction, LatencySummary
from inferometer.evaluators.kinds.batches.plot import (
    AccuracyPlot,
    ClassesPlot,
    DurationPlot,
    LatencyPlot,
    compared_times,
)
from inferometer.evaluators.kinds.batches.report import (
    AccuracyReport,
    ClassesReport,
    DurationReport,
    LatencyReport,
    accuracy_rows,
    score_values,
    summary_rows,
)
from inferometer.evaluators.kinds.batches.request import LENGTH, BatchOptions, EvaluationRequest, UrlsOptions
from inferometer.evaluators.kinds.kind import (
    Again,
    Kind,
    Rows,
    dataset_words,
    drawn,
    own_values,
    system_words,
    timed_by,
    top_figures,
)
from inferometer.evaluators.kinds.reports import (
    TRACED_COLUMNS,
    EventflowReport,
    KernelsReport,
    LayersReport,
    LayerTreeReport,
    heaviest,
)
from inferometer.evaluators.reports.base import Row
from inferometer.evaluators.statistics import batches_for_interval, values_for_percentile
from inferometer.evaluators.tasks.metric import Accuracy, TaskResult
from inferometer.evaluators.verdict import FIGURES, TOP1, RunTimes
from inferometer.manifests.errors import ConfigurationError

_STAGES = ("read", "preprocess", "predict", "postprocess")
_NS_PER_MS = 1_000_000
_NS_PER_S = 1_000_000_000


class BatchesKind(BatchDocuments, Kind[BatchMeasurement]):
    """The evaluation of a model over a dataset."""

    name = "batches"
    title = "batches"
    phrase = "an evaluation batch by batch"
    counted = "inputs"
    collections = ("performance", "model_accuracy", "input_failure", "input_prediction", "task_result")
    on_demand = ("input_prediction",)
    reports = {LatencyReport: LatencyPlot, AccuracyReport: AccuracyPlot}
    further_reports = {
        ClassesReport: ClassesPlot,
        DurationReport: DurationPlot,
        LayersReport: LayersPlot,
        LayerTreeReport: LayerTreePlot,
        KernelsReport: KernelsPlot,
        EventflowReport: EventflowPlot,
    }
    comparable = True
    headlines = ("latency_ms_p50", "latency_ms_p90", "latency_ms_p99", "throughput_inputs_per_s")

    has_predictions = True

    def measured(self, measurement: BatchMeasurement) -> str:
        return f"{measurement.predicted_inputs} inputs in {len(measurement.times.sizes)} batches"

    def with_predictions(
        self, measurement: BatchMeasurement, predictions: Sequence[InputPrediction]
    ) -> BatchMeasurement:
        return replace(measurement, predictions=tuple(predictions))

    def overview(self, measurement: BatchMeasurement) -> Row:
        summary, accuracy = LatencySummary.of(measurement, intervals=False), measurement.accuracy
        share = accuracy.top1_share if accuracy else None
        scores = score_values(measurement.task_result)
        return top_figures(summary.p50_ns, summary.throughput_inputs_per_s, top1_accuracy=share, **scores)

    def summary(self, evaluation: Evaluation[BatchMeasurement]) -> Rows:
        return summary_rows(evaluation)

    def description(self, evaluation: Evaluation[BatchMeasurement]) -> Rows:
        measurement, dataset = evaluation.measurement, evaluation.dataset
        options = measurement.options
        yield "dataset", f"{dataset.name}, {measurement.predicted_inputs} inputs predicted"
        if dataset.chosen_samples is not None:
            yield "samples", dataset.chosen_samples
        warm_up = f"{options.warmup_num_file_parts} parts to warm up"
        yield "batches", f"{len(measurement.times.sizes)} of up to {options.batch_size} inputs, {warm_up}"

    def details(
        self, evaluation: Evaluation[BatchMeasurement], group: Sequence[Evaluation[BatchMeasurement]]
    ) -> Rows:
        """Returns the figures, with times from an evaluation that no profiler slowed down if possible."""
        timed = timed_by(evaluation, group)
        trimmed_mean_ns = LatencySummary.of(timed.measurement).trimmed_mean_ns
        for name, text in summary_rows(timed):
            if name == "throughput" and trimmed_mean_ns is not None:
                yield "", f"trimmed mean {trimmed_mean_ns / _NS_PER_MS:.3f} ms per batch"
            if name in {"latency", "throughput"} or not name:
                yield name, text
        shares = ", ".join(f"{name} {share:.1f} %" for name, share in _stage_shares(timed).items())
        yield (
            "stages",
            f"{shares} of the time spent on inputs, by all threads together" if shares else "not known",
        )
        if timed is not evaluation:
            yield "", f"of {timed.id} ({timed.trace_level.name}): no profiler slowed it down"
        yield from accuracy_rows(evaluation)
        yield "failures", str(len(evaluation.measurement.failures))

    def document(
        self, evaluation: Evaluation[BatchMeasurement], timed: Evaluation[BatchMeasurement], spans: SpanSource
    ) -> dict[str, Any]:
        measurement = evaluation.measurement
        [latency], [accuracy] = LatencyReport().rows([timed]), AccuracyReport().rows([evaluation])
        more = measurement.options.further
        layers = list(LayersReport().rows_of([evaluation], spans))
        of_layers = [column.key for column in LayersReport.columns if column not in TRACED_COLUMNS]
        return {
            "predicted_inputs": measurement.predicted_inputs,
            "batches": len(measurement.times.sizes),
            "warmup_num_file_parts": measurement.options.warmup_num_file_parts,
            "trace_level": evaluation.trace_level.name,
            "elapsed_s": measurement.elapsed_ns / _NS_PER_S,
            "timing": {
                "evaluation_id": timed.id,
                "trace_level": timed.trace_level.name,
                "under_profiler": timed.profiled,
                **own_values(LatencyReport(), latency, "trace_level"),
                "stage_share_percent": _stage_shares(timed),
            },
            "accuracy": own_values(AccuracyReport(), accuracy, "dataset_name"),
            "layers": len(layers),
            "heaviest_layers": [{key: row[key] for key in of_layers} for row in heaviest(layers)],
            **({"options": more} if more else {}),
        }

    def facts(
        self, evaluation: Evaluation[BatchMeasurement], timed: Evaluation[BatchMeasurement]
    ) -> Iterator[tuple[str, Any]]:
        yield "inputs predicted", evaluation.measurement.predicted_inputs
        yield "batches", len(evaluation.measurement.times.sizes)
        shares = (f"{name} {share:.1f}\u00a0%" for name, share in _stage_shares(timed).items())
        yield "time of inputs", ", ".join(shares)

    def hints(self, timed: Evaluation[BatchMeasurement]) -> Iterator[str]:
        full_ns = timed.measurement.full_ns
        batches, for_intervals = len(full_ns), batches_for_interval(full_ns)
        needed = {percent: values_for_percentile(percent) for percent in (50, 90, 99)}
        missing = [f"p{percent} needs {count:,}" for percent, count in needed.items() if count > batches]
        if 0 < batches < for_intervals:
            missing.append(f"the intervals need {for_intervals:,}")
        if missing:
            yield f"Full batches: {batches:,}; {', '.join(missing)}."

    def drawings(self, evaluation: Evaluation[BatchMeasurement], most_points: int) -> Iterator[Drawing]:
        yield from drawn(DurationPlot(most_points), DurationReport(), evaluation)
        # the notes of scores are about their bars, which the page has as a table
        for drawing in drawn(AccuracyPlot(), AccuracyReport(), evaluation):
            yield replace(drawing, notes=())

    def compared_drawing(
        self, one: Evaluation[BatchMeasurement], other: Evaluation[BatchMeasurement], most_points: int
    ) -> Drawing | None:
        chart = compared_times(one, other, most_points)
        return Drawing("Predict time of each full batch", (chart,), groups=("A", "B")) if chart else None

    def again(self, evaluation: Evaluation[BatchMeasurement]) -> Again:
        urls = evaluation.dataset.is_of_urls
        command = ("predict", "urls" if urls else "dataset")
        return Again((*command, *system_words(evaluation), *_words(evaluation, urls=urls)))

    def conditions(self, evaluation: Evaluation[BatchMeasurement]) -> Mapping[str, str]:
        measurement, system = evaluation.measurement, evaluation.system
        inputs = measurement.predicted_inputs + len(measurement.failures)
        if measurement.options.repeats:  # how often differs from run to run
            inputs = measurement.options.inputs_of(evaluation.dataset.size)
        return {
            "batch size": str(measurement.batch_size),
            "inputs": str(inputs),
            "trace level": evaluation.trace_level.name,
            "preprocessing": f"{system.preprocess_threads} threads"
            + (" while the model predicts" if system.overlap else ""),
            **{name.replace("_", " "): str(value) for name, value in measurement.options.further.items()},
        }

    def run_times(self, evaluation: Evaluation[BatchMeasurement]) -> RunTimes:
        measurement = evaluation.measurement
        sizes, batch_size, full_ns = measurement.times.sizes, measurement.batch_size, measurement.full_ns
        if not len(full_ns):
            raise ValueError(
                f"batch that held {batch_size} inputs, and so no latency; "
                "evaluate with a smaller --batch_size"
            )
        return RunTimes.of_batches(full_ns, sizes[sizes == batch_size])

    def figures(self, *_: Sequence[BatchMeasurement]) -> tuple[str, ...]:
        return (*FIGURES, TOP1)

    def accuracy(self, measurement: BatchMeasurement) -> Accuracy | None:
        return measurement.accuracy

    def result(self, measurement: BatchMeasurement) -> TaskResult | None:
        return measurement.task_result

    def batch_times(self, measurement: BatchMeasurement) -> tuple[NDArray[np.int64], int]:
        full = measurement.times.sizes == measurement.batch_size
        kept = full if full.any() else np.ones_like(full)
        return measurement.times.predict_ns[kept], int(measurement.times.sizes[kept].sum())


def inference_of(evaluation: Evaluation) -> Evaluation[BatchMeasurement]:
    """Returns the evaluation if it measured batches.

    Raises:
        ConfigurationError: It is of another kind.
    """
    if not measures(evaluation, BatchMeasurement):
        raise ConfigurationError(
            f"evaluation {evaluation.id} is not an inference over a dataset; give one that is, with "
            "--trace_level=FRAMEWORK_TRACE"
        )
    return evaluation


def _stage_shares(evaluation: Evaluation[BatchMeasurement]) -> Mapping[str, float]:
    """Returns each stage's share of the total time, in percent; empty if no time passed."""
    sums = {name: int(getattr(evaluation.measurement.times, f"{name}_ns").sum()) for name in _STAGES}
    whole = sum(sums.values())
    return {name: 100 * spent / whole for name, spent in sums.items()} if whole else {}


def _words(evaluation: Evaluation[BatchMeasurement], *, urls: bool) -> Iterator[str]:
    options, system, level = evaluation.measurement.options, evaluation.system, evaluation.trace_level
    if urls:
        yield f"--urls_file_path={evaluation.dataset.name}"
    else:
        yield from dataset_words(evaluation)
    requests = (BatchSystemOptions, EvaluationRequest, BatchOptions, *((UrlsOptions,) if urls else ()))
    asked = {
        "seed": system.seed,
        **dict.fromkeys(("batch_size", "partition_list_size")),
        "preprocess_threads": system.preprocess_threads,
        "overlap": None if system.overlap == system.device.is_gpu else system.overlap,
        **dict.fromkeys(("num_file_parts", *LENGTH)),
        **{each.name: getattr(options, each.name) for each in options_of(BatchOptions)},
        "trace_level": None if level is TraceLevel.APPLICATION_TRACE else level,
    }
    if options.partition_list_size == options.batch_size:
        asked["partition_list_size"] = None
    if options.num_file_parts < 0 and options.repeats:
        asked["num_file_parts"] = None
    yield from words(asked, *requests)
