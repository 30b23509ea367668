"""The cells of the page: values as in the reports' JSON, with the texts of the printed tables."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from inferometer.evaluators.reports.base import Column, Row, Value
from inferometer.evaluators.reports.table import cell_text
from inferometer.evaluators.reports.writer import finite


def text_of(value: Value, column: Column) -> str | None:
    """Returns the text of a cell; None where the value itself is the text, and for none."""
    return cell_text(value, column) if isinstance(value, bool | float) else None


def is_number(value: Value) -> bool:
    """Returns whether a value is a number."""
    return isinstance(value, int | float) and not isinstance(value, bool)


def sort_key(value: Any) -> tuple[int, Any]:
    """Returns the sort key of a value: numbers first, by size, then texts, ignoring case."""
    return (0, value) if isinstance(value, int | float) else (1, str(value).casefold())


def columns_of(columns: Iterable[Column], numeric: Iterable[str] = (), first: Sequence[str] = ()) -> Any:
    """Returns columns, with those of the keys ``first`` before the others, which are details then."""
    known = {column.key: column for column in columns}
    order = [*first, *(key for key in known if key not in first)]
    numbers = set(numeric)
    return [
        {
            "key": key,
            "header": known[key].header,
            "numeric": key in numbers,
            "detail": bool(first) and key not in first,
        }
        for key in order
    ]


def table_of(report: str, caption: str, columns: Sequence[Column], rows: Iterable[Row]) -> dict[str, Any]:
    """Returns a report's rows as a table."""
    held = list(rows)
    numeric = [column.key for column in columns if any(is_number(row[column.key]) for row in held)]
    return {
        "report": report,
        "caption": caption,
        "columns": columns_of(columns, numeric),
        "rows": [[finite(row[column.key]) for column in columns] for row in held],
        "texts": [[text_of(row[column.key], column) for column in columns] for row in held],
    }


def figures_of(
    report: str, columns: Sequence[Column], row: Row, headlines: Sequence[str], first: int = 0
) -> list[dict[str, Any]]:
    """Returns the numbers of a report's only row; the ends of an interval belong to their figure.

    Args:
        report: Its name.
        columns: Its columns.
        row: The row.
        headlines: The keys of the main figures, in their order.
        first: The place of the first of them among those of all reports.
    """
    known = {column.key: column for column in columns}
    figures = []
    for key, column in known.items():
        if key.removesuffix("_low") != key and key.removesuffix("_low") in known:
            continue
        if key.removesuffix("_high") != key and key.removesuffix("_high") in known:
            continue
        if not is_number(row[key]) and not (row[key] is None and key in headlines):
            continue
        figure = {
            "key": key,
            "report": report,
            "label": column.header,
            "value": finite(row[key]),
            "text": text_of(row[key], column),
            "headline": first + headlines.index(key) if key in headlines else None,
        }
        for end in ("low", "high"):
            if (end_key := f"{key}_{end}") in known:
                figure[end] = finite(row[end_key])
                figure[f"{end}_text"] = text_of(row[end_key], known[end_key])
        figures.append(figure)
    return figures
