"""A region of shared memory: a range of a POSIX segment, read in place and written.

Inputs are read where they lie, through a mapping. Reading a mapping beyond the end of its file would kill the
process. Hence a segment is allocated in full when it is registered, so that no page can fail for a full
``/dev/shm``, and its size is checked at each use. What remains is a client that truncates its segment while
the model reads it; it runs as the user of the agent, whom it could as well kill. A copy by ``pread`` would
close that gap, and takes longer than the whole call: 7 ms for 38 MB into memory that is there already, and
34 ms into new memory, where an empty call takes 0.3 ms. Outputs are written by ``pwrite``, which cannot fail
that way: 7 ms in place of 3 ms for 38 MB.
"""

from __future__ import annotations

import errno
import fcntl
import mmap
import os
import stat
import weakref

from inferometer.agent.protocol.v2_shared_memory import SEGMENTS
from inferometer.agent.server.v2.tensors import shown
from inferometer.manifests.errors import InputError, MemoryLimitError

_FILE_FLAGS = os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK


class Region:
    """A range of a segment, mapped. Thread-safe.

    The mapping and the descriptor live as long as anybody uses the region, also after its release.

    Raises:
        InputError: There is no such segment, it is another user's, or the range is not within it.
        MemoryLimitError: It cannot be mapped or allocated.
    """

    def __init__(self, name: str, key: str, offset: int, byte_size: int) -> None:
        self.name = name
        self.key = key
        self.offset = offset
        self.byte_size = byte_size
        self.used_s = 0.0
        """When it was last used, on the clock of its owner."""
        if offset < 0 or byte_size < 1:
            raise InputError(f"{self}: offset {offset} and byte_size {byte_size} are no range")
        path = SEGMENTS / _file_name(key, str(self))
        try:
            self._fd = os.open(path, _FILE_FLAGS)
        except (OSError, ValueError) as error:
            reason = getattr(error, "strerror", None) or error
            raise InputError(f'{self}: segment "{shown(key)}" cannot be opened: {reason}') from error
        weakref.finalize(self, os.close, self._fd)
        self._lead = offset % mmap.ALLOCATIONGRANULARITY
        self._mapping = self._map()

    def view(self, offset: int, byte_size: int) -> memoryview:
        """Returns a read-only view of a part; raises InputError if the segment was truncated."""
        self._check_length()
        start = self._lead + offset
        return memoryview(self._mapping)[start : start + byte_size]

    def write(self, offset: int, content: bytes | memoryview) -> None:
        """Writes into the region, which the caller has checked that it fits; raises as ``view``."""
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
        """Whether a process has the segment locked by flock(2); the kernel frees the lock when it ends."""
        try:
            fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        fcntl.flock(self._fd, fcntl.LOCK_UN)
        return False

    @property
    def is_unlinked(self) -> bool:
        """Whether the segment has lost its name."""
        return os.fstat(self._fd).st_nlink == 0

    def __str__(self) -> str:
        return f'shared memory region "{shown(self.name)}"'

    def _map(self) -> mmap.mmap:
        status = os.fstat(self._fd)
        if not stat.S_ISREG(status.st_mode):
            raise InputError(f'{self}: "{shown(self.key)}" is no segment')
        if status.st_uid != os.geteuid():
            raise InputError(f'{self}: segment "{shown(self.key)}" belongs to another user than the agent')
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
                f'{self}: segment "{shown(self.key)}" has {length} bytes; '
                f"offset {self.offset} and byte_size {self.byte_size} are beyond"
            )


def _file_name(key: str, where: str) -> str:
    """The segment's file; raises InputError unless the key is one component, as shm_open(3) wants it."""
    name = key.lstrip("/")  # as glibc does
    if not name or "/" in name or "\0" in name or name in {".", ".."}:
        raise InputError(
            f'{where}: key "{shown(key)}" is no name of a segment, such as /tensors without further slashes'
        )
    return name
