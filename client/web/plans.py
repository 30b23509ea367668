"""Plans for the server's page: the plans of a data directory, and the JSON documents of a plan.

A plan's documents are its runs, its failures, and a table of its cells' measurements.
"""

from __future__ import annotations

import re
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from inferometer.client.web.documents import chart_document, table_of
from inferometer.evaluators.drawing.charts import Mark, PointChart, Series
from inferometer.evaluators.plans.cells import CELL, Run, shown
from inferometer.evaluators.plans.plan import PLAN_NAME
from inferometer.evaluators.plans.reporting.asked import Asked, chosen, reported
from inferometer.evaluators.plans.reporting.cases import Case, PlanReader, figure_columns
from inferometer.evaluators.plans.reporting.scaling import Scaling
from inferometer.evaluators.plans.reporting.tables import (
    DOUBTS,
    PlanTable,
    dimension_columns,
    failures,
    telling,
)
from inferometer.evaluators.plans.running.folder import (
    IN_WORK,
    PLANS,
    STATES,
    WAITING,
    Ended,
    JournalFollower,
    KeptPlan,
    PlanFolder,
    RunHistory,
    journal_file,
)
from inferometer.evaluators.store.evaluation_store import EvaluationStore
from inferometer.manifests.errors import ConfigurationError, NotFoundError, StoreError, suggestion

MOST_RUNS = 500
"""The maximum number of listed runs; the counts cover all runs."""
MOST_ROWS = 1000
"""The maximum number of rows shown in a table."""
_MOST_NAMES = 32
_SCALINGS = tuple(each.value for each in Scaling)
_LISTS = ("rows", "columns", "value", "minimize", "maximize")
_RANKS = {IN_WORK: 0, WAITING: 2, Ended.COMPLETE.value: 3}
_OTHER_RANK = 1  # of what has failed
_NS_PER_S = 1_000_000_000


def asked_of(given: Iterable[tuple[str, str]]) -> Asked:
    """Returns the report that the parameters of a request select.

    Names may be repeated or separated by commas. A report other than the table has its own rows and columns,
    so those in the request are ignored.

    Raises:
        ConfigurationError: There are too many names, or the scaling is unknown.
    """
    found: dict[str, list[str]] = {name: [] for name in (*_LISTS, "scaling", "over", "where")}
    for name, text in given:
        if name in found:
            found[name] += [text] if name == "where" else text.split(",")
    named: dict[str, Any] = {
        key: tuple(dict.fromkeys(filter(None, map(str.strip, texts)))) for key, texts in found.items()
    }
    for name, texts in named.items():
        if len(texts) > _MOST_NAMES:
            raise ConfigurationError(f"{name} has {len(texts)} values; give at most {_MOST_NAMES}")
    [kind] = named.pop("scaling")[:1] or [""]
    [over] = named.pop("over")[:1] or [None]
    if kind and kind not in _SCALINGS:
        raise ConfigurationError(f'"{kind[:40]}" is not a scaling; {suggestion(kind, _SCALINGS)}')
    if kind or named["minimize"] or named["maximize"]:
        named |= {"rows": (), "columns": ()}
    asked = Asked(**named, scaling=Scaling(kind) if kind else None, over=over)
    asked.check()
    return asked


def _table(cases: Sequence[Case], asked: Asked) -> PlanTable:
    """Returns the requested report, with the table rows that are needed to distinguish the cases."""
    if asked.objectives or asked.scaling is not None:
        return reported(cases, asked)
    columns = tuple(name for name in asked.columns if name not in asked.rows)
    fitting = chosen(cases, asked.where)
    rows = (*asked.rows, *telling(fitting, (*asked.rows, *columns)))
    return reported(cases, replace(asked, rows=rows, columns=columns))


def table_document(cases: Sequence[Case], asked: Asked) -> dict[str, Any]:
    """Returns the requested table, its pictures and its notes; no table if nothing is complete.

    Raises:
        ConfigurationError: A name or a condition is invalid, or no case meets the conditions.
    """
    if not cases:
        return {"table": None, "charts": [], "notes": []}
    found = _table(cases, asked)
    charts = [
        chart_document(drawing.title, _with_one_name_each(each), drawing.notes)
        for drawing in filter(None, [found.drawing])
        for each in drawing.charts
        if isinstance(each, PointChart)
    ]
    return {"table": _with_intervals(found), "charts": charts, "notes": list(found.notes)}


def _with_one_name_each(chart: PointChart) -> PointChart:
    """Returns a chart whose legend distinguishes its series; named points are not part of a line."""
    in_lines = {each.group for each in chart.series if each.line}
    named = [
        replace(each, group=each.text or each.group)
        for each in chart.series
        if each.line or each.text or each.group not in in_lines
    ]
    joined: dict[tuple[str, bool, Mark], Series] = {}
    for each in named:
        key = each.group, each.line, each.mark
        if (known := joined.get(key)) is not None:
            each = replace(known, x=(*known.x, *each.x), y=(*known.y, *each.y))
        joined[key] = each
    return replace(chart, series=tuple(joined.values()))


def _with_intervals(found: PlanTable) -> dict[str, Any]:
    """Returns a table whose figures include their intervals as text: ``1.25 [1.19, 1.31]``."""
    doubted = any(row.get(DOUBTS.key) for row in found.rows)
    columns = tuple(column for column in found.columns if doubted or column is not DOUBTS)
    shortened = replace(found, columns=columns, rows=found.rows[:MOST_ROWS])
    people = shortened.for_people()
    rest = f"; the first {MOST_ROWS:,} of {len(found.rows):,} rows" if len(found.rows) > MOST_ROWS else ""
    document = table_of(found.name, f"{found.caption}{rest}", people.columns, shortened.rows)
    ends = {column.key for column in found.columns} - {column.key for column in people.columns}
    joined = [
        (place, column.key) for place, column in enumerate(people.columns) if f"{column.key}_low" in ends
    ]
    for texts, row in zip(document["texts"], people.rows, strict=True):
        for place, key in joined:
            texts[place] = row[key]
    return document


def choices_of(cases: Sequence[Case]) -> dict[str, Any]:
    """Returns the choices for a table: the dimensions in which cases differ, and their figures."""
    values: dict[str, set[str]] = {name: set() for case in cases for name in case.cell.parameters}
    telling_names = {*values, *(name for case in cases for name in case.apart)}
    for case in cases:
        for name, value in case.dimensions.items():
            values.setdefault(name, set()).add(shown(value))
    known = figure_columns()
    figures = dict.fromkeys(name for case in cases for name in case.figures)
    varying = tuple(
        name
        for name, held in values.items()
        if len(held) > 1 and (name in telling_names or name not in figures)
    )
    return {
        "dimensions": [{"key": each.key, "header": each.header} for each in dimension_columns(varying)],
        "figures": [{"key": name, "header": known[name].header} for name in figures],
        "scalings": [{"key": name, "header": name} for name in _SCALINGS],
    }


def failures_document(runs: Sequence[Run], history: Mapping[str, RunHistory]) -> dict[str, Any] | None:
    """Returns a table of runs that ended incomplete or had jobs without a result; None if there are none."""
    found = failures(runs, history)
    if not found.rows:
        return None
    rest = f"; the first {MOST_RUNS} of {len(found.rows):,}" if len(found.rows) > MOST_RUNS else ""
    return table_of(
        found.name,
        f"{found.caption[:1].upper()}{found.caption[1:]}{rest}",
        found.columns,
        found.rows[:MOST_RUNS],
    )


def runs_document(runs: Sequence[Run], history: Mapping[str, RunHistory]) -> list[dict[str, Any]]:
    """Returns at most ``MOST_RUNS`` runs: first the running, failed and waiting ones, then the newest."""
    known = [(run, _history(run, history)) for run in runs]
    known.sort(key=lambda each: _order(each[1]))
    varying = _varying(runs)
    return [_run(run, each, varying) for run, each in known[:MOST_RUNS]]


def _history(run: Run, history: Mapping[str, RunHistory]) -> RunHistory:
    return history.get(run.key) or RunHistory()


def _order(history: RunHistory) -> tuple[int, int]:
    ended_ns = history.result.end_ns if history.result else 0
    return _RANKS.get(history.state, _OTHER_RANK), -ended_ns


def _run(run: Run, history: RunHistory, varying: Sequence[str]) -> dict[str, Any]:
    result = history.result
    timed = result is not None and result.end_ns > result.start_ns > 0
    parameters = run.cell.parameters
    told = (f"{name}={shown(parameters[name])}" for name in varying if name in parameters)
    return {
        "key": run.key,
        "cell": " ".join(told) or run.cell.name,
        "repetition": run.repetition,
        "command": run.cell.name,
        "state": history.state,
        "reason": result.reason if result else "",
        "losses": [str(each) for each in history.losses],
        "host": result.host if result else "",
        "job": str(history.job),
        "start": _moment(result.start_ns) if result and timed else None,
        "duration_s": round((result.end_ns - result.start_ns) / _NS_PER_S, 3) if result and timed else None,
        "evaluations": list(result.evaluations) if result else [],
    }


def _varying(runs: Iterable[Run]) -> tuple[str, ...]:
    """Returns the options and the run settings in which cells differ."""
    values: dict[str, set[str]] = {}
    cells = {run.cell.id: run.cell for run in runs}
    for cell in cells.values():
        for name, value in cell.parameters.items():
            if name in cell.options or name.startswith(CELL):
                values.setdefault(name, set()).add(shown(value))
    counts = {name: sum(name in cell.parameters for cell in cells.values()) for name in values}
    return tuple(name for name in values if len(values[name]) > 1 or counts[name] < len(cells))


_READING_S = 0.25
_MOST_TABLES = 16
_UNKEPT = "its cells are not kept here; agent plan resume keeps them"
_DAMAGED = "its file cells.json cannot be read; agent plan resume writes it again"


class PlansReader:
    """Reads the plans of a data directory. All methods must be called in one thread.

    A plan's content is cached until its folder disappears. Changed files are read again, but only the added
    part of a journal. ``clock`` is a monotonic clock in seconds.
    """

    def __init__(
        self,
        data_directory: Path,
        store: Callable[[], EvaluationStore],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._folder = data_directory / PLANS
        self._store = store
        self._clock = clock
        self._known: dict[str, _Followed] = {}

    def plans(self) -> list[dict[str, Any]]:
        """Returns each plan with its counts by name, or the reason why it cannot be read."""
        names = sorted(self._names())
        for gone in self._known.keys() - set(names):
            del self._known[gone]
        return [self._followed(name).summary() for name in names]

    def plan(self, name: str, query: Asked) -> dict[str, Any]:
        """Returns one plan: its counts, its runs, and the requested table.

        Reads evaluations for at most ``_READING_S``, so that other requests are not blocked. While
        ``reading`` reports progress, there is no table, and the page repeats the request.

        Raises:
            NotFoundError: The plan does not exist.
            StoreError: The database cannot be read.
        """
        if name not in self._names():
            raise NotFoundError(f'there is no plan "{name[:64]}" in {self._folder}')
        followed = self._followed(name)
        return {**followed.summary(), **followed.report(self._store(), query, self._clock)}

    def _names(self) -> Iterator[str]:
        try:
            paths = list(self._folder.iterdir())
        except OSError:
            return
        for path in paths:
            if re.fullmatch(PLAN_NAME, path.name) and _is_plan(PlanFolder(path)):
                yield path.name

    def _followed(self, name: str) -> _Followed:
        if name not in self._known:
            self._known[name] = _Followed(PlanFolder(self._folder / name))
        self._known[name].look()
        return self._known[name]


def _is_plan(folder: PlanFolder) -> bool:
    """Returns whether a folder belongs to a plan; the folder of machine locks does not."""
    try:
        return folder.cells.is_file() or journal_file(folder.path).is_file()
    except OSError:
        return False


class _Followed:
    """One plan, read from its folder."""

    def __init__(self, folder: PlanFolder) -> None:
        self._folder = folder
        self._journal = JournalFollower(folder.path)
        self._stamp: tuple[int, ...] | None = None
        self._kept: KeptPlan | None = None
        self._runs: tuple[Run, ...] = ()
        self._reader: PlanReader | None = None
        self._counts: Counter[str] = Counter()
        self._tables: dict[Asked, dict[str, Any]] = {}

    def look(self) -> None:
        changed = self._journal.look()
        try:
            status = self._folder.cells.stat()
            stamp: tuple[int, ...] = (status.st_mtime_ns, status.st_size, status.st_ino)
        except OSError:
            stamp = ()
        if stamp != self._stamp:
            kept, before = self._folder.kept(), self._kept
            self._stamp, self._kept = stamp, kept
            if kept != before:
                self._runs = tuple(kept.runs) if kept else ()
                self._reader, changed = None, True
        if changed:
            self._counts = Counter(_history(run, self._journal.runs).state for run in self._runs)
            self._tables.clear()

    def summary(self) -> dict[str, Any]:
        kept, driven = self._kept, self._folder.is_driven
        is_complete = self._counts[Ended.COMPLETE.value] == len(self._runs)
        state = "running" if driven else "complete" if is_complete else "stopped"
        return {
            "name": self._folder.path.name,
            "description": kept.description if kept else "",
            "problem": "" if kept else _DAMAGED if self._stamp else _UNKEPT,
            "state": state if kept else "",
            "total": len(self._runs),
            "counts": {name: self._counts[name] for name in STATES if self._counts[name]},
            "changed": _moment(self._journal.changed_ns),
        }

    def report(self, store: EvaluationStore, query: Asked, clock: Callable[[], float]) -> dict[str, Any]:
        document: dict[str, Any] = {
            "runs": runs_document(self._runs, self._journal.runs),
            "failures": failures_document(self._runs, self._journal.runs),
            "choices": {"dimensions": [], "figures": []},
            "table": None,
            "charts": [],
            "refused": "",
            "reading": None,
            "notes": [],
        }
        if self._kept is None:
            return document
        if self._reader is None:
            self._reader = PlanReader(store, clock)
        try:
            measured = self._reader.read(self._runs, self._journal.runs, _READING_S)
        except StoreError as error:  # such as of one evaluation that is damaged; the runs are known anyway
            return {**document, "refused": str(error)}
        if measured.is_new:
            self._tables.clear()
        if measured.left:
            total = len(self._kept.cells)
            return {**document, "reading": {"done": total - measured.left, "total": total}}
        table = self._table(measured.cases, query)
        return {**document, **table, "notes": [*measured.notes, *table["notes"]]}

    def _table(self, cases: Sequence[Case], query: Asked) -> dict[str, Any]:
        if query not in self._tables:
            if len(self._tables) >= _MOST_TABLES:
                self._tables.clear()
            try:
                found: dict[str, Any] = {"refused": "", **table_document(cases, query)}
            except ConfigurationError as error:
                found = {"refused": str(error), "notes": []}
            self._tables[query] = {"choices": choices_of(cases), **found}
        return self._tables[query]


def _moment(at_ns: int) -> str | None:
    """Returns a time in ISO 8601 format; None if there is none."""
    return datetime.fromtimestamp(at_ns // _NS_PER_S, timezone.utc).isoformat() if at_ns else None
