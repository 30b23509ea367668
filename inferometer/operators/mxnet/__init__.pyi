# Generated; do not edit. To regenerate it, run: make stubs
"""Benchmarks of the operators of MXNet."""

from inferometer.client.api.operators.benchmark import RunAll
from inferometer.operators.mxnet import custom, gluon, nd

__all__ = [
    "custom",
    "gluon",
    "nd",
    "run_all_mxnet_operator_benchmarks",
]

run_all_mxnet_operator_benchmarks: RunAll
