"""The options of ``agent serve`` for models: how they are loaded, and how requests are batched."""

from __future__ import annotations

from typing import Any

import click

from inferometer.agent.hardware.device import Device, DeviceKind
from inferometer.agent.inference.predictor import Weights
from inferometer.agent.inference.session import SessionOptions
from inferometer.agent.serving.batching import BatchingOptions
from inferometer.agent.serving.queue_policy import QueuePolicy, parse_priority_policy
from inferometer.agent.serving.served_models import ServingOptions
from inferometer.agent.serving.version_policy import VersionPolicies
from inferometer.client.api.configuration import ServingSettings
from inferometer.client.api.invocation import Invocation
from inferometer.client.cli.command import (
    COUNT,
    NOT_NEGATIVE,
    POSITIVE,
    SEED,
    WEIGHTS,
    WHOLE_NUMBER,
    allocator_option,
    boolean,
    option,
    options,
)
from inferometer.manifests.errors import ConfigurationError

_BYTES_PER_MIB = 1024 * 1024
BATCHING = (
    *("max_batch_size", "max_queue_delay_ms", "preferred_batch_sizes", "max_queue", "memory_limit"),
    *("priority_levels", "default_priority_level", "default_queue_policy", "priority_queue_policy"),
    *("inline_predict_us", "version_policy"),
)
"""The options of the queue, of the memory and of versions, which ``serving_options`` takes."""
_DEFAULTS = BatchingOptions()


def _sizes(_: click.Context, parameter: click.Parameter, value: str | None) -> tuple[int, ...] | None:
    """Reads numbers that are separated by commas."""
    try:
        return None if value is None else tuple(int(part) for part in value.split(","))
    except ValueError:
        raise click.BadParameter(
            f'"{value}" is no list of sizes; give numbers with commas, such as 4,8', param=parameter
        ) from None


model_options = options(
    option(
        "--max_batch_size",
        type=COUNT,
        metavar="N",
        help="Maximum number of inputs in a batch of several requests; 1 disables dynamic batching."
        f"  [default: {_DEFAULTS.max_batch_size}]",
    ),
    option(
        "--max_queue_delay_ms",
        type=NOT_NEGATIVE,
        metavar="MS",
        help="How long the first request of a batch waits for others.  "
        f"[default: {_DEFAULTS.max_queue_delay_ms:g}, those that wait when the model is free]",
    ),
    option(
        "--preferred_batch_sizes",
        callback=_sizes,
        metavar="N,N",
        help="A batch of one of these sizes begins at once.  [default: none]",
    ),
    option(
        "--max_queue",
        type=COUNT,
        metavar="N",
        help="Maximum number of requests that wait for a model; further ones are refused.  "
        f"[default: {_DEFAULTS.max_queue}]",
    ),
    option(
        "--priority_levels",
        type=COUNT,
        metavar="N",
        help="Number of priorities, of which 1 is the highest.  [default: none]",
    ),
    option(
        "--default_priority_level",
        type=COUNT,
        metavar="N",
        help="Priority of requests without one; required with --priority_levels.",
    ),
    option(
        "--default_queue_policy",
        metavar="NAME=VALUE,…",
        help="Policy of waiting requests: timeout_action, default_timeout_microseconds, "
        "allow_timeout_override, max_queue_size.  [default: --max_queue and no timeout]",
    ),
    option(
        "--priority_queue_policy",
        multiple=True,
        metavar="LEVEL:NAME=VALUE,…",
        help="Policy of one priority; repeat the option for several.",
    ),
    option(
        "--inline_predict_us",
        type=NOT_NEGATIVE,
        metavar="US",
        help="Predict on the event loop while a prediction takes less of its time than this; 0: never.  "
        f"[default: {_DEFAULTS.inline_predict_us:g}]",
    ),
    option(
        "--memory_limit",
        type=POSITIVE,
        metavar="MIB",
        help="Maximum memory of the loaded models; the least recently used model is unloaded first.  "
        "[default: no limit]",
    ),
    option(
        "--version_policy",
        multiple=True,
        metavar="[NAME=]POLICY",
        help="Versions over the Open Inference Protocol of each model, or of one: all, latest:N or "
        "specific:V,V; repeat the option for several models.  [default: all]",
    ),
    boolean("--gpu", "--use_gpu", help="Run models on the GPU if the client names no device."),
    option("--gpu_device_id", type=WHOLE_NUMBER, default=0, metavar="N", help="Index of the GPU."),
    option(
        "--threads",
        type=COUNT,
        metavar="N",
        help="CPU threads per operator if the client names no number.  "
        "[default: OMP_NUM_THREADS, else the cores]",
    ),
    allocator_option(),
    option(
        "--weights",
        type=WEIGHTS,
        default=Weights.PRETRAINED.value,
        help="Weights of models that no client has loaded otherwise.",
    ),
    option("--seed", type=SEED, default=0, metavar="N", help="Seed of random weights."),
)
"""Adds the options, for ``take_serving``."""


def take_serving(values: dict[str, Any], invocation: Invocation) -> ServingOptions:
    """Reads the options; see ``serving_options``."""
    gpu, gpu_device_id = values.pop("gpu"), values.pop("gpu_device_id")
    if gpu_device_id and not gpu:
        raise ConfigurationError("--gpu_device_id chooses a GPU; give --gpu with it")
    session = SessionOptions(
        device=Device(DeviceKind.GPU, gpu_device_id) if gpu else Device(),
        threads=values.pop("threads"),
        weights=Weights(values.pop("weights").lower()),
        seed=values.pop("seed"),
    )
    given = {name: values.pop(name) for name in BATCHING}
    for name in ("priority_queue_policy", "version_policy"):
        given[name] = given[name] or None
    return serving_options(given, invocation.configuration.serving, session)


def serving_options(
    given: dict[str, Any], configured: ServingSettings, session: SessionOptions
) -> ServingOptions:
    """Returns how models are served.

    Args:
        given: The values of the flags; an omitted flag is None, and its value comes from ``configured``.
        configured: The configuration.
        session: The options of models that are requested by name alone.

    Raises:
        ConfigurationError: The numbers contradict each other.
    """
    values = {name: getattr(configured, name) if value is None else value for name, value in given.items()}
    memory_mib, versions = values.pop("memory_limit"), values.pop("version_policy")
    if (policy := values["default_queue_policy"]) is not None:
        values["default_queue_policy"] = QueuePolicy.parse(policy, "default_queue_policy")
    if (policies := values["priority_queue_policy"]) is not None:
        values["priority_queue_policy"] = tuple(map(parse_priority_policy, policies))
    return ServingOptions(
        batching=BatchingOptions(**{name: value for name, value in values.items() if value is not None}),
        session=session,
        memory_limit_bytes=None if memory_mib is None else round(memory_mib * _BYTES_PER_MIB),
        versions=VersionPolicies.parse(versions or ()),
    )
