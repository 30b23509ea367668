"""One evaluation as an object: what ``agent info evaluation show ID -f json`` prints."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from client.reports.load_document import load_document
from evaluators.evaluation import Evaluation
from evaluators.reports.accuracy import AccuracyReport
from evaluators.reports.base import Report, Row
from evaluators.reports.columns import describe
from evaluators.reports.latency import LatencyReport
from evaluators.reports.layers import LayersReport
from evaluators.reports.trace_report import TRACED_COLUMNS, SpanSource

HEAVIEST = 10
_STAGES = ("read", "preprocess", "predict", "postprocess")
_NS_PER_S = 1_000_000_000


def heaviest(layers: Sequence[Row]) -> Sequence[Row]:
    """The rows of the ``layers`` report that took longest, the longest first."""
    return sorted(layers, key=lambda row: -float(row["share_percent"] or 0))[:HEAVIEST]


def stage_shares(evaluation: Evaluation) -> Mapping[str, float]:
    """Where the time of the inputs went, in percent by stage; empty where no time passed."""
    sums = {name: int(getattr(evaluation.batches, f"{name}_ns").sum()) for name in _STAGES}
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
    figures = _batches(evaluation, timed, spans) if evaluation.load is None else _load(evaluation)
    return {
        **describe(evaluation),
        **_system(evaluation),
        "dataset_name": evaluation.dataset.name,
        **figures,
        "trace": _trace(evaluation),
        "group_id": evaluation.group_id,
        "group": [{"id": each.id, "trace_level": each.options.trace_level.name} for each in group],
    }


def _batches(evaluation: Evaluation, timed: Evaluation, spans: SpanSource) -> dict[str, Any]:
    """What there is of an evaluation batch by batch."""
    layers = list(LayersReport().rows_of([evaluation], spans))
    traced = {column.key for column in TRACED_COLUMNS}
    return {
        "predicted_inputs": int(evaluation.batches.sizes.sum()),
        "batches": len(evaluation.batches.sizes),
        "warmup_num_file_parts": evaluation.options.warmup_num_file_parts,
        "trace_level": evaluation.options.trace_level.name,
        "elapsed_s": evaluation.elapsed_ns / _NS_PER_S,
        "timing": {
            "evaluation_id": timed.id,
            "trace_level": timed.options.trace_level.name,
            "under_profiler": timed.profiled,
            **_own(LatencyReport(), timed, "trace_level"),
            "stage_share_percent": stage_shares(timed),
        },
        "accuracy": _own(AccuracyReport(), evaluation, "dataset_name"),
        "layers": len(layers),
        "heaviest_layers": [
            {key: value for key, value in row.items() if key not in traced} for row in heaviest(layers)
        ],
    }


def _load(evaluation: Evaluation) -> dict[str, Any]:
    """What there is of an evaluation under load."""
    load = evaluation.load
    return {
        "elapsed_s": evaluation.elapsed_ns / _NS_PER_S,
        "load": load_document(evaluation, load) if load else None,
    }


def _own(report: Report, evaluation: Evaluation, *left_out: str) -> dict[str, Any]:
    """What a report says of an evaluation beside the columns that all reports have."""
    [row] = report.rows([evaluation])
    common = {*describe(evaluation), *left_out}
    return {column.key: row[column.key] for column in report.columns if column.key not in common}


def _system(evaluation: Evaluation) -> dict[str, Any]:
    system, machine = evaluation.system, evaluation.system.environment
    return {
        "seed": system.seed,
        "checksums": dict(system.checksums),
        "device": str(system.device),
        "threads": system.threads,
        "preprocess_threads": system.preprocess_threads,
        "agent": system.agent,
        "cpu_model": machine.cpu_model,
        "usable_cores": machine.usable_cores if machine.is_known else None,
        "memory_bytes": machine.memory_bytes if machine.is_known else None,
        "gpus": [{"name": gpu.name, "memory_bytes": gpu.memory_bytes} for gpu in machine.gpus],
        "operating_system": machine.operating_system,
        "python_version": machine.python_version,
        "inferscope_version": machine.inferscope_version,
    }


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
