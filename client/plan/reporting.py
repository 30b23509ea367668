"""``agent plan report``: tables of what the cells of a plan measured."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING, Any

from inferometer.client.cli.invocation import Invocation
from inferometer.client.cli.output import print_rows
from inferometer.client.evaluating.console import say
from inferometer.client.plan.asking import PlanRequest, folder_of
from inferometer.evaluators.plans.cells import Run
from inferometer.evaluators.plans.reporting.advice import gpu_advice
from inferometer.evaluators.plans.reporting.cases import Case
from inferometer.evaluators.plans.reporting.choosing import none_fulfils
from inferometer.evaluators.plans.reporting.objectives import Objective, best
from inferometer.evaluators.plans.reporting.pairing import Failed, failed_on_gpu
from inferometer.evaluators.plans.reporting.reading import PlanReader
from inferometer.evaluators.plans.reporting.scaling import Scaling, scaling
from inferometer.evaluators.plans.reporting.tables import PlanTable, chosen, failures, table
from inferometer.evaluators.plans.running.journal import RunHistory, read_history
from inferometer.evaluators.reports.selection import sort_rows
from inferometer.evaluators.reports.writer import Format
from inferometer.manifests.errors import ConfigurationError

if TYPE_CHECKING:  # a picture needs Matplotlib, which only --plot loads
    from inferometer.evaluators.plots.writer import PictureFile

_FOR_PEOPLE = (Format.TABLE.value, Format.MARKDOWN.value)


@dataclass(frozen=True, slots=True)
class Asked:
    """What a report is to show.

    Attributes:
        rows: The dimensions of its rows; empty for those that tell cells apart.
        columns: Those of its columns.
        value: Its figures.
        where: Conditions that each cell fulfils.
        failed: Whether the runs that are not complete are shown instead.
        minimize: The figures that are to be low; the best cells are shown instead.
        maximize: Those that are to be high.
        scaling: The kind of scaling that is shown instead.
        over: What counts those that work; None for the only number that varies.
        gpu_advice: Whether it is shown whether a GPU is worth asking for.
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
        """The figures that are to be low, then those that are to be high."""
        lowest = [Objective(name, highest=False) for name in self.minimize]
        return (*lowest, *(Objective(name, highest=True) for name in self.maximize))

    def check(self) -> None:
        """Raises where options exclude each other.

        Raises:
            ConfigurationError: They do.
        """
        kinds = [name for name, is_asked in self._kinds().items() if is_asked]
        if len(kinds) > 1:
            raise ConfigurationError(f"{kinds[0]} and {kinds[1]} are two reports; ask for one at a time")
        given = [f"--{name}" for name in ("rows", "columns") if getattr(self, name)]
        if kinds and given:
            raise ConfigurationError(f"{kinds[0]} has its own rows and columns; leave out {given[0]}")
        if self.over is not None and self.scaling is None and not self.gpu_advice:
            raise ConfigurationError("--over belongs to --scaling and --gpu_advice; add one of them")
        if self.cores_per_gpu is not None and not self.gpu_advice:
            raise ConfigurationError("--cores_per_gpu belongs to --gpu_advice; add it")
        if self.failed and (self.value or self.where):
            left_out = "--value" if self.value else "--where"
            raise ConfigurationError(f"--failed shows runs without figures; leave out {left_out}")

    def _kinds(self) -> Mapping[str, bool]:
        """The kinds of reports beside the table, and whether each is asked for."""
        objective = "--minimize" if self.minimize else "--maximize"
        return {
            "--failed": self.failed,
            objective: bool(self.objectives),
            "--scaling": self.scaling is not None,
            "--gpu_advice": self.gpu_advice,
        }


def report_plan(
    invocation: Invocation,
    request: PlanRequest,
    asked: Asked,
    printing: dict[str, Any],
    plot: Path | None = None,
) -> None:
    """Prints a report on a plan, and draws it; what a reader has to know of it goes to stderr.

    Args:
        invocation: The invocation.
        request: The plan.
        asked: What is shown.
        printing: The options of ``print_rows``.
        plot: The file of the picture; None for none.

    Raises:
        ConfigurationError: A name, a condition or an option is wrong, or nothing has been measured.
        InferometerError: The database cannot be read, or the output cannot be written.
    """
    asked.check()
    picture = _picture(plot, asked, printing)
    runs = [Run(cell, number) for cell in request.cells for number in range(1, request.plan.repeat + 1)]
    history = read_history(folder_of(invocation, request).path)
    if asked.failed:
        found = failures(runs, history)
    else:
        found = _found(_cases(invocation, request, runs, history), asked, failed_on_gpu(runs, history))
    if printing["order"] is not None:
        found = replace(found, rows=tuple(sort_rows(found.columns, found.rows, printing["order"])))
    _print(found, {**printing, "order": None})
    if picture is not None:
        _draw(invocation, picture, found)


def names_of(text: str | None) -> Sequence[str]:
    """Returns the names in a text with commas between."""
    return tuple(name.strip() for name in (text or "").split(",") if name.strip())


def _cases(
    invocation: Invocation, request: PlanRequest, runs: Sequence[Run], history: Mapping[str, RunHistory]
) -> tuple[Case, ...]:
    """The cases of all complete runs; says what is missing."""
    with closing(invocation.open_store()) as store, invocation.waiting.during("reading evaluations"):
        measured = PlanReader(store).read(runs, history)
    for note in measured.notes:
        say(note)
    if not measured.cases:
        raise ConfigurationError(
            f"{request.path}: no run is complete yet; agent plan status shows why, agent plan run runs it"
        )
    return measured.cases


def _found(cases: tuple[Case, ...], asked: Asked, failed: Sequence[Failed]) -> PlanTable:
    """The report that is asked for."""
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


def _picture(plot: Path | None, asked: Asked, printing: dict[str, Any]) -> PictureFile | None:
    """The file of the picture, checked before anything is read; it takes ``--overwrite``."""
    if plot is None:
        return None
    if asked.failed:
        raise ConfigurationError("--failed has no picture; leave out --plot")
    if len(asked.objectives) > 2:
        raise ConfigurationError("--plot draws one objective or two; leave it out, or the others")
    output, overwrite = printing["output"], printing["overwrite"]
    if output is not None and plot.resolve() == output.resolve():
        raise ConfigurationError(f'the picture and the rows cannot both go to "{plot}"; name two files')
    if overwrite and printing["append"]:
        raise ConfigurationError("append and overwrite exclude each other; choose one")
    from inferometer.evaluators.plots.writer import PictureFile

    printing["overwrite"] = overwrite and output is not None
    return PictureFile(plot, overwrite=overwrite)


def _print(found: PlanTable, printing: dict[str, Any]) -> None:
    shown = found.for_people() if printing["format_name"].lower() in _FOR_PEOPLE else found
    print_rows(shown.columns, shown.rows, **printing)
    for note in found.notes:
        say(note)


def _draw(invocation: Invocation, picture: PictureFile, found: PlanTable) -> None:
    if found.drawing is None:
        say(f"nothing to draw: {picture} is not written")
        return
    with invocation.waiting.during("drawing"):
        source = f"Report {found.name} of a plan, by inferometer: {found.caption}"
        picture.draw(found.drawing, found.columns, found.rows, source, datetime.now(timezone.utc))
    say(f"drawn to {picture}")
