"""The options that say how a served agent is spoken to over TLS."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from client.remote.tls import ClientTls
    from client.safety_settings import AgentTlsSettings

_NAMES = ("tls_ca", "tls_cert", "tls_key", "tls_server_name")
_FLAGS = "agent_tls"


def tls_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """Adds the options; the command is not given them, as ``read_agent_tls`` finds them again."""

    @wraps(function)
    def command(*args: Any, **values: Any) -> Any:
        given = {name: values.pop(name) for name in _NAMES}
        click.get_current_context().ensure_object(dict)[_FLAGS] = given
        return function(*args, **values)

    path = click.Path(path_type=Path)
    options = (
        click.option(
            "--tls_ca",
            type=path,
            envvar="AGENT_TLS_CA",
            show_envvar=True,
            metavar="FILE",
            help="Speak TLS to the agent, and trust those whom these certificates vouch for.",
        ),
        click.option(
            "--tls_cert",
            type=path,
            envvar="AGENT_TLS_CERT",
            show_envvar=True,
            metavar="FILE",
            help="Certificate to show to an agent that asks for one.",
        ),
        click.option(
            "--tls_key",
            type=path,
            envvar="AGENT_TLS_KEY",
            show_envvar=True,
            metavar="FILE",
            help="Key of that certificate.",
        ),
        click.option(
            "--tls_server_name",
            envvar="AGENT_TLS_SERVER_NAME",
            show_envvar=True,
            metavar="NAME",
            help="Name that the agent's certificate is for.  [default: the host of its address]",
        ),
    )
    for option in reversed(options):
        command = option(command)
    return command


def read_agent_tls(flags: Any, configured: AgentTlsSettings) -> ClientTls | None:
    """Returns how agents are spoken to over TLS; None where nothing is said of it.

    Args:
        flags: The flags that were given.
        configured: What is taken for those that were not. A certificate is taken with its key.

    Raises:
        ConfigurationError: A certificate is given without its key, or a key without its certificate.
    """
    given: dict[str, Any] = flags.get(_FLAGS) or dict.fromkeys(_NAMES)
    certificate, key = given["tls_cert"], given["tls_key"]
    if certificate is None and key is None:
        certificate, key = configured.cert, configured.key
    authorities = given["tls_ca"] or configured.ca
    server_name = given["tls_server_name"] or configured.server_name
    if not (authorities or certificate or key or server_name):
        return None
    from client.remote.tls import ClientTls  # gRPC, which most commands do not need

    return ClientTls(authorities, certificate, key, server_name)
