"""A server with the health service and as much of ``Registry`` as a test gives it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import grpc
from grpc_health.v1 import health, health_pb2, health_pb2_grpc

from inferometer.protos.inferometer.v1 import registry_pb2

_SERVICE = registry_pb2.DESCRIPTOR.services_by_name["RegistryService"]
Answer = Callable[[Any, grpc.ServicerContext], Any]


class Seen(grpc.ServerInterceptor):
    """Notes which methods are called, and the secrets that are shown."""

    def __init__(self) -> None:
        self.methods: list[str] = []
        self.secrets: list[str] = []

    def intercept_service(self, continuation, details):
        self.methods.append(details.method.rpartition("/")[2])
        self.secrets += [value for key, value in details.invocation_metadata if key == "authorization"]
        return continuation(details)


@contextmanager
def half_agent(status: str = "SERVING", *, seen: Seen | None = None, **answers: Answer) -> Iterator[str]:
    """Serves, and gives the address.

    Args:
        status: The health.
        seen: Notes what comes.
        answers: What a method of ``Registry`` does; one that is not there is not implemented.
    """
    servicer = health.HealthServicer()
    servicer.set("", health_pb2.HealthCheckResponse.ServingStatus.Value(status))
    options = [("grpc.so_reuseport", 0)]
    server = grpc.server(ThreadPoolExecutor(4), options=options, interceptors=[seen] if seen else [])
    health_pb2_grpc.add_HealthServicer_to_server(servicer, server)
    server.add_generic_rpc_handlers(
        (
            grpc.method_handlers_generic_handler(
                _SERVICE.full_name, {name: _handler(name, answer) for name, answer in answers.items()}
            ),
        )
    )
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    try:
        yield f"127.0.0.1:{port}"
    finally:
        server.stop(0).wait()


def aborting(code: grpc.StatusCode, details: str = "") -> Answer:
    """An answer that is a failure."""
    return lambda _, context: context.abort(code, details)


def whole_registry(**described: Any) -> dict[str, Answer]:
    """The answers that a probe asks for; ``described`` is what ``Describe`` and ``Status`` tell."""
    started = {key: value for key, value in described.items() if key == "started_unix_ms"}
    return {
        "Describe": lambda *_: registry_pb2.DescribeResponse(**described),
        "ListFrameworks": lambda *_: registry_pb2.ListFrameworksResponse(),
        "ListModels": lambda *_: registry_pb2.ListModelsResponse(),
        "Status": lambda *_: registry_pb2.StatusResponse(**started),
    }


def _handler(name: str, answer: Answer) -> grpc.RpcMethodHandler[Any, Any]:
    method = _SERVICE.methods_by_name[name]
    request = getattr(registry_pb2, method.input_type.name)
    response = getattr(registry_pb2, method.output_type.name)
    return grpc.unary_unary_rpc_method_handler(answer, request.FromString, response.SerializeToString)
