"""What the painters of all charts share: sizes, colours, ticks, and the remembering of tooltips."""

from __future__ import annotations

from collections.abc import Callable

from matplotlib.artist import Artist

SMALL = 8.0
"""Points, of all text but headings."""
TINY = 6.5
PALE = "#555555"
"""The colour of smaller lines."""
INK = "#222222"
ALARM = "#B00020"
"""The colour of what spoils the figures."""
GRID = "#DDDDDD"
STEPS = (1, 2, 2.5, 5, 10)
"""What ticks are multiples of."""

Tip = Callable[[Artist, str], None]
"""Remembers what a browser shows of an artist."""


def tick(value: float, _: int | None = None) -> str:
    """A number beside an axis."""
    return f"{value:,.6g}" if "e" not in f"{value:.6g}" else f"{value:g}"
