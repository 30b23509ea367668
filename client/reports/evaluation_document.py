"""One evaluation as an object: what ``agent info evaluation show ID -f json`` prints."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from inferometer.evaluators.evaluation import Evaluation
from inferometer.evaluators.kinds.registry import kind_of
from inferometer.evaluators.reports.base import (
    CONDITIONS_COLUMN,
    EVALUATION_COLUMNS,
    STABILITY_COLUMN,
    STATUS_COLUMN,
    VERDICT_COLUMN,
    describe,
)
from inferometer.evaluators.reports.trace_report import SpanSource

HEAVIEST = 10
_STAGES = ("read", "preprocess", "predict", "postprocess")
_SOFTWARE = ("operating_system", "kernel", "python_version", "inferometer_version", "governor", "build")
_TOLD = ("libraries", "settings", "variables")
_NS_PER_S = 1_000_000_000
_ASIDE = (STATUS_COLUMN, CONDITIONS_COLUMN, STABILITY_COLUMN, VERDICT_COLUMN)
_COMMON = {*EVALUATION_COLUMNS, *_ASIDE}


def as_document(
    evaluation: Evaluation, timed: Evaluation, group: Sequence[Evaluation], spans: SpanSource
) -> dict[str, Any]:
    """Returns everything that is shown of an evaluation, as JSON values.

    Args:
        evaluation: What is shown.
        timed: The evaluation that its latency is taken from: itself, or one of its group without a profiler.
        group: The others of its group.
        spans: Gives its spans.
    """
    own = kind_of(evaluation).document(evaluation, timed, spans)
    elapsed_s = evaluation.measurement.elapsed_ns / _NS_PER_S
    figures = own if "elapsed_s" in own else {"elapsed_s": elapsed_s, **own}
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
    """Returns the verdict as one word and as one line, and the observations."""
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
