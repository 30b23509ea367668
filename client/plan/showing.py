"""What ``agent plan expand`` and ``agent plan status`` print."""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Iterator

from inferometer.client.cli.invocation import Invocation
from inferometer.client.plan.asking import PlanRequest
from inferometer.client.plan.running import folder_of, plan_text
from inferometer.evaluators.plans.running.journal import RunHistory, read_history
from inferometer.evaluators.plans.running.results import Ended


def expanded_lines(request: PlanRequest) -> Iterator[str]:
    """Yields each cell as its id and its command line."""
    for cell in request.cells:
        yield f"{cell.id}  {shlex.join(('agent', *cell.argv))}"


def status_lines(invocation: Invocation, request: PlanRequest, everything: bool) -> Iterator[str]:
    """Yields how many runs ended in which way, and those that are not complete with their reasons."""
    folder = folder_of(invocation, request)
    history = read_history(folder.path)
    states = [(run, history.get(run.key, RunHistory())) for run in request.runs]
    yield plan_text(request, folder)
    yield f"runs        {counts_text([each for _, each in states])}"
    for run, each in states:
        losses = "".join(f"; lost before: {reason}" for reason in each.losses)
        if each.job:
            yield f"in work     {run.key}  {run.cell.name}  (job {each.job}){losses}"
        elif each.result is None or (each.result.ended is Ended.COMPLETE and not everything and not losses):
            continue
        else:
            reason = f": {each.result.reason}" if each.result.reason else ""
            yield f"{each.result.ended.value:<11} {run.key}  {run.cell.name}{reason}{losses}"


def counts_text(states: list[RunHistory]) -> str:
    """Returns how many runs ended in which way: ``24: 12 complete, 1 failed, 11 waiting``."""
    counts = Counter(_state(each) for each in states)
    order = [*(each.value for each in Ended), "in work", "waiting"]
    return f"{len(states)}: " + ", ".join(f"{counts[name]} {name}" for name in order if counts[name])


def _state(history: RunHistory) -> str:
    if history.job:
        return "in work"
    return "waiting" if history.result is None else history.result.ended.value
