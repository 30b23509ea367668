"""The address of an agent."""

from __future__ import annotations

import re
from dataclasses import dataclass

from manifests.errors import ConfigurationError

_HOST = r"[A-Za-z0-9_]([A-Za-z0-9_.-]*[A-Za-z0-9_.])?"
_ADDRESS = re.compile(rf"(?P<host>{_HOST}|\[[0-9A-Fa-f:.]+(%\w+)?\]):(?P<port>[0-9]{{1,5}})")
_MAX_PORT = 65535


@dataclass(frozen=True, slots=True)
class AgentAddress:
    """Where an agent listens: a host's name or IP address, an IPv6 address in brackets, and a port."""

    host: str
    port: int

    @classmethod
    def parse(cls, text: str) -> AgentAddress:
        """Reads ``host:port``.

        Raises:
            ConfigurationError: It is none.
        """
        match = _ADDRESS.fullmatch(text.strip())
        if match is None or not 1 <= int(match["port"]) <= _MAX_PORT:
            raise ConfigurationError(
                f'agent address "{text}" is no host:port, such as 127.0.0.1:50051 or [::1]:50051'
            )
        return cls(match["host"], int(match["port"]))

    @property
    def target(self) -> str:
        """The address as gRPC takes it; the scheme keeps a host called ``unix`` from being one."""
        return f"dns:///{self}"

    def __str__(self) -> str:
        return f"{self.host}:{self.port}"
