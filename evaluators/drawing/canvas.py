"""Rendering of drawings as SVG and PNG with Matplotlib, and painting of each kind of chart on its axes."""

from __future__ import annotations

import io
import math
import re
import textwrap
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from html import escape
from typing import Any, Literal

import matplotlib as mpl
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch, Rectangle
from matplotlib.ticker import (
    FixedFormatter,
    FixedLocator,
    FuncFormatter,
    LogLocator,
    MaxNLocator,
    NullFormatter,
)

from inferometer.evaluators.drawing.charts import (
    BELOW_AXES_INCHES,
    HEADING_INCHES,
    ROW_INCHES,
    BarChart,
    BarRow,
    Box,
    BoxChart,
    Chart,
    Drawing,
    Label,
    MatrixChart,
    PointChart,
    Timeline,
    groups_of,
    height_of,
    row_inches,
    shortened,
)
from inferometer.evaluators.drawing.painting import (
    ALARM,
    GRID,
    INK,
    PALE,
    SMALL,
    STEPS,
    TINY,
    Fill,
    Palette,
    Tip,
    figure_of,
    make_logarithmic,
    paint_points,
    tick,
)
from inferometer.manifests.errors import printable

_FULL = (0, 114, 178)  # the blue of Okabe and Ito
_DARK_FROM = 0.7
_LEAST_SHOWN = 0.0005


def _paint_matrix(axes: Axes, chart: MatrixChart, tip: Tip) -> None:
    """Paints cells from white for a share of 0 to blue for a share of 1, each with its percentage."""
    axes.set_xlim(0, len(chart.columns))
    axes.set_ylim(len(chart.rows), 0)
    for row, (shares, tooltips) in enumerate(zip(chart.shares, chart.tooltips, strict=True)):
        for column, (share, tooltip) in enumerate(zip(shares, tooltips, strict=True)):
            colour = tuple((255 + (part - 255) * share) / 255 for part in _FULL)
            patch = Rectangle((column, row), 1, 1, facecolor=colour, edgecolor="#DDDDDD", linewidth=0.5)
            axes.add_patch(patch)
            tip(patch, tooltip)
            if share >= _LEAST_SHOWN:
                ink = "white" if share > _DARK_FROM else "black"
                text = f"{100 * share:.1f}"
                axes.text(column + 0.5, row + 0.5, text, ha="center", va="center", size=TINY, color=ink)
    axes.xaxis.set_major_locator(FixedLocator([place + 0.5 for place in range(len(chart.columns))]))
    axes.xaxis.set_major_formatter(FixedFormatter([printable(name) for name in chart.columns]))
    axes.set_xlabel(printable(chart.axis), size=SMALL, color=INK)


_LABEL_CHARACTERS = 58
"""The number of characters that fit beside the axes."""
_DETAIL_CHARACTERS = 72
"""The number of characters of the smaller line that fit beside the axes."""
_THIN_INCHES = 0.02
_CHARACTER_INCHES = 0.064
_LOGARITHMIC_FROM = 20
_EDGE = "#FFFFFF"


def _paint(axes: Axes, chart: Chart, palette: Palette, tip: Tip) -> None:
    """Paints a chart on axes of the final size."""
    axes.set_axisbelow(True)
    axes.tick_params(labelsize=SMALL, colors=INK, length=3)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    for side in ("left", "bottom"):
        axes.spines[side].set_color("#888888")
    axes.xaxis.set_major_formatter(FuncFormatter(tick))
    match chart:
        case BarChart():
            _paint_bars(axes, chart, palette, tip)
        case BoxChart():
            _paint_boxes(axes, chart, tip)
        case MatrixChart():
            _paint_matrix(axes, chart, tip)
            middles = [place + 0.5 for place in range(len(chart.rows))]
            _name_rows(axes, middles, [Label(name) for name in chart.rows])
        case PointChart():
            paint_points(axes, chart, palette, tip)
        case Timeline():
            _paint_timeline(axes, chart, palette, tip)


def _axes_inches(axes: Axes) -> float:
    """Returns the width of axes in inches."""
    return float(axes.get_position().width * figure_of(axes).get_size_inches()[0])


def _rectangle(axes: Axes, x: float, y: float, width: float, height: float, fill: Fill) -> Rectangle:
    patch = Rectangle(
        (x, y), width, height, facecolor=fill.colour, edgecolor=_EDGE, linewidth=0.4, hatch=fill.hatch or None
    )
    axes.add_patch(patch)
    return patch


def _write_on(axes: Axes, x: float, y: float, text: str, fill: Fill) -> None:
    """Writes text in the middle of an area, without hatching behind it."""
    ground = {"facecolor": fill.colour, "edgecolor": "none", "pad": 0.8} if fill.hatch else None
    axes.text(x, y, text, va="center", ha="center", size=TINY, color=fill.text_colour, bbox=ground)


def _write_after(axes: Axes, x: float, y: float, text: str, points: float) -> None:
    """Writes text to the right of a bar or a box, at a distance in typographic points."""
    axes.annotate(
        printable(text),
        (x, y),
        xytext=(points, 0),
        textcoords="offset points",
        va="center",
        size=TINY + 0.5,
        color=INK,
        annotation_clip=False,
    )


def _name_rows(axes: Axes, middles: Sequence[float], labels: Sequence[Label]) -> None:
    """Writes the names of rows to the left of the axes, each with its detail below it."""
    axes.yaxis.set_major_locator(FixedLocator([]))
    for middle, label in zip(middles, labels, strict=True):
        name = shortened(label.name, _LABEL_CHARACTERS)
        if label.detail:
            _write_beside(axes, middle - 0.03, name, "bottom", SMALL, INK)
            _write_beside(axes, middle + 0.03, shortened(label.detail, _DETAIL_CHARACTERS), "top", TINY, PALE)
        else:
            _write_beside(axes, middle, name, "center", SMALL, INK)


def _write_beside(
    axes: Axes, y: float, text: str, alignment: Literal["bottom", "center", "top"], size: float, colour: str
) -> None:
    place = axes.get_yaxis_transform()
    axes.text(-0.01, y, text, transform=place, ha="right", va=alignment, size=size, color=colour)


def _paint_bars(axes: Axes, chart: BarChart, palette: Palette, tip: Tip) -> None:
    inches = _axes_inches(axes)
    longest = max(
        sum(b.value for b in row.bars) if chart.stacked else max(b.value, *(b.ends or (0.0,)))
        for row in chart.rows
        for b in row.bars
    )
    widest = 0 if chart.stacked else max(len(bar.text) for row in chart.rows for bar in row.bars)
    room = widest * _CHARACTER_INCHES + 0.15
    end = max(chart.whole or 0.0, longest) or 1.0
    part = inches / max(inches - room, inches / 4) if widest else 1.0
    if chart.logarithmic:  # for ratios: the axis begins at 1
        end = max(end, 1.01)
        make_logarithmic(axes, axes.xaxis, math.log10(end))
        axes.set_xlim(1, end**part)
    else:
        axes.set_xlim(0, end * part)
        ticks = [tick for tick in MaxNLocator(8, steps=STEPS).tick_values(0, end) if tick <= end * 1.0001]
        axes.xaxis.set_major_locator(FixedLocator(ticks))
    axes.grid(True, axis="x", color=GRID, linewidth=0.6)
    axes.set_xlabel(f"{chart.axis}{', logarithmic' * chart.logarithmic}", size=SMALL, color=INK)
    top = 0.0
    middles = []
    for row in chart.rows:
        height = row_inches(row, chart.stacked) / ROW_INCHES
        middles.append(top + height / 2)
        if chart.stacked:
            _paint_stack(axes, row, top + 0.14 * height, 0.72 * height, inches / end, palette, tip)
        else:
            start = 1.0 if chart.logarithmic else 0.0
            _paint_row(axes, row, top, height, palette, tip, start)
        top += height
    axes.set_ylim(top, 0)
    _name_rows(axes, middles, [row.label for row in chart.rows])


def _paint_row(
    axes: Axes, row: BarRow, top: float, height: float, palette: Palette, tip: Tip, start: float
) -> None:
    """Paints bars one below the other, each followed by its text."""
    pitch = height * 0.86 / len(row.bars)
    for place, bar in enumerate(row.bars):
        begin = top + height * 0.07 + place * pitch
        middle = begin + pitch * 0.46
        length = max(bar.value - start, 0.0)
        patch = _rectangle(axes, start, begin, length, pitch * 0.92, palette[bar.group])
        tip(patch, bar.tooltip)
        end = start + length
        if bar.ends is not None:
            axes.plot(bar.ends, [middle, middle], color=INK, linewidth=1.2, zorder=4)
            for at in bar.ends:
                tips = [middle - pitch * 0.16, middle + pitch * 0.16]
                axes.plot([at, at], tips, color=INK, linewidth=1.2, zorder=4)
            end = max(end, *bar.ends)
        _write_after(axes, end, middle, bar.text, 3)


def _paint_stack(
    axes: Axes, row: BarRow, top: float, height: float, inches_a_unit: float, palette: Palette, tip: Tip
) -> None:
    """Paints bars one after the other, each with its text inside if it fits."""
    begin = 0.0
    for bar in row.bars:
        fill = palette[bar.group]
        patch = _rectangle(axes, begin, top, bar.value, height, fill)
        tip(patch, bar.tooltip)
        if len(bar.text) * _CHARACTER_INCHES + 0.05 <= bar.value * inches_a_unit:
            middle = (begin + bar.value / 2, top + height / 2)
            _write_on(axes, *middle, printable(bar.text), fill)
        begin += bar.value


def _paint_boxes(axes: Axes, chart: BoxChart, tip: Tip) -> None:
    inches = _axes_inches(axes)
    room = max(len(box.text) for box in chart.boxes) * _CHARACTER_INCHES + 0.2
    highest = max(max(box.high, box.mark) for box in chart.boxes)
    lowest = min(min(box.low, box.mark) for box in chart.boxes)
    part = inches / max(inches - room, inches / 4)
    axis = chart.axis
    if lowest > 0 and max(box.middle for box in chart.boxes) > _LOGARITHMIC_FROM * min(
        b.middle for b in chart.boxes
    ):
        axes.set_xscale("log")
        axes.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5), numticks=30))
        axes.xaxis.set_major_formatter(FuncFormatter(tick))
        axes.xaxis.set_minor_formatter(NullFormatter())
        lowest /= 1.15
        axes.set_xlim(lowest, lowest * (highest / lowest) ** part)
        axis += ", logarithmic"
    else:
        axes.set_xlim(0, (highest or 1) * part)
    axes.grid(True, axis="x", color=GRID, linewidth=0.6)
    axes.set_xlabel(axis, size=SMALL, color=INK)
    axes.set_ylim(len(chart.boxes), 0)
    for place, box in enumerate(chart.boxes):
        _paint_box(axes, box, place + 0.5, tip)
    _name_rows(axes, [place + 0.5 for place in range(len(chart.boxes))], [box.label for box in chart.boxes])


def _paint_box(axes: Axes, box: Box, middle: float, tip: Tip) -> None:
    axes.plot([box.low, box.high], [middle, middle], color="#444444", linewidth=1)
    for end in (box.low, box.high):
        axes.plot([end, end], [middle - 0.12, middle + 0.12], color="#444444", linewidth=1)
    patch = Rectangle(
        (box.first, middle - 0.25),
        box.third - box.first,
        0.5,
        facecolor="#9CC9E6",
        edgecolor=Palette(("",))[""].colour,
        linewidth=1,
        zorder=3,
    )
    axes.add_patch(patch)
    tip(patch, box.tooltip)
    axes.plot(
        [box.middle, box.middle], [middle - 0.25, middle + 0.25], color="#000000", linewidth=1.6, zorder=4
    )
    axes.plot([box.mark], [middle], marker="D", markersize=4, color="#D55E00", zorder=5, linestyle="none")
    _write_after(axes, max(box.high, box.mark), middle, box.text, 6)


def _paint_timeline(axes: Axes, chart: Timeline, palette: Palette, tip: Tip) -> None:
    inches_a_unit = _axes_inches(axes) / chart.end
    axes.set_xlim(0, chart.end)
    axes.set_ylim(max(1, len(chart.lanes)), 0)
    axes.xaxis.set_major_locator(MaxNLocator(8, steps=STEPS))
    axes.grid(True, axis="x", color=GRID, linewidth=0.6)
    axes.set_xlabel(printable(chart.axis), size=SMALL, color=INK)
    for place, lane in enumerate(chart.lanes):
        if lane.name and place:
            axes.axhline(place, color=GRID, linewidth=0.8, zorder=0)
    for bar in chart.bars:
        fill = palette[bar.group]
        patch = _rectangle(axes, bar.start, bar.lane + 0.08, bar.length, 0.84, fill)
        if bar.length * inches_a_unit < _THIN_INCHES:
            patch.set_edgecolor(fill.colour)  # a white edge would hide it
        tip(patch, bar.tooltip)
        fits = int((bar.length * inches_a_unit - 0.04) / _CHARACTER_INCHES)
        if fits >= min(10, len(bar.text)) and bar.text:
            _write_on(axes, bar.start + bar.length / 2, bar.lane + 0.5, shortened(bar.text, fits), fill)
    _name_rows(
        axes,
        [place + 0.5 for place in range(len(chart.lanes))],
        [Label(f"{lane.name}  {lane.detail}".strip()) for lane in chart.lanes],
    )


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
    """Uses Matplotlib without the user's configuration, and without warnings about missing glyphs."""
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
    """Returns the lines of the warning and the remark, each with its colour."""
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
    has_legend = palette.needs_legend and bool(entries)
    left = _LEFT_OF_POINTS if isinstance(chart, PointChart) else _LEFT  # other charts have row names there
    right = _RIGHT if has_legend else _RIGHT_WITHOUT_LEGEND
    inches = height_of(chart)
    begin = top + _heading_inches(chart)
    axes = figure.add_axes(
        (left / _WIDTH, 1 - (begin + inches) / height, (_WIDTH - left - right) / _WIDTH, inches / height)
    )
    _paint(axes, chart, palette, tip)
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
