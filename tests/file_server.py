"""A web server on this machine for files, which can misbehave in every way that servers do."""

from __future__ import annotations

import ssl
import threading
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

DEADLINE_S = 20.0


@dataclass(frozen=True)
class Answer:
    """How one request is answered.

    Attributes:
        content: The whole file.
        status: Anything but 200 is sent as it is, without looking at ranges.
        headers: Further headers.
        etag: The file's entity tag; empty for none.
        ranges: Whether a part is sent where one is asked for.
        cut_after: The bytes of the answer after which the connection is closed; None sends all.
        length: Whether ``Content-Length`` is sent.
        chunked: Whether it is sent in chunks.
        endless: Whether more is sent than there is, without an end.
        hold: What is waited for before the second half is sent.
    """

    content: bytes = b""
    status: int = 200
    headers: dict[str, str] = field(default_factory=dict)
    etag: str = '"1"'
    ranges: bool = True
    cut_after: int | None = None
    length: bool = True
    chunked: bool = False
    endless: bool = False
    hold: threading.Event | None = None


@dataclass(frozen=True)
class Asked:
    """A request."""

    path: str
    headers: dict[str, str]


class FileServer:
    """Files by their path.

    Attributes:
        url: Where the server is, without a slash at the end.
        asked: The requests, in order.
    """

    def __init__(self, port: int, scheme: str = "http") -> None:
        self.url = f"{scheme}://127.0.0.1:{port}"
        self.asked: list[Asked] = []
        self._answers: dict[str, list[Answer]] = defaultdict(list)
        self._lock = threading.Lock()

    def serve(self, path: str, *answers: Answer | bytes) -> str:
        """Answers the next requests for a path in turn, and all later ones as the last; returns its URL."""
        self._answers[path] = [Answer(a) if isinstance(a, bytes) else a for a in answers]
        return f"{self.url}{path}"

    def count(self, path: str) -> int:
        """How often a path was asked for."""
        return sum(asked.path == path for asked in self.asked)

    def take(self, asked: Asked) -> Answer:
        """Notes a request and returns its answer."""
        with self._lock:
            self.asked.append(asked)
            answers = self._answers.get(asked.path) or [Answer(status=404)]
            return answers.pop(0) if len(answers) > 1 else answers[0]


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    files: FileServer

    def handle_error(self, *_: object) -> None:
        """Says nothing: a client that does not trust the server, or has enough, goes away."""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        assert isinstance(self.server, _Server)
        answer = self.server.files.take(Asked(self.path, dict(self.headers)))
        with suppress(OSError):  # a client that has enough goes away
            self._send(answer)

    def _send(self, answer: Answer) -> None:
        body, status, headers = answer.content, answer.status, dict(answer.headers)
        if answer.etag and status == 200:
            headers["ETag"] = answer.etag
        wanted = self.headers.get("Range")
        if status == 200 and wanted and answer.ranges and self.headers.get("If-Range") in {None, answer.etag}:
            start = int(wanted.removeprefix("bytes=").rstrip("-"))
            status = 206 if start < len(body) else 416
            headers["Content-Range"] = f"bytes {start}-{len(body) - 1}/{len(body)}"
            body = body[start:] if status == 206 else b""
        if answer.chunked:
            headers["Transfer-Encoding"] = "chunked"
        elif answer.length:
            headers.setdefault("Content-Length", str(len(body)))
        self.close_connection = True
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.end_headers()
        self._send_body(answer, body[: answer.cut_after])

    def _send_body(self, answer: Answer, body: bytes) -> None:
        half = len(body) // 2 if answer.hold else 0
        for piece in (body[:half], body[half:]):
            if piece:
                self.wfile.write(b"%x\r\n%s\r\n" % (len(piece), piece) if answer.chunked else piece)
            if answer.hold:
                self.wfile.flush()
                answer.hold.wait(DEADLINE_S)
        if answer.chunked and answer.cut_after is None:
            self.wfile.write(b"0\r\n\r\n")
        while answer.endless:
            self.wfile.write(bytes(64 * 1024))

    def log_message(self, *_: object) -> None:
        pass


@contextmanager
def running_file_server(tls: ssl.SSLContext | None = None) -> Iterator[FileServer]:
    """A server until the end of the block."""
    server = _Server(("127.0.0.1", 0), _Handler)
    if tls:
        server.socket = tls.wrap_socket(server.socket, server_side=True, do_handshake_on_connect=False)
    server.files = FileServer(server.server_port, "https" if tls else "http")
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield server.files
    finally:
        server.shutdown()
        server.server_close()
        thread.join(DEADLINE_S)
