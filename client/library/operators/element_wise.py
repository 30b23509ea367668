"""Element-wise operators as classes: arithmetic, comparisons, logic, exponentials and powers."""

from __future__ import annotations

from inferometer.client.library.operators.benchmark import MXNetBenchmark
from inferometer.client.library.operators.definition import Definition

_SQUARE = (1024, 1024)
_BINARY = {"lhs": _SQUARE, "rhs": _SQUARE}
_UNARY = {"data": _SQUARE}
_IN_PLACE = {"this": _SQUARE, "other": _SQUARE}
_IN_PLACE_NAMES = {"this": "lhs", "other": "rhs"}
_DATA = ("data_initializer",)


class Add(MXNetBenchmark):
    """lhs + rhs."""

    definition = Definition(operator="add", result="Add", tensors=_BINARY)


class Subtract(MXNetBenchmark):
    """lhs - rhs."""

    definition = Definition(operator="subtract", result="Subtract", tensors=_BINARY)


class Multiply(MXNetBenchmark):
    """lhs * rhs."""

    definition = Definition(operator="multiply", result="Multiply", tensors=_BINARY)


class Divide(MXNetBenchmark):
    """lhs / rhs."""

    definition = Definition(operator="divide", result="Divide", tensors=_BINARY)


class Modulo(MXNetBenchmark):
    """The remainder of lhs / rhs."""

    definition = Definition(operator="modulo", result="Modulo", tensors=_BINARY)


class Power(MXNetBenchmark):
    """base to the power of exp."""

    definition = Definition(
        operator="power",
        result="Power",
        tensors={"base": _SQUARE, "exp": _SQUARE},
        names={"base": "lhs", "exp": "rhs"},
    )


class Negative(MXNetBenchmark):
    """-data."""

    definition = Definition(operator="negative", result="Negative", tensors=_UNARY)


class IAdd(MXNetBenchmark):
    """this += other."""

    definition = Definition(
        operator="iadd", result="Inplace_Add", tensors=_IN_PLACE, names=_IN_PLACE_NAMES, backward=False
    )


class ISub(MXNetBenchmark):
    """this -= other."""

    definition = Definition(
        operator="isub", result="Inplace_Subtract", tensors=_IN_PLACE, names=_IN_PLACE_NAMES, backward=False
    )


class IMul(MXNetBenchmark):
    """this *= other."""

    definition = Definition(
        operator="imul", result="Inplace_Multiply", tensors=_IN_PLACE, names=_IN_PLACE_NAMES, backward=False
    )


class IDiv(MXNetBenchmark):
    """this /= other."""

    definition = Definition(
        operator="idiv", result="Inplace_Division", tensors=_IN_PLACE, names=_IN_PLACE_NAMES, backward=False
    )


class IMod(MXNetBenchmark):
    """this %= other."""

    definition = Definition(
        operator="imod", result="Inplace_Modulo", tensors=_IN_PLACE, names=_IN_PLACE_NAMES, backward=False
    )


class Lesser(MXNetBenchmark):
    """lhs < rhs."""

    definition = Definition(operator="less", result="Lesser", tensors=_BINARY)


class LesserEqual(MXNetBenchmark):
    """lhs <= rhs."""

    definition = Definition(operator="less_equal", result="Lesser_Equal", tensors=_BINARY)


class Greater(MXNetBenchmark):
    """lhs > rhs."""

    definition = Definition(operator="greater", result="Greater", tensors=_BINARY)


class GreaterEqual(MXNetBenchmark):
    """lhs >= rhs."""

    definition = Definition(operator="greater_equal", result="Greater_Equal", tensors=_BINARY)


class Equal(MXNetBenchmark):
    """lhs == rhs."""

    definition = Definition(operator="equal", result="Equal", tensors=_BINARY)


class NotEqual(MXNetBenchmark):
    """lhs != rhs."""

    definition = Definition(operator="not_equal", result="Not_Equal", tensors=_BINARY)


class LogicalAnd(MXNetBenchmark):
    """lhs and rhs."""

    definition = Definition(operator="logical_and", result="Logical_And", tensors=_BINARY)


class LogicalOr(MXNetBenchmark):
    """lhs or rhs."""

    definition = Definition(operator="logical_or", result="Logical_Or", tensors=_BINARY)


class LogicalXor(MXNetBenchmark):
    """Either lhs or rhs."""

    definition = Definition(operator="logical_xor", result="Logical_Xor", tensors=_BINARY)


class LogicalNot(MXNetBenchmark):
    """not data."""

    definition = Definition(operator="logical_not", result="Logical_Not", tensors=_UNARY, initializers=_DATA)


class Log(MXNetBenchmark):
    """The natural logarithm of data."""

    definition = Definition(operator="log", result="Log", tensors=_UNARY)


class Exp(MXNetBenchmark):
    """The exponential of data."""

    definition = Definition(operator="exp", result="Exp", tensors=_UNARY)


class Sqrt(MXNetBenchmark):
    """The square root of data."""

    definition = Definition(operator="sqrt", result="Sqrt", tensors=_UNARY, initializers=_DATA)


class Square(MXNetBenchmark):
    """The square of data."""

    definition = Definition(operator="square", result="Square", tensors=_UNARY, initializers=_DATA)


ARITHMETIC = (
    Add,
    Subtract,
    Multiply,
    Divide,
    Modulo,
    Power,
    Negative,
    IAdd,
    ISub,
    IMul,
    IDiv,
    IMod,
)
COMPARISON = (
    Lesser,
    LesserEqual,
    Greater,
    GreaterEqual,
    Equal,
    NotEqual,
)
LOGICAL = (
    LogicalAnd,
    LogicalOr,
    LogicalXor,
    LogicalNot,
)
EXPONENTIAL = (
    Log,
    Exp,
)
POWERS = (
    Sqrt,
    Square,
)
