"""Turns the values of options into the parts of requests that all jobs share."""

from __future__ import annotations

from collections.abc import MutableMapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import click
from click.core import ParameterSource

from inferometer.agent.hardware.environment import CPU, Device, DeviceKind, Precision, Weights
from inferometer.agent.inference.given_models import GivenModel, Wanted, model_of_file
from inferometer.agent.inference.session import SessionOptions
from inferometer.client.api.discovery import choose_agents
from inferometer.client.api.invocation import Invocation
from inferometer.evaluators.jobs.job import DatasetChoice, SystemRequest
from inferometer.evaluators.jobs.options import ANSWER_TIMEOUT_S, SharedMemoryUse
from inferometer.manifests.errors import ConfigurationError, one_line, printable

Values = MutableMapping[str, Any]
"""The values of a command's options by name. Each function takes out those that it reads."""


def take_dataset(values: Values) -> DatasetChoice:
    """Reads the options that choose a dataset.

    Raises:
        ConfigurationError: Two datasets are named.
    """
    return DatasetChoice(
        sequence_length=values.pop("sequence_length", None),
        name=values.pop("dataset_name", None),
        path=values.pop("dataset_path", None),
        backend=values.pop("data_backend", None),
        category=values.pop("dataset_category", None),
        urls_path=values.pop("urls_file_path", None),
        duplicates=values.pop("duplicate_input", 1),
        sample_ids=_read_ids(values.pop("sample_ids", None)),
    )


def _read_ids(given: str | None) -> tuple[str, ...] | None:
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


def read_precision(name: str | None) -> Precision | None:
    """Returns the precision that ``dtype`` names; ``float`` means float32, and None stays None."""
    if name is None:
        return None
    return Precision.FLOAT32 if name.lower() == "float" else Precision(name.lower())


def take_given(values: Values, invocation: Invocation, dataset: DatasetChoice) -> GivenModel | None:
    """Reads the options of a model without a manifest, and reports what was detected and what was assumed.

    Args:
        values: The values; the name of the model and its framework stay in them.
        invocation: Has the frameworks.
        dataset: The inputs, of which images need preprocessing.

    Returns:
        The model; None if it is one with a manifest.

    Raises:
        ConfigurationError: Other options exclude it, or its input cannot be described.
        ArtifactError: The file does not exist, or is not a readable model.
    """
    path, shape = values.pop("model_path"), values.pop("input_shape")
    if path is None:
        if shape is not None:
            raise ConfigurationError("input_shape is for a model_path; a manifest has dimensions")
        return None
    if values["model_version"] is not None:
        raise ConfigurationError("model_version chooses a manifest, and model_path needs none; leave it out")
    if values["agent_address"] or invocation.configuration.agent:
        raise ConfigurationError(
            "model_path is for this process, and an agent is named; it runs the models of its manifests, "
            "which agent manifest init writes"
        )
    named = _on_command_line("model_name")
    wanted = Wanted(
        shape=shape,
        images=dataset.is_named,
        tensors=not dataset.holds_images,
        name=values["model_name"] if named else None,
    )
    given = model_of_file(path, invocation.registry, wanted)
    framework = given.manifest.framework.name
    if _on_command_line("framework_name") and values["framework_name"].casefold() != framework.casefold():
        named_framework = values["framework_name"]
        raise ConfigurationError(f"{path}: is for {framework}; found framework_name {named_framework}")
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
    values: Values, invocation: Invocation, dataset: DatasetChoice, **session: Any
) -> SystemRequest:
    """Reads the options that choose a model and where it runs; leaves the seed in ``values``.

    Args:
        values: The values.
        invocation: Has the configuration.
        dataset: The inputs of the model.
        session: Further fields of ``SessionOptions``.

    Raises:
        ConfigurationError: A value is invalid, or no agent fits.
        ArtifactError: There is no such file of a model, or it cannot be read.
        AgentError: No agent that fits is alive.
        StoreError: The database of agents cannot be reached.
    """
    gpu, gpu_device_id = values.pop("gpu"), values.pop("gpu_device_id")
    given, name = take_given(values, invocation, dataset), values.pop("model_name")
    request = SystemRequest(
        model_name=given.manifest.name if given else name,
        model_version=values.pop("model_version"),
        framework_name=values.pop("framework_name"),
        session=SessionOptions(
            device=Device(DeviceKind.GPU, gpu_device_id) if gpu else CPU,
            threads=values.pop("threads"),
            weights=Weights(values.pop("weights").lower()),
            seed=values["seed"],
            precision=read_precision(values.pop("dtype")),
            cudnn_benchmark=values.pop("cudnn_benchmark"),
            **session,
        ),
        open_timeout_s=values.pop("open_timeout"),
        answer_timeout_s=values.pop("agent_timeout", ANSWER_TIMEOUT_S),
        shared_memory=SharedMemoryUse(values.pop("shared_memory").lower()),
        given=given,
    )
    return replace(request, agents=choose_agents(invocation, values.pop("agent_address"), request))
