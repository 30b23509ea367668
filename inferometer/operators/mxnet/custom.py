"""The benchmark of a custom operator of MXNet."""

from __future__ import annotations

from inferometer.client.library.operators.groups import run_all
from inferometer.client.library.operators.networks import (
    CUSTOM,
    CustomOpElementwiseAdd,
)

__all__ = [
    "CustomOpElementwiseAdd",
    "run_customop_operations_benchmarks",
]

run_customop_operations_benchmarks = run_all(CUSTOM)
