"""Ratios of times measured alternately, and the table that shows them."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

_Measured = TypeVar("_Measured")


@dataclass(frozen=True, slots=True)
class Row:
    """One figure.

    Attributes:
        name: The numerator and the denominator.
        ratios: The ratio of each round.
        aim: The target for the ratio; empty without one.
        detail: The absolute figures.
    """

    name: str
    ratios: Sequence[float]
    aim: str = ""
    detail: str = ""

    @property
    def cells(self) -> tuple[str, str, str, str]:
        """The row as text: the median, and the smallest and largest where there are several rounds."""
        spread = f" [{min(self.ratios):.3f} – {max(self.ratios):.3f}]" if len(self.ratios) > 1 else ""
        return self.name, f"{statistics.median(self.ratios):.3f}{spread}", self.aim, self.detail


def interleaved(
    rounds: int, measurements: Mapping[str, Callable[[], _Measured]]
) -> Mapping[str, Sequence[_Measured]]:
    """Takes every measurement once per round, so that other work on the machine affects all of them equally.

    The order rotates from round to round. A first round warms up and is dropped.
    """
    taken: dict[str, list[_Measured]] = {name: [] for name in measurements}
    order = list(measurements)
    for number in range(rounds + 1):
        for name in order:
            value = measurements[name]()
            if number:
                taken[name].append(value)
        order = order[1:] + order[:1]
    return taken


def divided(numerators: Sequence[float], denominators: Sequence[float]) -> Sequence[float]:
    """Returns the ratio of each round."""
    return [over / under for over, under in zip(numerators, denominators, strict=True)]


def print_table(title: str, rows: Sequence[Row]) -> None:
    """Prints a table on stdout."""
    cells = [("", "ratio: median [min – max]", "aim", "medians"), *(row.cells for row in rows)]
    widths = [max(len(row[column]) for row in cells) for column in range(4)]
    print(f"\n{title}")
    for row in cells:
        line = "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True))
        print(f"  {line.rstrip()}", flush=True)
