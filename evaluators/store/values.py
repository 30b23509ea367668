r"""Conversion of values to a form that every database stores unchanged, and back.

Arbitrary values, such as a manifest's attributes, may hold what a database changes or refuses:

- in a key, ``%``, ``$``, a dot, NUL and a leading ``_`` become ``%XX``, because databases give such keys a
  meaning of their own (neosqlite reads ``{"$date": …}`` as a time);
- an integer beyond 64 bits becomes ``{"%int": "…"}``, because BSON has no such integers;
- NaN and infinities become ``{"%float": "…"}``, because JSON has no such numbers;
- a lone surrogate, as in a file name that is not UTF-8, becomes its escape, such as ``\udcff``, and stays so;
- any other value, such as a date in a manifest's attributes, becomes its text.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import fields
from enum import Enum
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import unquote

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

_SPECIAL = re.compile(r"[%.$\0]|^_")
_PLAIN: Mapping[str, tuple[type, ...]] = {
    "str": (str,),
    "int": (int,),
    "float": (int, float),
    "bool": (bool,),
    "None": (type(None),),
}
_Record = TypeVar("_Record", bound="DataclassInstance")
_INT64 = range(-(2**63), 2**63)


def storable(value: object) -> Any:
    """Returns ``value`` as dicts, lists, texts, numbers, booleans and None."""
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
    """Returns the argument of ``storable`` from its result; sequences become lists."""
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


def fields_of(record: Any) -> dict[str, Any]:
    """Returns the storable fields of a dataclass."""
    return {field.name: storable(getattr(record, field.name)) for field in fields(record)}


def checked(record: _Record) -> _Record:
    """Returns an instance of a dataclass whose fields of plain types hold what their annotations say.

    Raises:
        TypeError: One does not; the message names it.
    """
    for field in fields(record):
        names = str(field.type).split(" | ")
        if set(names) <= set(_PLAIN):
            value = getattr(record, field.name)
            wanted = tuple(kind for name in names for kind in _PLAIN[name])
            if not isinstance(value, wanted) or (isinstance(value, bool) and "bool" not in names):
                raise TypeError(f"{field.name} is {type(value).__name__}")
    return record


def storable_text(text: str) -> str:
    """Returns ``text`` with each lone surrogate as its escape."""
    return text.encode("utf-8", "backslashreplace").decode("utf-8")


def _storable_key(key: str) -> str:
    return _SPECIAL.sub(lambda found: f"%{ord(found[0]):02X}", storable_text(key))
