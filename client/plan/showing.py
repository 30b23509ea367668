"""The output of ``agent plan expand``, ``agent plan status`` and ``agent plan watch``."""

from __future__ import annotations

import shlex
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

import click

from inferometer.client.api.invocation import Invocation
from inferometer.client.cli.exit_codes import SUCCESS
from inferometer.client.cli.output import say
from inferometer.client.plan.asking import PlanRequest, folder_of
from inferometer.evaluators.plans.cells import Run
from inferometer.evaluators.plans.running.folder import PlanFolder
from inferometer.evaluators.plans.running.journal import (
    IN_WORK,
    WAITING,
    Ended,
    RunHistory,
    read_history,
    read_result,
)
from inferometer.evaluators.plans.running.places import AGENTS, SlurmPlace

_LOOK_S = 0.5
_NOT_DRIVEN = 1
_BYTES_PER_MIB = 1024**2


def plan_text(request: PlanRequest, folder: PlanFolder) -> str:
    """Returns a one-line description of a plan."""
    counts = f"{len(request.cells)} cells, {len(request.runs)} runs"
    return f"plan        {request.plan.name}: {counts}, in {folder.path}"


def expanded_lines(request: PlanRequest) -> Iterator[str]:
    """Yields each cell as its id and its command line."""
    for cell in request.cells:
        yield f"{cell.id}  {shlex.join(('agent', *cell.argv))}"


def status_lines(invocation: Invocation, request: PlanRequest, everything: bool) -> Iterator[str]:
    """Yields the number of runs in each state, and each incomplete run with its reason."""
    folder = folder_of(invocation, request)
    history = _history(folder, request)
    states = [(run, history[run.key]) for run in request.runs]
    yield plan_text(request, folder)
    yield f"runs        {counts_text([each for _, each in states])}"
    for run, each in states:
        fine = each.result is not None and each.result.ended is Ended.COMPLETE and not each.losses
        if (everything or not fine) and (line := _line(run, each)):
            yield line


def watch_plan(invocation: Invocation, request: PlanRequest) -> int:
    """Prints each state change of a run until all runs have a result, and returns the exit code.

    Cluster jobs continue without a driver: their results are shown even before they are in a journal.
    Returns 1 if runs are waiting and neither a driver nor a job is left to continue.
    """
    folder = folder_of(invocation, request)
    click.echo(plan_text(request, folder))
    shown: dict[str, str] = {}
    while True:
        is_driven = folder.is_driven  # first: what a driver did before it ended is in the journal then
        history = _history(folder, request)
        for run in request.runs:
            line = _line(run, history[run.key])
            if line and shown.get(run.key) != line:
                click.echo(line)
            shown[run.key] = line
        states = list(history.values())
        ended = all(each.result is not None and not each.job for each in states)
        goes_on = is_driven or any(each.job.startswith(f"{SlurmPlace.name}/") for each in states)
        if ended or not goes_on:
            click.echo(f"runs        {counts_text(states)}")
            if not ended:
                say(f"no driver runs the plan: agent plan resume {request.path} goes on")
            return SUCCESS if ended else _NOT_DRIVEN
        time.sleep(_LOOK_S)


def _history(folder: PlanFolder, request: PlanRequest) -> dict[str, RunHistory]:
    """Returns the history of each run, including results that no driver has collected yet."""
    history = read_history(folder.path)
    found = {run.key: history.get(run.key, RunHistory()) for run in request.runs}
    for run in request.runs:
        known = found[run.key]
        if known.job and (result := read_result(folder.run(run).result)) is not None:
            found[run.key] = replace(known, job="", result=result)
    return found


def _line(run: Run, history: RunHistory) -> str:
    """Returns the line about a run; empty if there is nothing to report."""
    losses = "".join(f"; before: {reason}" for reason in history.losses)
    on = agent_text(history.last_job)
    if history.job:
        return f"in work     {run.key}  {run.cell.name}  (job {history.job}){losses}"
    if history.result is None:
        return ""
    reason = f": {history.result.reason}" if history.result.reason else ""
    seen = f"  ({told})" if (told := _monitored(history.result.monitor or {})) else ""
    return f"{history.result.ended.value:<11} {run.key}  {run.cell.name}{on}{seen}{reason}{losses}"


def agent_text(job: str) -> str:
    """Returns the agent of a job as a suffix for the name of its run; empty for a job of another place."""
    place, _, where = job.partition("/")
    return f"  (agent {where.rpartition('/')[0]})" if place == AGENTS else ""


def _monitored(monitor: Mapping[str, Any]) -> str:
    """Summarizes a monitor's values: ``CPU 187 %, at most 512 MiB, GPU 0 93 %``; empty without values."""
    told = []
    if load := monitor.get("cpu_percent"):
        told.append(f"CPU {load['mean']:.0f} %")
    if memory := monitor.get("resident_bytes"):
        told.append(f"at most {memory['max'] / _BYTES_PER_MIB:,.0f} MiB")
    for number, gpu in enumerate(monitor.get("gpus", ())):
        if use := gpu.get("utilization_percent"):
            told.append(f"GPU {number} {use['mean']:.0f} %")
    return ", ".join(told)


def counts_text(states: list[RunHistory]) -> str:
    """Returns the number of runs in each state: ``24: 12 complete, 1 failed, 11 waiting``."""
    counts = Counter(each.state for each in states)
    order = [*(each.value for each in Ended), IN_WORK, WAITING]
    return f"{len(states)}: " + ", ".join(f"{counts[name]} {name}" for name in order if counts[name])
