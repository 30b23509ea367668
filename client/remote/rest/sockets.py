"""Connections to one HTTP server, and blocking requests over them, one at a time per connection."""

from __future__ import annotations

import select
import socket
import ssl
import time
from collections import deque

from inferometer.agent.closeable import Closeable
from inferometer.agent.protocol.pem_files import read_authorities, read_identity
from inferometer.client.remote.channel.address import AgentAddress
from inferometer.client.remote.channel.connection import CONNECT_TIMEOUT_S, ClientTls
from inferometer.client.remote.rest.failures import of_connecting, of_exchange
from inferometer.client.remote.rest.responses import Incoming, NoHttpError
from inferometer.manifests.errors import SessionError

MAX_IDLE_S = 3.0
"""Servers close idle connections, uvicorn after 5 s: a request that crosses that on its way is lost."""
_PIECE_BYTES = 256 * 1024


def tls_context(tls: ClientTls) -> ssl.SSLContext:
    """Returns the TLS context; without ``authorities``, it trusts those of the system.

    Raises:
        ConfigurationError: A file cannot be used.
    """
    trusted = None if tls.authorities is None else read_authorities(tls.authorities)
    context = ssl.create_default_context(
        cadata=None if trusted is None else trusted.decode("ascii", errors="replace").replace("\ufffd", "?")
    )
    if tls.certificate is not None and tls.key is not None:
        read_identity(tls.certificate, tls.key)
        context.load_cert_chain(tls.certificate, tls.key)
    context.set_alpn_protocols(["http/1.1"])
    return context


class Endpoint:
    """The address of a server, and the TLS context for it; None disables TLS."""

    def __init__(self, address: AgentAddress, tls: ClientTls | None) -> None:
        self.host = address.host.strip("[]")
        self.port = address.port
        tls = (tls or ClientTls()) if address.secure else None
        self.context = None if tls is None else tls_context(tls)
        self.server_name = self.host if tls is None or tls.server_name is None else tls.server_name

    def connect(self, timeout_s: float) -> socket.socket:
        """Makes a connection; raises HttpFailure if it cannot be made."""
        try:
            plain = socket.create_connection((self.host, self.port), timeout_s)
            plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if self.context is None:
                return plain
            try:
                return self.context.wrap_socket(plain, server_hostname=self.server_name)
            except BaseException:
                plain.close()
                raise
        except (OSError, UnicodeError) as error:  # the second of a name that is none
            raise of_connecting(error if isinstance(error, OSError) else socket.gaierror()) from error


class Exchanges(Closeable):
    """Sends requests and waits for their responses, over connections that it keeps. Thread-safe."""

    def __init__(self, endpoint: Endpoint, name: str) -> None:
        self._endpoint = endpoint
        self._name = name
        self._idle: deque[tuple[socket.socket, float]] = deque()
        self._closed = False

    def exchange(self, request: bytes, timeout_s: float | None) -> bytes:
        """Returns the response to a request, in the form that ``Response.parse`` reads.

        Raises:
            HttpFailure: The request failed, or was not answered within the timeout.
            SessionError: The object is closed.
        """
        if self._closed:
            raise SessionError(f"the connection to {self._name} is closed; open another")
        end_s = None if timeout_s is None else time.monotonic() + timeout_s
        found = self._take()
        is_first = found is None
        if found is None:
            least_s = CONNECT_TIMEOUT_S if timeout_s is None else min(CONNECT_TIMEOUT_S, timeout_s)
            found = self._endpoint.connect(least_s)
        try:
            incoming = _exchanged(found, request, end_s)
        except (OSError, NoHttpError) as error:
            found.close()
            raise of_exchange(error, is_first=is_first) from error
        except BaseException:
            found.close()
            raise
        if incoming.keeps_open and not self._closed:
            self._idle.append((found, time.monotonic()))
        else:
            found.close()
        return incoming.content

    def close(self) -> None:
        """Closes the connections; calling it again does nothing."""
        self._closed = True
        while self._idle:
            self._idle.pop()[0].close()

    def _take(self) -> socket.socket | None:
        while self._idle:
            try:
                found, since_s = self._idle.pop()
            except IndexError:  # another thread has it
                return None
            if time.monotonic() - since_s < MAX_IDLE_S and not _has_ended(found):
                return found
            found.close()
        return None


def _exchanged(connection: socket.socket, request: bytes, end_s: float | None) -> Incoming:
    _limit(connection, end_s)
    connection.sendall(request)
    incoming = Incoming()
    while True:
        _limit(connection, end_s)
        data = connection.recv(_PIECE_BYTES)
        if not data:
            if incoming.end():
                return incoming
            raise ConnectionResetError("the server has closed the connection")
        if incoming.feed(data):
            return incoming


def _has_ended(connection: socket.socket) -> bool:
    """Returns whether the server has closed an idle connection, or sent what was not asked for."""
    waiting = select.poll()
    waiting.register(connection, select.POLLIN)
    return bool(waiting.poll(0))


def _limit(connection: socket.socket, end_s: float | None) -> None:
    if end_s is None:
        connection.settimeout(None)
        return
    left_s = end_s - time.monotonic()
    if left_s <= 0:
        raise TimeoutError
    connection.settimeout(left_s)
