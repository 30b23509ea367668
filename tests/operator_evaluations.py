"""Measurements of operators, for tests of the store, comparisons and reports."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from inferometer.evaluators.evaluation import Evaluation
from inferometer.evaluators.kinds.operators.measurement import (
    Correctness,
    MachinePeak,
    OperatorMeasurement,
    OperatorRow,
    RowStatus,
)
from inferometer.evaluators.kinds.operators.options import Cache, Mode, OperatorOptions
from tests.operator_rows import PEAK, noisy, row


def of_rows(
    evaluation: Evaluation[Any], *rows: OperatorRow, peak: MachinePeak | None = PEAK, **options: Any
) -> Evaluation[OperatorMeasurement]:
    """The evaluation with rows of operators."""
    measurement = OperatorMeasurement(rows, OperatorOptions(**options), peak, elapsed_ns=4_000_000_000)
    return replace(evaluation, measurement=measurement)


def several(evaluation: Evaluation[Any]) -> Evaluation[OperatorMeasurement]:
    """Rows of each status, of two processes."""
    right = Correctness("reference, on smaller inputs", 1e-7, 2e-8, 1e-5)
    wrong = Correctness("finite differences", 0.5, 0.25, 1e-4)
    convolution = {
        "operator": "conv2d",
        "category": "convolution",
        "shapes": {"data": (32, 3, 224, 224), "weight": (64, 3, 7, 7)},
        "parameters": {"stride": (2, 2), "groups": 1, "bias": False, "mode": "é $x.y", "rate": 0.5},
        "flops": None,
        "moved_bytes": None,
    }
    return of_rows(
        evaluation,
        row(noisy(1e6, seed=1), correctness=right, peak_memory_bytes=12 << 20, memory_of="process"),
        row(noisy(1e6, seed=2), correctness=right, process=2, block=20),
        row(noisy(3e7, seed=3, count=30), **convolution, mode=Mode.BOTH, fused="conv+relu"),
        row(status=RowStatus.WRONG, reason="not the reference", correctness=wrong, mode=Mode.BACKWARD),
        row(operator="sub", reason="its process was ended by SIGSEGV"),
        row(operator="mul", status=RowStatus.MISSING, reason="MXNet has no such operator", form=""),
        cache=Cache.COLD,
        processes=2,
        target_percent=None,
    )


def none(evaluation: Evaluation[Any]) -> Evaluation[OperatorMeasurement]:
    """No rows, on a machine whose peak is not known."""
    return of_rows(evaluation, peak=None)
