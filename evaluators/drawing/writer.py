"""The writer of pictures: draws the rows of a report into an SVG, PNG or HTML file.

The HTML page holds the drawing, its rows and its time in one file.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from enum import Enum
from html import escape
from pathlib import Path
from typing import Any

from inferometer.evaluators.drawing.charts import Drawing
from inferometer.evaluators.reports.base import Column, Report, Row, Value
from inferometer.evaluators.reports.writer import OutputFile
from inferometer.manifests.errors import ConfigurationError, OutputError, printable

MOST_ROWS = 1000
"""The maximum number of rows in the table of a page."""

_STYLE = Path(__file__).with_name("page.css")


def page(
    title: str, svg: str, columns: Sequence[Column], rows: Sequence[Row], source: str, drawn_at: datetime
) -> str:
    """Returns an HTML page with a picture.

    Args:
        title: The title of the picture.
        svg: The picture.
        columns: The columns of the table.
        rows: The rows from which the picture is drawn; the table shows the first ``MOST_ROWS``.
        source: The program and the report, shown in the line below the title.
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
<style>
{_STYLE.read_text(encoding="utf-8")}</style>
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


class PictureFormat(str, Enum):
    """The file format of a picture."""

    HTML = "html"
    SVG = "svg"
    PNG = "png"


class PictureFile:
    """A file for a picture. The constructor performs every check that is possible before the picture exists.

    Args:
        path: The file; its ending selects the format.
        overwrite: Whether an existing file is replaced.

    Raises:
        ConfigurationError: The suffix matches no format, or Matplotlib is not installed.
        OutputError: The file exists and is not to be replaced, or cannot be written.
    """

    def __init__(self, path: Path, *, overwrite: bool = False) -> None:
        self._format = _format_of(path)
        self._file = OutputFile(path, appendable=False)
        self._overwrite = overwrite
        if self._file.exists() and not overwrite:
            raise self._file.in_the_way()
        if not path.parent.is_dir():
            raise OutputError(f"{path}: the folder {path.parent} does not exist")
        try:
            from inferometer.evaluators.drawing import canvas  # noqa: F401 - whether it can be imported
        except ImportError as error:
            raise ConfigurationError(
                f"a picture needs Matplotlib, which cannot be imported ({' '.join(str(error).split())}); "
                'install it with: pip install "inferometer[plot]"'
            ) from error
        except ValueError as error:  # an invalid environment variable of Matplotlib
            raise ConfigurationError(
                f"Matplotlib, which draws pictures, does not start: {' '.join(str(error).split())}"
            ) from error

    def __str__(self) -> str:
        return str(self._file)

    def write(
        self, report: Report[Any], drawing: Drawing | None, rows: Sequence[Row], drawn_at: datetime
    ) -> bool:
        """Writes the picture of a report with these rows; see ``draw``."""
        source = f"Report {report.name} of inferometer: {report.summary}"
        return self.draw(drawing, report.columns, rows, source, drawn_at)

    def draw(
        self,
        drawing: Drawing | None,
        columns: Sequence[Column],
        rows: Sequence[Row],
        source: str,
        drawn_at: datetime,
    ) -> bool:
        """Writes a picture in one step.

        Args:
            drawing: The picture; None if there is nothing to draw.
            columns: The columns of the table that an HTML page shows below it.
            rows: The rows of that table.
            source: The subject of the picture, which the page shows in a line.
            drawn_at: The time that the page shows.

        Returns:
            Whether there was anything to draw; otherwise no file is written.

        Raises:
            OutputError: The file cannot be written.
        """
        if drawing is None:
            return False
        from inferometer.evaluators.drawing.canvas import png, svg  # which load Matplotlib

        content: str | bytes
        match self._format:
            case PictureFormat.PNG:
                content = png(drawing)
            case PictureFormat.SVG:
                content = svg(drawing)
            case PictureFormat.HTML:
                content = page(drawing.title, svg(drawing), columns, rows, source, drawn_at)
        self._file.write(content, overwrite=self._overwrite)
        return True


def inline_svg(drawing: Drawing) -> str | None:
    """Returns a drawing as SVG that can be embedded in a page; None if Matplotlib is not installed."""
    try:
        from inferometer.evaluators.drawing.canvas import svg
    except (ImportError, ValueError):  # a ValueError: its settings are invalid
        return None
    return svg(drawing)


def _format_of(path: Path) -> PictureFormat:
    try:
        return PictureFormat(path.suffix.removeprefix(".").lower())
    except ValueError as error:
        endings = ", ".join(f".{known.value}" for known in PictureFormat)
        found = f'ends in "{path.suffix}"' if path.suffix else "has no ending"
        raise ConfigurationError(f'the picture "{path}" {found}; allowed: {endings}') from error
