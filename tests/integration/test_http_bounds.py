"""What an agent and the page read over HTTP before they know the client: within bounds of size and time."""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from fake_framework import DEADLINE_S, fake_registry, wait_for, write_manifests
from rest_client import connect, raw_request, received

from inferometer.agent.server.admission import Limits
from inferometer.agent.server.rest import http_connection
from inferometer.agent.server.server import AgentServer, ServerOptions
from inferometer.manifests.catalog import Catalog
from tests.web.conftest import served

SECRET = "correct horse"
MAX_LINE = 8 * 1024
MAX_HEADERS = 100
MAX_HEAD = 64 * 1024
FLOOD_BYTES = 16 * 1024 * 1024
"""More than the buffers of both sockets have: who sends that was not refused while it came."""
GET = b"GET /v2 HTTP/1.1\r\nHost: localhost\r\n"
CHUNKED = b"POST /v2/models/Mean/infer HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n"
Door = str


def agent_of(folder: Path, **options: object) -> AgentServer:
    folder.mkdir()
    chosen = ServerOptions(**{"port": 0, "http_port": 0, "grace_s": 5.0, **options})
    return AgentServer(Catalog([write_manifests(folder)]), fake_registry(), chosen)


@pytest.fixture(scope="module", params=["agent", "page"])
def door(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Door]:
    """Where one listens who requires a secret."""
    folder = tmp_path_factory.mktemp("door")
    if request.param == "agent":
        with agent_of(folder / "manifests", secret=SECRET) as agent:
            yield agent.http_url
    else:
        with served(folder, secret=SECRET) as page:
            yield page.url


@pytest.fixture(scope="module", params=["agent", "page"])
def open_door(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Door]:
    """Where one listens who requires none, and has names."""
    folder = tmp_path_factory.mktemp("door")
    if request.param == "agent":
        with agent_of(folder / "manifests") as agent:
            yield agent.http_url
    else:
        with served(folder) as page:
            yield page.url


def asked(url: Door, content: bytes) -> tuple[int, bytes]:
    """Sends bytes; returns the status of the answer and its end, once the server has closed."""
    with connect(url) as connection:
        connection.sendall(content)
        found = received(connection)
    assert found.count(b"HTTP/1.1 ") == 1, found
    return int(found[9:12]), found.partition(b"\r\n\r\n")[2]


def flooded(url: Door, begin: bytes, more: bytes) -> tuple[int, int]:
    """Sends ``more`` until the server refuses; returns the status, and how many bytes went out."""
    sent = 0
    with connect(url) as connection:
        connection.sendall(begin)
        try:
            while sent < FLOOD_BYTES:
                connection.sendall(more)
                sent += len(more)
        except ConnectionError:
            pass
        else:
            pytest.fail(f"{sent} bytes were taken")
        found = received(connection)
    return int(found[9:12]), sent


@pytest.mark.parametrize(
    ("begin", "more", "status"),
    [
        (b"GET /", b"a" * 65_000, 414),
        (GET + b"X: ", b"a" * 65_000, 431),
        (GET, b"X" * 65_000, 431),
        (GET, b"X: " + b"a" * 65_000 + b"\r\n", 431),
        (GET, b"X: y\r\n" * 1000, 431),
        (GET, b"\r\n X: y" * 1000, 400),
        (b"", b"\r\n" * 10_000, 431),
        (CHUNKED + b"5;x=", b"a" * 65_000, 431),
        (CHUNKED + b"0\r\n", b"X: " + b"a" * 65_000 + b"\r\n", 431),
        (CHUNKED + b"0\r\n", b"X: y\r\n" * 1000, 431),
    ],
    ids=["URL", "value", "name", "lines", "many", "folded", "empty lines", "chunk", "trailer", "trailers"],
)
def test_what_has_no_end_is_refused_while_it_comes(
    door: Door, begin: bytes, more: bytes, status: int
) -> None:
    assert flooded(door, begin, more)[0] in {status, 401}  # a body's, whose request is refused first
    assert asked(door, GET + b"Connection: close\r\n\r\n")[0] in {401, 404}


def padded(name: bytes, size: int) -> bytes:
    """A header of so many bytes, with its separators."""
    return name + b": " + b"a" * (size - len(name) - 4) + b"\r\n"


@pytest.mark.parametrize(
    ("headers", "fits"),
    [
        ([padded(b"X", MAX_LINE)], True),
        ([padded(b"X", MAX_LINE + 1)], False),
        ([padded(b"X", 10)] * (MAX_HEADERS - 2), True),
        ([padded(b"X", 10)] * (MAX_HEADERS - 1), False),
        ([padded(b"X", MAX_HEAD // 10)] * 9, True),
        ([padded(b"X", MAX_HEAD // 10)] * 10, False),
    ],
    ids=["line", "longer line", "headers", "more headers", "sum", "larger sum"],
)
def test_bounds_of_a_head(open_door: Door, headers: list[bytes], fits: bool) -> None:
    path = b"/v2/health/live" if fits else b"/"
    head = b"GET %b HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n" % path
    status, content = asked(open_door, head + b"".join(headers) + b"\r\n")
    assert (status == 431) == (not fits), content
    if not fits:
        assert "has more than" in json.loads(content)["error"]


def test_trailers_are_no_headers(open_door: Door) -> None:
    body = b"0\r\nHost: evil.example\r\nConnection: keep-alive\r\n\r\n"
    head = CHUNKED.replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n")
    assert asked(open_door, head + body)[0] in {400, 404, 405}  # and not 421: it is no request of that host


REFUSED = {
    "two hosts, the hostile one first": b"Host: evil.example\nHost: localhost",
    "two hosts, the hostile one last": b"Host: localhost\nHost: evil.example",
    "the same host twice": b"Host: localhost\nhOST: localhost",
    "no host": b"X: y",
    "a space before the colon": b"Host : localhost",
    "a folded host": b"X: y\n Host: evil.example\nHost: localhost",
    "a list of hosts": b"Host: evil.example, localhost",
    "a host with a user": b"Host: evil.example@localhost",
    "a host with two ports": b"Host: evil.example:80:localhost",
    "a host with a path": b"Host: evil.example/.localhost",
    "two lengths": b"Host: localhost\nContent-Length: 5\nContent-Length: 6\n\nabcdef",
    "the same length twice": b"Host: localhost\nContent-Length: 5\nContent-Length: 5\n\nabcde",
    "a list of lengths": b"Host: localhost\nContent-Length: 5, 5\n\nabcde",
    "a length with a sign": b"Host: localhost\nContent-Length: +5\n\nabcde",
    "a length and chunks": b"Host: localhost\nContent-Length: 5\nTransfer-Encoding: chunked\n\n0\n\n",
    "chunks and a length": b"Host: localhost\nTransfer-Encoding: chunked\nContent-Length: 5\n\n0\n\n",
    "chunks twice": b"Host: localhost\nTransfer-Encoding: chunked\nTransfer-Encoding: chunked\n\n0\n\n",
    "chunks that are something else": b"Host: localhost\nTransfer-Encoding: xchunked\n\n0\n\n",
    "chunks in something else": b"Host: localhost\nTransfer-Encoding: gzip, chunked\n\n0\n\n",
    "something else in chunks": b"Host: localhost\nTransfer-Encoding: chunked, identity\n\n0\n\n",
    "chunks after a tab": b"Host: localhost\nTransfer-Encoding: \x0bchunked\n\n0\n\n",
    "two secrets": b"Host: localhost\nAuthorization: Bearer a\nAuthorization: Bearer b",
    "two origins": b"Host: localhost\nOrigin: http://evil.example\nOrigin: http://localhost",
}


@pytest.mark.parametrize("lines", REFUSED.values(), ids=REFUSED)
def test_head_that_two_readers_read_differently_is_refused(open_door: Door, lines: bytes) -> None:
    head, _, body = lines.partition(b"\n\n")
    content = b"POST / HTTP/1.1\r\n" + (head + b"\n\n" + body).replace(b"\n", b"\r\n")
    status, answer = asked(open_door, content + GET + b"\r\n")
    assert (status, list(json.loads(answer))) == (400, ["error"])


@pytest.mark.parametrize(
    ("target", "host", "status"),
    [
        ("http://evil.example/", "localhost", 400),
        ("http://localhost:1/", "localhost:2", 400),
        ("http://evil@localhost/", "localhost", 400),
        ("localhost:80", "localhost:80", 400),
        ("http://evil.example/", "evil.example", 421),
        ("http://LocalHost/made/up", "localhost:80", 404),
        ("/made/up", "  LOCALHOST.  ", 404),
        ("/made/up", "[::1]:80", 404),
        ("/made/up", "Evil.Example", 421),
    ],
)
def test_absolute_url_is_that_of_the_host(open_door: Door, target: str, host: str, status: int) -> None:
    lines = f"GET {target} HTTP/1.1\nhOsT: {host}\nConnection: close"
    assert asked(open_door, raw_request(lines))[0] == status


def test_http_1_0_has_no_host(open_door: Door) -> None:
    with connect(open_door) as connection:
        connection.sendall(b"GET /made/up HTTP/1.0\r\n\r\n")
        assert received(connection)[:12] == b"HTTP/1.1 404"


def test_upgrade_is_not_offered_and_ends_the_connection(open_door: Door) -> None:
    lines = "GET /made/up HTTP/1.1\nHost: localhost\nConnection: Upgrade\nUpgrade: websocket"
    assert asked(open_door, raw_request(lines) + GET + b"\r\n")[0] == 404


def test_request_before_one_that_is_refused_is_answered(open_door: Door) -> None:
    assert asked(open_door, raw_request("GET /made/up HTTP/1.1\nHost: localhost") + b"\0\r\n")[0] == 404


def test_pipelined_requests_wait_outside_while_no_answer_is_read(door: Door) -> None:
    with connect(door) as connection:
        connection.settimeout(1.0)
        with pytest.raises(TimeoutError):
            connection.sendall((GET + b"\r\n") * (FLOOD_BYTES // len(GET)))
    assert asked(door, GET + b"Connection: close\r\n\r\n")[0] in {401, 404}


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_connection, "HEAD_S", 0.2)


def dripped(url: Door, begin: bytes, drop: bytes) -> bytes:
    """Sends a little again and again, until the server closes; returns what it said."""
    found = b""
    end_s = time.monotonic() + DEADLINE_S
    with connect(url) as connection:
        connection.settimeout(0.01)
        connection.sendall(begin)
        while time.monotonic() < end_s:
            try:
                connection.sendall(drop)
                if not (part := connection.recv(65536)):
                    return found
                found += part
            except TimeoutError:
                continue
            except ConnectionError:
                return found
    pytest.fail("the server reads on")


@pytest.fixture(params=["agent", "page"])
def impatient_door(
    impatient: None, request: pytest.FixtureRequest, tmp_path: Path, start_agent: Callable[..., AgentServer]
) -> Iterator[Door]:
    if request.param == "agent":
        yield start_agent(http_port=0, secret=SECRET).http_url
    else:
        with served(tmp_path, secret=SECRET) as page:
            yield page.url


@pytest.mark.parametrize(
    ("begin", "drop", "answer"),
    [
        (b"", b"\r\n", b""),
        (b"GET /", b"a", b""),
        (GET, b"X: y\r\n", b""),
        (raw_request("GET /made/up HTTP/1.1\nHost: localhost"), b"\r\n", b"HTTP/1.1 401"),
        (GET + b"Content-Length: 1000000\r\n\r\n", b"a", b"HTTP/1.1 401"),
        (CHUNKED, b"1\r\na\r\n", b"HTTP/1.1 401"),
    ],
    ids=["empty lines", "URL", "headers", "empty lines after a request", "refused body", "refused chunks"],
)
def test_bytes_that_trickle_do_not_extend_the_time(
    impatient_door: Door, begin: bytes, drop: bytes, answer: bytes
) -> None:
    assert dripped(impatient_door, begin, drop)[:12] == answer


def test_silent_connection_is_closed(impatient_door: Door) -> None:
    with connect(impatient_door) as connection:
        assert received(connection) == b""


def test_connections_far_over_the_limit_are_closed_at_once(start_agent: Callable[..., AgentServer]) -> None:
    agent = start_agent(http_port=0, secret=SECRET, limits=Limits(max_connections=2))
    address = ("127.0.0.1", int(agent.http_url.rpartition(":")[2]))
    connections = [socket.create_connection(address) for _ in range(10)]
    served_now = agent._http._server.server_state.connections
    try:
        wait_for(lambda: len(served_now) == 4)
        refused = connections[2]
        refused.sendall(raw_request(f"GET /v2 HTTP/1.1\nHost: localhost\nAuthorization: Bearer {SECRET}"))
        assert received(refused)[:12] == b"HTTP/1.1 503"
    finally:
        for connection in connections:
            connection.close()
