"""Rendering of drawings as SVG and PNG with Matplotlib."""

from __future__ import annotations

import io
import re
import textwrap
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from html import escape
from typing import Any

import matplotlib as mpl
from matplotlib.artist import Artist
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from inferometer.evaluators.drawing.charts import (
    BELOW_AXES_INCHES,
    HEADING_INCHES,
    Chart,
    Drawing,
    PointChart,
    height_of,
)
from inferometer.evaluators.drawing.painting import groups_of, paint, shortened
from inferometer.evaluators.drawing.style import ALARM, PALE, SMALL, TINY, Palette, Tip
from inferometer.manifests.errors import printable

_WIDTH = 12.0
_LEFT = 3.75
_LEFT_OF_POINTS = 0.9
_RIGHT = 2.0
_RIGHT_WITHOUT_LEGEND = 0.3
_TITLE = 0.5
_NO_HEADING = 0.1
_WARNING = 0.18
_LEGEND_ENTRY = 0.19
_NOTE_LINE = 0.16
_NOTE_CHARACTERS = 185
_WARNING_CHARACTERS = 150
_DOTS_PER_INCH = 120

_SETTINGS: dict[Any, Any] = {
    "font.family": ["sans-serif"],
    # Matplotlib includes the first font; a browser uses any that it has
    "font.sans-serif": ["DejaVu Sans", "Verdana", "Arial"],
    "text.parse_math": False,  # a "$" in a name is a dollar
    "hatch.linewidth": 0.6,
    "hatch.color": "white",
    # Text stays text, which can be searched, copied and read aloud, with letters that DejaVu lacks. The other
    # fonts are narrower, so that nothing overlaps.
    "svg.fonttype": "none",
    "svg.hashsalt": "inferometer",  # ids are otherwise random
}


def svg(drawing: Drawing) -> str:
    """Returns a drawing as self-contained SVG; a ``<title>`` in each mark is its tooltip.

    The same drawing gives the same text. Not thread-safe: it changes Matplotlib's settings while it runs.
    """
    tooltips: dict[str, str] = {}

    def tip(artist: Artist, text: str) -> None:
        if text:
            name = f"mark-{len(tooltips)}"
            artist.set_gid(name)
            tooltips[name] = printable(text)

    with _settings():
        figure = _figure(drawing, tip)
        stream = io.StringIO()
        figure.savefig(stream, format="svg", metadata={"Date": None, "Title": printable(drawing.title)})
    text = stream.getvalue()
    text = re.sub(r"<metadata>.*?</metadata>\s*", "", text, count=1, flags=re.DOTALL)
    text = text[text.index("<svg") :]  # without the document type, which contains an address
    title = f"<title>{escape(printable(drawing.title), quote=False)}</title>"
    text = re.sub(
        r"(<svg [^>]*>)(\s*<title>.*?</title>)?", lambda m: m[1] + title, text, count=1, flags=re.DOTALL
    )
    return re.sub(
        r'(<g id="(mark-\d+)">)',
        lambda found: f"{found[1]}<title>{escape(tooltips[found[2]], quote=False)}</title>",
        text,
    )


def png(drawing: Drawing) -> bytes:
    """Returns a drawing as PNG; the same drawing gives the same bytes. Not thread-safe, like ``svg``."""
    with _settings():
        figure = _figure(drawing, lambda artist, text: None)
        stream = io.BytesIO()
        figure.savefig(stream, format="png", dpi=_DOTS_PER_INCH, metadata={"Software": None})
    return stream.getvalue()


@contextmanager
def _settings() -> Iterator[None]:
    """Matplotlib without a user's configuration, and without warnings about missing glyphs."""
    plain: dict[Any, Any] = {
        key: value for key, value in mpl.rcParamsDefault.items() if not key.startswith("backend")
    }
    with mpl.rc_context(), warnings.catch_warnings():
        warnings.filterwarnings("ignore", r"Glyph .* missing from (current )?font", UserWarning)
        mpl.rcParams.update({**plain, **_SETTINGS})
        yield


def _figure(drawing: Drawing, tip: Tip) -> Figure:
    """Lays out the charts from the top down and paints them."""
    palette = Palette(drawing.groups)
    notes = [line for note in drawing.notes for line in textwrap.wrap(printable(note), _NOTE_CHARACTERS)]
    heights = [_chart_inches(chart, palette) for chart in drawing.charts]
    height = _TITLE + sum(heights) + _NOTE_LINE * len(notes) + 0.2
    figure = Figure(figsize=(_WIDTH, height), dpi=_DOTS_PER_INCH, facecolor="white")
    figure.text(0.15 / _WIDTH, 1 - 0.12 / height, printable(drawing.title), size=13, weight="bold", va="top")
    top = _TITLE
    for chart, inches in zip(drawing.charts, heights, strict=True):
        _place(figure, chart, palette, tip, top, height)
        top += inches
    for place, line in enumerate(notes):
        bottom = (_NOTE_LINE * (len(notes) - place - 1) + 0.12) / height
        figure.text(0.15 / _WIDTH, bottom, line, size=TINY + 0.5, color=PALE, va="bottom")
    return figure


def _chart_inches(chart: Chart, palette: Palette) -> float:
    """Returns the height of a chart with its heading and axis labels."""
    legend = _LEGEND_ENTRY * len(palette.legend(groups_of(chart))) if palette.needs_legend else 0
    return _heading_inches(chart) + max(height_of(chart) + BELOW_AXES_INCHES, legend + 0.1)


def _heading_inches(chart: Chart) -> float:
    warning = _WARNING * len(_warning_lines(chart))
    return (HEADING_INCHES if chart.heading.name else _NO_HEADING) + warning


def _warning_lines(chart: Chart) -> list[tuple[str, str]]:
    """Returns the lines of the warning and of the remark, each with its colour."""
    both = ((chart.heading.warning, ALARM), (chart.heading.remark, PALE))
    return [
        (line, colour)
        for text, colour in both
        for line in textwrap.wrap(printable(text), _WARNING_CHARACTERS)
    ]


def _place(figure: Figure, chart: Chart, palette: Palette, tip: Tip, top: float, height: float) -> None:
    """Paints a chart with its heading and legend, ``top`` inches below the upper edge."""
    heading = chart.heading
    if heading.name:
        name = shortened(heading.name, 110)
        figure.text(0.15 / _WIDTH, 1 - (top + 0.05) / height, name, size=10, weight="bold", va="top")
        detail = shortened(heading.detail, 150)
        figure.text(0.15 / _WIDTH, 1 - (top + 0.24) / height, detail, size=SMALL, color=PALE, va="top")
    for place, (line, colour) in enumerate(_warning_lines(chart)):
        y = 1 - (top + (HEADING_INCHES if heading.name else _NO_HEADING) - 0.08 + place * _WARNING) / height
        figure.text(0.15 / _WIDTH, y, line, size=SMALL, color=colour, weight="bold", va="top")
    entries = palette.legend(groups_of(chart))
    has_legend = palette.needs_legend
    left = _LEFT_OF_POINTS if isinstance(chart, PointChart) else _LEFT  # other charts have row names there
    right = _RIGHT if has_legend else _RIGHT_WITHOUT_LEGEND
    inches = height_of(chart)
    begin = top + _heading_inches(chart)
    axes = figure.add_axes(
        (left / _WIDTH, 1 - (begin + inches) / height, (_WIDTH - left - right) / _WIDTH, inches / height)
    )
    paint(axes, chart, palette, tip)
    if has_legend:
        figure.legend(
            handles=[
                Patch(facecolor=fill.colour, edgecolor="white", linewidth=0.4, hatch=fill.hatch or None)
                for _, fill in entries
            ],
            labels=[shortened(name or "no type", 26) for name, _ in entries],
            loc="upper left",
            bbox_to_anchor=((_WIDTH - right + 0.1) / _WIDTH, 1 - begin / height),
            borderaxespad=0,
            fontsize=SMALL - 0.5,
            frameon=False,
            handlelength=1.4,
            labelspacing=0.35,
        )
