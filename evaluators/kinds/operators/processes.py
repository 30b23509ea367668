"""The fresh processes for a framework's rows: one for each group, and a new one whenever one is lost.

The groups of cells run in the order planned here. The journal of a benchmark in progress holds its rows, so
the same request can resume after an interruption.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TypeAlias, cast

from inferometer.agent.files import LineJournal
from inferometer.agent.hardware.environment import Environment, read_environment
from inferometer.agent.inference.registry import FrameworkEntry
from inferometer.agent.operators.operator import (
    Case,
    NotSupportedHereError,
    OperatorRunner,
    RunnerOptions,
    operators,
)
from inferometer.evaluators.jobs.job import JobCallbacks
from inferometer.evaluators.jobs.linked_process import LinkedTask, in_processes
from inferometer.evaluators.kinds.operators.cases import OperatorRequest
from inferometer.evaluators.kinds.operators.kind import row_document, row_from_document
from inferometer.evaluators.kinds.operators.measurement import OperatorRow, RowStatus
from inferometer.evaluators.kinds.operators.measuring import Cell, Measurer
from inferometer.evaluators.kinds.operators.options import OperatorOptions
from inferometer.manifests.errors import DeviceError, EvaluationFailed, InferometerError, one_line

_PROCESS = "its process"


@dataclass(frozen=True, slots=True)
class Opening:
    """How a framework is opened in a fresh process.

    Attributes:
        entry: The framework.
        options: The device, the threads, which are the same for all frameworks, and the element type.
        versions: The installed frameworks, for the environment.
    """

    entry: FrameworkEntry
    options: RunnerOptions
    versions: Mapping[str, str | None] = field(default_factory=dict)

    def open(self) -> OperatorRunner:
        """Opens it in this process; sets the OpenMP threads before the framework is imported.

        Raises:
            NotSupportedHereError, InferometerError: It does not run here.
        """
        os.environ["OMP_NUM_THREADS"] = str(self.options.threads)
        return cast("type[OperatorRunner]", self.entry.load_operators())(self.options)


@dataclass(frozen=True, slots=True)
class FrameworkFacts:
    """The facts that a framework reports about itself in a fresh process.

    Attributes:
        name: Its name.
        environment: The machine and the software; None if the framework does not run.
        threads: The CPU threads of an operator.
        forms: The forms of each operator by name.
        missing: Why it lacks an operator, by the name of the operator.
        unfit: Why it cannot run as requested; empty if it can.
        deviceless: Whether the reason is that the device is missing.
        lost: Whether the reason is that its process ended.
    """

    name: str
    environment: Environment | None = None
    threads: int | None = None
    forms: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    missing: Mapping[str, str] = field(default_factory=dict)
    unfit: str = ""
    deviceless: bool = False
    lost: bool = False


class _Ready:
    """The first message from a process, which says that its framework is open."""


def facts_of(
    openings: Sequence[Opening], names: Sequence[str], callbacks: JobCallbacks, answer_s: float
) -> Mapping[str, FrameworkFacts]:
    """Returns the facts that frameworks report about operators, by framework name.

    Args:
        openings: The frameworks, which are queried in parallel.
        names: The operators.
        callbacks: See ``in_processes``.
        answer_s: The time limit for a response.
    """
    tasks = [LinkedTask(_PROCESS, partial(_facts, opening, tuple(names))) for opening in openings]
    try:
        found = list(in_processes(tasks, callbacks, EvaluationFailed, most_silent_s=answer_s))
    except EvaluationFailed as error:
        if len(openings) == 1:
            name = openings[0].entry.name
            return {name: FrameworkFacts(name, unfit=one_line(error), lost=True)}
        each = [facts_of([opening], names, callbacks, answer_s) for opening in openings]
        return {name: facts for one in each for name, facts in one.items()}
    return {facts.name: facts for facts in found}


def _facts(opening: Opening, names: Sequence[str], _: JobCallbacks) -> Iterator[FrameworkFacts]:
    name = opening.entry.name
    try:
        with closing(opening.open()) as runner:
            forms = {each: tuple(runner.forms(each)) for each in names}
            missing = {each: one_line(runner.missing(each)) for each in names if not forms[each]}
            environment = read_environment(opening.versions, {}, runner.details())
            yield FrameworkFacts(name, environment, runner.threads, forms, missing)
    except (NotSupportedHereError, InferometerError) as error:
        yield FrameworkFacts(name, unfit=one_line(error), deviceless=isinstance(error, DeviceError))


def measured_rows(
    opening: Opening,
    options: OperatorOptions,
    cells: Sequence[Cell],
    callbacks: JobCallbacks,
    answer_s: float,
) -> Generator[OperatorRow, None, None]:
    """Measures cells in a fresh process, and yields their rows in order, each as soon as it is complete.

    If a process ends or does not respond, the current cell gets a failed row, and a new process continues
    with the next cell. After a stop request, the current row is the last one.

    Args:
        opening: The framework.
        options: How each row is measured.
        cells: The cells to measure.
        callbacks: The callbacks that request a stop.
        answer_s: The time limit for a row.
    """
    left = list(cells)
    while left:
        ready = False
        task = LinkedTask(_PROCESS, partial(_measured, opening, options, tuple(left)))
        lost = in_processes([task], callbacks, EvaluationFailed, most_silent_s=answer_s)
        try:
            with closing(lost) as found:
                for each in found:
                    if isinstance(each, OperatorRow):
                        del left[0]
                        yield each
                    ready = True
            return
        except InferometerError as error:
            reason = one_line(error)
        for cell in left[: 1 if ready else len(left)]:
            yield cell.row(RowStatus.FAILED, reason)
        left = left[1:] if ready else []


def _measured(
    opening: Opening, options: OperatorOptions, cells: Sequence[Cell], callbacks: JobCallbacks
) -> Iterator[_Ready | OperatorRow]:
    with closing(opening.open()) as runner:
        yield _Ready()
        measurer = Measurer(runner, options)
        for cell in cells:
            if callbacks.stop_requested():
                return
            yield measurer.row(cell)


@dataclass(frozen=True, slots=True)
class Group:
    """The work of one fresh process: a framework's cells of a category.

    Attributes:
        framework: The framework.
        process: The number of the process, from 1, among the processes of each cell.
        cells: Its cells, with their numbers in the framework's plan.
    """

    framework: str
    process: int
    cells: tuple[tuple[int, Cell], ...]


def cells_of(request: OperatorRequest, facts: FrameworkFacts) -> tuple[Cell, ...]:
    """Returns the cells of a framework: each operator, case, form and mode, in this order.

    An operator that the framework lacks or that has none of the requested forms gets cells with the reason.
    """
    known = RowStatus.FAILED if facts.lost else RowStatus.MISSING
    found = []
    for name, case in request.cases():
        plain = Case(dict(case.shapes), dict(case.parameters), case.preset)
        for form, reason in _forms(name, request.forms, facts):
            found += [Cell(name, plain, form, mode, reason=reason, known=known) for mode in request.modes]
    return tuple(found)


def _forms(name: str, wanted: Sequence[str], facts: FrameworkFacts) -> Sequence[tuple[str, str]]:
    """Returns the forms to measure, each with the reason why it cannot run, or an empty text."""
    if facts.unfit:
        return [("", facts.unfit)]
    known = facts.forms.get(name, ())
    if not known:
        return [("", facts.missing.get(name, f"{facts.name} has no such operator"))]
    if not wanted:
        return [(known[0], "")]
    chosen = [form for form in known if form in wanted]
    if not chosen:
        reason = f"{facts.name} has no {' or '.join(wanted)} of it; it has {', '.join(known)}"
        return [("", reason)]
    return [(form, "") for form in chosen]


def groups_of(plans: Mapping[str, Sequence[Cell]], processes: int) -> Iterator[Group]:
    """Yields the groups in the order in which they run.

    The first processes of all categories run before the second ones. Frameworks alternate within a category,
    so drift affects all of them, and each number of process starts with a different framework.
    """
    every = {name: _by_category(plan) for name, plan in plans.items()}
    categories = dict.fromkeys(category for found in every.values() for category in found)
    names = list(plans)
    for process in range(1, processes + 1):
        first = (process - 1) % max(len(names), 1)
        for category in categories:
            for name in names[first:] + names[:first]:
                cells = every[name].get(category, [])
                numbered = [(number, replace(cell, process=process)) for number, cell in cells]
                yield Group(name, process, tuple(numbered))


def _by_category(plan: Sequence[Cell]) -> Mapping[str, list[tuple[int, Cell]]]:
    found: dict[str, list[tuple[int, Cell]]] = {}
    for number, cell in enumerate(plan):
        found.setdefault(operators()[cell.operator].category.value, []).append((number, cell))
    return found


Place: TypeAlias = tuple[str, int, int]
"""A framework, the number of a cell in its plan, and the number of a process."""


class Journal:
    """A file of JSON lines, one for each row, that is removed when all rows are complete.

    Args:
        path: The file; None to keep nothing.
        resume: Whether to continue from its rows instead of starting afresh.

    Raises:
        OutputError: The file cannot be written.
    """

    def __init__(self, path: Path | None, *, resume: bool) -> None:
        self._path = path
        self.rows: Mapping[Place, OperatorRow] = _read(path) if path is not None and resume else {}
        self._lines = None if path is None else LineJournal(path, synced=False, anew=not self.rows)

    def add(self, place: Place, row: OperatorRow) -> None:
        """Stores a row.

        Raises:
            OutputError: The file cannot be written.
        """
        if self._lines is not None:
            self._lines.add({"place": list(place), "row": row_document(row)})

    def remove(self) -> None:
        """Removes the file, because all rows are complete."""
        if self._path is not None:
            self._path.unlink(missing_ok=True)


def journal_path(folder: Path, plan: object) -> Path:
    """Returns the file of a plan, identified by its ``repr``; a run resumes only with an equal plan."""
    return folder / f"operators-{hashlib.sha256(repr(plan).encode()).hexdigest()[:16]}.jsonl"


def _read(path: Path) -> Mapping[Place, OperatorRow]:
    """Returns the rows of the complete lines."""
    found: dict[Place, OperatorRow] = {}
    try:
        lines = path.read_bytes().splitlines()
    except OSError:
        return found
    for line in lines:
        try:
            content = json.loads(line)
            framework, cell, process = content["place"]
            found[str(framework), int(cell), int(process)] = row_from_document(content["row"])
        except (ValueError, KeyError, TypeError, RecursionError):
            continue
    return found
