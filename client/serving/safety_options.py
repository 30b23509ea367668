"""The options of ``agent serve`` that keep it safe: TLS, who may reach it, and what clients may ask for."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import wraps
from pathlib import Path
from typing import Any

import click
from click.core import ParameterSource

from agent.server.credentials import ServerTls
from agent.server.limits import Limits
from client.command import boolean
from client.finite_float import FiniteFloatRange
from client.invocation import current_invocation
from client.safety_settings import SafetySettings

_DEFAULTS = Limits()
_TLS = ("tls_cert", "tls_key", "tls_ca")
_LIMITS = (
    "max_inputs",
    "max_pixels",
    "max_streams",
    "max_client_streams",
    "max_client_rps",
    "client_burst",
    "max_connections",
    "max_connection_age_s",
    "max_connection_idle_s",
)
_OF_THE_COMMAND = ("max_message_mb", "max_sessions")


@dataclass(frozen=True, slots=True)
class SafetyOptions:
    """What the flags and the configuration say.

    Attributes:
        tls: The certificate and its key; None listens in clear.
        insecure: Whether others may reach the agent without TLS or without a secret.
        limits: What clients may ask for.
    """

    tls: ServerTls | None
    insecure: bool
    limits: Limits


def safety_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """Adds the options; the command is given them as one, ``safety``.

    Of the limits that the command has by itself, the configuration's are put where a flag was left out.
    """

    @wraps(function)
    def command(*args: Any, **values: Any) -> Any:
        configured = current_invocation().configuration.serving
        given = {name: values.pop(name) for name in (*_TLS, "insecure", *_LIMITS)}
        context = click.get_current_context()
        for name in _OF_THE_COMMAND:
            chosen = getattr(configured, name)
            if chosen is not None and context.get_parameter_source(name) is ParameterSource.DEFAULT:
                values[name] = chosen
        return function(*args, safety=read_safety(given, configured), **values)

    for option in reversed((*_tls_options(), *_limit_options())):
        command = option(command)
    return command


def read_safety(given: Mapping[str, Any], configured: SafetySettings) -> SafetyOptions:
    """Returns what holds.

    Args:
        given: What the flags say, None where they are left out.
        configured: What is taken then. A certificate is taken with its key.

    Raises:
        ConfigurationError: A part of TLS is missing, or a limit makes no sense.
    """

    def chosen(name: str) -> Any:
        return getattr(configured, name) if given[name] is None else given[name]

    certificate, key = given["tls_cert"], given["tls_key"]
    if certificate is None and key is None:
        certificate, key = configured.tls_cert, configured.tls_key
    limits = {name: value for name in _LIMITS if (value := chosen(name)) is not None}
    return SafetyOptions(
        tls=ServerTls.of(certificate, key, chosen("tls_ca")),
        insecure=bool(chosen("insecure")),
        limits=Limits(**limits),
    )


def _tls_options() -> tuple[Callable[..., Any], ...]:
    file: dict[str, Any] = {"type": click.Path(path_type=Path), "metavar": "FILE"}
    return (
        click.option(
            "--tls_cert", help="Certificate in PEM, with the chain above it: listen with TLS.", **file
        ),
        click.option("--tls_key", help="Its key.", **file),
        click.option(
            "--tls_ca",
            help="Let in only clients with a certificate that these vouch for (mutual TLS).",
            **file,
        ),
        boolean(
            "--insecure",
            default=None,
            help="Let others reach the agent without TLS or a secret: they can read along, and use it.",
        ),
    )


def _limit_options() -> tuple[Callable[..., Any], ...]:
    def count(name: str, help: str, default: object = "no limit") -> Callable[..., Any]:  # noqa: A002 - click's name
        text = f"{help}  [default: {default}]"
        return click.option(f"--{name}", type=click.IntRange(min=1), metavar="N", help=text)

    def seconds(name: str, help: str) -> Callable[..., Any]:  # noqa: A002 - click's name
        text = f"{help}  [default: no limit]"
        return click.option(f"--{name}", type=FiniteFloatRange(0, min_open=True), metavar="S", help=text)

    return (
        count("max_inputs", "Most inputs of a request.", _DEFAULTS.max_inputs),
        count("max_pixels", "Most pixels of an image that is decoded.", _DEFAULTS.max_pixels),
        count("max_streams", "Most streams at once.", "half of the threads"),
        count("max_client_streams", "Most streams of one client at once."),
        click.option(
            "--max_client_rps",
            type=FiniteFloatRange(0, min_open=True),
            metavar="N",
            help="Requests of one client in a second, by its certificate or else its address.  "
            "[default: no limit]",
        ),
        count("client_burst", "Requests that a client may send at once.", "as many as in a second"),
        count("max_connections", "Most connections at once."),
        seconds("max_connection_age_s", "A connection is renewed after so long; calls under way end first."),
        seconds("max_connection_idle_s", "A connection that is not used for so long is closed."),
    )
