"""Sizes, colours and ticks of all charts."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from matplotlib.artist import Artist

# M. Okabe and K. Ito, "Color Universal Design" (2008), without black
_COLOURS = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00", "#F0E442")
_HATCHES = ("", "////")
_DARK = frozenset({"#0072B2", "#009E73", "#D55E00"})


@dataclass(frozen=True, slots=True)
class Fill:
    """A colour, as ``#rrggbb``, with Matplotlib's name of a hatching or an empty one."""

    colour: str
    hatch: str = ""

    @property
    def text_colour(self) -> str:
        """The colour of readable text on this fill."""
        return "#ffffff" if self.colour in _DARK else "#000000"


OTHER = Fill("#BBBBBB")
"""The fill without a group, or of a group beyond the distinguishable ones."""
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
        """Whether there are several colours."""
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
"""The colour of smaller lines."""
INK = "#222222"
ALARM = "#B00020"
"""The colour of warnings."""
GRID = "#DDDDDD"
STEPS = (1, 2, 2.5, 5, 10)
"""The steps between ticks."""

Tip = Callable[[Artist, str], None]
"""Sets the tooltip of an artist."""


def tick(value: float, _: int | None = None) -> str:
    """Returns the label of a tick."""
    return f"{value:,.6g}" if "e" not in f"{value:.6g}" else f"{value:g}"
