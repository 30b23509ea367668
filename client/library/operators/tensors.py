"""Creation, matrix products, sorting and searching as classes."""

from __future__ import annotations

from inferometer.client.library.operators.benchmark import MXNetBenchmark
from inferometer.client.library.operators.definition import Definition

_SQUARE = (1024, 1024)
_ROWS = {"data": (1024, 1000)}
_TRANSPOSED = {"transpose_a": False, "transpose_b": False, "forward_stype": None}
_SIDES = {"transpose_a": "transpose_lhs", "transpose_b": "transpose_rhs"}


class Zeros(MXNetBenchmark):
    """A new tensor of zeros."""

    definition = Definition(
        operator="zeros",
        result="Zeros",
        tensors={},
        parameters={"shape": _SQUARE},
        initializers=(),
        backward=False,
    )


class Ones(MXNetBenchmark):
    """A new tensor of ones."""

    definition = Definition(
        operator="ones",
        result="Ones",
        tensors={},
        parameters={"shape": _SQUARE},
        initializers=(),
        backward=False,
    )


class ZerosLike(MXNetBenchmark):
    """A new tensor of zeros, of the shape of data."""

    definition = Definition(
        operator="zeros_like", result="Zeros_Like", tensors={"data": _SQUARE}, backward=False
    )


class OnesLike(MXNetBenchmark):
    """A new tensor of ones, of the shape of data."""

    definition = Definition(
        operator="ones_like", result="Ones_Like", tensors={"data": _SQUARE}, backward=False
    )


class Full(MXNetBenchmark):
    """A new tensor filled with val."""

    definition = Definition(
        operator="full",
        result="Full",
        tensors={},
        parameters={"shape": _SQUARE, "val": 1.0},
        names={"val": "value"},
        initializers=(),
        backward=False,
    )


class Arange(MXNetBenchmark):
    """The numbers from start to stop, each repeated."""

    definition = Definition(
        operator="arange",
        result="Arange",
        tensors={},
        parameters={"start": 1, "stop": 100, "step": 1.0, "repeat": 10},
        initializers=(),
        backward=False,
    )


class Dot(MXNetBenchmark):
    """The product of two matrices."""

    definition = Definition(
        operator="dot",
        result="Dot",
        tensors={"lhs": (1024, 1024), "rhs": (1024, 1000)},
        parameters=_TRANSPOSED,
        names=_SIDES,
        fixed=("forward_stype",),
    )


class BatchDot(MXNetBenchmark):
    """The products of matrices in two batches."""

    definition = Definition(
        operator="batch_dot",
        result="Batch_Dot",
        tensors={"lhs": (32, 1024, 1024), "rhs": (32, 1024, 1000)},
        parameters=_TRANSPOSED,
        names=_SIDES,
        fixed=("forward_stype",),
    )


class Sort(MXNetBenchmark):
    """The values of each row in order."""

    definition = Definition(
        operator="sort",
        result="Sort",
        tensors=_ROWS,
        parameters={"axis": -1, "is_ascend": True},
        fixed=("is_ascend",),
        backward=False,
    )


class ArgSort(MXNetBenchmark):
    """The indices that sort each row."""

    definition = Definition(
        operator="argsort",
        result="ArgSort",
        tensors=_ROWS,
        parameters={"axis": -1, "is_ascend": True},
        fixed=("is_ascend",),
        backward=False,
    )


class TopK(MXNetBenchmark):
    """The k greatest values of each row, and their indices."""

    definition = Definition(
        operator="topk",
        result="TopK",
        tensors=_ROWS,
        parameters={"axis": -1, "k": 10, "ret_typ": "both", "is_ascend": False},
        fixed=("ret_typ", "is_ascend"),
        backward=False,
    )


class ArgMax(MXNetBenchmark):
    """The index of the greatest value of each row."""

    definition = Definition(
        operator="argmax",
        result="ArgMax",
        tensors=_ROWS,
        parameters={"axis": -1, "keepdims": False},
        fixed=("keepdims",),
        backward=False,
    )


class ArgMin(MXNetBenchmark):
    """The index of the least value of each row."""

    definition = Definition(
        operator="argmin",
        result="ArgMin",
        tensors=_ROWS,
        parameters={"axis": -1, "keepdims": False},
        fixed=("keepdims",),
        backward=False,
    )


CREATION = (
    Zeros,
    Ones,
    ZerosLike,
    OnesLike,
    Full,
    Arange,
)
GEMM = (
    Dot,
    BatchDot,
)
SORTING = (
    Sort,
    ArgSort,
    TopK,
    ArgMax,
    ArgMin,
)
