"""``agent info models|frameworks|datasets|system``: what there is."""

from __future__ import annotations

import dataclasses
from typing import Any

import click

from agent.environment import read_environment
from client.command import Command
from client.invocation import current_invocation
from client.output import output_options, print_rows
from evaluators.reports.base import Column


@click.command(cls=Command)
@click.option("--framework_name", metavar="NAME", help="Only models for this framework.")
@output_options
def models(framework_name: str | None, **output: Any) -> None:
    """List the models, and whether an installed framework can run them."""
    invocation = current_invocation()
    only = invocation.registry.find(framework_name).name.casefold() if framework_name else None
    versions = {name.casefold(): version for name, version in invocation.registry.versions.items()}
    rows = [
        {
            "name": model.name,
            "version": model.version,
            "framework_name": model.framework.name,
            "framework_constraint": model.framework.version,
            "runnable": model.runs_in(versions.get(model.framework.name.casefold())),
            "dataset": model.dataset,
            "description": model.description,
        }
        for model in invocation.catalog.models
        if only in {None, model.framework.name.casefold()}
    ]
    columns = (
        Column("name", "name"),
        Column("version", "version"),
        Column("framework_name", "framework"),
        Column("framework_constraint", "needs"),
        Column("runnable", "runnable"),
        Column("dataset", "dataset"),
        Column("description", "description"),
    )
    print_rows(columns, rows, **output)


@click.command(cls=Command)
@output_options
def frameworks(**output: Any) -> None:
    """List the frameworks: the installed version, or the command that installs it."""
    invocation = current_invocation()
    supported = {manifest.name.casefold(): manifest.version for manifest in invocation.catalog.frameworks}
    rows = [
        {
            "name": entry.name,
            "installed_version": entry.installed_version,
            "supported_versions": supported.get(entry.name.casefold()),
            "install": None if entry.installed_version else entry.install,
        }
        for entry in invocation.registry.entries
    ]
    columns = (
        Column("name", "name"),
        Column("installed_version", "installed"),
        Column("supported_versions", "supported"),
        Column("install", "install with"),
    )
    print_rows(columns, rows, **output)


@click.command(cls=Command)
@output_options
def datasets(**output: Any) -> None:
    """List the datasets."""
    rows = [
        {
            "name": d.name,
            "version": d.version,
            "category": d.category,
            "license": d.license,
            "description": d.description,
        }
        for d in current_invocation().catalog.datasets
    ]
    columns = tuple(Column(key, key) for key in ("name", "version", "category", "license", "description"))
    print_rows(columns, rows, **output)


@click.command(cls=Command)
@output_options
def system(**output: Any) -> None:
    """Show this machine and its software, as an evaluation records them."""
    environment = read_environment(current_invocation().registry.versions)
    rows = []
    for field in dataclasses.fields(environment):
        value = getattr(environment, field.name)
        if field.name == "gpus":
            value = "; ".join(f"{gpu.name}, {gpu.memory_bytes} bytes" for gpu in value) or "none"
        elif field.name in {"frameworks", "variables"}:
            value = ", ".join(f"{name} {version}" for name, version in value.items()) or "none"
        rows.append({"name": field.name, "value": "none" if value is None else value})
    print_rows((Column("name", "name"), Column("value", "value")), rows, **output)
