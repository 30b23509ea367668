"""Getting the image that a URL names, without letting the URL's author reach into this network."""

from __future__ import annotations

import http.client
import socket
import ssl
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from urllib.parse import quote, urljoin, urlsplit

from agent.addresses import is_public, shown
from manifests.errors import InputError

MAX_BYTES = 64 * 1024 * 1024
TIMEOUT_S = 20.0
MAX_REDIRECTS = 5
_CHUNK_BYTES = 1024 * 1024
_REDIRECTS = frozenset({301, 302, 303, 307, 308})
_OK = 200


def fetch_image(
    url: str, *, timeout_s: float = TIMEOUT_S, max_bytes: int = MAX_BYTES, allow_private: bool = False
) -> bytes:
    """Returns what an http or https URL gives.

    Proxies of the environment are not used, because the address that a proxy connects to cannot be checked.

    Args:
        url: The address; at most five redirects are followed, each checked like the first.
        timeout_s: How long the whole may take, in seconds.
        max_bytes: The largest answer.
        allow_private: Whether addresses of this machine and of private networks may be reached. The address
            that is checked is the one that is connected to, so that a name which changes is no way in.

    Raises:
        InputError: It cannot be had.
    """
    deadline_s = time.monotonic() + timeout_s
    address = url
    for _ in range(MAX_REDIRECTS + 1):
        with _failures_named(address, deadline_s, timeout_s):
            content, location = _request(address, deadline_s, max_bytes, allow_private)
        if location is None:
            return content
        address = urljoin(address, location)
    raise InputError(f"{shown(url)}: redirects more than {MAX_REDIRECTS} times")


@contextmanager
def _failures_named(url: str, deadline_s: float, timeout_s: float) -> Iterator[None]:
    """Turns what goes wrong on the way into an error that names the URL."""
    try:
        yield
    except InputError as error:
        raise InputError(f"{shown(url)}: {error}") from error
    except (OSError, http.client.HTTPException, UnicodeError, ValueError) as error:
        if time.monotonic() >= deadline_s:
            raise InputError(f"{shown(url)}: did not answer within {timeout_s:g} s") from error
        reason = getattr(error, "strerror", None) or str(error) or type(error).__name__
        raise InputError(f"{shown(url)}: cannot be fetched: {' '.join(reason.split())}") from error


def _request(url: str, deadline_s: float, max_bytes: int, allow_private: bool) -> tuple[bytes, str | None]:
    """Asks once; returns the content, or where it has gone to."""
    parts = urlsplit(url)
    if parts.scheme.lower() not in {"http", "https"}:
        raise InputError("is no http or https address")
    if not parts.hostname or parts.username is not None:
        raise InputError("names no host" if not parts.hostname else "holds a user name, which is not used")
    connection = _Connection(parts.hostname, parts.port, parts.scheme.lower() == "https", allow_private)
    connection.timeout = _left_s(deadline_s)
    breaker = threading.Timer(_left_s(deadline_s), connection.break_off)
    breaker.daemon = True
    breaker.start()
    try:
        target = quote(parts.path or "/", safe="/%:@!$&'()*+,;=~-._")
        query = quote(parts.query, safe="/%:@!$&'()*+,;=~-._?")
        connection.request("GET", f"{target}?{query}" if query else target, headers=_HEADERS)
        answer = connection.getresponse()
        if answer.status in _REDIRECTS and (location := answer.getheader("Location")):
            return b"", location
        if answer.status != _OK:
            raise InputError(f"the server answered {answer.status} {shown(answer.reason)}".strip())
        return _read(answer, deadline_s, max_bytes), None
    finally:
        breaker.cancel()
        connection.close()


_HEADERS = {"User-Agent": "inferscope", "Accept": "image/*, */*;q=0.1", "Connection": "close"}


def _read(answer: http.client.HTTPResponse, deadline_s: float, max_bytes: int) -> bytes:
    """Reads an answer of at most ``max_bytes``."""
    too_large = f"is larger than {max_bytes} bytes"
    if answer.length is not None and answer.length > max_bytes:
        raise InputError(too_large)
    expected, content = answer.length, bytearray()
    while chunk := answer.read(min(_CHUNK_BYTES, max_bytes + 1 - len(content))):
        content += chunk
        if len(content) > max_bytes:
            raise InputError(too_large)
    if time.monotonic() >= deadline_s:
        raise TimeoutError
    if expected is not None and len(content) < expected:
        raise InputError(f"ended after {len(content)} of {expected} bytes")
    return bytes(content)


class _Connection(http.client.HTTPConnection):
    """A connection that checks the address it connects to."""

    def __init__(self, host: str, port: int | None, secure: bool, allow_private: bool) -> None:
        super().__init__(host, port or (443 if secure else 80))
        self._secure = secure
        self._allow_private = allow_private
        self._socket: socket.socket | None = None

    def connect(self) -> None:
        """Connects to the first of the host's addresses that may be reached and answers."""
        found = socket.getaddrinfo(self.host, self.port, type=socket.SOCK_STREAM)
        allowed = [entry for entry in found if self._allow_private or is_public(str(entry[4][0]))]
        if not allowed:
            raise InputError("leads to this machine or a private network, which is not allowed")
        failure: OSError | None = None
        for family, kind, protocol, _, address in allowed:
            connecting = socket.socket(family, kind, protocol)
            try:
                connecting.settimeout(self.timeout)
                connecting.connect(address)
            except OSError as error:
                connecting.close()
                failure = error
            else:
                self._socket = self.sock = connecting
                break
        else:
            raise failure or OSError("no address answers")
        if self._secure:
            context = ssl.create_default_context()
            secured = context.wrap_socket(self.sock, server_hostname=self.host, do_handshake_on_connect=False)
            self._socket = self.sock = secured  # known before the handshake, which may have to be broken off
            secured.do_handshake()

    def break_off(self) -> None:
        """Ends whatever the connection is waiting for; to be called from another thread."""
        if self._socket is not None:
            with suppress(OSError):  # it may have ended already
                self._socket.shutdown(socket.SHUT_RDWR)


def _left_s(deadline_s: float) -> float:
    left_s = deadline_s - time.monotonic()
    if left_s <= 0:
        raise TimeoutError
    return left_s
