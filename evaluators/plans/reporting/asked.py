"""The requested report on a plan: a table, scaling, advice, or the best cells under conditions.

The best cells are a ranking by one figure, or the Pareto front of several.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import Enum

import numpy as np

from inferometer.evaluators.drawing.charts import Drawing, Label, Mark, PointChart, Series
from inferometer.evaluators.plans.cells import holds, shown
from inferometer.evaluators.plans.reporting.advice import gpu_advice
from inferometer.evaluators.plans.reporting.cases import Case, figure_columns, overlap
from inferometer.evaluators.plans.reporting.scaling import Scaling, scaling
from inferometer.evaluators.plans.reporting.tables import (
    DOUBTS,
    MOST_ROWS,
    PlanTable,
    Point,
    bar_chart,
    dimension_columns,
    drawing_of,
    figure_text,
    figure_values,
    heading_of,
    is_far,
    known_figures,
    label_of,
    notes_on,
    point_series,
    rows_note,
    table,
    telling,
    value_columns,
)
from inferometer.evaluators.plans.running.folder import Result
from inferometer.evaluators.reports.base import Column, Row, Value
from inferometer.manifests.errors import ConfigurationError, suggestion

_CONDITION = re.compile(r"\s*(?P<name>[^\s<>=!]+)\s*(?P<operator><=|>=|==|=|!=|<|>)\s*(?P<value>.+?)\s*")
FRONT, OTHERS = "on the front", "dominated"
_SCORE, _SCORE_NAME = "score", "score_name"
"""The columns with the first score of a task, whichever it is, and with the name of that score."""
_HOLDS = Column("holds", "holds", stays=True)
_TIE = Column("tie", "tie", stays=True)
_FRONT = Column("front", "front", stays=True)


class Certainty(str, Enum):
    """How certain it is that a condition holds, given that the value itself meets it."""

    CERTAIN = "certain"
    """The condition holds in the whole interval, or concerns no figure."""
    UNKNOWN = "unknown"
    """The figure has no interval."""
    UNCERTAIN = "uncertain"
    """The interval extends beyond the bound. Of several conditions, the least certain one is reported."""


@dataclass(frozen=True, slots=True)
class Condition:
    """A comparison of a figure or a dimension with a value.

    Attributes:
        name: The figure or the dimension.
        compared: The operator.
        value: The value on the right side, as text.
    """

    name: str
    compared: str
    value: str

    def __str__(self) -> str:
        return f"{self.name} {self.compared} {self.value}"

    @classmethod
    def parsed(cls, text: str, cases: Sequence[Case]) -> Condition:
        """Parses a condition; raises ConfigurationError if it is wrong, or no case has what it names."""
        parts = _CONDITION.fullmatch(text)
        if parts is None:
            raise ConfigurationError(f'"{text}" is not a condition, such as "latency_ms_p99 <= 50"')
        name = parts["name"]
        known = {each for case in cases for each in (*case.dimensions, *case.figures)}
        if cases and name not in known:
            raise ConfigurationError(f'no cell has "{name}"; {suggestion(name, known)}')
        return cls(name, "==" if parts["operator"] == "=" else parts["operator"], parts["value"])

    def fulfilled_by(self, case: Case) -> bool:
        """Returns whether the value of a case meets the condition; a case without a value does not."""
        value = self._value_in(case)
        return value is not None and self._holds(value)

    def certainty(self, case: Case) -> Certainty:
        """Returns how certain the condition is for a case, judging by the ends of its figure's interval."""
        figure = case.figures.get(self.name)
        if figure is None:
            return Certainty.CERTAIN
        if figure.ends is None:
            return Certainty.UNKNOWN
        answers = {self._holds(each) for each in (figure.value, *figure.ends)}
        return Certainty.CERTAIN if len(answers) == 1 else Certainty.UNCERTAIN

    def distance(self, case: Case) -> float:
        """Returns by what fraction of the bound a case misses it: 0 if it is met, infinite if not numeric."""
        if self.fulfilled_by(case):
            return 0.0
        value = self._value_in(case)
        try:
            bound = float(self.value)
        except ValueError:
            return math.inf
        if isinstance(value, bool) or not isinstance(value, int | float):
            return math.inf
        return abs(value - bound) / abs(bound) if bound else abs(value)

    def _value_in(self, case: Case) -> Value:
        figure = case.figures.get(self.name)
        return figure.value if figure is not None else case.dimensions.get(self.name)

    def _holds(self, value: str | float) -> bool:
        try:
            return holds(f"${{{self.name}}} {self.compared} {self.value}", {self.name: value})
        except ConfigurationError as error:
            raise ConfigurationError(
                f'"{self}" cannot be decided for "{shown(value)}"; compare numbers with numbers, '
                "and texts only with == and !="
            ) from error


def chosen(cases: Sequence[Case], conditions: Sequence[str]) -> tuple[Case, ...]:
    """Returns the cases that meet all conditions, such as ``batch_size >= 8``.

    A case without the named value does not meet a condition.

    Raises:
        ConfigurationError: A condition cannot be parsed, or names a figure or dimension that no case has.
    """
    parsed = [Condition.parsed(text, cases) for text in conditions]
    return tuple(case for case in cases if all(each.fulfilled_by(case) for each in parsed))


def none_fulfils(cases: Sequence[Case], conditions: Sequence[str]) -> ConfigurationError:
    """Returns the error for conditions that no case meets; it names the case that comes nearest.

    That is the case whose largest ``Condition.distance`` is the smallest.

    Raises:
        ConfigurationError: A condition cannot be parsed.
    """
    parsed = [Condition.parsed(text, cases) for text in conditions]
    told = " and ".join(map(str, parsed))
    distances = [max(each.distance(case) for each in parsed) for case in cases]
    if not distances or math.isinf(min(distances)):
        return ConfigurationError(f"no cell fulfils {told}")
    nearest = cases[distances.index(min(distances))]
    has = ", ".join(_value_of(nearest, name) for name in dict.fromkeys(each.name for each in parsed))
    name = f"{nearest.cell.id} ({nearest.cell.name})" if nearest.cell.name else nearest.cell.id
    return ConfigurationError(f"no cell fulfils {told}; the nearest, {name}, has {has}")


def _value_of(case: Case, name: str) -> str:
    figure = case.figures.get(name)
    if figure is None:
        return f"{name} {shown(case.dimensions.get(name))}"
    ends = f" [{figure.ends[0]:.4g}, {figure.ends[1]:.4g}]" if figure.ends else ""
    return f"{name} {figure.value:.4g}{ends}"


@dataclass(frozen=True, slots=True)
class Objective:
    """A figure to maximize or to minimize."""

    figure: str
    highest: bool

    @property
    def told(self) -> str:
        """The objective in words."""
        return f"{'highest' if self.highest else 'lowest'} {self.figure}"

    def score(self, case: Case) -> float:
        """Returns the value of a case that has the figure; higher is better."""
        value = case.figures[self.figure].value
        return value if self.highest else -value


@dataclass(frozen=True, slots=True)
class _Found:
    """The cases that meet the conditions and have all figures, with the columns that show them."""

    cases: Sequence[Case]
    conditions: Sequence[Condition]
    names: Sequence[str]
    figures: Sequence[str]

    @property
    def columns(self) -> tuple[Column, ...]:
        """The columns of all figures, and the one that says whether the conditions hold."""
        figures = [each for name in self.figures for each in value_columns(name)]
        return (*figures, *((_HOLDS,) if self.conditions else ()), DOUBTS)

    def row(self, case: Case) -> Row:
        """Returns the description of a case, its figures, and whether the conditions hold."""
        values: dict[str, Value] = {name: case.dimensions.get(name) for name in self.names}
        for name in self.figures:
            values |= figure_values(name, case.figures.get(name))
        found = [each.certainty(case) for each in self.conditions]
        held = {_HOLDS.key: max(found, key=list(Certainty).index).value} if found else {}
        return {**values, **held, DOUBTS.key: case.doubts or None}


def best(
    cases: Sequence[Case],
    objectives: Sequence[Objective],
    where: Sequence[str] = (),
    values: Sequence[str] = (),
) -> PlanTable:
    """Returns the best cases that meet the conditions, as a ranking or as the Pareto front.

    With one objective, the best case comes first, and ``tie`` says whether the interval of a case overlaps
    that of the best one, so that the two cannot be told apart; for the best one, whether such a case exists.
    With several, see ``pareto``. ``holds`` says whether the conditions hold in the whole intervals of the
    figures that they name; see ``Certainty``.

    Args:
        cases: All cases.
        objectives: The objectives, at least one.
        where: The conditions.
        values: Further figures to show.

    Raises:
        ConfigurationError: A name or a condition is wrong, a figure is named twice, or no case is left.
    """
    wanted = [each.figure for each in objectives]
    for name in wanted:
        if wanted.count(name) > 1:
            raise ConfigurationError(f'"{name}" is a duplicate objective; leave out one')
    known_figures(cases, (*wanted, *values))
    conditions = [Condition.parsed(text, cases) for text in where]
    told = " and ".join(map(str, conditions))
    fitting = chosen(cases, where)
    if not fitting:
        raise none_fulfils(cases, where)
    complete = [case for case in fitting if all(name in case.figures for name in wanted)]
    if not complete:
        raise ConfigurationError(f"no cell that fulfils {told} has {' and '.join(wanted)}")
    if _SCORE in wanted:
        _check_one_score(complete)
    bounded = [each.name for each in conditions if any(each.name in case.figures for case in cases)]
    figures = tuple(dict.fromkeys((*wanted, *bounded, *values)))
    found = _Found(complete, conditions, telling(cases), figures)
    made = _ranking(found, objectives[0]) if len(objectives) == 1 else _front(found, objectives)
    notes = []
    if left := len(cases) - len(fitting):
        notes.append(f"{left} of {len(cases)} cells do not fulfil {told}, by their values.")
    if lacking := len(fitting) - len(complete):
        notes.append(f"{lacking} of {len(fitting)} cells lack a figure of an objective, and are left out.")
    caption = f"{made.caption}, where {told}" if conditions else made.caption
    return replace(made, caption=caption, notes=(*notes, *made.notes))


def _check_one_score(cases: Sequence[Case]) -> None:
    """Raises ConfigurationError if the scores of cases have different kinds and cannot be compared."""
    names = list(dict.fromkeys(str(case.dimensions.get(_SCORE_NAME)) for case in cases))
    if len(names) > 1:
        raise ConfigurationError(
            f"{_SCORE} is {names[0]} for some cells and {names[1]} for others, not comparable; choose "
            f'one with --where="{_SCORE_NAME} == {names[0]}"'
        )


def pareto(scores: Sequence[Sequence[float]]) -> list[bool]:
    """Returns which points are on the Pareto front: those that no other point dominates.

    A point dominates another if it is at least as good in every objective and better in one (Miettinen,
    "Nonlinear Multiobjective Optimization", 1999, section 2.2). Equal points do not dominate each other.
    The comparison uses the values alone, not their intervals.

    Args:
        scores: For each point, one score for each objective; higher is better.
    """
    every = np.asarray(scores, dtype=np.float64)
    return [not ((every >= each).all(axis=1) & (every > each).any(axis=1)).any() for each in every]


def _ranking(found: _Found, objective: Objective) -> PlanTable:
    ordered = sorted(found.cases, key=objective.score, reverse=True)
    first = ordered[0].figures[objective.figure]
    ties = [overlap(case.figures[objective.figure], first) for case in ordered[1:]]
    of_first = True if True in ties else None if first.low is None else False
    rows = [{**found.row(case), _TIE.key: tie} for case, tie in zip(ordered, [of_first, *ties], strict=True)]
    header = figure_columns()[objective.figure].header
    chart = bar_chart(header, rows, found.names, {objective.figure: ""})
    own = value_columns(objective.figure)
    rest = [column for column in found.columns if column not in own]
    tied = (f"{1 + ties.count(True)} cells are not told apart as the best: tie.",) * (True in ties)
    return PlanTable(
        name="ranking",
        caption=f"{objective.told}, the best first",
        columns=(*dimension_columns(found.names), *own, _TIE, *rest),
        rows=tuple(rows),
        notes=(*tied, *notes_on(found.cases, found.figures)),
        drawing=drawing_of(objective.told, [chart], notes=rows_note(len(rows), MOST_ROWS)),
    )


def _front(found: _Found, objectives: Sequence[Objective]) -> PlanTable:
    on_front = pareto([[each.score(case) for each in objectives] for case in found.cases])
    marked = sorted(
        zip(found.cases, on_front, strict=True),
        key=lambda pair: (pair[1], objectives[0].score(pair[0])),
        reverse=True,
    )
    rows = tuple({**found.row(case), _FRONT.key: is_on} for case, is_on in marked)
    return PlanTable(
        name="pareto",
        caption=" and ".join(each.told for each in objectives),
        columns=(*dimension_columns(found.names), _FRONT, *found.columns),
        rows=rows,
        notes=(
            f"{sum(on_front)} of {len(rows)} cells are on the front: no other is as good in every objective "
            "and better in one, by the values without their intervals.",
            *notes_on(found.cases, found.figures),
        ),
        drawing=_front_drawing(found, objectives, marked) if len(objectives) == 2 else None,
    )


def _front_drawing(
    found: _Found, objectives: Sequence[Objective], marked: Sequence[tuple[Case, bool]]
) -> Drawing | None:
    """Draws two objectives of the cases, each of which is marked with whether it is on the front."""
    headers = [figure_columns()[each.figure].header for each in objectives]
    groups: dict[bool, list[Point]] = {True: [], False: []}
    for case, is_on in marked:
        what = label_of(found.row(case), found.names)
        figures = [case.figures[each.figure] for each in objectives]
        x, y = (each.value for each in figures)
        told = ", ".join(f"{name} {figure_text(each)}" for name, each in zip(headers, figures, strict=True))
        groups[is_on].append(Point(x, y, FRONT if is_on else OTHERS, what, f"{what}: {told}"))
    line = sorted(groups[True], key=lambda point: (point.x, point.y))
    front = Series(FRONT, tuple(p.x for p in line), tuple(p.y for p in line), line=True, tooltip=FRONT)
    chart = PointChart(
        Label(" and ".join(each.told for each in objectives), heading_of(found.names)),
        headers[0],
        headers[1],
        (front, *point_series(groups[False], Mark.RING), *point_series(groups[True])),
        x_logarithmic=is_far([p.x for points in groups.values() for p in points]),
        y_logarithmic=is_far([p.y for points in groups.values() for p in points]),
        tall=True,
    )
    return drawing_of("Pareto front", [chart], [FRONT, *([OTHERS] if groups[False] else [])])


@dataclass(frozen=True, slots=True)
class Asked:
    """The options of a report.

    Attributes:
        rows: The dimensions of its rows; empty for those that tell cells apart.
        columns: The dimensions of its columns.
        where: Conditions that each cell must meet.
        failed: Whether to show the incomplete runs instead.
        minimize: The figures to minimize; the report then shows the best cells.
        maximize: The figures to maximize; the report then shows the best cells.
        scaling: The kind of scaling to show instead.
        over: The dimension that counts the workers; None for the only number that varies.
        gpu_advice: Whether to show whether a GPU is worth its price.
        cores_per_gpu: How many cores a GPU counts for; None if it is unknown.
    """

    rows: Sequence[str] = ()
    columns: Sequence[str] = ()
    value: Sequence[str] = ()
    where: Sequence[str] = ()
    failed: bool = False
    minimize: Sequence[str] = ()
    maximize: Sequence[str] = ()
    scaling: Scaling | None = None
    over: str | None = None
    gpu_advice: bool = False
    cores_per_gpu: float | None = None

    @property
    def objectives(self) -> tuple[Objective, ...]:
        """The figures to minimize, followed by those to maximize."""
        lowest = [Objective(name, highest=False) for name in self.minimize]
        return (*lowest, *(Objective(name, highest=True) for name in self.maximize))

    def check(self) -> None:
        """Raises ConfigurationError if two options exclude each other."""
        reports = {  # those other than the table
            "--failed": self.failed,
            "--minimize" if self.minimize else "--maximize": bool(self.objectives),
            "--scaling": self.scaling is not None,
            "--gpu_advice": self.gpu_advice,
        }
        kinds = [name for name, is_asked in reports.items() if is_asked]
        if len(kinds) > 1:
            raise ConfigurationError(f"{kinds[0]} and {kinds[1]} are two reports; ask for one at a time")
        given = [f"--{name}" for name in ("rows", "columns") if getattr(self, name)]
        if kinds and given:
            raise ConfigurationError(f"{kinds[0]} has its own rows and columns; leave out {given[0]}")
        if self.over is not None and self.scaling is None and not self.gpu_advice:
            raise ConfigurationError("--over requires --scaling or --gpu_advice; add one of them")
        if self.cores_per_gpu is not None and not self.gpu_advice:
            raise ConfigurationError("--cores_per_gpu requires --gpu_advice; add it")
        if self.failed and (self.value or self.where):
            left_out = "--value" if self.value else "--where"
            raise ConfigurationError(f"--failed shows runs without figures; leave out {left_out}")


def reported(cases: Sequence[Case], asked: Asked, failed: Sequence[Result] = ()) -> PlanTable:
    """Returns the requested report.

    Args:
        cases: All cases of the plan, at least one.
        asked: The options. Incomplete runs are not shown here; see ``failures``.
        failed: The results of the runs on a GPU that are not complete.

    Raises:
        ConfigurationError: A name or a condition is wrong, or no case meets the conditions.
    """
    if asked.objectives:
        return best(cases, asked.objectives, asked.where, asked.value)
    fitting = chosen(cases, asked.where)
    if not fitting:
        raise none_fulfils(cases, asked.where)
    if asked.scaling is not None:
        return scaling(fitting, asked.scaling, asked.over, asked.value)
    if asked.gpu_advice:
        return gpu_advice(fitting, asked.value, asked.over, asked.cores_per_gpu, failed)
    return table(fitting, asked.rows, asked.columns, asked.value)
