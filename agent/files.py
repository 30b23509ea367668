"""Files that stay intact however a program ends: written in one step, line by line, or under a lock."""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import IO, Any

from inferometer.manifests.errors import OutputError, explained

_HELD = (BlockingIOError, PermissionError)
"""The errors of a lock that is already held; some network file systems report EACCES."""


@contextmanager
def replacing(
    path: Path, *, synced: bool = False, mode: int = 0o666, new: bool = False, alone: bool = False
) -> Iterator[IO[bytes]]:
    """Opens a file beside a path and finally moves it to the path, or removes it after an error.

    Args:
        path: The path of the finished file.
        synced: Whether the content is flushed to the disk before the move.
        mode: The permissions of the file, minus those that the umask removes.
        new: Whether to raise FileExistsError instead of replacing another file.
        alone: Whether no other writer uses the path at the same time. If so, the next call overwrites what a
            killed process has left beside it; meant for files that are large or written in a loop.

    Raises:
        OSError: The file cannot be written.
    """
    name = path.name if alone else f"inferometer-{os.urandom(16).hex()}"
    beside = path.with_name(f".{name}.part")
    try:
        if alone:
            beside.unlink(missing_ok=True)
        with open(beside, "xb", opener=partial(os.open, mode=mode)) as file:
            yield file
            file.flush()
            if synced:
                os.fsync(file.fileno())
        if new:
            _publish(beside, path)
        else:
            beside.replace(path)
    finally:
        with suppress(OSError):
            beside.unlink(missing_ok=True)


def _publish(beside: Path, path: Path) -> None:
    """Gives a file its final name, which no other file may already have."""
    try:
        os.link(beside, path)  # unlike a rename, never replaces another file
    except FileExistsError:
        raise
    except OSError:  # a file system without links
        beside.rename(path)


def sync(path: Path) -> None:
    """Flushes a file, or the entries of a folder, to the disk; raises OSError."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def lock(path: Path, on_wait: Callable[[], None] | None = None, *, mode: int = 0o666) -> IO[bytes]:
    """Locks a file, creating it if necessary, for this process and children that inherit the object.

    The lock excludes other processes, and other calls in this process. The kernel releases it when the object
    is closed or all of the processes have ended. A locked file may be renamed or removed. ``on_wait`` is
    called before waiting for another holder; without it, there is BlockingIOError instead.

    Raises:
        OSError: The file cannot be opened or locked.
    """
    while True:
        file = os.fdopen(os.open(path, os.O_RDWR | os.O_CREAT, mode), "r+b", buffering=0)
        try:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except _HELD as error:
                if on_wait is None:
                    raise BlockingIOError(*error.args) from error
                on_wait()
                fcntl.flock(file, fcntl.LOCK_EX)
            if os.fstat(file.fileno()).st_nlink:
                return file
        except BaseException:
            file.close()
            raise
        file.close()  # its last holder has removed it


def is_locked(file: IO[bytes]) -> bool:
    """Returns whether the lock of an open file is held; raises OSError."""
    try:
        fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except _HELD:
        return True
    return False


class LineJournal:
    """A file of JSON lines to which one process at a time appends.

    Readers ignore a line that was cut off when a program ended; the next entry starts on a new line. With
    ``synced``, each line is flushed to the disk; ``anew`` removes the existing lines.

    Raises:
        OutputError: The file cannot be written.
    """

    def __init__(self, path: Path, *, synced: bool, anew: bool = False) -> None:
        self._path, self._synced = path, synced
        with explained(OutputError, f"{path}: the journal cannot be written"):
            path.parent.mkdir(parents=True, exist_ok=True)
            with path.open("wb" if anew else "ab+") as file:
                if file.tell():
                    file.seek(-1, os.SEEK_END)
                    if file.read(1) != b"\n":
                        file.write(b"\n")

    def add(self, content: Mapping[str, Any]) -> None:
        """Appends a line.

        Raises:
            OutputError: The file cannot be written.
        """
        with (
            explained(OutputError, f"{self._path}: the journal cannot be written"),
            self._path.open("ab", buffering=0) as file,
        ):
            file.write((json.dumps(content) + "\n").encode())
            if self._synced:
                os.fsync(file.fileno())
