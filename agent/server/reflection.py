"""Reflection as ``grpc.reflection.v1alpha`` tells it: what services, methods and messages there are."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from typing import Any

import grpc
from grpc_reflection.v1alpha import reflection, reflection_pb2

from agent.server.observing.foreign_services import tolerant
from agent.server.reflected_types import reflected_types
from agent.server.status import answered
from agent.server.stream_limit import StreamLimit

SERVICE = reflection.SERVICE_NAME
_METHOD = "ServerReflectionInfo"


class Reflection(reflection.ReflectionServicer):  # type: ignore[misc]  # grpc_reflection has no types
    """The reflection servicer of gRPC, whose streams count among the others: each takes a thread.

    Args:
        services: The names of the services.
        streams: Lets streams in.
    """

    def __init__(self, services: Sequence[str], streams: StreamLimit) -> None:
        super().__init__(services, reflected_types())
        self._streams = streams

    def handlers(self) -> dict[str, grpc.RpcMethodHandler[Any, Any]]:
        """The service's method by its name."""
        handler = grpc.stream_stream_rpc_method_handler(
            self.ServerReflectionInfo,
            reflection_pb2.ServerReflectionRequest.FromString,
            reflection_pb2.ServerReflectionResponse.SerializeToString,
        )
        return {_METHOD: tolerant(handler, f"{SERVICE}/{_METHOD}")}

    def ServerReflectionInfo(  # noqa: N802 - gRPC's name
        self, request_iterator: Iterator[Any], context: grpc.ServicerContext
    ) -> Iterator[Any]:
        """Answers what is asked, one after the other."""
        with ExitStack() as stack:
            with answered(context, _METHOD):
                stack.enter_context(self._streams.one())
            yield from super().ServerReflectionInfo(request_iterator, context)
