"""The options of ``agent serve``: models and batching, security, and telemetry.

They set how models are loaded and requests are batched; TLS, network access, and limits for clients; metrics,
the log format, and the detection of hung predictions.
"""

from __future__ import annotations

import logging
import sys
import threading
from collections.abc import Mapping
from dataclasses import fields, replace
from functools import partial
from typing import Any

import click
from click.core import ParameterSource

from inferometer.agent.hardware.environment import Device, Weights, pinned_processors
from inferometer.agent.inference.session import SessionOptions
from inferometer.agent.server.admission import Limits
from inferometer.agent.server.observation import LogFormat
from inferometer.agent.server.tls import ServerTls
from inferometer.agent.serving.batching import (
    MAX_INSTANCES,
    BatchingOptions,
    QueuePolicy,
    parse_priority_policy,
)
from inferometer.agent.serving.served_models import ModelSettings, ServingOptions, VersionPolicies
from inferometer.client.api.configuration import ServingSettings
from inferometer.client.api.invocation import Invocation
from inferometer.client.cli.command import (
    COUNT,
    FILE,
    MODEL,
    NOT_NEGATIVE,
    PORT,
    POSITIVE,
    SEED,
    WEIGHTS,
    WHOLE_NUMBER,
    allocator_option,
    boolean,
    option,
    options,
)
from inferometer.client.cli.options import request_options
from inferometer.evaluators.jobs.request import SystemOptions, read_precision
from inferometer.manifests.errors import ConfigurationError

AUTO = "auto"
_BYTES_PER_MIB = 1024 * 1024
BATCHING = (*(field.name for field in fields(BatchingOptions)), "gpus", "memory_limit", "version_policy")
"""The names of the options for the queue, memory and versions, which ``serving_options`` reads."""
_BATCHING_DEFAULTS = BatchingOptions()


def _sizes(_: click.Context, parameter: click.Parameter, value: str | None) -> tuple[int, ...] | None:
    try:
        return None if value is None else tuple(int(part) for part in value.split(","))
    except ValueError:
        raise click.BadParameter(
            f'"{value}" is not a list of sizes; give numbers with commas, such as 4,8', param=parameter
        ) from None


def _instances(_: click.Context, parameter: click.Parameter, value: str | None) -> int | str | None:
    if value is None or value == AUTO:
        return value
    if not value.isdecimal() or not 1 <= int(value) <= MAX_INSTANCES:
        raise click.BadParameter(f'"{value}" is neither 1 to {MAX_INSTANCES} nor {AUTO}', param=parameter)
    return int(value)


def _number(unit: str, kind: click.ParamType[Any], name: str, text: str, default: object = "no limit") -> Any:
    return option(f"--{name}", type=kind, metavar=unit, help=f"{text}  [default: {default}]")


_count = partial(_number, "N", COUNT)
_seconds = partial(_number, "S", POSITIVE)
model_options = options(
    _count(
        "max_batch_size",
        "Maximum number of inputs in a batch of several requests; 1 disables dynamic batching.",
        _BATCHING_DEFAULTS.max_batch_size,
    ),
    _number(
        "MS",
        NOT_NEGATIVE,
        "max_queue_delay_ms",
        "How long the first request of a batch waits for others.",
        f"{_BATCHING_DEFAULTS.max_queue_delay_ms:g}, those that wait when the model is free",
    ),
    option(
        "--preferred_batch_sizes",
        callback=_sizes,
        metavar="N,N",
        help="A batch of one of these sizes begins at once.  [default: none]",
    ),
    _count(
        "max_queue",
        "Maximum number of requests that wait for a model; further ones are refused.",
        _BATCHING_DEFAULTS.max_queue,
    ),
    _count("priority_levels", "Number of priorities, of which 1 is the highest.", "none"),
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
    _number(
        "US",
        NOT_NEGATIVE,
        "inline_predict_us",
        "Predict on the event loop while a prediction takes less of its time than this; 0: never.",
        f"{_BATCHING_DEFAULTS.inline_predict_us:g}",
    ),
    option(
        "--instances",
        callback=_instances,
        metavar="N|auto",
        help="Instances of each model, which predict batches of one queue at the same time; auto: as many as "
        "the cores allow with --threads or OMP_NUM_THREADS each, or with one thread; on GPUs, one for each.  "
        f"[default: {_BATCHING_DEFAULTS.instances}]",
    ),
    option(
        "--gpus",
        metavar="N,N",
        help="Run models on these GPUs, by index, which the instances take in turn, instead of one GPU.",
    ),
    boolean("--pin", default=None, help="Bind each instance to cores of its own, as many as it has threads."),
    _number(
        "MIB",
        POSITIVE,
        "memory_limit",
        "Maximum memory of the loaded models; the least recently used model is unloaded first.",
    ),
    option(
        "--version_policy",
        multiple=True,
        metavar="[NAME=]POLICY",
        help="Versions over the Open Inference Protocol of each model, or of one: all, latest:N or "
        "specific:V,V; repeat the option for several models.  [default: all]",
    ),
    options(
        boolean("--gpu", "--use_gpu", help="Run models on the GPU if the client names no device."),
        option("--gpu_device_id", type=WHOLE_NUMBER, default=0, metavar="N", help="Index of the GPU."),
        request_options(SystemOptions, only=("dtype",), heading=MODEL),
        _count(
            "threads",
            "CPU threads per operator if the client names no number.",
            "OMP_NUM_THREADS, else the cores divided by the instances and workers",
        ),
        allocator_option(),
        option(
            "--weights",
            type=WEIGHTS,
            default=Weights.PRETRAINED.value,
            help="Weights of models that no client has loaded otherwise.",
        ),
        option("--seed", type=SEED, default=0, metavar="N", help="Seed of random weights."),
        heading=MODEL,
    ),
    heading="Models and batching",
)
"""Adds to a command the options that ``take_serving`` reads."""


def take_serving(values: dict[str, Any], invocation: Invocation, workers: int = 1) -> ServingOptions:
    """Takes the options out of a command's values; see ``serving_options``."""
    gpu, gpu_device_id, gpus = values.pop("gpu"), values.pop("gpu_device_id"), values.pop("gpus")
    if gpu_device_id and (gpus or not gpu):
        raise ConfigurationError("--gpu_device_id requires --gpu, and excludes --gpus")
    values["gpus"] = str(gpu_device_id) if gpu and gpus is None else gpus
    dtype = values.pop("dtype")
    session = SessionOptions(
        threads=values.pop("threads"),
        weights=Weights(values.pop("weights").lower()),
        seed=values.pop("seed"),
        precision=None if dtype is None else read_precision(dtype),
    )
    given = {name: values.pop(name) for name in BATCHING}
    for name in ("priority_queue_policy", "version_policy"):
        given[name] = given[name] or None
    return serving_options(given, invocation.configuration.serving, session, workers)


def serving_options(
    given: dict[str, Any], configured: ServingSettings, session: SessionOptions, workers: int = 1
) -> ServingOptions:
    """Returns the serving options.

    Args:
        given: The values of the flags; an omitted flag is None, and its value comes from ``configured``.
        configured: The configuration.
        session: The options of models that are requested by name alone; ``threads`` of None: as configured.
        workers: The number of processes, which divide the memory limit and, unless the number of threads
            is given, the cores.

    Raises:
        ConfigurationError: The numbers contradict each other.
    """
    values = {name: getattr(configured, name) if value is None else value for name, value in given.items()}
    memory_mib, versions = values.pop("memory_limit"), values.pop("version_policy")
    if (policy := values["default_queue_policy"]) is not None:
        values["default_queue_policy"] = QueuePolicy.parse(policy, "default_queue_policy")
    if (policies := values["priority_queue_policy"]) is not None:
        values["priority_queue_policy"] = tuple(map(parse_priority_policy, policies))
    values["threads"] = session.threads or configured.threads
    settings = _model_settings(values, session, workers)
    by_model: dict[str, ModelSettings] = {}
    for name, own in configured.models.items():
        if name.casefold() in map(str.casefold, by_model):
            raise ConfigurationError(f"serving.models: has {name} twice, in upper and lower case; give one")
        try:
            by_model[name] = _model_settings(values | own.model_dump(exclude_none=True), session, workers)
        except ConfigurationError as error:
            raise ConfigurationError(f"serving.models.{name}: {error}") from error
    return ServingOptions(
        batching=settings.batching,
        session=replace(session, threads=settings.threads, device=settings.device),
        memory_limit_bytes=None if memory_mib is None else round(memory_mib * _BYTES_PER_MIB) // workers,
        versions=VersionPolicies.parse(versions or ()),
        divided_by=settings.divided_by,
        by_model=by_model,
    )


def _model_settings(values: Mapping[str, Any], session: SessionOptions, workers: int) -> ModelSettings:
    """Returns the settings with the given values, of which None keeps a default.

    Instances divide the cores if the number of threads is not given; ``auto`` instances fill the cores.
    """
    given = {name: value for name, value in values.items() if value is not None}
    threads, instances = given.pop("threads", None), given.pop("instances", 1)
    if (gpus := given.pop("gpus", None)) is not None:
        session = replace(session, device=Device.gpus(str(gpus)))
    if instances == AUTO:
        fitting = replace(session, threads=threads).fitting_instances(workers)
        instances = min(fitting, MAX_INSTANCES)
    session.device.check_instances(instances)
    settings = ModelSettings(BatchingOptions(**given), threads, None if threads else workers, session.device)
    settings = settings.with_instances(instances)
    if settings.batching.pin:
        pinned_processors(instances, settings.threads or 1, workers=workers)  # refused if there are too few
    return settings


_LIMIT_DEFAULTS = Limits()
_TLS = ("tls_cert", "tls_key", "tls_ca")
_REACH = ("insecure", "allowed_hosts")
_LIMITS = tuple(field.name for field in fields(Limits))
_OF_THE_COMMAND = ("max_message_mb", "max_sessions")


def _names(_: click.Context, __: click.Parameter, value: str | None) -> tuple[str, ...] | None:
    return None if value is None else tuple(part.strip() for part in value.split(","))


_file = partial(option, type=FILE, metavar="FILE")
server_tls_options = options(
    _file("--tls_cert", help="Listen with TLS, with this certificate: PEM, followed by its chain."),
    _file("--tls_key", help="Key of the certificate."),
    _file("--tls_ca", help="Require client certificates signed by these authorities (mutual TLS)."),
)
"""Adds to a command the options of a server's TLS, which ``ServerTls.of`` reads."""
safety_options = options(
    server_tls_options,
    boolean(
        "--insecure",
        default=None,
        help="Allow an agent that others can reach to run without TLS or a secret: anyone can read its "
        "traffic and use it.",
    ),
    option(
        "--allowed_hosts",
        callback=_names,
        metavar="NAME,NAME",
        help="Names that requests over HTTP may have as their Host, besides IP addresses and localhost; * "
        "allows every name.  [default: every name, but none on a loopback address without a secret]",
    ),
    _count("max_inputs", "Maximum number of inputs per request.", _LIMIT_DEFAULTS.max_inputs),
    _count("max_pixels", "Maximum number of pixels of an image.", _LIMIT_DEFAULTS.max_pixels),
    _count("max_streams", "Maximum number of concurrent streams.", "half of the threads"),
    _count("max_client_streams", "Maximum number of concurrent streams per client."),
    _number(
        "N",
        POSITIVE,
        "max_client_rps",
        "Requests per second per client, identified by its certificate or else its address.",
    ),
    _count("client_burst", "Size of a burst of requests per client.", "as many as in a second"),
    _count("max_connections", "Maximum number of connections."),
    _seconds(
        "max_connection_age_s", "Ask clients to reconnect after this time; calls in progress finish first."
    ),
    _seconds("max_connection_idle_s", "Close connections that are idle for this long."),
    heading="Security and limits",
)
"""Adds to a command the options that ``take_safety`` reads."""


def take_safety(values: dict[str, Any], invocation: Invocation) -> dict[str, Any]:
    """Returns ``tls``, ``insecure``, ``allowed_hosts`` and ``limits`` of ``ServerOptions``.

    Combines the flags, of which an omitted one is None, with the configuration. The configuration also sets
    the limits that are options of the command itself, unless a flag does.
    """
    configured = invocation.configuration.serving
    given = {name: values.pop(name) for name in (*_TLS, *_REACH, *_LIMITS)}
    context = click.get_current_context()
    for name in _OF_THE_COMMAND:
        limit = getattr(configured, name)
        if limit is not None and context.get_parameter_source(name) is ParameterSource.DEFAULT:
            values[name] = limit

    return chosen_safety(given, configured)


def chosen_safety(given: Mapping[str, Any], configured: ServingSettings) -> dict[str, Any]:
    """Returns ``tls``, ``insecure``, ``allowed_hosts`` and ``limits`` of ``ServerOptions``.

    An option that is omitted or None in ``given`` comes from the configuration.

    Raises:
        ConfigurationError: A certificate is given without its key, or a TLS file cannot be used.
    """

    def chosen(name: str) -> Any:
        value = given.get(name)
        return getattr(configured, name) if value is None else value

    certificate, key = given.get("tls_cert"), given.get("tls_key")
    if certificate is None and key is None:  # a certificate goes with its own key
        certificate, key = configured.tls_cert, configured.tls_key
    return {
        "tls": ServerTls.of(certificate, key, chosen("tls_ca")),
        "insecure": bool(chosen("insecure")),
        "allowed_hosts": chosen("allowed_hosts"),
        "limits": Limits(**{name: value for name in _LIMITS if (value := chosen(name)) is not None}),
    }


_DEFAULT_PREDICT_TIMEOUT_S = 300.0
_log = logging.getLogger(__name__)


telemetry_options = options(
    option(
        "--metrics_port",
        type=PORT,
        metavar="N",
        help="Port for Prometheus, without TLS and secret; 0 chooses a free port.  [default: none]",
    ),
    option("--metrics_host", default="127.0.0.1", metavar="ADDRESS", help="Address of the metrics port."),
    option(
        "--predict_timeout_s",
        type=NOT_NEGATIVE,
        default=_DEFAULT_PREDICT_TIMEOUT_S,
        metavar="S",
        help="Treat longer predictions as hanging: the agent is NOT_SERVING while no other instance of the "
        "model is alive.  0: never.",
    ),
    option(
        "--log_format",
        type=click.Choice([format_.value for format_ in LogFormat], case_sensitive=False),
        default=LogFormat.TEXT.value,
        help="Format of the log on stderr; -v logs every call.",
    ),
    heading="Observation",
)
"""Adds to a command the options of ``ServerOptions`` and ``ServingOptions``, and the log format."""


def use_log_format(log_format: str) -> None:
    """Sets the log format on stderr, including the errors of threads and Python's warnings."""
    for handler in logging.getLogger().handlers:
        if isinstance(handler, logging.StreamHandler) and handler.stream is sys.stderr:
            handler.setFormatter(LogFormat(log_format.lower()).formatter)
    logging.captureWarnings(True)
    threading.excepthook = _log_dead_thread


def _log_dead_thread(death: threading.ExceptHookArgs) -> None:
    if death.exc_value is None or isinstance(death.exc_value, SystemExit):
        return
    name = death.thread.name if death.thread else "a thread"
    _log.error("%s died: %s", name, type(death.exc_value).__name__, exc_info=death.exc_value)
