"""HTML of rows, for notebooks; nothing in it runs."""

from __future__ import annotations

import html
from collections.abc import Iterator, Sequence


def table(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Returns a table of escaped cells; without headings it has no head."""
    head = "".join(_line(headings, "th")) if headings else ""
    return f"<table>{head}{''.join(part for row in rows for part in _line(row, 'td'))}</table>"


def _line(cells: Sequence[str], tag: str) -> Iterator[str]:
    yield "<tr>"
    yield from (f'<{tag} style="text-align: left">{html.escape(cell)}</{tag}>' for cell in cells)
    yield "</tr>"
