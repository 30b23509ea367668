"""Requests in flight over HTTP: how they connect, TLS, large contents, timeouts, and how they end early."""

from __future__ import annotations

import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path

import pytest

from inferometer.client.remote.address import AgentAddress
from inferometer.client.remote.connection import ClientTls
from inferometer.client.remote.rest import sockets
from inferometer.client.remote.rest.responses import HttpFailure
from inferometer.client.remote.rest.sockets import MAX_IDLE_S, Endpoint, Flights
from tests.certificates import Authority

WAIT_S = 30.0
MIB = 1024 * 1024
Serve = Callable[[socket.socket], object]


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("tls"))


@contextmanager
def listening(serve: Serve, tls: ssl.SSLContext | None = None) -> Iterator[int]:
    """The port of a server that calls ``serve`` for each connection, in a thread of its own."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def accept() -> None:
            with suppress(OSError):
                while True:
                    connection, _ = server.accept()
                    threading.Thread(target=handle, args=(connection,), daemon=True).start()

        def handle(connection: socket.socket) -> None:
            with suppress(OSError), connection:
                if tls is None:
                    serve(connection)
                else:
                    with tls.wrap_socket(connection, server_side=True) as secure:
                        serve(secure)

        threading.Thread(target=accept, daemon=True).start()
        yield server.getsockname()[1]
        with suppress(OSError):
            server.shutdown(socket.SHUT_RDWR)


def read(connection: socket.socket) -> bytes:
    """The body of a request; empty at the end of the connection."""
    data = b""
    while b"\r\n\r\n" not in data:
        if not (more := connection.recv(65536)):
            return b""
        data += more
    head, _, body = data.partition(b"\r\n\r\n")
    size = int(head.lower().partition(b"content-length: ")[2].split(b"\r\n")[0])
    while len(body) < size and (more := connection.recv(65536)):
        body += more
    return body


def echo(connection: socket.socket) -> None:
    while body := read(connection):
        connection.sendall(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n%s" % (len(body), body))


def request(body: bytes) -> bytes:
    return b"POST / HTTP/1.1\r\ncontent-length: %d\r\n\r\n%s" % (len(body), body)


def endpoint_of(port: int, authority: Authority | None = None, host: str = "127.0.0.1") -> Endpoint:
    address = AgentAddress(host, port, secure=authority is not None)
    return Endpoint(address, None if authority is None else ClientTls(authorities=authority.ca))


@contextmanager
def echoing(authority: Authority | None) -> Iterator[Endpoint]:
    tls = None
    if authority is not None:
        files = authority.issue("127.0.0.1")
        tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        tls.load_cert_chain(files.cert, files.key)
    with listening(echo, tls) as port:
        yield endpoint_of(port, authority)


@pytest.mark.parametrize("secure", [False, True], ids=["plain", "tls"])
def test_contents_of_every_size_arrive_over_kept_connections(authority: Authority, secure: bool) -> None:
    """Of more than the buffers of the sockets hold, part of a request is sent when there is room."""
    with echoing(authority if secure else None) as endpoint, closing(Flights(endpoint)) as flights:
        for size in (1, 100, 16 * 1024, 16 * 1024 + 1, 12 * MIB, 5, 12 * MIB):
            body = bytes([size % 251]) * size
            answer = flights.begin(request(body), WAIT_S).result(WAIT_S)
            assert answer.partition(b"\r\n\r\n")[2] == body
        assert len(flights.open) == 1


@pytest.mark.parametrize("secure", [False, True], ids=["plain", "tls"])
def test_many_requests_at_once_each_get_their_own_answer(authority: Authority, secure: bool) -> None:
    with echoing(authority if secure else None) as endpoint, closing(Flights(endpoint)) as flights:
        bodies = [b"%d." % number * 3000 for number in range(50)]
        calls = [flights.begin(request(body), WAIT_S, stamped=True) for body in bodies]
        for call, body in zip(calls, bodies, strict=True):
            assert call.result(WAIT_S).partition(b"\r\n\r\n")[2] == body
            assert call.arrivals is not None
            times, sizes = zip(*call.arrivals, strict=True)
            assert sorted(times) == list(times)
            assert sizes[-1] == len(call.result())


def test_a_server_without_a_trusted_certificate_is_refused(authority: Authority, tmp_path: Path) -> None:
    with echoing(Authority(tmp_path, "other")) as endpoint:
        untrusting = endpoint_of(endpoint.port, authority)
        with closing(Flights(untrusting)) as flights, pytest.raises(HttpFailure) as raised:
            flights.begin(request(b"x"), WAIT_S).result(WAIT_S)
    assert "CERTIFICATE_VERIFY_FAILED" in str(raised.value)


def test_a_server_that_speaks_no_tls_is_told(authority: Authority) -> None:
    def answer(connection: socket.socket) -> None:
        connection.recv(65536)
        connection.sendall(b"HTTP/1.1 400 Bad Request\r\ncontent-length: 0\r\n\r\n")

    with (
        listening(answer) as port,
        closing(Flights(endpoint_of(port, authority))) as flights,
        pytest.raises(HttpFailure, match="WRONG_VERSION_NUMBER"),
    ):
        flights.begin(request(b"x"), WAIT_S).result(WAIT_S)


def silent(connection: socket.socket) -> None:
    while connection.recv(65536):
        pass


def test_a_handshake_that_takes_too_long_fails(authority: Authority, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sockets, "CONNECT_TIMEOUT_S", 0.3)
    with listening(silent) as port, closing(Flights(endpoint_of(port, authority))) as flights:
        with pytest.raises(HttpFailure, match="timed out"):
            flights.begin(request(b"x"), WAIT_S).result(WAIT_S)
        assert not flights.open


def test_an_answer_that_takes_too_long_fails_and_closes_the_connection() -> None:
    closed = threading.Event()

    def serve(connection: socket.socket) -> None:
        silent(connection)
        closed.set()

    with listening(serve) as port, closing(Flights(endpoint_of(port))) as flights:
        with pytest.raises(HttpFailure, match="not answered in time"):
            flights.begin(request(b"x"), 0.3).result(WAIT_S)
        assert closed.wait(WAIT_S)


def test_a_cancelled_request_closes_its_connection_at_once() -> None:
    closed = threading.Event()

    def serve(connection: socket.socket) -> None:
        silent(connection)
        closed.set()

    with listening(serve) as port, closing(Flights(endpoint_of(port))) as flights:
        call = flights.begin(request(b"x"), None)
        begun_s = time.monotonic()
        assert call.cancel()
        assert closed.wait(WAIT_S)
        assert time.monotonic() - begun_s < WAIT_S / 2
        assert call.cancelled()


def test_closing_fails_what_is_in_flight_and_later_requests() -> None:
    with listening(silent) as port:
        flights = Flights(endpoint_of(port))
        calls = [flights.begin(request(b"x"), None) for _ in range(3)]
        flights.close()
        flights.close()
        calls.append(flights.begin(request(b"x"), None))
        for call in calls:
            with pytest.raises(HttpFailure, match="the connection was closed"):
                call.result(WAIT_S)
        assert not flights.open


def test_closing_sends_nothing_again(caplog: pytest.LogCaptureFixture) -> None:
    def serve(connection: socket.socket) -> None:
        read(connection)
        connection.sendall(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok")
        silent(connection)

    with listening(serve) as port:
        flights = Flights(endpoint_of(port))
        flights.begin(request(b"x"), WAIT_S).result(WAIT_S)
        waiting = flights.begin(request(b"x"), WAIT_S)  # on the kept connection
        flights.close()
        with pytest.raises(HttpFailure, match="the connection was closed"):
            waiting.result(WAIT_S)
        assert not flights.open
    assert not caplog.records


def test_nobody_listening_and_an_unknown_name_are_told() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    for host, why in (
        ("127.0.0.1", "connection refused"),
        ("no-such-host.invalid", "name resolution failed"),
    ):
        with closing(Flights(endpoint_of(port, host=host))) as flights:
            for _ in range(2):
                with pytest.raises(HttpFailure, match=why):
                    flights.begin(request(b"x"), WAIT_S).result(WAIT_S)


@pytest.mark.parametrize("secure", [False, True], ids=["plain", "tls"])
def test_the_next_address_is_tried_when_one_refuses(authority: Authority, secure: bool) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        nobody = server.getsockname()
    with echoing(authority if secure else None) as endpoint, closing(Flights(endpoint)) as flights:
        [place] = flights.places
        flights.places = [(*place[:4], nobody), place]
        answer = flights.begin(request(b"here"), WAIT_S).result(WAIT_S)
    assert answer.endswith(b"here")


def test_what_comes_unasked_closes_an_idle_connection() -> None:
    def serve(connection: socket.socket) -> None:
        read(connection)
        connection.sendall(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok")
        time.sleep(0.1)
        with suppress(OSError):
            connection.sendall(b"HTTP/1.1 408 Request Timeout\r\ncontent-length: 0\r\n\r\n")
            silent(connection)

    with listening(serve) as port, closing(Flights(endpoint_of(port))) as flights:
        for _ in range(2):
            assert flights.begin(request(b"x"), WAIT_S).result(WAIT_S).endswith(b"ok")
            end_s = time.monotonic() + WAIT_S
            while flights.open and time.monotonic() < end_s:
                time.sleep(0.01)
            assert not flights.open
            assert not flights.idle


def test_an_idle_connection_is_closed_before_servers_do(monkeypatch: pytest.MonkeyPatch) -> None:
    assert MAX_IDLE_S < 5  # uvicorn's
    monkeypatch.setattr(sockets, "MAX_IDLE_S", 0.2)
    with echoing(None) as endpoint, closing(Flights(endpoint)) as flights:
        flights.begin(request(b"x"), WAIT_S).result(WAIT_S)
        end_s = time.monotonic() + WAIT_S
        while flights.open and time.monotonic() < end_s:
            time.sleep(0.01)
        assert not flights.open


def test_an_early_answer_to_a_request_that_is_not_read_is_the_answer() -> None:
    def serve(connection: socket.socket) -> None:
        connection.recv(1000)
        connection.sendall(b"HTTP/1.1 413 Payload Too Large\r\ncontent-length: 3\r\n\r\nbig")
        time.sleep(1.0)

    with listening(serve) as port, closing(Flights(endpoint_of(port))) as flights:
        assert flights.begin(request(bytes(32 * MIB)), WAIT_S).result(WAIT_S).endswith(b"big")
        assert not flights.idle
