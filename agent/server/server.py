"""The agent's server: assembled from its parts, started, and stopped without losing accepted work."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import socket
import threading
import time
from collections.abc import Callable
from concurrent import futures
from dataclasses import dataclass, field
from types import FrameType
from typing import TYPE_CHECKING, Any

from typing_extensions import Self

from inferometer.agent.architectures.sources import BUILTIN_ARCHITECTURES, Architectures
from inferometer.agent.artifacts.files import ArtifactCache
from inferometer.agent.artifacts.web import fetch_image
from inferometer.agent.inference.registry import Registry
from inferometer.agent.inference.session import open_session
from inferometer.agent.preprocessing.inputs import Fetch
from inferometer.agent.server import standard_services
from inferometer.agent.server.admission import (
    ClientLimits,
    HostNames,
    Limits,
    SecretCheck,
    StreamLimit,
    bound,
    check_exposure,
    join_address,
    server_options,
)
from inferometer.agent.server.calls import Calls, Method
from inferometer.agent.server.native import predict_service, registry_service
from inferometer.agent.server.native.call_tracing import ServerTracing
from inferometer.agent.server.native.predict_service import DatasetRunner, PredictService
from inferometer.agent.server.native.registry_service import RegistryService
from inferometer.agent.server.native.sessions import ModelFinder, Sessions
from inferometer.agent.server.observation import Observation
from inferometer.agent.server.rest.openai import TextService
from inferometer.agent.server.rpc import Dispatcher, GrpcServer
from inferometer.agent.server.standard_services import Health, Reflection
from inferometer.agent.server.tls import ServerTls
from inferometer.agent.server.v2 import service as v2_service
from inferometer.agent.server.v2.service import InferenceService
from inferometer.agent.server.v2.shared_memory import SharedMemory
from inferometer.agent.serving.prediction_watch import AgentLoad
from inferometer.agent.serving.served_models import IdleRelease, ServedModels, ServingOptions
from inferometer.manifests.catalog import Catalog
from inferometer.manifests.errors import ConfigurationError

if TYPE_CHECKING:
    from inferometer.agent.server.rest.server import HttpServer

DEFAULT_MAX_MESSAGE_BYTES = 64 * 1024 * 1024
_IN_USE_S = 10.0  # after its last call, an agent that stops waits for its clients to see that it does
_QUIET_S, _SETTLING_S = 0.1, 2.0  # without a call for so long, all have arrived; waited for at most so long
_POLL_S = 0.005
_IDLE_CHECKS = 4  # in the time after which an unused session is closed
_LONGEST_CHECK_S = 5.0
_LEAVING_S = 2.0
_SIDE_THREADS = 8
_UNFIT_SERVICES = ("", predict_service.SERVICE, v2_service.SERVICE)
"""The services that report NOT_SERVING while a device is lost or a prediction hangs."""
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class ServerOptions:
    """The options of a served agent.

    Attributes:
        host: The address to bind; by default the loopback address.
        port: The port to bind; 0 selects a free one.
        secret: The secret that every client must send; None admits all clients.
        max_message_bytes: The size of the largest accepted request.
        workers: The number of threads for long work; streams may occupy half of them.
        max_sessions: The maximum number of open models.
        session_idle_s: How long a model may be idle, in seconds, before it is closed.
        grace_s: How long a stopping agent continues accepted work, in seconds.
        drain_s: How long a stopping agent in use still accepts calls, in seconds, after its health becomes
            NOT_SERVING, to give load balancers time to redirect traffic.
        serving: How the models that clients share are loaded, and how their requests are batched.
        tls: The certificate and its key; None disables TLS.
        insecure: Whether others may reach the agent without TLS or without a secret.
        limits: The limits on clients.
        metrics_port: The port of the metrics for Prometheus; 0 selects a free one, None serves no metrics.
        metrics_host: The address of that port, which has no TLS and needs no secret.
        shared_memory: Whether processes of the same user on this host may pass tensors in shared memory.
        http_port: The port of the Open Inference Protocol over HTTP, with the secret and TLS of ``port``; 0
            selects a free one, None disables HTTP.
        allowed_hosts: The accepted names in ``Host`` over HTTP; see ``HostNames.of``.
    """

    host: str = "127.0.0.1"
    port: int = 50051
    secret: str | None = field(default=None, repr=False)
    max_message_bytes: int = DEFAULT_MAX_MESSAGE_BYTES
    workers: int = 32
    max_sessions: int = 16
    session_idle_s: float = 600.0
    grace_s: float = 30.0
    drain_s: float = 0.0
    serving: ServingOptions = field(default_factory=ServingOptions)
    tls: ServerTls | None = None
    insecure: bool = False
    limits: Limits = field(default_factory=Limits)
    metrics_port: int | None = None
    metrics_host: str = "127.0.0.1"
    shared_memory: bool = False
    http_port: int | None = None
    allowed_hosts: tuple[str, ...] | None = None


class Group:
    """The agents that share the ports of an agent, each in a process of its own; here an agent alone."""

    is_shared = False
    """Whether there are others."""

    def shared(self, methods: list[Method]) -> list[Method]:
        """Returns the methods, of which those that concern all agents reach all of them."""
        return methods

    def in_step(self, longest_s: float) -> None:
        """Waits until each agent of the group has called this as often, but for at most ``longest_s``."""


class AgentServer:
    """An agent that answers over gRPC, and optionally over HTTP, from ``start`` to ``stop``.

    An agent of a ``group`` binds its ports, which are given, only in ``start``, beside those of the others;
    it counts metrics without serving them. Without a ``dataset_runner`` it offers no ``Dataset`` method.
    ``cache`` downloads model files that are at URLs; without it, all files must be on this machine. ``fetch``
    downloads inputs from URLs. ``tracing`` begins the traces of calls, and is closed when the server stops;
    None exports no traces.

    Raises:
        ConfigurationError: The address cannot be bound, the secret cannot be sent, a TLS file cannot be used,
            the system has no shared memory to offer, or others can reach an agent that is neither secure nor
            declared ``insecure``.
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
        group: Group | None = None,
    ) -> None:
        self._options, self._group = options, group or Group()
        secret = None if options.secret is None else SecretCheck(options.secret)
        self._warning = check_exposure(
            options.host, tls=options.tls is not None, secret=secret is not None, insecure=options.insecure
        )
        self._credentials = options.tls.credentials() if options.tls else None
        self._shared_memory = SharedMemory(options.session_idle_s) if options.shared_memory else None
        streams = StreamLimit(options.limits.streams_of(options.workers))
        self._tracing = tracing or ServerTracing()
        self._sessions = Sessions(options.max_sessions, options.session_idle_s)
        self._stopping, self._ending = threading.Event(), threading.RLock()
        self._expiry = threading.Thread(target=self._close_idle_sessions, name="close-idle", daemon=True)
        self._observation = self._observe()
        self._side = futures.ThreadPoolExecutor(_SIDE_THREADS, thread_name_prefix="grpc-side")
        self._workers = futures.ThreadPoolExecutor(options.workers, thread_name_prefix="grpc-worker")
        self.registry_service = RegistryService(catalog, registry, lambda: self.load)
        """The service that describes this agent, which is also used for its publication."""
        self.models = ServedModels(
            registry,
            lambda manifest, chosen, trace: open_session(
                manifest,
                chosen,
                registry,
                architectures=architectures,
                cache=cache,
                fetch=fetch,
                max_pixels=options.limits.max_pixels,
                watch=self._observation.watch,
                trace=trace,
            ),
            options.serving,
            cache=cache,
            limit=options.max_sessions,
            idle_s=options.session_idle_s,
            observer=self._observation.queues,
            borrowers=self._sessions,
        )
        """The loaded models."""
        native = PredictService(
            ModelFinder(catalog, registry, self.models.settings_of),
            self.models,
            self._sessions,
            dataset_runner,
            streams,
            tracing=self._tracing,
            limits=options.limits,
        )
        self._texts = TextService(self._tracing, self._observation.generated)
        self._v2 = InferenceService(
            self.models,
            catalog,
            registry,
            streams,
            is_ready=self._is_ready,
            max_inputs=options.limits.max_inputs,
            shared_memory=self._shared_memory,
            texts=self._texts,
        )
        services = (predict_service.SERVICE, registry_service.SERVICE, v2_service.SERVICE)
        self._health = Health(services)
        described = Reflection((*services, standard_services.SERVICE, *standard_services.SERVICES), streams)
        offered = (native, self.registry_service, self._v2, self._health, described)
        self.methods = [method for service in offered for method in service.methods()]
        """The methods that it offers, each of which concerns this agent alone."""
        self._server = self._make_server(secret)
        self._http: HttpServer | None = None
        self._port = options.port if self._group.is_shared else self._open_doors()

    def _make_server(self, secret: SecretCheck | None) -> GrpcServer:
        limits = self._options.limits
        calls = Calls(
            self._workers,
            self._side,
            observers=self._observation.calls,
            secret=secret,
            limits=ClientLimits(limits) if ClientLimits.wanted(limits) else None,
        )
        self._dispatcher = Dispatcher(self._group.shared(self.methods), calls)
        most, beside = self._options.max_message_bytes, self._group.is_shared
        return GrpcServer(self._dispatcher, server_options(most, limits, shared=beside))

    def _open_doors(self) -> int:
        """Binds the ports, and returns the gRPC port."""
        options = self._options
        try:
            port = self._bind()
            self._tracing.listens_at(options.host, port)
            if options.http_port is not None:
                self._http = self._open_http(options.http_port)
                self.registry_service.http_port = self._http.port
        except ConfigurationError:
            self._server.close()
            self._observation.close()
            if self._shared_memory is not None:
                self._shared_memory.close()
            raise
        if self._shared_memory is not None:
            self._shared_memory.peers.listen(options.host, port)
            if self._http is not None:
                self._shared_memory.peers.listen(options.host, self._http.port)
        return port

    def _open_http(self, port: int) -> HttpServer:
        # what these load is an extra
        try:
            from inferometer.agent.server.rest.app import RestApp
            from inferometer.agent.server.rest.server import HttpServer
        except ImportError as error:
            raise ConfigurationError(
                f"--http_port requires {error.name}, which is not installed; "
                'pip install "inferometer[http]", or serve over gRPC only'
            ) from error
        options = self._options
        names = HostNames.of(options.allowed_hosts, options.host, secret=options.secret is not None)
        most = options.max_message_bytes
        methods, beside = self._group.shared(self._v2.methods()), self._group.is_shared
        methods += self._texts.methods(self._v2.repository)
        app = RestApp(self._dispatcher.calls, methods, self._v2.inputs_of, most, names)
        return HttpServer(app, options.host, port, options.tls, options.limits, most, shared=beside)

    def _observe(self) -> Observation:
        return Observation(
            self._options.metrics_host,
            self._options.metrics_port,
            self._options.serving.predict_timeout_s,
            lambda: self.load,
            lambda fit: self._health.set(_UNFIT_SERVICES, serving=fit),
            lambda model: self.models.alive_of(model),
            serves=not self._group.is_shared,
        )

    @property
    def address(self) -> str:
        """The address that the agent listens on, as ``host:port``."""
        return join_address(self._options.host, self._port)

    @property
    def metrics_url(self) -> str | None:
        """The URL of the metrics; None if they are not served."""
        return self._observation.metrics_url

    def metrics(self) -> list[Any]:
        """Returns the current metrics; none without a ``metrics_port``."""
        return list(self._observation.page())

    @property
    def http_url(self) -> str | None:
        """The URL of the HTTP server; None if there is none."""
        return None if self._http is None else self._http.url

    @property
    def load(self) -> AgentLoad:
        """The current load of the agent."""
        return AgentLoad(
            self._stopping.is_set(), len(self._sessions), self._observation.watch.trouble, self.models.loaded
        )

    def _is_ready(self) -> bool:
        return not (self._stopping.is_set() or self._observation.watch.trouble or self.models.is_full)

    def start(self) -> None:
        """Starts answering calls; an agent of a group raises ConfigurationError if it cannot bind a port."""
        if self._group.is_shared:
            self._port = self._open_doors()
        self.registry_service.start()
        self._server.start()
        if self._http is not None:
            self._http.start(self._server.begin)
        self._expiry.start()
        self._observation.start()
        if self._warning and not self._group.is_shared:
            _log.warning("%s", self._warning)

    @property
    def is_in_use(self) -> bool:
        """Whether clients have called the agent of late, so that a stop waits for them to see it."""
        return self._dispatcher.calls.used_within(_IN_USE_S)

    def stop(self, grace_s: float | None = None, *, in_use: bool = False) -> bool:
        """Stops: reports NOT_SERVING, drains, refuses calls, finishes accepted work, and closes the sessions.

        This takes at most ``grace_s`` seconds; None uses the options' value. Returns whether everything was
        finished. If not, the rest was cancelled, except predictions that are running in a framework: they
        cannot be cancelled, and their threads end with them. An agent that is not in use itself also drains
        if its group is ``in_use``. Thread-safe: a second call waits for the first.
        """
        with self._ending:
            return self._stop(self._options.grace_s if grace_s is None else grace_s, in_use)

    def _stop(self, grace_s: float, in_use: bool) -> bool:
        end_s = time.monotonic() + grace_s
        calls = self._dispatcher.calls
        self._stopping.set()
        self._health.stop()
        if self._http is not None:
            self._http.announce_end()
        if in_use or self.is_in_use:
            time.sleep(min(self._options.drain_s, grace_s))
        calls.stop()
        while time.monotonic() < end_s and calls.is_busy:
            time.sleep(_POLL_S)
        if self._server.is_running:
            self._close_doors(end_s)
        self.models.close()
        self._sessions.close_all()
        if self._shared_memory is not None:
            self._shared_memory.close()
        # A call that is answered may still be on its way out, and a lost instance be starting again.
        left_s = max(end_s - time.monotonic(), _LEAVING_S)
        finished = self._sessions.wait_for_none(_LEAVING_S) and self.models.wait_for_none(left_s)
        self._workers.shutdown(wait=finished, cancel_futures=True)
        self._server.close()
        if self._http is not None:
            self._http.close()
        self._side.shutdown(wait=False, cancel_futures=True)
        self._observation.close()
        if report := self._tracing.close():
            _log.log(logging.WARNING if report.undelivered else logging.INFO, "%s", report)
        return finished

    def _close_doors(self, end_s: float) -> None:
        """Stops listening while calls are paused, because gRPC cancels calls that arrive at that moment.

        The agents of a group do each step together, because a client that one of them answers may connect to
        another. No wait exceeds the grace period: a hanging event loop must not keep the process alive.
        """
        in_step, calls = self._group.in_step, self._dispatcher.calls

        def left_s() -> float:
            return max(end_s - time.monotonic(), 0.0)

        async def resume() -> None:
            await asyncio.to_thread(in_step, _SETTLING_S)
            calls.resume()

        in_step(left_s())
        self._server.complete(calls.pause(_QUIET_S, min(_SETTLING_S, left_s())), left_s() + _LEAVING_S)
        in_step(_SETTLING_S)
        self._sessions.end_holds()
        if self._http is not None:
            self._http.stop(left_s())
        self._server.stop(left_s(), left_s() + _LEAVING_S, resume)
        if self._http is not None:
            self._http.wait(left_s() + _LEAVING_S)

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def _bind(self) -> int:
        host, port = self._options.host, self._options.port
        # for the reason, which gRPC does not report
        bound(host, port, shared=self._group.is_shared).close()
        address = join_address(host, port)
        try:
            if self._credentials is None:
                return self._server.add_insecure_port(address)
            return self._server.add_secure_port(address, self._credentials)
        except RuntimeError as error:
            raise ConfigurationError(f"cannot listen on {address}: it is already in use") from error

    def _close_idle_sessions(self) -> None:
        memory = IdleRelease()
        while not self._stopping.wait(min(self._options.session_idle_s / _IDLE_CHECKS, _LONGEST_CHECK_S)):
            memory.check()
            if closed := self._sessions.close_idle() + self.models.close_idle():
                _log.info("closed %d idle sessions and models", closed)
            if self._shared_memory is not None and (released := self._shared_memory.release_dead()):
                _log.info("released %d regions of shared memory whose clients are gone", released)


def serve(
    server: Any,
    on_ready: Callable[[str], None] = lambda _: None,
    on_stopping: Callable[[], None] = lambda: None,
) -> None:
    """Runs a server until SIGTERM or SIGINT, then stops it gracefully; a second signal stops it at once.

    Must be called in the main thread, with an ``AgentServer`` or ``Workers`` that is not started. If a
    prediction does not end within the grace period, the process exits from here with status 1, because a
    framework's call cannot be cancelled. ``on_ready`` is called with the address once calls are answered,
    ``on_stopping`` when a signal arrives.
    """
    stopping = threading.Event()
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}

    def stop(number: int, _: FrameType | None) -> None:
        if stopping.is_set():
            os._exit(128 + number)
        stopping.set()

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
        while not stopping.is_set():
            woken.recv(1)
        on_stopping()
        if not server.stop():
            _log.error("stopped although predictions under way had not ended in time")
            logging.shutdown()
            os._exit(1)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        signal.set_wakeup_fd(waker_before)
        woken.close()
        waker.close()
