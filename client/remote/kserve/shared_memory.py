"""Tensors in shared memory, which a server on this host reads where they lie.

A segment has its name only while it is registered: it is unlinked at once, so that nothing is left of it
however this process ends. The lock on it says that the process lives; agents release a region without.
"""

from __future__ import annotations

import fcntl
import logging
import math
import mmap
import os
import secrets
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any

import numpy as np
from numpy.typing import NDArray

from inferometer.agent.closeable import Closeable
from inferometer.agent.protocol.v2_shared_memory import EXTENSION, SEGMENTS
from inferometer.client.remote.channel.connection import is_this_machine
from inferometer.client.remote.kserve.server import KServeServer, ServerIdentity
from inferometer.evaluators.jobs.defaults import SharedMemoryUse
from inferometer.manifests.errors import AgentError, ConfigurationError

_MODE = 0o600
_log = logging.getLogger(__name__)


class SharedTensors(Closeable):
    """An array in a segment of its own, which is a region of the server by the name ``region``.

    Raises:
        AgentError: There is no room for it, or the server does not take it.
    """

    def __init__(self, connection: KServeServer, shape: Sequence[int], dtype: np.dtype[Any]) -> None:
        self._connection = connection
        self.region = f"inferometer-{secrets.token_hex(16)}"
        self.byte_size = max(1, math.prod(shape) * dtype.itemsize)
        path = SEGMENTS / self.region
        try:
            descriptor = os.open(path, os.O_CREAT | os.O_EXCL | os.O_RDWR | os.O_CLOEXEC, _MODE)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_SH)
                os.posix_fallocate(descriptor, 0, self.byte_size)
                mapping = mmap.mmap(descriptor, self.byte_size)  # has the lock too, as long as it is there
                connection.register_memory(self.region, f"/{self.region}", self.byte_size)
            finally:
                os.close(descriptor)
                path.unlink(missing_ok=True)
        except OSError as error:
            raise AgentError(f"{self.byte_size} bytes in {SEGMENTS}: {error.strerror or error}") from error
        self.array: NDArray[Any] | None = np.frombuffer(mapping, dtype).reshape(tuple(shape))
        """The elements; None once it is closed."""

    def close(self) -> None:
        """Has the server release the region, unless it is gone; calling it again does nothing."""
        if self.array is None:
            return
        self.array = None
        with suppress(AgentError, ValueError):  # the second of a connection that is closed
            self._connection.unregister_memory(self.region)


class SharedMemory(Closeable):
    """What a server and this process share, and the batch that is in it. Thread-safe.

    ``required`` makes it an error where there is no room; otherwise what finds none is sent as it was.
    """

    def __init__(self, connection: KServeServer, *, required: bool) -> None:
        self._connection = connection
        self._required = required
        self._lock = threading.Lock()
        self._batch: SharedTensors | None = None

    def reserve(self, byte_size: int) -> SharedTensors:
        """Makes room for a batch; under the lock, or before the first batch.

        Raises AgentError as ``SharedTensors``.
        """
        if self._batch is None or self._batch.byte_size < byte_size:
            found = SharedTensors(self._connection, (byte_size,), np.dtype(np.uint8))
            if self._batch is not None:
                self._batch.close()
            self._batch = found
        return self._batch

    def tensors(self, shape: Sequence[int], dtype: np.dtype[Any]) -> SharedTensors | None:
        """Returns an array; None where there is no room.

        Raises:
            AgentError: There is no room, and it is required.
        """
        return self._if_required(lambda: SharedTensors(self._connection, shape, dtype))

    @contextmanager
    def lent(self, batch: NDArray[Any]) -> Iterator[str | None]:
        """Yields the region that has a batch at its beginning; None for none, or while it has another batch.

        Raises AgentError as ``tensors``.
        """
        if not self._lock.acquire(blocking=False):
            yield None
            return
        try:
            found = self._if_required(lambda: self.reserve(batch.nbytes))
            if found is None or found.array is None:
                yield None
                return
            np.copyto(found.array[: batch.nbytes].view(batch.dtype).reshape(batch.shape), batch)
            yield found.region
        finally:
            self._lock.release()

    def close(self) -> None:
        """Releases the batch's region; calling it again does nothing."""
        batch, self._batch = self._batch, None
        if batch is not None:
            batch.close()

    def _if_required(self, make: Callable[[], SharedTensors]) -> SharedTensors | None:
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
    input_bytes: int,
    say: Callable[[str], None],
) -> SharedMemory | None:
    """Shares memory with a server for inputs of a size; None where it is not to be used, or cannot.

    ``say`` receives, in one line, whether tensors travel through it, if the server offers it.

    Raises:
        ConfigurationError: It must be used, and cannot.
    """
    address, required = connection.address, use is SharedMemoryUse.ON
    if use is SharedMemoryUse.OFF:
        return None
    reason = _obstacle(address.agent.host, server)
    if reason is None:
        memory = SharedMemory(connection, required=required)
        try:
            memory.reserve(input_bytes)
        except AgentError as error:
            reason = str(error)
            if not required:
                say(f"{address}: tensors travel in the requests, not through shared memory: {reason}")
        else:
            say(f"{address}: tensors travel through shared memory")
            return memory
    if required:
        raise ConfigurationError(f"{address}: --shared_memory=on, and it cannot be used: {reason}")
    return None


def _obstacle(host: str, server: ServerIdentity) -> str | None:
    """Why memory cannot be shared, as far as that is known without trying."""
    if not is_this_machine(host):
        return f"{host} is no loopback address, such as 127.0.0.1"
    if EXTENSION not in server.extensions:
        return "the server does not offer it; an agent does with agent serve --shared_memory"
    if not SEGMENTS.is_dir():
        return f"there is no {SEGMENTS} here"
    return None
