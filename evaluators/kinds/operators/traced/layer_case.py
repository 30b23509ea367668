"""The parts of a traced layer that readers share: shapes, arguments, and the resulting case of the table."""

from __future__ import annotations

import ast
from collections.abc import Callable, Sequence
from math import prod
from typing import Any, TypeAlias

from inferometer.agent.operators.operator import OwnCase, Shape
from inferometer.evaluators.traces.layers import Layer


class NoRowError(Exception):
    """A layer has no row in the table, or the trace lacks the details; the message says why."""


Reader: TypeAlias = Callable[[Layer], OwnCase]
"""Returns the case of the table for a layer; raises NoRowError."""


def shapes_of(texts: Sequence[str], at_least: int = 1) -> list[Shape]:
    """Returns the shapes in texts such as ``8x3x224x224``.

    Raises:
        NoRowError: There are fewer than ``at_least``.
    """
    shapes = [tuple(int(side) for side in text.split("x")) for text in texts]
    if len(shapes) < at_least:
        raise NoRowError("the trace does not show its shapes")
    return shapes


def value_of(text: str) -> Any:
    """Returns the value of a text such as ``(3, 3)``; lists become tuples, and non-literals stay texts."""
    try:
        value = ast.literal_eval(text)
    except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):  # also of long nesting
        return text
    return tuple(value) if isinstance(value, list) else value


def binary(operator: str, shapes: Sequence[Shape]) -> OwnCase:
    """Returns the case of element-wise arithmetic, in its broadcasting form if the shapes differ."""
    if len(shapes) < 2:
        raise NoRowError("its other operand is a number, but the table's is a tensor")
    lhs, rhs = shapes[:2]
    name = operator if lhs == rhs else f"broadcast_{operator}"
    return OwnCase(name, {"lhs": lhs, "rhs": rhs})


def convolution(
    data: Shape, weight: Shape, *, stride: Shape, pad: Shape, dilate: Shape, groups: int, bias: bool
) -> OwnCase:
    """Returns a convolution case; ``weight`` is output channels × input channels per group × kernel."""
    window = {"kernel": weight[2:], "stride": stride, "pad": pad, "dilate": dilate}
    rank = len(weight) - 2
    return OwnCase(
        f"conv{rank}d", {"data": data}, {"channels": weight[0], **window, "groups": groups, "bias": bias}
    )


def dense(data: Shape, weight: Shape, *, bias: bool) -> OwnCase:
    """Returns a dense layer; ``weight`` is units × inputs. All axes of ``data`` but the last are merged."""
    rows = (prod(data[:-1]), data[-1])
    if not bias:
        return OwnCase("dot", {"lhs": rows, "rhs": weight}, {"transpose_rhs": True})
    return OwnCase("dense", {"data": rows}, {"units": weight[0]})


def pooling(
    kind: str, data: Shape, *, kernel: Shape, stride: Shape, pad: Shape, **others: bool | Shape
) -> OwnCase:
    """Returns the case of a pooling; ``kind`` is ``max`` or ``avg``."""
    parameters = {"kernel": kernel, "stride": stride, "pad": pad, **others}
    return OwnCase(f"{kind}_pool{len(data) - 2}d", {"data": data}, parameters)


def global_pooling(kind: str, data: Shape) -> OwnCase:
    """Returns the case of a pooling over all spatial axes."""
    return OwnCase(f"global_{kind}_pool{len(data) - 2}d", {"data": data})
