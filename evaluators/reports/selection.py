"""The choice of a report's columns and the order of its rows, by names that a person types."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence

from inferometer.evaluators.reports.base import Column, Row, Value
from inferometer.manifests.errors import ConfigurationError, suggestion

_UNIT = re.compile(r"\s*\([^)]*\)")
_DESCENDING = "-"


def choose_columns(columns: Sequence[Column], names: str) -> tuple[Column, ...]:
    """Returns the named columns, each once, in the order of the names.

    A column has the name of its key, and of its heading without the unit if no other column has that; case
    does not matter, and blanks and hyphens stand for underscores.

    Args:
        columns: All columns of the report.
        names: Names, with commas between.

    Raises:
        ConfigurationError: A column does not exist, or no name is given.
    """
    known = known_columns(columns)
    return tuple(dict.fromkeys(_find(known, name) for name in _split(names, "columns")))


def sort_rows(columns: Sequence[Column], rows: Iterable[Row], names: str) -> list[Row]:
    """Returns the rows in the order of the named columns; rows that are equal there keep their order.

    Rows without a value come last in either direction.

    Args:
        columns: All columns of the report.
        rows: The rows, which are kept in memory.
        names: As for ``choose_columns``; one that begins with ``-`` sorts from the highest value down.

    Raises:
        ConfigurationError: A column does not exist, or no name is given.
    """
    known = known_columns(columns)
    keys = [
        (_find(known, name.removeprefix(_DESCENDING)).key, name.startswith(_DESCENDING))
        for name in _split(names, "sort")
    ]
    ordered = list(rows)
    for key, descending in reversed(keys):
        ordered.sort(key=lambda row: _place(row[key]), reverse=descending)
        ordered.sort(key=lambda row: _is_missing(row[key]))
    return ordered


def known_columns(columns: Sequence[Column]) -> Mapping[str, Column]:
    """Returns the columns by each of their names, the keys first."""
    known = {column.key: column for column in columns}
    headings = [_name(_UNIT.sub("", column.header)) for column in columns]
    for heading, column in zip(headings, columns, strict=True):
        if headings.count(heading) == 1:
            known.setdefault(heading, column)
    return known


def _split(names: str, option: str) -> list[str]:
    found = [name.strip() for name in names.split(",") if name.strip()]
    if not found:
        raise ConfigurationError(f"{option} names no column; give names with commas between")
    return found


def _find(known: Mapping[str, Column], name: str) -> Column:
    found = known.get(_name(name))
    if found is None:
        raise ConfigurationError(f'unknown column "{name}"; {suggestion(_name(name), known)}')
    return found


def _name(text: str) -> str:
    return re.sub(r"[\s-]", "_", text.strip().casefold())


def _is_missing(value: Value) -> bool:
    return value is None or (isinstance(value, float) and math.isnan(value))


def _place(value: Value) -> tuple[int, float, str]:
    """Numbers by their value, and texts after them."""
    if _is_missing(value):
        return (0, 0.0, "")
    return (1, 0.0, value.casefold()) if isinstance(value, str) else (0, float(value or 0), "")
