"""The functions of PyTorch by the table's names, from the files of its folder ``table``."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any, TypeAlias

from inferometer.agent.operators.operator import Case
from inferometer.agent.operators.table.registry import joined

Function: TypeAlias = Callable[..., Any]
"""Takes the input tensors in the order of the table; returns a tensor or a sequence of them."""
_FOLDER = "inferometer.agent.frameworks.pytorch.operators.table"


@dataclass(frozen=True, slots=True)
class Form:
    """How PyTorch runs an operator.

    Attributes:
        api: The function or functions that run, as PyTorch's documentation names them.
        make: Returns the function for a case.
        covers: The operators of PyTorch's registry (``aten``) that this stands for; without any, ``api``.
        creates: Whether the function also takes ``dtype`` and ``device``, because no input tells them.
        joined: The one function that computes the same as ``make`` does part by part, for a fused operator.
        constants: The inputs that are weights, the last ones, which inductor may fold into each other for an
            inference.
    """

    api: str
    make: Callable[[Case], Function]
    covers: tuple[str, ...] = ()
    creates: bool = False
    joined: tuple[str, Function] | None = None
    constants: tuple[str, ...] = ()


@cache
def functions() -> Mapping[str, Form]:
    """Returns the forms by the operator's name."""
    return joined(_FOLDER, "FUNCTIONS")


@cache
def reasons() -> Mapping[str, str]:
    """Returns why PyTorch lacks operators of the table, by name."""
    return joined(_FOLDER, "MISSING")
