"""Files that are read at any place by several threads, and by the processes that they are sent to."""

from __future__ import annotations

import os
import weakref
from pathlib import Path
from threading import Lock
from typing import Any

from inferometer.manifests.errors import DatasetError


class RandomAccessFile:
    """A file that is read at offsets, without a position. Thread-safe; it is not mapped into memory.

    A file that shrinks while it is mapped ends the process at the next access, while ``read`` returns less.
    A pickled one has the path and the size; the process that it is sent to opens the file when it reads.

    Attributes:
        path: The file.
        size: Its size in bytes when it was first opened.

    Raises:
        DatasetError: The file cannot be opened, or is not a regular file.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._lock = Lock()
        self._number: int | None = None
        self._closing: weakref.finalize[[int], RandomAccessFile] | None = None
        try:
            self.size = os.fstat(self._open()).st_size
        except OSError as error:
            raise DatasetError(f"{path}: cannot be read: {error.strerror or error}") from error

    def read(self, size: int, offset: int) -> bytes:
        """Returns the bytes from an offset on: fewer than ``size`` where the file ends before.

        Raises:
            OSError: The file cannot be read.
        """
        number = self._number
        content = os.pread(self._open() if number is None else number, size, offset)
        if len(content) == size or offset + len(content) >= self.size:
            return content
        parts = [content]
        while content and (missing := size - sum(map(len, parts))) > 0:  # one call reads 2 GiB at most
            content = os.pread(self._open(), missing, offset + size - missing)
            parts.append(content)
        return b"".join(parts)

    def close(self) -> None:
        """Closes the file, which no thread may be reading. A later read opens it again."""
        with self._lock:
            if self._closing is not None:
                self._closing()
            self._number = self._closing = None

    def _open(self) -> int:
        with self._lock:
            if self._number is None:
                number = os.open(self.path, os.O_RDONLY | os.O_CLOEXEC)
                self._closing = weakref.finalize(self, os.close, number)
                self._number = number
            return self._number

    def __getstate__(self) -> dict[str, Any]:
        return {"path": self.path, "size": self.size}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.path, self.size = state["path"], state["size"]
        self._lock, self._number, self._closing = Lock(), None, None
