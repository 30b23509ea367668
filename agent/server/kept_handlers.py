"""What an interceptor puts around the methods: made once for each of them rather than for each call."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

import grpc

_Handler: TypeAlias = "grpc.RpcMethodHandler[Any, Any]"


class KeptHandlers:
    """The handlers of methods, each within another one.

    It holds one of each name: those who ask see to it that clients cannot make up names.

    Args:
        wrap: Puts another handler around one of the method of a name.
    """

    def __init__(self, wrap: Callable[[_Handler, str], _Handler]) -> None:
        self._wrap = wrap
        self._kept: dict[str, tuple[_Handler, _Handler]] = {}

    def around(self, handler: _Handler, method: str) -> _Handler:
        """Returns what is around a handler, the same one as long as it is asked for the same."""
        kept = self._kept.get(method)
        if kept is None or kept[0] is not handler:  # another one where a call is refused
            kept = self._kept[method] = (handler, self._wrap(handler, method))
        return kept[1]
