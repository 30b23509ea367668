"""Health as ``grpc.health.v1`` tells it: the agent as a whole and each of its services."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import grpc
from grpc_health.v1 import health, health_pb2

from agent.closeable import Closeable
from agent.server.observing.foreign_services import tolerant
from agent.server.side_threads import SideThreads

SERVICE = health.SERVICE_NAME
MAX_WATCHES = 256
_THREADS = 16
_Response = health_pb2.HealthCheckResponse


@dataclass(eq=False, slots=True)
class _Watcher:
    """Who watches a service; told one thing at a time."""

    service: str
    context: grpc.ServicerContext
    send: Callable[[Any], None]
    told: Any = None
    telling: threading.Lock = field(default_factory=threading.Lock)


class Health(Closeable):
    """Tells the health of services, to who asks and to who watches. Thread-safe.

    It answers in threads of its own: it is asked without a secret, by whoever likes. For the same reason no
    more than a number of watchers are let in, and one that does not take what it is told is given up.
    gRPC's own servicer tells its watchers under a lock that the thread which serves all calls waits for when
    a watcher leaves: both then wait for ever.

    Args:
        services: The services' names.
    """

    def __init__(self, services: Sequence[str]) -> None:
        self._statuses = dict.fromkeys(("", *services), _Response.SERVING)
        self._watchers: set[_Watcher] = set()
        self._stopped = False
        self._lock = threading.Lock()  # never held while something is sent
        self._threads = SideThreads(_THREADS, "health")

    def handlers(self) -> dict[str, grpc.RpcMethodHandler[Any, Any]]:
        """The service's methods by name."""

        def watch(request: Any, context: grpc.ServicerContext, send: Callable[[Any], None]) -> None:
            self._watch(_Watcher(request.service, context, send))

        watch.experimental_non_blocking = True  # type: ignore[attr-defined]  # so that it keeps no thread
        reading, writing = health_pb2.HealthCheckRequest.FromString, _Response.SerializeToString
        handlers = {
            "Check": grpc.unary_unary_rpc_method_handler(self._check, reading, writing),
            "Watch": grpc.unary_stream_rpc_method_handler(watch, reading, writing),
        }
        return self._threads.taking(
            SERVICE, {name: tolerant(handler, f"{SERVICE}/{name}") for name, handler in handlers.items()}
        )

    def start(self) -> None:
        """Begins to give up calls whose request does not come."""
        self._threads.start()

    def tell(self, services: Sequence[str], *, serving: bool) -> None:
        """Tells that services serve, or do not; once it is stopped, nothing changes any more."""
        with self._lock:
            if self._stopped:
                return
            self._statuses.update(
                dict.fromkeys(services, _Response.SERVING if serving else _Response.NOT_SERVING)
            )
            watchers = list(self._watchers)
        for watcher in watchers:
            self._threads.submit(self._inform, watcher)

    def stop(self) -> None:
        """Tells everyone that nothing is served any more, and ends the watching."""
        with self._lock:
            self._stopped = True
            self._statuses = dict.fromkeys(self._statuses, _Response.NOT_SERVING)
            watchers = list(self._watchers)
        for watcher in watchers:
            self._threads.submit(self._inform, watcher)

    def close(self) -> None:
        """Ends its threads, once nothing is answered any more."""
        self._threads.close()

    def _check(self, request: Any, context: grpc.ServicerContext) -> Any:
        with self._lock:
            status = self._statuses.get(request.service)
        if status is None:
            context.abort(grpc.StatusCode.NOT_FOUND, f"the agent has no service {request.service[:100]}")
        return _Response(status=status)

    def _watch(self, watcher: _Watcher) -> None:
        with self._lock:
            full = len(self._watchers) >= MAX_WATCHES
            if not full:
                self._watchers.add(watcher)
        if full:
            watcher.context.abort(
                grpc.StatusCode.RESOURCE_EXHAUSTED,
                f"the agent's health is watched by its limit of {MAX_WATCHES}; use Check",
            )
        if not watcher.context.add_callback(lambda: self._forget(watcher)):  # it is over already
            self._forget(watcher)
            return
        self._inform(watcher)

    def _inform(self, watcher: _Watcher) -> None:
        """Tells a watcher how it is now, if it does not know."""
        with watcher.telling:
            with self._lock:
                if watcher not in self._watchers:
                    return
                status = self._statuses.get(watcher.service, _Response.SERVICE_UNKNOWN)
                over = self._stopped
            with self._threads.bounded(watcher.context):
                if status != watcher.told:
                    watcher.told = status
                    watcher.send(_Response(status=status))
            if over:
                self._forget(watcher)
                watcher.send(None)

    def _forget(self, watcher: _Watcher) -> None:
        with self._lock:
            self._watchers.discard(watcher)
