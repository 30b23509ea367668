"""What a class of a benchmark stands for: an operator of the table, the original's inputs, and its name."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from inferometer.agent.operators.operator import NOTHING

Inputs: TypeAlias = Mapping[str, Any]
"""The inputs of a benchmark by name: sizes of tensors, parameters, initializers, and how it runs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Definition:
    """The row of a class in the list of the original's benchmarks.

    Attributes:
        operator: The operator in the table.
        result: The name of its result, between ``MX_`` and ``_Forward``.
        tensors: The default shapes of its tensors.
        parameters: The other inputs with their defaults.
        names: The table's names of tensors and parameters, where they differ.
        fixed: The parameters that cannot be changed, because the operator has no such parameter.
        instead_of_none: The inputs whose values stand for those that are None.
        initializers: The inputs that fill tensors: ``initializer`` all of them, ``data_initializer`` one.
        form: MXNet's form: ``nd`` or ``gluon``.
        backward: Whether it also runs the backward pass by default.
        warmup: The default number of runs before those that count.
        runs: The default number of runs that count.
    """

    operator: str
    result: str
    tensors: Inputs
    parameters: Inputs = field(default_factory=lambda: NOTHING)
    names: Mapping[str, str] = field(default_factory=lambda: NOTHING)
    fixed: tuple[str, ...] = ()
    instead_of_none: Mapping[str, str] = field(default_factory=lambda: NOTHING)
    initializers: tuple[str, ...] = ("initializer",)
    form: str = "nd"
    backward: bool = True
    warmup: int = 10
    runs: int = 50
