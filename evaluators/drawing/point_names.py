"""Names next to points, placed so that no name covers another name or a point."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from matplotlib.axes import Axes

from inferometer.evaluators.drawing.charts import Series
from inferometer.evaluators.drawing.style import INK, TINY
from inferometer.manifests.errors import printable

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
"""Where the lower end of a name may be, in typographic points beside its point: to the right, or the left."""


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


def write_names(axes: Axes, every: Sequence[Series]) -> None:
    """Writes the name of each series beside its first point, where there is room; the limits are set."""
    taken = list(_points(axes, every))
    whole = _whole(axes)
    for series in reversed(every):  # later ones cover earlier ones, and tell more
        if not series.text:
            continue
        text = printable(series.text)
        x, y = _place(axes, series.x[0], series.y[0])
        long = len(text) * TINY * _CHARACTER
        for right, up in _PLACES:
            left = x + right if right > 0 else x + right - long
            box = _Box(left, y + up, left + long, y + up + TINY * 1.2)
            if _inside(box, whole) and not any(box.meets(other) for other in taken):
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


def _points(axes: Axes, every: Sequence[Series]) -> Iterator[_Box]:
    for series in every:
        for at in zip(series.x, series.y, strict=True):
            x, y = _place(axes, *at)
            yield _Box(x - _POINT, y - _POINT, x + _POINT, y + _POINT)


def _place(axes: Axes, x: float, y: float) -> tuple[float, float]:
    """Returns a place on the picture in typographic points."""
    across, up = axes.transData.transform((x, y))
    scale = _POINTS_PER_INCH / _dots_per_inch(axes)
    return float(across) * scale, float(up) * scale


def _whole(axes: Axes) -> _Box:
    scale, extent = _POINTS_PER_INCH / _dots_per_inch(axes), axes.get_window_extent()
    return _Box(extent.x0 * scale, extent.y0 * scale, extent.x1 * scale, extent.y1 * scale)


def _dots_per_inch(axes: Axes) -> float:
    figure = axes.get_figure(root=True)
    if figure is None:
        raise ValueError("the axes belong to no figure")
    return float(figure.dpi)


def _inside(box: _Box, whole: _Box) -> bool:
    return (
        box.left >= whole.left
        and box.right <= whole.right
        and box.bottom >= whole.bottom
        and box.top <= whole.top
    )
