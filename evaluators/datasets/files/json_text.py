"""JSON that others wrote: reading it, and the numbers and names in it, with the program's own messages."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from typing import Any

from inferometer.manifests.errors import one_line, printable

_SHOWN_CHARACTERS = 60


def parse_json(content: str | bytes) -> Any:
    """Returns the content of a JSON text; bytes are UTF-8, with or without a byte order mark.

    Raises:
        ValueError: It is not JSON, or an object has a name twice. The message has the place, and follows the
            name of the file.
    """
    try:
        text = content.decode("utf-8-sig") if isinstance(content, bytes) else content
        return json.loads(text, object_pairs_hook=_object)
    except UnicodeDecodeError as error:
        raise ValueError(f"is not UTF-8 at byte {error.start}") from error
    except json.JSONDecodeError as error:
        line = f"line {error.lineno}, " if "\n" in error.doc.strip() else ""
        raise ValueError(f"is no JSON at {line}column {error.colno}") from error
    except RecursionError as error:
        raise ValueError("is no JSON that can be read: it is nested too deeply") from error
    except _RepeatedNameError:
        raise
    except ValueError as error:  # the interpreter's limit
        raise ValueError("is no JSON that can be read: a number has too many digits") from error


class _RepeatedNameError(ValueError):
    """An object has a name twice."""


def _object(pairs: Sequence[tuple[str, Any]]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, value in pairs:
        if name in found:
            raise _RepeatedNameError(f'has "{printable(name[:_SHOWN_CHARACTERS])}" twice in one object')
        found[name] = value
    return found


def shown(value: object) -> str:
    """Returns a value of JSON for a message, in a few words."""
    if isinstance(value, list | dict):
        return "a list" if isinstance(value, list) else "an object"
    return printable(one_line(json.dumps(value, ensure_ascii=False), _SHOWN_CHARACTERS))


def number(value: object, name: str) -> float:
    """Returns a number of JSON.

    Raises:
        ValueError: It is not a number, or not finite in float64; the message begins with ``name``.
    """
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ValueError(f"{name} is {shown(value)}, and no number")
    try:
        found = float(value)
    except OverflowError:
        found = math.inf
    if not math.isfinite(found):
        raise ValueError(f"{name} is {found}")
    return found


def numbers(value: object, name: str) -> list[float]:
    """Returns a list of numbers; raises ValueError as ``number`` does, or if it is not a list."""
    if not isinstance(value, list):
        raise ValueError(f"{name} is {shown(value)}, and no list of numbers")
    return [number(each, f"a number of {name}") for each in value]


def key(value: object, name: str) -> int | str:
    """Returns an id: a whole number, which may be written as ``1.0``, or a text.

    Raises:
        ValueError: It is neither of the two; the message begins with ``name``.
    """
    if isinstance(value, float) and value.is_integer():
        return int(value)
    if isinstance(value, bool) or not isinstance(value, int | str):
        raise ValueError(f"{name} is {shown(value)}, and neither a whole number nor a text")
    return value
