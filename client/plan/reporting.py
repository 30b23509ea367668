"""``agent plan report``: prints tables of the measurements of a plan's cells."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING, Any

from inferometer.client.api.invocation import Invocation
from inferometer.client.cli.output import print_rows, say
from inferometer.client.plan.asking import PlanRequest, folder_of
from inferometer.evaluators.plans.cells import Run
from inferometer.evaluators.plans.reporting.advice import failed_on_gpu
from inferometer.evaluators.plans.reporting.asked import Asked, reported
from inferometer.evaluators.plans.reporting.cases import Case, PlanReader
from inferometer.evaluators.plans.reporting.tables import PlanTable, failures
from inferometer.evaluators.plans.running.journal import RunHistory, read_history
from inferometer.evaluators.reports.selection import sort_rows
from inferometer.evaluators.reports.writer import Format
from inferometer.manifests.errors import ConfigurationError

if TYPE_CHECKING:  # a picture needs Matplotlib, which only --plot loads
    from inferometer.evaluators.plots.writer import PictureFile

_FOR_PEOPLE = (Format.TABLE.value, Format.MARKDOWN.value)


def report_plan(
    invocation: Invocation,
    request: PlanRequest,
    asked: Asked,
    printing: dict[str, Any],
    plot: Path | None = None,
) -> None:
    """Prints and draws a report on a plan; notes about the report go to stderr.

    Args:
        invocation: The invocation.
        request: The plan.
        asked: The requested report.
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
        found = reported(_cases(invocation, request, runs, history), asked, failed_on_gpu(runs, history))
    if printing["order"] is not None:
        found = replace(found, rows=tuple(sort_rows(found.columns, found.rows, printing["order"])))
    _print(found, {**printing, "order": None})
    if picture is not None:
        _draw(invocation, picture, found)


def names_of(text: str | None) -> Sequence[str]:
    """Returns the names in a text, which are separated by commas."""
    return tuple(name.strip() for name in (text or "").split(",") if name.strip())


def _cases(
    invocation: Invocation, request: PlanRequest, runs: Sequence[Run], history: Mapping[str, RunHistory]
) -> tuple[Case, ...]:
    """Returns the cases of all complete runs, and reports what is missing."""
    with closing(invocation.open_store()) as store, invocation.waiting.during("reading evaluations"):
        measured = PlanReader(store).read(runs, history)
    for note in measured.notes:
        say(note)
    if not measured.cases:
        raise ConfigurationError(
            f"{request.path}: no run is complete yet; agent plan status shows why, agent plan run runs it"
        )
    return measured.cases


def _picture(plot: Path | None, asked: Asked, printing: dict[str, Any]) -> PictureFile | None:
    """Returns the file of the picture, checked before anything is read; it consumes ``--overwrite``."""
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
