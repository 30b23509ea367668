"""The names that a server answers to: a browser's requests for pages of other sites do not reach it."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterable

from typing_extensions import Self

from inferometer.agent.server.security.binding import is_loopback
from inferometer.manifests.errors import ConfigurationError, one_line

EVERY_HOST = "*"
_LOCAL = "localhost"
_NAME = re.compile(r"[a-z0-9_]([a-z0-9_.-]*[a-z0-9_])?", re.ASCII)


class HostNames:
    """Compares the headers ``Host`` and ``Origin`` of requests with the names of a server.

    A site can make its own name lead to this machine (DNS rebinding), and then the browsers of its visitors
    treat the server as part of the site. The name in ``Host`` tells: a server answers to every IP address,
    which nobody else can give out, to ``localhost`` and names below it, and to the ``names``. Requests
    without the header come from no browser.

    ``names`` are further names, without a port; None answers to any name. ``proxies`` are those that a proxy
    has for the server, whose pages are its own.
    """

    def __init__(self, names: Iterable[str] | None, proxies: Iterable[str] = ()) -> None:
        self._names = None if names is None else frozenset(map(_bare, names))
        self._proxies = frozenset(map(_bare, proxies))

    @classmethod
    def of(cls, allowed: Iterable[str] | None, host: str, *, secret: bool) -> Self:
        """Returns the names of a server that listens on ``host``.

        Args:
            allowed: What the user has allowed, ``*`` for every name. None allows every name to a server that
                requires a ``secret``, which no site knows, or that others can reach too; the rest answer to
                their own only.
            host: Where the server listens.
            secret: Whether it requires one.

        Raises:
            ConfigurationError: One of ``allowed`` is no name, or the host is not known.
        """
        if allowed is None:
            return cls(None if secret or not is_loopback(host) else (host,))
        allowed = tuple(allowed)
        for name in allowed:
            if name != EVERY_HOST and not _is_address(_bare(name)) and not _NAME.fullmatch(_bare(name)):
                raise ConfigurationError(
                    f'allowed_hosts has "{one_line(name, 80)}", which is no name; give names without a port, '
                    f"such as models.example.org, or {EVERY_HOST} for every name"
                )
        return cls(None if EVERY_HOST in allowed else (host, *allowed), allowed)

    def admits(self, host: str | None) -> bool:
        """Returns whether a request with this ``Host`` is meant for the server."""
        if self._names is None or not host:
            return True
        name = _without_port(host)
        return _is_address(name) or name == _LOCAL or name.endswith(f".{_LOCAL}") or name in self._names

    def admits_origin(self, origin: str | None, host: str | None) -> bool:
        """Whether a request with this ``Origin`` comes from a page of the server and not of another site."""
        if origin is None:
            return True
        place = origin.partition("://")[2]
        return place == (host or "") or _without_port(place) in self._proxies


def _without_port(host: str) -> str:
    name, _, port = host.rpartition(":")
    return _bare(name if name and port.isdigit() else host)


def _bare(name: str) -> str:
    return name.strip().strip("[]").rstrip(".").lower()


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True
