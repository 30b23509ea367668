"""Cases of operators in a YAML file: a list whose entries name an operator, and some of its sizes.

::

    - operator: conv2d
      inputs: {data: [32, 3, 224, 224]}
      parameters: {kernel: [3, 3]}
"""

from __future__ import annotations

import stat
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from inferometer.agent.operators.operator import Operator, ParameterValue, Shape
from inferometer.agent.operators.table.registry import chosen_operators
from inferometer.evaluators.operators.cases import OwnCase
from inferometer.manifests.errors import ConfigurationError, suggestion
from inferometer.manifests.strict_yaml import parse_yaml

_FIELDS = ("operator", "inputs", "parameters")
_MOST_BYTES = 4 * 1024 * 1024


def read_cases(path: Path) -> tuple[OwnCase, ...]:
    """Returns the cases of a file, in order.

    Raises:
        ConfigurationError: It cannot be read, is no list of cases, or one does not fit its operator. The
            message names the file and the line or the entry, counted from 1.
    """
    content = _content(path)
    if not isinstance(content, list) or not content:
        raise ConfigurationError(f"{path}: is no list of cases, each with operator, inputs and parameters")
    cases = []
    for number, entry in enumerate(content, 1):
        try:
            cases.append(_case(entry))
        except ConfigurationError as error:
            raise ConfigurationError(f"{path}: entry {number}: {error}") from error
    return tuple(cases)


def _content(path: Path) -> Any:
    try:
        status = path.stat()
        if not stat.S_ISREG(status.st_mode):  # reading a pipe or a device may never end
            raise ConfigurationError(f"{path}: is no file")
        if status.st_size > _MOST_BYTES:
            raise ConfigurationError(f"{path}: larger than {_MOST_BYTES} bytes, which no list of cases is")
        return parse_yaml(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigurationError(f"{path}: cannot be read: {error.strerror or error}") from error
    except ValueError as error:  # invalid YAML, or invalid UTF-8
        raise ConfigurationError(f"{path}: cannot be read as YAML: {error}") from error


def _case(entry: Any) -> OwnCase:
    if not isinstance(entry, dict):
        raise ConfigurationError(f"is {_shown(entry)}, and no mapping with operator, inputs and parameters")
    for name in entry:
        if name not in _FIELDS:
            raise ConfigurationError(f'unknown field "{name}"; {suggestion(str(name), _FIELDS)}')
    name = entry.get("operator")
    if not isinstance(name, str):
        raise ConfigurationError("names no operator; give one as in operator: conv2d")
    [operator] = chosen_operators([name])
    shapes = _each(entry, "inputs", lambda _, value: _shape(value))
    parameters = _each(entry, "parameters", lambda name, value: _parameter(operator, name, value))
    operator.own_case(shapes, parameters)
    return OwnCase(operator.name, shapes, parameters)


def _each(entry: Mapping[str, Any], field: str, read: Callable[[str, Any], Any]) -> dict[str, Any]:
    """Returns the values of a field that is a mapping, or left out."""
    given = entry.get(field, {})
    if not isinstance(given, dict):
        raise ConfigurationError(f"{field} is {_shown(given)}, and no mapping of names to values")
    found = {}
    for name, value in given.items():
        try:
            found[str(name)] = read(str(name), value)
        except ValueError as error:
            raise ConfigurationError(f"{field}: {name} is {_shown(value)}; {error}") from error
    return found


def _shape(value: Any) -> Shape:
    if not isinstance(value, list) or not value or not all(_is_whole(size) and size > 0 for size in value):
        raise ValueError("write a list of sizes of 1 or more, such as [32, 3, 224, 224]")
    return tuple(value)


def _parameter(operator: Operator, name: str, value: Any) -> ParameterValue:
    """Returns the value, if it has the type of the parameter's default."""
    default = operator.parameters.get(name)
    if default is None:
        return str(value)  # own_case names the nearest parameter
    if isinstance(default, tuple):
        if isinstance(value, list) and all(map(_is_whole, value)):
            return tuple(value)
        raise ValueError(f"write whole numbers, such as {list(default)}")
    if isinstance(default, float) and _is_whole(value):
        return float(value)
    if type(value) is not type(default):
        raise ValueError(f"write a value such as {str(default).lower()}")
    found: ParameterValue = value
    return found


def _is_whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _shown(value: Any) -> str:
    text = " ".join(str(value).split())
    return f'"{text[:60]}"' if text else "empty"
