"""Runs a plan for the command line, with progress and an exit code, and reports the results of its cells."""

from __future__ import annotations

import math
import os
import shlex
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import click

from inferometer.client.api.invocation import Invocation
from inferometer.client.api.runner import StopRequest
from inferometer.client.cli.output import INTERRUPTED, SUCCESS, picture_of, print_rows, say, say_drawn
from inferometer.client.plan.checking import PlanAgents
from inferometer.client.plan.request import PlanRequest, agent_text, counts_text, folder_of, plan_text
from inferometer.evaluators.kinds.registry import kind_of
from inferometer.evaluators.plans.cell_command import CellCommand, command_of
from inferometer.evaluators.plans.cells import Run, tasks_of
from inferometer.evaluators.plans.plan import Rerun
from inferometer.evaluators.plans.reporting.advice import failed_on_gpu
from inferometer.evaluators.plans.reporting.asked import Asked, reported
from inferometer.evaluators.plans.reporting.cases import Case, PlanReader
from inferometer.evaluators.plans.reporting.scaling import Scaling
from inferometer.evaluators.plans.reporting.tables import PlanTable, failures
from inferometer.evaluators.plans.running.driver import Driver, RunEvent
from inferometer.evaluators.plans.running.folder import (
    PLANS,
    Ended,
    PlanFolder,
    Result,
    RunHistory,
    read_history,
)
from inferometer.evaluators.plans.running.places import AgentsPlace, Claim, LocalPlace, SlurmPlace
from inferometer.evaluators.reports.writer import Format, sort_rows
from inferometer.evaluators.store.evaluation_store import EvaluationFilter, EvaluationStore
from inferometer.evaluators.store.opening import open_store
from inferometer.manifests.errors import ConfigurationError

_FOR_PEOPLE = (Format.TABLE.value, Format.MARKDOWN.value)


def report_plan(
    invocation: Invocation,
    request: PlanRequest,
    printing: dict[str, Any],
    plot: Path | None,
    *,
    scaling: str | None,
    **given: Any,
) -> None:
    """Prints and draws a report on a plan; notes about the report go to stderr.

    ``printing`` are the options of ``print_rows``, ``scaling`` is the name of a ``Scaling``, and the others
    are those of ``Asked``; rows, columns and figures are separated by commas.

    Raises:
        ConfigurationError: A name, a condition or an option is invalid, or nothing has been measured.
        InferometerError: The database cannot be read, or the output cannot be written.
    """
    given |= {name: _names(given[name]) for name in ("rows", "columns", "value")}
    asked = Asked(**given, scaling=Scaling(scaling) if scaling else None)
    asked.check()
    if plot is not None and asked.failed:
        raise ConfigurationError("--failed has no picture; leave out --plot")
    if plot is not None and len(asked.objectives) > 2:
        raise ConfigurationError("--plot draws one or two objectives; leave out the others, or --plot")
    picture = picture_of(plot, printing)
    runs = [Run(cell, number) for cell in request.running for number in range(1, request.plan.repeat + 1)]
    history = read_history(folder_of(invocation, request).path)
    if asked.failed:
        found = failures(runs, history)
    else:
        found = reported(_cases(invocation, request, runs, history), asked, failed_on_gpu(runs, history))
    if printing["order"] is not None:
        found = replace(found, rows=tuple(sort_rows(found.columns, found.rows, printing["order"])))
    _print(found, {**printing, "order": None})
    if picture is not None:
        source = f"Report {found.name} of a plan, by inferometer: {found.caption}"
        with invocation.waiting.during("drawing"):
            drawn = picture.draw(found.drawing, found.columns, found.rows, source, datetime.now(timezone.utc))
        say_drawn(picture, drawn)


def _names(text: str | None) -> Sequence[str]:
    return tuple(name.strip() for name in (text or "").split(",") if name.strip())


def _cases(
    invocation: Invocation, request: PlanRequest, runs: Sequence[Run], history: Mapping[str, RunHistory]
) -> tuple[Case, ...]:
    """Returns the cases of all complete runs, and prints notes about missing ones."""
    with closing(invocation.open_store()) as store, invocation.waiting.during("reading evaluations"):
        measured = PlanReader(store).read(runs, history)
    for note in measured.notes:
        say(note)
    if not measured.cases:
        raise ConfigurationError(
            f"{request.path}: no run is complete yet; agent plan status shows why, and agent plan run runs it"
        )
    return measured.cases


def _print(found: PlanTable, printing: dict[str, Any]) -> None:
    shown = found.for_people() if printing["format_name"].lower() in _FOR_PEOPLE else found
    print_rows(shown.columns, shown.rows, **printing)
    for note in found.notes:
        say(note)


_FAILED_RUNS = 1
_LOCKS = "machines"


def run_plan(
    invocation: Invocation, request: PlanRequest, rerun: str | None, agents: PlanAgents | None = None
) -> int:
    """Runs the remaining runs of a plan, and returns the exit code.

    The command lines of simulated cells are printed; all other output goes to stderr. ``rerun`` is a value of
    ``Rerun``; None means the plan's setting.

    Raises:
        InferometerError: Another driver is running the plan, or the database or the folder cannot be written.
    """
    for cell in (each for each in request.cells if each.is_simulated):
        click.echo(shlex.join(("agent", *cell.argv)))
    if not request.running:
        return SUCCESS
    folder, locks = folder_of(invocation, request), invocation.data_directory / PLANS / _LOCKS
    locks.mkdir(parents=True, exist_ok=True)
    stop = StopRequest()
    served = agents.place(invocation) if agents is not None else None
    here = LocalPlace() if request.plan.slurm is None else SlurmPlace(request.plan.slurm)
    with closing(invocation.open_store()) as store, stop:
        say(plan_text(request, folder))
        stop.begin("stopping after the current run")
        found = Driver(
            plan=request.plan,
            runs=request.runs,
            folder=folder,
            place=served or here,
            command=lambda run: _command(invocation, request, folder, run),
            locks=str(locks),
            on_begin=lambda: folder.keep(request.plan, request.running),
            claim=served.claim if served is not None else lambda _: Claim(),
            on_progress=_say_progress,
            on_result=lambda run, result: _with_evaluations(store, folder, run, result, served),
            stop_requested=stop,
        ).drive(Rerun(rerun) if rerun else request.plan.rerun)
        stopped = stop.end()
    states = [found[run.key] for run in request.runs if run.key in found]
    say(f"runs        {counts_text(states)}")
    if stopped:
        say(f"stopped: agent plan resume {request.path} continues it")
        return INTERRUPTED
    bad = any(each.result is not None and each.result.ended is not Ended.COMPLETE for each in states)
    return _FAILED_RUNS if bad else SUCCESS


def _command(invocation: Invocation, request: PlanRequest, folder: PlanFolder, run: Run) -> CellCommand:
    """Returns the command that executes a run with this command's configuration, cache and manifests."""
    manifests = [str(Path(each).absolute()) for each in invocation.flags.get("manifests", ())]
    more = tuple(word for each in manifests for word in ("--manifests", each))
    cache, within = invocation.cache_directory.absolute(), folder.run(run)
    environment = {"AGENT_CACHE_DIR": str(cache), **within.variables}
    shared = [str(within.data), *([str(cache)] if cache.exists() else []), *manifests]
    if path := invocation.flags.get("config") or os.environ.get("AGENT_CONFIG"):
        environment["AGENT_CONFIG"] = str(Path(path).absolute())
        shared.append(environment["AGENT_CONFIG"])
    here = request.plan.slurm is None
    name = f"inferometer-{run.key}-{os.getpid()}"
    found = command_of(run.cell, request.plan, variables=environment, name=name, shared=shared, here=here)
    return replace(found, argv=(*found.argv, *more))


def _with_evaluations(
    store: EvaluationStore, folder: PlanFolder, run: Run, result: Result, served: AgentsPlace | None
) -> Result:
    """Returns the result with the evaluations of the run, which fails without any, or with too few agents."""
    if not result.start_ns:  # its command did not end: what is there is of an earlier attempt
        return result
    found = _imported(folder.run(run).data, store)
    result = replace(result, evaluations=tuple(found))
    if result.ended is not Ended.COMPLETE:
        return result
    if not found:
        return replace(result, ended=Ended.FAILED, reason="it published no evaluation")
    wanted = math.prod(tasks_of(run.cell))
    if served is not None and (few := [each for each in found.values() if len(each.split(", ")) < wanted]):
        reason = f"{wanted} agents should have shared its inputs, but only {few[0]} answered"
        return replace(result, ended=Ended.FAILED, reason=reason)
    return result


def _imported(data: Path, store: EvaluationStore) -> dict[str, str]:
    """Copies the evaluations of a run, with predictions and spans, and returns the agents of each, by id.

    Evaluations that already exist stay unchanged, so that the call can be repeated after an interruption.

    Raises:
        StoreError: One of the two databases cannot be read or written.
    """
    found = list(data.glob("*.db"))
    if not found:
        return {}
    with closing(open_store(None, found[0].stem, data)) as source:
        evaluations = list(source.find(EvaluationFilter(limit=None, include_interrupted=True)))[::-1]
        for evaluation in evaluations:
            measurement = evaluation.measurement
            kind = kind_of(evaluation)
            if kind.has_predictions:
                predictions = tuple(source.predictions(evaluation.id))
                measurement = kind.with_predictions(measurement, predictions)
            spans = tuple(source.spans(evaluation.id))
            store.save(replace(evaluation, measurement=measurement, spans=spans))
    return {each.id: each.system.agent for each in evaluations}


def _say_progress(progress: RunEvent) -> None:
    run, result = progress.run, progress.result
    what = f"{progress.done}/{progress.total}"
    if progress.lost:
        say(f"lost        {run.key}  {run.cell.name}: {progress.lost}; it runs again")
    elif result is None:
        say(f"runs        {run.key}  {run.cell.name}{agent_text(progress.job)}")
    else:
        reason = f": {result.reason}" if result.reason else ""
        say(f"{result.ended.value:<11} {run.key}  {what}{reason}")
