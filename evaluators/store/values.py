r"""Values in the form that every database keeps as it is, and back.

A document's arbitrary parts, such as a manifest's attributes, may hold what one database or the other changes
or refuses. Here these are written in another way:

- a key with ``%``, ``$``, a dot or NUL in it, or with ``_`` in front, has these as ``%XX``: databases give
  such keys a meaning of their own (neosqlite reads ``{"$date": …}`` as a time);
- an integer beyond 64 bits is ``{"%int": "…"}``, for BSON has no such integers;
- NaN or an infinity is ``{"%float": "…"}``, for JSON has no such numbers;
- a lone surrogate, as in the name of a file that is not UTF-8, becomes its escape, such as ``\udcff``: that
  one cannot be undone;
- what no document can hold, such as a date in a manifest's attributes, becomes its text.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from enum import Enum
from typing import Any
from urllib.parse import unquote

_SPECIAL = re.compile(r"[%.$\0]|^_")
_INT64 = range(-(2**63), 2**63)


def storable(value: object) -> Any:
    """Returns ``value`` as dicts, lists, texts, numbers, booleans and None that every database keeps."""
    if isinstance(value, Enum):
        value = value.value
    match value:
        case None | bool():
            return value
        case int():
            return int(value) if value in _INT64 else {"%int": str(value)}
        case float():
            return float(value) if math.isfinite(value) else {"%float": str(value)}
        case str():
            return storable_text(value)
        case Mapping():
            return {_storable_key(str(key)): storable(item) for key, item in value.items()}
        case list() | tuple():
            return [storable(item) for item in value]
    return storable_text(str(value))


def restored(value: Any) -> Any:
    """Returns what ``storable`` was given; sequences come back as lists."""
    match value:
        case {"%int": str(text)}:
            return int(text)
        case {"%float": str(text)}:
            return float(text)
        case dict():
            return {unquote(key): restored(item) for key, item in value.items()}
        case list():
            return [restored(item) for item in value]
        case bool():
            return value
        case int():  # MongoDB's 64-bit integers come as a subclass of int
            return int(value)
    return value


def storable_text(text: str) -> str:
    """Returns ``text`` with each lone surrogate as its escape."""
    return text.encode("utf-8", "backslashreplace").decode("utf-8")


def _storable_key(key: str) -> str:
    return _SPECIAL.sub(lambda found: f"%{ord(found[0]):02X}", storable_text(key))
