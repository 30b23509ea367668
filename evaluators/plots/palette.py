"""The colours of groups: those that colour-blind people can tell apart, plain and then hatched."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

# M. Okabe and K. Ito, "Color Universal Design" (2008), without black
_COLOURS = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00", "#F0E442")
_HATCHES = ("", "////")
_DARK = frozenset({"#0072B2", "#009E73", "#D55E00"})


@dataclass(frozen=True, slots=True)
class Fill:
    """How an area is painted.

    Attributes:
        colour: As ``#rrggbb``.
        hatch: Matplotlib's name of the hatching; empty for none.
    """

    colour: str
    hatch: str = ""

    @property
    def text_colour(self) -> str:
        """The colour of a text that can be read on it."""
        return "#ffffff" if self.colour in _DARK else "#000000"


OTHER = Fill("#BBBBBB")
"""What has no group, or one beyond those that can be told apart."""
MOST_GROUPS = len(_COLOURS) * len(_HATCHES)


class Palette:
    """The fills of a drawing's groups.

    Args:
        groups: In the order of the legend; those beyond ``MOST_GROUPS`` are grey.
    """

    def __init__(self, groups: Sequence[str]) -> None:
        self._fills = {
            group: Fill(_COLOURS[place % len(_COLOURS)], _HATCHES[place // len(_COLOURS)])
            for place, group in enumerate(groups[:MOST_GROUPS])
        }

    def __getitem__(self, group: str) -> Fill:
        """The fill of a group."""
        return self._fills.get(group, OTHER)

    @property
    def needs_legend(self) -> bool:
        """Whether colours tell anything: one for all does not."""
        return len(self._fills) > 1

    def legend(self, used: set[str]) -> list[tuple[str, Fill]]:
        """The groups among those ``used``, in order, and one entry for all that are grey and have a name."""
        entries = [(group, fill) for group, fill in self._fills.items() if group in used]
        if any(group and group not in self._fills for group in used):
            entries.append(("others", OTHER))
        return entries
