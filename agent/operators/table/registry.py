"""The operators of the table by name and by category."""

from __future__ import annotations

import importlib
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from types import MappingProxyType
from typing import Any

from inferometer.agent.operators.operator import Category, Operator
from inferometer.manifests.errors import ConfigurationError, suggestion

_HERE = "inferometer.agent.operators.table."
FILES = (
    "arithmetic",
    "unary",
    "comparison",
    "creation",
    "gemm",
    "reduction",
    "indexing",
    "rearrange",
    "convolution",
    "pooling",
    "normalization",
    "recurrent",
    "activation",
    "basic",
    "loss",
    "optimizer",
    "fused",
)
"""The modules of this folder that have operators, in the table's order."""


@cache
def operators() -> Mapping[str, Operator]:
    """Returns the operators by name."""
    found: dict[str, Operator] = {}
    for name in FILES:
        for operator in importlib.import_module(_HERE + name).OPERATORS:
            if operator.name in found:
                raise ValueError(f"two operators have the name {operator.name}")
            found[operator.name] = operator
    return MappingProxyType(found)


def joined(folder: str, variable: str) -> Mapping[str, Any]:
    """Returns what the files of a framework have by operator, of those that are named as the files here.

    Args:
        folder: The package of the framework's files.
        variable: The name of the mapping in each file.
    """
    found: dict[str, Any] = {}
    for name in FILES:
        found |= getattr(importlib.import_module(f"{folder}.{name}"), variable)
    return MappingProxyType(found)


def has_parts(name: str) -> bool:
    """Returns whether the operator of a name is a fused one."""
    return name in operators() and bool(operators()[name].parts)


def chosen_operators(names: Iterable[str], categories: Iterable[str] = ()) -> Sequence[Operator]:
    """Returns the operators of some names and some categories, each once and in the table's order.

    Raises:
        ConfigurationError: A name or a category is unknown.
    """
    known = operators()
    wanted = set()
    for name in names:
        if name not in known:
            raise ConfigurationError(f'unknown operator "{name}"; {suggestion(name, tuple(known))}')
        wanted.add(name)
    allowed = tuple(each.value for each in Category)
    for name in categories:
        if name not in allowed:
            raise ConfigurationError(f'unknown category "{name}"; {suggestion(name, allowed)}')
        wanted.update(each.name for each in known.values() if each.category.value == name)
    return [each for each in known.values() if each.name in wanted]
