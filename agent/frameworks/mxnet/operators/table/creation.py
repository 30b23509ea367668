"""What makes tensors in MXNet, and a custom operator: a ``mx.operator.CustomOp``."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any

from inferometer.agent.frameworks.mxnet.operators.functions import Form
from inferometer.agent.frameworks.mxnet.operators.table.arithmetic import named
from inferometer.agent.frameworks.mxnet.runtime import mxnet
from inferometer.agent.operators.operator import Case


def _filled(name: str, *parameters: str) -> Form:
    def make(mx: Any, case: Case) -> Any:
        given = [case[each] for each in ("shape", *parameters)]
        return lambda **where: getattr(mx, name)(*given, **where)

    return Form(name, make, creates=True)


def _range(mx: Any, case: Case) -> Any:
    given = {name: case[name] for name in ("start", "stop", "step", "repeat")}
    return lambda **where: mx.arange(**given, **where)


def _random(name: str, *parameters: str, aliases: tuple[str, ...] = ()) -> Form:
    def make(mx: Any, case: Case) -> Any:
        given = {each: case[each] for each in ("shape", *parameters)}
        return lambda **where: getattr(mx, name)(**given, **where)

    return Form(name, make, (name, *aliases), creates=True)


def _integers(mx: Any, case: Case) -> Any:
    given = {name: case[name] for name in ("low", "high", "shape")}
    return lambda dtype, **where: mx.random_randint(**given, dtype="int64", **where)


@cache
def _add_one() -> str:
    """Registers the custom operator, and returns its name."""

    class AddOne(mxnet.operator.CustomOp):  # type: ignore[misc]
        def forward(self, is_train: bool, req: Any, in_data: Any, out_data: Any, aux: Any) -> None:
            self.assign(out_data[0], req[0], in_data[0] + 1)

        def backward(
            self, req: Any, out_grad: Any, in_data: Any, out_data: Any, in_grad: Any, aux: Any
        ) -> None:
            self.assign(in_grad[0], req[0], out_grad[0])

    class Properties(mxnet.operator.CustomOpProp):  # type: ignore[misc]
        def create_operator(self, ctx: Any, in_shapes: Any, in_dtypes: Any) -> AddOne:
            return AddOne()

    mxnet.operator.register("inferometer_add_one")(Properties)
    return "inferometer_add_one"


def _custom(mx: Any, case: Case) -> Any:
    name = _add_one()
    return lambda data: mx.Custom(data, op_type=name)


FUNCTIONS: Mapping[str, Form] = {
    "zeros": _filled("zeros"),
    "ones": _filled("ones"),
    "full": _filled("full", "value"),
    "zeros_like": named("zeros_like"),
    "ones_like": named("ones_like"),
    "arange": Form("arange", _range, creates=True),
    "random_uniform": _random("random_uniform", "low", "high", aliases=("uniform",)),
    "random_normal": _random("random_normal", "loc", "scale", aliases=("normal",)),
    "random_gamma": _random("random_gamma", "alpha", "beta"),
    "random_exponential": _random("random_exponential", "lam"),
    "random_poisson": _random("random_poisson", "lam"),
    "random_negative_binomial": _random("random_negative_binomial", "k", "p"),
    "random_randint": Form("random_randint", _integers, creates=True),
    "multinomial": Form(
        "sample_multinomial",
        lambda mx, case: lambda data: mx.sample_multinomial(data, shape=case["draws"]),
    ),
    "shuffle": named("shuffle"),
    "custom_add_one": Form("Custom", _custom),
}
MISSING: Mapping[str, str] = {
    "bernoulli": "MXNet has it for the arrays of mx.np only, not in mx.nd",
}
