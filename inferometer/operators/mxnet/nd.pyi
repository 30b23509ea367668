# Generated; do not edit. To regenerate it, run: make stubs
"""Benchmarks of operators of ``mxnet.nd``."""

from inferometer.client.api.operators.benchmark import MXNetBenchmark, RunAll

__all__ = [
    "Add",
    "Arange",
    "ArgMax",
    "ArgMin",
    "ArgSort",
    "BatchDot",
    "Divide",
    "Dot",
    "Equal",
    "Exp",
    "Full",
    "Greater",
    "GreaterEqual",
    "IAdd",
    "IDiv",
    "IMod",
    "IMul",
    "ISub",
    "Lesser",
    "LesserEqual",
    "Log",
    "LogicalAnd",
    "LogicalNot",
    "LogicalOr",
    "LogicalXor",
    "Modulo",
    "Multiply",
    "Negative",
    "NotEqual",
    "Ones",
    "OnesLike",
    "Power",
    "Sort",
    "Sqrt",
    "Square",
    "Subtract",
    "TopK",
    "Zeros",
    "ZerosLike",
    "run_all_arithmetic_operations_benchmarks",
    "run_all_comparison_operations_benchmarks",
    "run_all_exponential_and_log_operations_benchmarks",
    "run_all_gemm_operations_benchmarks",
    "run_all_logical_comparison_operations_benchmarks",
    "run_all_powers_operations_benchmarks",
    "run_all_sort_and_search_operations_benchmarks",
    "run_all_tensor_creation_operations_benchmarks",
]

class Add(MXNetBenchmark):
    """lhs + rhs."""

class Arange(MXNetBenchmark):
    """The numbers from start to stop, each repeated."""

class ArgMax(MXNetBenchmark):
    """The index of the largest value of each row."""

class ArgMin(MXNetBenchmark):
    """The index of the smallest value of each row."""

class ArgSort(MXNetBenchmark):
    """The indices that sort each row."""

class BatchDot(MXNetBenchmark):
    """The products of matrices in two batches."""

class Divide(MXNetBenchmark):
    """lhs / rhs."""

class Dot(MXNetBenchmark):
    """The product of two matrices."""

class Equal(MXNetBenchmark):
    """lhs == rhs."""

class Exp(MXNetBenchmark):
    """The exponential of data."""

class Full(MXNetBenchmark):
    """A new tensor filled with val."""

class Greater(MXNetBenchmark):
    """lhs > rhs."""

class GreaterEqual(MXNetBenchmark):
    """lhs >= rhs."""

class IAdd(MXNetBenchmark):
    """this += other."""

class IDiv(MXNetBenchmark):
    """this /= other."""

class IMod(MXNetBenchmark):
    """this %= other."""

class IMul(MXNetBenchmark):
    """this *= other."""

class ISub(MXNetBenchmark):
    """this -= other."""

class Lesser(MXNetBenchmark):
    """lhs < rhs."""

class LesserEqual(MXNetBenchmark):
    """lhs <= rhs."""

class Log(MXNetBenchmark):
    """The natural logarithm of data."""

class LogicalAnd(MXNetBenchmark):
    """lhs and rhs."""

class LogicalNot(MXNetBenchmark):
    """not data."""

class LogicalOr(MXNetBenchmark):
    """lhs or rhs."""

class LogicalXor(MXNetBenchmark):
    """Either lhs or rhs."""

class Modulo(MXNetBenchmark):
    """The remainder of lhs / rhs."""

class Multiply(MXNetBenchmark):
    """lhs * rhs."""

class Negative(MXNetBenchmark):
    """-data."""

class NotEqual(MXNetBenchmark):
    """lhs != rhs."""

class Ones(MXNetBenchmark):
    """A new tensor of ones."""

class OnesLike(MXNetBenchmark):
    """A new tensor of ones, of the shape of data."""

class Power(MXNetBenchmark):
    """base to the power of exp."""

class Sort(MXNetBenchmark):
    """The sorted values of each row."""

class Sqrt(MXNetBenchmark):
    """The square root of data."""

class Square(MXNetBenchmark):
    """The square of data."""

class Subtract(MXNetBenchmark):
    """lhs - rhs."""

class TopK(MXNetBenchmark):
    """The k largest values of each row, and their indices."""

class Zeros(MXNetBenchmark):
    """A new tensor of zeros."""

class ZerosLike(MXNetBenchmark):
    """A new tensor of zeros, of the shape of data."""

run_all_arithmetic_operations_benchmarks: RunAll
run_all_comparison_operations_benchmarks: RunAll
run_all_exponential_and_log_operations_benchmarks: RunAll
run_all_gemm_operations_benchmarks: RunAll
run_all_logical_comparison_operations_benchmarks: RunAll
run_all_powers_operations_benchmarks: RunAll
run_all_sort_and_search_operations_benchmarks: RunAll
run_all_tensor_creation_operations_benchmarks: RunAll
