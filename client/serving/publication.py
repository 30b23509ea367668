"""The publication of a served agent: from the options to the heartbeat."""

from __future__ import annotations

import socket
from functools import partial

from inferometer.agent.server.native.registry_service import RegistryService
from inferometer.client.api.invocation import Invocation
from inferometer.client.cli.command import FiniteFloatRange, database_options, option, options
from inferometer.client.remote.channel.address import AgentAddress
from inferometer.client.serving.heartbeat import INTERVAL_S, Heartbeat
from inferometer.evaluators.store.opening import check_address, open_agent_directory
from inferometer.manifests.errors import ConfigurationError

NONE = "none"
AUTOMATIC = "auto"
_WILDCARDS = frozenset({"0.0.0.0", "::", "[::]", ""})  # noqa: S104 - recognised, not bound


def is_published(advertise: str | None, database_address: str | None) -> bool:
    """Returns whether to publish an agent: if publication or a database is requested, unless disabled.

    Args:
        advertise: The value of ``--advertise``; None if it is left out.
        database_address: The database that is given or configured; None for the local file.
    """
    if advertise is None:
        return database_address is not None
    return advertise.strip().casefold() != NONE


def advertised_address(advertise: str | None, bound: str, hostname: str | None = None) -> str:
    """Returns the address that an agent is published with.

    Args:
        advertise: ``host:port``, or a host alone; None or ``auto`` for the address that it listens on, with
            this machine's name for all of its addresses.
        bound: Where it listens, as ``host:port``.
        hostname: This machine's name; None asks the system.

    Raises:
        ConfigurationError: The address is invalid.
    """
    host, _, port = bound.rpartition(":")
    given = (advertise or AUTOMATIC).strip()
    if given.casefold() == AUTOMATIC:
        return f"{hostname or socket.gethostname()}:{port}" if host in _WILDCARDS else bound
    try:
        return str(AgentAddress.parse(given))
    except ConfigurationError:
        try:
            return str(AgentAddress.parse(f"{given}:{port}"))
        except ConfigurationError:
            raise ConfigurationError(
                f'--advertise "{given}" is no address; allowed: HOST:PORT, HOST, {AUTOMATIC} or {NONE}'
            ) from None


publication_options = options(
    database_options,
    option(
        "--advertise",
        metavar="ADDRESS",
        help="Publish this agent in the database so that others find it, as HOST:PORT, as HOST, or as auto; "
        "none does not.  [default: auto where a database is given or configured]",
    ),
    option(
        "--heartbeat_s",
        type=FiniteFloatRange(min=0.1),
        default=INTERVAL_S,
        metavar="S",
        help="Interval of the heartbeat; the agent expires after three missed ones.",
    ),
)
"""Adds the options that say where an agent is published, and as what."""


def make_heartbeat(
    invocation: Invocation,
    agent: RegistryService,
    bound: str,
    secure: bool,
    advertise: str | None,
    heartbeat_s: float,
) -> Heartbeat | None:
    """Returns the heartbeat that keeps an agent published; None unless publication is requested.

    ``bound`` is where the agent listens, as ``host:port``, with TLS if ``secure``, which its address then
    says. The other arguments are options.

    Raises:
        ConfigurationError: An address is invalid.
    """
    database, name = invocation.database
    if not is_published(advertise, database):
        return None
    address = advertised_address(advertise, bound)
    if secure and "://" not in address:
        address = f"grpcs://{address}"
    checked = check_address(database) if database else None
    directory = partial(open_agent_directory, checked, name, invocation.data_directory)
    return Heartbeat(agent, address, directory, heartbeat_s)
