"""The operators of MXNet by the table's names, from the files of its folder ``table``."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import Any, TypeAlias

from inferometer.agent.operators.operator import NOTHING, Case
from inferometer.agent.operators.table.registry import joined

Function: TypeAlias = Callable[..., Any]
"""Takes the input arrays or symbols in the order of the table; returns one or a list of them."""
_FOLDER = "inferometer.agent.frameworks.mxnet.operators.table"


@dataclass(frozen=True, slots=True)
class Block:
    """How Gluon has an operator.

    Attributes:
        api: The block's class, such as ``gluon.nn.Conv2D``.
        make: Returns the block for a case, not initialised.
        parameters: The inputs of the table that are the block's parameters, with the attribute of the block
            that has each, such as ``{"weight": "weight"}``.
    """

    api: str
    make: Callable[[Case], Any]
    parameters: Mapping[str, str] = field(default_factory=lambda: NOTHING)


@dataclass(frozen=True, slots=True)
class Form:
    """How MXNet runs an operator.

    Attributes:
        api: The operator as ``mx.nd`` and ``mx.sym`` name it, such as ``broadcast_add``.
        make: Returns the function for a case; its first argument is ``mx.nd`` or ``mx.sym``.
        covers: The operators of MXNet's registry that this stands for; without any, ``api``.
        gluon: The block, where Gluon has one.
        symbolic: Whether ``mx.sym`` has it.
        creates: Whether the function also takes ``dtype``, and that of ``mx.nd`` also ``ctx``, because no
            input tells them.
        training: Whether it also runs as in training without a gradient, where MXNet computes something else.
        packed: The vectors that ``mx.nd`` and ``mx.sym`` have for several inputs, with the names of those in
            order; joining them is not timed. A block joins them itself.
    """

    api: str
    make: Callable[[Any, Case], Function]
    covers: tuple[str, ...] = ()
    gluon: Block | None = None
    symbolic: bool = True
    creates: bool = False
    training: bool = False
    packed: Mapping[str, tuple[str, ...]] = field(default_factory=lambda: NOTHING)


@cache
def functions() -> Mapping[str, Form]:
    """Returns the forms by the operator's name."""
    return joined(_FOLDER, "FUNCTIONS")


@cache
def reasons() -> Mapping[str, str]:
    """Returns why MXNet lacks operators of the table, by name."""
    return joined(_FOLDER, "MISSING")
