"""Reads plans for the server's page: all plans of a data directory, or one with its measurements."""

from __future__ import annotations

import re
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from inferometer.client.plan.asking import PLANS
from inferometer.client.web.plans.documents import (
    choices_of,
    failures_document,
    runs_document,
    table_document,
)
from inferometer.evaluators.plans.cells import Run
from inferometer.evaluators.plans.plan import PLAN_NAME
from inferometer.evaluators.plans.reporting.asked import Asked
from inferometer.evaluators.plans.reporting.cases import Case, PlanReader, notes_on_runs
from inferometer.evaluators.plans.running.folder import KeptPlan, PlanFolder
from inferometer.evaluators.plans.running.journal import (
    IN_WORK,
    WAITING,
    Ended,
    JournalFollower,
    RunHistory,
    journal_file,
)
from inferometer.evaluators.store.evaluation_store import EvaluationFilter, EvaluationStore
from inferometer.manifests.errors import ConfigurationError, NotFoundError, StoreError

_READING_S = 0.25
_MOST_TABLES = 16
_UNKEPT = "its cells are not kept here; agent plan resume keeps them"
_DAMAGED = "its file cells.json cannot be read; agent plan resume writes it again"


class PlansReader:
    """Reads the plans of a data directory. All methods must be called in one thread.

    A plan's content is cached until its folder disappears. Changed files are read again; of a journal, only
    the added part is read.

    Args:
        data_directory: The data directory.
        store: Returns the database of the evaluations.
        clock: A monotonic clock in seconds.
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
        """Returns each plan with its counts, by name; of one that cannot be read, why."""
        names = sorted(self._names())
        for gone in self._known.keys() - set(names):
            del self._known[gone]
        return [self._followed(name).summary() for name in names]

    def plan(self, name: str, query: Asked) -> dict[str, Any]:
        """Returns one plan: its counts, its runs, and the table that is asked for.

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
        """Yields the folders that are those of plans."""
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
    """Returns whether a folder is that of a plan; that of the locks of machines is not."""
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
        self._measured: _MeasuredCells | None = None
        self._counts: Counter[str] = Counter()
        self._tables: dict[Asked, dict[str, Any]] = {}

    def look(self) -> None:
        """Reads what has changed."""
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
                self._measured, changed = None, True
        if changed:
            self._counts = Counter(self._history(run).state for run in self._runs)
            self._tables.clear()

    def summary(self) -> dict[str, Any]:
        """Returns its line in the list of plans."""
        kept, driven = self._kept, self._folder.is_driven
        return {
            "name": self._folder.path.name,
            "description": kept.description if kept else "",
            "problem": "" if kept else _DAMAGED if self._stamp else _UNKEPT,
            "state": self._state(driven) if kept else "",
            "total": len(self._runs),
            "counts": {name: self._counts[name] for name in _ordered(self._counts)},
            "changed": _moment(self._journal.changed_ns),
        }

    def report(self, store: EvaluationStore, query: Asked, clock: Callable[[], float]) -> dict[str, Any]:
        """Returns its runs, and what they measured."""
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
        if self._measured is None:
            self._measured = _MeasuredCells(self._kept, store)
        measured = self._measured
        try:
            if measured.read(self._journal.runs, clock):
                self._tables.clear()
        except StoreError as error:  # such as of one evaluation that is damaged; the runs are known anyway
            return {**document, "refused": str(error)}
        if measured.left:
            total = len(self._kept.cells)
            return {**document, "reading": {"done": total - measured.left, "total": total}}
        incomplete = len(self._runs) - self._counts[Ended.COMPLETE.value]
        notes = list(notes_on_runs(len(self._runs), incomplete, measured.lacking, store.location))
        table = self._table(measured.cases, query)
        return {**document, **table, "notes": [*notes, *table["notes"]]}

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

    def _history(self, run: Run) -> RunHistory:
        return self._journal.runs.get(run.key) or RunHistory()

    def _state(self, driven: bool) -> str:
        if driven:
            return "running"
        if self._counts[Ended.COMPLETE.value] == len(self._runs):
            return "complete"
        return "stopped"


@dataclass(frozen=True, slots=True)
class _CellCases:
    """The measurements of one cell.

    Attributes:
        published: Its complete runs, each with the ids of its evaluations.
        total: How many evaluations the database had.
        cases: Its cases.
        lacking: The runs whose evaluations the database lacked.
    """

    published: tuple[tuple[str, tuple[str, ...]], ...]
    total: int
    cases: tuple[Case, ...]
    lacking: tuple[str, ...]


class _MeasuredCells:
    """The measurements of a plan's cells; those of a cell are reloaded when one of its runs ends."""

    def __init__(self, kept: KeptPlan, store: EvaluationStore) -> None:
        self._kept = kept
        self._store = store
        self._reader = PlanReader(store)
        self._found: dict[str, _CellCases] = {}
        self.left = 0

    @property
    def cases(self) -> tuple[Case, ...]:
        """All cases, in the order of the cells."""
        return tuple(case for cell in self._kept.cells for case in self._found[cell.id].cases)

    @property
    def lacking(self) -> tuple[str, ...]:
        """The runs whose evaluations the database lacks."""
        return tuple(key for cell in self._kept.cells for key in self._found[cell.id].lacking)

    def read(self, history: Mapping[str, RunHistory], clock: Callable[[], float]) -> bool:
        """Reads for a moment; returns whether anything is new, and ``left`` says how many cells are left."""
        deadline_s = clock() + _READING_S
        total = self._store.count(EvaluationFilter(include_interrupted=True))
        new, self.left = False, 0
        for cell in self._kept.cells:
            runs = [Run(cell, number) for number in range(1, self._kept.repeat + 1)]
            published = tuple(_published(runs, history))
            known = self._found.get(cell.id)
            if known and known.published == published and (known.total == total or not known.lacking):
                continue
            if new and clock() > deadline_s:
                self.left += 1
                continue
            measured = self._reader.read(runs, history)
            self._found[cell.id] = _CellCases(published, total, measured.cases, measured.lacking)
            new = True
        return new


def _published(
    runs: Iterable[Run], history: Mapping[str, RunHistory]
) -> Iterator[tuple[str, tuple[str, ...]]]:
    for run in runs:
        known = history.get(run.key)
        if known is not None and known.result is not None and known.result.ended is Ended.COMPLETE:
            yield run.key, known.result.evaluations


def _ordered(counts: Mapping[str, int]) -> Iterator[str]:
    """Returns the states that any run has, those that have ended first."""
    return (name for name in (*(each.value for each in Ended), IN_WORK, WAITING) if counts[name])


def _moment(at_ns: int) -> str | None:
    """Returns a time in ISO 8601 format; None if there is none."""
    return datetime.fromtimestamp(at_ns // 10**9, timezone.utc).isoformat() if at_ns else None
