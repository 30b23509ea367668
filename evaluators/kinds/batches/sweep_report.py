"""The table of a sweep: one row for each of its evaluations, and for each that failed."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from inferometer.evaluators.evaluation import Evaluation
from inferometer.evaluators.kinds.batches.accuracy_report import score_values
from inferometer.evaluators.kinds.batches.measurement import BatchMeasurement
from inferometer.evaluators.kinds.batches.report import LatencyReport
from inferometer.evaluators.kinds.batches.sweep import SweepCell
from inferometer.evaluators.reports.base import (
    EVALUATION_COLUMNS,
    SCORE_COLUMNS,
    STABILITY_COLUMN,
    STATUS_COLUMN,
    Column,
    Row,
    Value,
    describe_names,
)

_SHOWN = ("model_name", "framework_name", "framework_version", "weights", "threads", "precision")
COLUMNS = (
    *(column for column in EVALUATION_COLUMNS if column.key in _SHOWN),
    Column("device", "device", detail=True),
    Column("batch_size", "batch size"),
    Column("latency_ms_p50", "p50 (ms)"),
    Column("latency_ms_p50_low", "low"),
    Column("latency_ms_p50_high", "high"),
    Column("throughput_inputs_per_s", "inputs/s", decimals=1),
    STABILITY_COLUMN,
    Column("top1_accuracy", "top-1", decimals=4, detail=True),
    Column("measured_batches", "batches", detail=True),
    STATUS_COLUMN,
    Column("id", "id", is_id=True),
    Column("failure", "failure"),
    *SCORE_COLUMNS,
)
"""p50 is that of a full batch, with its 95 % interval; ``failure`` is why an evaluation failed."""
_KEYS = {column.key for column in COLUMNS}


def rows_of(cells: Sequence[SweepCell]) -> Iterator[Row]:
    """Yields a row of ``COLUMNS`` for each cell."""
    nothing: Row = dict.fromkeys(column.key for column in COLUMNS)
    for cell in cells:
        yield {**nothing, **(_asked(cell) if cell.evaluation is None else _measured(cell.evaluation))}


def _asked(cell: SweepCell) -> dict[str, Value]:
    system, session = cell.request.system, cell.request.system.session
    return {
        "model_name": system.model_name,
        "framework_name": system.framework_name,
        "weights": session.weights.value,
        "threads": session.threads,
        "precision": session.precision.value if session.precision else None,
        "device": str(session.device),
        "batch_size": cell.request.options.batch_size,
        "failure": str(cell.error),
    }


def _measured(evaluation: Evaluation[BatchMeasurement]) -> dict[str, Value]:
    accuracy = evaluation.measurement.accuracy
    [latency] = LatencyReport().rows([evaluation])
    return {
        **{key: value for key, value in latency.items() if key in _KEYS},
        "device": str(evaluation.system.device),
        "stability": describe_names(evaluation)["stability"],
        "top1_accuracy": accuracy.top1_share if accuracy else None,
        **score_values(evaluation.measurement.task_result),
    }
