"""The options of ``agent serve`` that say how models are loaded and requests put together."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any

import click

from agent.batching import BatchingOptions
from agent.device import Device, DeviceKind
from agent.predictor import Weights
from agent.server.models.served_models import ServingOptions
from agent.session import SessionOptions
from client.command import boolean
from client.configuration import ServingSettings
from client.finite_float import FiniteFloatRange
from client.invocation import current_invocation
from manifests.errors import ConfigurationError

_BYTES_PER_MIB = 1024 * 1024
_BATCHING = ("max_batch_size", "max_queue_delay_ms", "preferred_batch_sizes", "max_queue")
_DEFAULTS = BatchingOptions()


def _sizes(_: click.Context, parameter: click.Parameter, value: str | None) -> tuple[int, ...] | None:
    """Numbers with commas between them."""
    if value is None:
        return None
    try:
        return tuple(int(part) for part in value.split(","))
    except ValueError:
        raise click.BadParameter(
            f'"{value}" is no list of sizes; give numbers with commas, such as 4,8', param=parameter
        ) from None


def model_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """Adds the options; the command is given them as one, ``serving``."""

    @wraps(function)
    def command(*args: Any, **values: Any) -> Any:
        given = {name: values.pop(name) for name in (*_BATCHING, "memory_limit")}
        session = {name: values.pop(name) for name in ("gpu", "gpu_device_id", "threads", "weights", "seed")}
        serving = serving_options(given, current_invocation().configuration.serving, _session(**session))
        return function(*args, serving=serving, **values)

    options = (
        click.option(
            "--max_batch_size",
            type=click.IntRange(min=1),
            metavar="N",
            help="Most inputs of different requests that are predicted together; 1 predicts each request by "
            f"itself.  [default: {_DEFAULTS.max_batch_size}]",
        ),
        click.option(
            "--max_queue_delay_ms",
            type=FiniteFloatRange(min=0),
            metavar="MS",
            help="How long a request waits for others.  "
            f"[default: {_DEFAULTS.max_queue_delay_ms:g}, those that wait when the model is free]",
        ),
        click.option(
            "--preferred_batch_sizes",
            callback=_sizes,
            metavar="N,N",
            help="A batch of such a size waits no longer.  [default: none]",
        ),
        click.option(
            "--max_queue",
            type=click.IntRange(min=1),
            metavar="N",
            help="Most requests that wait for a model; one more is refused.  "
            f"[default: {_DEFAULTS.max_queue}]",
        ),
        click.option(
            "--memory_limit",
            type=FiniteFloatRange(min=0, min_open=True),
            metavar="MIB",
            help="Most memory of the models that are loaded; the least recently used one makes room.  "
            "[default: no limit]",
        ),
        boolean("--gpu", "--use_gpu", help="Run models that are asked for by name alone on the GPU."),
        click.option(
            "--gpu_device_id", type=click.IntRange(min=0), default=0, metavar="N", help="Which GPU."
        ),
        click.option(
            "--threads", type=click.IntRange(min=1), metavar="N", help="CPU threads of their operators."
        ),
        click.option(
            "--weights",
            type=click.Choice([weights.value for weights in Weights], case_sensitive=False),
            default=Weights.PRETRAINED.value,
            show_default=True,
            help="Their weights.",
        ),
        click.option(
            "--seed",
            type=click.IntRange(0, 2**63 - 1),
            default=0,
            show_default=True,
            metavar="N",
            help="What random weights are drawn from.",
        ),
    )
    for option in reversed(options):
        command = option(command)
    return command


def serving_options(
    given: dict[str, Any], configured: ServingSettings, session: SessionOptions
) -> ServingOptions:
    """Returns how models are served.

    Args:
        given: What the flags say, None where they are left out.
        configured: What is taken then.
        session: What models are opened with that are asked for by name alone.

    Raises:
        ConfigurationError: The numbers do not fit each other.
    """
    values = {name: getattr(configured, name) if value is None else value for name, value in given.items()}
    memory_mib = values.pop("memory_limit")
    return ServingOptions(
        batching=BatchingOptions(**{name: value for name, value in values.items() if value is not None}),
        session=session,
        memory_limit_bytes=None if memory_mib is None else round(memory_mib * _BYTES_PER_MIB),
    )


def _session(
    *, gpu: bool, gpu_device_id: int, threads: int | None, weights: str, seed: int
) -> SessionOptions:
    if gpu_device_id and not gpu:
        raise ConfigurationError("--gpu_device_id chooses a GPU; give --gpu with it")
    device = Device(DeviceKind.GPU, gpu_device_id) if gpu else Device()
    return SessionOptions(device=device, threads=threads, weights=Weights(weights.lower()), seed=seed)
