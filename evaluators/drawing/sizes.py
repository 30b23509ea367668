"""The heights of charts in inches, which decide how many fit into one picture."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import accumulate

from inferometer.evaluators.drawing.charts import BarChart, BarRow, BoxChart, Chart, PointChart, Timeline

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
"""What the charts of one picture have together, unless one alone is higher: 2,400 pixels in a PNG."""


def height_of(chart: Chart) -> float:
    """The height of a chart's axes."""
    match chart:
        case BarChart():
            return sum(row_inches(row, chart.stacked) for row in chart.rows)
        case BoxChart():
            return BIG_ROW_INCHES * len(chart.boxes)
        case PointChart():
            return TALL_POINT_INCHES if chart.tall else POINT_INCHES
        case Timeline():
            return ROW_INCHES * max(1, len(chart.lanes))


def row_inches(row: BarRow, stacked: bool) -> float:
    """The height of a row of bars."""
    return BIG_ROW_INCHES if row.label.detail or (len(row.bars) > 1 and not stacked) else ROW_INCHES


def how_many_fit(charts: Iterable[Chart]) -> int:
    """How many of the charts, from the first on, fit into one picture; at least one."""
    heights = accumulate(height_of(chart) + HEADING_INCHES + BELOW_AXES_INCHES for chart in charts)
    return max(1, sum(height <= MOST_INCHES for height in heights))
