"""Runs a plan for the command line: progress, the evaluations of each run, and the exit code."""

from __future__ import annotations

import os
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from inferometer.client.api.invocation import Invocation
from inferometer.client.api.stopping import StopRequest
from inferometer.client.cli.exit_codes import INTERRUPTED, SUCCESS
from inferometer.client.cli.output import say
from inferometer.client.plan.agents import PlanAgents
from inferometer.client.plan.asking import PLANS, PlanRequest, folder_of
from inferometer.client.plan.showing import agent_text, counts_text, plan_text
from inferometer.evaluators.plans.cell_command import CellCommand, command_of
from inferometer.evaluators.plans.cells import Run
from inferometer.evaluators.plans.plan import Rerun
from inferometer.evaluators.plans.running.driver import Driver, PlanProgress, imported
from inferometer.evaluators.plans.running.folder import PlanFolder
from inferometer.evaluators.plans.running.journal import Ended, Result
from inferometer.evaluators.plans.running.places import Claim, LocalPlace, SlurmPlace

if TYPE_CHECKING:
    from inferometer.evaluators.store.evaluation_store import EvaluationStore

_FAILED_RUNS = 1
_LOCKS = "machines"


def run_plan(
    invocation: Invocation, request: PlanRequest, rerun: str | None, agents: PlanAgents | None = None
) -> int:
    """Runs the remaining runs of a plan, and returns the exit code. All output goes to stderr.

    Args:
        invocation: Has the folders, the database and the secret.
        request: The plan.
        rerun: What runs again; None leaves it to the plan.
        agents: The served agents that run it, if any do.

    Raises:
        InferometerError: Another driver runs it, or the database or the folder cannot be written.
    """
    folder, locks = folder_of(invocation, request), invocation.data_directory / PLANS / _LOCKS
    locks.mkdir(parents=True, exist_ok=True)
    stop = StopRequest()
    served = agents.place(invocation) if agents is not None else None
    here = LocalPlace() if request.plan.slurm is None else SlurmPlace(request.plan.slurm)
    with closing(invocation.open_store()) as store, stop:
        say(plan_text(request, folder))
        stop.begin("stopping after the run in work")
        found = Driver(
            plan=request.plan,
            runs=request.runs,
            folder=folder,
            place=served or here,
            command=lambda run: _command(invocation, request, folder, run),
            locks=str(locks),
            on_begin=lambda: folder.keep(request.plan, request.cells),
            claim=served.claim if served is not None else lambda _: Claim(),
            on_progress=_say_progress,
            on_result=lambda run, result: _with_evaluations(store, folder, run, result),
            stop_requested=stop,
        ).drive(Rerun(rerun) if rerun else request.plan.rerun)
        stopped = stop.end()
    states = [found[run.key] for run in request.runs if run.key in found]
    say(f"runs        {counts_text(states)}")
    if stopped:
        say(f"stopped: agent plan resume {request.path} goes on")
        return INTERRUPTED
    bad = any(each.result is not None and each.result.ended is not Ended.COMPLETE for each in states)
    return _FAILED_RUNS if bad else SUCCESS


def _command(invocation: Invocation, request: PlanRequest, folder: PlanFolder, run: Run) -> CellCommand:
    """Returns the command that starts a run, with this command's configuration, cache and manifests."""
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


def _with_evaluations(store: EvaluationStore, folder: PlanFolder, run: Run, result: Result) -> Result:
    """Returns the result with the evaluations that the run published; without any output, the run failed."""
    if not result.start_ns:  # its command did not end: what is there is of an earlier attempt
        return result
    result = replace(result, evaluations=imported(folder.run(run).data, store))
    if result.ended is Ended.COMPLETE and not result.evaluations:
        return replace(result, ended=Ended.FAILED, reason="it published no evaluation")
    return result


def _say_progress(progress: PlanProgress) -> None:
    run, result = progress.run, progress.result
    what = f"{progress.done}/{progress.total}"
    if progress.lost:
        say(f"lost        {run.key}  {run.cell.name}: {progress.lost}; it runs again")
    elif result is None:
        say(f"runs        {run.key}  {run.cell.name}{agent_text(progress.job)}")
    else:
        reason = f": {result.reason}" if result.reason else ""
        say(f"{result.ended.value:<11} {run.key}  {what}{reason}")
