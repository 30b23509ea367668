"""The documents of measurements in a database, and the form of their values.

The small values of a measurement are a part of the evaluation's own document; its raw values are documents in
collections.

Values are converted to a form that every database stores unchanged, and back. Arbitrary values, such as a
manifest's attributes, may contain something that a database changes or refuses:

- in a key, ``%``, ``$``, a dot, NUL and a leading ``_`` become ``%XX``, because databases give such keys a
  meaning of their own (neosqlite reads ``{"$date": …}`` as a time);
- an integer beyond 64 bits becomes ``{"%int": "…"}``, because BSON has no such integers;
- NaN and infinities become ``{"%float": "…"}``, because JSON has no such numbers;
- a lone surrogate, as in a file name that is not UTF-8, becomes the escape that ``ascii``
  writes, and is not converted back;
- any other value, such as a date in a manifest's attributes, becomes its text.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass
from enum import Enum
from functools import cache
from types import GenericAlias
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar, get_type_hints
from urllib.parse import unquote

import numpy as np
from numpy.typing import NDArray
from pydantic import ConfigDict, TypeAdapter, ValidationError

if TYPE_CHECKING:
    from _typeshed import DataclassInstance


_SPECIAL = re.compile(r"[%.$\0]|^_")
_STRICT = ConfigDict(strict=True, arbitrary_types_allowed=True)
_Record = TypeVar("_Record", bound="DataclassInstance")
_adapter = cache(TypeAdapter)
_INT64 = range(-(2**63), 2**63)


def storable(value: object) -> Any:
    """Converts ``value`` to dicts, lists, texts, numbers, booleans and None; a dataclass becomes a dict."""
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
    return fields_of(value) if is_dataclass(value) else storable_text(str(value))


def restored(value: Any) -> Any:
    """Reverses ``storable``: returns the original value, except that sequences become lists."""
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
    """Returns the fields of a dataclass instance by name, in storable form."""
    return {field.name: storable(getattr(record, field.name)) for field in fields(record)}


def record(kind: type[_Record], stored: Any) -> _Record:
    """Returns the instance of a dataclass of plain values and records that ``storable`` made a dict.

    Raises:
        TypeError: A field does not match its annotation, or is missing; the message names it.
    """
    try:
        found: _Record = _adapter(kind).validate_json(json.dumps(restored(stored)), strict=True)
        return found
    except ValidationError as error:
        raise _wrong(error) from error


def checked(record: _Record) -> _Record:
    """Returns an instance of a dataclass after checking that its fields match their annotations.

    Members of mappings and sequences are checked too; of an array or another record, only its type is.

    Raises:
        TypeError: A field does not match; the message names it.
    """
    names, types = _fields(type(record))
    try:
        types.validate_python(tuple(getattr(record, name) for name in names))
    except ValidationError as error:
        raise _wrong(error, names) from error
    return record


def _wrong(error: ValidationError, names: Sequence[str] = ()) -> TypeError:
    """Returns the error for the first value that does not match; ``names`` are those of the first places."""
    found = error.errors(include_url=False, include_context=False)[0]
    place, *inside = found["loc"] or ("it",)
    where = ".".join(map(str, (names[int(place)] if names else place, *inside)))
    what = "missing" if found["type"] == "missing" else type(found["input"]).__name__
    return TypeError(f"{where} is {what}")


@cache
def _fields(kind: type[DataclassInstance]) -> tuple[Sequence[str], TypeAdapter[Any]]:
    """Returns the names of a dataclass's fields, and a strict adapter for the tuple of their types."""
    names, hints = [field.name for field in fields(kind)], get_type_hints(kind)
    types: Any = GenericAlias(tuple, tuple(hints[name] for name in names))
    return names, TypeAdapter(types, config=_STRICT)


def storable_text(text: str) -> str:
    """Returns ``text`` with each lone surrogate replaced by its escape."""
    return text.encode("utf-8", "backslashreplace").decode("utf-8")


def _storable_key(key: str) -> str:
    return _SPECIAL.sub(lambda found: f"%{ord(found[0]):02X}", storable_text(key))


Document: TypeAlias = dict[str, Any]
Stored: TypeAlias = Mapping[str, Any]
"""A document as read from a database."""


@dataclass(frozen=True, slots=True)
class Part:
    """The documents of one collection that belong to an evaluation, generated lazily.

    Attributes:
        count: The number of documents.
        documents: The content of the documents, without the id and the owner.
    """

    count: int
    documents: Iterable[Document]


Documents: TypeAlias = tuple[Document, Mapping[str, Part]]
"""A measurement in the evaluation's own document, and its other parts by collection."""


SPANS = "span"
"""The collection of trace spans, for evaluations of every kind."""
SAMPLE_IDS = "dataset_sample"
"""The collection of sample ids, for evaluations of any kind over some of a dataset's samples."""


VALUES_PER_DOCUMENT = 20_000
"""The maximum length of a column in a document, far below 16 MB, the size limit of a MongoDB document."""


def column_part(stretches: Sequence[tuple[Document, Mapping[str, NDArray[Any]]]]) -> Part:
    """Returns the documents of columns, cut into pieces; each piece has the other values of its stretch."""
    pieces = [
        (own, columns, slice(at, at + VALUES_PER_DOCUMENT))
        for own, columns in stretches
        for at in range(0, len(next(iter(columns.values()))), VALUES_PER_DOCUMENT)
    ]

    def documents() -> Iterator[Document]:
        for own, columns, piece in pieces:
            yield own | {name: _listed(column[piece]) for name, column in columns.items()}

    return Part(len(pieces), documents())


def columns_of(documents: Sequence[Stored], names: Iterable[str], count: int, what: str) -> dict[str, Any]:
    """Returns the columns, int64, that ``column_part`` cut; raises ValueError unless all have the length."""
    columns = {name: joined(each[name] for each in documents) for name in names}
    lengths = {len(column) for column in columns.values()}
    if len(lengths) != 1:
        raise ValueError(f"the columns of its {what} differ in length")
    if lengths != {count}:
        raise ValueError(f"{lengths.pop()} of its {count} {what} are present")
    return columns


def _listed(column: NDArray[Any]) -> list[Any]:
    values: list[Any] = column.tolist()
    return values if column.dtype.kind == "i" else [storable(value) for value in values]


def joined(parts: Iterable[Sequence[int]]) -> NDArray[np.int64]:
    """Returns a column, int64, joined from the pieces into which it was split."""
    return np.concatenate([np.empty(0, np.int64), *(np.array(part, np.int64) for part in parts)])
