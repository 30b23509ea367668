"""The result of a task: its scores with their intervals."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

_DECIMALS = 4
_LARGE = 1e15  # from about here on, float64 has no decimals


class ScoreInterval(NamedTuple):
    """The ends of a 95 % interval of a score."""

    low: float
    high: float


@dataclass(frozen=True, slots=True)
class Score:
    """One figure of a task.

    Attributes:
        name: The name in reports, such as ``AP50``; the same in every evaluation of the task.
        value: The figure; None where it is not defined, as a recall without any object.
        interval: Its 95 % interval, by bootstrap over the samples or as the task defines it; None where there
            is none.
        unit: Such as ``dB``; empty for a share, 0…1, or a plain number.
        is_count: Whether it counts something, such as classes, and is shown as a whole number.
    """

    name: str
    value: float | None
    interval: ScoreInterval | None = None
    unit: str = ""
    is_count: bool = False

    @property
    def decimals(self) -> int:
        """The digits after the decimal point that are shown."""
        return 0 if self.is_count else _DECIMALS

    def text(self, value: float) -> str:
        """Returns this figure, or an end of its interval, for people; large ones with a power of ten."""
        return f"{value:.{self.decimals}f}" if abs(value) < _LARGE else f"{value:.{_DECIMALS}e}"


@dataclass(frozen=True, slots=True)
class TaskResult:
    """How well a model did its task, over the samples that were evaluated and no others.

    Attributes:
        task: The ``output.type``.
        definition: The definition of the figures, with its version, such as ``COCO AP (pycocotools 2.0.11)``.
        samples: The number of samples that have a truth and a prediction.
        scores: The figures, the most important one first.
        details: The data for pictures, such as a confusion matrix; plain JSON.
    """

    task: str
    definition: str
    samples: int
    scores: Sequence[Score]
    details: Mapping[str, Any] = field(default_factory=dict)

    @property
    def first(self) -> Score | None:
        """The most important known score; None without any."""
        return next((each for each in self.scores if each.value is not None), None)

    def score(self, name: str) -> float | None:
        """Returns the figure of a name; None if there is none."""
        return next((each.value for each in self.scores if each.name == name), None)
