# Generated; do not edit. To regenerate it, run: make stubs
"""The benchmark of a custom operator of MXNet."""

from inferometer.client.api.operators.benchmark import MXNetBenchmark, RunAll

__all__ = [
    "CustomOpElementwiseAdd",
    "run_customop_operations_benchmarks",
]

class CustomOpElementwiseAdd(MXNetBenchmark):
    """data + 1 by a custom operator, which mainly shows the cost of calling one."""

run_customop_operations_benchmarks: RunAll
