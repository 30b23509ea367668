"""Tensors in shared memory, which a server on this host reads in place.

A segment has a name only during registration. It is then unlinked, so that it does not outlive this process,
however the process ends. A lock on it shows that the process is alive; agents release a region without one.
"""

from __future__ import annotations

import fcntl
import logging
import math
import mmap
import os
import secrets
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any

import numpy as np
from numpy.typing import NDArray

from inferometer.agent.open_inference.codec import EXTENSION, SEGMENTS
from inferometer.agent.preprocessing.inputs import Tensors
from inferometer.client.remote.kserve.messages import TensorPlace
from inferometer.client.remote.kserve.server import KServeServer, ServerIdentity
from inferometer.evaluators.jobs.options import SharedMemoryUse
from inferometer.manifests.errors import AgentError, ConfigurationError, explained

_MODE = 0o600
_ALIGNMENT_BYTES = 64
_log = logging.getLogger(__name__)


def laid_out(batch: Tensors, begin: int = 0) -> tuple[dict[str, TensorPlace], int]:
    """Returns consecutive, aligned places for the tensors of a batch, and the end of the last one.

    ``begin`` is the offset of the first place, in bytes.
    """
    places = {}
    for name, array in batch.items():
        begin += -begin % _ALIGNMENT_BYTES
        places[name] = TensorPlace(array.shape, begin)
        begin += array.nbytes
    return places, begin


class SharedBytes:
    """A segment of shared memory, which the server knows as the region ``region``.

    Raises:
        AgentError: There is no room for it, or the server rejects it.
    """

    def __init__(self, connection: KServeServer, byte_size: int) -> None:
        self._connection = connection
        self.region = f"inferometer-{secrets.token_hex(16)}"
        self.byte_size = max(1, byte_size)
        path = SEGMENTS / self.region
        with explained(AgentError, f"{self.byte_size} bytes in {SEGMENTS}"):
            descriptor = os.open(path, os.O_CREAT | os.O_EXCL | os.O_RDWR | os.O_CLOEXEC, _MODE)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_SH)
                os.posix_fallocate(descriptor, 0, self.byte_size)
                mapping = mmap.mmap(descriptor, self.byte_size)  # has the lock too, as long as it is there
                connection.register_memory(self.region, f"/{self.region}", self.byte_size)
            finally:
                os.close(descriptor)
                path.unlink(missing_ok=True)
        self._memory: NDArray[np.uint8] | None = np.frombuffer(mapping, np.uint8)

    def tensors(self, places: Mapping[str, TensorPlace], like: Tensors) -> dict[str, NDArray[Any]] | None:
        """Returns the tensors at some places, with the dtypes of ``like``; None after ``close``."""
        memory = self._memory
        if memory is None:
            return None
        found = {}
        for name, place in places.items():
            dtype = like[name].dtype
            part = memory[place.offset : place.offset + math.prod(place.shape) * dtype.itemsize]
            found[name] = part.view(dtype).reshape(place.shape)
        return found

    def write(self, places: Mapping[str, TensorPlace], batch: Tensors) -> bool:
        """Writes a batch to its places; returns False if the segment is closed."""
        found = self.tensors(places, batch)
        for name, array in (found or {}).items():
            np.copyto(array, batch[name])
        return found is not None

    def close(self) -> None:
        """Asks the server to release the region, unless it is gone; calling it again does nothing."""
        if self._memory is None:
            return
        self._memory = None
        with suppress(AgentError, ValueError):  # the second of a connection that is closed
            self._connection.unregister_memory(self.region)


class SharedMemory:
    """The memory that a server and this process share, and the batch that it holds. Thread-safe.

    If ``required``, a lack of room is an error; otherwise, a batch without room is sent in the request.
    """

    def __init__(self, connection: KServeServer, *, required: bool) -> None:
        self._connection = connection
        self._required = required
        self._lock = threading.Lock()
        self._batch: SharedBytes | None = None

    def reserve(self, byte_size: int) -> SharedBytes:
        """Allocates a segment for a batch. The caller holds the lock, or no batch has been sent yet.

        Raises AgentError under the conditions of ``SharedBytes``.
        """
        if self._batch is None or self._batch.byte_size < byte_size:
            found = SharedBytes(self._connection, byte_size)
            if self._batch is not None:
                self._batch.close()
            self._batch = found
        return self._batch

    def take(self, byte_size: int) -> SharedBytes | None:
        """Allocates a separate segment; returns None if there is no room.

        Raises:
            AgentError: There is no room, and it is required.
        """
        return self._if_required(lambda: SharedBytes(self._connection, byte_size))

    @contextmanager
    def lent(self, batch: Tensors) -> Iterator[tuple[Mapping[str, TensorPlace], str] | None]:
        """Yields the places of a batch and their region; None if there is no room or another batch is in use.

        Raises AgentError under the conditions of ``take``.
        """
        if not self._lock.acquire(blocking=False):
            yield None
            return
        try:
            places, byte_size = laid_out(batch)
            found = self._if_required(lambda: self.reserve(byte_size))
            if found is None or not found.write(places, batch):
                yield None
                return
            yield places, found.region
        finally:
            self._lock.release()

    def close(self) -> None:
        """Releases the batch's region; calling it again does nothing."""
        batch, self._batch = self._batch, None
        if batch is not None:
            batch.close()

    def _if_required(self, make: Callable[[], SharedBytes]) -> SharedBytes | None:
        try:
            return make()
        except AgentError as error:
            if self._required:
                raise
            _log.warning("tensors travel in the requests, not through shared memory: %s", error)
            return None


def share_memory(
    connection: KServeServer,
    server: ServerIdentity,
    use: SharedMemoryUse,
    batch: Tensors,
    say: Callable[[str], None],
) -> SharedMemory | None:
    """Shares memory with a server for batches such as ``batch``; None if it should not or cannot be used.

    ``say`` receives, in one line, whether tensors travel through it, if the server offers it.

    Raises:
        ConfigurationError: Shared memory is required, but cannot be used.
    """
    address, required = connection.address, use is SharedMemoryUse.ON
    if use is SharedMemoryUse.OFF:
        return None
    reason = _obstacle(connection, server, batch)
    if reason is None:
        memory = SharedMemory(connection, required=required)
        try:
            memory.reserve(laid_out(batch)[1])
        except AgentError as error:
            reason = str(error)
            if not required:
                say(f"{address}: tensors travel in the requests, not through shared memory: {reason}")
        else:
            say(f"{address}: tensors travel through shared memory")
            return memory
    if required:
        raise ConfigurationError(f"{address}: --shared_memory=on, but it cannot be used: {reason}")
    return None


def _obstacle(connection: KServeServer, server: ServerIdentity, batch: Tensors) -> str | None:
    """Returns why memory cannot be shared, if this is known without trying; otherwise None."""
    if any(array.dtype.hasobject for array in batch.values()):
        return "the model takes strings, whose sizes differ"
    agent = connection.address.agent
    if not agent.is_this_machine:
        return f"{agent.host} is not a loopback address, such as 127.0.0.1"
    if EXTENSION not in server.extensions:
        return "the server does not offer it; an agent does with agent serve --shared_memory"
    if not SEGMENTS.is_dir():
        return f"there is no {SEGMENTS} here"
    return None
