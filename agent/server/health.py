"""The health of the agent and of each of its services, as ``grpc.health.v1`` defines it."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Sequence
from typing import Any

from grpc_health.v1 import health_pb2

from inferometer.agent.server.rpc import CallContext, Method, methods_of
from inferometer.manifests.errors import NotFoundError, SessionLimitError

_SERVICE = health_pb2.DESCRIPTOR.services_by_name["Health"]
SERVICE = _SERVICE.full_name
MAX_WATCHES = 256
_Response = health_pb2.HealthCheckResponse


class Health:
    """The health of services by name. Thread-safe.

    Its methods run on the event loop and take no threads, because they require no secret. For the same reason
    the number of watchers is limited.
    """

    def __init__(self, services: Sequence[str]) -> None:
        self._statuses = dict.fromkeys(("", *services), _Response.SERVING)
        self._stopped = False
        self._lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._watchers: set[asyncio.Event] = set()

    def methods(self) -> list[Method]:
        """The service's methods."""
        return methods_of(_SERVICE, self, aside=[method.name for method in _SERVICE.methods])

    async def check(self, request: Any, _: CallContext) -> Any:
        """Returns the health of a service."""
        status = self._statuses.get(request.service)
        if status is None:
            raise NotFoundError(f"the agent has no service {request.service[:100]}")
        return _Response(status=status)

    async def watch(self, request: Any, _: CallContext) -> AsyncIterator[Any]:
        """Yields the current health of a service and every change of it, until the agent stops."""
        if len(self._watchers) >= MAX_WATCHES:
            raise SessionLimitError(f"the agent's health is watched by its limit of {MAX_WATCHES}; use Check")
        changed = asyncio.Event()
        self._loop = asyncio.get_running_loop()
        self._watchers.add(changed)
        sent = None
        try:
            while True:
                changed.clear()
                is_last = self._stopped
                status = self._statuses.get(request.service, _Response.SERVICE_UNKNOWN)
                if status != sent:
                    sent = status
                    yield _Response(status=status)
                if is_last:
                    return
                await changed.wait()
        finally:
            self._watchers.discard(changed)

    def set(self, services: Sequence[str], *, serving: bool) -> None:
        """Sets whether services are healthy (SERVING); has no effect after ``stop``."""
        with self._lock:
            if not self._stopped:
                status = _Response.SERVING if serving else _Response.NOT_SERVING
                self._statuses.update(dict.fromkeys(services, status))
                self._wake()

    def stop(self) -> None:
        """Sets every service to NOT_SERVING and ends the watches."""
        with self._lock:
            self._statuses = dict.fromkeys(self._statuses, _Response.NOT_SERVING)
            self._stopped = True  # set last: a watcher that sees it first sends the status, then leaves
            self._wake()

    def _wake(self) -> None:
        if self._loop is not None and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._wake_watchers)

    def _wake_watchers(self) -> None:
        for changed in self._watchers:
            changed.set()
