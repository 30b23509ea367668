"""The JSON documents of a plan: its runs, its failures, and a table of its cells' measurements."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timezone
from typing import Any

from inferometer.client.web.cells import table_of
from inferometer.client.web.pictures import chart_document
from inferometer.evaluators.drawing.charts import Mark, PointChart, Series
from inferometer.evaluators.plans.cells import CELL, Run
from inferometer.evaluators.plans.expressions import shown
from inferometer.evaluators.plans.reporting.asked import Asked, reported
from inferometer.evaluators.plans.reporting.cases import CASE, Case, figure_columns
from inferometer.evaluators.plans.reporting.objectives import chosen
from inferometer.evaluators.plans.reporting.scaling import Scaling
from inferometer.evaluators.plans.reporting.tables import (
    DOUBTS,
    PlanTable,
    dimension_columns,
    failures,
    telling,
)
from inferometer.evaluators.plans.running.journal import IN_WORK, WAITING, Ended, RunHistory
from inferometer.manifests.errors import ConfigurationError, suggestion

MOST_RUNS = 500
"""The runs that are listed; the counts cover all."""
MOST_ROWS = 1000
"""The rows of a table that are shown."""
_MOST_NAMES = 32
SCALINGS = tuple(each.value for each in Scaling)
_LISTS = ("rows", "columns", "value", "minimize", "maximize")
_RANKS = {IN_WORK: 0, WAITING: 2, Ended.COMPLETE.value: 3}
_OTHER_RANK = 1  # of what has failed
_NS_PER_S = 1_000_000_000


def asked_of(given: Iterable[tuple[str, str]]) -> Asked:
    """Returns the report that the parameters of a request ask for.

    Names may be repeated, or have commas between them. A report other than the table has rows and columns of
    its own, so that those of the request are left out.

    Raises:
        ConfigurationError: There are too many names, or no such scaling.
    """
    found: dict[str, list[str]] = {name: [] for name in (*_LISTS, "scaling", "over", "where")}
    for name, text in given:
        if name in found:
            found[name] += [text] if name == "where" else text.split(",")
    named = {key: tuple(dict.fromkeys(filter(None, map(str.strip, texts)))) for key, texts in found.items()}
    for name, texts in named.items():
        if len(texts) > _MOST_NAMES:
            raise ConfigurationError(f"{name} has {len(texts)} values; give at most {_MOST_NAMES}")
    [kind] = named.pop("scaling")[:1] or [""]
    [over] = named.pop("over")[:1] or [None]
    if kind and kind not in SCALINGS:
        raise ConfigurationError(f'"{kind[:40]}" is no scaling; {suggestion(kind, SCALINGS)}')
    if kind or named["minimize"] or named["maximize"]:
        named |= {"rows": (), "columns": ()}
    asked = Asked(
        rows=named["rows"],
        columns=named["columns"],
        value=named["value"],
        where=named["where"],
        minimize=named["minimize"],
        maximize=named["maximize"],
        scaling=Scaling(kind) if kind else None,
        over=over,
    )
    asked.check()
    return asked


def _table(cases: Sequence[Case], asked: Asked) -> PlanTable:
    """Returns the requested report; adds the table rows that are needed to distinguish the cases."""
    if asked.objectives or asked.scaling is not None:
        return reported(cases, asked)
    columns = tuple(name for name in asked.columns if name not in asked.rows)
    fitting = chosen(cases, asked.where)
    rows = (*asked.rows, *telling(fitting, (*asked.rows, *columns)))
    return reported(cases, replace(asked, rows=rows, columns=columns))


def table_document(cases: Sequence[Case], asked: Asked) -> dict[str, Any]:
    """Returns the table that is asked for, its pictures and its notes; no table where nothing is complete.

    Raises:
        ConfigurationError: A name or a condition is wrong, or no case fulfils the conditions.
    """
    if not cases:
        return {"table": None, "charts": [], "notes": []}
    found = _table(cases, asked)
    drawing = found.drawing
    charts = [each for each in drawing.charts if isinstance(each, PointChart)] if drawing else []
    return {
        "table": _with_intervals(found),
        "charts": [chart_document(drawing.title, _with_one_name_each(each), drawing.notes) for each in charts]
        if drawing
        else [],
        "notes": list(found.notes),
    }


def _with_one_name_each(chart: PointChart) -> PointChart:
    """Returns a chart whose legend distinguishes its series; named points are not also part of a line."""
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
    """Returns a table whose figures have their intervals in their texts: ``1.25 [1.19, 1.31]``."""
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
    values: dict[str, set[str]] = {}
    for case in cases:
        for name in case.cell.parameters:
            values.setdefault(name, set())
    for case in cases:
        for name, value in case.dimensions.items():
            values.setdefault(name, set()).add("" if value is None else shown(value))
    known = figure_columns()
    figures = dict.fromkeys(name for case in cases for name in case.figures)
    telling_names = {*CASE, *(name for case in cases for name in case.cell.parameters)}
    varying = tuple(
        name
        for name, held in values.items()
        if len(held) > 1 and (name in telling_names or name not in figures)
    )
    return {
        "dimensions": [{"key": each.key, "header": each.header} for each in dimension_columns(varying)],
        "figures": [{"key": name, "header": known[name].header} for name in figures],
        "scalings": [{"key": name, "header": name} for name in SCALINGS],
    }


def failures_document(runs: Sequence[Run], history: Mapping[str, RunHistory]) -> dict[str, Any] | None:
    """Returns a table of the runs that are incomplete or lost an attempt; None if there are none."""
    found = failures(runs, history)
    if not found.rows:
        return None
    rest = f"; the first {MOST_RUNS} of {len(found.rows):,}" if len(found.rows) > MOST_RUNS else ""
    return table_of(found.name, f"{_capital(found.caption)}{rest}", found.columns, found.rows[:MOST_RUNS])


def runs_document(runs: Sequence[Run], history: Mapping[str, RunHistory]) -> list[dict[str, Any]]:
    """Returns at most ``MOST_RUNS`` runs: first the running, failed and waiting ones, then the newest."""
    known = [(run, history.get(run.key) or RunHistory()) for run in runs]
    known.sort(key=lambda each: _order(each[1]))
    varying = _varying(runs)
    return [_run(run, each, varying) for run, each in known[:MOST_RUNS]]


def _order(history: RunHistory) -> tuple[int, int]:
    ended_ns = history.result.end_ns if history.result else 0
    return _RANKS.get(history.state, _OTHER_RANK), -ended_ns


def _run(run: Run, history: RunHistory, varying: Sequence[str]) -> dict[str, Any]:
    result = history.result
    timed = result is not None and result.end_ns > result.start_ns > 0
    return {
        "key": run.key,
        "cell": " ".join(_told(run, varying)) or run.cell.name,
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
    """Returns the options, and what says how a cell runs, in which cells differ."""
    values: dict[str, set[str]] = {}
    cells = {run.cell.id: run.cell for run in runs}
    for cell in cells.values():
        for name, value in cell.parameters.items():
            if name in cell.options or name.startswith(CELL):
                values.setdefault(name, set()).add(shown(value))
    counts = {name: sum(name in cell.parameters for cell in cells.values()) for name in values}
    return tuple(name for name in values if len(values[name]) > 1 or counts[name] < len(cells))


def _told(run: Run, names: Iterable[str]) -> Iterator[str]:
    parameters = run.cell.parameters
    return (f"{name}={shown(parameters[name])}" for name in names if name in parameters)


def _moment(at_ns: int) -> str:
    return datetime.fromtimestamp(at_ns // _NS_PER_S, timezone.utc).isoformat()


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]
