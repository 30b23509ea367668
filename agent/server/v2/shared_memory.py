"""Tensors in shared memory: Triton's system shared-memory extension.

A client makes a POSIX segment, registers a range of it as a region, and names the region in place of a
tensor's elements. Only processes of the agent's own user on this host may do so, with segments of that user.

How they are read and written is in ``shared_region``.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from inferometer.agent.protocol.v2_shared_memory import BYTE_SIZE, OFFSET, REGION, SEGMENTS
from inferometer.agent.server.security.local_peers import LocalPeers
from inferometer.agent.server.v2.messages import InferCall
from inferometer.agent.server.v2.shared_region import Region
from inferometer.agent.server.v2.tensors import shown
from inferometer.manifests.errors import (
    ConfigurationError,
    InputError,
    MemoryLimitError,
    NotFoundError,
    RegionExistsError,
)
from inferometer.protos.inference.v2 import grpc_service_pb2 as pb

_PARAMETERS = {REGION, BYTE_SIZE, OFFSET}
MAX_REGIONS = 256
MAX_BYTES = 16 * 1024**3
_MAX_NAME_CHARACTERS = 256
Parameters = Mapping[str, pb.InferParameter]


@dataclass(frozen=True, slots=True)
class Place:
    """Where a tensor lies in a region, or is to be written to."""

    region: Region
    offset: int
    byte_size: int

    def view(self) -> memoryview:
        """Returns a read-only view of the elements; raises InputError if the segment was truncated."""
        return self.region.view(self.offset, self.byte_size)

    def write(self, content: bytes | memoryview, where: str) -> dict[str, pb.InferParameter]:
        """Writes an output, and returns the parameters that say where it is.

        Raises InputError if it is larger than its place, or the segment was truncated.
        """
        if len(content) > self.byte_size:
            raise InputError(
                f"{where}: takes {len(content)} bytes, and its place in {self.region} has {self.byte_size}"
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
    once its client is gone: a region that no process holds locked, see ``Region.is_held``, when its segment
    has lost its name, or when no request has used it for ``idle_s`` seconds. A client that holds the lock may
    unlink its segment as soon as it is registered, and so leaves nothing behind, however it ends.

    Each method raises InputError where its peer, named as gRPC does, is not of this host and user.

    Raises:
        ConfigurationError: The system has no shared memory that can be offered.
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
            raise ConfigurationError(f"shared memory needs Linux, and {SEGMENTS}, which is not there")
        self.peers = peers or LocalPeers()
        """Checks who calls; needs to know where the agent listens."""
        self._idle_s = idle_s
        self._max_regions = max_regions
        self._max_bytes = max_bytes
        self._clock = clock
        self._lock = threading.Lock()  # of changes; reading takes none, as mapping a large region takes long
        self._regions: dict[str, Region] = {}

    def register(self, name: str, key: str, offset: int, byte_size: int, peer: str) -> None:
        """Registers a range of a segment under a name.

        Raises:
            InputError: The name, the key or the range is not valid; see ``Region``.
            RegionExistsError: The name is taken.
            MemoryLimitError: There are as many regions, or bytes, as may be, or they cannot be mapped.
        """
        self.peers.check(peer)
        if not 0 < len(name) <= _MAX_NAME_CHARACTERS:
            raise InputError(f"the name of a shared memory region has 1 to {_MAX_NAME_CHARACTERS} characters")
        with self._lock:
            self._release_dead()
            if name in self._regions:
                raise RegionExistsError(
                    f'shared memory region "{shown(name)}" is registered already; unregister it first'
                )
            if len(self._regions) >= self._max_regions:
                raise MemoryLimitError(
                    f"{self._max_regions} shared memory regions are registered, as many as may be"
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
        """Releases a region, or all of them without a name; one that is not there is none, as in Triton."""
        self.peers.check(peer)
        with self._lock:
            if name:
                self._regions.pop(name, None)
            else:
                self._regions.clear()

    def regions(self, name: str, peer: str) -> tuple[Region, ...]:
        """Returns the region of a name, or all without one; raises NotFoundError if it is not there."""
        self.peers.check(peer)
        with self._lock:
            self._release_dead()
            found = tuple(self._regions.values())
        return (self._find(name),) if name else found

    def release_dead(self) -> int:
        """Releases the regions of clients that are gone, and returns how many."""
        with self._lock:
            return self._release_dead()

    def close(self) -> None:
        """Releases every region, for good."""
        with self._lock:
            self._regions.clear()
        self.peers.close()

    def place(self, parameters: Parameters, where: str, peer: str) -> Place | None:
        """Returns where the parameters of a tensor, which errors call ``where``, place it; None for nowhere.

        Raises:
            InputError: The parameters are not valid, or not within their region.
            NotFoundError: There is no such region.
        """
        if REGION not in parameters:
            if BYTE_SIZE in parameters or OFFSET in parameters:
                raise InputError(f"{where}: has a place in shared memory, and no {REGION}")
            return None
        self.peers.check(peer)
        parameter = parameters[REGION]
        if parameter.WhichOneof("parameter_choice") != "string_param":
            raise InputError(f"{where}: {REGION} is the name of a region")
        region = self._find(parameter.string_param)
        if BYTE_SIZE not in parameters:
            raise InputError(f"{where}: {BYTE_SIZE} is missing")
        offset, byte_size = _number(parameters, OFFSET, where), _number(parameters, BYTE_SIZE, where)
        if offset + byte_size > region.byte_size:
            raise InputError(
                f"{where}: {OFFSET} {offset} and {BYTE_SIZE} {byte_size} are beyond {region}, which has "
                f"{region.byte_size} bytes"
            )
        region.used_s = self._clock()
        return Place(region, offset, byte_size)

    def with_inputs(self, call: InferCall, peer: str) -> InferCall:
        """Returns a call with views of its inputs in regions as if they had come with it.

        Raises InputError and NotFoundError as ``place`` does, and InputError for contents given twice.
        """
        places = [
            self.place(item.parameters, f'input "{shown(item.name)}"', peer) if item.parameters else None
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
                raise InputError(
                    f'input "{shown(item.name)}": has contents beside {REGION}; give one of them'
                )
            for name in _PARAMETERS & set(item.parameters):
                del item.parameters[name]
            raw.append(place.view())
        if next(sent, None) is not None:
            raise InputError(f"raw_input_contents are given beside {REGION}; give one of them for each input")
        return InferCall(call.message, raw)

    def _find(self, name: str) -> Region:
        region = self._regions.get(name)
        if region is None:
            raise NotFoundError(
                f'shared memory region "{shown(name)}" is not registered; register it, '
                "again if it was not used for long"
            )
        return region

    def _release_dead(self) -> int:
        """Under the lock."""
        since_s = self._clock() - self._idle_s
        dead = [
            name
            for name, region in self._regions.items()
            if (region.is_unlinked or region.used_s < since_s) and not region.is_held
        ]
        for name in dead:
            del self._regions[name]
        return len(dead)


def _number(parameters: Parameters, name: str, where: str) -> int:
    """A whole number from 0 on, which is 0 where it is left out."""
    if name not in parameters:
        return 0
    parameter = parameters[name]
    chosen = parameter.WhichOneof("parameter_choice")
    number = int(getattr(parameter, chosen)) if chosen in {"int64_param", "uint64_param"} else -1
    if number < 0:
        raise InputError(f"{where}: {name} is a whole number of bytes, from 0 on")
    return number
