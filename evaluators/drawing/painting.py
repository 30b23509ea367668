"""The style of all charts, and the painting of points over two axes, with reference lines, bands and names.

The names next to points are placed so that no name covers another name or a point.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FixedLocator, FuncFormatter, LogLocator, MaxNLocator, NullLocator

from inferometer.evaluators.drawing.charts import Mark, PointChart, Series
from inferometer.manifests.errors import printable

# M. Okabe and K. Ito, "Color Universal Design" (2008), without black
_COLOURS = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00", "#F0E442")
_HATCHES = ("", "////")
_DARK = frozenset({"#0072B2", "#009E73", "#D55E00"})


@dataclass(frozen=True, slots=True)
class Fill:
    """A colour, as ``#rrggbb``, with Matplotlib's name for a hatching, which is empty for none."""

    colour: str
    hatch: str = ""

    @property
    def text_colour(self) -> str:
        """The colour of readable text on this fill."""
        return "#ffffff" if self.colour in _DARK else "#000000"


OTHER = Fill("#BBBBBB")
"""The fill if there is no group, or the group is beyond those that can be distinguished."""
MOST_GROUPS = len(_COLOURS) * len(_HATCHES)


class Palette:
    """The fills of a drawing's groups, in the order of the legend; those beyond ``MOST_GROUPS`` are grey."""

    def __init__(self, groups: Sequence[str]) -> None:
        self._fills = {
            group: Fill(_COLOURS[place % len(_COLOURS)], _HATCHES[place // len(_COLOURS)])
            for place, group in enumerate(groups[:MOST_GROUPS])
        }

    def __getitem__(self, group: str) -> Fill:
        """Returns the fill of a group."""
        return self._fills.get(group, OTHER)

    @property
    def needs_legend(self) -> bool:
        """Whether there is more than one colour."""
        return len(self._fills) > 1

    def legend(self, used: set[str]) -> list[tuple[str, Fill]]:
        """Returns the ``used`` groups with a colour, in order, and one entry for all other named groups."""
        entries = [(group, fill) for group, fill in self._fills.items() if group in used]
        if any(group and group not in self._fills for group in used):
            entries.append(("others", OTHER))
        return entries


SMALL = 8.0
"""The size of text other than headings, in points."""
TINY = 6.5
PALE = "#555555"
"""The colour of the smaller lines of text."""
INK = "#222222"
ALARM = "#B00020"
"""The colour of warnings."""
GRID = "#DDDDDD"
STEPS = (1, 2, 2.5, 5, 10)
"""The permitted steps between ticks."""

Tip = Callable[[Artist, str], None]
"""Sets the tooltip of an artist."""


def tick(value: float, _: int | None = None) -> str:
    """Returns the text for a tick."""
    return f"{value:,.6g}" if "e" not in f"{value:.6g}" else f"{value:g}"


_CHARACTER = 0.62  # the width of a character in its size, a little more than the mean of DejaVu Sans
_POINT = 3.5
_POINTS_PER_INCH = 72
_PLACES: tuple[tuple[float, float], ...] = (
    (5, 3),
    (5, -9),
    (-5, 3),
    (-5, -9),
    (5, 12),
    (-5, 12),
    (5, -18),
    (-5, -18),
)
"""The positions of a name's lower end next to its point, in typographic points: at the right or the left."""


@dataclass(frozen=True, slots=True)
class _Box:
    """A rectangle, in typographic points."""

    left: float
    bottom: float
    right: float
    top: float

    def meets(self, other: _Box) -> bool:
        return (
            self.left < other.right
            and other.left < self.right
            and self.bottom < other.top
            and other.bottom < self.top
        )

    def is_in(self, whole: _Box) -> bool:
        return (
            whole.left <= self.left <= self.right <= whole.right
            and whole.bottom <= self.bottom <= self.top <= whole.top
        )


def _write_names(axes: Axes, every: Sequence[Series]) -> None:
    """Writes the name of each series beside its first point if there is room; the limits must be set."""
    spots = [_place(axes, *at) for series in every for at in zip(series.x, series.y, strict=True)]
    taken = [_Box(x - _POINT, y - _POINT, x + _POINT, y + _POINT) for x, y in spots]
    scale, extent = _POINTS_PER_INCH / figure_of(axes).dpi, axes.get_window_extent()
    whole = _Box(extent.x0 * scale, extent.y0 * scale, extent.x1 * scale, extent.y1 * scale)
    for series in reversed(every):  # later ones cover earlier ones, and tell more
        if not series.text:
            continue
        text = printable(series.text)
        x, y = _place(axes, series.x[0], series.y[0])
        long = len(text) * TINY * _CHARACTER
        for right, up in _PLACES:
            left = x + right if right > 0 else x + right - long
            box = _Box(left, y + up, left + long, y + up + TINY * 1.2)
            if box.is_in(whole) and not any(box.meets(other) for other in taken):
                taken.append(box)
                side: Literal["left", "right"] = "left" if right > 0 else "right"
                axes.annotate(
                    text,
                    (series.x[0], series.y[0]),
                    xytext=(right, up),
                    textcoords="offset points",
                    ha=side,
                    va="bottom",
                    size=TINY,
                    color=INK,
                    zorder=5,
                )
                break


def _place(axes: Axes, x: float, y: float) -> tuple[float, float]:
    """Returns a position in the picture in typographic points."""
    across, up = axes.transData.transform((x, y))
    scale = _POINTS_PER_INCH / figure_of(axes).dpi
    return float(across) * scale, float(up) * scale


def figure_of(axes: Axes) -> Figure:
    """Returns the figure that the axes belong to."""
    figure = axes.get_figure(root=True)
    if figure is None:
        raise ValueError("the axes belong to no figure")
    return figure


_MANY = 100
_EDGE_PLACE = 0.975
_WIDE_DECADES = 3
_GROUND = {"facecolor": "white", "edgecolor": "none", "alpha": 0.75, "pad": 0.8}
_NOTE: dict[str, Any] = {"textcoords": "offset points", "ha": "left", "size": TINY, "bbox": _GROUND}
_NOTE |= {"zorder": 2.5}  # below the points
_BAND = "#9CC9E6"
_MARKERS = {Mark.DOT: "o", Mark.RING: "o", Mark.CROSS: "x"}


def paint_points(axes: Axes, chart: PointChart, palette: Palette, tip: Tip) -> None:
    """Paints a chart; points at infinity are drawn as arrows at the upper edge."""
    _scale(axes, chart)
    for band in chart.bands:
        axes.axvspan(band.start, band.end, color=_BAND, alpha=0.35, linewidth=0, zorder=0)
        _write_upright(axes, band.end, band.text)
    for rule in chart.rules:
        if rule.upright:
            axes.axvline(rule.at, color=INK, linewidth=1, linestyle="--", zorder=2)
            _write_upright(axes, rule.at, rule.text)
        else:
            axes.axhline(rule.at, color=ALARM, linewidth=1, linestyle="--", zorder=2)
            where, text = axes.get_yaxis_transform(), printable(rule.text)
            axes.annotate(
                text, (0, rule.at), xycoords=where, xytext=(3, 2), va="bottom", color=ALARM, **_NOTE
            )
    for place, series in enumerate(chart.series):
        _paint_series(axes, series, palette[series.group].colour, tip, 3 + place / 100)
    _write_names(axes, chart.series)
    axes.grid(True, color=GRID, linewidth=0.6)
    x_axis, y_axis = (
        f"{printable(text)}{', logarithmic' if scale == 'log' else ''}"
        for text, scale in ((chart.x_axis, axes.get_xscale()), (chart.y_axis, axes.get_yscale()))
    )
    axes.set_xlabel(x_axis, size=SMALL, color=INK)
    axes.set_ylabel(y_axis, size=SMALL, color=INK)


def _write_upright(axes: Axes, x: float, text: str) -> None:
    if not text:
        return
    place = axes.get_xaxis_transform()
    axes.annotate(printable(text), (x, 1), xycoords=place, xytext=(2, -2), va="top", color=PALE, **_NOTE)


def _paint_series(axes: Axes, series: Series, colour: str, tip: Tip, order: float) -> None:
    known = [(x, y) for x, y in zip(series.x, series.y, strict=True) if math.isfinite(y)]
    beyond = [x for x, y in zip(series.x, series.y, strict=True) if not math.isfinite(y)]
    size = series.size or (2 if len(series.x) > _MANY else 4)
    marks = []
    if known:
        x, y = zip(*known, strict=True)
        if series.line:
            axes.plot(x, y, color=colour, linewidth=2 if series.strong else 0.6, alpha=0.6)
        marks.append(_paint_marks(axes, x, y, colour, _MARKERS[series.mark], size, order))
        if series.mark is Mark.RING:
            marks[-1].set_markerfacecolor("white")
    if beyond:
        edge = [_EDGE_PLACE] * len(beyond)
        arrows = _paint_marks(axes, beyond, edge, colour, "^", max(size, 4), order)
        arrows.set_transform(axes.get_xaxis_transform())
        marks.append(arrows)
    tip(marks[0], series.tooltip)


def _paint_marks(
    axes: Axes, x: Sequence[float], y: Sequence[float], colour: str, marker: str, size: float, order: float
) -> Line2D:
    """Adds points without changing the limits of the axes."""
    line = Line2D(x, y, color=colour, linestyle="none", marker=marker, markersize=size, zorder=order)
    axes.add_line(line)
    return line


def _scale(axes: Axes, chart: PointChart) -> None:
    """Sets the limits and the ticks of the axes, and whether each is logarithmic."""
    heights = [y for series in chart.series for y in series.y if math.isfinite(y)]
    beyond = any(not math.isfinite(y) for series in chart.series for y in series.y)
    heights += [rule.at for rule in chart.rules if not rule.upright]
    highest, lowest = max(heights, default=0.0), min(heights, default=0.0)
    if chart.y_logarithmic and lowest > 0:
        make_logarithmic(axes, axes.yaxis, math.log10(highest / lowest))
        lowest, highest = lowest / 1.4, highest * 1.4
        axes.set_ylim(lowest, highest * (highest / lowest) ** (0.1 if beyond else 0))
    else:
        axes.set_ylim(0, highest * (1.2 if beyond else 1.08) or 1)
        axes.yaxis.set_major_locator(MaxNLocator(5, steps=STEPS))
        axes.yaxis.set_major_formatter(FuncFormatter(tick))
    widths = [x for series in chart.series for x in series.x]
    widths += [*(chart.x_range or ()), *(x for band in chart.bands for x in (band.start, band.end))]
    widths += [rule.at for rule in chart.rules if rule.upright]
    first, last = min(widths), max(widths)
    if chart.x_logarithmic and first > 0:
        make_logarithmic(axes, axes.xaxis, math.log10(last / first))
        axes.set_xlim(first / 1.15, last * 1.15)
        return
    counted = all(float(x).is_integer() for x in widths)
    margin = 0.5 if counted else 0.0
    margin += 0.01 * (last - first) or (0.0 if counted else 0.05 * abs(last) or 1.0)
    axes.set_xlim(first - margin, last + margin)
    if counted and first == last:  # a locator of integers gives up where only one is in sight
        axes.xaxis.set_major_locator(FixedLocator([first]))
    else:
        axes.xaxis.set_major_locator(MaxNLocator(10, steps=STEPS, integer=counted))


def make_logarithmic(axes: Axes, axis: Axis, decades: float) -> None:
    """Makes an axis of ``decades`` powers of ten logarithmic; if there are many, only they have ticks."""
    if axis is axes.yaxis:
        axes.set_yscale("log")
    else:
        axes.set_xscale("log")
    axis.set_major_locator(LogLocator(subs=(1, 2, 5) if decades < _WIDE_DECADES else (1,), numticks=30))
    axis.set_minor_locator(NullLocator())
    axis.set_major_formatter(FuncFormatter(tick))
