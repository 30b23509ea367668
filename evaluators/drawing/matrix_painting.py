"""Painting of a matrix of shares."""

from __future__ import annotations

from matplotlib.axes import Axes
from matplotlib.patches import Rectangle
from matplotlib.ticker import FixedFormatter, FixedLocator

from inferometer.evaluators.drawing.charts import MatrixChart
from inferometer.evaluators.drawing.style import INK, SMALL, TINY, Tip
from inferometer.manifests.errors import printable

_FULL = (0, 114, 178)  # the blue of Okabe and Ito
_DARK_FROM = 0.7
_LEAST_SHOWN = 0.0005


def paint_matrix(axes: Axes, chart: MatrixChart, tip: Tip) -> None:
    """Paints cells from white for nothing to blue for all, each with its percent."""
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
