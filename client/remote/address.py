"""The address of an agent."""

from __future__ import annotations

import re
from dataclasses import dataclass

from manifests.errors import ConfigurationError

_HOST = r"[A-Za-z0-9_]([A-Za-z0-9_.-]*[A-Za-z0-9_.])?"
_ADDRESS = re.compile(
    rf"((?P<scheme>grpcs?)://)?(?P<host>{_HOST}|\[[0-9A-Fa-f:.]+(%\w+)?\]):(?P<port>[0-9]{{1,5}})",
    re.IGNORECASE,
)
_CREDENTIALS = re.compile(r"[^/@]*@")
_SECURE = {"grpcs": True, "grpc": False}
_MAX_PORT = 65535


@dataclass(frozen=True, slots=True)
class AgentAddress:
    """Where an agent listens: a host's name or IP address, an IPv6 address in brackets, and a port.

    Attributes:
        host: The host.
        port: The port.
        secure: Whether it is spoken to over TLS; None leaves that open.
    """

    host: str
    port: int
    secure: bool | None = None

    @classmethod
    def parse(cls, text: str) -> AgentAddress:
        """Reads ``host:port``, ``grpcs://host:port`` with TLS, or ``grpc://host:port`` without.

        Raises:
            ConfigurationError: It is none.
        """
        match = _ADDRESS.fullmatch(text.strip())
        if match is None or not 1 <= int(match["port"]) <= _MAX_PORT:
            raise ConfigurationError(
                f'agent address "{_CREDENTIALS.sub("…@", text)}" is no host:port, such as 127.0.0.1:50051 or '
                "[::1]:50051, and no grpcs://host:port"
            )
        return cls(match["host"], int(match["port"]), _SECURE.get((match["scheme"] or "").casefold()))

    @property
    def target(self) -> str:
        """The address as gRPC takes it; the scheme keeps a host called ``unix`` from being one."""
        return f"dns:///{self.host}:{self.port}"

    def __str__(self) -> str:
        scheme = "" if self.secure is None else "grpcs://" if self.secure else "grpc://"
        return f"{scheme}{self.host}:{self.port}"
