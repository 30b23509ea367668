"""Reflection: the services, methods and messages of the agent, as ``grpc.reflection.v1alpha`` defines it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from typing import Any

from google.protobuf.descriptor import FileDescriptor
from google.protobuf.descriptor_pool import DescriptorPool
from grpc_health.v1 import health_pb2
from grpc_reflection.v1alpha import reflection_pb2
from grpc_reflection.v1alpha._async import ReflectionServicer

from inferometer.agent.server.rpc import CallContext, Method, methods_of
from inferometer.agent.server.security.limits import StreamLimit
from inferometer.protos.inference.v2 import grpc_service_pb2
from inferometer.protos.inferometer.v1 import predict_pb2, registry_pb2

_SERVED = (predict_pb2, registry_pb2, grpc_service_pb2, health_pb2, reflection_pb2)
_SERVICE = reflection_pb2.DESCRIPTOR.services_by_name["ServerReflection"]
SERVICE = _SERVICE.full_name


def reflected_types() -> DescriptorPool:
    """Returns a pool with the types of every service of the agent; see ``protos.inference.v2.pool``."""
    pool = DescriptorPool()
    added: set[str] = set()
    for module in _SERVED:
        _add(module.DESCRIPTOR, pool, added)
    return pool


def _add(file: FileDescriptor, pool: DescriptorPool, added: set[str]) -> None:
    """Adds a file, after those that it imports."""
    if file.name in added:
        return
    added.add(file.name)
    for imported in file.dependencies:
        _add(imported, pool, added)
    pool.AddSerializedFile(file.serialized_pb)  # type: ignore[no-untyped-call]  # its stubs give it no types


class Reflection(ReflectionServicer):  # type: ignore[misc]  # grpc_reflection has no types
    """gRPC's own servicer, whose streams count among the others."""

    def __init__(self, services: Sequence[str], streams: StreamLimit) -> None:
        super().__init__(services, reflected_types())
        self._streams = streams

    def methods(self) -> list[Method]:
        """The service's method."""
        return methods_of(_SERVICE, self)

    async def server_reflection_info(
        self, requests: AsyncIterator[Any], call: CallContext
    ) -> AsyncIterator[Any]:
        """Answers each request of a stream."""
        with self._streams.one():
            async for response in self.ServerReflectionInfo(requests, call):
                yield response
