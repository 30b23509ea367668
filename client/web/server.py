"""The read-only server of the page: its files, its API, its events, and its access control.

It runs until a signal stops it. Access requires the secret and an accepted host name; the browser's security
policy is set. Open pages are notified of changes, which are checked for once a second while a page is open.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import json
import logging
import os
import signal
import socket
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable, Generator, Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, TypeVar

import uvicorn
from starlette.applications import Starlette
from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from inferometer.agent.server.admission import HostNames, SecretCheck, bound, check_exposure, join_address
from inferometer.agent.server.rest.http_connection import CheckingServer, HttpConnection
from inferometer.agent.server.tls import ServerTls, date_fault
from inferometer.client.api.progress import running_now
from inferometer.client.web.page import SERVED, content_of, content_type_of, served_page
from inferometer.client.web.plans import PlansReader, asked_of
from inferometer.client.web.reader import ListQuery, OpenStore, StoreReader
from inferometer.manifests.errors import ConfigurationError, InferometerError, NotFoundError

POLICY = "; ".join(
    (
        "default-src 'none'",
        "script-src 'self'",
        "style-src 'self'",
        "img-src 'self'",
        "connect-src 'self'",
        "base-uri 'none'",
        "form-action 'none'",
        "frame-ancestors 'none'",
    )
)
"""The page may load only its own files. Its text has no inline scripts or styles."""
_HEADERS = {
    "Content-Security-Policy": POLICY,
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
}
_CHALLENGE = 'Basic realm="inferometer", charset="UTF-8"'


class Guard:
    """Forwards authorized requests to the page, and rejects all others.

    With a secret, each request must carry it: as the password of any user, which a browser asks for and
    stores, or as ``Authorization: Bearer SECRET``. Without one, the page answers only to its own names: see
    ``HostNames``.

    Raises:
        ConfigurationError: The secret cannot be sent.
    """

    def __init__(self, app: ASGIApp, secret: str | None, names: Iterable[str] | None) -> None:
        self._app = app
        self._check = None if secret is None else SecretCheck(secret)
        self._names = HostNames(names)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handles a request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = Headers(scope=scope)

        async def send_strictly(message: Message) -> None:
            if message["type"] == "http.response.start":
                sent = MutableHeaders(scope=message)
                sent.update(_HEADERS)
                sent.setdefault("Cache-Control", "no-store")
            await send(message)

        refusal = self._refusal(headers)
        await (refusal or self._app)(scope, receive, send_strictly)

    def _refusal(self, headers: Headers) -> Response | None:
        if self._check is None:
            if self._names.admits(headers.get("host")):
                return None
            return JSONResponse(
                {"error": "this page does not answer to that name; use the address that agent web printed"},
                status_code=421,
            )
        if self._check.admits("", [("authorization", _shown_secret(headers.get("authorization", "")))]):
            return None
        return JSONResponse(
            {"error": "the secret is missing or wrong"}, 401, headers={"WWW-Authenticate": _CHALLENGE}
        )


def _shown_secret(authorization: str) -> str:
    """Returns the header as ``Bearer SECRET``; for Basic authentication, the password is the secret."""
    scheme, _, credentials = authorization.partition(" ")
    if scheme.lower() != "basic":
        return authorization
    try:
        login = base64.b64decode(credentials, validate=True).decode("utf-8")
    except (binascii.Error, ValueError):
        return ""
    return f"Bearer {login.partition(':')[2]}"


_LOOK_S = 1.0
_ALIVE_LOOKS = 15
_log = logging.getLogger(__name__)


class Events:
    """Server-sent events to any number of pages; for one event loop.

    ``look`` returns the data for pages by the name of the event; it is called once a second while a page is
    open.
    """

    def __init__(self, look: Callable[[], Awaitable[dict[str, Any]]]) -> None:
        self._look = look
        self._known: dict[str, Any] = {}
        self._pages: set[asyncio.Queue[str | None]] = set()
        self._task: asyncio.Task[None] | None = None
        self._closed = False

    async def stream(self) -> AsyncIterator[str]:
        """Yields events until ``close``, beginning with those that describe the current state."""
        if self._closed:
            return
        queue: asyncio.Queue[str | None] = asyncio.Queue()
        queue.put_nowait("retry: 2000\n\n")
        for name, value in self._known.items():
            queue.put_nowait(_event(name, value))
        self._pages.add(queue)
        if self._task is None:
            self._task = asyncio.create_task(self._watch())
        try:
            while (text := await queue.get()) is not None:
                yield text
        finally:
            self._pages.discard(queue)

    def close(self) -> None:
        """Ends all streams."""
        self._closed = True
        for queue in self._pages:
            queue.put_nowait(None)
        if self._task is not None:
            self._task.cancel()

    async def _watch(self) -> None:
        """Checks for changes until no page is open."""
        looks, told = 0, ""
        try:
            while self._pages:
                try:
                    found = await self._look()
                    told = ""
                except InferometerError as error:
                    if str(error) != told:
                        _log.warning("%s", error)
                    found, told = {}, str(error)
                for name, value in found.items():
                    if name not in self._known or self._known[name] != value:
                        self._known[name] = value
                        self._tell(_event(name, value))
                looks += 1
                if looks % _ALIVE_LOOKS == 0:
                    self._tell(": alive\n\n")
                await asyncio.sleep(_LOOK_S)
        finally:
            self._task = None
            self._known = {}

    def _tell(self, text: str) -> None:
        for queue in self._pages:
            queue.put_nowait(text)


def _event(name: str, value: Any) -> str:
    return f"event: {name}\ndata: {json.dumps(value)}\n\n"


_T = TypeVar("_T")
_STATUS = {ConfigurationError: 400, NotFoundError: 404}
"""The HTTP status for each error; any other error, such as an unreadable database, gives 503."""


class PageServer:
    """The page over one store, as an ASGI application.

    A dedicated thread makes all reads of the store, one at a time, so that reads for one page do not delay
    the files and events of other pages. ``open_store`` is called in that thread. Running evaluations report
    progress in the data directory, where plans have their folders; see ``Guard`` for the others.
    """

    def __init__(
        self,
        open_store: OpenStore,
        data_directory: Path,
        *,
        secret: str | None = None,
        names: Iterable[str] | None = (),
    ) -> None:
        self._reader = StoreReader(open_store)
        self._plans = PlansReader(data_directory, lambda: self._reader.store)
        self._data_directory = data_directory
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="page-store")
        self.events = Events(self._look)
        pages = ("/", "/compare", "/evaluations/{id}", "/plans", "/plans/{name}")
        answers: dict[str, Callable[[Request], Any]] = {
            "about": lambda _: self._reader.about(),
            "filters": lambda _: self._reader.filters(),
            "evaluations": lambda asked: self._reader.page(ListQuery.of(asked.query_params)),
            "evaluations/{id}": lambda asked: self._reader.evaluation(asked.path_params["id"]),
            "compare": lambda asked: self._reader.comparison(
                asked.query_params.get("a", ""), asked.query_params.get("b", "")
            ),
            "plans": lambda _: {"plans": self._plans.plans()},
            "plans/{name}": lambda asked: self._plans.plan(
                asked.path_params["name"], asked_of(asked.query_params.multi_items())
            ),
        }
        routes = [
            *(Route(path, self._page) for path in pages),
            Route("/static/{name}", self._static),
            *(Route(f"/api/{path}", self._endpoint(answer)) for path, answer in answers.items()),
            Route("/api/events", self._events),
        ]
        known: dict[Any, Any] = {InferometerError: self._failed, 404: _missing, 405: _missing}
        starlette = Starlette(routes=routes, exception_handlers=known)
        self.app = Guard(starlette, secret, names)

    async def prepare(self) -> None:
        """Opens the store, so that its problems are reported before the server starts."""
        await self._read(lambda: self._reader.store)

    async def close(self) -> None:
        """Ends all streams, and closes the store."""
        self.events.close()
        await self._read(self._reader.close)
        self._thread.shutdown(wait=False)

    async def _read(self, read: Callable[[], _T]) -> _T:
        return await asyncio.get_running_loop().run_in_executor(self._thread, read)

    def _endpoint(self, answer: Callable[[Request], Any]) -> Callable[[Request], Awaitable[Response]]:
        """Returns an endpoint that sends an answer as JSON, read and encoded in the thread of the store."""

        async def endpoint(request: Request) -> Response:
            def read() -> str:
                return json.dumps(answer(request), ensure_ascii=False, allow_nan=False)

            return _json(await self._read(read))

        return endpoint

    async def _page(self, _: Request) -> Response:
        return Response(served_page(), media_type="text/html; charset=utf-8")

    async def _static(self, request: Request) -> Response:
        name = request.path_params["name"]
        if name not in SERVED:
            return _missing()
        return Response(
            content_of(name), media_type=content_type_of(name), headers={"Cache-Control": "no-cache"}
        )

    async def _events(self, _: Request) -> Response:
        return StreamingResponse(self.events.stream(), media_type="text/event-stream")

    async def _look(self) -> dict[str, Any]:
        def look() -> dict[str, Any]:
            running = [asdict(each) for each in running_now(self._data_directory)]
            total = self._reader.total()
            return {"evaluations": {"total": total}, "running": running, "plans": self._plans.plans()}

        return await self._read(look)

    async def _failed(self, _: Request, error: Exception) -> Response:
        status = next((code for kind, code in _STATUS.items() if isinstance(error, kind)), 503)
        return _json(json.dumps({"error": str(error)}), status)


def _json(text: str, status: int = 200) -> Response:
    return Response(text.encode("utf-8"), status, media_type="application/json")


def _missing(_: Any = None, error: Any = None) -> Response:
    status = getattr(error, "status_code", 404)
    reason = "this page is read-only" if status == 405 else "there is nothing here"
    return _json(json.dumps({"error": reason}), status)


_GRACE_S = 2
_MOST_CONNECTIONS = 256
_NICENESS = 10  # the page yields the processors to running measurements


@dataclass(frozen=True, slots=True, kw_only=True)
class PageOptions:
    """The options of the page's server.

    A port of 0 means a free one; None for ``secret`` or ``tls`` disables it. With ``insecure``, others may
    reach the page without them. Running evaluations report progress in the data directory.
    """

    host: str
    port: int
    secret: str | None
    tls: ServerTls | None
    insecure: bool
    data_directory: Path


class _Connection(HttpConnection):
    most = _MOST_CONNECTIONS


class _Server(CheckingServer):
    """A server whose owner handles signals."""

    @contextmanager
    def capture_signals(self) -> Generator[None, None, None]:
        yield


def serve_page(options: PageOptions, open_store: OpenStore, on_ready: Callable[[str], None]) -> None:
    """Serves the page until SIGTERM or SIGINT. Must be called in the main thread.

    Lowers the priority of the process, because it may run next to a measurement. ``on_ready`` is called with
    the URL once requests are answered.

    Raises:
        ConfigurationError: The address cannot be bound, a TLS file cannot be used, or others could reach the
            page without TLS and a secret.
        StoreError: The store cannot be opened.
    """
    warning = check_exposure(
        options.host,
        tls=options.tls is not None,
        secret=options.secret is not None,
        insecure=options.insecure,
        what="page",
    )
    if warning:
        _log.warning("%s", warning)
    if options.tls is not None:
        options.tls.read()
        if fault := date_fault(options.tls.certificate, options.tls.key):
            _log.warning("tls_cert %s %s; browsers will not trust it", options.tls.certificate, fault)
    bound(options.host, options.port).close()
    with suppress(OSError):
        os.nice(_NICENESS)
    asyncio.run(run_page(options, open_store, on_ready, _on_signals))


def _on_signals(stop: Callable[[], None]) -> None:
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, stop)


async def run_page(
    options: PageOptions,
    open_store: OpenStore,
    on_ready: Callable[[str], None],
    use_stop: Callable[[Callable[[], None]], None],
) -> None:
    """Serves the page until stopped; see ``serve_page``, which checks the options.

    ``use_stop`` receives the function that stops the server; call that function in this event loop.
    """
    names = None if options.insecure else (options.host, socket.gethostname(), socket.getfqdn())
    page = PageServer(open_store, options.data_directory, secret=options.secret, names=names)
    try:
        await page.prepare()
        server = _Server(_configuration(options, page))

        def stop() -> None:
            page.events.close()
            server.should_exit = True

        use_stop(stop)
        serving = asyncio.create_task(server.serve())
        while not server.started and not serving.done():
            await asyncio.sleep(0.01)
        if server.started:
            port = server.servers[0].sockets[0].getsockname()[1]
            scheme = "https" if options.tls else "http"
            on_ready(f"{scheme}://{join_address(options.host or '0.0.0.0', port)}/")  # noqa: S104 - is shown
        await serving
    finally:
        await page.close()


def _configuration(options: PageOptions, page: PageServer) -> uvicorn.Config:
    tls = options.tls
    authorities = tls.clients_ca if tls else None
    return uvicorn.Config(
        page.app,
        host=options.host,
        port=options.port,
        log_config=None,
        access_log=False,
        server_header=False,
        http=_Connection,
        ws="none",
        loop="asyncio",
        lifespan="off",
        limit_concurrency=_MOST_CONNECTIONS,
        timeout_graceful_shutdown=_GRACE_S,
        ssl_certfile=str(tls.certificate) if tls else None,
        ssl_keyfile=str(tls.key) if tls else None,
        ssl_ca_certs=str(authorities) if authorities else None,
        ssl_cert_reqs=ssl.CERT_REQUIRED if authorities else ssl.CERT_NONE,
    )
