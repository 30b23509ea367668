"""What the interceptors put around methods: made once, and of no more names than there are."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import grpc
import pytest

from agent.server.client_limits import ClientLimits
from agent.server.limits import Limits
from agent.server.observing.call import Call
from agent.server.observing.interceptor import UNKNOWN, CallInterceptor
from agent.server.reflected_types import served_methods
from agent.server.secret import METADATA_KEY, SecretCheck, bearer
from agent.server.steps import taken

METHOD = "inferscope.v1.Predict/Predict"
SECRET = "open sesame"
RIGHT = ((METADATA_KEY, bearer(SECRET)),)


class Told:
    """Remembers what calls were called."""

    def __init__(self) -> None:
        self.methods: list[str] = []

    def call_began(self, call: Call) -> None:
        self.methods.append(call.method)

    def call_ended(self, call: Call, code: grpc.StatusCode, duration_ns: int) -> None: ...


class Context:
    """A call, as far as the interceptors ask."""

    def invocation_metadata(self) -> tuple[()]:
        return ()

    def set_trailing_metadata(self, metadata: object) -> None: ...

    def peer(self) -> str:
        return "ipv4:127.0.0.1:1"

    def peer_identities(self) -> None: ...

    def code(self) -> grpc.StatusCode:
        return grpc.StatusCode.UNAUTHENTICATED

    def is_active(self) -> bool:
        return True

    def abort(self, code: grpc.StatusCode, details: str) -> None:
        raise PermissionError(details)


def ask(interceptors: list[grpc.ServerInterceptor], handler: Any, path: str, metadata: Any = ()) -> Any:
    """What interceptors make of a call, the first of them the outermost."""
    details: Any = SimpleNamespace(method=path, invocation_metadata=metadata)

    def rest(index: int) -> Any:
        if index == len(interceptors):
            return handler
        return interceptors[index].intercept_service(lambda _: rest(index + 1), details)

    return rest(0)


def test_handlers_are_put_around_a_method_once_and_not_for_each_call() -> None:
    bare = grpc.unary_unary_rpc_method_handler(lambda request, _: request)
    for interceptor in (CallInterceptor([], [METHOD]), ClientLimits(Limits(max_client_rps=1e6))):
        first = ask([interceptor], bare, f"/{METHOD}")
        assert first is not bare
        assert ask([interceptor], bare, f"/{METHOD}") is first
        other = grpc.unary_unary_rpc_method_handler(lambda _, __: "other")
        assert ask([interceptor], other, f"/{METHOD}").unary_unary(b"", Context()) == "other"
        assert ask([interceptor], bare, f"/{METHOD}").unary_unary(b"", Context()) == b""


@pytest.mark.parametrize(
    "path", ["/made/up", f"//{METHOD}", "/a\nINFO agent: all is well/b", "/\x1b[31m/x", METHOD + "x", "", "/"]
)
def test_name_that_a_client_makes_up_is_told_to_nobody(path: str) -> None:
    told = Told()
    chain = [CallInterceptor([told], [METHOD]), SecretCheck(SECRET)]
    with pytest.raises(PermissionError):
        taken(ask(chain, None, path).stream_unary(iter(()), Context()))
    with pytest.raises(PermissionError):
        taken(ask(chain, None, f"/{METHOD}").stream_unary(iter(()), Context()))
    assert told.methods == [UNKNOWN, METHOD]
    assert ask(chain, None, path, RIGHT) is None


def test_every_service_of_the_agent_is_known_by_name() -> None:
    assert {
        METHOD,
        "inferscope.v1.Registry/Status",
        "inference.GRPCInferenceService/ModelInfer",
        "grpc.health.v1.Health/Check",
        "grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo",
    } <= served_methods()
