"""The measurements of a plan's cells: figures over all repetitions of a cell, with their intervals."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import groupby
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from inferometer.evaluators.evaluation import Evaluation
from inferometer.evaluators.kinds.registry import every_kind, kind_of
from inferometer.evaluators.plans.cells import Cell, Run, shown
from inferometer.evaluators.plans.running.folder import Ended, Result, RunHistory
from inferometer.evaluators.reports.base import EVALUATION_COLUMNS, Column, Row, Value
from inferometer.evaluators.statistics import mean_reach
from inferometer.evaluators.store.evaluation_store import EvaluationFilter

if TYPE_CHECKING:
    from inferometer.evaluators.store.evaluation_store import EvaluationStore

_MAIN = (
    "latency_ms_p50",
    "latency_ms_mean",
    "max_qps",
    "goodput_qps",
    "throughput_samples_per_s",
    "samples_per_s",
    "p50_us",
)
"""The figures of which a table shows the first that exists, unless others are requested."""
_CASE = ("model_name", "model_version", "framework_name", "batch_size", "using_gpu", "weights", "precision")
"""The columns that tell the rows of one run apart, besides those of its kind of measurement."""
_UNTOLD = {"id", "created_at", "conditions", "verdict", "status"}
ENDS = ("_low", "_high")
"""The suffixes that are added to the key of a figure for the columns of its interval."""
_DESCRIBING = {column.key for column in EVALUATION_COLUMNS}
_RUN_COLUMNS = (
    Column("run_s", "the whole run (s)", decimals=2),
    Column("cpu_percent", "CPU of the run (%)", decimals=1),
    Column("resident_bytes", "most memory of the run (bytes)", decimals=0),
    Column("gpu_utilization_percent", "GPU use (%)", decimals=1),
    Column("gpu_memory_bytes", "most GPU memory (bytes)", decimals=0),
    Column("gpu_power_watts", "GPU power (W)", decimals=1),
)
"""The figures of a run itself: the duration of its process, and what a monitor observed."""
Dimensions: TypeAlias = Mapping[str, Value]
"""Values by name: the parameters of a cell, and what the report says about the run."""


@dataclass(frozen=True, slots=True)
class Figure:
    """A figure of one cell.

    Attributes:
        value: The geometric mean over the repetitions.
        low: The lower end of the 95 % interval; None if it is unknown.
        high: The upper end of the 95 % interval; None if it is unknown.
        count: The number of repetitions.
    """

    value: float
    low: float | None = None
    high: float | None = None
    count: int = 1

    @classmethod
    def over(cls, repetitions: Sequence[Figure]) -> Figure:
        """Returns the figure over repetitions, at least one.

        With one repetition, the interval is the one within its run. With several, each in a separate process,
        the figure is their geometric mean, and the interval is that of Student's t distribution around the
        mean of their logarithms, so that no end is negative. If a value is not positive, both the mean and
        the interval are computed from the values themselves.
        """
        if len(repetitions) == 1:
            return repetitions[0]
        values = np.asarray([each.value for each in repetitions])
        if (values > 0).all():
            logs = np.log(values)
            log, reach = float(logs.mean()), mean_reach(logs)
            return cls(math.exp(log), math.exp(log - reach), math.exp(log + reach), len(values))
        mean, reach = float(values.mean()), mean_reach(values)
        return cls(mean, mean - reach, mean + reach, len(values))

    @property
    def ends(self) -> tuple[float, float] | None:
        """The ends of the interval; None if either is unknown."""
        return None if self.low is None or self.high is None else (self.low, self.high)

    def mapped(self, function: Callable[[float], float]) -> Figure:
        """Returns the figure with an order-preserving function applied to its value and both ends."""
        low, high = (None if end is None else function(end) for end in (self.low, self.high))
        return Figure(function(self.value), low, high, self.count)


@dataclass(frozen=True, slots=True)
class Case:
    """One row of a report on a cell: of one run, or aggregated over the repetitions of the cell.

    Attributes:
        dimensions: The values that describe the case; ``several`` if repetitions differ.
        figures: The figures by the key of their column.
        doubts: Why the figures may be unreliable, such as ``2 of 3 disturbed``; empty if there is no doubt.
        apart: The names of the dimensions that tell the rows of one run apart.
    """

    cell: Cell
    dimensions: Dimensions
    figures: Mapping[str, Figure]
    doubts: str = ""
    apart: tuple[str, ...] = _CASE


def main_figures() -> tuple[str, ...]:
    """Returns the default figures of a table, which shows the first one that exists."""
    return (*_MAIN, *(name for kind in every_kind() for name in kind.headlines))


@cache
def figure_columns() -> Mapping[str, Column]:
    """Returns the columns of all figures by their keys."""
    found = {column.key: column for column in _RUN_COLUMNS}
    for column in (column for kind in every_kind() for report in kind.reports for column in report.columns):
        found.setdefault(column.key, column)
    return found


def _cases_of(observations: Iterable[Case]) -> tuple[Case, ...]:
    """Groups the rows of a cell's single runs into cases, in the order of the first row of each."""
    groups: dict[tuple[Value, ...], list[Case]] = {}
    for each in observations:
        key = tuple(each.dimensions.get(name) for name in each.apart)
        groups.setdefault(key, []).append(each)
    return tuple(_case(group) for group in groups.values())


def _observations_of(cell: Cell, result: Result, evaluations: Iterable[Evaluation[Any]]) -> Iterator[Case]:
    """Yields the measurements of a run: one case for each row of the reports on its evaluations.

    Evaluations under a profiler are omitted, because their latency is not the model's.
    """
    parameters: dict[str, Value] = {
        name: shown(value) if isinstance(value, list) else value for name, value in cell.parameters.items()
    }
    beside = dict(_of_run(result))
    for evaluation in evaluations:
        if evaluation.profiled:
            continue
        conditions = evaluation.conditions
        unstable = conditions.stability.value if conditions is not None and conditions.warning else ""
        apart = (*_CASE, *kind_of(evaluation).case_columns)
        for row in _rows(evaluation):
            # what a report does not know is as asked for
            said = {
                n: value for n, value in _dimensions(row, apart) if value is not None or n not in parameters
            }
            doubt = "INVALID" if row.get("invalid") else unstable
            yield Case(cell, {**parameters, **said}, {**beside, **dict(_figures(row))}, doubt, apart)


def _rows(evaluation: Evaluation[Any]) -> Iterator[Row]:
    """Yields the rows of an evaluation's reports; if each report has one row, they are merged into one."""
    rows = [list(report().rows([evaluation])) for report in kind_of(evaluation).reports]
    if all(len(each) == 1 for each in rows):
        yield {key: value for [row] in rows for key, value in row.items()}
    else:
        yield from (row for each in rows for row in each)


def _dimensions(row: Row, apart: Sequence[str]) -> Iterator[tuple[str, Value]]:
    """Yields the values of a row that are not measured figures: texts, truth values and whole numbers."""
    for key, value in row.items():
        if key not in _UNTOLD and (key in _DESCRIBING or key in apart or not isinstance(value, float)):
            yield key, value


def _figures(row: Row) -> Iterator[tuple[str, Figure]]:
    for key, value in row.items():
        number = number_of(value)
        is_end = key.endswith(ENDS) and key.rpartition("_")[0] in row
        if number is not None and key not in _DESCRIBING and not is_end:
            low, high = (number_of(row.get(f"{key}{end}")) for end in ENDS)
            yield key, Figure(number, low, high)


def _of_run(result: Result) -> Iterator[tuple[str, Figure]]:
    """Yields the figures for ``_RUN_COLUMNS`` from the result of a run."""
    yield "run_s", Figure((result.end_ns - result.start_ns) / 1e9)
    seen = result.monitor or {}
    for key, part in (("cpu_percent", "mean"), ("resident_bytes", "max")):
        if spread := seen.get(key):
            yield key, Figure(float(spread[part]))
    gpus = seen.get("gpus") or []
    for key, part in (("utilization_percent", "mean"), ("memory_bytes", "max"), ("power_watts", "mean")):
        if values := [float(gpu[key][part]) for gpu in gpus if gpu.get(key)]:
            yield f"gpu_{key}", Figure(max(values))  # of the GPU that worked most


def _case(group: Sequence[Case]) -> Case:
    first = group[0]
    dimensions = {
        name: value if all(each.dimensions.get(name) == value for each in group) else "several"
        for name, value in first.dimensions.items()
    }
    figures = {
        name: Figure.over([each.figures[name] for each in group if name in each.figures])
        for name in dict.fromkeys(name for each in group for name in each.figures)
    }
    doubts = [each.doubts for each in group if each.doubts]
    told = [
        f"{doubts.count(doubt)} of {len(group)} {doubt}" if len(group) > 1 else doubt
        for doubt in dict.fromkeys(doubts)
    ]
    return Case(first.cell, dimensions, figures, ", ".join(told), first.apart)


def number_of(value: Value) -> float | None:
    """Returns a value as a float if it is a finite number; None for any other value."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        return None
    return float(value)


def ratio(above: Figure, below: Figure) -> Figure | None:
    """Returns the ratio of two independent figures with its 95 % interval.

    The half-widths of both intervals, in logarithms, add in quadrature (Zou and Donner, "Construction of
    confidence limits about effect measures", Statistics in Medicine 27, 2008).

    Returns:
        None if a value is not positive. The ends are None if one of the intervals is unknown or reaches zero.
    """
    if above.value <= 0 or below.value <= 0:
        return None
    value, count = above.value / below.value, min(above.count, below.count)
    of_above, of_below = _halves(above), _halves(below)
    if of_above is None or of_below is None:
        return Figure(value, count=count)
    low, high = math.hypot(of_above[0], of_below[1]), math.hypot(of_above[1], of_below[0])
    return Figure(value, value * math.exp(-low), value * math.exp(high), count)


def scaled(figure: Figure, factor: float) -> Figure:
    """Returns a figure multiplied by a positive number that has no error."""
    return figure.mapped(lambda value: value * factor)


def inverse(figure: Figure) -> Figure | None:
    """Returns the reciprocal of a figure; None if it is not positive."""
    return ratio(Figure(1.0, 1.0, 1.0, figure.count), figure)


def overlap(one: Figure, other: Figure) -> bool | None:
    """Returns whether the intervals of two figures have a value in common; None if either is unknown.

    Figures whose 95 % intervals do not overlap differ; figures whose intervals overlap may still differ.
    """
    if one.ends is None or other.ends is None:
        return None
    return one.ends[0] <= other.ends[1] and other.ends[0] <= one.ends[1]


def _halves(figure: Figure) -> tuple[float, float] | None:
    """Returns by how much the interval extends below and above the value, in logarithms."""
    if figure.ends is None or figure.ends[0] <= 0:
        return None
    log, low, high = map(math.log, (figure.value, *figure.ends))
    return max(0.0, log - low), max(0.0, high - log)


@dataclass(frozen=True, slots=True)
class Measured:
    """The cases of a plan, and the gaps in them.

    Attributes:
        cases: The cases of all complete runs, in the order of the cells.
        notes: What is missing, one line each.
        left: The number of cells that are not read yet, because the time was up.
        is_new: Whether anything was read that was not in the cache.
    """

    cases: tuple[Case, ...]
    notes: tuple[str, ...] = ()
    left: int = 0
    is_new: bool = False


@dataclass(frozen=True, slots=True)
class _MeasuredCell:
    """The measurements of one cell.

    Attributes:
        complete: The results of its complete runs.
        total: The number of evaluations in the database when they were read.
        lacking: The runs whose evaluations the database lacked.
        unreadable: A note on each evaluation that cannot be read.
    """

    complete: tuple[Result, ...]
    total: int
    cases: tuple[Case, ...]
    lacking: tuple[str, ...]
    unreadable: tuple[str, ...]


class PlanReader:
    """Reads the measurements of a plan's runs, those of each run only once.

    Args:
        store: The database of the plan.
        clock: A monotonic clock in seconds.
    """

    def __init__(self, store: EvaluationStore, clock: Callable[[], float] = time.monotonic) -> None:
        self._store = store
        self._clock = clock
        self._known: dict[str, _MeasuredCell] = {}
        self._observed: dict[str, tuple[Result, tuple[Case, ...]]] = {}

    def read(
        self, runs: Sequence[Run], history: Mapping[str, RunHistory], most_s: float = math.inf
    ) -> Measured:
        """Returns the cases of the complete runs.

        Args:
            runs: The runs, by cell.
            history: The history of each run in the journal, by the key of the run.
            most_s: The time in seconds after which no further cell is read; at least one is read.

        Raises:
            StoreError: The database cannot be read.
        """
        deadline_s = self._clock() + most_s
        total = self._store.count(EvaluationFilter(include_interrupted=True))
        found: list[_MeasuredCell] = []
        incomplete, left, is_new = len(runs), 0, False
        for cell, of_cell in groupby(runs, key=lambda run: run.cell):
            results = (history[run.key].result for run in of_cell if run.key in history)
            complete = tuple(each for each in results if each and each.ended is Ended.COMPLETE)
            incomplete -= len(complete)
            known = self._known.get(cell.id)
            # what is lacking may be imported later
            if not known or known.complete != complete or (known.lacking and known.total != total):
                if is_new and self._clock() > deadline_s:
                    left += 1
                    continue
                known = self._known[cell.id] = self._measured(cell, complete, total)
                is_new = True
            found.append(known)
        notes = []
        if incomplete:
            notes.append(f"{incomplete} of {len(runs)} runs are not complete, and are left out.")
        if lacking := [key for each in found for key in each.lacking]:
            notes.append(
                f"{len(lacking)} of {len(runs)} runs, such as {lacking[0]}, published evaluations that "
                f"{self._store.location} lacks; name the database with --database_address or --database_name."
            )
        notes += [note for each in found for note in each.unreadable]
        return Measured(tuple(case for each in found for case in each.cases), tuple(notes), left, is_new)

    def _measured(self, cell: Cell, complete: tuple[Result, ...], total: int) -> _MeasuredCell:
        """Reads the evaluations of a cell's complete runs."""
        observations: list[Case] = []
        lacking: list[str] = []
        unreadable: list[str] = []
        for result in complete:
            known = self._observed.get(result.key)
            if known is None or known[0] != result:
                found: list[Evaluation[Any]] = []
                for name in result.evaluations:
                    wanted = EvaluationFilter(evaluation_id=name, include_interrupted=True)
                    found += self._store.find(wanted, lambda error: unreadable.append(f"Left out {error}"))
                if len(found) < len(result.evaluations):
                    lacking.append(result.key)
                    continue
                known = self._observed[result.key] = result, tuple(_observations_of(cell, result, found))
            observations += known[1]
        return _MeasuredCell(complete, total, _cases_of(observations), tuple(lacking), tuple(unreadable))
