"""What reflection tells of the messages and services, which are in two pools of descriptors."""

from __future__ import annotations

from google.protobuf.descriptor import FileDescriptor
from google.protobuf.descriptor_pool import DescriptorPool
from grpc_health.v1 import health_pb2
from grpc_reflection.v1alpha import reflection_pb2

from protos.inference.v2 import grpc_service_pb2
from protos.inferscope.v1 import predict_pb2, registry_pb2

_SERVED = (predict_pb2, registry_pb2, grpc_service_pb2, health_pb2, reflection_pb2)


def served_methods() -> frozenset[str]:
    """Returns what methods the services of the agent may have, as ``package.Service/Method``."""
    return frozenset(
        f"{service.full_name}/{method.name}"
        for module in _SERVED
        for service in module.DESCRIPTOR.services_by_name.values()
        for method in service.methods
    )


def reflected_types() -> DescriptorPool:
    """Returns a pool with the types of every service of the agent; see ``protos.inference.v2.pool``."""
    pool = DescriptorPool()
    added: set[str] = set()
    for module in _SERVED:
        _add(module.DESCRIPTOR, pool, added)
    return pool


def _add(file: FileDescriptor, pool: DescriptorPool, added: set[str]) -> None:
    """Adds a file and before it those that it imports."""
    if file.name in added:
        return
    added.add(file.name)
    for imported in file.dependencies:
        _add(imported, pool, added)
    pool.AddSerializedFile(file.serialized_pb)  # type: ignore[no-untyped-call]  # its stubs give it no types
