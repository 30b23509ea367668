"""Turns the values of options into the parts of requests that every job has."""

from __future__ import annotations

from collections.abc import MutableMapping
from dataclasses import replace
from typing import Any

from inferometer.agent.hardware.device import CPU, Device, DeviceKind
from inferometer.agent.inference.predictor import Weights
from inferometer.agent.inference.session import SessionOptions
from inferometer.client.cli.invocation import Invocation
from inferometer.client.discovery.choosing import choose_agents
from inferometer.evaluators.jobs.defaults import ANSWER_TIMEOUT_S
from inferometer.evaluators.jobs.requests import DatasetChoice, SystemRequest

Values = MutableMapping[str, Any]
"""The values of a command's options by name. Each function takes out those that it reads."""


def take_dataset(values: Values) -> DatasetChoice:
    """Reads the options that choose a dataset.

    Raises:
        ConfigurationError: Two datasets are named.
    """
    return DatasetChoice(
        name=values.pop("dataset_name", None),
        path=values.pop("dataset_path", None),
        category=values.pop("dataset_category", None),
        urls_path=values.pop("urls_file_path", None),
        duplicates=values.pop("duplicate_input", 1),
    )


def take_system(values: Values, invocation: Invocation, **session: Any) -> SystemRequest:
    """Reads the options that choose a model and where it runs; the seed stays in the values.

    ``session`` has more of ``SessionOptions``.

    Raises:
        ConfigurationError: A value is invalid, or no agent fits.
        AgentError: No agent that fits is alive.
        StoreError: The database of agents cannot be reached.
    """
    gpu, gpu_device_id = values.pop("gpu"), values.pop("gpu_device_id")
    request = SystemRequest(
        model_name=values.pop("model_name"),
        model_version=values.pop("model_version"),
        framework_name=values.pop("framework_name"),
        session=SessionOptions(
            device=Device(DeviceKind.GPU, gpu_device_id) if gpu else CPU,
            threads=values.pop("threads"),
            weights=Weights(values.pop("weights").lower()),
            seed=values["seed"],
            **session,
        ),
        open_timeout_s=values.pop("open_timeout"),
        answer_timeout_s=values.pop("agent_timeout", ANSWER_TIMEOUT_S),
    )
    return replace(request, agents=choose_agents(invocation, values.pop("agent_address"), request))
