"""The fresh processes of a framework's rows: one for each group, and a new one after each that is lost."""

from __future__ import annotations

import os
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from functools import partial
from typing import Any, cast

from inferometer.agent.hardware.environment import Environment, read_environment
from inferometer.agent.inference.registry import FrameworkEntry
from inferometer.agent.operators.runner import NotSupportedHereError, OperatorRunner, RunnerOptions
from inferometer.evaluators.kinds.operators.measurement import OperatorOptions, OperatorRow, RowStatus
from inferometer.evaluators.operators.measuring import Cell, Measurer
from inferometer.evaluators.running.linked_process import LinkedTask
from inferometer.evaluators.running.resources import JobCallbacks
from inferometer.evaluators.running.supervision import in_processes
from inferometer.manifests.errors import EvaluationFailed, InferometerError, one_line

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
        """Opens it in this process, whose OpenMP gets the threads before the framework is imported.

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
        missing: Why it lacks operators, by name.
        unfit: Why it cannot run as requested; empty if it can.
        lost: Whether that is because its process ended.
    """

    name: str
    environment: Environment | None = None
    threads: int | None = None
    forms: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    missing: Mapping[str, str] = field(default_factory=dict)
    unfit: str = ""
    lost: bool = False


class _Ready:
    """The first message of a process: its framework is open."""


def facts_of(
    openings: Sequence[Opening], names: Sequence[str], callbacks: JobCallbacks[Any], answer_s: float
) -> Mapping[str, FrameworkFacts]:
    """Returns the facts of frameworks about operators, by the name of the framework.

    Args:
        openings: The frameworks, which are asked at the same time.
        names: The operators.
        callbacks: See ``in_processes``.
        answer_s: How long an answer may take.
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


def _facts(opening: Opening, names: Sequence[str], _: JobCallbacks[Any]) -> Iterator[FrameworkFacts]:
    name = opening.entry.name
    try:
        with closing(opening.open()) as runner:
            forms = {each: tuple(runner.forms(each)) for each in names}
            missing = {each: one_line(runner.missing(each)) for each in names if not forms[each]}
            environment = read_environment(opening.versions, {}, runner.details())
            yield FrameworkFacts(name, environment, runner.threads, forms, missing)
    except (NotSupportedHereError, InferometerError) as error:
        yield FrameworkFacts(name, unfit=one_line(error))


def measured_rows(
    opening: Opening,
    options: OperatorOptions,
    cells: Sequence[Cell],
    callbacks: JobCallbacks[Any],
    answer_s: float,
) -> Generator[OperatorRow, None, None]:
    """Measures cells in a fresh process, and yields their rows in order, each as soon as it is complete.

    A process that ends, or does not answer, leaves a failed row of the cell in work, and a new one goes on
    with the next. After a request to stop, the rows end with that in work.

    Args:
        opening: The framework.
        options: How each row is measured.
        cells: What is measured.
        callbacks: Tells when to stop.
        answer_s: How long one row may take.
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
    opening: Opening, options: OperatorOptions, cells: Sequence[Cell], callbacks: JobCallbacks[Any]
) -> Iterator[_Ready | OperatorRow]:
    with closing(opening.open()) as runner:
        yield _Ready()
        measurer = Measurer(runner, options)
        for cell in cells:
            if callbacks.stop_requested():
                return
            yield measurer.row(cell)
