"""The agent's gRPC server: built from its parts, started, and stopped without losing what it has accepted."""

from __future__ import annotations

import logging
import os
import signal
import socket
import threading
from collections.abc import Callable, Mapping
from concurrent import futures
from dataclasses import dataclass, field
from types import FrameType, TracebackType
from typing import Any

import grpc
from typing_extensions import Self

from agent.artifact_cache import ArtifactCache
from agent.fetching import fetch_image
from agent.models.sources import BUILTIN_ARCHITECTURES, Architectures
from agent.preparation import Fetch
from agent.registry import Registry
from agent.server import health, predict_service, reflection, registry_service
from agent.server.binding import check_free, join_address, server_options
from agent.server.call_tracing import ServerTracing
from agent.server.credentials import ServerTls
from agent.server.dataset_runner import DatasetRunner
from agent.server.health import Health
from agent.server.limits import Limits
from agent.server.loop.loop_server import LoopServer
from agent.server.model_opener import ModelOpener
from agent.server.models.queued_session import QueuedOpener
from agent.server.models.served_models import ServedModels, ServingOptions
from agent.server.observing.agent_load import AgentLoad, read_load
from agent.server.observing.observation import Observation
from agent.server.observing.status_method import StatusMethod
from agent.server.predict_service import PredictService
from agent.server.reflection import Reflection
from agent.server.registry_service import RegistryService
from agent.server.security import Security
from agent.server.sessions import Sessions
from agent.server.side_threads import SideThreads
from agent.server.stream_limit import StreamLimit
from agent.server.v2 import service as v2_service
from agent.server.v2.service import InferenceService
from manifests.catalog import Catalog
from manifests.errors import ConfigurationError

DEFAULT_MAX_MESSAGE_BYTES = 64 * 1024 * 1024
_IDLE_CHECKS = 4  # in the time after which an unused session is closed
_LEAVING_S = 2.0
_SIDE_THREADS = 8
_AT_ONCE = {registry_service.SERVICE: None, v2_service.SERVICE: ("ServerLive", "ServerReady", "ModelReady")}
"""Methods that tell how the agent is, and do not wait for predictions: of a service some, or all."""
_UNFIT_SERVICES = ("", predict_service.SERVICE, v2_service.SERVICE)
"""What does not serve while a device is lost or a prediction hangs."""
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class ServerOptions:
    """How an agent is served.

    Attributes:
        host: The address to bind: this machine's own unless told otherwise.
        port: The port to bind; 0 takes a free one.
        secret: What every client must show; None lets all in.
        max_message_bytes: The largest request that is accepted.
        workers: Threads for what takes time; half of them may be taken by streams.
        max_sessions: The most models that are open at once.
        session_idle_s: How long a model may be unused, in seconds, before it is closed.
        grace_s: How long a stopping agent works on what it has accepted, in seconds.
        serving: How the models that clients share are loaded, and their requests put together.
        tls: The certificate and its key; None listens in clear.
        insecure: Whether others may reach it without TLS or without a secret.
        limits: What clients may ask for.
        metrics_port: The port where Prometheus finds metrics; 0 takes a free one, None serves none.
        metrics_host: The address of that port, which has no TLS and asks for no secret.
    """

    host: str = "127.0.0.1"
    port: int = 50051
    secret: str | None = field(default=None, repr=False)
    max_message_bytes: int = DEFAULT_MAX_MESSAGE_BYTES
    workers: int = 32
    max_sessions: int = 16
    session_idle_s: float = 600.0
    grace_s: float = 30.0
    serving: ServingOptions = field(default_factory=ServingOptions)
    tls: ServerTls | None = None
    insecure: bool = False
    limits: Limits = field(default_factory=Limits)
    metrics_port: int | None = None
    metrics_host: str = "127.0.0.1"


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
        ConfigurationError: The address cannot be bound, the secret cannot be sent, a file of TLS cannot be
            used, or others can reach an agent that is not secure and not said to be ``insecure``.
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
        self._security = Security.of(options)
        self._tracing = tracing or ServerTracing()
        self._sessions = Sessions(options.max_sessions, options.session_idle_s)
        self._stopping = threading.Event()
        self._expiry = threading.Thread(target=self._close_idle_sessions, name="close-idle", daemon=True)
        self._observation = self._observe()
        self._side = SideThreads(_SIDE_THREADS, "grpc-side")
        self._workers = futures.ThreadPoolExecutor(options.workers, thread_name_prefix="grpc-worker")
        self._server = LoopServer(
            self._workers,
            [self._observation.interceptor, *self._security.interceptors],
            server_options(options.max_message_bytes, options.limits),
        )
        self.registry_service = RegistryService(catalog, registry, self._sessions.__len__)
        """What this agent is, for those who look for one."""
        opener = ModelOpener(
            catalog,
            registry,
            architectures,
            cache,
            fetch,
            options.limits.max_pixels,
            self._observation.watch,
        )
        self._models = ServedModels(
            registry,
            opener.open,
            options.serving,
            limit=options.max_sessions,
            idle_s=options.session_idle_s,
            observer=self._observation.queues,
        )
        streams = StreamLimit(options.limits.streams_of(options.workers))
        services = {
            predict_service.SERVICE: PredictService(
                QueuedOpener(opener, self._models),
                self._sessions,
                dataset_runner,
                streams,
                tracing=self._tracing,
                limits=options.limits,
            ).handlers(),
            registry_service.SERVICE: {
                **self.registry_service.handlers(),
                **StatusMethod(lambda: self.registry_service.facts, lambda: self.load).handlers(),
            },
            v2_service.SERVICE: InferenceService(
                self._models,
                catalog,
                registry,
                streams,
                is_ready=self._is_ready,
                max_inputs=options.limits.max_inputs,
            ).handlers(),
        }
        self._health = self._register(services, streams)
        try:
            self._port = self._bind()
        except ConfigurationError:
            self._server.close()
            self._observation.close()
            raise

    def _observe(self) -> Observation:
        return Observation(
            self._options.metrics_host,
            self._options.metrics_port,
            self._options.serving.predict_timeout_s,
            lambda: self.load,
            lambda fit: self._health.tell(_UNFIT_SERVICES, serving=fit),
        )

    def _register(
        self, services: Mapping[str, dict[str, grpc.RpcMethodHandler[Any, Any]]], streams: StreamLimit
    ) -> Health:
        """Offers the methods of the services, a list of all of them, and their health, which it returns."""
        told = Health(list(services))
        offered = {name: self._side.taking(its, _AT_ONCE.get(name, ())) for name, its in services.items()}
        offered[health.SERVICE] = told.handlers()
        offered[reflection.SERVICE] = Reflection((*offered, reflection.SERVICE), streams).handlers()
        for name, handlers in offered.items():
            self._server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(name, handlers),))
        return told

    @property
    def address(self) -> str:
        """Where it listens, as ``host:port``."""
        return join_address(self._options.host, self._port)

    @property
    def metrics_url(self) -> str | None:
        """Where the metrics are; None where they are not served."""
        return self._observation.metrics_url

    @property
    def load(self) -> AgentLoad:
        """What it holds and has to do now."""
        return read_load(
            self._models,
            self._sessions.__len__,
            self._observation.watch.trouble,
            stopping=self._stopping.is_set(),
        )

    def _is_ready(self) -> bool:
        return not (self._stopping.is_set() or self._observation.watch.trouble)

    @property
    def models(self) -> ServedModels:
        """The models that are loaded."""
        return self._models

    def start(self) -> None:
        """Begins to answer."""
        self.registry_service.start()
        self._server.start()
        self._expiry.start()
        self._observation.start()
        self._security.warn()

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
        # Not for longer: an error of gRPC must not keep the process.
        self._server.stop(grace_s, grace_s + _LEAVING_S)
        self._models.close()
        self._sessions.close_all()
        # A call that is answered may still be on its way out.
        finished = self._sessions.wait_for_none(_LEAVING_S) and self._models.wait_for_none(_LEAVING_S)
        self._workers.shutdown(wait=finished, cancel_futures=True)
        self._server.close()
        self._side.close()
        self._observation.close()
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
        check_free(host, port)
        try:
            return self._security.add_port(self._server, join_address(host, port))
        except RuntimeError as error:
            raise ConfigurationError(f"cannot listen on {join_address(host, port)}: it is taken") from error

    def _close_idle_sessions(self) -> None:
        while not self._stopping.wait(self._options.session_idle_s / _IDLE_CHECKS):
            if closed := self._sessions.close_idle() + self._models.close_idle():
                _log.info("closed %d sessions and models that were not used any more", closed)


def serve(
    server: AgentServer,
    on_ready: Callable[[str], None] = lambda _: None,
    on_stopping: Callable[[], None] = lambda: None,
) -> None:
    """Runs a server until SIGTERM or SIGINT, then stops it gracefully; a second signal stops it at once.

    To be called in the main thread. If a prediction does not end within the grace period, the process exits
    from here with status 1, because a framework's call cannot be broken off.

    Args:
        server: The server, not started.
        on_ready: Told the address once calls are answered.
        on_stopping: Told that a signal has come, before anything is stopped.
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
        on_stopping()
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
