"""The updates of weights in MXNet; ``mx.sym`` has them, but no symbol replaces its input."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache
from typing import Any

from inferometer.agent.frameworks.mxnet.operators.functions import Form, Function
from inferometer.agent.frameworks.mxnet.runtime import mxnet
from inferometer.agent.operators.operator import Case
from inferometer.agent.operators.table.optimizer import EPSILON


def _update(name: str, *, kept: int = 0, fixed: Mapping[str, Any] | None = None, **renamed: str) -> Form:
    """The form of an update.

    Args:
        name: The operator.
        kept: How many of its states are outputs, from the last.
        fixed: Attributes that do not depend on the case.
        renamed: The table's name of each attribute but ``lr`` and ``wd``.
    """

    def make(mx: Any, case: Case) -> Function:
        update = getattr(mx, name)
        attributes = {ours: case[theirs] for ours, theirs in {"lr": "lr", "wd": "wd", **renamed}.items()}
        attributes |= fixed or {}

        def one(weight: Any, grad: Any, *states: Any) -> Any:
            return [update(weight, grad, *states, out=weight, **attributes), *states[len(states) - kept :]]

        return one

    return Form(name, make, symbolic=False)


@cache
def _one(context: Any) -> Any:
    """The factor on the gradient, which the operator takes from an array."""
    return mxnet.nd.ones((1,), context)


def _adamw(mx: Any, case: Case) -> Function:
    names = ("lr", "beta1", "beta2")
    attributes = {name: case[name] for name in names} | {"eta": 1.0, "epsilon": EPSILON}
    # its decay is not multiplied by lr
    decay = case["lr"] * case["wd"]

    def update(weight: Any, grad: Any, mean: Any, var: Any) -> Any:
        mx.contrib.adamw_update(
            weight, grad, mean, var, _one(weight.context), out=weight, wd=decay, **attributes
        )
        return weight, mean, var

    return update


def _multi_sgd(mx: Any, case: Case) -> Callable[..., Any]:
    def update(*arrays: Any) -> Any:
        weights = list(arrays[::2])
        count = len(weights)
        rates, decays = (case["lr"],) * count, (case["wd"],) * count
        mx.multi_sgd_update(*arrays, out=weights, num_weights=count, lrs=rates, wds=decays)
        return weights

    return update


FUNCTIONS: Mapping[str, Form] = {
    "sgd_update": _update("sgd_update"),
    "sgd_mom_update": _update("sgd_mom_update", momentum="momentum"),
    "nag_mom_update": _update("nag_mom_update", momentum="momentum"),
    "adam_update": _update("adam_update", kept=2, fixed={"epsilon": EPSILON}, beta1="beta1", beta2="beta2"),
    "adamw_update": Form("contrib.adamw_update", _adamw, ("_adamw_update",), symbolic=False),
    "rmsprop_update": _update("rmsprop_update", kept=1, fixed={"epsilon": EPSILON}, gamma1="alpha"),
    "ftrl_update": _update("ftrl_update", kept=2, lamda1="lamda1", beta="beta"),
    "signsgd_update": _update("signsgd_update"),
    "signum_update": _update("signum_update", kept=1, momentum="momentum"),
    "multi_sgd_update": Form("multi_sgd_update", _multi_sgd, symbolic=False),
}
MISSING: Mapping[str, str] = {
    "adagrad_update": "MXNet 1.9.1 has the operator for row-sparse gradients only",
}
