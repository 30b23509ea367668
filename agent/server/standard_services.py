"""The services that gRPC defines: health (``grpc.health.v1``) and reflection (``grpc.reflection.v1``).

Health covers the agent and each of its services. Reflection describes the services, methods and messages of
the agent; grpcio implements only ``grpc.reflection.v1alpha``, which has the same messages. Clients may use
either version.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Sequence
from typing import Any

from google.protobuf.descriptor import FileDescriptor
from google.protobuf.descriptor_pb2 import FileDescriptorProto
from google.protobuf.descriptor_pool import DescriptorPool
from grpc_health.v1 import health_pb2
from grpc_reflection.v1alpha import reflection_pb2
from grpc_reflection.v1alpha._async import ReflectionServicer

from inferometer.agent.server.admission import StreamLimit
from inferometer.agent.server.calls import CallContext, Method, methods_of
from inferometer.manifests.errors import NotFoundError, SessionLimitError
from inferometer.protos.inference.v2 import grpc_service_pb2
from inferometer.protos.inferometer.v1 import predict_pb2, registry_pb2

_HEALTH = health_pb2.DESCRIPTOR.services_by_name["Health"]
SERVICE = _HEALTH.full_name
MAX_WATCHES = 256
_HealthResponse = health_pb2.HealthCheckResponse


class Health:
    """The health of services by name. Thread-safe.

    Its methods run on the event loop and occupy no threads, because they require no secret. For the same
    reason, the number of watchers is limited.
    """

    def __init__(self, services: Sequence[str]) -> None:
        self._statuses = dict.fromkeys(("", *services), _HealthResponse.SERVING)
        self._stopped = False
        self._lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._watchers: set[asyncio.Event] = set()

    def methods(self) -> list[Method]:
        """The service's methods."""
        return methods_of(_HEALTH, self, aside=[method.name for method in _HEALTH.methods])

    async def check(self, request: Any, _: CallContext) -> Any:
        """Returns the health of a service."""
        status = self._statuses.get(request.service)
        if status is None:
            raise NotFoundError(f"the agent has no service {request.service[:100]}")
        return _HealthResponse(status=status)

    async def watch(self, request: Any, _: CallContext) -> AsyncIterator[Any]:
        """Yields the current health of a service and every change of it, until the agent stops."""
        if len(self._watchers) >= MAX_WATCHES:
            raise SessionLimitError(f"the agent has its limit of {MAX_WATCHES} health watches; use Check")
        changed = asyncio.Event()
        self._loop = asyncio.get_running_loop()
        self._watchers.add(changed)
        sent = None
        try:
            while True:
                changed.clear()
                is_last = self._stopped
                status = self._statuses.get(request.service, _HealthResponse.SERVICE_UNKNOWN)
                if status != sent:
                    sent = status
                    yield _HealthResponse(status=status)
                if is_last:
                    return
                await changed.wait()
        finally:
            self._watchers.discard(changed)

    def set(self, services: Sequence[str], *, serving: bool) -> None:
        """Sets whether services are healthy (SERVING); has no effect after ``stop``."""
        with self._lock:
            if not self._stopped:
                status = _HealthResponse.SERVING if serving else _HealthResponse.NOT_SERVING
                self._statuses.update(dict.fromkeys(services, status))
                self._wake()

    def stop(self) -> None:
        """Sets every service to NOT_SERVING and ends the watches."""
        with self._lock:
            self._statuses = dict.fromkeys(self._statuses, _HealthResponse.NOT_SERVING)
            self._stopped = True  # set last: a watcher that sees it first sends the status, then leaves
            self._wake()

    def _wake(self) -> None:
        if self._loop is not None and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._wake_watchers)

    def _wake_watchers(self) -> None:
        for changed in self._watchers:
            changed.set()


_REFLECTED = (predict_pb2, registry_pb2, grpc_service_pb2, health_pb2, reflection_pb2)
_ALPHA = reflection_pb2.DESCRIPTOR.services_by_name["ServerReflection"]
_REFLECTION = _ALPHA.full_name.replace("v1alpha", "v1")
SERVICES = (_ALPHA.full_name, _REFLECTION)
_REFLECTION_CODEC = (
    reflection_pb2.ServerReflectionRequest.FromString,
    reflection_pb2.ServerReflectionResponse.SerializeToString,
)


def reflected_types() -> DescriptorPool:
    """Returns a pool with the types of all services of the agent; see ``protos.inference.v2.pool``."""
    pool = DescriptorPool()
    added: set[str] = set()
    for module in _REFLECTED:
        _add_file(module.DESCRIPTOR, pool, added)
    pool.Add(_version_1())  # type: ignore[no-untyped-call]  # its stubs give it no types
    return pool


def _version_1() -> FileDescriptorProto:
    """Returns the file of ``grpc.reflection.v1``: the v1alpha file with the names of v1."""
    file = FileDescriptorProto.FromString(reflection_pb2.DESCRIPTOR.serialized_pb)
    file.name, file.package = "grpc/reflection/v1/reflection.proto", "grpc.reflection.v1"
    for message in file.message_type:
        for field in message.field:
            if field.type_name:
                field.type_name = field.type_name.replace("v1alpha", "v1")
    for method in file.service[0].method:
        method.input_type = method.input_type.replace("v1alpha", "v1")
        method.output_type = method.output_type.replace("v1alpha", "v1")
    return file


def _add_file(file: FileDescriptor, pool: DescriptorPool, added: set[str]) -> None:
    """Adds a file to the pool, after the files that it imports."""
    if file.name in added:
        return
    added.add(file.name)
    for imported in file.dependencies:
        _add_file(imported, pool, added)
    pool.AddSerializedFile(file.serialized_pb)  # type: ignore[no-untyped-call]  # its stubs give it no types


class _Symbols:
    """A pool that also finds the file of a method, which protobuf's own pool does not index."""

    def __init__(self, pool: Any) -> None:
        self._pool = pool

    def __getattr__(self, name: str) -> Any:
        return getattr(self._pool, name)

    def FindFileContainingSymbol(self, symbol: str) -> Any:  # noqa: N802 - protobuf's name
        """Returns the file of a service, a method, a message, a field, an enum or an enum value.

        Raises KeyError if there is none.
        """
        try:
            return self._pool.FindFileContainingSymbol(symbol)
        except KeyError:
            return self._pool.FindMethodByName(symbol).containing_service.file


class Reflection(ReflectionServicer):  # type: ignore[misc]  # grpc_reflection has no types
    """gRPC's own servicer, whose streams count against the agent's stream limit."""

    def __init__(self, services: Sequence[str], streams: StreamLimit) -> None:
        pool: Any = reflected_types()  # the stubs do not type its methods
        super().__init__(services, _Symbols(pool))
        self._descriptors = [pool.FindServiceByName(name) for name in SERVICES]
        self._streams = streams

    def methods(self) -> list[Method]:
        """The methods of the service."""
        codecs = {"ServerReflectionInfo": _REFLECTION_CODEC}
        return [method for service in self._descriptors for method in methods_of(service, self, codecs)]

    async def server_reflection_info(
        self, requests: AsyncIterator[Any], call: CallContext
    ) -> AsyncIterator[Any]:
        """Answers each request of a stream."""
        with self._streams.one():
            async for response in self.ServerReflectionInfo(requests, call):
                yield response
