"""The address of a trace collector: its protocol, host, port and path."""

from __future__ import annotations

import ipaddress
import re
from dataclasses import dataclass
from enum import Enum
from urllib.parse import SplitResult, urlsplit

from inferometer.manifests.errors import ConfigurationError

JAEGER_UI_PORT = 16686
_ALLOWED = (
    "HOST[:PORT], http[s]://HOST[:PORT][/PATH], jaeger://HOST[:PORT], jaeger+http://HOST[:PORT] or "
    "zipkin://HOST[:PORT]"
)
TRACE_ID_MARK = "{trace_id}"
"""Where a template of links has the id of the trace."""
_LABEL = r"[a-z0-9_]([a-z0-9_-]{0,61}[a-z0-9_])?"
_HOST_NAME = re.compile(rf"{_LABEL}(\.{_LABEL})*\.?")
_MAX_PORT = 65_535
_SHOWN = 80


class TraceProtocol(Enum):
    """The protocol of a collector: its common name, and the scheme, default port and path of an address."""

    def __init__(self, title: str, scheme: str, port: int, path: str) -> None:
        self.title = title
        self.scheme = scheme
        self.port = port
        self.path = path

    OTLP_GRPC = ("OTLP/gRPC", "", 4317, "")
    OTLP_HTTP = ("OTLP/HTTP", "http", 4318, "/v1/traces")
    OTLP_HTTPS = ("OTLP/HTTPS", "https", 4318, "/v1/traces")
    JAEGER_UDP = ("Jaeger Thrift over UDP", "jaeger", 6831, "")
    JAEGER_HTTP = ("Jaeger Thrift over HTTP", "jaeger+http", 14268, "/api/traces?format=jaeger.thrift")
    ZIPKIN = ("Zipkin's JSON over HTTP", "zipkin", 9411, "/api/v2/spans")


@dataclass(frozen=True, slots=True)
class TraceAddress:
    """The destination of spans.

    ``host`` is a name, an IPv4 address, or an IPv6 address without its brackets; ``path`` is the path and
    query of an HTTP server with the leading slash, and empty for other protocols.
    """

    protocol: TraceProtocol
    host: str
    port: int
    path: str = ""

    @classmethod
    def parse(cls, text: str) -> TraceAddress:
        """Returns the address that ``--tracer_address`` names; raises ConfigurationError if it is not valid.

        ``HOST`` alone is OTLP/gRPC, ``http://`` and ``https://`` are OTLP/HTTP, ``jaeger://`` is Jaeger's
        Thrift over UDP and ``jaeger+http://`` the same over HTTP; ``zipkin://`` is Zipkin's JSON over HTTP.
        The port of Jaeger's web pages, where no Jaeger accepts spans, means the default port.
        """
        given = text.strip()
        scheme, separator, _ = given.rpartition("://")
        protocol = next((p for p in TraceProtocol if p.scheme == scheme.lower()), None)
        if protocol is None or bool(separator) != bool(protocol.scheme):
            raise _refused(text, f"allowed: {_ALLOWED}")
        if any(character.isspace() or not character.isprintable() for character in given):
            raise _refused(text, f"allowed: {_ALLOWED}")  # urlsplit would remove some of them
        try:
            parts = urlsplit(given if separator else f"//{given}")
        except ValueError:  # its own message does not help, such as "Invalid IPv6 URL"
            raise _refused(text, f"allowed: {_ALLOWED}") from None
        host = _host(text, parts)
        port = _port(text, parts)
        asked = parts.path.rstrip("/") + (f"?{parts.query}" if parts.query else "")
        if parts.fragment or (asked and not protocol.path):
            raise _refused(text, f"allowed: {_ALLOWED}")
        if port is None or (port == JAEGER_UI_PORT and not asked):
            port = protocol.port
        return cls(protocol, host, port, asked or protocol.path)

    @property
    def netloc(self) -> str:
        """The host and the port, as in a URL."""
        return f"{self._bracketed}:{self.port}"

    @property
    def url(self) -> str:
        """The URL that accepts spans; only for protocols over HTTP."""
        scheme = "https" if self.protocol is TraceProtocol.OTLP_HTTPS else "http"
        return f"{scheme}://{self.netloc}{self.path}"

    @property
    def is_loopback(self) -> bool:
        """Whether it is on this machine, which no proxy can reach."""
        try:
            return ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return self.host.rstrip(".").rpartition(".")[2] == "localhost"

    def trace_url(self, trace_id: str) -> str:
        """Returns the web page of a trace in a Zipkin there, or a Jaeger on this host and the usual port."""
        if self.protocol is TraceProtocol.ZIPKIN:
            return f"http://{self.netloc}/zipkin/traces/{trace_id}"
        return f"http://{self._bracketed}:{JAEGER_UI_PORT}/trace/{trace_id}"

    @property
    def _bracketed(self) -> str:
        return f"[{self.host}]" if ":" in self.host else self.host

    def __str__(self) -> str:
        """Returns the full address, which ``parse`` accepts."""
        scheme = self.protocol.scheme
        return f"{scheme}://{self.netloc}{self.path}" if scheme else self.netloc


@dataclass(frozen=True, slots=True)
class TraceLink:
    """The web pages of traces, where they are not those that the address of the collector implies.

    ``template`` is a URL with ``{trace_id}`` in it.
    """

    template: str

    @classmethod
    def parse(cls, text: str) -> TraceLink:
        """Parses ``--trace_url``; raises ConfigurationError if it is not valid.

        A URL without ``{trace_id}`` is where a Jaeger is.
        """
        given = text.strip()
        try:
            parts = urlsplit(given)
            host, _ = parts.hostname, parts.port
        except ValueError:
            host = None
        if not host or parts.scheme not in {"http", "https"} or not given.isprintable() or " " in given:
            raise ConfigurationError(
                f"trace url {given[:_SHOWN]!r}: allowed: http[s]://HOST[:PORT] of a Jaeger, or a URL with "
                f"{TRACE_ID_MARK} in it"
            )
        if "@" in parts.netloc:  # the link is displayed and stored
            raise ConfigurationError("trace url: it must hold no user and no password")
        return cls(given if TRACE_ID_MARK in given else f"{given.rstrip('/')}/trace/{TRACE_ID_MARK}")

    def of(self, trace_id: str) -> str:
        """Returns the web page of a trace."""
        return self.template.replace(TRACE_ID_MARK, trace_id)


def _host(text: str, parts: SplitResult) -> str:
    """Returns the host, or raises ConfigurationError."""
    host = parts.hostname or ""
    if "@" in parts.netloc:
        # without the address, which contains a password
        raise ConfigurationError(
            "tracer address: it must hold no user and no password; OTEL_EXPORTER_OTLP_HEADERS may"
        )
    if parts.netloc.startswith("["):
        try:
            ipaddress.IPv6Address(host)
        except ValueError:
            raise _refused(text, f'"{host[:_SHOWN]}" is no IPv6 address') from None
    elif parts.netloc.count(":") > 1:
        raise _refused(text, "an IPv6 address stands in brackets, such as [::1]:4317")
    elif not _HOST_NAME.fullmatch(host):
        raise _refused(text, f"allowed: {_ALLOWED}")
    return host


def _port(text: str, parts: SplitResult) -> int | None:
    """Returns the port, None if none is given, or raises ConfigurationError."""
    try:
        port = parts.port
    except ValueError:
        port = 0
    if port == 0 or parts.netloc.endswith(":"):
        raise _refused(text, f"the port must be 1 to {_MAX_PORT}")
    return port


def _refused(text: str, what: str) -> ConfigurationError:
    shown = text if len(text) <= _SHOWN else f"{text[:_SHOWN]}…"
    return ConfigurationError(f"tracer address {shown!r}: {what}")
