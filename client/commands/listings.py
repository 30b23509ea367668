"""``agent info models|frameworks|datasets|system``: listings of what is available."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import click

from inferometer.client.cli.command import Command, boolean, option
from inferometer.client.cli.invocation import current_invocation
from inferometer.client.cli.output import output_options, print_rows
from inferometer.evaluators.reports.base import Column
from inferometer.manifests.errors import UnknownModelError

if TYPE_CHECKING:
    from inferometer.agent.inference.model_listing import ListedModel


@click.command(cls=Command)
@option("--model_name", metavar="NAME", help="Only this model.")
@option("--framework_name", metavar="NAME", help="Only models for this framework.")
@boolean("--include_hidden", help="Also list hidden models.")
@output_options
def models(model_name: str | None, framework_name: str | None, include_hidden: bool, **output: Any) -> None:
    """List the models, whether an installed framework can run them, and where their weights are.

    ONNX Runtime runs models that are built in code by exporting them from PyTorch, which must be installed.

    \b
    files: none needed   built in code, without published weights: use --weights=random
           local         next to the manifest
           cached        downloaded
           to download   downloaded when the model is opened, or by: agent download models
           missing       neither on this machine nor at a URL
    """  # noqa: D301 - the backspace tells click not to wrap the lines
    from inferometer.agent.inference.model_listing import list_models

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
    """Whether an installed framework can run a model; PyTorch exports models in code for ONNX Runtime."""
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
    keys = ("name", "version", "category", "license", "description")
    rows = [{key: getattr(dataset, key) for key in keys} for dataset in current_invocation().catalog.datasets]
    print_rows(tuple(Column(key, key) for key in keys), rows, **output)


@click.command(cls=Command)
@output_options
def system(**output: Any) -> None:
    """Show this machine and its software, as an evaluation records them."""
    import dataclasses

    from inferometer.agent.hardware.environment import read_environment

    environment = read_environment(current_invocation().registry.versions)
    rows = []
    for field in dataclasses.fields(environment):
        value = getattr(environment, field.name)
        if field.name == "gpus":
            value = "; ".join(f"{gpu.name}, {gpu.memory_bytes} bytes" for gpu in value) or "none"
        elif isinstance(value, Mapping):
            value = ", ".join(f"{name} {version}" for name, version in value.items()) or "none"
        rows.append({"name": field.name, "value": "none" if value is None else value})
    print_rows((Column("name", "name"), Column("value", "value")), rows, **output)
