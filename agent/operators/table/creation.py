"""Operators that create tensors: constants and ranges; and a custom operator in Python.

By convention, no floating-point operations are counted, except one per element for the custom operator. The
parameter ``shape`` is the shape of an output that no input determines.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from math import ceil
from typing import Any

import numpy as np

from inferometer.agent.operators.operator import (
    Case,
    Category,
    Operator,
    Parameters,
    ParameterValue,
    Preset,
    TensorSpec,
    by_preset,
    one_flop_per_output,
    sized,
)
from inferometer.agent.operators.table.arithmetic import element_wise, presets_of

_SHAPES = ((32, 32), (1024, 1024), (4096, 4096), (10000, 10), (10000, 1))


def _no_inputs(case: Case) -> tuple[TensorSpec, ...]:
    """Returns the inputs, none, of an operator with the parameter ``shape``; a bad shape is a ValueError."""
    shape = case["shape"]
    if not isinstance(shape, tuple) or any(size < 1 for size in shape):
        raise ValueError(f"shape is {shape}; sizes must be integers of 1 or more")
    return ()


def created(parameters: Parameters, **attributes: Any) -> Operator:
    """Returns an operator without inputs; ``shape`` is one of its parameters, and all else an attribute."""
    return Operator(
        given=(),
        tensors=_no_inputs,
        presets=by_preset(*(({}, {"shape": shape}) for shape in _SHAPES)),
        parameters={"shape": (1024, 1024), **parameters},
        has_gradient=False,
        **attributes,
    )


def _filled(name: str, summary: str, fixed: float, **parameters: ParameterValue) -> Operator:
    return created(
        parameters,
        name=name,
        category=Category.CREATION,
        summary=summary,
        reference=lambda _, given: (np.full(given["shape"], given.get("value", fixed), np.float64),),
    )


def _like(name: str, summary: str, function: Callable[..., Any]) -> Operator:
    return Operator(
        name=name,
        category=Category.CREATION,
        summary=summary,
        tensors=element_wise(TensorSpec("data", ())),
        presets=presets_of("data"),
        reference=lambda arrays, _: (function(arrays[0]),),
        has_gradient=False,
    )


def _range(_: object, given: Parameters) -> tuple[Any]:
    start, stop, step = (float(given[name]) for name in ("start", "stop", "step"))
    return (np.repeat(np.arange(start, stop, step), int(given["repeat"])),)


def _range_inputs(case: Case) -> tuple[TensorSpec, ...]:
    if ceil((case["stop"] - case["start"]) / case["step"]) < 1 or case["repeat"] < 1:
        raise ValueError("the range is empty; step leads from start to stop, and repeat is 1 or more")
    return ()


_THREE = ("data0", "data1", "data2")

OPERATORS = (
    _filled("zeros", "Zeros", 0.0),
    _filled("ones", "Ones", 1.0),
    _filled("full", "One value everywhere", 10.0, value=10.0),
    _like("zeros_like", "Zeros of the shape of an input", np.zeros_like),
    _like("ones_like", "Ones of the shape of an input", np.ones_like),
    Operator(
        name="reset_arrays",
        category=Category.CREATION,
        summary="Three tensors, overwritten with zeros",
        given=_THREE,
        tensors=element_wise(*(TensorSpec(name, (), differentiable=False) for name in _THREE)),
        presets=presets_of(*_THREE),
        reference=lambda arrays, _: [np.zeros_like(each) for each in arrays],
        has_gradient=False,
        in_place=_THREE[0],
    ),
    Operator(
        name="arange",
        category=Category.CREATION,
        summary="start, start + step … below stop, each as often as repeat says",
        given=(),
        tensors=_range_inputs,
        presets={
            Preset.SMALL: (({}, {}), ({}, {"start": 5.0, "stop": -5.0, "step": -2.0, "repeat": 1})),
            Preset.NORMAL: (({}, {}),),
            Preset.LARGE: (({}, {"stop": 1_000_001.0, "repeat": 1}),),
            Preset.SKEWED: (({}, {"stop": 11.0, "repeat": 10000}), ({}, {"stop": 10001.0, "repeat": 10})),
        },
        parameters={"start": 1.0, "stop": 100.0, "step": 1.0, "repeat": 10},
        reference=_range,
        has_gradient=False,
    ),
    replace(
        _like("custom_add_one", "data + 1, as a custom operator written in Python", lambda data: data + 1),
        category=Category.CUSTOM,
        presets=by_preset(
            sized(32, 1), sized(1000, 1), sized(1024, 1024), sized(10000, 1), sized(10000, 100)
        ),
        flops=one_flop_per_output,
        has_gradient=True,
    ),
)
