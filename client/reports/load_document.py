"""The load part of an evaluation: what it was asked for, as lines and as an object, and its figures."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import asdict, fields
from enum import Enum
from typing import Any

from evaluators.evaluation import Evaluation
from evaluators.loadgen.record import LoadKind, LoadOptions, LoadRecord
from evaluators.loadgen.summary import LoadSummary
from evaluators.reports.base import Report, Row
from evaluators.reports.columns import describe
from evaluators.reports.max_qps import MaxQpsReport
from evaluators.reports.probes import ProbesReport
from evaluators.reports.workload import WorkloadReport

_NS_PER_S = 1_000_000_000


def load_document(evaluation: Evaluation, load: LoadRecord) -> dict[str, Any]:
    """Returns the load part as values that JSON has; what is infinite is none."""
    return {"options": _options(load.options), **_figures(evaluation, load)}


def load_lines(evaluation: Evaluation, load: LoadRecord) -> Iterator[tuple[str, str]]:
    """Yields what was asked for; at the left the name, empty where it is that of the line above."""
    options, dataset = load.options, evaluation.dataset
    prepared = "preprocessed under load" if options.include_preprocess else "preprocessed before"
    yield "inputs", f"{dataset.name}, {dataset.size} of them, {prepared}"
    if options.kind is LoadKind.MAX_QPS:
        bound = f"p{options.percentile:g} <= {options.latency_bound_ms:g} ms"
        yield "load", f"search for the highest rate with {bound}, from {options.rate_qps:g} queries/s"
        yield "", f"{options.arrival}, seed {options.seed}, {_known('budget', options.time_budget_s, 's')}"
        yield (
            "",
            f"{_probes(options)}; each schedule: agent info evaluation max-qps --probes --id={evaluation.id}",
        )
    else:
        [run, *_] = load.runs
        rate = f" at {run.rate_qps:g} queries/s" if run.rate_qps else ""
        seed = f", seed {run.seed}" if run.seed is not None else ""
        yield "load", f"{run.source}{rate}{seed}"
        if run.checksum:
            yield "", f"schedule {run.checksum}"
    yield "", ", ".join(_conditions(options))


def _conditions(options: LoadOptions) -> Iterator[str]:
    yield f"timeout {options.timeout_ms:g} ms"
    if options.kind is LoadKind.WORKLOAD:
        yield _known("bound", options.latency_bound_ms, "ms") or "no bound"
    yield f"batches of up to {options.max_batch_size}"
    if options.max_queue_delay_ms:
        yield f"which wait {options.max_queue_delay_ms:g} ms"
    yield f"{options.warm_up_queries} queries to warm up"


def _probes(options: LoadOptions) -> str:
    return f"probes of {options.min_duration_s:g} s and {options.min_queries} queries at the least"


def _known(name: str, value: float | None, unit: str) -> str:
    return "" if value is None else f"{name} {value:g} {unit}"


def _options(options: LoadOptions) -> dict[str, Any]:
    given = {each.name: getattr(options, each.name) for each in fields(options)}
    return {name: value.value if isinstance(value, Enum) else value for name, value in given.items()}


def _figures(evaluation: Evaluation, load: LoadRecord) -> dict[str, Any]:
    if load.options.kind is LoadKind.MAX_QPS:
        [found] = MaxQpsReport().rows([evaluation])
        rows = ProbesReport().rows([evaluation])
        return {
            "search": _own(MaxQpsReport(), found, evaluation),
            "probes": [_own(ProbesReport(), row, evaluation) for row in rows],
        }
    [run, *_] = load.runs
    [row] = WorkloadReport().rows([evaluation])
    summary = LoadSummary.of(run.queries, load.options.latency_bound_ns, run.cut_ns)
    return {
        "workload": _own(WorkloadReport(), row, evaluation),
        "empty_start_s": run.cut_ns / _NS_PER_S,
        "empty_start_queries": summary.cut_queries,
        "queries_by_batch_size": {str(size): count for size, count in sorted(summary.batch_sizes.items())},
        "failure_reasons": dict(run.reasons),
        "mlperf": asdict(load.mlperf) if load.mlperf else None,
    }


def _own(report: Report, row: Row, evaluation: Evaluation) -> dict[str, Any]:
    """What a report says of an evaluation beside the columns that all reports have."""
    common = describe(evaluation)
    keys = [column.key for column in report.columns if column.key not in common]
    return {key: None if _is_infinite(row[key]) else row[key] for key in keys}


def _is_infinite(value: object) -> bool:
    return isinstance(value, float) and not math.isfinite(value)
