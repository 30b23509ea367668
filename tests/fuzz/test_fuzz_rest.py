"""Requests over HTTP of random parts are answered or refused in one line; the agent serves the next ones.

``make fuzz`` runs more examples.
"""

from __future__ import annotations

import json
import logging
import os
import secrets
import socket
import subprocess
import sys
import zlib
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

sys.path.append(str(Path(__file__).parents[1] / "integration"))

from fake_framework import fake_registry, write_manifests
from rest_client import connect, received

from inferometer.agent.server.server import AgentServer, ServerOptions
from inferometer.manifests.catalog import Catalog

EXAMPLES = int(os.environ.get("INFEROMETER_FUZZ_EXAMPLES", "0"))
FUZZ = settings(
    max_examples=EXAMPLES or 150,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
REFUSED = {400, 404, 405, 413, 414, 415, 431, 504}
NO_ROOM = 503
MISDIRECTED = 421
MOST_BYTES = 100_000
MOST_GROWTH_MIB = 128
"""What the allocator keeps; an agent that keeps what is sent grows by more with one connection."""
SEGMENT_BYTES = 4096
MEMORY = "/v2/systemsharedmemory"
GOOD = json.dumps(
    {"inputs": [{"name": "data", "datatype": "FP32", "shape": [1, 1, 4, 4], "data": [0.5] * 16}]}
).encode()
Send = Callable[[bytes], "tuple[int, bytes]"]

NAMES = st.sampled_from(["data", "scores", "Mean", "Echo", "", "x" * 300, "\u2028\0", "binary_data_size"])
NUMBERS = st.sampled_from([-(2**63), -1, 0, 1, 2, 4, 16, 63, 64, 65, 2**31, 2**63, 2**64, 0.5, 1e308])
SCALARS = st.none() | st.booleans() | NUMBERS | NAMES
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(NAMES, inner, max_size=3),
    max_leaves=10,
)
PARAMETERS = st.dictionaries(
    st.sampled_from(
        [
            "binary_data_size",
            "binary_data",
            "binary_data_output",
            "classification",
            "timeout",
            "priority",
            "shared_memory_region",
            "x",
        ]
    ),
    SCALARS,
    max_size=3,
)
INPUT = st.fixed_dictionaries(
    {},
    optional={
        "name": st.just("data") | VALUES,
        "datatype": st.sampled_from(["FP32", "FP64", "BYTES", "BF16", "INT8", "UINT64", "BOOL", "x"])
        | VALUES,
        "shape": st.just([1, 1, 4, 4]) | st.lists(NUMBERS, max_size=6) | VALUES,
        "data": st.just([0.5] * 16) | st.just([[0.5] * 8] * 2) | VALUES,
        "parameters": st.just({"binary_data_size": 64}) | PARAMETERS | VALUES,
    },
)
REQUEST = st.fixed_dictionaries(
    {"inputs": st.lists(INPUT, max_size=2) | VALUES},
    optional={
        "id": NAMES | VALUES,
        "parameters": PARAMETERS | VALUES,
        "outputs": st.lists(
            st.fixed_dictionaries({"name": NAMES}, optional={"parameters": PARAMETERS}), max_size=2
        )
        | VALUES,
    },
)
LENGTHS = (
    st.none() | st.sampled_from(["0", "1", "-1", "x", "99999999999999999999"]) | st.integers(0, 300).map(str)
)
PATHS = st.sampled_from(
    (
        *("/v2/models/Mean/infer", "/v2/models/Echo/versions/1.0/infer", "/v2/models/%/infer", "/v2", "//"),
        *("/v2/models/Mean/versions/7/infer", "/v2/repository/index"),
        *("/v2/repository/models/Mean/load", "/v2/repository/models/Mean/unload"),
    )
)


@pytest.fixture(scope="module")
def agent(tmp_path_factory: pytest.TempPathFactory) -> Iterator[AgentServer]:
    folder = tmp_path_factory.mktemp("manifests")
    options = ServerOptions(
        port=0, http_port=0, max_message_bytes=MOST_BYTES, grace_s=5.0, shared_memory=True
    )
    with AgentServer(Catalog([write_manifests(folder)]), fake_registry(), options) as found:
        yield found


@pytest.fixture
def send(agent: AgentServer, caplog: pytest.LogCaptureFixture) -> Iterator[Send]:
    """Sends bytes over a connection of their own; returns the first status, and all of the answer."""

    def answered(content: bytes) -> tuple[int, bytes]:
        with connect(agent.http_url) as connection:
            connection.sendall(content)
            connection.shutdown(socket.SHUT_WR)
            found = received(connection)
        return int(found[9:12]) if found else 0, found

    with caplog.at_level(logging.ERROR):
        yield answered
    assert _asked(agent.http_url, "/v2/models/Mean/infer", GOOD, {})[0] == 200
    assert not [record for record in caplog.records if record.levelno >= logging.ERROR]


def _asked(url: str | None, path: str, body: bytes, headers: dict[str, str]) -> tuple[int, bytes]:
    lines = [f"POST {path} HTTP/1.1", "Host: localhost", f"Content-Length: {len(body)}", "Connection: close"]
    lines += [f"{key}: {value}" for key, value in headers.items()]
    with connect(url) as connection:
        connection.sendall("\r\n".join([*lines, "", ""]).encode() + body)
        found = received(connection)
    head, _, content = found.partition(b"\r\n\r\n")
    status = int(head[9:12])
    if status != 200:
        assert status in REFUSED or (status == NO_ROOM and path.startswith(MEMORY)), found
        error = json.loads(content)["error"]
        assert len(error.splitlines()) == 1
        assert "Traceback" not in error
    return status, content


@FUZZ
@given(REQUEST, st.binary(max_size=70) | st.just(bytes(64)), LENGTHS, st.booleans(), PATHS)
def test_requests_of_nonsense(
    agent: AgentServer, send: Send, head: Any, binary: bytes, length: str | None, is_right: bool, path: str
) -> None:
    text = json.dumps(head).encode()
    headers = {"Inference-Header-Content-Length": str(len(text)) if is_right else length or ""}
    _asked(agent.http_url, path, text + binary, headers if is_right or length is not None else {})


@pytest.fixture(scope="module")
def segment() -> Iterator[Path]:
    """A segment, whose content is no request's."""
    path = Path(f"/dev/shm/test-{secrets.token_hex(8)}")
    path.write_bytes(bytes(SEGMENT_BYTES))
    yield path
    path.unlink()


@FUZZ
@given(st.data())
def test_regions_of_nonsense(agent: AgentServer, send: Send, segment: Path, data: st.DataObject) -> None:
    sizes = (
        st.sampled_from([0, 1, 63, 64, 65, SEGMENT_BYTES - 64, SEGMENT_BYTES, SEGMENT_BYTES + 1]) | NUMBERS
    )
    keys = st.sampled_from([f"/{segment.name}", segment.name, "/..", "/", "/no-such", f"/{segment}"])
    region = {"key": keys | VALUES, "offset": sizes | VALUES, "byte_size": sizes | VALUES}
    head = data.draw(st.fixed_dictionaries({}, optional=region) | VALUES)
    parameters = {
        "shared_memory_region": "r",
        "shared_memory_offset": data.draw(sizes),
        "shared_memory_byte_size": data.draw(sizes),
    }  # before the region, which an example that ends while it is drawn would leave behind
    registered, _ = _asked(agent.http_url, f"{MEMORY}/region/r/register", json.dumps(head).encode(), {})
    item = {"name": "data", "datatype": "FP32", "shape": [1, 1, 4, 4], "parameters": parameters}
    status, _ = _asked(agent.http_url, "/v2/models/Echo/infer", json.dumps({"inputs": [item]}).encode(), {})
    fits = registered == 200 and parameters["shared_memory_byte_size"] == 64
    fits = fits and 0 <= parameters["shared_memory_offset"] <= head["byte_size"] - 64
    assert (status == 200) == fits
    _asked(agent.http_url, f"{MEMORY}/unregister", b"", {})


@FUZZ
@given(st.data())
def test_damaged_requests(agent: AgentServer, send: Send, data: st.DataObject) -> None:
    item = {"name": "data", "datatype": "FP32", "shape": [1, 1, 4, 4], "parameters": {"binary_data_size": 64}}
    text = json.dumps({"inputs": [item], "id": "7", "parameters": {"binary_data_output": True}}).encode()
    body = bytearray(text + bytes(64))
    for place in data.draw(st.lists(st.integers(0, len(body) - 1), max_size=3)):
        body[place] = data.draw(st.integers(0, 255))
    content, headers = bytes(body), {"Inference-Header-Content-Length": str(len(text))}
    if data.draw(st.booleans()):
        content = bytearray(zlib.compress(content))
        for place in data.draw(st.lists(st.integers(0, len(content) - 1), max_size=2)):
            content[place] = data.draw(st.integers(0, 255))
        headers["Content-Encoding"] = "deflate"
    _asked(agent.http_url, "/v2/models/Echo/infer", bytes(content), headers)


@FUZZ
@given(
    st.binary(max_size=200)
    | st.lists(
        st.sampled_from(
            [
                b"GET /v2 HTTP/1.1",
                b"POST /v2/models/Mean/infer HTTP/1.1",
                b"Host: localhost",
                b"",
                b"\r\n",
                b"Content-Length: 5",
                b"Transfer-Encoding: chunked",
                b"5",
                b"0",
                b"{}",
                b"Expect: 100-continue",
                b"Connection: upgrade",
                b"Upgrade: websocket",
                b"Content-Length: 99999999",
                b"\xff\x00",
            ]
        ),
        max_size=12,
    ).map(b"\r\n".join)
)
def test_bytes_that_are_hardly_http(send: Send, content: bytes) -> None:
    status, found = send(content)
    assert status in {0, 100, 200, *REFUSED}, found


HEADS = st.sampled_from(
    [
        b"GET /v2 HTTP/1.1\r\nHost: localhost\r\n",
        b"POST /v2/models/Mean/infer HTTP/1.1\r\nHost: localhost\r\n",
        b"POST /v2 HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n",
        b"GET /",
        b"",
    ]
)
PIECES = st.sampled_from(
    [
        *(b"X: ", b"a", b" ", b"\0", b"/%00", b"\r\n", b"\r\n\r\n", b"X: y\r\n", b"Host: x\r\n"),
        *(b"0\r\n", b"5;x=", b"5\r\nabcde\r\n", b"Content-Length: 9999999\r\n\r\n"),
        b"GET /v2 HTTP/1.1\r\nHost: localhost\r\n\r\n",
    ]
)
REPEATS = st.sampled_from([1, 1, 1, 2, 99, 101, 8_192, 65_536])


@dataclass
class Process:
    """An agent in a process of its own, and the memory that it had before any head was sent."""

    pid: int
    http_url: str

    def __post_init__(self) -> None:
        self.before_mib = self.resident_mib

    @property
    def resident_mib(self) -> float:
        """Its memory now."""
        pages = int(Path(f"/proc/{self.pid}/statm").read_text().split()[1])
        return pages * os.sysconf("SC_PAGESIZE") / 2**20


@pytest.fixture(scope="module")
def process(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Process]:
    """An agent whose memory nobody else uses."""
    folder = write_manifests(tmp_path_factory.mktemp("manifests"))
    script = Path(__file__).parents[1] / "integration" / "fake_agent.py"
    with subprocess.Popen(
        [sys.executable, script, folder, "5", "0"],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        cwd=script.parents[2],
    ) as agent:
        assert agent.stdout is not None
        url = agent.stdout.readline().split()[1]
        _asked(url, "/v2/models/Mean/infer", GOOD, {})
        yield Process(agent.pid, url)
        agent.kill()


@FUZZ
@given(HEADS, st.lists(st.tuples(PIECES, REPEATS), max_size=6), st.integers(1, 70_000))
@example(b"GET /v2 HTTP/1.1\r\nHost: localhost\r\n", [(b"X: y\r\n", 5_000_000)], 70_000)
@example(b"GET /", [(b"a", 100_000_000)], 70_000)
def test_heads_without_end(
    process: Process, begin: bytes, pieces: list[tuple[bytes, int]], segment_bytes: int
) -> None:
    content = begin + b"".join(piece * repeats for piece, repeats in pieces)
    with connect(process.http_url) as connection:
        connection.settimeout(0.2)
        with suppress(OSError):  # refused while it came, or nobody reads the answers
            for start in range(0, min(len(content), 2000 * segment_bytes), segment_bytes):
                connection.sendall(content[start : start + segment_bytes])
        assert _asked(process.http_url, "/v2/models/Mean/infer", GOOD, {})[0] == 200
        assert process.resident_mib - process.before_mib < MOST_GROWTH_MIB
        found = b""
        with suppress(OSError):
            connection.shutdown(socket.SHUT_WR)
        with suppress(OSError):
            found = connection.recv(65536)
        assert not found or int(found[9:12]) in {100, 200, MISDIRECTED, *REFUSED}, found
