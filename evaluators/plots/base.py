"""What a picture of a report is, and what the pictures have in common: names, units, and what is left out."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import timezone
from itertools import groupby

from evaluators.evaluation import Evaluation
from evaluators.plots.drawing import Drawing, Label
from evaluators.reports.base import Row, Value

MOST_CHARTS = 20
"""Evaluations that one picture shows at most."""


class Plot(ABC):
    """The picture of one report."""

    @abstractmethod
    def draw(self, evaluations: Sequence[Evaluation], rows: Sequence[Row]) -> Drawing | None:
        """Returns the picture of a report's rows; None where they hold nothing that could be drawn.

        A pure function: the same rows give the same drawing.

        Args:
            evaluations: What was reported on; raw times are taken from here.
            rows: The report's rows on them.
        """


def label_of(evaluation: Evaluation, *more: str, warning: str = "") -> Label:
    """Returns what tells one evaluation from another: model, batch size, framework, device, time.

    Args:
        evaluation: What is named.
        more: What else is said of it, before the time.
        warning: Why its figures are not to be trusted.
    """
    system = evaluation.system
    manifest = system.manifest
    began = evaluation.created_at.astimezone(timezone.utc)
    return Label(
        f"{manifest.name} {manifest.version}, batch size {evaluation.options.batch_size}",
        " · ".join(
            (
                f"{manifest.framework.name} {system.framework_version}",
                str(system.device).upper(),
                *more,
                f"{began:%Y-%m-%d %H:%M:%S}",
            )
        ),
        warning,
    )


def by_evaluation(
    evaluations: Sequence[Evaluation], rows: Sequence[Row]
) -> tuple[list[tuple[Evaluation, list[Row]]], tuple[str, ...]]:
    """Sorts rows by their evaluation, in the order of the rows.

    Returns:
        The first ``MOST_CHARTS`` evaluations that have rows, with them, and a note on those left out.
    """
    known = {evaluation.id: evaluation for evaluation in evaluations}
    found: dict[str, list[Row]] = {}
    for key, group in groupby(rows, key=lambda row: str(row["id"])):
        if key in known:
            found.setdefault(key, []).extend(group)
    chosen = [(known[key], of_one) for key, of_one in found.items()][:MOST_CHARTS]
    return chosen, left_out(len(found) - len(chosen), len(found), "evaluations")


def left_out(missing: int, of: int, what: str) -> tuple[str, ...]:
    """A note on what is not shown; empty where nothing is missing."""
    return (f"{of - missing:,} of {of:,} {what} are shown.",) if missing > 0 else ()


def number(value: Value) -> float:
    """Returns a figure of a row; 0 where there is none."""
    return float(value) if isinstance(value, int | float) else 0.0


def by_weight(weights: Iterable[tuple[str, float]]) -> tuple[str, ...]:
    """Returns names by the sum of their weights, the heaviest first."""
    sums: dict[str, float] = {}
    for name, weight in weights:
        sums[name] = sums.get(name, 0.0) + weight
    return tuple(sorted(sums, key=lambda name: -sums[name]))


def time_unit(longest_us: float) -> tuple[float, str]:
    """Returns the unit in which a person reads a time: µs in one of it, and its name."""
    for scale, unit in ((1e6, "s"), (1e3, "ms")):
        if longest_us >= scale:
            return scale, unit
    return 1.0, "µs"


def readable(value: float) -> str:
    """Returns a number with three digits that count: ``0.0123``, ``1.23``, ``12.3``, ``1,230``."""
    if value == 0:
        return "0"
    if abs(value) >= 100:
        return f"{value:,.0f}"
    text = f"{value:.3g}"
    return text if "e" not in text else f"{value:.1e}"


def described(row: Mapping[str, Value], keys: Mapping[str, str]) -> Iterator[str]:
    """Yields ``name value`` for those of the ``keys`` that a row has a value for."""
    for key, name in keys.items():
        if row.get(key) not in (None, ""):
            yield f"{name} {row[key]}"
