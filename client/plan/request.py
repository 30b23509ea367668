"""The plan of an ``agent plan`` command, from its options or converted from DLBS, and the state of its runs.

A profile in the configuration file applies to the jobs of a plan. This module imports no measuring code.
"""

from __future__ import annotations

import os
import re
import shlex
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import click
import yaml

from inferometer.client.api.clusters import options_of, profile_of, setup_of
from inferometer.client.api.invocation import Invocation
from inferometer.client.cli.output import NO_DRIVER, SUCCESS, say
from inferometer.evaluators.plans.cells import Cell, Run, cells_of, runs_of
from inferometer.evaluators.plans.dlbs import import_dlbs
from inferometer.evaluators.plans.dlbs_lines import (
    ACTIONS,
    PLANNED,
    PROGRAM,
    CommandLine,
    command_line,
    command_lines,
)
from inferometer.evaluators.plans.dlbs_names import STATUS, GivenNames
from inferometer.evaluators.plans.plan import Plan, items_of, plan_of, read_plan
from inferometer.evaluators.plans.running.folder import (
    AGENTS_PLACE,
    PLANS,
    SLURM_PLACE,
    STATES,
    Ended,
    PlanFolder,
    RunHistory,
    read_history,
    read_result,
)
from inferometer.manifests.errors import ConfigurationError, OutputError, one_line
from inferometer.manifests.loader import parse_yaml


@dataclass(frozen=True)
class PlanRequest:
    """A plan with the replacements from the command line applied."""

    plan: Plan
    path: Path

    @cached_property
    def cells(self) -> tuple[Cell, ...]:
        """The cells of the plan without the disabled ones; of equal cells, one that runs is kept."""
        found: dict[str, Cell] = {}
        for each in cells_of(self.plan, environment=os.environ, distinct=False):
            is_new = each.id not in found or found[each.id].is_simulated
            if is_new and each.parameters.get(STATUS) != "disabled":
                found[each.id] = each
        return tuple(found.values())

    @cached_property
    def running(self) -> tuple[Cell, ...]:
        """The cells that run."""
        return tuple(each for each in self.cells if not each.is_simulated)

    @cached_property
    def runs(self) -> tuple[Run, ...]:
        """All runs of the plan, in order."""
        return tuple(runs_of(self.plan, self.running))


def folder_of(invocation: Invocation, request: PlanRequest) -> PlanFolder:
    """Returns the folder of a plan in the data directory."""
    return PlanFolder(invocation.data_directory.absolute() / PLANS / request.plan.name)


def read_request(
    file: Path, parameters: Iterable[str], variables: Iterable[str], extensions: Iterable[str], **_: object
) -> PlanRequest:
    """Reads a plan, and applies the replacements from the options.

    Raises:
        ConfigurationError: The file or an option is not valid.
    """
    plan = read_plan(file)
    content = plan.model_dump(exclude_unset=True)
    replaced = dict(_assigned(text, "-P") for text in parameters)
    varied = {name: items_of(values) for name, values in (_assigned(text, "-V") for text in variables)}
    added = [_parsed(text, "-E") for text in extensions]
    if not (replaced or varied or added):
        return PlanRequest(plan, file)
    named = GivenNames(plan, (*replaced, *varied), added)
    replaced, varied, added = named.renamed(replaced), named.renamed(varied), named.extensions()
    content["parameters"] = {**content.get("parameters", {}), **_kept(content, replaced)}
    content["variables"] = {
        name: values
        for name, values in {**content.get("variables", {}), **varied}.items()
        if name not in replaced or name in varied
    }
    content["extensions"] = [*content.get("extensions", ()), *added]
    return PlanRequest(plan_of(named.completed(content), str(file)), file)


def _kept(content: Mapping[str, Any], replaced: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the replacement values together with the types and domains that the plan declares for them."""
    known = content.get("parameters", {})
    return {
        name: {**known[name], "val": value} if isinstance(known.get(name), dict) else value
        for name, value in replaced.items()
    }


def _assigned(text: str, option: str) -> tuple[str, Any]:
    name, equals, value = text.partition("=")
    if not equals or not name:
        raise ConfigurationError(f'{option} "{text}" is not NAME=VALUE, such as batch_size=4')
    return name, _parsed(value, f"{option} {name}")


def _parsed(text: str, what: str) -> Any:
    try:
        return parse_yaml(text)
    except ValueError as error:
        raise ConfigurationError(f"{what}: {error}") from error


def on_cluster(invocation: Invocation, request: PlanRequest) -> PlanRequest:
    """Returns a plan with the profile of its cluster; the plan's own options and lines take precedence.

    Raises:
        ConfigurationError: The configuration has no such cluster.
    """
    slurm = request.plan.slurm
    if slurm is None or not slurm.cluster:
        return request
    profile = profile_of(slurm.cluster, invocation.configuration.clusters)
    filled = {
        "cluster": "",
        "arguments": [*options_of(profile), *slurm.arguments],
        "setup": [*setup_of(profile), *slurm.setup],
        "python": slurm.python or str(profile.virtualenv or ""),
    }
    plan = request.plan.model_copy(update={"slurm": slurm.model_copy(update=filled)})
    return replace(request, plan=plan)


_MOST_BYTES = 16 * 1024 * 1024


def write_imported(words: Sequence[str], output: Path | None) -> None:
    """Writes the plan of each command line or configuration of DLBS, and reports what has no equivalent.

    Args:
        words: The file of a configuration; the file of a script and its arguments; or a command line.
        output: The file of the plan; several plans are numbered. None prints them.

    Raises:
        ConfigurationError: The words are none of these, or no plan corresponds to them.
        OutputError: A plan cannot be written, or its file exists.
    """
    plans: list[dict[str, Any]] = []
    several, found = _dlbs_lines(words)
    for name, folder, line in found:
        try:
            if isinstance(line, ValueError):
                raise ConfigurationError(str(line))
            plans.append(_imported(line, name, folder))
        except ConfigurationError as error:
            if not several:
                raise
            say(f"left out    {name}: {one_line(error)}")
    if not plans:
        raise ConfigurationError(
            f"{words[0]}: none of its {len(found)} command lines of {PROGRAM} can be imported"
        )
    texts = [yaml.safe_dump(each, sort_keys=False, allow_unicode=True, width=100) for each in plans]
    if output is None:
        click.echo("---\n".join(texts), nl=False)
        return
    numbers = [f"-{each}" for each in range(1, len(texts) + 1)] if len(texts) > 1 else [""]
    for number, text in zip(numbers, texts, strict=True):
        path = output.with_stem(output.stem + number)
        try:
            with path.open("x", encoding="utf-8") as file:
                file.write(text)
        except OSError as error:
            raise OutputError(f"{path}: cannot be written: {error.strerror or error}") from error


def _dlbs_lines(words: Sequence[str]) -> tuple[bool, list[tuple[str, Path, CommandLine | ValueError]]]:
    """Returns whether the words name a script, and each command line with the plan's name and its folder."""
    program = [place for place, word in enumerate(words[:2], 1) if word.endswith(PROGRAM)]
    if program or words[0] in ACTIONS:
        try:
            line = command_line(words[program[0] if program else 0 :])
        except ValueError as error:
            raise ConfigurationError(f"{PROGRAM}: {one_line(error)}") from error
        return False, [(_plan_name(line.configuration or "dlbs"), Path(), line)]
    path, text = Path(words[0]), _read(Path(words[0]))
    name = _plan_name(words[0])
    if path.suffix == ".json" or text.lstrip().startswith("{"):
        return False, [(name, Path(), CommandLine(PLANNED[0], words[0]))]
    lines = list(command_lines(text, words[1:], os.environ))
    if not lines:
        raise ConfigurationError(f"{path}: is neither a configuration nor a script that calls {PROGRAM}")
    return True, [(f"{name}-{place}", path.parent, line) for place, line in enumerate(lines, 1)]


def _plan_name(path: str) -> str:
    return re.sub(r"[^A-Za-z0-9._-]+", "-", Path(path).stem).strip("-._")[:60] or "dlbs"


def _imported(line: CommandLine, name: str, folder: Path) -> dict[str, Any]:
    """Returns the plan of a command line, and reports what it lacks."""
    if line.action not in PLANNED:
        raise ConfigurationError(f"{line.action} makes no plan; the actions that do: {', '.join(PLANNED)}")
    text = line.applied(_read(folder / line.configuration) if line.configuration else '{"parameters": {}}')
    found = import_dlbs(text, name, os.environ, defaults=line.defaults)
    say(f"imported    {name}: experiments in DLBS: {found.experiments}, cells: {found.cells}")
    for each in found.without_equal:
        say(f"no equal    {each}")
    return found.plan


def _read(path: Path) -> str:
    try:
        if path.stat().st_size > _MOST_BYTES:
            raise ConfigurationError(f"{path}: larger than {_MOST_BYTES} bytes, the limit of a configuration")
        return path.read_text(encoding="utf-8")
    except OSError as error:
        raise ConfigurationError(f"{path}: cannot be read: {error.strerror or error}") from error
    except UnicodeDecodeError as error:
        raise ConfigurationError(f"{path}: is not text in UTF-8") from error


_LOOK_S = 0.5
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
    Returns 1 if runs have no result and neither a driver nor a cluster job is left to continue them.
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
        goes_on = is_driven or any(each.job.startswith(f"{SLURM_PLACE}/") for each in states)
        if ended or not goes_on:
            click.echo(f"runs        {counts_text(states)}")
            if not ended:
                say(f"no driver runs the plan: agent plan resume {request.path} continues it")
            return SUCCESS if ended else NO_DRIVER
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
    """Returns the agent of a job as a suffix for the name of its run; empty if the job is not on an agent."""
    place, _, where = job.partition("/")
    return f"  (agent {where.rpartition('/')[0]})" if place == AGENTS_PLACE else ""


def _monitored(monitor: Mapping[str, Any]) -> str:
    """Formats monitored values: ``CPU 187 %, at most 512 MiB, GPU 0 93 %``; empty if there are none."""
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
    """Returns the number of runs in each state, as in ``24: 12 complete, 1 failed, 11 waiting``."""
    counts = Counter(each.state for each in states)
    return f"{len(states)}: " + ", ".join(f"{counts[name]} {name}" for name in STATES if counts[name])
