"""Requests to web servers for files: redirects, proxies, and what of this network they may lead to."""

from __future__ import annotations

import socket
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from urllib.parse import SplitResult, unquote, urljoin, urlsplit

import urllib3
from urllib3.exceptions import ConnectTimeoutError, NewConnectionError
from urllib3.util import Timeout, make_headers

from agent.addresses import is_public, shown

MAX_REDIRECTS = 5
_REDIRECTS = frozenset({301, 302, 303, 307, 308})
_PORTS = {"http": 80, "https": 443}
_HEADERS = {"User-Agent": "inferscope", "Accept": "*/*", "Accept-Encoding": "identity"}


class RefusedError(Exception):
    """An address that is not asked for anything; the reason is a phrase without a subject."""


@dataclass(frozen=True, slots=True)
class _Address:
    """The parts of a URL that decide where a request goes."""

    url: str
    scheme: str
    host: str
    port: int
    target: str

    @classmethod
    def of(cls, url: str) -> _Address:
        """Takes a URL apart.

        Raises:
            RefusedError: It is none that can be asked for a file.
        """
        try:
            parts: SplitResult = urlsplit(url)
            scheme, host, port = parts.scheme.lower(), parts.hostname, parts.port
        except ValueError as error:
            raise RefusedError(f"is no address: {error}") from error
        if scheme not in _PORTS:
            raise RefusedError("is no http or https address")
        if not host:
            raise RefusedError("names no host")
        if parts.username is not None:
            raise RefusedError("holds a user name, which is not used")
        query = f"?{parts.query}" if parts.query else ""
        return cls(url, scheme, host, port or _PORTS[scheme], f"{parts.path or '/'}{query}")

    @property
    def netloc(self) -> str:
        """Host and port, as a URL has them."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return host if self.port == _PORTS[self.scheme] else f"{host}:{self.port}"

    def at(self, host: str) -> str:
        """The URL with another host, or IP address, and without a fragment."""
        host = f"[{host}]" if ":" in host else host
        return f"{self.scheme}://{host}:{self.port}{self.target}"

    def is_served_by(self, other: _Address) -> bool:
        """Whether the other is on the same host and port, or has moved from http to https there."""
        default = (self.port, other.port) == (443, 80) and (self.scheme, other.scheme) == ("https", "http")
        return self.host == other.host and (self.port == other.port or default)


@contextmanager
def open_url(url: str, headers: Mapping[str, str], timeout: Timeout) -> Iterator[urllib3.BaseHTTPResponse]:
    """Asks for what is at a URL; the answer is read within the ``with`` block.

    The URL itself may lead to this machine or into a private network: who wrote it is trusted with that. A
    redirect may not, unless it stays on the URL's own host and port; of such a redirect the address that is
    checked is the one that is connected to. Proxies that the environment names are used. Where there is one,
    it looks names up, and those that this machine can look up are checked here.

    Args:
        url: An http or https address; at most five redirects are followed, none from https to http.
        headers: What is asked with, beside what always is.
        timeout: Of each connection, and of each wait for more.

    Raises:
        RefusedError: An address is not one that may be asked.
        urllib3.exceptions.HTTPError, OSError, ValueError, http.client.HTTPException: It cannot be had.
    """
    first = address = _Address.of(url)
    for _ in range(MAX_REDIRECTS + 1):
        with ExitStack() as resources:
            trusted = address.is_served_by(first)
            answer = _ask(address, {**_HEADERS, **headers}, timeout, resources, trusted=trusted)
            resources.callback(answer.close)
            location = answer.headers.get("Location") if answer.status in _REDIRECTS else None
            if location is None:
                yield answer
                return
        redirected = _redirected(address, location)
        if (address.scheme, redirected.scheme) == ("https", "http"):
            raise RefusedError(f"redirects from https to {shown(redirected.url)}, which anybody can change")
        address = redirected
    raise RefusedError(f"redirects more than {MAX_REDIRECTS} times")


def _redirected(address: _Address, location: str) -> _Address:
    try:
        return _Address.of(urljoin(address.url, location))
    except RefusedError as error:
        raise RefusedError(f"redirects to {shown(location)}, which {error}") from error
    except ValueError as error:
        raise RefusedError(f"redirects to {shown(location)}, which is no address: {error}") from error


def _ask(
    address: _Address,
    headers: Mapping[str, str],
    timeout: Timeout,
    resources: ExitStack,
    *,
    trusted: bool,
) -> urllib3.BaseHTTPResponse:
    """Asks one server, over a connection that the ``resources`` then hold."""
    if proxy := _proxy(address):
        if not trusted:
            _check_name(address)
        return _request(resources.enter_context(proxy), address.at(address.host), headers, timeout)
    if trusted:
        pool = resources.enter_context(urllib3.PoolManager(num_pools=1))
        return _request(pool, address.at(address.host), headers, timeout)
    pool = urllib3.PoolManager(num_pools=1, server_hostname=address.host, assert_hostname=address.host)
    resources.enter_context(pool)
    return _ask_public(pool, address, {**headers, "Host": address.netloc}, timeout)


def _ask_public(
    pool: urllib3.PoolManager, address: _Address, headers: Mapping[str, str], timeout: Timeout
) -> urllib3.BaseHTTPResponse:
    """Asks at the first of a host's public addresses that can be connected to, and at no other."""
    try:
        public = [ip for ip in _look_up(address) if is_public(ip)]
    except OSError as error:
        reason = error.strerror or error
        raise RefusedError(f"redirects to {shown(address.url)}, which is not known: {reason}") from error
    if not public:
        raise RefusedError(_leads_inside(address))
    for ip in public[:-1]:
        with suppress(ConnectTimeoutError, NewConnectionError):
            return _request(pool, address.at(ip), headers, timeout)
    return _request(pool, address.at(public[-1]), headers, timeout)


def _request(
    pool: urllib3.PoolManager, url: str, headers: Mapping[str, str], timeout: Timeout
) -> urllib3.BaseHTTPResponse:
    return pool.request(
        "GET",
        url,
        headers=headers,
        timeout=timeout,
        retries=False,
        redirect=False,
        preload_content=False,
        decode_content=False,
    )


def _proxy(address: _Address) -> urllib3.ProxyManager | None:
    """The proxy that the environment names for an address."""
    url = urllib.request.getproxies().get(address.scheme)
    if not url or urllib.request.proxy_bypass(address.host):
        return None
    parts = urlsplit(url if "://" in url else f"http://{url}")
    address_only = f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}"
    credentials = f"{unquote(parts.username)}:{unquote(parts.password or '')}" if parts.username else None
    try:
        return urllib3.ProxyManager(
            address_only, num_pools=1, proxy_headers=make_headers(proxy_basic_auth=credentials)
        )
    except ValueError as error:
        raise RefusedError(f"the proxy {shown(address_only)} cannot be used: {error}") from error


def _check_name(address: _Address) -> None:
    """Refuses a host that is known here and leads inside; of others only the proxy knows where they lead."""
    try:
        found = _look_up(address)
    except OSError:
        return
    if not all(is_public(ip) for ip in found):
        raise RefusedError(_leads_inside(address))


def _look_up(address: _Address) -> list[str]:
    found = socket.getaddrinfo(address.host, address.port, type=socket.SOCK_STREAM)
    return list(dict.fromkeys(str(entry[4][0]) for entry in found))


def _leads_inside(address: _Address) -> str:
    return (
        f"redirects to {shown(address.url)}, which is on this machine or in a private network; if that is "
        "right, let the manifest name it"
    )
