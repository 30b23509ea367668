"""The web server that Prometheus scrapes: ``GET /metrics`` on a port of its own."""

from __future__ import annotations

import socket
import socketserver
import threading
from http.server import ThreadingHTTPServer
from typing import Any

from prometheus_client import CollectorRegistry
from prometheus_client.exposition import MetricsHandler

from inferometer.agent.closeable import Closeable
from inferometer.manifests.errors import ConfigurationError

_TIMEOUT_S = 10.0

_POLL_S = 0.05
"""How often it looks whether it is to stop."""


class MetricsServer(Closeable):
    """Answers scrapes from ``start`` to ``close``; port 0 takes a free one.

    Raises ConfigurationError if the address cannot be bound.
    """

    def __init__(self, registry: CollectorRegistry, host: str, port: int) -> None:
        try:
            family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
            self._server = _server_class(family)((host, port), _Handler.factory(registry))
        except (OSError, UnicodeError) as error:  # the second of a name that is none, as one too long
            reason = getattr(error, "strerror", None) or str(error)
            raise ConfigurationError(
                f"cannot listen on {host}:{port} for metrics: {reason}; choose another --metrics_port, or "
                "--metrics_host"
            ) from error
        self._host = f"[{host}]" if ":" in host else host
        self._thread = threading.Thread(
            target=self._server.serve_forever, args=(_POLL_S,), name="metrics", daemon=True
        )

    @property
    def port(self) -> int:
        """The port that it listens on."""
        return int(self._server.server_address[1])

    @property
    def url(self) -> str:
        """What to scrape."""
        return f"http://{self._host}:{self.port}/metrics"

    def start(self) -> None:
        """Begins to answer."""
        self._thread.start()

    def close(self) -> None:
        """Stops; calling it again does nothing."""
        if self._thread.is_alive():
            self._server.shutdown()
            self._thread.join()
        self._server.server_close()


def _server_class(family: int) -> type[ThreadingHTTPServer]:
    class Server(ThreadingHTTPServer):
        address_family = family
        daemon_threads = True
        block_on_close = False

        def server_bind(self) -> None:
            """Binds without the DNS look-up of HTTPServer, whose result nobody uses."""
            socketserver.TCPServer.server_bind(self)
            self.server_name, self.server_port = str(self.server_address[0]), self.server_address[1]

        def handle_error(self, request: Any, client_address: Any) -> None:
            """A scraper that goes away in the middle is no fault of the agent's."""

    return Server


class _Handler(MetricsHandler):
    timeout = _TIMEOUT_S  # for who connects and says nothing
