"""The job behind ``op run``: single operators in several frameworks, each group in fresh processes.

Each group of a framework's rows has its own process, and a new one starts whenever one is lost. The groups of
cells run in the order planned here. The journal keeps the rows, so the same request can resume after an
interruption.
"""

from __future__ import annotations

import hashlib
import os
import time
import uuid
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import cast

import numpy as np

from inferometer.agent.hardware.conditions import GpuReader, read_counters
from inferometer.agent.hardware.environment import Environment, Precision, default_threads, read_environment
from inferometer.agent.inference.registry import FrameworkEntry, Registry
from inferometer.agent.inference.stages import SystemDescription
from inferometer.agent.operators.operator import (
    Case,
    NotSupportedHereError,
    OperatorRunner,
    RunnerOptions,
    operators,
)
from inferometer.evaluators.conditions.conditions import Conditions, host_conditions, judged
from inferometer.evaluators.datasets.base import DatasetIdentity
from inferometer.evaluators.evaluation import Evaluation, Status, utc_now
from inferometer.evaluators.jobs.job import Job, JobCallbacks, JobResources, Progress
from inferometer.evaluators.jobs.linked_process import LinkedTask, in_processes
from inferometer.evaluators.kinds.operators.kind import Journal
from inferometer.evaluators.kinds.operators.measurement import (
    MachinePeak,
    OperatorMeasurement,
    OperatorRow,
    RowStatus,
)
from inferometer.evaluators.kinds.operators.measuring import TABLE, Cell, Measurer
from inferometer.evaluators.kinds.operators.options import OperatorOptions
from inferometer.evaluators.kinds.operators.peak import beyond_peak, machine_peak
from inferometer.evaluators.kinds.operators.request import OperatorRequest, frameworks_with_operators
from inferometer.manifests.errors import (
    ConfigurationError,
    DeviceError,
    EvaluationFailed,
    EvaluationInterrupted,
    FrameworkUnavailableError,
    InferometerError,
    one_line,
)
from inferometer.manifests.inputs import TensorInput, TensorParameters
from inferometer.manifests.schema import FrameworkRequirement, ModelFiles, ModelManifest, ModelOutput

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


JOURNAL = "operators"
"""The folder in the data directory for the rows of a run in progress, and for the machine's peaks."""
BAD_ROWS = (RowStatus.FAILED, RowStatus.WRONG)
NAME = "Operators"
"""The model's name in evaluations of operators."""
ANSWER_S = 120.0
"""The time that a row may take beyond its budget before its process is considered hung."""
_BUDGETS = 4
_RUN_S = 2.0


def operators_job(request: OperatorRequest, *, resume: bool = False) -> Job[Evaluation[OperatorMeasurement]]:
    """Returns the job for a request; see ``benchmark_operators``."""
    return Job(
        partial(_benchmarked, request, resume),
        "operators",
        stops="stopping after this operator",
        starts_at_once=True,
    )


def _benchmarked(
    request: OperatorRequest, resume: bool, resources: JobResources, callbacks: JobCallbacks
) -> Generator[Evaluation[OperatorMeasurement], None, None]:
    journal = resources.data_directory / JOURNAL
    return benchmark_operators(request, resources.registry, callbacks, resume=resume, journal=journal)


def benchmark_operators(
    request: OperatorRequest,
    registry: Registry,
    callbacks: JobCallbacks | None = None,
    *,
    resume: bool = False,
    journal: Path | None = None,
    with_peak: bool = True,
    answer_s: float = ANSWER_S,
) -> Generator[Evaluation[OperatorMeasurement], None, None]:
    """Measures the operators, and yields an evaluation for each framework, all in one group, at the end.

    A row that cannot be measured records the reason, and the benchmark continues. If the benchmark is
    stopped, the evaluations have the status interrupted and contain the complete rows.

    Args:
        request: The benchmark to run.
        registry: The frameworks.
        callbacks: Called in this thread; progress is reported after each row, and a failed row as a warning.
        resume: Whether to continue from the rows that an earlier run of the same request, with the same
            versions, has left in the journal.
        journal: The folder that keeps the rows until all are complete, and the machine's peak; None keeps
            neither.
        with_peak: Whether to measure the machine's peak, unless it is stored.
        answer_s: The time that one row may take beyond its budget.

    Raises:
        UnknownFrameworkError, FrameworkUnavailableError: A framework is unknown or not installed.
        ConfigurationError: A framework does not run single operators, or none runs as requested.
        DeviceError: No framework runs as requested, and one of them lacks the device.
        EvaluationInterrupted: It was stopped before the first row.
        OutputError: The journal cannot be written.
    """
    callbacks = callbacks or JobCallbacks()
    entries = _entries(request, registry)
    threads = request.threads or default_threads()
    options = RunnerOptions(request.device, threads, request.options.dtype)
    openings = {entry.name: Opening(entry, options, dict(registry.versions)) for entry in entries}
    run = _Run(request, openings, callbacks, answer_s)
    run.ask()
    run.tell()
    if with_peak and not request.device.is_gpu:
        run.find_peak = partial(
            machine_peak, run.environment.cpu_model, threads, request.options.dtype, journal
        )
        run.peak = run.find_peak()
        if run.peak is None:
            run.callbacks.on_warning("the machine's peak could not be measured; rows lack their share of it")
    yield from run.evaluations(resume, journal)


def _entries(request: OperatorRequest, registry: Registry) -> Sequence[FrameworkEntry]:
    """Returns the requested frameworks, each once; all of them are installed."""
    entries = list(dict.fromkeys(frameworks_with_operators(registry, request.frameworks)))
    if request.frameworks:
        for entry in entries:
            entry.require_installed()
        return entries
    found = [each for each in entries if each.installed_version is not None]
    if not found:
        names = " or ".join(each.name for each in entries)
        raise FrameworkUnavailableError(f"no framework with operators is installed; install {names}")
    return found


@dataclass(slots=True)
class _Run:
    """A benchmark in progress."""

    request: OperatorRequest
    openings: Mapping[str, Opening]
    callbacks: JobCallbacks
    answer_s: float
    facts: Mapping[str, FrameworkFacts] = field(default_factory=dict)
    plans: Mapping[str, Sequence[Cell]] = field(default_factory=dict)
    rows: dict[str, dict[tuple[int, int], OperatorRow]] = field(default_factory=dict)
    elapsed_ns: dict[str, int] = field(default_factory=dict)
    created_at: datetime = field(default_factory=utc_now)
    stopped: bool = False
    find_peak: Callable[..., MachinePeak | None] | None = None
    peak: MachinePeak | None = None

    @property
    def environment(self) -> Environment:
        """The environment of the machine, as reported by a framework."""
        known = [each.environment for each in self.facts.values() if each.environment is not None]
        return known[0] if known else read_environment(next(iter(self.openings.values())).versions)

    def stop_requested(self) -> bool:
        """Returns whether a stop has been requested."""
        self.stopped = self.stopped or self.callbacks.stop_requested()
        return self.stopped

    def ask(self) -> None:
        """Asks the frameworks for their forms and plans the cells."""
        names = list(dict.fromkeys(name for name, _ in self.request.cases()))
        watched = JobCallbacks(stop_requested=self.stop_requested)
        found = facts_of(list(self.openings.values()), names, watched, self.answer_s)
        self.facts = {name: found[name] for name in self.openings}  # not in the order of their arrival
        if all(each.unfit and not each.lost for each in found.values()):
            told = min(self.facts.values(), key=lambda each: not each.deviceless)
            raise (DeviceError if told.deviceless else ConfigurationError)(told.unfit)
        self.plans = {name: cells_of(self.request, facts) for name, facts in self.facts.items()}
        self.rows = {name: {} for name in self.openings}
        self.elapsed_ns = dict.fromkeys(self.openings, 0)

    def evaluations(
        self, resume: bool, folder: Path | None
    ) -> Generator[Evaluation[OperatorMeasurement], None, None]:
        """Measures the rows, then yields the evaluations, which share the conditions of the whole run."""
        kept = Journal(self._journal_path(folder), resume=resume)
        for (framework, number, process), row in kept.rows.items():
            self.rows[framework][number, process] = row
        with GpuReader(self.request.device) as gpu:
            begin = read_counters(gpu.read())
            for group in groups_of(self.plans, self.request.options.processes):
                if self.stop_requested():
                    break
                self._measure(group, kept)
            conditions = judged([host_conditions([begin], [read_counters(gpu.read())])])
        if not any(self.rows.values()):
            raise EvaluationInterrupted("stopped before an operator was measured")
        complete = self._done() == self._total()
        if complete:
            kept.remove()
        group_id = str(uuid.uuid4())
        for name in self.openings:
            status = Status.COMPLETE if complete else Status.INTERRUPTED
            yield self._evaluation(name, status, group_id, conditions)

    def _measure(self, group: Group, kept: Journal) -> None:
        """Measures the remaining rows of a group."""
        found, start_ns = self.rows[group.framework], time.perf_counter_ns()
        left = [(number, cell) for number, cell in group.cells if (number, group.process) not in found]
        for number, cell in left:
            if cell.reason:
                self._add(group, number, cell.row(cell.known, cell.reason), kept)
        left = [(number, cell) for number, cell in left if not cell.reason]
        if not left:
            return
        options = self.request.options
        limit_s = self.answer_s + _BUDGETS * options.budget_s + _RUN_S * (options.runs or 0)
        watched = replace(self.callbacks, on_progress=lambda _: None, stop_requested=self.stop_requested)
        cells = [cell for _, cell in left]
        rows = measured_rows(self.openings[group.framework], options, cells, watched, limit_s)
        with closing(rows):
            for (number, _), row in zip(left, rows, strict=False):  # fewer rows after a request to stop
                self._add(group, number, self._possible(row), kept)
        self.elapsed_ns[group.framework] += time.perf_counter_ns() - start_ns

    def _possible(self, row: OperatorRow) -> OperatorRow:
        """Returns the row, or a wrong one if its times exceed the machine's peak, which is measured again."""
        dtype = self.request.options.dtype
        if self.peak is None or self.find_peak is None or not beyond_peak(row, self.peak, dtype):
            return row
        self.peak = self.find_peak(again=True) or self.peak
        reason = beyond_peak(row, self.peak, dtype)
        if not reason:
            return row
        none = np.empty(0, np.int64)
        return replace(row, status=RowStatus.WRONG, reason=reason, times_ns=none, block=1, stop=None)

    def _add(self, group: Group, number: int, row: OperatorRow, kept: Journal) -> None:
        self.rows[group.framework][number, group.process] = row
        kept.add((group.framework, number, group.process), row)
        self.tell(row, group.framework)

    def tell(self, row: OperatorRow | None = None, framework: str = "") -> None:
        """Reports the progress, and the row if it failed."""
        now = "" if row is None else f"{row.operator} in {framework}"
        self.callbacks.on_progress(Progress(self._done(), self._total(), "rows", now))
        if row is not None and row.status in BAD_ROWS:
            where = f"{row.mode.value}, in {framework} {row.form}".rstrip()
            what = f"{row.operator} ({row.inputs_text}), {where}"
            self.callbacks.on_warning(f"{row.status.value}: {what}: {row.reason}")

    def _done(self) -> int:
        return sum(map(len, self.rows.values()))

    def _total(self) -> int:
        return sum(map(len, self.plans.values())) * self.request.options.processes

    def _journal_path(self, folder: Path | None) -> Path | None:
        """Returns the file of the plan, identified by its ``repr``; a run resumes only with an equal plan."""
        if folder is None:
            return None
        versions = [(each.entry.name, each.entry.installed_version) for each in self.openings.values()]
        threads = [each.options for each in self.openings.values()]
        here = self.environment
        machine = here.inferometer_version, here.hostname, here.cpu_model
        plan = machine, versions, threads, self.request.options, dict(self.plans)
        return folder / f"operators-{hashlib.sha256(repr(plan).encode()).hexdigest()[:16]}.jsonl"

    def _evaluation(
        self, name: str, status: Status, group_id: str, conditions: Conditions
    ) -> Evaluation[OperatorMeasurement]:
        found = self.rows[name]
        measurement = OperatorMeasurement(
            tuple(found[place] for place in sorted(found)),
            self.request.options,
            self.peak,
            self.elapsed_ns[name],
        )
        values = self.request.options.values
        source = "random values" if values == TABLE else values
        return Evaluation(
            id=str(uuid.uuid4()),
            created_at=self.created_at,
            status=status,
            system=self._system(name),
            dataset=DatasetIdentity.synthetic(source, len(self.plans[name])),
            measurement=measurement,
            group_id=group_id,
            conditions=conditions,
        )

    def _system(self, name: str) -> SystemDescription:
        facts, opening = self.facts[name], self.openings[name]
        dtype = self.request.options.dtype
        return SystemDescription(
            manifest=manifest_of(name),
            checksums={},
            framework_version=opening.entry.installed_version or "",
            device=self.request.device,
            threads=facts.threads if facts.environment else opening.options.threads,
            preprocess_threads=0,
            overlap=False,
            environment=facts.environment or self.environment,
            precision=Precision(dtype) if dtype in tuple(Precision) else None,
        )


def manifest_of(framework: str) -> ModelManifest:
    """Returns the manifest for evaluations of a framework's operators."""
    anything = TensorParameters(dimensions=(1,))
    return ModelManifest(
        name=NAME,
        framework=FrameworkRequirement(name=framework, version="*"),
        description="Single operators; the rows of the measurement have their inputs",
        inputs=(TensorInput(type="tensor", parameters=anything),),
        output=ModelOutput(type="raw"),
        model=ModelFiles(architecture=NAME),
        hidden=True,
    )
