"""What stands between a served agent and those who can reach its port."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import Protocol

import grpc

from agent.server.client_limits import ClientLimits
from agent.server.credentials import ServerTls
from agent.server.exposure import check_exposure
from agent.server.limits import Limits
from agent.server.secret import SecretCheck

_log = logging.getLogger(__name__)


class SecurityOptions(Protocol):
    """The options of a server that its security follows from."""

    @property
    def host(self) -> str: ...  # noqa: D102
    @property
    def tls(self) -> ServerTls | None: ...  # noqa: D102
    @property
    def secret(self) -> str | None: ...  # noqa: D102
    @property
    def insecure(self) -> bool: ...  # noqa: D102
    @property
    def limits(self) -> Limits: ...  # noqa: D102


class Listening(Protocol):
    """A server before it has begun to answer; see ``grpc.Server``."""

    def add_insecure_port(self, address: str) -> int: ...  # noqa: D102
    def add_secure_port(self, address: str, server_credentials: grpc.ServerCredentials) -> int: ...  # noqa: D102


@dataclass(frozen=True, slots=True)
class Security:
    """TLS, the secret and the limits of one server.

    Attributes:
        credentials: What the port is listened on with; None without TLS.
        interceptors: What each call has to pass, the first one first.
        warning: What is to be said loudly; None where there is nothing.
    """

    credentials: grpc.ServerCredentials | None
    interceptors: list[grpc.ServerInterceptor]
    warning: str | None

    @classmethod
    def of(cls, options: SecurityOptions) -> Security:
        """Puts together what the options ask for; nothing is listened on yet.

        Raises:
            ConfigurationError: Others can reach the host, and the agent is not secure (see
                ``check_exposure``), the secret cannot be sent, or a file of TLS cannot be used.
        """
        interceptors: list[grpc.ServerInterceptor] = []
        if options.secret is not None:
            interceptors.append(SecretCheck(options.secret))
        if ClientLimits.wanted(options.limits):
            interceptors.append(ClientLimits(options.limits))
        warning = check_exposure(
            options.host,
            tls=options.tls is not None,
            secret=options.secret is not None,
            insecure=options.insecure,
        )
        return cls(options.tls.credentials() if options.tls else None, interceptors, warning)

    def add_port(self, server: Listening, address: str) -> int:
        """Has a server listen on an address; returns the port.

        Raises:
            RuntimeError: It is taken.
        """
        if self.credentials is None:
            return server.add_insecure_port(address)
        return server.add_secure_port(address, self.credentials)

    def warn(self) -> None:
        """Says loudly what is to be said."""
        if self.warning:
            _log.warning("%s", self.warning)
