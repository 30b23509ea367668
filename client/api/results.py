"""The library's results: one evaluation, rows that convert to other forms, and what the store has.

Rows convert to lists, Arrow, pandas, text and HTML. HTML consists of tables with pictures; all text is
escaped to prevent script injection. Stored evaluations are found by id, prefix or group, listed as rows, and
compared.
"""

from __future__ import annotations

import io
import logging
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import replace
from functools import cached_property
from html import escape
from importlib import import_module
from typing import Any, ClassVar, Generic, TypeAlias, TypeVar, overload

from typing_extensions import Self

from inferometer.agent.tracing.recorder import SpanChunk
from inferometer.client.api.invocation import library_invocation
from inferometer.evaluators.comparing import job as job
from inferometer.evaluators.comparing.comparison import Side
from inferometer.evaluators.conditions.conditions import Conditions
from inferometer.evaluators.drawing.charts import MOST_EVALUATIONS, Drawing
from inferometer.evaluators.drawing.writer import inline_svg
from inferometer.evaluators.evaluation import Evaluation, Measurement, SpanSource, Status, of_kind
from inferometer.evaluators.jobs.options import ACCURACY_THRESHOLD
from inferometer.evaluators.kinds.batches.measurement import BatchMeasurement
from inferometer.evaluators.kinds.batches.report import LatencyReport
from inferometer.evaluators.kinds.registry import find_plot, kind_of
from inferometer.evaluators.kinds.reports import OverviewReport
from inferometer.evaluators.kinds.summary import (
    conditions_rows,
    name_width,
    process_groups,
    process_rows,
    trace_rows,
)
from inferometer.evaluators.reports.base import Column, Report, Row, Value
from inferometer.evaluators.reports.table import cell_text, terminal_table
from inferometer.evaluators.store.evaluation_store import EvaluationFilter, EvaluationStore
from inferometer.evaluators.verdict import parse_figures
from inferometer.manifests.errors import ConfigurationError, StoreError, UnknownEvaluationError, printable

MOST_ROWS = 200
"""The maximum number of rows that a table shows."""
_ID_CHARACTERS = 8
_MOST_POINTS = 1000
_LEFT = "text-align: left; padding-right: 1em"
_RIGHT = "text-align: right; padding-right: 1em; font-variant-numeric: tabular-nums"


def figures(rows: Iterable[tuple[str, str]]) -> str:
    """Returns an HTML table of names and values; a value without a name belongs to the row above."""
    return f"<table>{''.join(_line('td', [(name, _LEFT), (value, _LEFT)]) for name, value in rows)}</table>"


def table(columns: Sequence[Column], rows: Sequence[Row]) -> str:
    """Returns an HTML table. Values that all rows share appear above the table, and ids are shortened."""
    shown = rows[:MOST_ROWS]
    same = [column for column in columns if len(rows) > 1 and len({row[column.key] for row in rows}) == 1]
    inside = [column for column in columns if column not in same] or list(columns[:1])
    above = [
        f"{column.header}: {cell_text(rows[0][column.key], column)}"
        for column in same
        if column not in inside and rows[0][column.key] is not None
    ]
    if len(shown) < len(rows):
        above.append(f"the first {len(shown)} of {len(rows):,} rows")
    caption = lines([" · ".join(above)] if above else [])
    head = _line("th", [(column.header, _alignment(row[column.key] for row in shown)) for column in inside])
    body = "".join(_line("td", [_cell(row[column.key], column) for column in inside]) for row in shown)
    return f'<div style="overflow-x: auto">{caption}<table>{head}{body}</table></div>'


def lines(texts: Iterable[str]) -> str:
    """Returns texts as HTML, each on its own line."""
    return "".join(f"<div>{_text(text)}</div>" for text in texts)


def with_picture(shown: str, report: Report[Any], evaluations: Sequence[Evaluation]) -> str:
    """Adds the picture of a report, if Matplotlib is installed and there is something to draw."""
    return with_drawing(shown, find_plot(report).draw(evaluations, list(report.rows(evaluations))))


def with_drawing(shown: str, drawing: Drawing | None) -> str:
    """Adds a drawing, if there is one and Matplotlib is installed."""
    picture = None if drawing is None else inline_svg(drawing)
    return shown if picture is None else f'{shown}<div style="overflow-x: auto">{picture}</div>'


def _cell(value: Value, column: Column) -> tuple[str, str]:
    if value is None:
        return "", _LEFT
    text = cell_text(value, column)
    return text[:_ID_CHARACTERS] if column.is_id else text, _alignment([value])


def _alignment(values: Iterable[Value]) -> str:
    """Returns the style of a cell or a column: numbers are right-aligned."""
    numbers = [
        isinstance(value, int | float) and not isinstance(value, bool)
        for value in values
        if value is not None
    ]
    return _RIGHT if numbers and all(numbers) else _LEFT


def _line(tag: str, cells: Iterable[tuple[str, str]]) -> str:
    written = (f'<{tag} style="{style}">{_text(text)}</{tag}>' for text, style in cells)
    return f"<tr>{''.join(written)}</tr>"


def _text(text: str) -> str:
    return escape(printable(text))


_Item = TypeVar("_Item")


class Items(Sequence[_Item]):
    """The base class of sequences that display as a table and can be converted for other programs."""

    _columns: Sequence[Column]
    _items: tuple[_Item, ...]

    @property
    @abstractmethod
    def _table(self) -> Sequence[Row]:
        """The rows, each with a value for every column."""

    def to_dict(self) -> dict[str, list[Any]]:
        """Returns the list of values of each column, by column key."""
        return {column.key: [row[column.key] for row in self._table] for column in self._columns}

    def to_arrow(self) -> Any:
        """Returns a ``pyarrow.Table``.

        Raises:
            ConfigurationError: pyarrow is not installed.
        """
        return _installed("pyarrow").table(self.to_dict())

    def to_pandas(self) -> Any:
        """Returns a ``pandas.DataFrame``.

        Raises:
            ConfigurationError: pandas is not installed.
        """
        return _installed("pandas").DataFrame(self.to_dict())

    def __repr__(self) -> str:
        """Returns the table as text, as wide as the terminal."""
        return "".join(terminal_table(self._columns, self._table, io.StringIO(), header=True)).rstrip("\n")

    def _repr_html_(self) -> str:
        return table(self._columns, self._table)

    def __len__(self) -> int:
        return len(self._items)

    @overload
    def __getitem__(self, place: int) -> _Item: ...

    @overload
    def __getitem__(self, place: slice) -> Sequence[_Item]: ...

    def __getitem__(self, place: int | slice) -> _Item | Sequence[_Item]:
        return self._items[place]


class Rows(Items[Row]):
    """The rows of a report."""

    def __init__(self, columns: Sequence[Column], rows: Iterable[Row]) -> None:
        self._columns = tuple(columns)
        self._items = tuple(rows)

    @property
    def _table(self) -> Sequence[Row]:
        return self._items


def _installed(package: str) -> Any:
    try:
        return import_module(package)
    except ImportError as error:
        raise ConfigurationError(
            f"{package} is not installed; pip install {package}, or use to_dict"
        ) from error


M = TypeVar("M", bound=Measurement)


class Result(ABC, Generic[M]):
    """One evaluation; in a notebook it displays as a table with its picture.

    Attributes:
        evaluation: The complete evaluation, with the raw times and the system.
    """

    _pictured: ClassVar[type[Report[Any]] | None] = None
    """The report whose picture shows the evaluation; None for the first of its kind."""

    def __init__(self, evaluation: Evaluation[M]) -> None:
        self.evaluation = evaluation
        self._group: tuple[Any, ...] = (self,)

    @classmethod
    def last_of(cls, evaluations: Iterable[Evaluation[M]]) -> Self:
        """Returns the result of the last evaluation of a call; its ``group`` contains all results."""
        group = tuple(map(cls, evaluations))
        for each in group:
            each._group = group
        return group[-1]

    @property
    def group(self) -> tuple[Self, ...]:
        """All results of the call, in order; a call with several evaluations returns the last one."""
        return self._group

    @property
    def id(self) -> str:
        """The evaluation's id, which ``agent info evaluation show``, for example, accepts."""
        return self.evaluation.id

    @property
    def complete(self) -> bool:
        """Whether the evaluation ran to the end, and not every input failed; Ctrl-C makes it incomplete."""
        return self.evaluation.status is Status.COMPLETE

    @property
    def conditions(self) -> Conditions | None:
        """The disturbances during the measurement, and the verdict on stability; None if unknown."""
        return self.evaluation.conditions

    @cached_property
    def rows(self) -> Rows:
        """The rows of the first report on evaluations of this kind, as a table."""
        return Rows(self._report.columns, self._report().rows([self.evaluation]))

    @property
    def _report(self) -> type[Report[Any]]:
        return next(iter(kind_of(self.evaluation).reports))

    def __repr__(self) -> str:
        rows = self._rows()
        width = name_width(rows)
        return "\n".join(printable(f"{name:<{width}}{value}") for name, value in rows)

    def _repr_html_(self) -> str:
        report = (self._pictured or self._report)()
        return with_picture(figures(self._rows()), report, [self.evaluation])

    def _rows(self) -> Sequence[tuple[str, str]]:
        system = self.evaluation.system
        manifest = system.manifest
        on = f"{manifest.framework.name} {system.framework_version} ({system.device}, {system.agent})"
        evaluations: list[Evaluation[Any]] = [each.evaluation for each in self.group]
        processes = process_rows(process_groups(evaluations))
        return (("model", f"{manifest.name} {manifest.version} on {on}"), *self._figures(), *processes)

    def _figures(self) -> Sequence[tuple[str, str]]:
        """Returns the summary as names and values; a value without a name continues the previous one."""
        evaluation, kind = self.evaluation, kind_of(self.evaluation)
        stopped = "" if self.complete or kind.keeps_interrupted else "  interrupted"
        return (
            *kind.summary(evaluation),
            *conditions_rows(evaluation),
            *trace_rows(evaluation),
            ("evaluation", self.id + stopped),
        )


_NAMED = 5
_log = logging.getLogger(__name__)


def left_out(error: StoreError) -> None:
    """Logs the error raised by an evaluation or a trace that cannot be read."""
    _log.warning("left out %s", error)


def whole_id(store: EvaluationStore, given: str) -> str:
    """Returns the only id that begins with a prefix; the prefix itself if it is an id or matches none.

    Raises:
        UnknownEvaluationError: Several ids begin with the prefix.
        StoreError: The database cannot be reached.
    """
    found = store.ids(given) if given else ()
    if given in found or not found:
        return given
    if len(found) > 1:
        more = f" and {len(found) - _NAMED} more" if len(found) > _NAMED else ""
        raise UnknownEvaluationError(
            f"{len(found)} ids begin with {given}: {', '.join(found[:_NAMED])}{more}; give more of the id"
        )
    return found[0]


def find_one(store: EvaluationStore, evaluation_id: str) -> Evaluation:
    """Returns the evaluation with an id or a unique prefix of an id.

    Raises:
        UnknownEvaluationError: No evaluation matches, several match, or the id is that of a group. For a
            group, the message names its evaluations.
        StoreError: The database cannot be reached.
    """
    evaluation_id = whole_id(store, evaluation_id)
    wanted = EvaluationFilter(evaluation_id=evaluation_id, include_interrupted=True)
    found = store.find(wanted)
    if not found:
        raise UnknownEvaluationError(
            f"{store.location}: holds no evaluation {evaluation_id}; agent info evaluations lists them"
        )
    if found[0].id != evaluation_id:
        members = ", ".join(f"{each.id} ({each.trace_level.name})" for each in found)
        raise UnknownEvaluationError(f"{evaluation_id} is a group of evaluations; name one of {members}")
    return found[0]


def newest(store: EvaluationStore, on_unreadable: Callable[[StoreError], None] = left_out) -> Evaluation:
    """Returns the newest readable evaluation; calls ``on_unreadable`` with the error of each newer one.

    Raises:
        UnknownEvaluationError: The database holds no readable evaluation.
    """
    wanted = EvaluationFilter(limit=1, include_interrupted=True)
    for offset in range(store.count(wanted)):
        if found := store.find(replace(wanted, offset=offset), on_unreadable):
            return found[0]
    raise UnknownEvaluationError(f"{store.location}: holds no evaluation yet; agent predict publishes them")


def others_of(
    store: EvaluationStore, evaluation: Evaluation, on_unreadable: Callable[[StoreError], None] = left_out
) -> Sequence[Evaluation]:
    """Returns the other readable evaluations of an evaluation's group, the shallowest trace level first."""
    if evaluation.group_id is None:
        return ()
    wanted = EvaluationFilter(evaluation_id=evaluation.group_id, include_interrupted=True)
    others = (each for each in store.find(wanted, on_unreadable) if each.id != evaluation.id)
    return sorted(others, key=lambda each: each.trace_level)


def readable_spans(
    store: EvaluationStore, on_unreadable: Callable[[StoreError], None] = left_out
) -> SpanSource:
    """Returns a source of spans that yields none for a trace that cannot be read completely."""

    def spans(evaluation_id: str) -> Iterator[SpanChunk]:
        try:
            chunks = tuple(store.spans(evaluation_id))
        except StoreError as error:
            on_unreadable(error)
            return
        yield from chunks

    return spans


def chosen_side(store: EvaluationStore, name: str, given: str, notify: Callable[[str], None]) -> Side:
    """Returns the evaluations that ids or unique prefixes of ids select, without duplicates.

    Evaluations of a group that ran under a profiler are skipped and reported, because a group of trace levels
    also contains one that ran without. An evaluation selected by its own id is never skipped. ``given`` holds
    ids of evaluations or groups, separated by commas. ``notify`` is called with one line per omission.

    Raises:
        ConfigurationError: ``given`` is empty, or the evaluations cannot be compared.
        UnknownEvaluationError: An id does not exist, or is ambiguous.
    """
    ids = [word.strip() for word in given.split(",") if word.strip()]
    if not ids:
        raise ConfigurationError(f"{name} names no evaluation; give ids, separated by commas")
    found: dict[str, Evaluation] = {}
    for each in ids:
        found.update({evaluation.id: evaluation for evaluation in _named(store, name, each, notify)})
    return Side(name, tuple(found.values()))


def _named(store: EvaluationStore, name: str, given: str, notify: Callable[[str], None]) -> list[Evaluation]:
    evaluation_id = whole_id(store, given)
    unreadable: list[StoreError] = []
    wanted = EvaluationFilter(evaluation_id=evaluation_id, include_interrupted=True)
    found = store.find(wanted, unreadable.append)
    if unreadable and not found:
        raise unreadable[0]
    for error in unreadable:
        notify(f"{name}: left out {error}")
    if not found:
        raise UnknownEvaluationError(
            f"{store.location}: holds no evaluation or group {given}; "
            "the reports of agent info evaluation list them"
        )
    if found[0].id == evaluation_id:
        return list(found)
    undisturbed = [evaluation for evaluation in found if not evaluation.profiled]
    if undisturbed and len(undisturbed) < len(found):
        notify(
            f"{name}: left out {len(found) - len(undisturbed)} of {len(found)} evaluations of the group "
            f"{evaluation_id}: they ran under a profiler, which slows the model down"
        )
    return undisturbed or list(found)


class Evaluations(Rows):
    """Stored evaluations of every kind, newest first, as the rows that ``agent info evaluations`` shows.

    A notebook shows a picture of the ``pictured`` ones.
    """

    def __init__(self, rows: Iterable[Row], pictured: Sequence[Evaluation[BatchMeasurement]] = ()) -> None:
        super().__init__(OverviewReport.columns, rows)
        self._pictured = tuple(pictured)

    def _repr_html_(self) -> str:
        return with_picture(super()._repr_html_(), LatencyReport(), self._pictured)


def evaluations(
    *, model: str | None = None, framework: str | None = None, limit: int | None = None
) -> Evaluations:
    """Returns stored evaluations of every kind, newest first.

    Args:
        model: The model whose evaluations are returned; None means all.
        framework: The framework whose evaluations are returned; None means all.
        limit: The maximum number of evaluations, newest first; None means all.

    Raises:
        ConfigurationError: The limit is below 1.
        StoreError: The database cannot be reached.
    """
    if limit is not None and limit < 1:
        raise ConfigurationError(f"limit is {limit}; it must be at least 1, or None for all")
    wanted = EvaluationFilter(model_name=model, framework_name=framework, limit=limit)
    with closing(library_invocation().open_store()) as store:
        found = store.find(wanted, left_out)
    batches = of_kind(found, BatchMeasurement)
    pictured = [evaluation for evaluation in batches if not evaluation.profiled][:MOST_EVALUATIONS]
    return Evaluations(OverviewReport().rows(found), pictured)


Named: TypeAlias = Result[Any] | str
"""A result, or the id of a stored evaluation or group; a unique prefix is enough."""


class Comparison(Rows):
    """A row for each figure: A, B, their ratio with its 95 % interval, and the verdict.

    Attributes:
        conclusion: The overall conclusion from all figures, in one line.
        worse: Whether B is worse in any figure by more than the threshold.
        undecided: One line for each undecided figure, with the reason and by how much B may be worse.
        notes: Caveats about the rows: differences between the sides, and disturbed conditions.
    """

    def __init__(
        self, request: job.ComparisonRequest, found: job.Comparison, left_out: Sequence[str]
    ) -> None:
        super().__init__(found.columns, found.rows)
        self.conclusion = found.conclusion
        self.worse = found.worse
        self.undecided = found.undecided
        self.notes = (*left_out, *found.notes)
        self._sides = request.a, request.b

    def __repr__(self) -> str:
        """Returns the table, followed by the notes and the conclusion."""
        return "\n".join((super().__repr__(), *self._lines()))

    def _repr_html_(self) -> str:
        shown = super()._repr_html_() + lines(self._lines())
        a, b = self._sides
        if len(a.evaluations) != 1 or len(b.evaluations) != 1 or a.kind is not b.kind:
            return shown
        return with_drawing(shown, a.kind.compared_drawing(*a.evaluations, *b.evaluations, _MOST_POINTS))

    def _lines(self) -> Sequence[str]:
        return (*self.notes, *self.undecided, self.conclusion)


def compare(
    a: Named | Sequence[Named],
    b: Named | Sequence[Named],
    *,
    noise: Named | Sequence[Named] | None = None,
    threshold: float | None = None,
    accuracy_threshold: float = ACCURACY_THRESHOLD,
    figures: str | Sequence[str] | None = None,
) -> Comparison:
    """Compares the evaluations B with the evaluations A, like ``agent compare``.

    Args:
        a: The baseline: results, ids of stored evaluations or groups, or unique prefixes of ids.
        b: The evaluations to judge, given in the same forms as ``a``.
        noise: Two or more evaluations of the same system, whose differences set the threshold of each figure.
        threshold: The largest difference, as a share, that is treated as no change; None means 0.05.
        accuracy_threshold: The largest difference in top-1 that is treated as no change.
        figures: The figures to compare, such as ``["p50", "throughput"]``; None means all available ones.

    Raises:
        ConfigurationError: The evaluations cannot be compared, or a value is invalid.
        StoreError: An id does not exist, or the database cannot be reached.
    """
    job.check_one_threshold(noise is not None, threshold)
    wanted = figures if figures is None or isinstance(figures, str) else ",".join(figures)
    notes: list[str] = []
    request = job.ComparisonRequest(
        a=_side("A", a, notes),
        b=_side("B", b, notes),
        noise=None if noise is None else _side("noise", noise, notes),
        threshold=threshold,
        accuracy_threshold=accuracy_threshold,
        figures=None if wanted is None else parse_figures(wanted),
    )
    return Comparison(request, job.compare(request), notes)


def _side(name: str, given: Named | Sequence[Named], notes: list[str]) -> Side:
    """Returns the evaluations of one side, without duplicates."""
    several = list(given) if isinstance(given, Sequence) and not isinstance(given, str) else [given]
    found: dict[str, Evaluation] = {}
    for each in several:
        if isinstance(each, Result):
            found[each.id] = each.evaluation
        elif isinstance(each, str):
            with closing(library_invocation().open_store()) as store:
                side = chosen_side(store, name, each, notes.append)
            found |= {evaluation.id: evaluation for evaluation in side.evaluations}
        else:
            raise ConfigurationError(
                f"{name} holds {each!r}; give results of evaluate, sweep, train, ingest, workload, max_qps "
                "or benchmark_operators, or ids"
            )
    return Side(name, tuple(found.values()))
