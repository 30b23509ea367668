"""Measurements of single operators, for tests of the store, of the reports and of the page."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from inferometer.evaluators.evaluation import Evaluation, M
from inferometer.evaluators.kinds.operators.measurement import (
    Correctness,
    MachinePeak,
    OperatorMeasurement,
    OperatorRow,
    RowStatus,
    Stop,
)
from inferometer.evaluators.kinds.operators.options import Mode, OperatorOptions

PEAK = MachinePeak(100e9, 20e9, 32 * 2**20, 1, "sgemm of 2048 and a triad of 3 x 128 MiB")
RIGHT = Correctness("reference", 2e-7, 5e-8, 1e-5)
ADD = OperatorRow(
    operator="add",
    category="arithmetic",
    preset="normal",
    shapes={"lhs": (1024, 1024), "rhs": (1024, 1024)},
    parameters={},
    form="eager",
    api="torch.add",
    mode=Mode.FORWARD,
    status=RowStatus.MEASURED,
    times_ns=np.array([1_000_000 + 1000 * (7 * number % 101) for number in range(200)], np.int64),
    stop=Stop.TARGET,
    floor_ns=200.0,
    flops=2**20,
    moved_bytes=12 * 2**20,
    peak_memory_bytes=4 * 2**20,
    memory_of="process",
    correctness=RIGHT,
)
CONV = replace(
    ADD,
    operator="conv2d",
    category="convolution",
    shapes={"data": (32, 3, 64, 64), "weight": (64, 3, 3, 3)},
    parameters={"kernel": (3, 3), "bias": False},
    api="torch.nn.functional.conv2d | cached",
    times_ns=np.array([8_000_000, 9_000_000, 10_000_000], np.int64),
    stop=Stop.BUDGET,
    flops=450_000_000,
    moved_bytes=5_000_000,
    peak_memory_bytes=None,
    memory_of="",
)
BACKWARD = replace(
    CONV,
    mode=Mode.BACKWARD,
    times_ns=np.array([20_000_000, 22_000_000, 24_000_000], np.int64),
    flops=900_000_000,
    correctness=Correctness("finite differences", 1e-3, 1e-6, 2e-4),
)
TINY = replace(
    ADD,
    operator="negative",
    category="unary",
    preset="small",
    shapes={"data": (1,)},
    times_ns=np.array([4_000] * 50, np.int64),
    block=10,
    stop=Stop.COUNT,
    flops=1,
    moved_bytes=8,
    peak_memory_bytes=0,
    correctness=Correctness(),
)
NOTHING = np.empty(0, np.int64)
MISSING = replace(
    BACKWARD, operator="argmax", category="sorting", status=RowStatus.MISSING, times_ns=NOTHING, stop=None,
    parameters={"axis": 0}, shapes={"data": (32, 32)}, correctness=Correctness(), flops=None,
    moved_bytes=None, reason="PyTorch has no gradient of it",
)  # fmt: skip
WRONG = replace(
    ADD, operator="power", status=RowStatus.WRONG, times_ns=NOTHING, stop=None, peak_memory_bytes=None,
    correctness=Correctness("reference", 0.5, 0.25, 1e-5),
    reason="the outputs differ from the reference by 0.25, and 1e-05 is allowed",
)  # fmt: skip
FAILED = replace(
    WRONG, operator="modulo", status=RowStatus.FAILED, correctness=Correctness(),
    reason='the process ended by SIGSEGV in "mod" | again',
)  # fmt: skip


def measured(
    evaluation: Evaluation[Any], *rows: OperatorRow, peak: MachinePeak | None = PEAK, **options: Any
) -> Evaluation[OperatorMeasurement]:
    """The evaluation with rows of operators."""
    measurement = OperatorMeasurement(rows, OperatorOptions(**options), peak, 3_000_000_000)
    return replace(evaluation, measurement=measurement)


def slower(row: OperatorRow, factor: float, form: str) -> OperatorRow:
    """The row of another framework, whose form takes so many times as long."""
    return replace(row, times_ns=np.rint(row.times_ns * factor).astype(np.int64), form=form)


def several(evaluation: Evaluation[Any]) -> Evaluation[OperatorMeasurement]:
    """A row of every status and mode, and one in two processes."""
    again = replace(slower(ADD, 1.02, ADD.form), process=2)
    return measured(evaluation, ADD, again, CONV, BACKWARD, TINY, MISSING, WRONG, FAILED, processes=2)


def other(evaluation: Evaluation[Any]) -> Evaluation[OperatorMeasurement]:
    """Two operators in two forms of another framework, on a machine whose peak is not known."""
    rows = [slower(row, factor, form) for form, factor in (("nd", 1.5), ("sym", 0.9)) for row in (ADD, CONV)]
    fused = replace(rows[-1], fused="sg_mkldnn_conv_bn_act_0")
    return measured(evaluation, *rows[:-1], fused, peak=None)


def in_framework(framework: str, evaluation: Evaluation[M]) -> Evaluation[M]:
    """The evaluation, with a framework of another name."""
    manifest = evaluation.system.manifest
    renamed = manifest.framework.model_copy(update={"name": framework})
    system = replace(evaluation.system, manifest=manifest.model_copy(update={"framework": renamed}))
    return replace(evaluation, id=f"{framework}-{evaluation.id}", system=system)


def operators_in(framework: str, evaluation: Evaluation[Any]) -> Evaluation[OperatorMeasurement]:
    """The rows of ``other``, measured in a framework on the machine of an evaluation."""
    return other(in_framework(framework, evaluation))


def one(evaluation: Evaluation[Any]) -> Evaluation[OperatorMeasurement]:
    """One row."""
    return measured(evaluation, ADD)
