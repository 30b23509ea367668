"""One evaluation as an object: what ``agent info evaluation show ID -f json`` prints."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, fields
from enum import Enum
from typing import Any

from inferometer.evaluators.evaluation import Evaluation, measures
from inferometer.evaluators.load.summary import LoadSummary
from inferometer.evaluators.measurements.batches import BatchMeasurement
from inferometer.evaluators.measurements.ingestion import IngestionMeasurement
from inferometer.evaluators.measurements.load import LoadMeasurement, LoadOptions
from inferometer.evaluators.measurements.operators import OperatorMeasurement
from inferometer.evaluators.measurements.rate_search import RateSearchMeasurement
from inferometer.evaluators.measurements.training import TrainingMeasurement
from inferometer.evaluators.reports.accuracy import AccuracyReport
from inferometer.evaluators.reports.base import (
    CONDITIONS_COLUMN,
    EVALUATION_COLUMNS,
    STABILITY_COLUMN,
    STATUS_COLUMN,
    VERDICT_COLUMN,
    Report,
    Row,
    describe,
)
from inferometer.evaluators.reports.batches import LatencyReport
from inferometer.evaluators.reports.ingestion import IngestionReport
from inferometer.evaluators.reports.layers import LayersReport
from inferometer.evaluators.reports.load import MaxQpsReport, ProbesReport, WorkloadReport
from inferometer.evaluators.reports.operators import OperatorsReport
from inferometer.evaluators.reports.trace_report import TRACED_COLUMNS, SpanSource
from inferometer.evaluators.reports.training import TrainingReport
from inferometer.evaluators.reports.writer import finite

HEAVIEST = 10
_STAGES = ("read", "preprocess", "predict", "postprocess")
_SOFTWARE = ("operating_system", "kernel", "python_version", "inferometer_version", "governor", "build")
_TOLD = ("libraries", "settings", "variables")
_NS_PER_S = 1_000_000_000
_ASIDE = (STATUS_COLUMN, CONDITIONS_COLUMN, STABILITY_COLUMN, VERDICT_COLUMN)
_COMMON = {*EVALUATION_COLUMNS, *_ASIDE}


def heaviest(layers: Sequence[Row]) -> Sequence[Row]:
    """The rows of the ``layers`` report that took longest, the longest first."""
    return sorted(layers, key=lambda row: -float(row["share_percent"] or 0))[:HEAVIEST]


def stage_shares(evaluation: Evaluation[BatchMeasurement]) -> Mapping[str, float]:
    """Where the time of the inputs went, in percent by stage; empty where no time passed."""
    sums = {name: int(getattr(evaluation.measurement.times, f"{name}_ns").sum()) for name in _STAGES}
    whole = sum(sums.values())
    return {name: 100 * spent / whole for name, spent in sums.items()} if whole else {}


def as_document(
    evaluation: Evaluation, timed: Evaluation, group: Sequence[Evaluation], spans: SpanSource
) -> dict[str, Any]:
    """Returns everything that is shown of an evaluation, as values that JSON has.

    Args:
        evaluation: What is shown.
        timed: The evaluation that its latency is taken from: itself, or one of its group without a profiler.
        group: The others of its group.
        spans: Gives its spans.
    """
    figures: dict[str, Any] = {"elapsed_s": evaluation.measurement.elapsed_ns / _NS_PER_S}
    if measures(evaluation, BatchMeasurement) and measures(timed, BatchMeasurement):
        figures = _batches(evaluation, timed, spans)
    elif measures(evaluation, LoadMeasurement):
        figures["load"] = _load_figures(evaluation)
    elif measures(evaluation, RateSearchMeasurement):
        figures["load"] = _search_figures(evaluation)
    elif measures(evaluation, TrainingMeasurement):
        figures["training"] = _training_figures(evaluation)
    elif measures(evaluation, IngestionMeasurement):
        figures["ingestion"] = _ingestion_figures(evaluation)
    elif measures(evaluation, OperatorMeasurement):
        figures |= _operator_figures(evaluation)
    return {
        **describe(evaluation),
        **system_document(evaluation),
        "dataset_name": evaluation.dataset.name,
        "sample_ids": evaluation.dataset.sample_ids,
        **figures,
        "conditions": _conditions(evaluation),
        "trace": _trace(evaluation),
        "group_id": evaluation.group_id,
        "group": [{"id": each.id, "trace_level": each.trace_level.name} for each in group],
    }


def _batches(
    evaluation: Evaluation[BatchMeasurement], timed: Evaluation[BatchMeasurement], spans: SpanSource
) -> dict[str, Any]:
    """The figures of an evaluation batch by batch."""
    measurement = evaluation.measurement
    [latency], [accuracy] = LatencyReport().rows([timed]), AccuracyReport().rows([evaluation])
    layers = list(LayersReport().rows_of([evaluation], spans))
    traced = {column.key for column in TRACED_COLUMNS}
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
            **_own(LatencyReport(), latency, "trace_level"),
            "stage_share_percent": stage_shares(timed),
        },
        "accuracy": _own(AccuracyReport(), accuracy, "dataset_name"),
        "layers": len(layers),
        "heaviest_layers": [
            {key: value for key, value in row.items() if key not in traced} for row in heaviest(layers)
        ],
    }


def _own(report: Report[Any], row: Row, *left_out: str) -> dict[str, Any]:
    """What a report's row says beside the columns that all reports have; what is infinite is None."""
    keys = [c.key for c in report.columns if c not in _COMMON and c.key not in left_out]
    return {key: finite(row[key]) for key in keys}


def system_document(evaluation: Evaluation) -> dict[str, Any]:
    """Returns the model's files, the device, the machine and its software."""
    system, machine = evaluation.system, evaluation.system.environment
    return {
        "seed": system.seed,
        "cudnn_benchmark": system.cudnn_benchmark,
        "checksums": dict(system.checksums),
        "device": str(system.device),
        "preprocess_threads": system.preprocess_threads,
        "agent": system.agent,
        "cpu_model": machine.cpu_model,
        "usable_cores": machine.usable_cores if machine.is_known else None,
        "memory_bytes": machine.memory_bytes if machine.is_known else None,
        "gpus": [{"name": gpu.name, "memory_bytes": gpu.memory_bytes} for gpu in machine.gpus],
        **{name: getattr(machine, name) for name in _SOFTWARE},
        **{name: dict(getattr(machine, name)) for name in _TOLD},
    }


def _conditions(evaluation: Evaluation) -> dict[str, Any] | None:
    """The verdict in one word and in one line, and what was observed."""
    found = evaluation.conditions
    return (
        None if found is None else {**asdict(found), "stability": found.stability.value, "text": str(found)}
    )


def _trace(evaluation: Evaluation) -> dict[str, Any] | None:
    trace = evaluation.trace
    if trace is None:
        return None
    return {
        "trace_id": trace.trace_id,
        "spans": trace.span_count,
        "dropped": trace.dropped,
        "url": trace.url,
        "notes": list(trace.notes),
    }


def _options(kind: str, options: LoadOptions) -> dict[str, Any]:
    given = {each.name: getattr(options, each.name) for each in fields(options)}
    return {"kind": kind} | {n: v.value if isinstance(v, Enum) else v for n, v in given.items()}


def _ingestion_figures(evaluation: Evaluation[IngestionMeasurement]) -> dict[str, Any]:
    [row], measured = IngestionReport().rows([evaluation]), evaluation.measurement
    return {
        "num_warmup_batches": measured.num_warmup_batches,
        "data": asdict(measured.data),
        **_own(IngestionReport(), row, "dataset_name"),
        "failures": [asdict(failure) | {"stage": failure.stage.value} for failure in measured.failures],
    }


def _operator_figures(evaluation: Evaluation[OperatorMeasurement]) -> dict[str, Any]:
    measured, report = evaluation.measurement, OperatorsReport()
    return {
        "options": asdict(measured.options),
        "peak": None if measured.peak is None else asdict(measured.peak),
        "operators": [_own(report, row) for row in report.rows([evaluation])],
    }


def _training_figures(evaluation: Evaluation[TrainingMeasurement]) -> dict[str, Any]:
    [row], measured = TrainingReport().rows([evaluation]), evaluation.measurement
    return {
        "options": asdict(measured.options),
        "data": asdict(measured.data),
        **_own(TrainingReport(), row, "dataset_name"),
        "validation": measured.validation or None,
        "failures": [asdict(failure) | {"stage": failure.stage.value} for failure in measured.failures],
    }


def _search_figures(evaluation: Evaluation[RateSearchMeasurement]) -> dict[str, Any]:
    [found] = MaxQpsReport().rows([evaluation])
    return {
        "options": _options("max_qps", evaluation.measurement.options),
        "search": _own(MaxQpsReport(), found),
        "probes": [_own(ProbesReport(), row) for row in ProbesReport().rows([evaluation])],
    }


def _load_figures(evaluation: Evaluation[LoadMeasurement]) -> dict[str, Any]:
    load, run = evaluation.measurement, evaluation.measurement.run
    [row] = WorkloadReport().rows([evaluation])
    summary = LoadSummary.of(run.queries, load.options.latency_bound_ns, run.cut_ns)
    return {
        "options": _options("workload", load.options),
        "workload": _own(WorkloadReport(), row),
        "empty_start_s": run.cut_ns / _NS_PER_S,
        "empty_start_queries": summary.cut_queries,
        "queries_by_batch_size": {str(size): count for size, count in sorted(summary.batch_sizes.items())},
        "failure_reasons": dict(run.reasons),
        "mlperf": asdict(load.mlperf) if load.mlperf else None,
    }
