"""Reflection: the services, methods and messages of the agent, as ``grpc.reflection.v1`` defines it.

grpcio implements ``grpc.reflection.v1alpha`` only, which has the same messages. Clients request either
version.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from typing import Any

from google.protobuf.descriptor import FileDescriptor
from google.protobuf.descriptor_pb2 import FileDescriptorProto
from google.protobuf.descriptor_pool import DescriptorPool
from grpc_health.v1 import health_pb2
from grpc_reflection.v1alpha import reflection_pb2
from grpc_reflection.v1alpha._async import ReflectionServicer

from inferometer.agent.server.rpc import CallContext, Method, methods_of
from inferometer.agent.server.security.limits import StreamLimit
from inferometer.protos.inference.v2 import grpc_service_pb2
from inferometer.protos.inferometer.v1 import predict_pb2, registry_pb2

_SERVED = (predict_pb2, registry_pb2, grpc_service_pb2, health_pb2, reflection_pb2)
_ALPHA = reflection_pb2.DESCRIPTOR.services_by_name["ServerReflection"]
_NAME = _ALPHA.full_name.replace("v1alpha", "v1")
SERVICES = (_ALPHA.full_name, _NAME)
_CODEC = (
    reflection_pb2.ServerReflectionRequest.FromString,
    reflection_pb2.ServerReflectionResponse.SerializeToString,
)


def reflected_types() -> DescriptorPool:
    """Returns a pool with the types of all services of the agent; see ``protos.inference.v2.pool``."""
    pool = DescriptorPool()
    added: set[str] = set()
    for module in _SERVED:
        _add(module.DESCRIPTOR, pool, added)
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


def _add(file: FileDescriptor, pool: DescriptorPool, added: set[str]) -> None:
    """Adds a file to the pool, after the files that it imports."""
    if file.name in added:
        return
    added.add(file.name)
    for imported in file.dependencies:
        _add(imported, pool, added)
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
        codecs = {"ServerReflectionInfo": _CODEC}
        return [method for service in self._descriptors for method in methods_of(service, self, codecs)]

    async def server_reflection_info(
        self, requests: AsyncIterator[Any], call: CallContext
    ) -> AsyncIterator[Any]:
        """Answers each request of a stream."""
        with self._streams.one():
            async for response in self.ServerReflectionInfo(requests, call):
                yield response
