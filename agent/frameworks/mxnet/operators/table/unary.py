"""Element-wise functions of one tensor in MXNet."""

from __future__ import annotations

from collections.abc import Mapping

from inferometer.agent.frameworks.mxnet.operators.functions import Form
from inferometer.agent.frameworks.mxnet.operators.table.arithmetic import named

# its own names are the table's
_SAME = (
    "abs sign exp expm1 log log2 log10 log1p sqrt rsqrt cbrt rcbrt square reciprocal sin cos tan arcsin "
    "arccos arctan sinh cosh arcsinh arccosh arctanh degrees radians erf erfinv gamma gammaln ceil floor "
    "rint round"
)

FUNCTIONS: Mapping[str, Form] = {
    **{name: named(name) for name in _SAME.split()},
    "trunc": named("trunc", "fix"),
    "clip": Form("clip", lambda mx, case: lambda data: mx.clip(data, a_min=case["low"], a_max=case["high"])),
    "copy": named("identity"),
    "cast": Form(
        "cast", lambda mx, case: lambda data: mx.cast(data, dtype=case["to"]), ("cast", "Cast", "amp_cast")
    ),
}
MISSING: Mapping[str, str] = {}
