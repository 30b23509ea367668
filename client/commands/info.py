"""``agent info``: shows evaluations, agents, models, frameworks, datasets and this machine.

The listings of models, frameworks, datasets and the system are here.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

import click

from inferometer.client.api.invocation import Invocation
from inferometer.client.cli.command import Command, Group, boolean, current_invocation, option
from inferometer.client.cli.output import output_options, print_rows
from inferometer.evaluators.reports.base import Column, Row, row_of
from inferometer.manifests.errors import ArtifactError, ConfigurationError, UnknownModelError

if TYPE_CHECKING:
    from inferometer.agent.inference.model_listing import ListedModel


_HERE = "inferometer.client.commands"


@click.group(
    cls=Group,
    lazy={
        "agents": (f"{_HERE}.agents:agents", "List the served agents that are alive."),
        "datasets": (f"{_HERE}.info:datasets", "List the datasets."),
        "evaluation": (f"{_HERE}.evaluation:evaluation", "Reports on published evaluations."),
        "evaluations": (
            f"{_HERE}.evaluation:evaluations",
            "List the evaluations, the newest first, with their verdicts.",
        ),
        "frameworks": (f"{_HERE}.info:frameworks", "List the frameworks, installed or not."),
        "models": (f"{_HERE}.info:models", "List the models, and whether they can be run."),
        "system": (f"{_HERE}.info:system", "Show this machine and its software."),
    },
)
def info() -> None:
    """Reports on evaluations, agents, models, frameworks, datasets and this machine."""


_MODEL_COLUMNS = (
    Column("name", "name", value="name"),
    Column("version", "version", value="version"),
    Column("framework_name", "framework", value="framework"),
    Column("runnable", "runnable"),
    Column("files", "files"),
    Column("obstacle", "obstacle", wraps=True),
    Column("framework_constraint", "needs", detail=1, value="constraint"),
    Column("dataset", "dataset", detail=2, value="dataset"),
    Column("description", "description", detail=2, least=40, wraps=True, value="description"),
)


@click.command(cls=Command)
@option("--model_name", "--name", metavar="NAME", help="Only this model.")
@option("--framework_name", metavar="NAME", help="Only models for this framework.")
@boolean("--runnable", default=None, help="Only models that can run here; false for the others.")
@boolean("--include_hidden", help="Also list hidden models.")
@output_options
def models(
    model_name: str | None,
    framework_name: str | None,
    runnable: bool | None,
    include_hidden: bool,
    **output: Any,
) -> None:
    """List the models, whether they can run here and why not, and where their weights are.

    ONNX Runtime runs models that are built in code by exporting them from PyTorch, which must be installed.

    \b
    files: none needed   built in code, without published weights: use --weights=random
           local         next to the manifest
           cached        downloaded
           to download   downloaded when the model is opened, or by: agent download models
           missing       neither on this machine nor at a URL
    """  # noqa: D301 - the backspace tells click not to wrap the lines
    invocation = current_invocation()
    listing = invocation.listing
    for problem in listing.problems:
        click.echo(f"warning: left out {problem}", err=True)
    only = invocation.registry.find(framework_name).name.casefold() if framework_name else None
    wanted = model_name.strip().casefold() if model_name is not None else None
    if wanted is not None and all(model.name.casefold() != wanted for model in listing.models):
        raise UnknownModelError.of(model_name or "", (m.name for m in listing.models if not m.hidden))
    installed = {name.casefold(): version for name, version in invocation.registry.versions.items()}
    rows = [
        _model_row(model, invocation, installed)
        for model in listing.models
        if only in {None, model.framework.casefold()}
        and wanted in {None, model.name.casefold()}
        and (include_hidden or not model.hidden)
    ]
    print_rows(_MODEL_COLUMNS, [row for row in rows if runnable in {None, row["runnable"]}], **output)


def _model_row(model: ListedModel, invocation: Invocation, installed: Mapping[str, str | None]) -> Row:
    obstacle = _obstacle(model, invocation, installed)
    return {
        **row_of(_MODEL_COLUMNS, model),
        "runnable": not obstacle,
        "files": model.availability(invocation.cache_directory).value,
        "obstacle": obstacle or None,
    }


def _obstacle(model: ListedModel, invocation: Invocation, installed: Mapping[str, str | None]) -> str:
    """Returns the reason why a model cannot run here; empty if it can, even if only with random weights.

    ``installed`` has the version of each framework by its name in lower case; None if it is not installed.
    """
    version = installed.get(model.framework.casefold())
    if version is None:
        return f"{model.framework} is not installed"
    if not model.runs_in(version):
        return f"needs {model.framework} {model.constraint}; installed is {version}"
    if model.problem:
        return model.problem
    if model.is_missing(invocation.cache_directory):
        return "its files are missing"
    if model.architecture is None:
        return ""
    return _obstacle_of_code(model.architecture, model, invocation, installed)


def _obstacle_of_code(
    architecture: str, model: ListedModel, invocation: Invocation, installed: Mapping[str, str | None]
) -> str:
    """Returns the reason why an architecture cannot run here; for ONNX Runtime, PyTorch has to export it."""
    from inferometer.agent.architectures.sources import is_built_in, missing_package

    if model.framework.casefold() == "onnxruntime":
        if installed.get("pytorch") is None:
            return "needs PyTorch, which exports it"
        if find_spec("onnx") is None:
            return "needs the package onnx, with which PyTorch exports it"
    if package := missing_package(architecture):
        return f"needs the package {package}"
    if ":" not in architecture and not is_built_in(architecture):  # one from a user's file, or an unknown one
        try:
            invocation.architectures.find(architecture, model.framework)
        except (ArtifactError, ConfigurationError) as error:
            return str(error)
    return ""


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
        Column("install", "install with", wraps=True),
    )
    print_rows(columns, rows, **output)


@click.command(cls=Command)
@output_options
def datasets(**output: Any) -> None:
    """List the datasets."""
    columns = (
        Column("name", "name"),
        Column("version", "version"),
        Column("category", "category"),
        Column("license", "license", detail=1),
        Column("description", "description", least=30, wraps=True),
    )
    rows = [
        {column.key: getattr(dataset, column.key) for column in columns}
        for dataset in current_invocation().catalog.datasets
    ]
    print_rows(columns, rows, **output)


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
    print_rows((Column("name", "name"), Column("value", "value", wraps=True)), rows, **output)
