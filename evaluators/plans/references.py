"""References between parameters: ``${name}``, nested as ``${${exp.framework}.backend}``, without any eval."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

from inferometer.evaluators.plans.plan import Scalar, Value
from inferometer.manifests.errors import ConfigurationError, suggestion

_INNERMOST = re.compile(r"\$\{([^${}]*)\}")
_MOST_STEPS = 1000


def is_constant(value: Any) -> bool:
    """Whether a value has no references."""
    texts = value if isinstance(value, list) else [value]
    return not any(isinstance(text, str) and "${" in text for text in texts)


def resolved(values: Mapping[str, Value], environment: Mapping[str, str]) -> dict[str, Value]:
    """Returns values without references.

    A reference to a parameter comes before one to an environment variable. A text that is one reference alone
    has the type of what it names; in a longer text, a list is its items with spaces between, as in DLBS.

    Raises:
        ConfigurationError: A reference names nothing, or leads back to itself.
    """
    done: dict[str, Value] = {}
    for name in values:
        _resolve(name, values, environment, done, ())
    return {name: done[name] for name in values}


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
    way = (*way, name)

    def looked_up(wanted: str) -> Value:
        if wanted in values:
            return _resolve(wanted, values, environment, done, way)
        if wanted in environment:
            return environment[wanted]
        raise ConfigurationError(
            f'parameter {name}: unknown reference "{wanted}"; {suggestion(wanted, values)}'
        )

    value = values[name]
    if isinstance(value, list):
        items = [_replaced(item, looked_up, name) for item in value]
        done[name] = [each for item in items for each in (item if isinstance(item, list) else [item])]
    else:
        done[name] = _replaced(value, looked_up, name)
    return done[name]


def _replaced(value: Scalar, looked_up: Callable[[str], Value], name: str) -> Value:
    if not isinstance(value, str):
        return value
    text = value
    for _ in range(_MOST_STEPS):
        found = _INNERMOST.search(text)
        if found is None:
            return text
        referred = looked_up(found[1])
        if found[0] == text:
            if isinstance(referred, str) and "${" in referred:
                text = referred
                continue
            return referred
        text = text[: found.start()] + shown(referred) + text[found.end() :]
    raise ConfigurationError(f"parameter {name}: its references do not end")


def shown(value: Value) -> str:
    """Returns a value as an option takes it; a list is its items with spaces between."""
    if isinstance(value, list):
        return " ".join(shown(each) for each in value)
    if isinstance(value, bool):
        return "true" if value else "false"
    return "" if value is None else str(value)
