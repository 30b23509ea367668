"""Element-wise arithmetic in PyTorch."""

from __future__ import annotations

from collections.abc import Mapping

import torch

from inferometer.agent.frameworks.pytorch.operators.functions import Form


def function(name: str, *covers: str) -> Form:
    """Returns the form of a function of ``torch`` that takes the table's inputs as they are."""
    found = getattr(torch, name)
    return Form(f"torch.{name}", lambda _: found, covers)


def _method(name: str, *covers: str) -> Form:
    found = getattr(torch.Tensor, name)
    return Form(f"torch.Tensor.{name}", lambda _: found, covers)


_ADD = function("add", "add")
_SUBTRACT = function("sub", "sub", "subtract")
_MULTIPLY = function("mul", "mul", "multiply")
_DIVIDE = function("div", "div", "divide", "true_divide")

FUNCTIONS: Mapping[str, Form] = {
    "add": _ADD,
    "subtract": _SUBTRACT,
    "multiply": _MULTIPLY,
    "divide": _DIVIDE,
    "modulo": function("remainder"),
    "fmod": function("fmod"),
    "power": function("pow"),
    "maximum": function("maximum"),
    "minimum": function("minimum"),
    "hypot": function("hypot"),
    "broadcast_add": _ADD,
    "broadcast_subtract": _SUBTRACT,
    "broadcast_multiply": _MULTIPLY,
    "broadcast_divide": _DIVIDE,
    "iadd": _method("add_", "add"),
    "isub": _method("sub_", "sub", "subtract"),
    "imul": _method("mul_", "mul", "multiply"),
    "idiv": _method("div_", "div", "divide", "true_divide"),
    "imod": _method("remainder_", "remainder"),
    "negative": function("neg", "neg", "negative"),
}
MISSING: Mapping[str, str] = {
    "add_n": "PyTorch has no sum of several tensors; torch.sum takes a torch.stack of them, which copies",
}
