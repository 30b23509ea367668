"""References between parameters, conditions on them by DLBS's rules, and comparisons, all without ``eval``.

A reference is ``${name}``, nested as ``${${exp.framework}.backend}``.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Mapping
from typing import Any

from inferometer.evaluators.plans.plan import Scalar, Value
from inferometer.manifests.errors import ConfigurationError, suggestion

_INNERMOST = re.compile(r"\$\{([^${}]*)\}")
_CONDITION = re.compile(r"^__condition\d+\.")
_MOST_STEPS = 1000
_MOST_DEPTH = 100
_MOST_CHARACTERS = 100_000
_COMPARISON = re.compile(r"(?P<left>.+?)\s*(?P<operator><=|>=|==|!=|<|>)\s*(?P<right>.+)", re.DOTALL)
_OPERATORS: Mapping[str, Callable[[Any, Any], Any]] = {
    "<=": operator.le,
    ">=": operator.ge,
    "==": operator.eq,
    "!=": operator.ne,
    "<": operator.lt,
    ">": operator.gt,
}


def is_constant(value: Any) -> bool:
    """Returns whether a value has no references."""
    texts = value if isinstance(value, list) else [value]
    return not any(isinstance(text, str) and "${" in text for text in texts)


def referred_in(text: str) -> set[str]:
    """Returns the names that a text refers to, with ``*`` for a reference inside a name."""
    found: set[str] = set()
    while innermost := _INNERMOST.findall(text):
        found.update(innermost)
        text = _INNERMOST.sub("*", text)
    return found


def with_references(value: Any, rename: Callable[[str], str]) -> Any:
    """Renames the references in a value, or in a list of values, and returns the result."""
    if isinstance(value, list):
        return [with_references(each, rename) for each in value]
    if not isinstance(value, str):
        return value
    return _INNERMOST.sub(lambda found: f"${{{rename(found[1])}}}", value)


def resolved(values: Mapping[str, Value], environment: Mapping[str, str]) -> dict[str, Value]:
    """Returns values without references.

    A parameter takes precedence over an environment variable of the same name. A text that consists of one
    reference has the type of the value that it names; in a longer text, a list becomes its items separated by
    spaces, as in DLBS.

    Raises:
        ConfigurationError: A reference names an unknown parameter, is not closed, or is circular; or a value
            becomes too long.
    """
    done: dict[str, Value] = {}
    for name in values:
        _resolve(name, values, environment, done, ())
    return {name: done[name] for name in values}


def filled(text: str, values: Mapping[str, Value], where: str) -> Value:
    """Returns a text in which references are replaced by values that have no references themselves.

    Raises:
        ConfigurationError: A reference names an unknown parameter, or is not closed; the message begins with
            ``where``.
    """

    def looked_up(wanted: str) -> Value:
        if wanted in values:
            return values[wanted]
        raise _unknown(where, wanted, values)

    return _replaced(text, looked_up, where)


def _resolve(
    name: str,
    values: Mapping[str, Value],
    environment: Mapping[str, str],
    done: dict[str, Value],
    way: tuple[str, ...],
) -> Value:
    if name in done:
        return done[name]
    if name in way:
        circle = " → ".join((*way[way.index(name) :], name))
        raise ConfigurationError(f"parameter {way[0]}: its references lead back to itself: {circle}")
    way, where = (*way, name), f"parameter {name}"
    if len(way) > _MOST_DEPTH:
        raise ConfigurationError(f"parameter {way[0]}: its references are deeper than {_MOST_DEPTH} levels")

    def looked_up(wanted: str) -> Value:
        if wanted in values:
            return _resolve(wanted, values, environment, done, way)
        if wanted in environment:
            return environment[wanted]
        raise _unknown(where, wanted, values)

    value = values[name]
    if isinstance(value, list):
        items = [_replaced(item, looked_up, where) for item in value]
        whole = [each for item in items for each in (item if isinstance(item, list) else [item])]
        if len(whole) > _MOST_CHARACTERS:
            raise _too_long(where)
        done[name] = whole
    else:
        done[name] = _replaced(value, looked_up, where)
    return done[name]


def _unknown(where: str, wanted: str, values: Mapping[str, Value]) -> ConfigurationError:
    """Returns the error for an unknown reference; a captured value has the name that extensions write."""
    written = _CONDITION.sub("__condition.", wanted)
    known = dict.fromkeys(_CONDITION.sub("__condition.", name) for name in values)
    return ConfigurationError(f'{where}: unknown reference "{written}"; {suggestion(written, known)}')


def _too_long(where: str) -> ConfigurationError:
    return ConfigurationError(f"{where}: with its references it is longer than {_MOST_CHARACTERS} characters")


def _replaced(value: Scalar, looked_up: Callable[[str], Value], where: str) -> Value:
    if not isinstance(value, str):
        return value
    text = value
    for _ in range(_MOST_STEPS):
        found = _INNERMOST.search(text)
        if found is None:
            if "${" in text:
                raise ConfigurationError(f'{where}: a reference in "{value}" has no end; write ${{NAME}}')
            return text
        referred = looked_up(found[1])
        if found[0] == text:
            if isinstance(referred, str) and "${" in referred:
                text = referred
                continue
            return referred
        text = text[: found.start()] + shown(referred) + text[found.end() :]
        if len(text) > _MOST_CHARACTERS:
            raise _too_long(where)
    raise ConfigurationError(f"{where}: more than {_MOST_STEPS} references in one value")


def shown(value: Value) -> str:
    """Returns a value as an option takes it; a list becomes its items separated by spaces."""
    if isinstance(value, list):
        return " ".join(shown(each) for each in value)
    if isinstance(value, bool):
        return "true" if value else "false"
    return "" if value is None else str(value)


def fits(
    values: Mapping[str, Value], condition: Mapping[str, Value], *, strict: bool
) -> dict[str, Value] | None:
    """Returns the matched texts, ``NAME_0`` whole and ``NAME_1`` … by group; None if the values do not match.

    Args:
        values: Parameters, which may have references.
        condition: For each parameter, an equal value, a list of values, or, for a text, a regular expression
            that matches at the start of the value. An empty text matches only an empty text.
        strict: Whether a parameter that is not among the values fails the condition, instead of meeting it.

    Raises:
        ConfigurationError: A parameter that the condition names has references, or the text is not a valid
            regular expression.
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
    """Returns whether a value is among others; true does not equal 1, unlike in Python."""
    return any(value == each and isinstance(value, bool) == isinstance(each, bool) for each in wanted)


def holds(comparison: str, values: Mapping[str, Value]) -> bool:
    """Returns whether a comparison such as ``${a} * ${b} <= 256`` holds for values without references.

    Both sides are a text, a number or a product of numbers. Texts support only == and !=.

    Raises:
        ConfigurationError: The text is not a comparison, or its sides are not comparable.
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
    """Returns a value as a number where it is one or can be parsed as one, else its text."""
    if isinstance(value, int | float) and not isinstance(value, bool):
        return value
    text = shown(value)
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text
