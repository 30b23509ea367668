"""The address of a model on a server of the Open Inference Protocol."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

from client.remote.address import AgentAddress
from manifests.errors import ConfigurationError

SCHEMES = ("kserve", "kserves")
"""Without and with TLS."""
_SECURE = "kserves"
_ADDRESS = re.compile(
    r"(?P<scheme>kserves?)://(?P<agent>[^/]+)(/(?P<name>[^/]+)(/(?P<version>[^/]+))?)?/?", re.IGNORECASE
)

_CREDENTIALS = re.compile(r"[^/@]*@")


def is_kserve(address: str) -> bool:
    """Whether an agent's address is that of a server of the Open Inference Protocol."""
    scheme, mark, _ = address.strip().partition("://")
    return bool(mark) and scheme.casefold() in SCHEMES


@dataclass(frozen=True, slots=True)
class KServeAddress:
    """Where a server listens, and what it calls the model.

    Attributes:
        agent: The host and the port.
        model_name: What the server calls the model; None means as its manifest does.
        model_version: Which version of it; None leaves the choice to the server.
        secure: Whether it is spoken to over TLS.
    """

    agent: AgentAddress
    model_name: str | None = None
    model_version: str | None = None
    secure: bool = False

    @classmethod
    def parse(cls, text: str) -> KServeAddress:
        """Reads ``kserve://host:port``, ``…/model`` or ``…/model/version``; ``kserves`` means TLS.

        Raises:
            ConfigurationError: It is none.
        """
        match = _ADDRESS.fullmatch(text.strip())
        if match is None:
            raise _no_address(text)
        secure = match["scheme"].casefold() == _SECURE
        try:
            agent = replace(AgentAddress.parse(match["agent"]), secure=secure or None)
        except ConfigurationError as error:
            raise _no_address(text) from error
        return cls(agent, match["name"], match["version"], secure)

    @property
    def server(self) -> str:
        """The host and the port."""
        return f"{self.agent.host}:{self.agent.port}"

    def __str__(self) -> str:
        scheme = _SECURE if self.secure else SCHEMES[0]
        return "/".join(filter(None, (f"{scheme}://{self.server}", self.model_name, self.model_version)))


def _no_address(text: str) -> ConfigurationError:
    return ConfigurationError(
        f'agent address "{_CREDENTIALS.sub("…@", text)}" is no kserve://host:port, '
        "kserve://host:port/model or kserve://host:port/model/version; kserves:// is that with TLS"
    )
