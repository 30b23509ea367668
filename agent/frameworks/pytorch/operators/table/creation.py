"""What makes tensors in PyTorch, and a custom operator: a function of autograd."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import distributions

from inferometer.agent.frameworks.pytorch.operators.functions import Form
from inferometer.agent.frameworks.pytorch.operators.table.arithmetic import function
from inferometer.agent.operators.operator import Case


def _range(case: Case) -> Any:
    start, stop, step, repeat = (case[name] for name in ("start", "stop", "step", "repeat"))
    if repeat == 1:
        return lambda **where: torch.arange(start, stop, step, **where)
    return lambda **where: torch.arange(start, stop, step, **where).repeat_interleave(repeat)


def _drawn_in_place(name: str, *parameters: str) -> Form:
    """Returns the form of a method that fills a new tensor."""
    method = getattr(torch.Tensor, name)

    def make(case: Case) -> Any:
        given = [case[each] for each in parameters]
        shape = case["shape"]
        return lambda **where: method(torch.empty(shape, **where), *given)

    return Form(f"torch.Tensor.{name}", make, (name.rstrip("_"), "empty"), creates=True)


def _drawn_from(kind: Any, parameters: Callable[[Case], tuple[float, ...]], *covers: str) -> Form:
    """Returns the form of a class of ``torch.distributions``, which is not asked to check its parameters."""

    def make(case: Case) -> Any:
        given = parameters(case)
        shape = torch.Size(case["shape"])

        def draw(**where: Any) -> Any:
            tensors = [torch.tensor(each, **where) for each in given]
            return kind(*tensors, validate_args=False).sample(shape)

        return draw

    return Form(f"torch.distributions.{kind.__name__}", make, covers, creates=True)


def _integers(case: Case) -> Any:
    low, high, shape = (case[name] for name in ("low", "high", "shape"))
    return lambda dtype, device: torch.randint(low, high, shape, device=device)  # int64, whatever the type


class _AddOne(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, data: torch.Tensor) -> torch.Tensor:
        return data + 1

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
        return gradient


FUNCTIONS: Mapping[str, Form] = {
    "zeros": Form(
        "torch.zeros", lambda case: lambda **where: torch.zeros(case["shape"], **where), creates=True
    ),
    "ones": Form("torch.ones", lambda case: lambda **where: torch.ones(case["shape"], **where), creates=True),
    "full": Form(
        "torch.full",
        lambda case: lambda **where: torch.full(case["shape"], case["value"], **where),
        creates=True,
    ),
    "zeros_like": function("zeros_like"),
    "ones_like": function("ones_like"),
    "arange": Form(
        "torch.arange, torch.Tensor.repeat_interleave",
        _range,
        ("arange", "repeat_interleave"),
        creates=True,
    ),
    "random_uniform": _drawn_in_place("uniform_", "low", "high"),
    "random_normal": _drawn_in_place("normal_", "loc", "scale"),
    "random_exponential": _drawn_in_place("exponential_", "lam"),
    # the class has the rate, which is the inverse of the scale
    "random_gamma": _drawn_from(distributions.Gamma, lambda case: (case["alpha"], 1 / case["beta"])),
    "random_poisson": _drawn_from(distributions.Poisson, lambda case: (case["lam"],), "poisson"),
    # the class counts the successes, so that a success there is a failure here
    "random_negative_binomial": _drawn_from(
        distributions.NegativeBinomial, lambda case: (case["k"], 1 - case["p"]), "poisson"
    ),
    "random_randint": Form("torch.randint", _integers, creates=True),
    "bernoulli": function("bernoulli"),
    "multinomial": Form(
        "torch.multinomial",
        lambda case: lambda data: torch.multinomial(data, case["draws"], replacement=True),
    ),
    "shuffle": Form(
        "torch.randperm, torch.index_select",
        lambda _: lambda data: data.index_select(0, torch.randperm(len(data), device=data.device)),
        ("randperm", "index_select"),
    ),
    "custom_add_one": Form("torch.autograd.Function", lambda _: _AddOne.apply),
}
MISSING: Mapping[str, str] = {}
