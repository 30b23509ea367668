"""Health as ``grpc.health.v1`` tells it: the agent as a whole and each of its services."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import grpc
from grpc_health.v1 import health, health_pb2

from agent.server.marks import at_any_time, in_steps
from agent.server.observing.foreign_services import tolerant
from agent.server.steps import Steps

SERVICE = health.SERVICE_NAME
MAX_WATCHES = 256
_Response = health_pb2.HealthCheckResponse


@dataclass(eq=False, slots=True)
class _Watcher:
    """Who watches a service, and what it was told last."""

    service: str
    context: grpc.ServicerContext
    send: Callable[[Any], None]
    told: Any = None


class Health:
    """Tells the health of services, to who asks and to who watches. Thread-safe.

    It takes no threads, because it is asked without a secret, by whoever likes. For the same reason no more
    than a number of watchers are let in.

    Args:
        services: The services' names.
    """

    def __init__(self, services: Sequence[str]) -> None:
        self._statuses = dict.fromkeys(("", *services), _Response.SERVING)
        self._watchers: set[_Watcher] = set()
        self._stopped = False
        self._lock = threading.Lock()

    def handlers(self) -> dict[str, grpc.RpcMethodHandler[Any, Any]]:
        """The service's methods by name."""

        @in_steps
        def check(request: Any, context: grpc.ServicerContext) -> Steps[Any]:
            yield from ()  # at once
            return self._check(request, context)

        @at_any_time
        def watch(request: Any, context: grpc.ServicerContext, send: Callable[[Any], None]) -> None:
            self._watch(_Watcher(request.service, context, send))

        reading, writing = health_pb2.HealthCheckRequest.FromString, _Response.SerializeToString
        handlers = {
            "Check": grpc.unary_unary_rpc_method_handler(check, reading, writing),
            "Watch": grpc.unary_stream_rpc_method_handler(watch, reading, writing),
        }
        return {name: tolerant(handler, f"{SERVICE}/{name}") for name, handler in handlers.items()}

    def tell(self, services: Sequence[str], *, serving: bool) -> None:
        """Tells that services serve, or do not; once it is stopped, nothing changes any more."""
        with self._lock:
            if self._stopped:
                return
            self._statuses.update(
                dict.fromkeys(services, _Response.SERVING if serving else _Response.NOT_SERVING)
            )
            self._inform(self._watchers)

    def stop(self) -> None:
        """Tells everyone that nothing is served any more, and ends the watching."""
        with self._lock:
            self._stopped = True
            self._statuses = dict.fromkeys(self._statuses, _Response.NOT_SERVING)
            self._inform(self._watchers)
            watchers, self._watchers = self._watchers, set()
            for watcher in watchers:
                watcher.send(None)

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
                self._inform([watcher])
                if self._stopped:
                    watcher.send(None)
                    return
                self._watchers.add(watcher)
        if full:
            watcher.context.abort(
                grpc.StatusCode.RESOURCE_EXHAUSTED,
                f"the agent's health is watched by its limit of {MAX_WATCHES}; use Check",
            )
        if not watcher.context.add_callback(lambda: self._forget(watcher)):  # it is over already
            self._forget(watcher)

    def _inform(self, watchers: Iterable[_Watcher]) -> None:
        """Tells watchers how it is now, if they do not know, under the lock: sending does not wait."""
        for watcher in watchers:
            status = self._statuses.get(watcher.service, _Response.SERVICE_UNKNOWN)
            if status != watcher.told:
                watcher.told = status
                watcher.send(_Response(status=status))

    def _forget(self, watcher: _Watcher) -> None:
        with self._lock:
            self._watchers.discard(watcher)
