"""Reductions, cumulative sums, sorting and searching.

A reduction counts as one floating-point operation for each element that it reads, including comparisons, plus
any that it first applies to an element (a square, an absolute value, an exponential). Sorting and searching
count as none. Index outputs are int64 if a framework offers a choice.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from inferometer.agent.operators.operator import (
    Arrays,
    Case,
    Category,
    Operator,
    Parameters,
    Preset,
    Presets,
    Shape,
    TensorSpec,
    Values,
    by_preset,
    no_flops,
    same_shape,
    sized,
)

_APART = 65536.0
"""The scale that spreads ``Values.DISTINCT`` within float16, so finite differences change no order."""


_PRESETS: Presets = by_preset(
    [sized(16, 24, axis=1), sized(4, 5, 6, axis=0)],
    sized(1024, 1024),
    sized(4096, 4096),
    sized(10000, 1, axis=0),
    sized(10000, 100, axis=0),
)
_SEARCHES: Presets = {**_PRESETS, Preset.NORMAL: (sized(1024, 1000),), Preset.LARGE: (sized(4096, 1000),)}


def _data(values: Values, scale: float = 1.0) -> Callable[[Case], tuple[TensorSpec, ...]]:
    """Returns the ``tensors`` of an operator along ``axis``, one or more axes that the data must have."""

    def tensors(case: Case) -> tuple[TensorSpec, ...]:
        shape, axis = case.shapes["data"], case["axis"]
        for each in axis if isinstance(axis, tuple) else (axis,):
            if not -len(shape) <= each < len(shape):
                raise ValueError(f"{shape} has no axis {each}")
        if case.parameters.get("k", 1) > shape[axis if isinstance(axis, int) else 0]:
            raise ValueError(f"{shape} has fewer than {case['k']} elements along axis {axis}")
        return (TensorSpec("data", shape, values, scale=scale),)

    return tensors


def _each(operations: int) -> Callable[[Case, Sequence[Shape]], int]:
    return lambda case, _: operations * prod(case.shapes["data"])


def _reduction(
    name: str,
    summary: str,
    reference: Callable[..., Any],
    values: Values = Values.NORMAL,
    *,
    scale: float = 1.0,
    operations: int = 1,
) -> Operator:
    """Returns an operator whose reference takes the arguments of NumPy's reductions."""

    def computed(arrays: Arrays, given: Parameters) -> Arrays:
        found = reference(arrays[0], axis=given["axis"], keepdims=given["keepdims"])
        return found if isinstance(found, tuple) else (found,)

    return Operator(
        name=name,
        category=Category.REDUCTION,
        summary=summary,
        tensors=_data(values, scale),
        presets=_PRESETS,
        parameters={"axis": 1, "keepdims": False},
        reference=computed,
        flops=_each(operations),
    )


def _log_sum_exp(array: NDArray[Any], *, axis: Any, keepdims: bool) -> NDArray[Any]:
    greatest = array.max(axis=axis, keepdims=True)
    found: NDArray[Any] = np.log(np.exp(array - greatest).sum(axis=axis, keepdims=True)) + greatest
    return found if keepdims else np.squeeze(found, axis)


def _norm(arrays: Arrays, parameters: Parameters) -> Arrays:
    axis, keepdims = parameters["axis"], parameters["keepdims"]
    if parameters["ord"] == 1:
        return (np.abs(arrays[0]).sum(axis=axis, keepdims=keepdims),)
    return (np.sqrt((arrays[0] ** 2).sum(axis=axis, keepdims=keepdims)),)


def _norm_input(case: Case) -> tuple[TensorSpec, ...]:
    if case["ord"] not in (1, 2):
        raise ValueError("ord is 1 or 2")
    return _data(Values.NONZERO)(case)


def _search(name: str, summary: str, reference: Callable[..., Any]) -> Operator:
    return Operator(
        name=name,
        category=Category.SORTING,
        summary=summary,
        tensors=_data(Values.DISTINCT, _APART),
        presets=_SEARCHES,
        parameters={"axis": 1},
        reference=lambda arrays, parameters: (reference(arrays[0], axis=parameters["axis"]),),
        flops=no_flops,
        has_gradient=name == "sort",
    )


def _top(arrays: Arrays, parameters: Parameters) -> Arrays:
    data, axis = arrays[0], int(parameters["axis"])
    indices = np.take(np.argsort(-data, axis=axis), range(int(parameters["k"])), axis=axis)
    return (np.take_along_axis(data, indices, axis), indices)


def _of_several(name: str, summary: str, function: Callable[[NDArray[Any]], Any], count: int) -> Operator:
    """Returns an operator that reduces each of some tensors to one number, and has no gradient."""
    names = tuple(f"data{number}" for number in range(count)) if count > 1 else ("data",)
    return Operator(
        name=name,
        category=Category.REDUCTION,
        summary=summary,
        given=names,
        tensors=same_shape(*names),
        presets={
            preset: tuple((dict.fromkeys(names, shapes["data"]), {}) for shapes, _ in sizes)
            for preset, sizes in _PRESETS.items()
        },
        reference=lambda arrays, _: (np.squeeze(function(np.stack(arrays).reshape(count, -1))),),
        flops=lambda case, _: 2 * sum(map(prod, case.shapes.values())),
        has_gradient=False,
        rtol=2e-3,  # MXNet adds the values in float32 one after the other
    )


OPERATORS = (
    _of_several("all_finite", "1 if all elements are finite", lambda rows: np.isfinite(rows).all(), 1),
    _of_several(
        "multi_all_finite",
        "1 if all elements of three tensors are finite",
        lambda rows: np.isfinite(rows).all(),
        3,
    ),
    _of_several("multi_sum_sq", "sums of the squares of three tensors", lambda rows: (rows**2).sum(1), 3),
    # sums of positive numbers, as the error of a sum near 0 is no measure of an implementation
    _reduction("sum", "sum along an axis or several", np.sum, Values.POSITIVE),
    _reduction("mean", "mean along an axis or several", np.mean, Values.POSITIVE),
    _reduction("nansum", "sum ignoring NaN, along an axis or several", np.nansum, Values.POSITIVE),
    # products of signs, as those of many other numbers leave the range of the type
    _reduction("prod", "product along an axis", np.prod, Values.SIGNS),
    _reduction("nanprod", "product ignoring NaN, along an axis", np.nanprod, Values.SIGNS),
    _reduction("max", "greatest element along an axis or several", np.max, Values.DISTINCT, scale=_APART),
    _reduction("min", "least element along an axis or several", np.min, Values.DISTINCT, scale=_APART),
    Operator(
        name="norm",
        category=Category.REDUCTION,
        summary="L1 or L2 norm along an axis or several",
        tensors=_norm_input,
        presets={
            preset: tuple(
                (shapes, {**changed, "ord": order}) for shapes, changed in sizes for order in (1, 2)
            )
            for preset, sizes in _PRESETS.items()
        },
        parameters={"axis": 1, "keepdims": False, "ord": 2},
        reference=_norm,
        flops=_each(2),
    ),
    _reduction(
        "logsumexp",
        "logarithm of the sum of the exponentials along an axis or several",
        _log_sum_exp,
        operations=3,
    ),
    _reduction(
        "moments",
        "mean and biased variance along an axis or several",
        lambda array, **along: (array.mean(**along), array.var(**along)),
        operations=4,
    ),
    Operator(
        name="cumsum",
        category=Category.REDUCTION,
        summary="sums of the elements up to each one along an axis",
        tensors=_data(Values.POSITIVE),
        presets=_PRESETS,
        parameters={"axis": 1},
        reference=lambda arrays, parameters: (np.cumsum(arrays[0], axis=parameters["axis"]),),
        flops=_each(1),
    ),
    _search("argmax", "index of the greatest element along an axis", np.argmax),
    _search("argmin", "index of the least element along an axis", np.argmin),
    _search("sort", "elements in ascending order along an axis", np.sort),
    _search("argsort", "indices that sort in ascending order along an axis", np.argsort),
    Operator(
        name="topk",
        category=Category.SORTING,
        summary="the k greatest elements along an axis in descending order, and their indices",
        tensors=_data(Values.DISTINCT, _APART),
        presets={
            **_SEARCHES,
            Preset.SKEWED: (sized(10000, 10, axis=1), sized(10000, 100, axis=0)),
            Preset.SMALL: (sized(16, 24, axis=1), sized(12, 5, 6, axis=0)),
        },
        parameters={"axis": 1, "k": 10},
        reference=_top,
    ),
)
