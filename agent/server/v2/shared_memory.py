"""Tensors in shared memory: Triton's system shared-memory extension.

A client creates a POSIX segment, registers a range of it as a region, and names the region in place of a
tensor's elements. Only processes of the agent's own user on this host may do so, with segments of that user.

Inputs are read in place through a mapping. Reading a mapping beyond the end of its file would kill the
process. Therefore, a segment is allocated in full at registration, so that no page access can fail because
``/dev/shm`` is full, and its size is checked at each use. One risk remains: a client that truncates its
segment while the model reads it. Such a client runs as the agent's user and could just as well kill the
agent. A copy with ``pread`` would close that gap, but takes longer than the whole call: 7 ms for 38 MB into
existing memory and 34 ms into new memory, whereas an empty call takes 0.3 ms. Outputs are written with
``pwrite``, which cannot fail that way: 7 ms instead of 3 ms for 38 MB.
"""

from __future__ import annotations

import errno
import fcntl
import ipaddress
import mmap
import os
import socket
import stat
import struct
import threading
import time
import weakref
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import TypeAlias
from urllib.parse import unquote

from inferometer.agent.open_inference.codec import (
    BYTE_SIZE,
    OFFSET,
    REGION,
    SEGMENTS,
    InferCall,
    titled,
    whole_number,
)
from inferometer.manifests.errors import (
    ConfigurationError,
    InputError,
    MemoryLimitError,
    NotFoundError,
    RegionExistsError,
    one_line,
)
from inferometer.protos.inference.v2 import grpc_service_pb2 as pb

_Address: TypeAlias = "ipaddress.IPv4Address | ipaddress.IPv6Address"
_NETLINK_SOCK_DIAG, _SOCK_DIAG_BY_FAMILY, _NLM_F_REQUEST, _NLMSG_ERROR = 4, 20, 1, 2
_ESTABLISHED = 1
_DIAG_HEADER = struct.Struct("=IHHII")  # nlmsghdr
_DIAG_REQUEST = struct.Struct("=BBBxI")  # inet_diag_req_v2 before its inet_diag_sockid
_NO_DIAG_COOKIE = b"\xff" * 8
_PORTS_AT, _UID_AT = 4, 64  # in inet_diag_msg
_DIAG_ANSWER_BYTES = 4096


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
        """Returns the connection as an ``inet_diag_sockid``."""
        addresses = b"".join(ip.packed.ljust(16, b"\0") for ip, _ in (self.local, self.remote))
        return self.ports + addresses + bytes(4) + _NO_DIAG_COOKIE


class LocalPeers:
    """Checks peers in gRPC's notation: ``ipv4:127.0.0.1:1234``, ``ipv6:[::1]:1234``.

    A loopback address alone says little, because every user of the host can connect from it: the kernel is
    asked who owns the other end, see sock_diag(7). Nothing is cached, because a port may belong to another
    user a moment later. A proxy or a tunnel on this host is treated as its user. Thread-safe.

    Raises:
        ConfigurationError: The system cannot report the owner.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._servers: list[tuple[_Address, int]] = []
        try:
            self._socket = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, _NETLINK_SOCK_DIAG)
        except (AttributeError, OSError) as error:
            raise ConfigurationError(
                f"shared memory needs Linux, which reports the owner of a connection: {error}"
            ) from error
        self._socket.setblocking(False)  # the answer is there when the request is sent

    def listen(self, host: str, port: int) -> None:
        """Adds an address that peers connect to; the unspecified address means the loopback addresses."""
        found = {str(entry[4][0]) for entry in socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)}
        for text in found:
            ip = ipaddress.ip_address(text.partition("%")[0])
            every = ("127.0.0.1", "::1") if ip.is_unspecified else (str(ip),)
            self._servers.extend((ipaddress.ip_address(each), port) for each in every)

    def check(self, peer: str) -> None:
        """Raises InputError unless the peer is a process on this host that runs as this process's user."""
        found = _peer_address(peer)
        if found is None:
            raise InputError("shared memory is for clients on this host that connect to a loopback address")
        if not any(self._owner(connection) == os.geteuid() for connection in self._connections(found)):
            raise InputError("shared memory is for clients of the user who runs the agent")

    def close(self) -> None:
        """Closes the socket to the kernel; calling it again does nothing."""
        self._socket.close()

    def _connections(self, peer: tuple[_Address, int]) -> Iterator[_Connection]:
        for server in tuple(self._servers):
            if server[0].version == peer[0].version:
                yield _Connection(peer, server)

    def _owner(self, connection: _Connection) -> int | None:
        """Returns the user who owns this end of a connection; None if the connection does not exist."""
        body = _DIAG_REQUEST.pack(connection.family, socket.IPPROTO_TCP, 0, 1 << _ESTABLISHED)
        body += connection.packed()
        header = _DIAG_HEADER.pack(_DIAG_HEADER.size + len(body), _SOCK_DIAG_BY_FAMILY, _NLM_F_REQUEST, 0, 0)
        with self._lock:
            try:
                self._socket.send(header + body)
                answer = self._socket.recv(_DIAG_ANSWER_BYTES)
            except OSError as error:
                raise InputError(f"the kernel does not report the owner of a connection: {error}") from error
        _, kind, *_ = _DIAG_HEADER.unpack_from(answer)
        answer = answer[_DIAG_HEADER.size :]
        if kind == _NLMSG_ERROR or answer[1] != _ESTABLISHED:
            return None
        if answer[_PORTS_AT : _PORTS_AT + 4] != connection.ports:
            return None
        return int(struct.unpack_from("=I", answer, _UID_AT)[0])


def _peer_address(peer: str) -> tuple[_Address, int] | None:
    """Returns the peer's address; None if it is not a loopback address."""
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


_FILE_FLAGS = os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK


class Region:
    """A mapped range of a segment. Thread-safe.

    The mapping and the descriptor live as long as anybody uses the region, even after its release.

    Raises:
        InputError: The segment does not exist or belongs to another user, or the range is not within it.
        MemoryLimitError: It cannot be mapped or allocated.
    """

    def __init__(self, name: str, key: str, offset: int, byte_size: int) -> None:
        self.name = name
        self.key = key
        self.offset = offset
        self.byte_size = byte_size
        self.used_s = 0.0
        """The time of the last use, on the clock of the ``SharedMemory``."""
        if offset < 0 or byte_size < 1:
            raise InputError(f"{self}: offset {offset} and byte_size {byte_size} are not a valid range")
        path = SEGMENTS / _file_name(key, str(self))
        try:
            self._fd = os.open(path, _FILE_FLAGS)
        except (OSError, ValueError) as error:
            reason = getattr(error, "strerror", None) or error
            raise InputError(f"{self}: {titled('segment', key)} cannot be opened: {reason}") from error
        weakref.finalize(self, os.close, self._fd)
        self._lead = offset % mmap.ALLOCATIONGRANULARITY
        self._mapping = self._map()

    def view(self, offset: int, byte_size: int) -> memoryview:
        """Returns a read-only view of a range; raises InputError if the segment was truncated."""
        self._check_length()
        start = self._lead + offset
        return memoryview(self._mapping)[start : start + byte_size]

    def write(self, offset: int, content: bytes | memoryview) -> None:
        """Writes content, whose size the caller has checked; raises the errors of ``view``."""
        self._check_length()
        place, left = self.offset + offset, memoryview(content).cast("B")
        while left:
            try:
                written = os.pwrite(self._fd, left, place)
            except OSError as error:
                raise InputError(f"{self}: cannot be written: {error.strerror or error}") from error
            place, left = place + written, left[written:]

    @property
    def is_held(self) -> bool:
        """Whether a process has locked the segment with flock(2); the kernel frees the lock when it exits."""
        try:
            fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        fcntl.flock(self._fd, fcntl.LOCK_UN)
        return False

    @property
    def is_unlinked(self) -> bool:
        """Whether the segment has been unlinked."""
        return os.fstat(self._fd).st_nlink == 0

    def __str__(self) -> str:
        return titled("shared memory region", self.name)

    def _map(self) -> mmap.mmap:
        status = os.fstat(self._fd)
        if not stat.S_ISREG(status.st_mode):
            raise InputError(f'{self}: "{one_line(self.key, 80)}" is not a segment')
        if status.st_uid != os.geteuid():
            raise InputError(f"{self}: {titled('segment', self.key)} belongs to another user than the agent")
        self._check_length()
        try:
            os.posix_fallocate(self._fd, self.offset, self.byte_size)
            return mmap.mmap(
                self._fd,
                self._lead + self.byte_size,
                flags=mmap.MAP_SHARED | mmap.MAP_POPULATE,
                prot=mmap.PROT_READ,
                offset=self.offset - self._lead,
            )
        except (OSError, ValueError, OverflowError) as error:
            is_full = isinstance(error, OSError) and error.errno == errno.ENOSPC
            reason = f"{SEGMENTS} is full" if is_full else getattr(error, "strerror", None) or error
            raise MemoryLimitError(f"{self}: {self.byte_size} bytes cannot be mapped: {reason}") from error

    def _check_length(self) -> None:
        length = os.fstat(self._fd).st_size
        if length < self.offset + self.byte_size:
            raise InputError(
                f"{self}: {titled('segment', self.key)} has {length} bytes; "
                f"offset {self.offset} and byte_size {self.byte_size} exceed them"
            )


def _file_name(key: str, where: str) -> str:
    """Returns the segment's file name; raises InputError if shm_open(3) does not allow the key."""
    name = key.lstrip("/")  # as glibc does
    if not name or "/" in name or "\0" in name or name in {".", ".."}:
        raise InputError(
            f"{where}: {titled('key', key)} is not a segment's name, such as /tensors without further slashes"
        )
    return name


_PARAMETERS = {REGION, BYTE_SIZE, OFFSET}
MAX_REGIONS = 256
MAX_BYTES = 16 * 1024**3
_MAX_NAME_CHARACTERS = 256
Parameters = Mapping[str, pb.InferParameter]


@dataclass(frozen=True, slots=True)
class Place:
    """The place of a tensor in a region, for reading or writing."""

    region: Region
    offset: int
    byte_size: int

    def view(self) -> memoryview:
        """Returns a read-only view of the elements; raises InputError if the segment was truncated."""
        return self.region.view(self.offset, self.byte_size)

    def write(self, content: bytes | memoryview, where: str) -> dict[str, pb.InferParameter]:
        """Writes an output, and returns the parameters that describe its place.

        Raises InputError if the output is larger than its place, or the segment was truncated.
        """
        if len(content) > self.byte_size:
            raise InputError(
                f"{where}: takes {len(content)} bytes, but its place in {self.region} has {self.byte_size}"
            )
        self.region.write(self.offset, content)
        return {
            REGION: pb.InferParameter(string_param=self.region.name),
            OFFSET: pb.InferParameter(int64_param=self.offset),
            BYTE_SIZE: pb.InferParameter(int64_param=len(content)),
        }


class SharedMemory:
    """The regions that clients have registered. Thread-safe.

    As in Triton, a region belongs to no connection and stays until it is unregistered. It is also released
    once its client is gone: if no process holds its lock, see ``Region.is_held``, and its segment is unlinked
    or no request has used it for ``idle_s`` seconds. A client that holds the lock may unlink its segment as
    soon as it is registered, and then leaves nothing behind, however it ends.

    Each method raises InputError if its peer, in gRPC's notation, is not a process of this user on this host.

    Raises:
        ConfigurationError: The system has no shared memory to offer.
    """

    def __init__(
        self,
        idle_s: float,
        peers: LocalPeers | None = None,
        *,
        max_regions: int = MAX_REGIONS,
        max_bytes: int = MAX_BYTES,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        if not SEGMENTS.is_dir():
            raise ConfigurationError(f"shared memory needs Linux and {SEGMENTS}, which does not exist")
        self.peers = peers or LocalPeers()
        """Checks the callers; it has to know the address that the agent listens on."""
        self._idle_s = idle_s
        self._max_regions = max_regions
        self._max_bytes = max_bytes
        self._clock = clock
        self._lock = threading.RLock()  # of changes; reading takes none, as mapping a large region takes long
        self._regions: dict[str, Region] = {}

    def register(self, name: str, key: str, offset: int, byte_size: int, peer: str) -> None:
        """Registers a range of a segment under a name.

        Raises:
            InputError: The name, the key or the range is not valid; see ``Region``.
            RegionExistsError: The name is taken.
            MemoryLimitError: The limit of regions or bytes is reached, or the region cannot be mapped.
        """
        self.peers.check(peer)
        if not 0 < len(name) <= _MAX_NAME_CHARACTERS:
            raise InputError(f"the name of a shared memory region has 1 to {_MAX_NAME_CHARACTERS} characters")
        with self._lock:
            self.release_dead()
            if name in self._regions:
                raise RegionExistsError(
                    f"{titled('shared memory region', name)} is registered already; unregister it first"
                )
            if len(self._regions) >= self._max_regions:
                raise MemoryLimitError(
                    f"{self._max_regions} shared memory regions are registered, which is the limit"
                )
            if byte_size + sum(region.byte_size for region in self._regions.values()) > self._max_bytes:
                raise MemoryLimitError(
                    f"shared memory regions may have {self._max_bytes} bytes together, and this one has "
                    f"{byte_size}; unregister others"
                )
            region = Region(name, key, offset, byte_size)
            region.used_s = self._clock()
            self._regions[name] = region

    def unregister(self, name: str, peer: str) -> None:
        """Releases a region, or all for an empty name; as in Triton, an unknown name has no effect."""
        self.peers.check(peer)
        with self._lock:
            if name:
                self._regions.pop(name, None)
            else:
                self._regions.clear()

    def regions(self, name: str, peer: str) -> tuple[Region, ...]:
        """Returns the named region, or all if the name is empty; raises NotFoundError for an unknown name."""
        self.peers.check(peer)
        with self._lock:
            self.release_dead()
            found = tuple(self._regions.values())
        return (self._find(name),) if name else found

    def release_dead(self) -> int:
        """Releases the regions of clients that are gone, and returns how many."""
        with self._lock:
            since_s = self._clock() - self._idle_s
            dead = [
                name
                for name, region in self._regions.items()
                if (region.is_unlinked or region.used_s < since_s) and not region.is_held
            ]
            for name in dead:
                del self._regions[name]
            return len(dead)

    def close(self) -> None:
        """Releases every region for good."""
        with self._lock:
            self._regions.clear()
        self.peers.close()

    def place(self, parameters: Parameters, where: str, peer: str) -> Place | None:
        """Returns the place that a tensor's parameters name, if any; errors refer to the tensor as ``where``.

        Raises:
            InputError: The parameters are not valid, or not within their region.
            NotFoundError: There is no such region.
        """
        if REGION not in parameters:
            if BYTE_SIZE in parameters or OFFSET in parameters:
                raise InputError(f"{where}: has a place in shared memory, but no {REGION}")
            return None
        self.peers.check(peer)
        parameter = parameters[REGION]
        if parameter.WhichOneof("parameter_choice") != "string_param":
            raise InputError(f"{where}: {REGION} must be the name of a region")
        region = self._find(parameter.string_param)
        if BYTE_SIZE not in parameters:
            raise InputError(f"{where}: {BYTE_SIZE} is missing")
        offset, byte_size = _number(parameters, OFFSET, where), _number(parameters, BYTE_SIZE, where)
        if offset + byte_size > region.byte_size:
            raise InputError(
                f"{where}: {OFFSET} {offset} and {BYTE_SIZE} {byte_size} extend beyond {region}, which has "
                f"{region.byte_size} bytes"
            )
        region.used_s = self._clock()
        return Place(region, offset, byte_size)

    def with_inputs(self, call: InferCall, peer: str) -> InferCall:
        """Returns a call in which views replace its inputs in regions, as if the request had contained them.

        Raises the errors of ``place``, and InputError for contents that are given twice.
        """
        places = [
            self.place(item.parameters, titled("input", item.name), peer) if item.parameters else None
            for item in call.message.inputs
        ]
        if not any(places):
            return call
        sent = iter(call.raw)
        raw: list[memoryview | None] = []
        for item, place in zip(call.message.inputs, places, strict=True):
            if place is None:
                raw.append(next(sent, None))
                continue
            if item.HasField("contents"):
                where = titled("input", item.name)
                raise InputError(f"{where}: has both contents and {REGION}; give one of them")
            for name in _PARAMETERS & set(item.parameters):
                del item.parameters[name]
            raw.append(place.view())
        if next(sent, None) is not None:
            raise InputError(f"raw_input_contents and {REGION} are given; give one of them for each input")
        return InferCall(call.message, raw)

    def _find(self, name: str) -> Region:
        region = self._regions.get(name)
        if region is None:
            raise NotFoundError(
                f"{titled('shared memory region', name)} is not registered; register it "
                "(again, if it was unused for long)"
            )
        return region


def _number(parameters: Parameters, name: str, where: str) -> int:
    """Returns a non-negative integer parameter; 0 if it is omitted."""
    number = whole_number(parameters, name)
    if number < 0:
        raise InputError(f"{where}: {name} must be a whole number of bytes, from 0 on")
    return number
