"""Processes of servers that stand beside each other, and when they answer."""

from __future__ import annotations

import http.client
import socket
import subprocess
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack

import grpc

_READY_S = 60.0
_NOT_YET = (grpc.RpcError, OSError, AssertionError, http.client.HTTPException)


def started(stack: ExitStack, command: Sequence[str]) -> Sequence[str]:
    """Starts a server that ends with its standard input, and returns the addresses that it prints."""
    server = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert server.stdin is not None
    assert server.stdout is not None
    stack.callback(server.wait)
    stack.callback(server.stdin.close)
    stack.callback(server.stdout.close)
    return server.stdout.readline().split()


def when_ready(call: Callable[[], None]) -> Callable[[], None]:
    """Returns a call of a server once the server has answered it."""
    deadline_s = time.monotonic() + _READY_S
    while True:
        try:
            call()
            return call
        except _NOT_YET:
            if time.monotonic() > deadline_s:
                raise
            time.sleep(0.2)


def free_ports(count: int) -> list[int]:
    """Returns ports of the loopback address that nobody listens on."""
    with ExitStack() as stack:
        sockets = [stack.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(count)]
        return [each.getsockname()[1] for each in sockets]
