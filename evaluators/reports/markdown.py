"""Rendering of rows as a Markdown table in GitHub's syntax."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from inferometer.evaluators.reports.base import Column, Row
from inferometer.evaluators.reports.table import cell_text, joined

NOTHING = "---"
"""The cell of a value that is not there."""


def markdown_lines(columns: Sequence[Column], rows: Iterable[Row], *, header: bool) -> Iterator[str]:
    """Yields the pieces of the table; numbers are rounded, and texts that may wrap are on the left."""
    if header:
        yield header_line(columns)
        yield _line(":---" if column.wraps else ":---:" for column in columns)
    yield from joined(_line(_cell(row, column) for column in columns) for row in rows)


def header_line(columns: Sequence[Column]) -> str:
    """Returns the first line of a table of some columns."""
    return _line(_escaped(column.header) for column in columns)


def _line(cells: Iterable[str]) -> str:
    return f"| {' | '.join(cells)} |\n"


def _cell(row: Row, column: Column) -> str:
    value = row[column.key]
    return NOTHING if value is None else _escaped(cell_text(value, column))


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace("|", "\\|")
