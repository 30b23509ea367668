"""Turns the values of options into the parts of requests that all jobs share."""

from __future__ import annotations

from collections.abc import MutableMapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import click
from click.core import ParameterSource

from inferometer.agent.inference.given_models import GivenModel, Wanted, model_of_file
from inferometer.client.api.discovery import choose_agents
from inferometer.client.api.invocation import Invocation
from inferometer.evaluators.datasets.opening import DatasetChoice
from inferometer.evaluators.jobs.job import SystemRequest
from inferometer.evaluators.jobs.options import values_of
from inferometer.evaluators.jobs.request import DatasetOptions, SystemOptions
from inferometer.manifests.errors import ConfigurationError, one_line, printable

Values = MutableMapping[str, Any]
"""The values of a command's options by name. Each function takes out those that it reads."""


def take_dataset(values: Values) -> DatasetOptions:
    """Reads the options that choose a dataset."""
    values["sample_ids"] = read_ids(values.get("sample_ids"))
    return DatasetOptions(**values_of(DatasetOptions, values))


def read_ids(given: str | None) -> tuple[str, ...] | None:
    """Reads ids from a file with one id per line, or from a list separated by commas.

    Raises:
        ConfigurationError: The file cannot be read, or there are no ids.
    """
    if given is None:
        return None
    path = Path(given)
    try:
        is_file = path.is_file()
        written = path.read_text(encoding="utf-8-sig").splitlines() if is_file else given.split(",")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigurationError(
            f"sample_ids {printable(given)}: cannot be read: {one_line(error)}"
        ) from error
    found = tuple(dict.fromkeys(each.strip() for each in written if each.strip()))
    if not found:
        raise ConfigurationError(
            f"sample_ids {printable(given)}: holds no ids; give a list, or a file of them"
        )
    return found


def read_given(options: SystemOptions, invocation: Invocation, dataset: DatasetChoice) -> GivenModel | None:
    """Returns a model without a manifest, and reports what was detected and what was assumed.

    Args:
        options: The options of the model.
        invocation: Has the frameworks.
        dataset: The inputs, of which images need preprocessing.

    Returns:
        The model; None if it is one with a manifest.

    Raises:
        ConfigurationError: Other options exclude it, or its input cannot be described.
        ArtifactError: The file does not exist, or is not a readable model.
    """
    path, shape = options.model_path, options.input_shape
    if path is None:
        if shape is not None:
            raise ConfigurationError("input_shape is for a model_path; a manifest has dimensions")
        return None
    if options.model_version is not None:
        raise ConfigurationError("model_version chooses a manifest, and model_path needs none; leave it out")
    if options.agent_address or invocation.configuration.agent:
        raise ConfigurationError(
            "model_path is for this process, and an agent is named; it runs the models of its manifests, "
            "which agent manifest init writes"
        )
    wanted = Wanted(
        shape=shape,
        images=dataset.is_named,
        tensors=not dataset.holds_images,
        name=options.model_name if _on_command_line("model_name") else None,
    )
    given = model_of_file(path, invocation.registry, wanted)
    framework, named = given.manifest.framework.name, options.framework_name
    if named and _on_command_line("framework_name") and named.casefold() != framework.casefold():
        raise ConfigurationError(f"{path}: is for {framework}; found framework_name {named}")
    found, *rest = given.notes
    assumed = given.manifest.inputs[0].type == "image"
    hint = "; agent manifest init writes a manifest to correct it" if assumed else ""
    for note in (found + hint, *rest):
        invocation.notify(printable(note))
    return given


def _on_command_line(name: str) -> bool:
    """Returns whether an option is set on the command line, not only in the environment or by default."""
    context = click.get_current_context(silent=True)
    return context is not None and context.get_parameter_source(name) is ParameterSource.COMMANDLINE


def take_system(
    values: Values,
    invocation: Invocation,
    dataset: DatasetChoice,
    kind: type[SystemOptions] = SystemOptions,
) -> SystemRequest:
    """Reads the options that choose a model and where it runs.

    Args:
        values: The values.
        invocation: Has the configuration.
        dataset: The inputs of the model.
        kind: The class of the options.

    Raises:
        ConfigurationError: A value is invalid, or no agent fits.
        ArtifactError: There is no such file of a model, or it cannot be read.
        AgentError: No agent that fits is alive.
        StoreError: The database of agents cannot be reached.
    """
    options = kind(**values_of(kind, values))
    request = options.request(read_given(options, invocation, dataset))
    return replace(request, agents=choose_agents(invocation, options.agent_address, request))
