"""Rendering of a picture as an HTML page: the drawing, its rows and its time in one file."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from html import escape

from inferometer.evaluators.reports.base import Column, Row, Value
from inferometer.manifests.errors import printable

MOST_ROWS = 1000
"""The maximum number of rows in the table of a page."""

_STYLE = """
body { font: 14px/1.45 system-ui, sans-serif; color: #222; background: #fff; margin: 1.5rem; }
h1 { font-size: 1.4rem; margin: 0 0 .3rem; }
p { margin: .3rem 0 1rem; color: #555; }
figure { margin: 0 0 1.5rem; }
svg { max-width: 100%; height: auto; }
div { overflow-x: auto; }
table { border-collapse: collapse; font-size: 12px; font-variant-numeric: tabular-nums; }
caption { text-align: left; padding: .3rem 0; color: #555; }
th, td { padding: .2rem .6rem; border-bottom: 1px solid #ddd; text-align: left; white-space: nowrap; }
td.number { text-align: right; }
th { border-bottom: 2px solid #888; }
"""


def page(
    title: str, svg: str, columns: Sequence[Column], rows: Sequence[Row], source: str, drawn_at: datetime
) -> str:
    """Returns a page in HTML.

    Args:
        title: The title of the picture.
        svg: The picture.
        columns: The columns of the table.
        rows: The rows behind the picture; the table shows the first ``MOST_ROWS``.
        source: The program and the report, for the line below the title.
        drawn_at: The time of drawing.
    """
    shown = rows[:MOST_ROWS]
    count = f"{len(rows):,} row{'' if len(rows) == 1 else 's'}"
    caption = count if len(shown) == len(rows) else f"The first {len(shown):,} of {count}."
    head = "".join(f'<th scope="col">{_text(column.header)}</th>' for column in columns)
    body = "\n".join(
        f"<tr>{''.join(_cell(row[column.key], column) for column in columns)}</tr>" for row in shown
    )
    when = drawn_at.isoformat(sep=" ", timespec="seconds")
    return f"""<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{_text(title)}</title>
<style>{_STYLE}</style>
</head>
<body>
<h1>{_text(title)}</h1>
<p>{_text(source)}, drawn <time datetime="{drawn_at.isoformat(timespec="seconds")}">{when}</time></p>
<figure>
{svg.strip()}
</figure>
<div>
<table>
<caption>{caption}</caption>
<thead>
<tr>{head}</tr>
</thead>
<tbody>
{body}
</tbody>
</table>
</div>
</body>
</html>
"""


def _text(text: str) -> str:
    return escape(printable(text))


def _cell(value: Value, column: Column) -> str:
    match value:
        case None:
            return "<td></td>"
        case bool():
            return f"<td>{str(value).lower()}</td>"
        case float():
            return f'<td class="number" title="{value!r}">{value:.{column.decimals}f}</td>'
        case int():
            return f'<td class="number">{value}</td>'
    return f"<td>{_text(value)}</td>"
