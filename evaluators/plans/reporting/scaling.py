"""Weak and strong scaling over the devices, ranks, threads or cores of cells, as printed by DLBS."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum

from inferometer.evaluators.drawing.charts import Drawing, Label, PointChart, Series
from inferometer.evaluators.plans.reporting.cases import Case, Figure, inverse, ratio, scaled
from inferometer.evaluators.plans.reporting.tables import (
    DOUBTS,
    MOST_LINES,
    PlanTable,
    Point,
    as_number,
    check_dimensions,
    dimension_columns,
    drawing_of,
    figure_text,
    figure_values,
    heading_of,
    interval_columns,
    is_far,
    known_figures,
    lines_through,
    mixed,
    notes_on,
    place_of,
    point_series,
    telling,
    value_columns,
)
from inferometer.evaluators.reports.base import Column, Row, Value, cut_percent
from inferometer.manifests.errors import ConfigurationError

COUNTED = ("devices", "num_gpus", "gpus", "ranks", "num_ranks", "threads", "cell.cores", "replicas")
"""The dimensions that count workers, the most informative first."""
_LISTS = {"gpus", "cell.cores"}
_PART = re.compile(r"\s*(\d+)(?:-(\d+))?\s*")
_RATE = re.compile(r"(_per_s|(^|_)qps)(_|$)")
_TIME = re.compile(r"(^|_)(ns|us|ms|s)(_|$)")
IDEAL = "ideal"
_WHOLE_BATCH = "effective_batch"
_COLUMNS = (
    *interval_columns(Column("speedup", "speed-up", decimals=2, stays=True)),
    *interval_columns(Column("efficiency_percent", "efficiency (%)", decimals=2, stays=True)),
    *interval_columns(
        Column("uncapped_efficiency_percent", "efficiency, uncapped (%)", decimals=4, detail=3)
    ),
    DOUBTS,
)


class Quantity(Enum):
    """The kinds of figures."""

    TIME = "time"
    RATE = "rate"


def quantity_of(figure: str) -> Quantity:
    """Returns whether a figure is a time or a rate, by its unit; raises ConfigurationError if neither."""
    if _RATE.search(figure):
        return Quantity.RATE
    if _TIME.search(figure):
        return Quantity.TIME
    raise ConfigurationError(
        f'"{figure}" is neither a time nor a rate; name one whose unit is s, ms, us, per_s or qps'
    )


def rate_of(figure: Figure, quantity: Quantity) -> Figure | None:
    """Returns a rate, or the reciprocal of a time; None if the value is not positive."""
    return inverse(figure) if quantity is Quantity.TIME else figure if figure.value > 0 else None


def one_figure(cases: Sequence[Case], values: Sequence[str]) -> str:
    """Returns the requested figure, or the main one.

    Raises:
        ConfigurationError: Several figures are requested, no case has it, or it is neither a time nor a rate.
    """
    if len(values) > 1:
        raise ConfigurationError(f"--value names {len(values)} figures; name one, a time or a rate")
    found = known_figures(cases, values)
    if not found:
        raise ConfigurationError("name a figure with --value, a time or a rate")
    quantity_of(found[0])
    return found[0]


def count_of(case: Case, name: str) -> float | None:
    """Returns a dimension as a number; None if it is not one.

    For lists of cores and GPUs, such as ``0,2-3``, this is the number of items.
    """
    value = case.dimensions.get(name)
    return _listed(value) if name in _LISTS else as_number(value)


def varying(cases: Sequence[Case], among: Sequence[str] = COUNTED) -> tuple[str, ...]:
    """Returns the dimensions whose number varies; of several with equal numbers, only the first."""
    found: dict[tuple[float | None, ...], str] = {}
    for name in among:
        numbers = tuple(count_of(case, name) for case in cases)
        if len({*numbers} - {None}) > 1:
            found.setdefault(numbers, name)
    return tuple(found.values())


def _listed(value: Value) -> float | None:
    named: set[int] = set()
    for part in str(value).split(",") if value not in (None, "") else ():
        ends = _PART.fullmatch(part)
        if ends is None:
            return None
        first, last = int(ends[1]), int(ends[2] or ends[1])
        named.update(range(first, min(last, first + 4096) + 1))
    return float(len(named)) if named else None


class Scaling(str, Enum):
    """The amount of work that stays constant as the number of workers grows.

    ``WEAK``: the work of each worker, so that efficiency is t1 / tN. ``STRONG``: the work of all, so that
    efficiency is t1 / (N · tN). A rate counts the work of all, so that efficiency is rN / (N · r1) in both.
    """

    WEAK = "weak"
    STRONG = "strong"

    def speedup(self, base: Figure, figure: Figure, quantity: Quantity, more: float) -> Figure | None:
        """Returns the speed-up over the base, which has ``more`` times fewer workers.

        The speed-up is None if a figure is not positive.
        """
        if quantity is Quantity.RATE:
            return ratio(figure, base)
        faster = ratio(base, figure)
        return scaled(faster, more) if faster is not None and self is Scaling.WEAK else faster


@dataclass(frozen=True, slots=True)
class _Place:
    """One case in its group: the number of workers, N, and its result."""

    case: Case
    count: float
    more: float
    speedup: Figure | None


def scaling(
    cases: Sequence[Case], kind: Scaling, over: str | None = None, values: Sequence[str] = ()
) -> PlanTable:
    """Returns speed-up and efficiency over a number of devices, ranks, threads or cores.

    N is the number over the smallest in a group of otherwise equal cases. Efficiency is truncated to two
    decimals and capped at 100, as in DLBS; another column holds the exact value. The ends of its interval are
    those of ``ratio``.

    Args:
        cases: The cases.
        kind: The kind of scaling.
        over: The dimension; None for the only one that varies among ``COUNTED``.
        values: The figure; empty for the main one.

    Raises:
        ConfigurationError: The figure is neither a time nor a rate; the dimension has no numbers, is
            ambiguous, or does not vary; or cases differ in something else.
    """
    figure = one_figure(cases, values)
    over = over if over is not None else _only(cases)
    check_dimensions(cases, (over,))
    measured = [case for case in cases if figure in case.figures and count_of(case, over) is not None]
    if not measured:
        raise ConfigurationError(f'"{over}" has no numbers; name another dimension with --over')
    names = _names(measured, kind, over)
    groups = [
        places
        for group in by_count(measured, names, over).values()
        if (places := _placed(group, kind, figure, over))
    ]
    if not groups:
        raise ConfigurationError(f'no cells differ in "{over}" alone; name another dimension with --over')
    rows = tuple(_row(place, names, over, figure) for places in groups for place in places)
    left = len(cases) - len(rows)
    told = f"{left} of {len(cases)} cells are left out: no other with {figure} differs in {over} alone."
    notes = (
        f"N is {over} over the smallest of each group, whose speed-up is 1.",
        *((told,) if left else ()),
        *notes_on([place.case for places in groups for place in places], (figure,)),
    )
    return PlanTable(
        name=f"{kind.value}_scaling",
        caption=f"{kind.value} scaling of {figure} over {over}",
        columns=(*dimension_columns((*names, over)), *value_columns(figure), *_COLUMNS),
        rows=rows,
        notes=notes,
        drawing=_drawing(f"{kind.value.capitalize()} scaling", groups, names, over),
    )


def _only(cases: Sequence[Case]) -> str:
    """Returns the dimension that counts the workers, if only one varies."""
    found = varying(cases)
    if len(found) == 1:
        return found[0]
    which = f"{', '.join(found)} vary" if found else "no number of devices, ranks, threads or cores varies"
    raise ConfigurationError(f"{which}; name the dimension with --over")


def _names(cases: Sequence[Case], kind: Scaling, over: str) -> tuple[str, ...]:
    """Returns the dimensions that define a group; strong scaling adds the total batch size if known."""
    batches = {case.dimensions.get(_WHOLE_BATCH) for case in cases}
    first = (_WHOLE_BATCH,) if kind is Scaling.STRONG and len(batches) > 1 and None not in batches else ()
    return (*first, *telling(cases, (over, *first)))


def by_count(
    cases: Sequence[Case], names: Sequence[str], over: str
) -> Mapping[tuple[str, ...], Mapping[float, Case]]:
    """Returns the groups of cases that are equal in some dimensions, each as cases by number, in order.

    Raises:
        ConfigurationError: Two cases of a group have the same number.
    """
    groups: dict[tuple[str, ...], dict[float, Case]] = {}
    for case in cases:
        number = count_of(case, over)
        if number is None:
            continue
        other = groups.setdefault(place_of(case, names), {}).setdefault(number, case)
        if other is not case:
            raise ConfigurationError(mixed(other, case, (*names, over)))
    return {place: dict(sorted(group.items())) for place, group in groups.items()}


def _placed(group: Mapping[float, Case], kind: Scaling, figure: str, over: str) -> list[_Place]:
    """Returns the places of a group; empty if the group has only one number."""
    least = next(iter(group))
    if len(group) < 2:
        return []
    if least <= 0:
        raise ConfigurationError(f"{over} is {least:g} in a cell; choose those above 0 with --where")
    base, quantity = group[least].figures[figure], quantity_of(figure)
    places = []
    for number, case in group.items():
        speedup = kind.speedup(base, case.figures[figure], quantity, number / least)
        exact = Figure(1.0, count=base.count) if number == least and speedup is not None else speedup
        places.append(_Place(case, number, number / least, exact))
    return places


def _row(place: _Place, names: Sequence[str], over: str, figure: str) -> Row:
    efficiency = None if place.speedup is None else scaled(place.speedup, 100 / place.more)
    values: dict[str, Value] = {name: place.case.dimensions.get(name) for name in names}
    return {
        **values,
        over: whole(place.count),
        **figure_values(figure, place.case.figures[figure]),
        **figure_values("speedup", place.speedup),
        **figure_values("efficiency_percent", None if efficiency is None else efficiency.mapped(cut_percent)),
        **figure_values("uncapped_efficiency_percent", efficiency),
        DOUBTS.key: place.case.doubts or None,
    }


def whole(number: float) -> int | float:
    """Returns a whole number as an int."""
    return int(number) if number.is_integer() else number


def _drawing(
    title: str, groups: Sequence[Sequence[_Place]], names: Sequence[str], over: str
) -> Drawing | None:
    """Draws the speed-up of each group over N, and the line of ideal scaling."""
    labels = [" · ".join(place_of(places[0].case, names)) or "measured" for places in groups]
    points = [
        Point(
            place.more,
            place.speedup.value,
            label,
            tooltip=f"{label}: {figure_text(place.speedup)} times at {over} {place.count:g}",
        )
        for places, label in zip(groups[:MOST_LINES], labels, strict=False)
        for place in places
        if place.speedup is not None
    ]
    if not points:
        return None
    most = max(point.x for point in points)
    ideal = Series(IDEAL, (1.0, most), (1.0, most), line=True, tooltip=IDEAL, size=0.1, strong=True)
    chart = PointChart(
        Label(f"Speed-up over {over}", heading_of(names)),
        f"N: {over} over the smallest",
        "speed-up",
        (ideal, *lines_through(points), *point_series(points)),
        x_logarithmic=is_far([point.x for point in points]),
        y_logarithmic=is_far([point.x for point in points]),
        tall=True,
    )
    hidden = (f"The first {MOST_LINES} of {len(groups)} groups are shown.",) * (len(groups) > MOST_LINES)
    return drawing_of(title, [chart], (*labels[:MOST_LINES], IDEAL), hidden)
