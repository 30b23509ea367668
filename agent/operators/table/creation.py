"""Operators that create tensors: constants, ranges, random numbers; and a custom operator in Python.

By convention, no floating-point operations are counted, except one per element for the custom operator. The
parameter ``shape`` is the shape of an output that no input determines.

Random numbers are checked by their range, their mean and their variance.
The moments follow Johnson, Kotz and Balakrishnan, "Continuous Univariate Distributions" (1994), and
Johnson, Kemp and Kotz, "Univariate Discrete Distributions" (2005).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from math import ceil, inf, prod, sqrt
from typing import Any

import numpy as np
from numpy.typing import NDArray

from inferometer.agent.operators.operator import (
    Case,
    Category,
    Operator,
    Parameters,
    ParameterValue,
    Preset,
    Shape,
    TensorSpec,
    Values,
    by_preset,
    one_flop_per_output,
    sized,
)
from inferometer.agent.operators.table.arithmetic import element_wise, presets_of

_DEVIATIONS = 6.0
"""The number of standard errors by which a moment may be off; about 2 in 10⁹ normal samples exceed it."""


@dataclass(frozen=True, slots=True)
class Moments:
    """The moments and the range of a distribution.

    Attributes:
        mean: Its mean.
        variance: Its variance.
        kurtosis: Its fourth central moment divided by the squared variance; 3 for a normal distribution.
        low: The lower bound of the values.
        high: The upper bound of the values.
        is_whole: Whether all values are integers.
    """

    mean: float
    variance: float
    kurtosis: float
    low: float = -inf
    high: float = inf
    is_whole: bool = False


def uniform(low: float, high: float) -> Moments:
    """Returns the moments of the uniform distribution over low…high."""
    return Moments((low + high) / 2, (high - low) ** 2 / 12, 1.8, low, high)


def normal(loc: float, scale: float) -> Moments:
    """Returns the moments of the normal distribution with mean ``loc`` and standard deviation ``scale``."""
    return Moments(loc, scale**2, 3.0)


def gamma(alpha: float, beta: float) -> Moments:
    """Returns the moments of the gamma distribution with shape ``alpha`` and scale ``beta``."""
    return Moments(alpha * beta, alpha * beta**2, 3 + 6 / alpha, low=0.0)


def exponential(lam: float) -> Moments:
    """Returns the moments of the exponential distribution with rate ``lam``."""
    return Moments(1 / lam, 1 / lam**2, 9.0, low=0.0)


def poisson(lam: float) -> Moments:
    """Returns the moments of the Poisson distribution with mean ``lam``."""
    return Moments(lam, lam, 3 + 1 / lam, low=0.0, is_whole=True)


def negative_binomial(k: float, p: float) -> Moments:
    """Returns the moments of the number of failures before the ``k``-th success of probability ``p``."""
    kurtosis = 3 + 6 / k + p**2 / (k * (1 - p))
    return Moments(k * (1 - p) / p, k * (1 - p) / p**2, kurtosis, low=0.0, is_whole=True)


def discrete_uniform(low: int, high: int) -> Moments:
    """Returns the moments of the integers low…high-1, all with the same probability."""
    count = high - low
    kurtosis = 3 - 1.2 * (count**2 + 1) / (count**2 - 1) if count > 1 else 1.0
    return Moments((low + high - 1) / 2, (count**2 - 1) / 12, kurtosis, low, high - 1, is_whole=True)


def is_drawn_from(
    moments: Moments, arrays: Sequence[NDArray[Any]], shape: Shape, independent: int | None = None
) -> None:
    """Raises ValueError with the reason if the output cannot have been drawn from a distribution.

    Args:
        moments: The moments of the distribution.
        arrays: The outputs; only one is allowed.
        shape: The expected shape of the output.
        independent: How many of the values are independent; None for all.
    """
    if len(arrays) != 1 or arrays[0].shape != shape:
        raise ValueError(f"the outputs have the shapes {[each.shape for each in arrays]}, not {[shape]}")
    found = arrays[0].astype(np.float64)
    if not np.isfinite(found).all():
        raise ValueError("a value is not finite")
    if found.min() < moments.low or found.max() > moments.high:
        raise ValueError(
            f"the values are in {found.min():g}…{found.max():g}, not in {moments.low:g}…{moments.high:g}"
        )
    if moments.is_whole and (found != np.rint(found)).any():
        raise ValueError("a value is not an integer")
    count = independent or found.size
    error = _DEVIATIONS * sqrt(moments.variance / count)
    if not abs(found.mean() - moments.mean) <= error:
        raise ValueError(f"the mean is {found.mean():g}, not {moments.mean:g} ± {error:g}")
    spread = _DEVIATIONS * moments.variance * sqrt(max(moments.kurtosis - 1, 0.0) / count)
    spread += error**2  # the part of the mean's own error
    if not abs(found.var() - moments.variance) <= spread:
        raise ValueError(f"the variance is {found.var():g}, not {moments.variance:g} ± {spread:g}")


_SHAPES = by_preset(
    ({}, {"shape": (32, 32)}),
    ({}, {"shape": (1024, 1024)}),
    ({}, {"shape": (4096, 4096)}),
    ({}, {"shape": (10000, 10)}),
    ({}, {"shape": (10000, 1)}),
)

_ROUNDING = 2e-3
"""The maximum change of a value between -0.5 and 0.5 in bfloat16."""


def _no_inputs(case: Case) -> tuple[TensorSpec, ...]:
    shape = case["shape"]
    if not isinstance(shape, tuple) or any(size < 1 for size in shape):
        raise ValueError(f"shape is {shape}; sizes must be integers of 1 or more")
    return ()


def _filled(name: str, summary: str, fixed: float, **parameters: ParameterValue) -> Operator:
    def reference(_: object, given: Parameters) -> tuple[Any]:
        return (np.full(given["shape"], given.get("value", fixed), np.float64),)

    return Operator(
        name=name,
        category=Category.CREATION,
        summary=summary,
        given=(),
        tensors=_no_inputs,
        presets=_SHAPES,
        parameters={"shape": (1024, 1024), **parameters},
        reference=reference,
        has_gradient=False,
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


_drawn = partial(Operator, category=Category.RANDOM, reference=None, has_gradient=False)


def _random(
    name: str, summary: str, moments: Callable[..., Moments], **parameters: ParameterValue
) -> Operator:
    def check(arrays: Any, case: Case) -> None:
        given = {key: case[key] for key in parameters}
        is_drawn_from(moments(**given), arrays, case["shape"])

    return _drawn(
        name=name,
        summary=summary,
        given=(),
        tensors=_no_inputs,
        presets=_SHAPES,
        parameters={"shape": (1024, 1024), **parameters},
        check=check,
    )


def _range(_: object, given: Parameters) -> tuple[Any]:
    start, stop, step = (float(given[name]) for name in ("start", "stop", "step"))
    return (np.repeat(np.arange(start, stop, step), int(given["repeat"])),)


def _range_inputs(case: Case) -> tuple[TensorSpec, ...]:
    if ceil((case["stop"] - case["start"]) / case["step"]) < 1 or case["repeat"] < 1:
        raise ValueError("the range is empty; step leads from start to stop, and repeat is 1 or more")
    return ()


def _check_bernoulli(arrays: Any, case: Case) -> None:
    # the probabilities are themselves uniform around a half, so that each element is 1 with that probability
    is_drawn_from(discrete_uniform(0, 2), arrays, case.shapes["data"])


def _check_multinomial(arrays: Any, case: Case) -> None:
    rows, classes = case.shapes["data"]
    is_drawn_from(discrete_uniform(0, classes), arrays, (rows, case["draws"]), independent=rows)


def _check_shuffle(arrays: Any, case: Case) -> None:
    shape: Shape = case.shapes["data"]
    (found,) = arrays
    count = prod(shape)
    # what Values.DISTINCT draws, and the integer types have times ten
    values = np.arange(count, dtype=np.float32) / np.float32(count) - np.float32(0.5)
    expected = np.rint(values * 10) if found.dtype.kind in "iu" else values
    if found.shape != shape or np.abs(np.sort(found, axis=None) - expected).max() > _ROUNDING:
        raise ValueError("the output is not a permutation of the input")


_MULTINOMIAL = _drawn(
    name="multinomial",
    summary="Draws with replacement from the classes of each row, by their probabilities",
    tensors=lambda case: (TensorSpec("data", case.shapes["data"], Values.DISTRIBUTION),),
    presets=by_preset(
        sized(32, 50), sized(1024, 1000), sized(4096, 1000), sized(10000, 10), sized(10, 10000, draws=1000)
    ),
    parameters={"draws": 10},
    check=_check_multinomial,
)

OPERATORS = (
    _filled("zeros", "Zeros", 0.0),
    _filled("ones", "Ones", 1.0),
    _filled("full", "One value everywhere", 10.0, value=10.0),
    _like("zeros_like", "Zeros of the shape of an input", np.zeros_like),
    _like("ones_like", "Ones of the shape of an input", np.ones_like),
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
    _random("random_uniform", "Uniform in low…high", uniform, low=0.0, high=1.0),
    _random("random_normal", "Normal of mean loc and deviation scale", normal, loc=0.0, scale=1.0),
    _random("random_gamma", "Gamma of shape alpha and scale beta", gamma, alpha=2.0, beta=1.0),
    _random("random_exponential", "Exponential of rate lam", exponential, lam=1.0),
    _random("random_poisson", "Poisson of mean lam", poisson, lam=4.0),
    _random(
        "random_negative_binomial",
        "Failures before the k-th success, each of probability p",
        negative_binomial,
        k=4,
        p=0.5,
    ),
    _random("random_randint", "Integers of low…high - 1", discrete_uniform, low=0, high=100),
    _drawn(
        name="bernoulli",
        summary="1 with the probability that data has, otherwise 0",
        tensors=element_wise(TensorSpec("data", (), Values.PROBABILITY)),
        presets=presets_of("data"),
        check=_check_bernoulli,
    ),
    _MULTINOMIAL,
    _drawn(
        name="shuffle",
        summary="The rows of data in a random order",
        tensors=element_wise(TensorSpec("data", (), Values.DISTINCT)),
        presets=presets_of("data"),
        check=_check_shuffle,
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
