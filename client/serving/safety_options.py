"""The security options of ``agent serve``: TLS, network access, and limits for clients."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from functools import partial
from typing import Any

import click
from click.core import ParameterSource

from inferometer.agent.server.security.credentials import ServerTls
from inferometer.agent.server.security.limits import Limits
from inferometer.client.api.configuration import ServingSettings
from inferometer.client.api.invocation import Invocation
from inferometer.client.cli.command import COUNT, POSITIVE, boolean, option, options
from inferometer.client.cli.paths import FILE

_DEFAULTS = Limits()
_TLS = ("tls_cert", "tls_key", "tls_ca")
_REACH = ("insecure", "allowed_hosts")
_LIMITS = tuple(field.name for field in fields(Limits))
_OF_THE_COMMAND = ("max_message_mb", "max_sessions")


def _limit(unit: str, kind: click.ParamType[Any], name: str, text: str, default: object = "no limit") -> Any:
    return option(f"--{name}", type=kind, metavar=unit, help=f"{text}  [default: {default}]")


def _names(_: click.Context, __: click.Parameter, value: str | None) -> tuple[str, ...] | None:
    """Reads names that are separated by commas."""
    return None if value is None else tuple(part.strip() for part in value.split(","))


_file = partial(option, type=FILE, metavar="FILE")
_count = partial(_limit, "N", COUNT)
_seconds = partial(_limit, "S", POSITIVE)
server_tls_options = options(
    _file("--tls_cert", help="Listen with TLS, with this certificate: PEM, followed by its chain."),
    _file("--tls_key", help="Key of the certificate."),
    _file("--tls_ca", help="Require client certificates signed by these authorities (mutual TLS)."),
)
"""Adds the options of a server's TLS, for ``ServerTls.of``."""
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
        help="Names that requests over HTTP may have as their Host, beside IP addresses and localhost; * "
        "allows every name.  [default: every name, but none on a loopback address without a secret]",
    ),
    _count("max_inputs", "Maximum number of inputs per request.", _DEFAULTS.max_inputs),
    _count("max_pixels", "Maximum number of pixels of an image.", _DEFAULTS.max_pixels),
    _count("max_streams", "Maximum number of concurrent streams.", "half of the threads"),
    _count("max_client_streams", "Maximum number of concurrent streams per client."),
    _limit(
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
)
"""Adds the options, for ``take_safety``."""


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

    Args:
        given: The values of the options by name; what is left out, or None, is that of the configuration.
        configured: The configuration.

    Raises:
        ConfigurationError: A certificate is given without its key, or a file of TLS cannot be used.
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
