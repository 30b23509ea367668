"""A data directory with evaluations of every kind, the command line on it, and a server of the page."""

from __future__ import annotations

import asyncio
import http.client
import json
import threading
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from dataclasses import dataclass, field
from io import StringIO
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from inferometer.client.cli.main import run
from inferometer.client.web.server import PageOptions, run_page
from inferometer.evaluators.store.opening import open_store
from tests.page_samples import DATABASE, keep, samples

START_S = 30.0


@dataclass
class Reply:
    """What a server answered."""

    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        """The body as JSON."""
        return json.loads(self.body)


@dataclass
class Page:
    """A served page."""

    url: str
    headers: dict[str, str] = field(default_factory=dict)

    def get(self, path: str, *, method: str = "GET", **headers: str) -> Reply:
        """Asks without a proxy, and follows nothing."""
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        request = urllib.request.Request(self.url + path, headers=self.headers | named, method=method)
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        try:
            with opener.open(request, timeout=30) as answer:
                return Reply(answer.status, dict(answer.headers.items()), answer.read())
        except urllib.error.HTTPError as error:
            return Reply(error.code, dict(error.headers.items()), error.read())


class Stream:
    """Server-sent events, read as they come."""

    def __init__(self, page: Page) -> None:
        address = urlsplit(page.url)
        assert address.hostname is not None
        self._connection = http.client.HTTPConnection(address.hostname, address.port, timeout=10)
        self._connection.request("GET", "/api/events")
        self._answer = self._connection.getresponse()
        assert self._answer.headers["content-type"].startswith("text/event-stream")

    def until(self, name: str, holds: Callable[[Any], bool]) -> Any:
        """The first event of a name whose value is as wanted; fails after the timeout of the connection."""
        while True:
            line = self._answer.readline().decode().rstrip()
            if line == f"event: {name}":
                value = json.loads(self._answer.readline().decode().removeprefix("data: "))
                if holds(value):
                    return value

    def close(self) -> None:
        self._connection.close()


@contextmanager
def served(folder: Path, **options: Any) -> Iterator[Page]:
    """Serves the page over the store of a data directory, in a thread."""
    given = {"host": "127.0.0.1", "port": 0, "secret": None, "tls": None, "insecure": False}
    chosen = PageOptions(data_directory=folder, **{**given, **options})
    ready = threading.Event()
    found: dict[str, Any] = {}

    def on_ready(url: str) -> None:
        found["url"] = url.rstrip("/")
        found["loop"] = asyncio.get_running_loop()
        ready.set()

    async def serve() -> None:
        await run_page(
            chosen, lambda: open_store(None, DATABASE, folder), on_ready, lambda stop: found.update(stop=stop)
        )

    thread = threading.Thread(target=asyncio.run, args=(serve(),), daemon=True)
    thread.start()
    assert ready.wait(START_S)
    try:
        yield Page(found["url"])
    finally:
        found["loop"].call_soon_threadsafe(found["stop"])
        thread.join(START_S)
        assert not thread.is_alive()


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The data directory, which the command line takes."""
    folder = tmp_path_factory.mktemp("page")
    keep(folder, samples())
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("AGENT_DATA_DIR", str(folder))
        patch.setenv("XDG_CONFIG_HOME", str(folder))
        yield folder


@pytest.fixture(scope="module")
def page(data: Path) -> Iterator[Page]:
    """The page over the samples."""
    with served(data) as found:
        yield found


@pytest.fixture(scope="module")
def told(data: Path) -> Callable[..., Any]:
    """What a command prints with ``-f json``."""

    def tell(*words: str) -> Any:
        with redirect_stdout(StringIO()) as out, redirect_stderr(StringIO()) as errors:
            code = run([*words, "-f", "json"])
        assert code in (0, 1), errors.getvalue()
        return json.loads(out.getvalue())

    return tell
