"""Runs the server of the page until a signal stops it."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import socket
import ssl
from collections.abc import Callable, Generator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import uvicorn

from inferometer.agent.server.binding import check_exposure, check_free, join_address
from inferometer.agent.server.rest.http_connection import CheckingServer, HttpConnection
from inferometer.agent.server.tls import ServerTls, date_fault
from inferometer.client.web.server import PageServer
from inferometer.evaluators.store.evaluation_store import EvaluationStore

_GRACE_S = 2
_MOST_CONNECTIONS = 256
_NICENESS = 10  # the page yields the processors to running measurements
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class PageOptions:
    """The options of the page's server.

    Attributes:
        host: The address to listen on.
        port: The port; 0 means a free one.
        secret: The secret that clients have to send; None requires none.
        tls: The files of TLS; None for none.
        insecure: Whether others may reach it without TLS or a secret.
        data_directory: The folder in which running evaluations report progress.
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
    """A server whose signals its owner handles."""

    @contextmanager
    def capture_signals(self) -> Generator[None, None, None]:
        yield


def serve_page(
    options: PageOptions, open_store: Callable[[], EvaluationStore], on_ready: Callable[[str], None]
) -> None:
    """Serves the page until SIGTERM or SIGINT. To be called in the main thread.

    Lowers the priority of the process, because it may run next to a measurement.

    Args:
        options: How it is served.
        open_store: Opens the store.
        on_ready: Called with the URL once requests are answered.

    Raises:
        ConfigurationError: It cannot listen there, a file of TLS cannot be used, or others could reach it
            without TLS and a secret.
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
    check_free(options.host, options.port)
    with suppress(OSError):
        os.nice(_NICENESS)
    asyncio.run(run_page(options, open_store, on_ready, _on_signals))


def _on_signals(stop: Callable[[], None]) -> None:
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, stop)


async def run_page(
    options: PageOptions,
    open_store: Callable[[], EvaluationStore],
    on_ready: Callable[[str], None],
    use_stop: Callable[[Callable[[], None]], None],
) -> None:
    """Serves the page until stopped; see ``serve_page``, which checks the options.

    Args:
        options: How it is served.
        open_store: Opens the store.
        on_ready: Called with the URL once requests are answered.
        use_stop: Receives the function that stops the server; call that function in this event loop.
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
