"""Peers on this host: whether a process of this agent's own user made a connection."""

from __future__ import annotations

import ipaddress
import os
import socket
import struct
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TypeAlias
from urllib.parse import unquote

from inferometer.agent.closeable import Closeable
from inferometer.manifests.errors import ConfigurationError, InputError

_Address: TypeAlias = "ipaddress.IPv4Address | ipaddress.IPv6Address"
_NETLINK_SOCK_DIAG, _SOCK_DIAG_BY_FAMILY, _NLM_F_REQUEST, _NLMSG_ERROR = 4, 20, 1, 2
_ESTABLISHED = 1
_HEADER = struct.Struct("=IHHII")  # nlmsghdr
_REQUEST = struct.Struct("=BBBxI")  # inet_diag_req_v2 before its inet_diag_sockid
_NO_COOKIE = b"\xff" * 8
_PORTS_AT, _UID_AT = 4, 64  # in inet_diag_msg
_ANSWER_BYTES = 4096


@dataclass(frozen=True, slots=True)
class _Connection:
    """One end of a TCP connection."""

    local: tuple[_Address, int]
    remote: tuple[_Address, int]

    @property
    def family(self) -> int:
        return socket.AF_INET if self.local[0].version == 4 else socket.AF_INET6

    @property
    def ports(self) -> bytes:
        return struct.pack(">HH", self.local[1], self.remote[1])

    def packed(self) -> bytes:
        """The ``inet_diag_sockid``."""
        addresses = b"".join(ip.packed.ljust(16, b"\0") for ip, _ in (self.local, self.remote))
        return self.ports + addresses + bytes(4) + _NO_COOKIE


class LocalPeers(Closeable):
    """Checks peers, which are named as gRPC names them: ``ipv4:127.0.0.1:1234``, ``ipv6:[::1]:1234``.

    A loopback address alone says little, as every user of the host has it: the kernel says whose the socket
    at the other end of the connection is, see sock_diag(7). Nothing is remembered, because a port may be
    another user's a moment later. A proxy or a tunnel on this host counts as who runs it. Thread-safe.

    Raises:
        ConfigurationError: The system cannot tell.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._servers: list[tuple[_Address, int]] = []
        try:
            self._socket = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, _NETLINK_SOCK_DIAG)
        except (AttributeError, OSError) as error:
            raise ConfigurationError(
                f"shared memory needs Linux, which tells whose a connection is: {error}"
            ) from error
        self._socket.setblocking(False)  # the answer is there when the request is sent

    def listen(self, host: str, port: int) -> None:
        """Adds an address that peers connect to; everywhere stands for the loopback addresses."""
        found = {str(entry[4][0]) for entry in socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)}
        for text in found:
            ip = ipaddress.ip_address(text.partition("%")[0])
            every = ("127.0.0.1", "::1") if ip.is_unspecified else (str(ip),)
            self._servers.extend((ipaddress.ip_address(each), port) for each in every)

    def check(self, peer: str) -> None:
        """Raises InputError unless the peer is a process of this host and of this process's user."""
        found = _parsed(peer)
        if found is None:
            raise InputError("shared memory is for clients on this host that connect to a loopback address")
        if not any(self._owner(connection) == os.geteuid() for connection in self._connections(found)):
            raise InputError("shared memory is for clients of the user who runs the agent")

    def close(self) -> None:
        """Closes what asks the kernel; calling it again does nothing."""
        self._socket.close()

    def _connections(self, peer: tuple[_Address, int]) -> Iterator[_Connection]:
        for server in tuple(self._servers):
            if server[0].version == peer[0].version:
                yield _Connection(peer, server)

    def _owner(self, connection: _Connection) -> int | None:
        """The user whose end of a connection it is; None where there is no such connection."""
        body = _REQUEST.pack(connection.family, socket.IPPROTO_TCP, 0, 1 << _ESTABLISHED)
        body += connection.packed()
        header = _HEADER.pack(_HEADER.size + len(body), _SOCK_DIAG_BY_FAMILY, _NLM_F_REQUEST, 0, 0)
        with self._lock:
            try:
                self._socket.send(header + body)
                answer = self._socket.recv(_ANSWER_BYTES)
            except OSError as error:
                raise InputError(f"the kernel does not tell whose a connection is: {error}") from error
        _, kind, *_ = _HEADER.unpack_from(answer)
        answer = answer[_HEADER.size :]
        if kind == _NLMSG_ERROR or answer[1] != _ESTABLISHED:
            return None
        if answer[_PORTS_AT : _PORTS_AT + 4] != connection.ports:
            return None
        return int(struct.unpack_from("=I", answer, _UID_AT)[0])


def _parsed(peer: str) -> tuple[_Address, int] | None:
    """The peer's address; None where it is no loopback address."""
    kind, _, address = unquote(peer).partition(":")
    host, _, port = address.rpartition(":")
    try:
        ip = ipaddress.ip_address(host.strip("[]").partition("%")[0])
        number = int(port)
    except ValueError:
        return None
    if isinstance(ip, ipaddress.IPv6Address) and ip.ipv4_mapped is not None:
        ip = ip.ipv4_mapped
    if kind not in {"ipv4", "ipv6"} or not ip.is_loopback or not 0 < number < 1 << 16:
        return None
    return ip, number
