"""Painting of each kind of chart on Matplotlib's axes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal
from unicodedata import east_asian_width

from matplotlib.axes import Axes
from matplotlib.patches import Rectangle
from matplotlib.ticker import (
    FixedLocator,
    FuncFormatter,
    LogLocator,
    MaxNLocator,
    NullFormatter,
    NullLocator,
)

from inferometer.evaluators.drawing.charts import (
    ROW_INCHES,
    BarChart,
    BarRow,
    Box,
    BoxChart,
    Chart,
    Label,
    MatrixChart,
    PointChart,
    Timeline,
    row_inches,
)
from inferometer.evaluators.drawing.matrix_painting import paint_matrix
from inferometer.evaluators.drawing.point_painting import paint_points
from inferometer.evaluators.drawing.style import GRID, INK, PALE, SMALL, STEPS, TINY, Fill, Palette, Tip, tick
from inferometer.manifests.errors import printable

LABEL_CHARACTERS = 58
"""The characters that fit beside the axes."""
DETAIL_CHARACTERS = 72
"""The same of the smaller line."""
_THIN_INCHES = 0.02
_CHARACTER_INCHES = 0.064
_LOGARITHMIC_FROM = 20
_WIDE = 1000  # ratios that have ticks at powers of ten alone
_EDGE = "#FFFFFF"


def groups_of(chart: Chart) -> set[str]:
    """Returns the groups that a chart shows."""
    match chart:
        case BarChart():
            return {bar.group for row in chart.rows for bar in row.bars}
        case BoxChart() | MatrixChart():
            return set()
        case PointChart():
            return {series.group for series in chart.series}
        case Timeline():
            return {bar.group for bar in chart.bars}


def paint(axes: Axes, chart: Chart, palette: Palette, tip: Tip) -> None:
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
            paint_matrix(axes, chart, tip)
            middles = [place + 0.5 for place in range(len(chart.rows))]
            _name_rows(axes, middles, [Label(name) for name in chart.rows])
        case PointChart():
            paint_points(axes, chart, palette, tip)
        case Timeline():
            _paint_timeline(axes, chart, palette, tip)


def _axes_inches(axes: Axes) -> float:
    """Returns the width of axes in inches."""
    figure = axes.get_figure(root=True)
    if figure is None:
        raise ValueError("the axes belong to no figure")
    return float(axes.get_position().width * figure.get_size_inches()[0])


def _rectangle(axes: Axes, x: float, y: float, width: float, height: float, fill: Fill) -> Rectangle:
    patch = Rectangle(
        (x, y), width, height, facecolor=fill.colour, edgecolor=_EDGE, linewidth=0.4, hatch=fill.hatch or None
    )
    axes.add_patch(patch)
    return patch


def _write_on(axes: Axes, x: float, y: float, text: str, fill: Fill) -> None:
    """Writes into the middle of an area, without hatching behind the text."""
    ground = {"facecolor": fill.colour, "edgecolor": "none", "pad": 0.8} if fill.hatch else None
    axes.text(x, y, text, va="center", ha="center", size=TINY, color=fill.text_colour, bbox=ground)


def _name_rows(axes: Axes, middles: Sequence[float], labels: Sequence[Label]) -> None:
    """Writes the names of rows to the left of the axes, each with its detail below it."""
    axes.yaxis.set_major_locator(FixedLocator([]))
    for middle, label in zip(middles, labels, strict=True):
        name = shortened(label.name, LABEL_CHARACTERS)
        if label.detail:
            _write_beside(axes, middle - 0.03, name, "bottom", SMALL, INK)
            _write_beside(axes, middle + 0.03, shortened(label.detail, DETAIL_CHARACTERS), "top", TINY, PALE)
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
    if chart.logarithmic:
        _make_ratios(axes, end, part)
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


def _make_ratios(axes: Axes, end: float, part: float) -> None:
    """Makes an axis of ratios from 1 on."""
    end = max(end, 1.01)
    axes.set_xscale("log")
    axes.set_xlim(1, end**part)
    axes.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5) if end < _WIDE else (1,), numticks=30))
    axes.xaxis.set_major_formatter(FuncFormatter(tick))
    axes.xaxis.set_minor_locator(NullLocator())


def _paint_row(
    axes: Axes, row: BarRow, top: float, height: float, palette: Palette, tip: Tip, start: float
) -> None:
    """Paints bars one below the other, each followed by its text."""
    pitch = height * 0.86 / len(row.bars)
    for place, bar in enumerate(row.bars):
        begin = top + height * 0.07 + place * pitch
        length = max(bar.value - start, 0.0)
        patch = _rectangle(axes, start, begin, length, pitch * 0.92, palette[bar.group])
        tip(patch, bar.tooltip)
        end = start + length
        if bar.ends is not None:
            _paint_whisker(axes, bar.ends, begin + pitch * 0.46, pitch * 0.16)
            end = max(end, *bar.ends)
        axes.annotate(
            printable(bar.text),
            (end, begin + pitch * 0.46),
            xytext=(3, 0),
            textcoords="offset points",
            va="center",
            size=TINY + 0.5,
            color=INK,
            annotation_clip=False,
        )


def _paint_whisker(axes: Axes, ends: tuple[float, float], middle: float, half: float) -> None:
    axes.plot(ends, [middle, middle], color=INK, linewidth=1.2, zorder=4)
    for at in ends:
        axes.plot([at, at], [middle - half, middle + half], color=INK, linewidth=1.2, zorder=4)


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
    fill = Palette(("",))[""]
    axes.plot([box.low, box.high], [middle, middle], color="#444444", linewidth=1)
    for end in (box.low, box.high):
        axes.plot([end, end], [middle - 0.12, middle + 0.12], color="#444444", linewidth=1)
    patch = Rectangle(
        (box.first, middle - 0.25),
        box.third - box.first,
        0.5,
        facecolor="#9CC9E6",
        edgecolor=fill.colour,
        linewidth=1,
        zorder=3,
    )
    axes.add_patch(patch)
    tip(patch, box.tooltip)
    axes.plot(
        [box.middle, box.middle], [middle - 0.25, middle + 0.25], color="#000000", linewidth=1.6, zorder=4
    )
    axes.plot([box.mark], [middle], marker="D", markersize=4, color="#D55E00", zorder=5, linestyle="none")
    axes.annotate(
        printable(box.text),
        (max(box.high, box.mark), middle),
        xytext=(6, 0),
        textcoords="offset points",
        va="center",
        size=TINY + 0.5,
        color=INK,
        annotation_clip=False,
    )


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


def shortened(text: str, most: int) -> str:
    """Returns a text of at most ``most`` characters, cut in the middle, as names differ at both ends.

    Wide letters, such as Chinese ones, count about twice.
    """
    text = printable(text)
    cells = sum(2 if east_asian_width(c) in "FW" else 1 for c in text)
    if cells <= most:
        return text
    most = most * len(text) // cells
    tail = (most - 1) // 2
    return f"{text[: most - 1 - tail]}…{text[len(text) - tail :]}"
