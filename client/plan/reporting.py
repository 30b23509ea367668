"""``agent plan report``: tables of what the cells of a plan measured."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import Any

from inferometer.client.cli.invocation import Invocation
from inferometer.client.cli.output import print_rows
from inferometer.client.evaluating.console import say
from inferometer.client.plan.asking import PlanRequest, folder_of
from inferometer.evaluators.plans.cells import Run
from inferometer.evaluators.plans.reporting.reading import PlanReader
from inferometer.evaluators.plans.reporting.tables import PlanTable, chosen, failures, table
from inferometer.evaluators.plans.running.journal import read_history
from inferometer.evaluators.reports.writer import Format
from inferometer.manifests.errors import ConfigurationError

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
    """

    rows: Sequence[str] = ()
    columns: Sequence[str] = ()
    value: Sequence[str] = ()
    where: Sequence[str] = ()
    failed: bool = False


def report_plan(invocation: Invocation, request: PlanRequest, asked: Asked, printing: dict[str, Any]) -> None:
    """Prints a report on a plan; what a reader has to know of it goes to stderr.

    Raises:
        ConfigurationError: A name or a condition is wrong, or nothing has been measured.
        InferometerError: The database cannot be read, or the output cannot be written.
    """
    runs = [Run(cell, number) for cell in request.cells for number in range(1, request.plan.repeat + 1)]
    history = read_history(folder_of(invocation, request).path)
    if asked.failed:
        found = failures(runs, history)
    else:
        with closing(invocation.open_store()) as store, invocation.waiting.during("reading evaluations"):
            measured = PlanReader(store).read(runs, history)
        for note in measured.notes:
            say(note)
        if not measured.cases:
            raise ConfigurationError(
                f"{request.path}: no run is complete yet; agent plan status shows why, agent plan run runs it"
            )
        cases = chosen(measured.cases, asked.where)
        if not cases:
            raise ConfigurationError(f"no cell fulfils {' and '.join(asked.where)}")
        found = table(cases, asked.rows, asked.columns, asked.value)
    _print(found, printing)


def _print(found: PlanTable, printing: dict[str, Any]) -> None:
    shown = found.for_people() if printing["format_name"].lower() in _FOR_PEOPLE else found
    print_rows(shown.columns, shown.rows, **printing)
    for note in found.notes:
        say(note)


def names_of(text: str | None) -> Sequence[str]:
    """Returns the names in a text with commas between."""
    return tuple(name.strip() for name in (text or "").split(",") if name.strip())
