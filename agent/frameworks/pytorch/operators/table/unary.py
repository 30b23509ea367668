"""Element-wise functions of one tensor in PyTorch."""

from __future__ import annotations

from collections.abc import Mapping

import torch

from inferometer.agent.frameworks.pytorch.operators.functions import Form
from inferometer.agent.frameworks.pytorch.operators.table.arithmetic import function

_NO_CUBE_ROOT = "PyTorch has no cube root; torch.pow(x, 1/3) is NaN for negative numbers"

FUNCTIONS: Mapping[str, Form] = {
    "abs": function("abs", "abs", "absolute"),
    "sign": function("sign"),
    "exp": function("exp"),
    "expm1": function("expm1", "expm1", "special_expm1"),
    "log": function("log"),
    "log2": function("log2"),
    "log10": function("log10"),
    "log1p": function("log1p", "log1p", "special_log1p"),
    "sqrt": function("sqrt"),
    "rsqrt": function("rsqrt"),
    "square": function("square"),
    "reciprocal": function("reciprocal"),
    "sin": function("sin"),
    "cos": function("cos"),
    "tan": function("tan"),
    "arcsin": function("asin", "asin", "arcsin"),
    "arccos": function("acos", "acos", "arccos"),
    "arctan": function("atan", "atan", "arctan"),
    "sinh": function("sinh"),
    "cosh": function("cosh"),
    "arcsinh": function("asinh", "asinh", "arcsinh"),
    "arccosh": function("acosh", "acosh", "arccosh"),
    "arctanh": function("atanh", "atanh", "arctanh"),
    "degrees": function("rad2deg"),
    "radians": function("deg2rad"),
    "erf": function("erf", "erf", "special_erf"),
    "erfinv": function("erfinv", "erfinv", "special_erfinv"),
    "gammaln": function("lgamma", "lgamma", "special_gammaln"),
    "ceil": function("ceil"),
    "floor": function("floor"),
    "rint": function("round", "round", "special_round"),
    "trunc": function("trunc", "trunc", "fix"),
    "clip": Form(
        "torch.clamp",
        lambda case: lambda data: torch.clamp(data, case["low"], case["high"]),
        ("clamp", "clip"),
    ),
    "copy": function("clone"),
    "cast": Form(
        "torch.Tensor.to", lambda case: lambda data: data.to(getattr(torch, case["to"])), ("to", "type_as")
    ),
}
MISSING: Mapping[str, str] = {
    "cbrt": _NO_CUBE_ROOT,
    "rcbrt": _NO_CUBE_ROOT,
    "gamma": "PyTorch has the logarithm of the gamma function only, torch.lgamma",
    "round": "torch.round rounds halves to even, as rint does",
}
