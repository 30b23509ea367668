"""The content of pictures, apart from their rendering, and the interface of reports' pictures.

Charts have bars, boxes, points or time spans. The heights, in inches, decide how many charts fit into one
picture. Tooltips are for browsers. A group is the name in the legend that determines a colour.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import timezone
from enum import Enum
from itertools import accumulate
from typing import Generic, TypeAlias
from unicodedata import east_asian_width

from inferometer.evaluators.evaluation import Evaluation
from inferometer.evaluators.reports.base import M, Row, Value
from inferometer.manifests.errors import printable

ROW_INCHES = 0.25
"""The height of a row with one line."""
BIG_ROW_INCHES = 0.46
"""The height of a row with two lines, or two bars."""
POINT_INCHES = 1.7
"""The height of a chart of points."""
TALL_POINT_INCHES = 3.4
HEADING_INCHES = 0.5
BELOW_AXES_INCHES = 0.55
MOST_INCHES = 20.0
"""The maximum total height of the charts in a picture, unless one alone is higher: 2,400 pixels in a PNG."""


@dataclass(frozen=True, slots=True)
class Label:
    """The name of a row or a chart, a smaller second line, and reasons not to trust a chart's figures.

    A remark is a weaker reason than a warning: it appears below the warning, and in another colour.
    """

    name: str
    detail: str = ""
    warning: str = ""
    remark: str = ""


@dataclass(frozen=True, slots=True)
class Bar:
    """A bar of non-negative length; ``text`` appears beside it, or inside a stacked bar.

    ``ends`` are the ends of an interval, drawn as a whisker over a bar that is not stacked.
    """

    value: float
    group: str = ""
    text: str = ""
    tooltip: str = ""
    ends: tuple[float, float] | None = None


@dataclass(frozen=True, slots=True)
class BarRow:
    """The bars of one row, side by side or stacked."""

    label: Label
    bars: tuple[Bar, ...]


@dataclass(frozen=True, slots=True)
class BarChart:
    """Rows of bars from the top down, at least one.

    Attributes:
        heading: The chart's name.
        axis: The quantity and its unit.
        stacked: Whether the bars of a row follow one another.
        whole: The end of the axis; None means a little beyond the longest bar.
        logarithmic: Whether the axis is logarithmic and begins at 1, for ratios; not for stacked bars.
    """

    heading: Label
    axis: str
    rows: tuple[BarRow, ...]
    stacked: bool = False
    whole: float | None = None
    logarithmic: bool = False


@dataclass(frozen=True, slots=True)
class Box:
    """A distribution: a box from ``first`` to ``third``, whiskers to ``low`` and ``high``, and a ``mark``."""

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
    """Boxes from the top down, at least one; the axis is logarithmic if they lie far apart."""

    heading: Label
    axis: str
    boxes: tuple[Box, ...]


class Mark(Enum):
    """The shape of a point."""

    DOT = "dot"
    RING = "ring"
    CROSS = "cross"


@dataclass(frozen=True, slots=True)
class Series:
    """At least one point of a group.

    Attributes:
        x: One value for each point.
        y: One value for each point; an infinite one is drawn as an arrow at the upper edge.
        line: Whether lines join the points, in the order of ``x``.
        tooltip: The tooltip of the series.
        mark: The shape of the points.
        size: The size of a point in typographic points; None means one that suits their number.
        strong: Whether the line shows a limit instead of joining points.
        text: A name beside the first point, if there is room.
    """

    group: str
    x: tuple[float, ...]
    y: tuple[float, ...]
    line: bool = False
    tooltip: str = ""
    mark: Mark = Mark.DOT
    size: float | None = None
    strong: bool = False
    text: str = ""


@dataclass(frozen=True, slots=True)
class Rule:
    """A line across a chart of points at a value of the axis ``y``, or of ``x`` if ``upright``."""

    at: float
    text: str
    upright: bool = False


@dataclass(frozen=True, slots=True)
class Band:
    """A shaded stretch of the axis ``x``."""

    start: float
    end: float
    text: str


@dataclass(frozen=True, slots=True)
class PointChart:
    """Points over two axes, at least one series; a linear axis ``y`` begins at 0.

    Attributes:
        heading: The chart's name.
        x_axis: The quantity ``x`` and its unit.
        y_axis: The quantity ``y`` and its unit.
        series: The points; later series cover earlier ones.
        rules: Reference lines.
        bands: Shaded stretches.
        x_logarithmic: Whether the axis ``x`` is logarithmic if all of its values are positive.
        y_logarithmic: Whether the axis ``y`` is logarithmic if all of its values are positive.
        tall: Whether the chart has twice the usual height.
        x_range: What the axis ``x`` spans at least, so that charts have the same one; None for the points.
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
    x_range: tuple[float, float] | None = None


@dataclass(frozen=True, slots=True)
class TimeBar:
    """A span of time in a lane, from 0, in the unit of the axis; ``text`` is shown if it fits."""

    lane: int
    start: float
    length: float
    group: str = ""
    text: str = ""
    tooltip: str = ""


@dataclass(frozen=True, slots=True)
class Timeline:
    """Spans of time in lanes from the top down, on an axis from 0 to ``end``.

    A lane without a name belongs with the lane above it.
    """

    heading: Label
    axis: str
    end: float
    lanes: tuple[Label, ...]
    bars: tuple[TimeBar, ...]


@dataclass(frozen=True, slots=True)
class MatrixChart:
    """The shares, 0…1, of rows in columns; each is a cell that is darker the larger the share.

    Attributes:
        heading: The chart's name.
        axis: The meaning of the columns.
        rows: The names of the rows, at least one.
        columns: The short names of the columns, such as the numbers at the start of the rows' names.
        shares: A row of shares for each row.
        tooltips: A row of tooltips for each row.
    """

    heading: Label
    axis: str
    rows: tuple[str, ...]
    columns: tuple[str, ...]
    shares: tuple[tuple[float, ...], ...]
    tooltips: tuple[tuple[str, ...], ...]


Chart: TypeAlias = BarChart | BoxChart | MatrixChart | PointChart | Timeline


@dataclass(frozen=True, slots=True)
class Drawing:
    """A picture: at least one chart, from the top down.

    Attributes:
        groups: The groups with a colour, in the order of the legend; other groups are drawn in grey.
        notes: Sentences that explain the picture and what it omits.
    """

    title: str
    charts: tuple[Chart, ...]
    groups: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


def height_of(chart: Chart) -> float:
    """Returns the height of a chart's axes."""
    match chart:
        case BarChart():
            return sum(row_inches(row, chart.stacked) for row in chart.rows)
        case BoxChart():
            return BIG_ROW_INCHES * len(chart.boxes)
        case MatrixChart():
            return ROW_INCHES * len(chart.rows)
        case PointChart():
            return TALL_POINT_INCHES if chart.tall else POINT_INCHES
        case Timeline():
            return ROW_INCHES * max(1, len(chart.lanes))


def groups_of(chart: Chart) -> set[str]:
    """Returns the groups that occur in a chart."""
    match chart:
        case BarChart():
            return {bar.group for row in chart.rows for bar in row.bars}
        case PointChart():
            return {series.group for series in chart.series}
        case Timeline():
            return {bar.group for bar in chart.bars}
    return set()


def row_inches(row: BarRow, stacked: bool) -> float:
    """Returns the height of one row of bars."""
    return BIG_ROW_INCHES if row.label.detail or (len(row.bars) > 1 and not stacked) else ROW_INCHES


def how_many_fit(charts: Iterable[Chart]) -> int:
    """Returns how many of the charts, from the first on, fit into one picture; at least one."""
    heights = accumulate(height_of(chart) + HEADING_INCHES + BELOW_AXES_INCHES for chart in charts)
    return max(1, sum(height <= MOST_INCHES for height in heights))


MOST_EVALUATIONS = 20
"""The maximum number of evaluations in one picture, which has room only for charts up to a total height."""


Chosen: TypeAlias = Sequence[tuple[Evaluation[M], list[Row]]]
"""Evaluations, each with its rows of a report."""


class Plot(ABC, Generic[M]):
    """The picture of one report."""

    def draw(self, evaluations: Sequence[Evaluation[M]], rows: Sequence[Row]) -> Drawing | None:
        """Returns the picture of a report's rows; None if they contain nothing to draw.

        A pure function: the same rows give the same drawing.

        Args:
            evaluations: The reported evaluations, as the source of raw times.
            rows: The report's rows for these evaluations.
        """
        shown = [row for row in rows if self.shows(row)]
        chosen, notes = by_evaluation(evaluations, shown)
        drawing = self.drawing(chosen, notes) if chosen else None
        if drawing is None or (fitting := how_many_fit(drawing.charts)) == len(drawing.charts):
            return drawing
        for most in range(min(fitting, len(chosen)), 0, -1):  # an evaluation may have several charts
            drawing = self.drawing(*by_evaluation(evaluations, shown, most))
            if drawing is None or how_many_fit(drawing.charts) == len(drawing.charts):
                break
        return drawing

    def shows(self, row: Row) -> bool:
        """Returns whether a row has something to draw."""
        return True

    @abstractmethod
    def drawing(self, chosen: Chosen[M], notes: Sequence[str]) -> Drawing | None:
        """Returns the picture of at least one evaluation; None if there is nothing to draw."""


def label_of(evaluation: Evaluation, *more: str, warning: str = "") -> Label:
    """Returns the label of an evaluation: model, batch size, framework, device, ``more``, and start time.

    If its conditions were not stable, the label says so: the details in one word, the remark in a line.

    Args:
        evaluation: The evaluation.
        more: Further details.
        warning: The reason not to trust its figures; empty if there is none.
    """
    system = evaluation.system
    manifest = system.manifest
    began = evaluation.created_at.astimezone(timezone.utc)
    framework = f"{manifest.framework.name} {system.framework_version}"
    remark = evaluation.conditions.warning if evaluation.conditions else ""
    word = (remark.partition(":")[0],) * bool(remark)
    details = (framework, str(system.device).upper(), *more, f"{began:%Y-%m-%d %H:%M:%S}", *word)
    name = f"{manifest.name} {manifest.version}, batch size {evaluation.measurement.batch_size}"
    return Label(name, " · ".join(details), warning, remark)


def by_evaluation(
    evaluations: Sequence[Evaluation[M]], rows: Sequence[Row], most: int = MOST_EVALUATIONS
) -> tuple[Chosen[M], tuple[str, ...]]:
    """Groups rows by their evaluation, in the order of the rows.

    Returns:
        The first ``most`` evaluations with rows, each with its rows, and a note if others are hidden.
    """
    known = {evaluation.id: evaluation for evaluation in evaluations}
    found: dict[str, list[Row]] = {}
    for row in rows:
        if (key := str(row["id"])) in known:
            found.setdefault(key, []).append(row)
    chosen = [(known[key], of_one) for key, of_one in found.items()][:most]
    hidden = len(found) > len(chosen)
    return chosen, (f"{len(chosen):,} of {len(found):,} evaluations are shown.",) if hidden else ()


def number(value: Value) -> float:
    """Returns a figure from a row; 0 if it is missing."""
    return float(value) if isinstance(value, int | float) else 0.0


def by_weight(weights: Iterable[tuple[str, float]]) -> tuple[str, ...]:
    """Returns the names, sorted by the sum of their weights, the largest sum first."""
    sums: dict[str, float] = {}
    for name, weight in weights:
        sums[name] = sums.get(name, 0.0) + weight
    return tuple(sorted(sums, key=lambda name: -sums[name]))


def time_unit(longest_us: float) -> tuple[float, str]:
    """Returns a readable unit for times up to ``longest_us``: its length in µs and its name."""
    for scale, unit in ((1e6, "s"), (1e3, "ms")):
        if longest_us >= scale:
            return scale, unit
    return 1.0, "µs"


def readable(value: float) -> str:
    """Returns a number with three significant digits: ``0.0123``, ``1.23``, ``12.3``, ``1,230``."""
    if value == 0:
        return "0"
    if abs(value) >= 100:
        return f"{value:,.0f}"
    text = f"{value:.3g}"
    return text if "e" not in text else f"{value:.1e}"


def plural(count: int, noun: str, ending: str = "s") -> str:
    """Returns a count followed by its noun: ``1 layer``, ``2,000 layers``."""
    return f"{count:,} {noun}{'' if count == 1 else ending}"


def shortened(text: str, most: int) -> str:
    """Returns a text of at most ``most`` characters, cut in the middle, as names differ at both ends.

    Wide characters, such as Chinese ones, count about double.
    """
    text = printable(text)
    cells = sum(2 if east_asian_width(c) in "FW" else 1 for c in text)
    if cells <= most:
        return text
    most = most * len(text) // cells
    tail = (most - 1) // 2
    return f"{text[: most - 1 - tail]}…{text[len(text) - tail :]}"


def described(row: Mapping[str, Value], keys: Mapping[str, str]) -> Iterator[str]:
    """Yields ``name value`` for each of the ``keys`` for which the row has a value."""
    for key, name in keys.items():
        if row.get(key) not in (None, ""):
            yield f"{name} {row[key]}"
