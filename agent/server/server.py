"""The agent's gRPC server: built from its parts, started, and stopped without losing what it has accepted."""

from __future__ import annotations

import errno
import logging
import os
import signal
import socket
import threading
from collections.abc import Callable
from concurrent import futures
from dataclasses import dataclass
from types import FrameType, TracebackType

import grpc
from grpc_health.v1 import health, health_pb2_grpc
from grpc_reflection.v1alpha import reflection
from typing_extensions import Self

from agent.artifact_cache import ArtifactCache
from agent.fetching import fetch_image
from agent.models.sources import BUILTIN_ARCHITECTURES, Architectures
from agent.preparation import Fetch
from agent.registry import Registry
from agent.server import predict_service, registry_service
from agent.server.call_tracing import ServerTracing
from agent.server.dataset_runner import DatasetRunner
from agent.server.health import Health
from agent.server.model_opener import ModelOpener
from agent.server.predict_service import PredictService
from agent.server.registry_service import RegistryService
from agent.server.secret import SecretCheck
from agent.server.sessions import Sessions
from manifests.catalog import Catalog
from manifests.errors import ConfigurationError

DEFAULT_MAX_MESSAGE_BYTES = 64 * 1024 * 1024
_KEEPALIVE_MS = 10_000
_MAX_PENDING_CALLS = 20_000
_IDLE_CHECKS = 4  # in the time after which an unused session is closed
_LEAVING_S = 2.0
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class ServerOptions:
    """How an agent is served.

    Attributes:
        host: The address to bind: this machine's own unless told otherwise.
        port: The port to bind; 0 takes a free one.
        secret: What every client must show; None lets all in.
        max_message_bytes: The largest request that is accepted.
        workers: Threads that answer calls; half of them may be taken by streams.
        max_sessions: The most models that are open at once.
        session_idle_s: How long a model may be unused, in seconds, before it is closed.
        grace_s: How long a stopping agent works on what it has accepted, in seconds.
    """

    host: str = "127.0.0.1"
    port: int = 50051
    secret: str | None = None
    max_message_bytes: int = DEFAULT_MAX_MESSAGE_BYTES
    workers: int = 32
    max_sessions: int = 16
    session_idle_s: float = 600.0
    grace_s: float = 30.0


class AgentServer:
    """An agent that answers over gRPC, from ``start`` to ``stop``.

    Args:
        catalog: The models.
        registry: The frameworks.
        options: Where and how it is served.
        dataset_runner: Evaluates datasets; with None the ``Dataset`` method is not there.
        architectures: What models that are built in code may name.
        cache: Gets the models' files that are at URLs; with None, all are on this machine.
        fetch: Gets what a URL of an input names.
        tracing: Begins the traces of calls, and is closed when the server stops; None gives spans only to
            clients that ask for them.

    Raises:
        ConfigurationError: The address cannot be bound, or the secret cannot be sent.
    """

    def __init__(
        self,
        catalog: Catalog,
        registry: Registry,
        options: ServerOptions,
        *,
        dataset_runner: DatasetRunner | None = None,
        architectures: Architectures = BUILTIN_ARCHITECTURES,
        cache: ArtifactCache | None = None,
        fetch: Fetch = fetch_image,
        tracing: ServerTracing | None = None,
    ) -> None:
        self._options = options
        self._tracing = tracing or ServerTracing()
        self._sessions = Sessions(options.max_sessions, options.session_idle_s)
        self._stopping = threading.Event()
        self._expiry = threading.Thread(target=self._close_idle_sessions, name="close-idle", daemon=True)
        self._workers = futures.ThreadPoolExecutor(options.workers, thread_name_prefix="grpc-worker")
        self._server = grpc.server(
            self._workers,
            interceptors=[SecretCheck(options.secret)] if options.secret is not None else [],
            options=(
                ("grpc.max_receive_message_length", options.max_message_bytes),
                ("grpc.max_send_message_length", -1),
                # Calls that come faster than a thread takes them wait; gRPC would cancel most beyond 1,000.
                ("grpc.server.max_pending_requests", _MAX_PENDING_CALLS),
                ("grpc.server.max_pending_requests_hard_limit", _MAX_PENDING_CALLS),
                # Otherwise two agents could listen on one port, and calls would reach either.
                ("grpc.so_reuseport", 0),
                ("grpc.http2.min_recv_ping_interval_without_data_ms", _KEEPALIVE_MS // 2),
                ("grpc.keepalive_permit_without_calls", 1),
            ),
        )
        services = {
            predict_service.SERVICE: PredictService(
                ModelOpener(catalog, registry, architectures, cache, fetch),
                self._sessions,
                dataset_runner,
                max_streams=max(1, options.workers // 2),
                tracing=self._tracing,
            ).handlers(),
            registry_service.SERVICE: RegistryService(catalog, registry).handlers(),
        }
        for name, handlers in services.items():
            self._server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(name, handlers),))
        self._health = Health(list(services))
        health_pb2_grpc.add_HealthServicer_to_server(self._health, self._server)
        reflection.enable_server_reflection(
            (*services, health.SERVICE_NAME, reflection.SERVICE_NAME), self._server
        )
        self._port = self._bind()

    @property
    def address(self) -> str:
        """Where it listens, as ``host:port``."""
        return _join(self._options.host, self._port)

    def start(self) -> None:
        """Begins to answer."""
        self._server.start()
        self._expiry.start()
        if not (self._options.secret is not None or _is_loopback(self._options.host)):
            _log.warning("%s can be reached by others, and asks for no secret; see --secret", self.address)

    def stop(self, grace_s: float | None = None) -> bool:
        """Stops: accepts nothing more, finishes what it has accepted, and closes the sessions.

        Args:
            grace_s: How long to finish, in seconds; None takes that of the options.

        Returns:
            Whether everything was finished. If not, the rest was cancelled, though a prediction that runs in
            a framework cannot be broken off: its thread ends when it does.
        """
        grace_s = self._options.grace_s if grace_s is None else grace_s
        self._stopping.set()
        self._health.stop()
        self._server.stop(grace_s).wait()
        self._sessions.close_all()
        # A call that is answered may still be on its way out.
        finished = self._sessions.wait_for_none(_LEAVING_S)
        self._workers.shutdown(wait=finished, cancel_futures=True)
        if report := self._tracing.close():
            _log.log(logging.WARNING if report.undelivered else logging.INFO, "%s", report)
        return finished

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def _bind(self) -> int:
        host, port = self._options.host, self._options.port
        _check_free(host, port)
        try:
            return self._server.add_insecure_port(_join(host, port))
        except RuntimeError as error:
            raise ConfigurationError(f"cannot listen on {_join(host, port)}: it is taken") from error

    def _close_idle_sessions(self) -> None:
        while not self._stopping.wait(self._options.session_idle_s / _IDLE_CHECKS):
            if closed := self._sessions.close_idle():
                _log.info("closed %d sessions that were not used any more", closed)


def serve(server: AgentServer, on_ready: Callable[[str], None] = lambda _: None) -> None:
    """Runs a server until SIGTERM or SIGINT, then stops it gracefully; a second signal stops it at once.

    To be called in the main thread. If a prediction does not end within the grace period, the process exits
    from here with status 1, because a framework's call cannot be broken off.

    Args:
        server: The server, not started.
        on_ready: Told the address once calls are answered.
    """
    asked = threading.Event()
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}

    def stop(number: int, _: FrameType | None) -> None:
        if asked.is_set():
            os._exit(128 + number)
        asked.set()

    # The system may give a signal to any thread. Python handles it in this one, which sleeps on until
    # something wakes it: here a byte, which Python writes in whatever thread got the signal.
    woken, waker = socket.socketpair()
    waker.setblocking(False)
    waker_before = signal.set_wakeup_fd(waker.fileno(), warn_on_full_buffer=False)
    for number in before:
        signal.signal(number, stop)
    try:
        server.start()
        on_ready(server.address)
        while not asked.is_set():
            woken.recv(1)
        if not server.stop():
            _log.error("stopped with predictions under way, which did not end in time")
            logging.shutdown()
            os._exit(1)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        signal.set_wakeup_fd(waker_before)
        woken.close()
        waker.close()


def _join(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _check_free(host: str, port: int) -> None:
    """Binds and lets go: gRPC does not say why it cannot.

    Raises:
        ConfigurationError: The address cannot be bound.
    """
    if not 0 <= port <= 65535:
        raise ConfigurationError(f"port {port}: a port is 0…65535")
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        with socket.socket(family, kind, protocol) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(address)
    except OSError as error:
        reason = error.strerror or str(error)
        if error.errno == errno.EADDRINUSE:
            reason = "another program listens there; choose another --port, or 0 for a free one"
        raise ConfigurationError(f"cannot listen on {_join(host, port)}: {reason}") from error


def _is_loopback(host: str) -> bool:
    return host in {"localhost", "::1"} or host.startswith("127.")
