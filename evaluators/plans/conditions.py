"""Conditions on parameters, by DLBS's rules, and comparisons between them."""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Mapping
from typing import Any

from inferometer.evaluators.plans.plan import Value
from inferometer.evaluators.plans.references import filled, is_constant, shown
from inferometer.manifests.errors import ConfigurationError

_COMPARISON = re.compile(r"(?P<left>.+?)\s*(?P<operator><=|>=|==|!=|<|>)\s*(?P<right>.+)", re.DOTALL)
_OPERATORS: Mapping[str, Callable[[Any, Any], Any]] = {
    "<=": operator.le,
    ">=": operator.ge,
    "==": operator.eq,
    "!=": operator.ne,
    "<": operator.lt,
    ">": operator.gt,
}


def fits(
    values: Mapping[str, Value], condition: Mapping[str, Value], *, strict: bool
) -> dict[str, Value] | None:
    """Returns what fitted, as ``NAME_0`` whole and ``NAME_1`` … by group; None where the values do not fit.

    Args:
        values: Parameters, which may have references.
        condition: The value of each parameter: equal to it; one of a list; or, for a text, a regular
            expression that the value begins with. An empty text fits an empty text alone.
        strict: Whether a parameter that is not among the values does not fit, instead of fitting.

    Raises:
        ConfigurationError: A parameter that the condition names has references, or the text is no regular
            expression.
    """
    found: dict[str, Value] = {}
    for name, wanted in condition.items():
        if name not in values:
            if strict:
                return None
            continue
        value = values[name]
        if not is_constant(value):
            raise ConfigurationError(
                f'the condition on {name} cannot be decided: its value "{shown(value)}" has references; '
                "conditions take parameters without them"
            )
        if isinstance(wanted, str) and wanted:
            try:
                match = re.match(wanted, shown(value))
            except re.error as error:
                raise ConfigurationError(
                    f"the condition on {name} is no regular expression: {error}"
                ) from error
            if match is None:
                return None
            found.update({f"{name}_{place}": group for place, group in enumerate(match.groups(), 1)})
        elif not is_one_of(value, wanted if isinstance(wanted, list) else [wanted]):
            return None
        found[f"{name}_0"] = value
    return found


def is_one_of(value: Value, wanted: list[Any]) -> bool:
    """Returns whether a value is among others; true is not 1, as it is in Python."""
    return any(value == each and isinstance(value, bool) == isinstance(each, bool) for each in wanted)


def holds(comparison: str, values: Mapping[str, Value]) -> bool:
    """Whether a comparison such as ``${a} * ${b} <= 256`` holds for values without references.

    Both sides are a text, a number or a product of numbers. Texts compare with == and != alone.

    Raises:
        ConfigurationError: It is no comparison, or its sides do not compare.
    """
    parts = _COMPARISON.fullmatch(comparison.strip())
    if parts is None:
        raise ConfigurationError(
            f'the constraint "{comparison}" is no comparison, such as ${{batch_size}} * ${{replicas}} <= 256'
        )
    left, right = (_side(parts[name], values, comparison) for name in ("left", "right"))
    compared = parts["operator"]
    if compared not in ("==", "!=") and any(isinstance(side, str) for side in (left, right)):
        raise ConfigurationError(
            f'the constraint "{comparison}": "{shown(left)}" {compared} "{shown(right)}" takes numbers; '
            "texts compare with == and != alone"
        )
    return bool(_OPERATORS[compared](left, right))


def _side(text: str, values: Mapping[str, Value], comparison: str) -> str | int | float:
    where = f'the constraint "{comparison}"'
    factors = [_number(filled(part.strip(), values, where)) for part in text.split("*")]
    if len(factors) == 1:
        return factors[0]
    product: int | float = 1
    for factor in factors:
        if isinstance(factor, str):
            raise ConfigurationError(f'{where}: "{factor}" is no number')
        product *= factor
    return product


def _number(value: Value) -> str | int | float:
    """The number that a value is or writes, else its text."""
    if isinstance(value, int | float) and not isinstance(value, bool):
        return value
    text = shown(value)
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text
