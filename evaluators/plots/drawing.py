"""What a picture shows, without how it is painted: charts of bars, boxes, points or spans of time."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import TypeAlias


@dataclass(frozen=True, slots=True)
class Label:
    """The name of a row or a chart.

    Attributes:
        name: Shortened where it does not fit.
        detail: A second line, smaller; empty for none.
        warning: Of a chart, why its figures are not to be trusted; empty where they are.
    """

    name: str
    detail: str = ""
    warning: str = ""


@dataclass(frozen=True, slots=True)
class Bar:
    """A bar.

    Attributes:
        value: Its length, not negative, in the unit of the chart's axis.
        group: What gives it its colour, one of the drawing's groups; grey for any other.
        text: What stands beside it, or in it where bars are stacked.
        tooltip: What a browser shows of it.
    """

    value: float
    group: str = ""
    text: str = ""
    tooltip: str = ""


@dataclass(frozen=True, slots=True)
class BarRow:
    """The bars of one name, side by side or one after the other."""

    label: Label
    bars: tuple[Bar, ...]


@dataclass(frozen=True, slots=True)
class BarChart:
    """Rows of bars, from the top down.

    Attributes:
        heading: What the chart is of.
        axis: What is shown, with its unit.
        rows: At least one.
        stacked: Whether the bars of a row follow each other.
        whole: Where the axis ends; None for a little beyond the longest bar.
    """

    heading: Label
    axis: str
    rows: tuple[BarRow, ...]
    stacked: bool = False
    whole: float | None = None


@dataclass(frozen=True, slots=True)
class Box:
    """A distribution.

    Attributes:
        label: What of.
        low: Where the lower whisker ends.
        first: Where the box begins.
        middle: The line in the box.
        third: Where the box ends.
        high: Where the upper whisker ends.
        mark: A value that is marked besides.
        text: What stands beside it.
        tooltip: What a browser shows of it.
    """

    label: Label
    low: float
    first: float
    middle: float
    third: float
    high: float
    mark: float
    text: str = ""
    tooltip: str = ""


@dataclass(frozen=True, slots=True)
class BoxChart:
    """Boxes from the top down, at least one; the axis is logarithmic where they lie far apart."""

    heading: Label
    axis: str
    boxes: tuple[Box, ...]


class Mark(Enum):
    """How a point looks."""

    DOT = "dot"
    RING = "ring"
    CROSS = "cross"


@dataclass(frozen=True, slots=True)
class Series:
    """Points that belong together, in the colour of a group; at least one.

    Attributes:
        group: Their name in the legend.
        x: One value a point.
        y: One value a point; an infinite one is an arrow at the upper edge.
        line: Whether the points are joined, in the order of ``x``.
        tooltip: What a browser shows of them.
        mark: How each looks.
        size: How large each is, in points; None for a size that suits their number.
    """

    group: str
    x: tuple[float, ...]
    y: tuple[float, ...]
    line: bool = False
    tooltip: str = ""
    mark: Mark = Mark.DOT
    size: float | None = None


@dataclass(frozen=True, slots=True)
class Rule:
    """A line across a chart of points.

    Attributes:
        at: Where, in the unit of the axis that it crosses.
        text: What it is.
        upright: Whether it crosses the axis ``x``.
    """

    at: float
    text: str
    upright: bool = False


@dataclass(frozen=True, slots=True)
class Band:
    """A stretch of the axis ``x`` that is shaded over the whole height.

    Attributes:
        start: Where it begins.
        end: Where it ends.
        text: What it is.
    """

    start: float
    end: float
    text: str


@dataclass(frozen=True, slots=True)
class PointChart:
    """Points over two axes; the upright one begins at 0 where it is not logarithmic.

    Attributes:
        heading: What the chart is of.
        x_axis: What ``x`` is, with its unit.
        y_axis: What ``y`` is, with its unit.
        series: At least one; later ones lie over earlier ones.
        rules: Lines that the points are read against.
        bands: Shaded stretches.
        x_logarithmic: Whether the axis is logarithmic, which it is only if all of its values are above 0.
        y_logarithmic: The same of the upright one.
        tall: Whether it is twice as high.
    """

    heading: Label
    x_axis: str
    y_axis: str
    series: tuple[Series, ...]
    rules: tuple[Rule, ...] = ()
    bands: tuple[Band, ...] = ()
    x_logarithmic: bool = False
    y_logarithmic: bool = False
    tall: bool = False


@dataclass(frozen=True, slots=True)
class TimeBar:
    """A stretch of time.

    Attributes:
        lane: The lane that it lies in, counted from 0.
        start: Where it begins, in the unit of the chart's axis.
        length: How long it is.
        group: What gives it its colour.
        text: What stands in it where there is room.
        tooltip: What a browser shows of it.
    """

    lane: int
    start: float
    length: float
    group: str = ""
    text: str = ""
    tooltip: str = ""


@dataclass(frozen=True, slots=True)
class Timeline:
    """Stretches of time in lanes, from the top down.

    Attributes:
        heading: What the chart is of.
        axis: The time, with its unit; it begins at 0.
        end: Where the axis ends.
        lanes: Their names; an empty one belongs to the lane above.
        bars: The stretches.
    """

    heading: Label
    axis: str
    end: float
    lanes: tuple[Label, ...]
    bars: tuple[TimeBar, ...]


Chart: TypeAlias = BarChart | BoxChart | PointChart | Timeline


@dataclass(frozen=True, slots=True)
class Drawing:
    """A picture: charts from the top down.

    Attributes:
        title: What it shows.
        charts: At least one.
        groups: The names that have colours, in the order of the legend.
        notes: How it is to be read, and what was left out; one sentence each.
    """

    title: str
    charts: tuple[Chart, ...]
    groups: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
