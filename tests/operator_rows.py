"""Rows of operators with known times, for tests of figures, the store, comparisons and reports."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from inferometer.evaluators.kinds.operators.measurement import MachinePeak, OperatorRow, RowStatus, Stop
from inferometer.evaluators.kinds.operators.options import Mode

PEAK = MachinePeak(100e9, 10e9, 32 << 20, 2, "sgemm of 2048, triad of 128 MiB")


def row(times_ns: Sequence[int] = (), operator: str = "add", **given: Any) -> OperatorRow:
    """A measured row of ``operator`` on 1024 × 1024 elements; without times a failed one."""
    return OperatorRow(
        **{
            "operator": operator,
            "category": "arithmetic",
            "preset": "normal",
            "shapes": {"lhs": (1024, 1024), "rhs": (1024, 1024)},
            "parameters": {},
            "form": "eager",
            "api": f"torch.{operator}",
            "mode": Mode.FORWARD,
            "status": RowStatus.MEASURED if len(times_ns) else RowStatus.FAILED,
            "reason": "" if len(times_ns) else "out of memory",
            "times_ns": np.array(times_ns, np.int64),
            "stop": Stop.TARGET if len(times_ns) else None,
            "floor_ns": 150.0,
            "flops": 1024 * 1024,
            "moved_bytes": 3 * 4 * 1024 * 1024,
            **given,
        }
    )


def noisy(mean_ns: float, seed: int, count: int = 200, spread: float = 0.02) -> Sequence[int]:
    """Independent normal times."""
    values = np.random.RandomState(seed).standard_normal(count)
    times: list[int] = np.rint(mean_ns * (1 + spread * values)).astype(int).tolist()
    return times
