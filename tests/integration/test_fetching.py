"""Fetching images from a server on this machine."""

import socket
import threading
import time
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from inferometer.agent.artifacts import web
from inferometer.agent.artifacts.web import fetch_image
from inferometer.manifests.errors import InputError

IMAGE = bytes(range(256)) * 20


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self):
        path, _, query = self.path.partition("?")
        match path:
            case "/image":
                self._answer(200, IMAGE)
            case "/a%20b/%C3%A9":
                self._answer(200, query.encode())
            case "/chunked":
                self.send_response(200)
                self.send_header("Transfer-Encoding", "chunked")
                self.end_headers()
                for _ in range(4):
                    self.wfile.write(b"400\r\n" + b"x" * 1024 + b"\r\n")
                self.wfile.write(b"0\r\n\r\n")
            case "/cut":
                self.send_response(200)
                self.send_header("Content-Length", "1000")
                self.end_headers()
                self.wfile.write(b"x" * 10)
                self.close_connection = True
            case "/to":
                self._answer(302, b"", Location=query)
            case "/loop":
                self._answer(307, b"", Location="/loop")
            case "/drip":
                self.send_response(200)
                self.end_headers()
                self._drip(b"x")
            case "/drip-header":
                self.wfile.write(b"HTTP/1.1 200 OK\r\nX: ")
                self._drip(b"x")
            case "/silent":
                self.server.stopped.wait(30)
                self.close_connection = True
            case _:
                self._answer(404, b"no")

    def _drip(self, piece):
        try:
            while not self.server.stopped.wait(0.02):
                self.wfile.write(piece)
        except OSError:
            pass
        self.close_connection = True

    def _answer(self, status, content, **headers):
        self.send_response(status)
        self.send_header("Content-Length", str(len(content)))
        for name, value in headers.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *arguments):
        pass


@pytest.fixture(scope="module")
def site():
    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.stopped = threading.Event()
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.stopped.set()
    server.shutdown()
    server.server_close()
    thread.join(30)


def fetch(url, **limits):
    return fetch_image(url, allow_private=True, **{"timeout_s": 20, **limits})


@contextmanager
def refused(pattern):
    with pytest.raises(InputError, match=pattern) as error:
        yield
    assert "\n" not in str(error.value)


def test_content_is_returned(site):
    assert fetch(f"{site}/image") == IMAGE
    assert fetch(f"{site}/chunked") == b"x" * 4096
    assert fetch(f"{site}/image#fragment") == IMAGE


def test_characters_that_no_url_has_are_escaped(site):
    assert fetch(f"{site}/a b/é?x=ü&y=%20") == b"x=%C3%BC&y=%20"


def test_redirects_are_followed_relative_and_absolute(site):
    assert fetch(f"{site}/to?/image") == IMAGE
    assert fetch(f"{site}/to?{site}/to?/image") == IMAGE


def test_redirects_end_after_a_few(site):
    with refused("/loop: redirects more than 5 times"):
        fetch(f"{site}/loop")


@pytest.mark.parametrize("target", ["file:///etc/passwd", "ftp://127.0.0.1/x", "gopher://x"])
def test_redirect_to_what_is_not_http_is_refused(site, target):
    with refused("is not an http or https address"):
        fetch(f"{site}/to?{target}")


def test_redirect_into_a_private_network_is_refused(site, monkeypatch):
    monkeypatch.setattr(web, "is_public", lambda address: address == "127.0.0.1")
    assert fetch_image(f"{site}/image") == IMAGE
    port = site.rpartition(":")[2]
    with refused(f"127.0.0.2:{port}/image: leads to this machine or a private network"):
        fetch_image(f"{site}/to?http://127.0.0.2:{port}/image")


def test_name_is_looked_up_once_and_what_is_checked_is_what_is_connected_to(site, monkeypatch):
    port = int(site.rpartition(":")[2])
    looked_up = []

    def resolve(host, *arguments, **options):
        looked_up.append(host)
        address = "192.0.2.77" if len(looked_up) == 1 else "127.0.0.1"
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (address, port))]

    connected = []

    def connect(self, address):
        connected.append(address)
        raise ConnectionRefusedError(111, "Connection refused")

    monkeypatch.setattr(socket, "getaddrinfo", resolve)
    monkeypatch.setattr(socket.socket, "connect", connect)
    monkeypatch.setattr(web, "is_public", lambda address: address == "192.0.2.77")
    with refused("Connection refused"):
        fetch_image(f"http://changing.example:{port}/image")
    assert looked_up == ["changing.example"]
    assert connected == [("192.0.2.77", port)]


@pytest.mark.parametrize(
    "host",
    [
        "127.0.0.1",
        "localhost",
        "0.0.0.0",
        "10.1.2.3",
        "172.16.0.1",
        "192.168.1.1",
        "169.254.169.254",
        "100.64.0.1",
        "224.0.0.1",
        "2130706433",
        "[::1]",
        "[::]",
        "[fe80::1]",
        "[fd00::1]",
        "[::ffff:127.0.0.1]",
        "[::ffff:10.0.0.1]",
        "[2002:7f00:1::]",
        "[64:ff9b::7f00:1]",
        "[64:ff9b:1::a00:1]",
        "[fec0::1]",
        "[::127.0.0.1]",
        "[::ffff:0:7f00:1]",
        "[3fff::1]",
        "[5f00::1]",
        "[4000::1]",
    ],
)
def test_this_machine_and_private_networks_are_refused(host):
    with refused("leads to this machine or a private network, which is not allowed"):
        fetch_image(f"http://{host}:9/")


@pytest.mark.parametrize("address", ["93.184.215.14", "2606:2800:21f:cb07::1", "64:ff9b::5db8:d70e"])
def test_other_addresses_are_public(address):
    assert web.is_public(address)


def test_a_name_that_is_not_resolved_in_time_is_given_up(monkeypatch):
    answered = threading.Event()
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: answered.wait() and [])
    try:
        with refused("slow.example/: did not answer within 0.2 s"):
            fetch("http://slow.example/", timeout_s=0.2)
        assert not answered.is_set()
    finally:
        answered.set()


def test_all_addresses_of_a_name_share_the_time(site, monkeypatch):
    port = int(site.rpartition(":")[2])
    addresses = [f"192.0.2.{number}" for number in range(1, 7)]
    waited_s = []
    connect = socket.socket.connect

    def connect_unless_dead(self, address):
        if address[0] in addresses:
            waited_s.append(self.gettimeout())
            time.sleep(self.gettimeout())
            raise TimeoutError
        connect(self, address)

    def resolve(*_, **__):
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (each, port)) for each in [*addresses, alive]]

    monkeypatch.setattr(socket.socket, "connect", connect_unless_dead)
    monkeypatch.setattr(socket, "getaddrinfo", resolve)

    alive = "127.0.0.1"
    assert fetch(f"http://many.example:{port}/image", timeout_s=2) == IMAGE
    assert sum(waited_s) < 2
    waited_s.clear()
    alive = addresses[0]
    with refused("did not answer within 0.4 s"):
        fetch(f"http://many.example:{port}/image", timeout_s=0.4)
    assert sum(waited_s) < 0.4 + 0.01


@pytest.mark.parametrize("target", ["http://[::1/", "http://x:y/", "//[", "http://\xe9\x00/"])
def test_a_malformed_redirect_is_one_failed_input(site, target):
    with refused("redirects to "):
        fetch(f"{site}/to?{target}")


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("file:///etc/passwd", "is not an http or https address"),
        ("image.png", "is not an http or https address"),
        ("", "is not an http or https address"),
        ("http://", "names no host"),
        ("http:///x", "names no host"),
        ("http://user:pass@example.org/", "contains a user name"),
        ("http://example.org:99999/", "is not a valid address: Port out of range"),
        ("http://[::1/", "is not a valid address: Invalid IPv6 URL"),
        (
            "http://no-such-host.invalid/",
            "invalid/: (Name or service not known|.*name resolution|No address)",
        ),
        ("http://" + "a" * 70 + ".org/", "label (empty or )?too long"),
    ],
)
def test_what_is_no_url_that_can_be_fetched_is_refused(url, message):
    with refused(message):
        fetch(url)


def test_failing_answers_are_named(site):
    with refused(f"^{site}/nothing: the server answered 404 Not Found"):
        fetch(f"{site}/nothing")
    with refused("ended after 10 of 1000 bytes"):
        fetch(f"{site}/cut")


def test_server_that_does_not_listen_is_named():
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        with refused("/: Connection refused"):
            fetch(f"http://127.0.0.1:{unused.getsockname()[1]}/")


@pytest.mark.parametrize(
    ("path", "said"), [("/image", "has 5120 bytes; at most 4095"), ("/chunked", "has more than 4095 bytes")]
)
def test_answer_that_is_too_large_is_refused(site, path, said):
    with refused(said):
        fetch(f"{site}{path}", max_bytes=4095)


def test_answer_of_the_largest_size_is_returned(site):
    assert len(fetch(f"{site}/chunked", max_bytes=4096)) == 4096


@pytest.mark.parametrize("path", ["/drip", "/drip-header", "/silent"])
def test_server_that_takes_its_time_is_given_up(site, path):
    with refused(f"{path}: did not answer within 0.2 s"):
        fetch(f"{site}{path}", timeout_s=0.2)
