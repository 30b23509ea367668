"""Peers on this host: whether a process of this agent's own user made a connection."""

from __future__ import annotations

import ipaddress
import os
import struct
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from urllib.parse import unquote

from inferometer.manifests.errors import ConfigurationError, InputError

_TABLES = (Path("/proc/net/tcp"), Path("/proc/net/tcp6"))
"""The kernel's tables of TCP sockets, with the user of each: proc_pid_net(5)."""
_LOCAL, _STATE, _UID = 1, 3, 7  # columns
_ESTABLISHED = "01"
_MEMORY_S = 1.0  # a port is not given to another user's connection sooner: net.ipv4.tcp_tw_reuse
_MAX_REMEMBERED = 1024


class LocalPeers:
    """Checks peers, which are named as gRPC names them: ``ipv4:127.0.0.1:1234``, ``ipv6:[::1]:1234``.

    A loopback address alone says little, as every user of the host has it: the kernel's table of sockets has
    the user who made the peer's. A proxy or a tunnel on this host counts as who runs it. Thread-safe.

    Raises:
        ConfigurationError: The system has no such table.
    """

    def __init__(self, tables: Sequence[Path] = _TABLES, clock: Callable[[], float] = time.monotonic) -> None:
        self._tables = [path for path in tables if path.exists()]
        if not self._tables:
            raise ConfigurationError("shared memory needs Linux: its clients are found in /proc/net/tcp")
        self._clock = clock
        self._checked: dict[str, float] = {}
        """When each peer was found to be of this user."""

    def check(self, peer: str) -> None:
        """Raises InputError unless the peer is a process of this host and of this process's user."""
        now_s = self._clock()
        checked_s = self._checked.get(peer)
        if checked_s is not None and now_s - checked_s < _MEMORY_S:
            return
        owners = self._owners(peer)
        if owners is None:
            raise InputError("shared memory is for clients on this host that connect to a loopback address")
        if owners != {os.geteuid()}:
            raise InputError("shared memory is for clients of the user who runs the agent")
        if len(self._checked) >= _MAX_REMEMBERED:
            self._checked.clear()
        self._checked[peer] = now_s

    def _owners(self, peer: str) -> set[int] | None:
        """The users whose connections have the peer's address; None where it is no loopback address."""
        kind, _, address = unquote(peer).partition(":")
        host, _, port = address.rpartition(":")
        try:
            ip = ipaddress.ip_address(host.strip("[]").partition("%")[0])
            number = int(port)
        except ValueError:
            return None
        mapped = ip.ipv4_mapped if isinstance(ip, ipaddress.IPv6Address) else None
        ip = mapped or ip
        if kind not in {"ipv4", "ipv6"} or not ip.is_loopback:
            return None
        wanted = {f"{form}:{number:04X}" for form in _forms(ip)}
        owners = set()
        for table in self._tables:
            for line in table.read_text(encoding="ascii").splitlines()[1:]:
                columns = line.split()
                if columns[_LOCAL] in wanted and columns[_STATE] == _ESTABLISHED:
                    owners.add(int(columns[_UID]))
        return owners


def _forms(ip: ipaddress.IPv4Address | ipaddress.IPv6Address) -> Iterator[str]:
    """The address as the tables have it, in words of the machine's byte order; of IPv4 in either table."""
    if ip.version == 4:
        yield _hexadecimal(ip.packed)
        ip = ipaddress.IPv6Address(f"::ffff:{ip}")
    yield _hexadecimal(ip.packed)


def _hexadecimal(packed: bytes) -> str:
    return "".join(f"{word:08X}" for (word,) in struct.iter_unpack("=I", packed))
