"""The ranges of the numbers in requests, so that each front end refuses the same ones."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from inferometer.manifests.errors import ConfigurationError

MOST_SEED = 2**63 - 1


@dataclass(frozen=True, slots=True)
class Range:
    """Finite numbers between two ends.

    Attributes:
        least: The lower end.
        most: The upper end; None for none.
        open: Whether the ends are left out.
    """

    least: float
    most: float | None = None
    open: bool = False

    def __contains__(self, value: float) -> bool:
        if not math.isfinite(value):
            return False
        above = value > self.least if self.open else value >= self.least
        return above and (self.most is None or value < self.most or (value == self.most and not self.open))

    def __str__(self) -> str:
        least = f"{'above' if self.open else 'at least'} {self.least}"
        return (
            least if self.most is None else f"{least} and {'below' if self.open else 'at most'} {self.most}"
        )


POSITIVE, NOT_NEGATIVE, COUNT = Range(0, open=True), Range(0), Range(1)
SEED = Range(0, MOST_SEED)
COMPARISON = {"threshold": Range(0, 10), "accuracy_threshold": Range(0, 10)}
"""The numbers of a comparison."""


def check(request: object, ranges: Mapping[str, Range]) -> None:
    """Checks the numbers that a request has.

    Raises:
        ConfigurationError: One is outside of its range.
    """
    for name, allowed in ranges.items():
        check_number(name, getattr(request, name, None), allowed)


def check_number(name: str, value: float | None, allowed: Range) -> None:
    """Checks a number; None is one that is left out.

    Raises:
        ConfigurationError: It is outside of its range; the message has its name without the unit of time.
    """
    if value is not None and value not in allowed:
        raise ConfigurationError(f"{name.removesuffix('_s')} is {value}; it must be {allowed}")
