"""Connections to one HTTP server: blocking requests, one at a time per connection, and concurrent flights.

In flights, one thread with an event loop receives the responses. The sending thread writes a request directly
to the socket and waits for no other thread; the loop handles only TLS, new connections, and data that the
socket does not accept at once. Connections are kept for reuse.
"""

from __future__ import annotations

import asyncio
import logging
import select
import socket
import ssl
import threading
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, InvalidStateError
from contextlib import suppress
from typing import cast

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
            try:
                return self.context.wrap_socket(plain, server_hostname=self.server_name)
            except BaseException:
                plain.close()
                raise
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
        while self._idle:
            try:
                found, since_s = self._idle.pop()
            except IndexError:  # another thread has it
                return None
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
        if not super().cancel():
            return False
        if self.connection is not None:
            self.connection.drop()
        return True

    def answer(self, content: bytes) -> None:
        """Sets the response, unless the call was cancelled."""
        with suppress(InvalidStateError):
            self.set_result(content)

    def fail(self, failure: HttpFailure) -> None:
        """Sets the failure, unless the call has ended."""
        with suppress(InvalidStateError):
            self.set_exception(failure)


class _Connection(asyncio.Protocol):
    """One connection. Any thread may call ``send``; the event loop calls the other methods."""

    def __init__(self, flights: Flights, plain: socket.socket | None) -> None:
        self._flights = flights
        self._plain = plain
        self._transport: asyncio.Transport | None = None
        self.call: HttpCall | None = None
        self.is_closed = False
        self.idle_since_s = 0.0
        self._again: bytes | None = None
        self._sent_s = 0.0

    def send(self, call: HttpCall, request: bytes, *, is_kept: bool = False) -> None:
        """Sends the request of a call; ``is_kept`` says that the connection has served others."""
        self._again, self._sent_s = request if is_kept else None, time.monotonic()
        call.connection, self.call = self, call  # last, as the loop may notice a lost connection at any time
        rest, is_lost = memoryview(request), False
        if self._plain is not None:
            try:
                rest = rest[self._plain.send(request) :]
            except BlockingIOError:
                pass
            except OSError:  # closed by the server, which the loop may not know yet
                is_lost = True
        if is_lost or self.is_closed:
            if not self._flights.later(self._lose):
                self._fail(lost())
        elif rest:
            self._flights.later(self._write, rest)

    def drop(self) -> None:
        """Closes the connection; any thread may call this."""
        self._flights.later(self._abort)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.idle_since_s = time.monotonic()
        self._flights.connections.add(self)
        self._transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        """Receives a part of the response; completes the call once the response is complete."""
        arrived_ns, call = time.perf_counter_ns(), self.call
        if call is None:  # no request is pending
            self._abort()
            return
        incoming = call.incoming
        try:
            is_whole = incoming.feed(data)
            if call.arrivals is not None:
                call.arrivals.append((arrived_ns, incoming.arrived))
            if not is_whole:
                return
        except NoHttpError as error:
            self._fail(of_exchange(error, is_first=False))
            self._abort()
            return
        transport, self.call = self._transport, None
        if incoming.keeps_open and transport is not None and not transport.get_write_buffer_size():
            self.idle_since_s = time.monotonic()
            self._flights.idle.append(self)
        else:
            self._abort()
        call.answer(incoming.content)

    def connection_lost(self, exc: Exception | None) -> None:
        """Handles the closed connection: completes the response, or fails the call."""
        self.is_closed = True
        self._flights.forget(self)
        call = self.call
        if call is not None and exc is None and call.incoming.end():
            self.call = None
            call.answer(call.incoming.content)
        else:
            self._lose()

    def check(self, now_s: float) -> None:
        """Fails a call that exceeds its timeout, and closes a connection that has been idle too long."""
        call = self.call
        if call is None:
            if now_s - self.idle_since_s > MAX_IDLE_S and self._flights.withdraw(self):
                self._abort()
        elif call.end_s is not None and now_s > call.end_s:
            self._fail(late())
            self._abort()

    def _lose(self) -> None:
        call, again = self.call, self._again
        if call is None or call.done() or again is None or not _crossed(call.incoming, self._sent_s):
            self._fail(lost())
        else:
            self.call = None
            self._flights.endpoint.resent += 1
            self._flights.connect(call, again)

    def _fail(self, failure: HttpFailure) -> None:
        call, self.call = self.call, None
        if call is not None:
            call.fail(failure)

    def _write(self, content: memoryview) -> None:
        if self._transport is not None:
            self._transport.write(content)

    def _abort(self) -> None:
        if self._transport is not None:
            self._transport.abort()


class Flights:
    """Sends requests to a server without waiting. Thread-safe. Runs a thread until it is closed."""

    def __init__(self, endpoint: Endpoint) -> None:
        self.endpoint = endpoint
        self.idle: deque[_Connection] = deque()
        """The idle connections, which the next requests use."""
        self.connections: set[_Connection] = set()
        """The open connections."""
        self._connecting: set[asyncio.Task[None]] = set()
        self._closed = False
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, name="http-load", daemon=True)
        self._thread.start()

    def begin(self, request: bytes, timeout_s: float | None, *, stamped: bool = False) -> HttpCall:
        """Sends a request; ``timeout_s`` is how long the response may take. See ``HttpCall``."""
        call = HttpCall(None if timeout_s is None else time.monotonic() + timeout_s, stamped=stamped)
        try:
            self.idle.pop().send(call, request, is_kept=True)
        except IndexError:
            self.connect(call, request)
        return call

    def connect(self, call: HttpCall, request: bytes) -> None:
        """Sends a request over a new connection."""
        if not self.later(self._connect_soon, call, request):
            call.fail(lost())

    def close(self) -> None:
        """Closes the connections, and fails the requests in flight; calling it again does nothing."""
        if self._closed:
            return
        self._closed = True
        self._loop.call_soon_threadsafe(self._stop)
        self._thread.join(_CLOSING_S)
        self.endpoint.report()

    def later(self, work: Callable[..., object], *arguments: object) -> bool:
        """Schedules a callback on the event loop; returns False if the loop has ended."""
        try:
            self._loop.call_soon_threadsafe(work, *arguments)
        except RuntimeError:
            return False
        return True

    def withdraw(self, connection: _Connection) -> bool:
        """Removes an idle connection from the pool; returns whether it was still there."""
        try:
            self.idle.remove(connection)
        except ValueError:
            return False
        return True

    def forget(self, connection: _Connection) -> None:
        """Removes a closed connection."""
        self.connections.discard(connection)
        self.withdraw(connection)

    def _run(self) -> None:
        self._loop.call_later(_CHECK_S, self._check)
        try:
            with prompt_wakeups():  # it stamps what arrives
                self._loop.run_forever()
            self._loop.run_until_complete(asyncio.sleep(0))  # what was still to be done
        finally:
            self._loop.close()

    def _check(self) -> None:
        now_s = time.monotonic()
        for connection in tuple(self.connections):
            connection.check(now_s)
        self._loop.call_later(_CHECK_S, self._check)

    def _stop(self) -> None:
        for task in self._connecting:
            task.cancel()
        for connection in tuple(self.connections):
            connection.drop()
        self._loop.create_task(self._end())

    async def _end(self) -> None:
        await asyncio.gather(*self._connecting, return_exceptions=True)
        while self.connections:
            await asyncio.sleep(0)
        self._loop.stop()

    def _connect_soon(self, call: HttpCall, request: bytes) -> None:
        if self._closed:
            call.fail(lost())
            return
        task = self._loop.create_task(self._connect(call, request))
        self._connecting.add(task)
        task.add_done_callback(self._connecting.discard)

    async def _connect(self, call: HttpCall, request: bytes) -> None:
        least_s = CONNECT_TIMEOUT_S
        if call.end_s is not None:
            least_s = min(least_s, max(call.end_s - time.monotonic(), 0.0))
        try:
            connection = await asyncio.wait_for(self._connected(), least_s)
        except asyncio.TimeoutError:
            call.fail(of_connecting(TimeoutError()))
        except (OSError, UnicodeError) as error:
            call.fail(of_connecting(error))
        except asyncio.CancelledError:
            call.fail(lost())
            raise
        else:
            if call.done():
                self.idle.append(connection)
            else:
                connection.send(call, request)

    async def _connected(self) -> _Connection:
        at, loop = self.endpoint, self._loop
        if at.context is not None:
            name = at.server_name
            _, connection = await loop.create_connection(
                lambda: _Connection(self, None), at.host, at.port, ssl=at.context, server_hostname=name
            )
            return connection
        plain = await self._plain()
        try:
            _, connection = await loop.create_connection(lambda: _Connection(self, plain), sock=plain)
        except BaseException:
            plain.close()
            raise
        return connection

    async def _plain(self) -> socket.socket:
        """Returns a connected socket, which the loop's transport shares with ``_Connection.send``."""
        host, port = self.endpoint.host, self.endpoint.port
        try:  # a numeric address needs no thread, which takes longer than to connect
            found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_NUMERICHOST)
        except socket.gaierror:
            found = await self._loop.getaddrinfo(host, port, type=socket.SOCK_STREAM)
        failed: OSError = socket.gaierror()
        for family, kind, protocol, _, address in found:
            plain = socket.socket(family, kind, protocol)
            try:
                plain.setblocking(False)
                await self._loop.sock_connect(plain, address)
                return plain
            except BaseException as error:
                plain.close()
                if not isinstance(error, OSError):
                    raise
                failed = error
        raise failed
