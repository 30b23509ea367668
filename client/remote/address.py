"""The addresses of servers: of an agent, and of models on servers of the V2 protocol and of OpenAI's."""

from __future__ import annotations

import ipaddress
import re
from dataclasses import dataclass, replace

from inferometer.manifests.errors import ConfigurationError

_HOST = r"[A-Za-z0-9_]([A-Za-z0-9_.-]*[A-Za-z0-9_.])?"
_ADDRESS = re.compile(
    rf"((?P<scheme>grpcs?)://)?(?P<host>{_HOST}|\[[0-9A-Fa-f:.]+(%\w+)?\]):(?P<port>[0-9]{{1,5}})",
    re.IGNORECASE,
)
_SECURE = {"grpcs": True, "grpc": False}
_MAX_PORT = 65535
CANNOT_BE_REACHED = "cannot be reached:"
"""The part of an error message that shows that nobody listens at an address not reached before."""
_KSERVE_SCHEMES = {"kserve", "kserves", "kserve+http", "kserve+https"}
"""The schemes of servers over gRPC and over HTTP; a final s means TLS."""
_KSERVE_ADDRESS = re.compile(
    r"(?P<scheme>kserves?|kserve\+https?)://(?P<agent>[^/]+)(/(?P<name>[^/]+)(/(?P<version>[^/]+))?)?/?",
    re.IGNORECASE,
)


@dataclass(frozen=True, slots=True)
class AgentAddress:
    """Where an agent listens: a host's name or IP address, an IPv6 address in brackets, and a port.

    ``secure`` is whether to use TLS; None leaves that open.
    """

    host: str
    port: int
    secure: bool | None = None

    @classmethod
    def parse(cls, text: str) -> AgentAddress:
        """Reads ``host:port``, ``grpcs://host:port`` with TLS, or ``grpc://host:port`` without.

        Raises:
            ConfigurationError: The text is invalid.
        """
        match = _ADDRESS.fullmatch(text.strip())
        if match is None or not 1 <= int(match["port"]) <= _MAX_PORT:
            raise ConfigurationError(
                f'agent address "{_masked(text)}" is not host:port, such as 127.0.0.1:50051 or '
                "[::1]:50051, and no grpcs://host:port"
            )
        return cls(match["host"], int(match["port"]), _SECURE.get((match["scheme"] or "").casefold()))

    @property
    def target(self) -> str:
        """The address for gRPC; the scheme keeps a host named ``unix`` from being read as a scheme."""
        return f"dns:///{self.host}:{self.port}"

    @property
    def is_this_machine(self) -> bool:
        """Whether the host is this machine, judged by its name without a lookup."""
        if self.host.casefold() == "localhost":
            return True
        try:
            return ipaddress.ip_address(self.host.strip("[]").partition("%")[0]).is_loopback
        except ValueError:
            return False

    def __str__(self) -> str:
        scheme = "" if self.secure is None else "grpcs://" if self.secure else "grpc://"
        return f"{scheme}{self.host}:{self.port}"


def is_kserve(address: str) -> bool:
    """Returns whether an address names a server of the Open Inference Protocol."""
    scheme, mark, _ = address.strip().partition("://")
    return bool(mark) and scheme.casefold() in _KSERVE_SCHEMES


@dataclass(frozen=True, slots=True)
class KServeAddress:
    """The address of a server and the server's name of the model.

    ``model_name`` of None means the name in the manifest; ``model_version`` of None leaves the choice to the
    server. ``http`` is used instead of gRPC.
    """

    agent: AgentAddress
    model_name: str | None = None
    model_version: str | None = None
    http: bool = False

    @classmethod
    def parse(cls, text: str) -> KServeAddress:
        """Reads ``kserve://host:port``, ``…/model`` or ``…/model/version``; ``kserves`` means TLS.

        ``kserve+http`` and ``kserve+https`` are the equivalents over HTTP.

        Raises:
            ConfigurationError: The text is invalid.
        """
        match = _KSERVE_ADDRESS.fullmatch(text.strip())
        if match is None:
            raise _no_address(text)
        scheme = match["scheme"].casefold()
        secure = scheme.endswith("s") or None
        try:
            agent = replace(AgentAddress.parse(match["agent"]), secure=secure)
        except ConfigurationError as error:
            raise _no_address(text) from error
        return cls(agent, match["name"], match["version"], "+http" in scheme)

    @property
    def server(self) -> str:
        """The host and the port."""
        return f"{self.agent.host}:{self.agent.port}"

    def __str__(self) -> str:
        scheme = f"kserve{'+http' * self.http}{'s' * bool(self.agent.secure)}"
        return "/".join(filter(None, (f"{scheme}://{self.server}", self.model_name, self.model_version)))


_OPENAI_ADDRESS = re.compile(
    r"(?P<scheme>openai\+https?)://(?P<agent>[^/]+)(?P<path>(/[A-Za-z0-9._~%-]+)*)/?", re.IGNORECASE
)


def is_openai(address: str) -> bool:
    """Returns whether an address names a server of OpenAI's protocol."""
    return address.strip().casefold().startswith("openai+")


@dataclass(frozen=True, slots=True)
class OpenAIAddress:
    """The address of a server of OpenAI's protocol: its host, its port, and the path before ``/v1``."""

    agent: AgentAddress
    path: str = ""

    @classmethod
    def parse(cls, text: str) -> OpenAIAddress:
        """Reads ``openai+http://host:port`` or ``openai+https://…``, with a path before ``/v1`` if any.

        Raises:
            ConfigurationError: The text is invalid.
        """
        match = _OPENAI_ADDRESS.fullmatch(text.strip())
        try:
            if match is None:
                raise ConfigurationError("is not an address")
            secure = match["scheme"].casefold().endswith("s")
            agent = replace(AgentAddress.parse(match["agent"]), secure=secure or None)
        except ConfigurationError as error:
            raise ConfigurationError(
                f'agent address "{_masked(text)}" is not openai+http://host:port, or openai+https://… with '
                "TLS, followed by the path before /v1 if there is one"
            ) from error
        return cls(agent, match["path"].removesuffix("/v1"))

    @property
    def server(self) -> str:
        """The host and the port."""
        return f"{self.agent.host}:{self.agent.port}"

    def __str__(self) -> str:
        return f"openai+http{'s' * bool(self.agent.secure)}://{self.server}{self.path}"


def _masked(text: str) -> str:
    """Returns the text without the part before an @, which may contain a password."""
    return "/".join(f"…@{part.rpartition('@')[2]}" if "@" in part else part for part in text.split("/"))


def _no_address(text: str) -> ConfigurationError:
    return ConfigurationError(
        f'agent address "{_masked(text)}" is not kserve://host:port, '
        "kserve://host:port/model or kserve://host:port/model/version; kserves:// is that with TLS, "
        "kserve+http:// and kserve+https:// are over HTTP"
    )
