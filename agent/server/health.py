"""Health as ``grpc.health.v1`` tells it: the agent as a whole and each of its services."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any

import grpc
from grpc_health.v1 import health, health_pb2


class Health(health.HealthServicer):  # type: ignore[misc]  # grpc_health has no types
    """The health servicer of gRPC, whose watchers do not hold up the agent's stop.

    Args:
        services: The services' names.
    """

    def __init__(self, services: Sequence[str]) -> None:
        super().__init__()
        self._watchers: set[Callable[[Any], None]] = set()
        self._watchers_lock = threading.Lock()
        for service in ("", *services):
            self.set(service, health_pb2.HealthCheckResponse.SERVING)

    def Watch(  # noqa: N802 - gRPC's name
        self,
        request: Any,
        context: grpc.ServicerContext,
        send_response_callback: Callable[[Any], None] | None = None,
    ) -> Any:
        """Tells the health now and whenever it changes."""
        if send_response_callback is not None:
            callback = send_response_callback
            with self._watchers_lock:
                self._watchers.add(callback)
            context.add_callback(lambda: self._forget(callback))
        return super().Watch(request, context, send_response_callback)

    def stop(self) -> None:
        """Tells everyone that nothing is served any more, and ends the watching."""
        self.enter_graceful_shutdown()
        with self._watchers_lock:
            watchers = list(self._watchers)
        for end in watchers:
            end(None)

    def _forget(self, watcher: Callable[[Any], None]) -> None:
        with self._watchers_lock:
            self._watchers.discard(watcher)
