"""The page cache: the share of a dataset's files that the kernel holds in memory, and how to drop them."""

from __future__ import annotations

import ctypes
import mmap
import os
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

import numpy as np

DROPPED_SHARE = 0.01
"""The largest share at which files count as dropped: another program may read them in the meantime."""
MOST_FILES = 20_000
"""The maximum number of files to check; if there are more, this many at equal intervals are checked."""
_WINDOW_BYTES = 1 << 30


@dataclass(frozen=True, slots=True)
class CachedShare:
    """The share of a dataset's files that is in the page cache.

    Attributes:
        share: The share of their bytes, 0…1; None if it is unknown.
        reason: Why it is unknown, or why the files could not be dropped, in one line; otherwise empty.
        dropped: Whether the files were successfully dropped from the page cache.
    """

    share: float | None
    reason: str = ""
    dropped: bool = False


def cached_share(files: Iterable[Path]) -> CachedShare:
    """Returns the share of the files' bytes that is in the page cache, according to ``mincore``.

    Linux reports this only to the owner of a file and to users who may write to it; to others, it reports all
    pages as cached, so the share is then unknown. A file that cannot be opened is left out. Of more than
    ``MOST_FILES`` files, a subset is checked.
    """
    if not _kernel_tells():
        return CachedShare(None, "this system does not report what is in its page cache")
    paths = list(files)
    if not paths:
        return CachedShare(None, "the dataset has no files of its own")
    resident = whole = 0
    for path in paths[:: -(-len(paths) // MOST_FILES)]:
        try:
            descriptor = os.open(path, os.O_RDONLY)
        except OSError:
            continue
        try:
            if not _may_know(descriptor, path):
                return CachedShare(
                    None, f"{path} belongs to another user, on whose files the kernel does not report"
                )
            size = os.fstat(descriptor).st_size
            resident += _resident_bytes(descriptor, size)
            whole += size
        except OSError as error:
            return CachedShare(None, f"{path}: {error.strerror or error}")
        finally:
            os.close(descriptor)
    if not whole:
        return CachedShare(None, "none of the dataset's files can be read")
    return CachedShare(resident / whole)


def drop(files: Iterable[Path]) -> CachedShare:
    """Drops files from the page cache as far as the kernel allows, and returns the share that is left.

    Data that is not on the disk yet is written first. Pages that a process has mapped stay, and so do all
    files of a file system in memory. Dropping has worked only if the share is at most ``DROPPED_SHARE``.
    """
    paths = list(files)
    for path in paths:
        # not every system has posix_fadvise
        with suppress(OSError, AttributeError), path.open("rb", buffering=0) as file:
            os.fsync(file)
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    return cached_share(paths)


def before_reading(files: Iterable[Path], *, drop_first: bool = False) -> CachedShare:
    """Drops files from the page cache if ``drop_first``, and returns the state of the cache."""
    if not drop_first:
        return cached_share(files)
    left = drop(files)
    if left.share is None:
        return left
    if left.share > DROPPED_SHARE:
        return replace(
            left,
            reason=f"{100 * left.share:.0f} % of the dataset stayed in the page cache: its file system is in "
            "memory, or another process uses it",
        )
    return replace(left, dropped=True)


def _may_know(descriptor: int, path: Path) -> bool:
    """Returns whether the kernel (since 5.2, ``can_do_mincore``) reports a file's pages to this process."""
    owner = os.fstat(descriptor).st_uid
    return os.geteuid() in {0, owner} or os.access(path, os.W_OK, effective_ids=True)


@cache
def _kernel_tells() -> bool:
    """Returns whether ``mincore`` reports a page that was never in memory as absent; emulations do not."""
    try:
        descriptor = os.memfd_create("page-cache")
        try:
            os.ftruncate(descriptor, mmap.PAGESIZE)
            return _resident_bytes(descriptor, mmap.PAGESIZE) == 0
        finally:
            os.close(descriptor)
    except (OSError, AttributeError):  # not every system has either
        return False


def _resident_bytes(descriptor: int, size: int) -> int:
    """Returns the number of a file's bytes that are in the page cache."""
    mincore = ctypes.CDLL(None, use_errno=True).mincore
    mincore.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_void_p)
    resident = 0
    for start in range(0, size, _WINDOW_BYTES):
        length = min(_WINDOW_BYTES, size - start)
        pages = np.zeros(-(-length // mmap.PAGESIZE), np.uint8)
        with mmap.mmap(descriptor, length, access=mmap.ACCESS_READ, offset=start) as mapped:
            content = np.frombuffer(mapped, np.uint8)
            failed = mincore(content.ctypes.data, length, pages.ctypes.data)
            del content  # a map with users cannot be closed
        if failed:
            number = ctypes.get_errno()
            raise OSError(number, os.strerror(number))
        present = (pages & 1).astype(np.bool_)
        resident += int(present.sum()) * mmap.PAGESIZE
        if present[-1]:  # the last page reaches beyond the end
            resident -= len(pages) * mmap.PAGESIZE - length
    return resident
