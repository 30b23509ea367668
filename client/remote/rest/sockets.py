"""Connections to one HTTP server: blocking requests, one at a time per connection, and concurrent flights.

In flights, one thread receives the responses. The sending thread connects, and writes directly to the socket,
without waiting for another thread: that only handles TLS, and what the socket does not accept at once.
Connections are kept for reuse.
"""

from __future__ import annotations

import logging
import math
import os
import select
import socket
import ssl
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future, InvalidStateError
from contextlib import suppress
from functools import partial
from typing import Any, cast

from inferometer.agent.protocol.pem_files import read_authorities, read_identity
from inferometer.client.remote.address import AgentAddress
from inferometer.client.remote.connection import CONNECT_TIMEOUT_S, ClientTls
from inferometer.client.remote.rest.responses import (
    HttpFailure,
    Incoming,
    NoHttpError,
    late,
    lost,
    of_connecting,
    of_exchange,
)
from inferometer.evaluators.load.issuer import prompt_wakeups
from inferometer.manifests.errors import SessionError

MAX_IDLE_S = 3.0
"""How long to keep idle connections: servers close them, uvicorn after 5 s, losing requests in transit."""
CROSSING_S = 0.1
"""A request on a kept connection that closes within this time, without a byte of a response, is sent again on
a new one: some servers close connections after a response without announcing it, llama.cpp after each stream.
A server that crashes as fast looks the same, so ``Endpoint`` counts such requests.
"""
_PIECE_BYTES = 256 * 1024
_LEAST_S = 1e-3  # of a timeout, as 0 would mean not to wait
_log = logging.getLogger(__name__)


def tls_context(tls: ClientTls) -> ssl.SSLContext:
    """Returns the TLS context; without ``authorities``, it trusts the system's authorities.

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
        self.resent = 0
        """How many requests were sent again since ``report``."""

    def report(self) -> None:
        """Warns of requests that were sent again."""
        count, self.resent = self.resent, 0
        if count:
            where = f"server {self.host}:{self.port}"
            _log.warning("%s: closed kept connections unannounced; requests sent again: %d", where, count)

    def connect(self, timeout_s: float) -> socket.socket:
        """Makes a connection; raises HttpFailure if it cannot be made."""
        try:
            plain = socket.create_connection((self.host, self.port), timeout_s)
            plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if self.context is None:
                return plain
            return self.context.wrap_socket(plain, server_hostname=self.server_name)
        except (OSError, UnicodeError) as error:  # the second of a name that is none
            raise of_connecting(error) from error


class Exchanges:
    """Sends requests over connections that it keeps, and waits for their responses or not. Thread-safe."""

    def __init__(self, endpoint: Endpoint, name: str) -> None:
        self._endpoint = endpoint
        self._name = name
        self._idle: deque[tuple[socket.socket, float]] = deque()
        self._flights: Flights | None = None
        self._closed = False
        self._lock = threading.Lock()

    def exchange(self, request: bytes, timeout_s: float | None, *, anew: bool = False) -> bytes:
        """Returns the response to a request, in the form that ``Response.parse`` reads.

        ``anew`` makes a new connection for it.

        Raises:
            HttpFailure: The request failed, or was not answered within the timeout.
            SessionError: The object is closed.
        """
        self._check_open()
        end_s = None if timeout_s is None else time.monotonic() + timeout_s
        found, incoming = None if anew else self._take(), Incoming()
        is_first = found is None
        if found is None:
            least_s = CONNECT_TIMEOUT_S if timeout_s is None else min(CONNECT_TIMEOUT_S, timeout_s)
            found = self._endpoint.connect(least_s)
        sent_s = time.monotonic()
        try:
            _exchange(found, request, end_s, incoming)
        except (OSError, NoHttpError) as error:
            found.close()
            if not is_first and isinstance(error, ConnectionError) and _crossed(incoming, sent_s):
                self._endpoint.resent += 1
                left_s = None if end_s is None else max(end_s - time.monotonic(), _LEAST_S)
                return self.exchange(request, left_s, anew=True)
            raise of_exchange(error, is_first=is_first) from error
        except BaseException:
            found.close()
            raise
        if incoming.keeps_open and not self._closed:
            self._idle.append((found, time.monotonic()))
        else:
            found.close()
        return incoming.content

    def begin(self, request: bytes, timeout_s: float | None, *, stamped: bool = False) -> HttpCall:
        """Sends a request without waiting; see ``Flights``. Raises SessionError if the object is closed."""
        return (self._flights or self._take_off()).begin(request, timeout_s, stamped=stamped)

    def hold(self) -> Callable[[], object]:
        """Starts the thread for the calls of ``begin``; returns a function that ends it."""
        self._take_off()
        return self._land

    def close(self) -> None:
        """Closes the connections; calling it again does nothing."""
        with self._lock:
            self._closed = True
        self._land()
        self._endpoint.report()
        while self._idle:
            self._idle.pop()[0].close()

    def _check_open(self) -> None:
        if self._closed:
            raise SessionError(f"the connection to {self._name} is closed; open another")

    def _take_off(self) -> Flights:
        with self._lock:
            self._check_open()
            self._flights = self._flights or Flights(self._endpoint)
            return self._flights

    def _land(self) -> None:
        with self._lock:
            flights, self._flights = self._flights, None
        if flights is not None:
            flights.close()

    def _take(self) -> socket.socket | None:
        with suppress(IndexError):  # none is left
            while True:
                found, since_s = self._idle.pop()
                waiting = select.poll()  # finds one that the server has closed, or that has unrequested data
                waiting.register(found, select.POLLIN)
                if time.monotonic() - since_s < MAX_IDLE_S and not waiting.poll(0):
                    return found
                found.close()
        return None


def _exchange(connection: socket.socket, request: bytes, end_s: float | None, incoming: Incoming) -> None:
    _limit(connection, end_s)
    connection.sendall(request)
    while True:
        _limit(connection, end_s)
        data = connection.recv(_PIECE_BYTES)
        if not data and not incoming.end():
            raise ConnectionResetError("the server has closed the connection")
        if not data or incoming.feed(data):
            return


def _crossed(incoming: Incoming, sent_s: float) -> bool:
    """Returns whether a kept connection was lost because the server closed it while the request was sent."""
    return incoming.is_empty and time.monotonic() - sent_s < CROSSING_S


def _limit(connection: socket.socket, end_s: float | None) -> None:
    left_s = None if end_s is None else end_s - time.monotonic()
    if left_s is not None and left_s <= 0:
        raise TimeoutError
    connection.settimeout(left_s)


_CHECK_S = 0.1
_CLOSING_S = 10.0
_BOTH = select.EPOLLIN | select.EPOLLOUT


class HttpCall(Future[bytes]):
    """A request in flight; its result is the response, as ``Response.parse`` reads it, or an HttpFailure.

    ``stamped`` keeps when each piece of the response arrives, as the pieces of a stream do one by one.
    """

    def __init__(self, end_s: float | None, *, stamped: bool = False) -> None:
        super().__init__()
        self.end_s = end_s
        """The time of the timeout on the monotonic clock; None for never."""
        self.connection: _Connection | None = None
        self.incoming = Incoming()
        """The response as far as it has arrived."""
        self.arrivals: list[tuple[int, int]] | None = [] if stamped else None
        """For each piece, the time in ns (``perf_counter_ns``), and how many bytes have arrived by then."""

    def cancel(self) -> bool:
        """Cancels the request, and closes its connection."""
        cancelled = super().cancel()
        if cancelled and (connection := self.connection) is not None:
            connection.flights.later(self._drop)
        return cancelled

    def answer(self, content: bytes) -> None:
        """Sets the response, unless the call was cancelled."""
        with suppress(InvalidStateError):
            self.set_result(content)

    def fail(self, failure: HttpFailure) -> None:
        """Sets the failure, unless the call has ended."""
        with suppress(InvalidStateError):
            self.set_exception(failure)

    def _drop(self) -> None:
        if self.connection is not None and self.connection.call is self:
            self.connection.close()


class _Connection:
    """One connection. Any thread may open it, and use it while idle; the flights' thread does the rest."""

    def __init__(self, flights: Flights, call: HttpCall, request: bytes) -> None:
        self.flights = flights
        self.call: HttpCall | None = call
        call.connection = self
        self.number = -1
        self._socket: socket.socket | None = None
        self._places = iter(flights.places)
        self._is_made = False
        self._wants = _BOTH
        self._rest = memoryview(request)
        self._again: bytes | None = None
        self._since_s = time.monotonic()  # it connects, is idle, or has sent the request

    def open(self, failure: OSError | UnicodeError) -> None:
        """Connects to the next address that accepts it; if there is none, the call fails."""
        for family, kind, protocol, _, place in self._places:
            try:
                made = self._socket = socket.socket(family, kind | socket.SOCK_NONBLOCK, protocol)
                self.number = made.fileno()
                made.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                with suppress(BlockingIOError):
                    made.connect(place)
                with suppress(BlockingIOError):  # a server on this machine has accepted it by now
                    self._is_made = self.flights.endpoint.context is None and self._write(made)
            except OSError as error:
                self.close()
                failure = error
                continue
            self._wants = select.EPOLLIN if self._is_made else _BOTH
            self.flights.open[self.number] = self
            with suppress(OSError, ValueError):  # the connection or the flights are closed
                self.flights.ready.register(self.number, self._wants)
            if self.flights.is_over:
                self.lose()
            return
        self.fail(of_connecting(failure))

    def use(self, call: HttpCall, request: bytes) -> None:
        """Sends a request over this connection, which is idle."""
        self._again, self._since_s = request, time.monotonic()
        call.connection, self.call = self, call  # last, as its end may be noticed at any time
        rest, made = memoryview(request), self._socket
        try:
            if made is not None and not isinstance(made, ssl.SSLSocket):  # that is not thread-safe
                rest = rest[made.send(rest) :]
        except BlockingIOError:
            pass
        except OSError:  # closed by the server, which may not be noticed yet
            made = None
        if made is None or self._socket is None:
            self.flights.later(self.lose)
        elif rest:
            self.flights.later(partial(self._send, rest))

    def proceed(self, ready: int) -> None:
        """Connects, receives and sends, as far as the socket is ready for it."""
        wants = select.EPOLLIN
        try:
            self._is_made = self._is_made or self._connect()
            if ready & ~select.EPOLLOUT:
                self._receive()
            if self._rest and self._socket is not None and not self._write(self._socket):
                wants = _BOTH
        except ssl.SSLWantReadError:
            pass
        except (BlockingIOError, ssl.SSLWantWriteError):
            wants = _BOTH
        except (OSError, UnicodeError) as error:
            if self._is_made:
                self.lose()
            else:
                self.close()
                self.open(error)
            return
        if wants != self._wants and self._socket is not None:
            self._wants = wants
            self.flights.ready.modify(self.number, wants)

    def check(self, now_s: float) -> None:
        """Fails a call that exceeds its timeout, and closes a connection that has been idle too long."""
        call, lasted_s = self.call, now_s - self._since_s
        if call is None:
            if lasted_s > MAX_IDLE_S:
                with suppress(ValueError):  # a request has just taken it
                    self.flights.idle.remove(self)
                    self.close()
        elif now_s > (call.end_s or math.inf) or (lasted_s > CONNECT_TIMEOUT_S and not self._is_made):
            self.fail(late() if self._is_made else of_connecting(TimeoutError()))

    def lose(self) -> None:
        """Closes the connection, and sends the request of its call again, or fails that."""
        self.close()
        call, again = self.call, self._again
        if call is None or call.done() or again is None or not _crossed(call.incoming, self._since_s):
            self.fail(lost())
        else:
            self.call = None
            self.flights.endpoint.resent += 1
            self.flights.connect(call, again)

    def fail(self, failure: HttpFailure) -> None:
        """Closes the connection, and fails its call."""
        self.close()
        call, self.call = self.call, None
        if call is not None:
            call.fail(failure)

    def close(self) -> None:
        """Closes the socket only."""
        made, self._socket = self._socket, None
        if made is not None:
            self.flights.open.pop(self.number, None)
            with suppress(ValueError):
                self.flights.idle.remove(self)
            made.close()

    def _connect(self) -> bool:
        """Returns True once the connection is made; raises what a socket raises until then."""
        made, endpoint = cast("socket.socket", self._socket), self.flights.endpoint
        if code := made.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR):
            raise OSError(code, os.strerror(code))
        if endpoint.context is not None:
            if not isinstance(made, ssl.SSLSocket):
                made = self._socket = endpoint.context.wrap_socket(
                    made, server_hostname=endpoint.server_name, do_handshake_on_connect=False
                )
            made.do_handshake()
        return True

    def _write(self, made: socket.socket) -> bool:
        """Sends what the socket accepts; returns whether that is all."""
        self._rest = self._rest[made.send(self._rest) :]
        return not self._rest

    def _send(self, rest: memoryview) -> None:
        self._rest = rest
        self.proceed(select.EPOLLOUT)

    def _receive(self) -> None:
        made = self._socket
        while made is not None:
            try:
                data = made.recv(_PIECE_BYTES)
            except (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError):
                return
            arrived_ns = time.perf_counter_ns()
            if not data:
                self.close()
            call = self.call
            if call is None:  # no request is pending
                self.close()
                return
            try:
                is_whole = call.incoming.feed(data) if data else call.incoming.end()
            except NoHttpError as error:
                self.fail(of_exchange(error, is_first=False))
                return
            if data and call.arrivals is not None:
                call.arrivals.append((arrived_ns, call.incoming.arrived))
            if is_whole:
                self._answer(call)
            elif not data:
                self.lose()
            made = self._socket if isinstance(made, ssl.SSLSocket) and made.pending() else None

    def _answer(self, call: HttpCall) -> None:
        incoming, self._since_s = call.incoming, time.monotonic()
        self.call = call.connection = None
        if incoming.keeps_open and not self._rest:
            self.flights.idle.append(self)
        else:
            self.close()
        call.answer(incoming.content)


class Flights:
    """Sends requests to a server without waiting. Thread-safe. Runs a thread until it is closed."""

    def __init__(self, endpoint: Endpoint) -> None:
        self.endpoint = endpoint
        self.idle: deque[_Connection] = deque()
        """The idle connections, which the next requests use."""
        self.places: Sequence[tuple[int, int, int, str, Any]] = ()
        """The addresses of the server, whose name is resolved once."""
        self._unknown: OSError | UnicodeError = socket.gaierror()
        try:
            self.places = socket.getaddrinfo(endpoint.host, endpoint.port, type=socket.SOCK_STREAM)
        except (OSError, UnicodeError) as error:
            self._unknown = error
        self.open: dict[int, _Connection] = {}
        """The connections by the number of their socket, for whose events ``ready`` waits."""
        self.ready = select.epoll()
        self._tasks: deque[Callable[[], object]] = deque()
        self._woken, self._waking = socket.socketpair()
        self._woken.setblocking(False)
        self._waking.setblocking(False)
        self.ready.register(self._woken, select.EPOLLIN)
        self._is_closing = self.is_over = False
        self._thread = threading.Thread(target=self._run, name="http-load", daemon=True)
        self._thread.start()

    def begin(self, request: bytes, timeout_s: float | None, *, stamped: bool = False) -> HttpCall:
        """Sends a request; ``timeout_s`` is how long the response may take. See ``HttpCall``."""
        call = HttpCall(None if timeout_s is None else time.monotonic() + timeout_s, stamped=stamped)
        try:
            self.idle.pop().use(call, request)
        except IndexError:
            self.connect(call, request)
        return call

    def connect(self, call: HttpCall, request: bytes) -> None:
        """Sends a request over a new connection."""
        if self.is_over:
            call.fail(lost())
        else:
            _Connection(self, call, request).open(self._unknown)

    def close(self) -> None:
        """Closes the connections, and fails the requests in flight; calling it again does nothing."""
        if self._is_closing:
            return
        self._is_closing = True
        self.later(lambda: None)  # it looks up
        self._thread.join(_CLOSING_S)
        for each in (self.ready, self._woken, self._waking):
            each.close()
        self.endpoint.report()

    def later(self, work: Callable[[], object]) -> None:
        """Has the thread do some work; once that has ended, does it at once."""
        self._tasks.append(work)
        with suppress(OSError):  # many wait already, or the thread has ended
            self._waking.send(b"\0")
        if self.is_over:
            self._work()

    def _run(self) -> None:
        check_s = time.monotonic()
        try:
            with prompt_wakeups():  # it stamps what arrives
                while not self._is_closing:
                    for number, ready in self.ready.poll(_CHECK_S):
                        if number in self.open:
                            self.open[number].proceed(ready)
                        else:
                            self._work()
                    if (now_s := time.monotonic()) > check_s:
                        check_s = now_s + _CHECK_S
                        for connection in list(self.open.values()):
                            connection.check(now_s)
        finally:
            self.is_over = True
            for connection in list(self.open.values()):
                connection.fail(lost())
            self._work()

    def _work(self) -> None:
        with suppress(OSError):
            self._woken.recv(_PIECE_BYTES)
        with suppress(IndexError):
            while True:
                self._tasks.popleft()()
