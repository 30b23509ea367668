"""TLS towards an agent: whom this side trusts, and what it shows of itself."""

from __future__ import annotations

import ipaddress
import logging
from dataclasses import dataclass
from pathlib import Path

import grpc

from agent.pem_files import CERTIFICATE_OPTION, KEY_OPTION, read_authorities, read_identity
from client.remote.address import AgentAddress
from manifests.errors import ConfigurationError

ChannelOptions = tuple[tuple[str, int | str], ...]
_SERVER_NAME_OPTION = "grpc.ssl_target_name_override"
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class ClientTls:
    """How an agent is spoken to over TLS.

    Attributes:
        authorities: Those who vouch for agents; None means those that gRPC brings.
        certificate: What this side shows, with the chain above it, to an agent that asks for it.
        key: The key of the certificate.
        server_name: The name that the agent's certificate is to be for, where that is not its address.

    Raises:
        ConfigurationError: There is a certificate without key, or a key without certificate.
    """

    authorities: Path | None = None
    certificate: Path | None = None
    key: Path | None = None
    server_name: str | None = None

    def __post_init__(self) -> None:
        if (self.certificate is None) != (self.key is None):
            given, missing = (
                (CERTIFICATE_OPTION, KEY_OPTION) if self.certificate else (KEY_OPTION, CERTIFICATE_OPTION)
            )
            raise ConfigurationError(f"{given} is given without {missing}; an agent is shown both or none")

    def credentials(self) -> grpc.ChannelCredentials:
        """Reads the files.

        Raises:
            ConfigurationError: A file is missing or cannot be read, is no PEM, or does not fit.
        """
        roots = read_authorities(self.authorities) if self.authorities else None
        if self.certificate is None or self.key is None:
            return grpc.ssl_channel_credentials(roots)
        identity = read_identity(self.certificate, self.key)
        return grpc.ssl_channel_credentials(roots, identity.key, identity.chain)


def is_secure(address: AgentAddress, tls: ClientTls | None) -> bool:
    """Whether an agent is spoken to over TLS: as its address says, or else if ``tls`` is there."""
    return tls is not None if address.secure is None else address.secure


def open_channel(
    address: AgentAddress, tls: ClientTls | None, options: ChannelOptions, *, secret: bool = False
) -> grpc.Channel:
    """Makes a channel; nothing is connected before the first call.

    A secret that would go to another machine in clear is warned of.

    Args:
        address: The agent.
        tls: How it is spoken to over TLS; None trusts whom gRPC trusts, and only if the address asks for TLS.
        options: Of the channel.
        secret: Whether a secret is sent over it.

    Raises:
        ConfigurationError: A file of TLS cannot be used.
    """
    if is_secure(address, tls):
        tls = tls or ClientTls()
        named: ChannelOptions = ((_SERVER_NAME_OPTION, tls.server_name),) if tls.server_name else ()
        return grpc.secure_channel(address.target, tls.credentials(), options=(*options, *named))
    if secret and not is_this_machine(address.host):
        _log.warning(
            "INSECURE: the secret goes to %s in clear, where others can read it; "
            "use TLS: grpcs://%s:%d, or --tls_ca",
            address,
            address.host,
            address.port,
        )
    return grpc.insecure_channel(address.target, options=options)


def is_this_machine(host: str) -> bool:
    """Whether a host is this machine by its name alone; none is looked up."""
    if host.casefold() == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]").partition("%")[0]).is_loopback
    except ValueError:
        return False
