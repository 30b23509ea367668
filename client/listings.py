"""``agent info models|frameworks|datasets|system``: what there is."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import click

from client.command import Command, boolean
from client.invocation import current_invocation
from client.output import output_options, print_rows
from evaluators.reports.base import Column
from manifests.errors import UnknownModelError

if TYPE_CHECKING:
    from agent.model_listing import ListedModel


@click.command(cls=Command)
@click.option("--model_name", metavar="NAME", help="Only this model.")
@click.option("--framework_name", metavar="NAME", help="Only models for this framework.")
@boolean("--include_hidden", help="List hidden models, too.")
@output_options
def models(model_name: str | None, framework_name: str | None, include_hidden: bool, **output: Any) -> None:
    """List the models, whether an installed framework can run them, and where their weights are.

    ONNX Runtime gets a model that is built in code from PyTorch, so that it takes both to run one.

    \b
    files: none needed   built in code, and no weights are published: for --weights=random
           local         beside the manifest
           cached        downloaded
           to download   got when the model is opened, or by: agent download models
           missing       neither on this machine nor at a URL that can be downloaded
    """  # noqa: D301 - the backspace tells click to leave the lines as they are
    from agent.model_listing import list_models

    invocation = current_invocation()
    cache = invocation.cache_directory
    listing = list_models(invocation.manifest_directories, cache)
    for problem in listing.problems:
        click.echo(f"warning: left out {problem}", err=True)
    only = invocation.registry.find(framework_name).name.casefold() if framework_name else None
    wanted = model_name.strip().casefold() if model_name is not None else None
    if wanted is not None and all(model.name.casefold() != wanted for model in listing.models):
        raise UnknownModelError.of(model_name or "", (m.name for m in listing.models if not m.hidden))
    versions = {name.casefold(): version for name, version in invocation.registry.versions.items()}
    rows = [
        {
            "name": model.name,
            "version": model.version,
            "framework_name": model.framework,
            "framework_constraint": model.constraint,
            "runnable": _runnable(model, versions),
            "files": model.availability(cache).value,
            "dataset": model.dataset,
            "description": model.description,
        }
        for model in listing.models
        if only in {None, model.framework.casefold()}
        and wanted in {None, model.name.casefold()}
        and (include_hidden or not model.hidden)
    ]
    columns = (
        Column("name", "name"),
        Column("version", "version"),
        Column("framework_name", "framework"),
        Column("framework_constraint", "needs"),
        Column("runnable", "runnable"),
        Column("files", "files"),
        Column("dataset", "dataset"),
        Column("description", "description"),
    )
    print_rows(columns, rows, **output)


def _runnable(model: ListedModel, versions: Mapping[str, str | None]) -> bool:
    """Whether what is installed can run a model; ONNX Runtime gets one in code from PyTorch, by export."""
    framework = model.framework.casefold()
    exported = model.in_code and framework == "onnxruntime"
    return model.runs_in(versions.get(framework)) and not (exported and versions.get("pytorch") is None)


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
    import dataclasses

    from agent.environment import read_environment

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
