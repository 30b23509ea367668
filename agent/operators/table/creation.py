"""Operators that create tensors: constants, ranges and random numbers; densities; and a custom operator.

By convention, no floating-point operations are counted, except one per element for the custom operator. The
parameter ``shape`` is the shape of an output that no input determines.

Random numbers are checked by their range, their mean and their variance; the numbers of many distributions,
by those of their differences from each mean, divided by each deviation. The moments follow Johnson, Kotz and
Balakrishnan, "Continuous Univariate Distributions" (1994), and Johnson, Kemp and Kotz, "Univariate Discrete
Distributions" (2005).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from math import ceil, inf, lgamma, pi, sqrt
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from inferometer.agent.operators.operator import (
    Arrays,
    Case,
    Category,
    Operator,
    Parameters,
    ParameterValue,
    Shape,
    TensorSpec,
    Values,
    by_preset,
    one_flop_per_output,
    same_shape,
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


_DEVIATIONS = 6.0
"""The number of standard errors by which a moment may be off; about 2 in 10⁹ normal samples exceed it."""


@dataclass(frozen=True, slots=True)
class Moments:
    """The moments and the range of a distribution.

    ``kurtosis`` is the fourth central moment divided by the squared variance: 3 for a normal distribution.
    ``low`` and ``high`` bound the values, which may all be whole.
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


def generalized_negative_binomial(mu: float, alpha: float) -> Moments:
    """Returns the moments of the negative binomial distribution of mean ``mu`` and dispersion ``alpha``."""
    return negative_binomial(1 / alpha, 1 / (1 + mu * alpha))


def discrete_uniform(low: int, high: int) -> Moments:
    """Returns the moments of the integers low…high-1, all with the same probability."""
    count = high - low
    kurtosis = 3 - 1.2 * (count**2 + 1) / (count**2 - 1) if count > 1 else 1.0
    return Moments((low + high - 1) / 2, (count**2 - 1) / 12, kurtosis, low, high - 1, is_whole=True)


def is_drawn_from(
    moments: Moments, arrays: Sequence[NDArray[Any]], shape: Shape, independent: int | None = None
) -> None:
    """Raises ValueError with the reason if the output cannot have been drawn from a distribution.

    Only one array is allowed. ``independent`` is how many of its values are independent; None for all.
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


_ROUNDING = 2e-3
"""The maximum change of a value between -0.5 and 0.5 in bfloat16."""
_EDGE = 1e-2
"""How far rounding to bfloat16 moves a value between -2 and 2 out of its range."""


_drawn = partial(Operator, category=Category.RANDOM, reference=None, has_gradient=False)


def _random(
    name: str, summary: str, moments: Callable[..., Moments], **parameters: ParameterValue
) -> Operator:
    def check(arrays: Arrays, _: Arrays, case: Case) -> None:
        given = {key: case[key] for key in parameters}
        is_drawn_from(moments(**given), arrays, case["shape"])

    return created(
        parameters, name=name, category=Category.RANDOM, summary=summary, reference=None, check=check
    )


def _of_data(name: str, summary: str, values: Values, check: Callable[..., None]) -> Operator:
    sizes = (sized(32, 32), sized(1024, 1024), sized(4096, 4096), sized(10000, 10), sized(10000, 1))
    tensors = same_shape("data", values=values)
    return _drawn(name=name, summary=summary, tensors=tensors, presets=by_preset(*sizes), check=check)


def _check_bernoulli(arrays: Arrays, _: Arrays, case: Case) -> None:
    # the probabilities are themselves uniform around a half, so that each element is 1 with that probability
    is_drawn_from(discrete_uniform(0, 2), arrays, case.shapes["data"])


def _check_multinomial(arrays: Arrays, _: Arrays, case: Case) -> None:
    rows, classes = case.shapes["data"]
    is_drawn_from(discrete_uniform(0, classes), arrays, (rows, case["draws"]), independent=rows)


def _check_shuffle(arrays: Arrays, inputs: Arrays, case: Case) -> None:
    found, data = (np.sort(array, axis=0) for array in (arrays[0], inputs[0]))
    if found.shape != data.shape or np.abs(found - data).max() > _ROUNDING:
        raise ValueError("the rows of the output are not those of the input")


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

_ANY, _UNIT = TensorSpec("", ()), TensorSpec("", (), Values.UNIT)
_POSITIVE, _TWO, _SHARE = (TensorSpec("", (), Values.POSITIVE, scale=scale) for scale in (1.0, 2.0, 0.5))
_BELOW, _ABOVE = (TensorSpec("", (), Values.ABOVE_ONE, scale=scale) for scale in (-1.0, 1.0))
_CLASSES = TensorSpec("", (), Values.DISTRIBUTION)
_COUNT = TensorSpec("", (), Values.BOOLEAN, differentiable=False, scale=3.0)
_log_gamma = np.vectorize(lgamma, otypes=[np.float64])


def _log_failures(x: Any, k: Any, p: Any) -> Any:
    return _log_gamma(x + k) - _log_gamma(x + 1) - _log_gamma(k) + k * np.log(p) + x * np.log(1 - p)


def _log_dirichlet(x: Any, alpha: Any) -> Any:
    return ((alpha - 1) * np.log(x) - _log_gamma(alpha)).sum(-1) + _log_gamma(alpha.sum(-1))


_Row: TypeAlias = tuple[Callable[..., Any], TensorSpec, Callable[..., Any], Mapping[str, TensorSpec]]
_DISTRIBUTIONS: Mapping[str, _Row] = {
    "uniform": (uniform, _UNIT, lambda x, a, b: 0 * x - np.log(b - a), {"low": _BELOW, "high": _ABOVE}),
    "normal": (
        normal,
        _ANY,
        lambda x, mu, sigma: -(((x - mu) / sigma) ** 2) / 2 - np.log(sigma * sqrt(2 * pi)),
        {"mu": _ANY, "sigma": _POSITIVE},
    ),
    # MXNet's beta is a scale in samples, and a rate in densities
    "gamma": (
        gamma,
        _POSITIVE,
        lambda x, a, beta: a * np.log(beta) + (a - 1) * np.log(x) - beta * x - _log_gamma(a),
        {"alpha": _TWO, "beta": _POSITIVE},
    ),
    "exponential": (exponential, _POSITIVE, lambda x, lam: np.log(lam) - lam * x, {"lam": _POSITIVE}),
    "poisson": (poisson, _COUNT, lambda x, lam: x * np.log(lam) - lam - _log_gamma(x + 1), {"lam": _TWO}),
    "negative_binomial": (negative_binomial, _COUNT, _log_failures, {"k": _TWO, "p": _SHARE}),
    "generalized_negative_binomial": (
        generalized_negative_binomial,
        _COUNT,
        lambda x, mu, alpha: _log_failures(x, 1 / alpha, 1 / (1 + mu * alpha)),
        {"mu": _TWO, "alpha": _SHARE},
    ),
}
"""The moments, how samples are drawn, the logarithm of their density, and how the parameters are drawn."""


def _shaped(specs: Mapping[str, TensorSpec], shape: Shape) -> tuple[TensorSpec, ...]:
    return tuple(replace(spec, name=name, shape=shape) for name, spec in specs.items())


def _sample(name: str, moments: Callable[..., Any], parameters: Mapping[str, TensorSpec]) -> Operator:
    """Returns the operator that draws numbers from as many distributions as its inputs have elements."""
    first = next(iter(parameters))

    def check(outputs: Arrays, inputs: Arrays, case: Case) -> None:
        each = moments(*(array.astype(np.float64)[..., None] for array in inputs))
        found, shape = outputs[0].astype(np.float64), (*case.shapes[first], case["draws"])
        if found.shape != shape or (found < each.low - _EDGE).any() or (found > each.high + _EDGE).any():
            raise ValueError(f"the shape is not {shape}, or a value not in the range of its distribution")
        if each.is_whole and (found != np.rint(found)).any():
            raise ValueError("a value is not an integer")
        standard = (found - each.mean) / np.sqrt(each.variance)
        is_drawn_from(Moments(0.0, 1.0, float(np.mean(each.kurtosis))), [standard], shape)

    # few enough that MXNet seldom draws its exponential of 0, which is infinite
    sizes = ((32, 100), (1024, 64), (4096, 256), (10000, 10), (2, 10000))
    return _drawn(
        name=f"sample_{name}",
        summary=f"Draws from a distribution for each element of the inputs, as random_{name} from one",
        given=(first,),
        tensors=lambda case: _shaped(parameters, case.shapes[first]),
        presets=by_preset(*(({first: (count,)}, {"draws": draws}) for count, draws in sizes)),
        parameters={"draws": 64},
        check=check,
    )


def _density(
    name: str,
    sample: TensorSpec,
    log_density: Callable[..., Any],
    parameters: Mapping[str, TensorSpec],
    classes: Shape = (),
) -> Operator:
    """Returns the operator for the densities of samples, each row with parameters of its own."""

    def tensors(case: Case) -> tuple[TensorSpec, ...]:
        rows, _, *rest = shape = case.shapes["sample"]
        return *_shaped({"sample": sample}, shape), *_shaped(parameters, (rows, *rest))

    sizes = ((16, 24), (1024, 1024), (4096, 1024), (10000, 10), (1, 10000))
    return Operator(
        name=f"random_pdf_{name}",
        category=Category.RANDOM,
        summary=f"The density of each sample in the {name} distribution of its row",
        given=("sample",),
        tensors=tensors,
        presets=by_preset(*(({"sample": (*shape, *classes)}, {}) for shape in sizes)),
        reference=lambda arrays, _: (np.exp(log_density(arrays[0], *(a[:, None] for a in arrays[1:]))),),
        rtol=1e-4,  # the logarithms of gamma functions are differences of larger numbers
    )


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
        presets=by_preset(
            [({}, {}), ({}, {"start": 5.0, "stop": -5.0, "step": -2.0, "repeat": 1})],
            ({}, {}),
            ({}, {"stop": 1_000_001.0, "repeat": 1}),
            ({}, {"stop": 11.0, "repeat": 10000}),
            ({}, {"stop": 10001.0, "repeat": 10}),
        ),
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
    *(_sample(name, moments, given) for name, (moments, _, _, given) in _DISTRIBUTIONS.items()),
    *(_density(name, drawn, log, given) for name, (_, drawn, log, given) in _DISTRIBUTIONS.items()),
    _density("dirichlet", _CLASSES, _log_dirichlet, {"alpha": _POSITIVE}, (3,)),
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
    _random(
        "random_generalized_negative_binomial",
        "Counts of mean mu and variance mu + alpha · mu²",
        generalized_negative_binomial,
        mu=2.0,
        alpha=0.5,
    ),
    _random("random_randint", "Integers of low…high - 1", discrete_uniform, low=0, high=100),
    _of_data(
        "bernoulli", "1 with the probability that data has, otherwise 0", Values.PROBABILITY, _check_bernoulli
    ),
    _MULTINOMIAL,
    _of_data("shuffle", "The rows of data in a random order", Values.DISTINCT, _check_shuffle),
)
