"""Whether and as what a served agent is published."""

from __future__ import annotations

import socket

from client.remote.address import AgentAddress
from manifests.errors import ConfigurationError

NONE = "none"
AUTOMATIC = "auto"
_WILDCARDS = frozenset({"0.0.0.0", "::", "[::]", ""})  # noqa: S104 - recognised, not bound


def is_published(advertise: str | None, database_address: str | None) -> bool:
    """Whether an agent is published: where that or a database is asked for, and it is not forbidden.

    Args:
        advertise: What ``--advertise`` says; None where it is left out.
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
        ConfigurationError: It is no address.
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
