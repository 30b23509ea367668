"""Health as ``grpc.health.v1`` tells it: the agent as a whole and each of its services."""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import grpc
from grpc_health.v1 import health, health_pb2

THREAD_POOL = "experimental_thread_pool"
"""The attribute of a method by which gRPC is told to run it in other threads than the server's."""
_THREADS = 4


class Health(health.HealthServicer):  # type: ignore[misc]  # grpc_health has no types
    """The health servicer of gRPC, whose watchers do not hold up the agent's stop.

    It answers in threads of its own: it is asked without a secret, and a call takes a thread from its
    beginning until its request has come, which may be never.

    Args:
        services: The services' names.
    """

    def __init__(self, services: Sequence[str]) -> None:
        super().__init__()
        self._watchers: set[Callable[[Any], None]] = set()
        self._watchers_lock = threading.Lock()
        self._threads = ThreadPoolExecutor(_THREADS, thread_name_prefix="health")
        check, watch = self.Check, self.Watch
        self.__dict__.update(Check=self._apart(check), Watch=self._apart(watch))
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

    def tell(self, services: Sequence[str], *, serving: bool) -> None:
        """Tells that services serve, or do not; once it is stopped, nothing changes any more."""
        statuses = health_pb2.HealthCheckResponse
        for service in services:
            self.set(service, statuses.SERVING if serving else statuses.NOT_SERVING)

    def stop(self) -> None:
        """Tells everyone that nothing is served any more, and ends the watching."""
        self.enter_graceful_shutdown()
        with self._watchers_lock:
            watchers = list(self._watchers)
        for end in watchers:
            end(None)

    def close(self) -> None:
        """Ends its threads, once nothing is answered any more."""
        self._threads.shutdown(wait=False, cancel_futures=True)

    def _apart(self, behaviour: Callable[..., Any]) -> Callable[..., Any]:
        """What answers in the threads of this servicer."""

        @functools.wraps(behaviour)
        def answer(*arguments: Any, **named: Any) -> Any:
            return behaviour(*arguments, **named)

        setattr(answer, THREAD_POOL, self._threads)
        return answer

    def _forget(self, watcher: Callable[[Any], None]) -> None:
        with self._watchers_lock:
            self._watchers.discard(watcher)
