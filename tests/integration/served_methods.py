"""Methods of a made-up service ``T`` behind a dispatcher."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import grpc
import pytest

from inferometer.agent.server.calls import Calls, Method
from inferometer.agent.server.rpc import Dispatcher

TIMEOUT_S = 20


def method(name: str, behaviour: Callable[..., Any], **more: Any) -> Method:
    return Method(f"T/{name}", behaviour, bytes, bytes, **more)


def dispatcher(pool: ThreadPoolExecutor, methods: dict[str, Any], **parts: Any) -> Dispatcher:
    """A dispatcher of methods of a service ``T``, given by name as behaviours or as a whole."""
    whole = [each if isinstance(each, Method) else method(name, each) for name, each in methods.items()]
    return Dispatcher(whole, Calls(pool, pool, **parts))


def error_of(call: Callable[[], object]) -> Any:
    with pytest.raises(grpc.RpcError) as error:
        call()
    return error.value
