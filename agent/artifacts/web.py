"""HTTP and HTTPS requests: redirects, proxies, deadlines, and the addresses to which a URL may lead."""

from __future__ import annotations

import http.client
import socket
import threading
import time
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeoutError  # another class in Python 3.10
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from enum import Enum
from typing import Any, TypeAlias
from urllib.parse import SplitResult, unquote, urljoin, urlsplit

import urllib3
from urllib3.connection import HTTPConnection
from urllib3.exceptions import (
    ConnectTimeoutError,
    HTTPError,
    IncompleteRead,
    NameResolutionError,
    NewConnectionError,
    ProtocolError,
    ProxyError,
)
from urllib3.exceptions import TimeoutError as UrllibTimeoutError
from urllib3.util import Timeout, make_headers

from inferometer.agent.artifacts.locations import is_public, shown
from inferometer.manifests.errors import InputError, one_line

MAX_IMAGE_BYTES = 64 * 1024 * 1024
IMAGE_TIMEOUT_S = 20.0
MAX_REDIRECTS = 5
_CHUNK_BYTES = 256 * 1024
_REDIRECTS = frozenset({301, 302, 303, 307, 308})
_PORTS = {"http": 80, "https": 443}
_HEADERS = {"User-Agent": "inferometer", "Accept": "*/*", "Accept-Encoding": "identity"}
_OK = 200
_TRANSIENT = frozenset({408, 425, 429})
_SERVER_ERRORS = 500
_LEAST_CONNECT_S = 0.001
_Resolved: TypeAlias = "tuple[socket.AddressFamily, socket.SocketKind, int, str, tuple[Any, ...]]"
"""An address, in the form returned by ``socket.getaddrinfo``."""


class WebError(Exception):
    """A request failed or was refused; the message is a phrase without a subject.

    If the error is ``transient``, a retry may succeed, after the ``retry_after_s`` that the server requests.
    """

    def __init__(self, reason: str, *, transient: bool = False, retry_after_s: float = 0.0) -> None:
        super().__init__(reason)
        self.transient = transient
        self.retry_after_s = retry_after_s


class PrivateAddressError(WebError):
    """A request would connect to this machine or to a private network."""

    def __init__(self) -> None:
        super().__init__("leads to this machine or a private network, which is not allowed")


class TooLargeError(WebError):
    """A file exceeds the size limit."""


class Reach(Enum):
    """The addresses to which a request may connect; they are checked again at each redirect.

    Attributes:
        PUBLIC: Public addresses only. No proxy is used, because the address to which it connects cannot be
            checked.
        ANY: All addresses. No proxy is used.
        ORIGIN: All addresses for the URL itself, whose author is trusted, and for redirects that stay on its
            host and port; public addresses for other redirects. No redirect may lead from https to http. The
            environment's proxies are used: they resolve names, but names that also resolve here are checked.
    """

    PUBLIC = "public"
    ANY = "any"
    ORIGIN = "origin"


@dataclass(frozen=True, slots=True)
class Timeouts:
    """The time limits for each connection, for each wait for data, and for the whole with its redirects."""

    connect_s: float
    read_s: float
    total_s: float | None = None


def fetch_image(
    url: str,
    *,
    timeout_s: float = IMAGE_TIMEOUT_S,
    max_bytes: int = MAX_IMAGE_BYTES,
    allow_private: bool = False,
) -> bytes:
    """Returns the content at an http or https URL.

    At most five redirects are followed; all of it together may take ``timeout_s`` seconds. ``allow_private``
    also allows addresses of this machine and of private networks.

    Raises:
        InputError: The request fails or is refused.
    """
    reach = Reach.ANY if allow_private else Reach.PUBLIC
    try:
        with open_url(
            url,
            Timeouts(timeout_s, timeout_s, timeout_s),
            reach,
            headers={"Accept": "image/*, */*;q=0.1", "Connection": "close"},
        ) as response:
            if response.status != _OK:
                raise response.refusal()
            return b"".join(response.chunks(max_bytes))
    except WebError as error:
        raise InputError(f"{shown(url)}: {error}") from error


@contextmanager
def open_url(
    url: str, timeouts: Timeouts, reach: Reach, *, headers: Mapping[str, str] | None = None
) -> Iterator[Response]:
    """Sends a GET request and yields the response, of which only the headers have been read.

    The request connects to exactly the address that was checked, so a name whose address changes cannot
    circumvent the check. At most five redirects are followed.

    Raises:
        WebError: The request fails or is refused.
    """
    with _Deadline(timeouts) as deadline:
        first = address = _Address.parse(url)
        for _ in range(MAX_REDIRECTS + 1):
            with ExitStack() as resources:
                try:
                    checked = reach is Reach.PUBLIC or (
                        reach is Reach.ORIGIN and not address.is_served_by(first)
                    )
                    proxy = _proxy(address) if reach is Reach.ORIGIN else None
                    if proxy and checked:
                        _check_name(address, deadline)
                    manager = resources.enter_context(proxy or urllib3.PoolManager(num_pools=1))
                    answer = _request(
                        manager,
                        address,
                        {**_HEADERS, **(headers or {})},
                        deadline,
                        public_only=checked and not proxy,
                    )
                except WebError as error:
                    if address is first:
                        raise
                    error.args = (f"redirects to {shown(address.url)}: {error}",)
                    raise
                resources.callback(answer.close)
                location = answer.headers.get("Location") if answer.status in _REDIRECTS else None
                if location is None:
                    yield Response(answer, deadline)
                    return
            redirected = _redirected(address, location)
            if reach is Reach.ORIGIN and (address.scheme, redirected.scheme) == ("https", "http"):
                raise WebError(f"redirects from https to {shown(redirected.url)}, which is not protected")
            address = redirected
        raise WebError(f"redirects more than {MAX_REDIRECTS} times")


class Response:
    """The response to a request; header names are case-insensitive."""

    def __init__(self, answer: urllib3.BaseHTTPResponse, deadline: _Deadline) -> None:
        self._answer = answer
        self._deadline = deadline
        self.status = answer.status
        self.headers: Mapping[str, str] = answer.headers
        self.length = answer.length_remaining  # None if the server does not state it

    def refusal(self) -> WebError:
        """Returns the error for a status other than the expected one."""
        wait = self.headers.get("Retry-After", "")
        return WebError(
            f"the server answered {self.status} {shown(self._answer.reason or '')}".strip(),
            transient=self.status in _TRANSIENT or self.status >= _SERVER_ERRORS,
            retry_after_s=float(wait) if wait.isdecimal() and wait.isascii() else 0.0,
        )

    def chunks(self, max_bytes: int, start: int = 0) -> Iterator[bytes]:
        """Yields the content as it arrives; it begins at position ``start`` of the file.

        Raises WebError if the file is larger, or the content does not arrive in time or in full.
        """
        if self.length is not None and start + self.length > max_bytes:
            raise TooLargeError(f"has {start + self.length} bytes; at most {max_bytes}")
        received = start
        while True:
            with self._deadline.translated_errors():
                chunk = self._answer.read1(_CHUNK_BYTES)
                self._deadline.left_s()  # at the deadline a connection ends as if the server had closed it
            if not chunk:
                return
            received += len(chunk)
            if received > max_bytes:
                raise TooLargeError(f"has more than {max_bytes} bytes")
            yield chunk


class _Deadline:
    """The time limits of one request; when the last limit is reached, the current connection is shut down."""

    def __init__(self, timeouts: Timeouts) -> None:
        self._timeouts = timeouts
        self._end_s = float("inf") if timeouts.total_s is None else time.monotonic() + timeouts.total_s
        self._timer: threading.Timer | None = None
        self._socket: socket.socket | None = None

    def __enter__(self) -> _Deadline:
        if self._timeouts.total_s is not None:
            self._timer = threading.Timer(self._timeouts.total_s, self._shut_down)
            self._timer.daemon = True
            self._timer.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._forget()

    def left_s(self) -> float:
        """Returns the remaining time in seconds; raises TimeoutError if there is none."""
        left_s = self._end_s - time.monotonic()
        if left_s <= 0:
            raise TimeoutError
        return left_s

    def timeout(self) -> Timeout:
        """Returns the limits for the next connection, for urllib3."""
        return Timeout(connect=self.connect_s(), read=min(self._timeouts.read_s, self.left_s()))

    def connect_s(self) -> float:
        """Returns how many seconds the next connection may take, including its name lookup."""
        return min(self._timeouts.connect_s, self.left_s())

    def watch(self, connected: socket.socket) -> None:
        """Shuts down a connection at the deadline, even if it is waiting for data."""
        if self._timer is not None:
            self._forget()
            # a duplicate, because TLS takes the socket itself out of reach during its handshake
            self._socket = connected.dup()
            self.left_s()  # else the timer may have run before

    @contextmanager
    def translated_errors(self) -> Iterator[None]:
        """Turns network errors into WebError."""
        try:
            yield
        except (HTTPError, http.client.HTTPException, OSError, ValueError) as error:
            if time.monotonic() >= self._end_s:
                raise WebError(f"did not answer within {self._timeouts.total_s:g} s") from error
            raise WebError(_reason(error, self._timeouts), transient=_is_transient(error)) from error

    def _shut_down(self) -> None:
        if self._socket is not None:
            with suppress(OSError):  # the connection may have ended already
                self._socket.shutdown(socket.SHUT_RDWR)

    def _forget(self) -> None:
        if self._socket is not None:
            self._socket.close()
            self._socket = None


@dataclass(frozen=True, slots=True)
class _Address:
    """The parts of a URL that decide where a request goes."""

    url: str
    scheme: str
    host: str
    port: int
    target: str

    @classmethod
    def parse(cls, url: str) -> _Address:
        """Parses a URL; raises WebError if it is not the URL of a file on a web server."""
        try:
            parts: SplitResult = urlsplit(url)
            scheme, host, port = parts.scheme.lower(), parts.hostname, parts.port
        except ValueError as error:
            raise WebError(f"is not a valid address: {error}") from error
        if scheme not in _PORTS:
            raise WebError("is not an http or https address")
        if not host:
            raise WebError("names no host")
        if parts.username is not None:
            raise WebError("contains a user name, which is not supported")
        query = f"?{parts.query}" if parts.query else ""
        return cls(url, scheme, host, port or _PORTS[scheme], f"{parts.path or '/'}{query}")

    @property
    def request_url(self) -> str:
        """The URL without its fragment."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{self.scheme}://{host}:{self.port}{self.target}"

    def is_served_by(self, other: _Address) -> bool:
        """Returns whether this is the host and port of ``other``, or its https address if that is http."""
        default = (self.port, other.port) == (443, 80) and (self.scheme, other.scheme) == ("https", "http")
        return self.host == other.host and (self.port == other.port or default)


def _redirected(address: _Address, location: str) -> _Address:
    try:
        return _Address.parse(urljoin(address.url, location))
    except WebError as error:
        raise WebError(f"redirects to {shown(location)}: {error}") from error
    except ValueError as error:
        raise WebError(f"redirects to {shown(location)}: is not a valid address: {error}") from error


def _request(
    manager: urllib3.PoolManager,
    address: _Address,
    headers: Mapping[str, str],
    deadline: _Deadline,
    *,
    public_only: bool,
) -> urllib3.BaseHTTPResponse:
    """Sends one request without following redirects."""
    with deadline.translated_errors():
        pool = manager.connection_from_url(address.request_url)
        attributes = {"deadline": deadline, "public_only": public_only}
        pool.ConnectionCls = type("_Connection", (_WatchedConnection, pool.ConnectionCls), attributes)
        return manager.request(
            "GET",
            address.request_url,
            headers=headers,
            timeout=deadline.timeout(),
            retries=False,
            redirect=False,
            preload_content=False,
            decode_content=False,
        )


class _WatchedConnection(HTTPConnection):
    """A connection that checks the address to which it connects, and that ends at a deadline."""

    deadline: _Deadline
    public_only: bool

    def _new_conn(self) -> socket.socket:
        """Connects to the first of the host's allowed addresses that accepts a connection.

        The name lookup and all attempts share one time limit; each address gets an equal share of the
        remaining time.
        """
        end_s = time.monotonic() + self.deadline.connect_s()
        try:
            found = _look_up(self._dns_host, self.port, end_s)
        except socket.gaierror as error:
            raise NameResolutionError(self.host, self, error) from error
        except TimeoutError as error:
            raise ConnectTimeoutError(self, "no address") from error
        allowed = [entry for entry in found if not self.public_only or is_public(str(entry[4][0]))]
        if not allowed:
            raise PrivateAddressError
        failure: OSError | None = None
        for number, (family, kind, protocol, _, address) in enumerate(allowed):
            connecting = socket.socket(family, kind, protocol)
            try:
                left_s = max(end_s - time.monotonic(), _LEAST_CONNECT_S)
                connecting.settimeout(left_s / (len(allowed) - number))
                connecting.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                connecting.connect(address)
                connecting.settimeout(self.deadline.connect_s())  # for the handshake of TLS
                self.deadline.watch(connecting)
            except OSError as error:
                connecting.close()
                failure = error
            else:
                return connecting
        if isinstance(failure, TimeoutError):
            raise ConnectTimeoutError(self, "no connection") from failure
        raise NewConnectionError(self, str(failure)) from failure


def _look_up(host: str, port: int, end_s: float) -> Sequence[_Resolved]:
    """Returns the addresses of a host; raises TimeoutError after ``end_s``, on the monotonic clock.

    The system's resolver has no time limit, so its thread is abandoned when the time is up.
    """
    answer: Future[Sequence[_Resolved]] = Future()

    def look_up() -> None:
        try:
            answer.set_result(socket.getaddrinfo(host, port, type=socket.SOCK_STREAM))
        except Exception as error:  # noqa: BLE001 - the other thread raises it
            answer.set_exception(error)

    threading.Thread(target=look_up, name="name-lookup", daemon=True).start()
    try:
        return answer.result(max(end_s - time.monotonic(), 0.0))
    except FutureTimeoutError as error:
        raise TimeoutError from error


def _proxy(address: _Address) -> urllib3.ProxyManager | None:
    """Returns the proxy that the environment specifies for an address."""
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
        raise WebError(f"the proxy {shown(address_only)} cannot be used: {error}") from error


def _check_name(address: _Address, deadline: _Deadline) -> None:
    """Rejects a host that this machine resolves to a private address; only the proxy can resolve others."""
    with deadline.translated_errors():
        end_s = time.monotonic() + deadline.connect_s()
    try:
        found = _look_up(address.host, address.port, end_s)
    except OSError:
        return
    if not all(is_public(str(entry[4][0])) for entry in found):
        raise PrivateAddressError


def _is_transient(error: BaseException) -> bool:
    if isinstance(error, ProxyError):
        return _is_transient(error.original_error)
    if isinstance(error, NewConnectionError):  # refused, or the name is unknown: trying again does not help
        return False
    return isinstance(
        error, ProtocolError | UrllibTimeoutError | http.client.HTTPException | TimeoutError | ConnectionError
    ) and not isinstance(error, http.client.InvalidURL)


def _reason(error: BaseException, timeouts: Timeouts) -> str:
    """Returns the cause of a failure, as a phrase."""
    if isinstance(error, ProxyError):
        return f"the proxy: {_reason(error.original_error, timeouts)}"
    if isinstance(error, NewConnectionError | ProtocolError):
        error = error.__cause__ or error
    elif isinstance(error, ConnectTimeoutError):
        return f"no connection within {timeouts.connect_s:g} s"
    elif isinstance(error, UrllibTimeoutError | TimeoutError):
        return f"the server sent nothing for {timeouts.read_s:g} s"
    if isinstance(error, IncompleteRead) and error.expected:
        return f"ended after {error.partial} of {error.partial + error.expected} bytes"
    if isinstance(error, http.client.IncompleteRead):
        return "the connection was lost"
    return shown(one_line(getattr(error, "strerror", None) or error))
