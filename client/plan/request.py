"""The request of ``agent plan``: from its options, with a cluster's profile, or converted from DLBS.

``import-dlbs`` converts a DLBS configuration to a plan. A profile of the configuration file applies to
the jobs of a plan.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import click
import yaml

from inferometer.client.api.clusters import options_of, profile_of, setup_of
from inferometer.client.api.invocation import Invocation
from inferometer.client.cli.output import say
from inferometer.evaluators.plans.cells import Cell, Run, cells_of, runs_of
from inferometer.evaluators.plans.dlbs import import_dlbs
from inferometer.evaluators.plans.dlbs_names import GivenNames
from inferometer.evaluators.plans.plan import Plan, items_of, plan_of, read_plan
from inferometer.evaluators.plans.running.folder import PLANS, PlanFolder
from inferometer.manifests.errors import ConfigurationError, OutputError
from inferometer.manifests.loader import parse_yaml


@dataclass(frozen=True)
class PlanRequest:
    """A plan with the replacements from the command line.

    Attributes:
        plan: The plan.
        path: Its file.
    """

    plan: Plan
    path: Path

    @cached_property
    def cells(self) -> tuple[Cell, ...]:
        """Its cells."""
        return cells_of(self.plan, environment=os.environ)

    @cached_property
    def runs(self) -> tuple[Run, ...]:
        """All runs, in their order."""
        return tuple(runs_of(self.plan, self.cells))


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
    return PlanRequest(plan_of(content, str(file)), file)


def _kept(content: Mapping[str, Any], replaced: Mapping[str, Any]) -> dict[str, Any]:
    """Returns replacement values, with the types and domains that the plan declares for them."""
    known = content.get("parameters", {})
    return {
        name: {**known[name], "val": value} if isinstance(known.get(name), dict) else value
        for name, value in replaced.items()
    }


def _assigned(text: str, option: str) -> tuple[str, Any]:
    name, equals, value = text.partition("=")
    if not equals or not name:
        raise ConfigurationError(f'{option} "{text}" is no NAME=VALUE, such as batch_size=4')
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


def write_imported(path: Path, output: Path | None) -> None:
    """Writes the plan that corresponds to a configuration, and reports what has no equivalent.

    Raises:
        ConfigurationError: The file cannot be read, or is not a DLBS configuration.
        OutputError: The plan cannot be written, or its file exists.
    """
    try:
        if path.stat().st_size > _MOST_BYTES:
            raise ConfigurationError(f"{path}: larger than {_MOST_BYTES} bytes, which no configuration is")
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise ConfigurationError(f"{path}: cannot be read: {error.strerror or error}") from error
    except UnicodeDecodeError as error:
        raise ConfigurationError(f"{path}: is no text in UTF-8") from error
    name = re.sub(r"[^A-Za-z0-9._-]+", "-", path.stem).strip("-._") or "dlbs"
    found = import_dlbs(text, name, os.environ)
    written = yaml.safe_dump(found.plan, sort_keys=False, allow_unicode=True, width=100)
    if output is None:
        click.echo(written, nl=False)
    else:
        try:
            with output.open("x", encoding="utf-8") as file:
                file.write(written)
        except OSError as error:
            raise OutputError(f"{output}: cannot be written: {error.strerror or error}") from error
    for line in found.without_equal:
        say(f"no equal    {line}")
