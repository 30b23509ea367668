"""The job behind ``op run``: single operators in several frameworks, each group in fresh processes."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from datetime import datetime
from functools import partial
from pathlib import Path

import numpy as np

from inferometer.agent import __version__
from inferometer.agent.hardware.conditions import GpuReader, read_counters
from inferometer.agent.hardware.environment import Environment, Precision, default_threads, read_environment
from inferometer.agent.inference.registry import FrameworkEntry, Registry
from inferometer.agent.inference.results import SystemDescription
from inferometer.agent.operators.operator import RunnerOptions
from inferometer.evaluators.conditions.conditions import Conditions, host_conditions, judged
from inferometer.evaluators.datasets.base import DatasetIdentity
from inferometer.evaluators.evaluation import Evaluation, Status, utc_now
from inferometer.evaluators.jobs.job import Job, JobCallbacks, JobResources, Progress
from inferometer.evaluators.kinds.operators.cases import OperatorRequest, frameworks_with_operators
from inferometer.evaluators.kinds.operators.measurement import (
    MachinePeak,
    OperatorMeasurement,
    OperatorRow,
    RowStatus,
)
from inferometer.evaluators.kinds.operators.measuring import TABLE, Cell
from inferometer.evaluators.kinds.operators.peak import beyond_peak, machine_peak
from inferometer.evaluators.kinds.operators.processes import (
    FrameworkFacts,
    Group,
    Journal,
    Opening,
    cells_of,
    facts_of,
    groups_of,
    journal_path,
    measured_rows,
)
from inferometer.evaluators.kinds.operators.report import shapes_text
from inferometer.manifests.errors import (
    ConfigurationError,
    DeviceError,
    EvaluationInterrupted,
    FrameworkUnavailableError,
)
from inferometer.manifests.inputs import TensorInput, TensorParameters
from inferometer.manifests.schema import FrameworkRequirement, ModelFiles, ModelManifest, ModelOutput

JOURNAL = "operators"
"""The folder in the data directory for the rows of a run in progress, and for the machine's peaks."""
BAD_ROWS = (RowStatus.FAILED, RowStatus.WRONG)
NAME = "Operators"
"""The model's name in evaluations of operators."""
ANSWER_S = 120.0
"""The time that a row may take beyond its budget before its process is considered hung."""
_BUDGETS = 4
_RUN_S = 2.0
_SYNTHETIC = "synthetic"


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


def row_name(row: OperatorRow, framework: str) -> str:
    """Returns a short name of a row."""
    return f"{row.operator} ({shapes_text(row.shapes)}), {row.mode.value}, in {framework} {row.form}".rstrip()


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
            self.callbacks.on_warning(f"{row.status.value}: {row_name(row, framework)}: {row.reason}")

    def _done(self) -> int:
        return sum(map(len, self.rows.values()))

    def _total(self) -> int:
        return sum(map(len, self.plans.values())) * self.request.options.processes

    def _journal_path(self, folder: Path | None) -> Path | None:
        if folder is None:
            return None
        versions = [(each.entry.name, each.entry.installed_version) for each in self.openings.values()]
        threads = [each.options for each in self.openings.values()]
        machine = self.environment.hostname, self.environment.cpu_model
        plan = __version__, machine, versions, threads, self.request.options, dict(self.plans)
        return journal_path(folder, plan)

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
            dataset=DatasetIdentity(_SYNTHETIC, source, None, None, len(self.plans[name])),
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
