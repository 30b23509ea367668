"""Keeps C libraries from writing about a damaged input file to the terminal, where they know no other way.

libjpeg and libpng print what they find wrong to C's ``stderr``; inside OpenCV nothing can be set against it.
The variable belongs to the process, and so does the count of those who want it silent.
"""

from __future__ import annotations

import ctypes
import os
import platform
import threading
from collections.abc import Iterator
from contextlib import contextmanager


class _CStderr:
    """The variable ``stderr`` of the GNU C library, which points elsewhere while somebody asks for it.

    Python's ``sys.stderr``, C++'s ``std::cerr`` and what writes to the file descriptor are not touched. With
    another C library nothing is silenced.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._users = 0
        self._variable: ctypes.c_void_p | None = None
        self._nowhere: int | None = None
        self._before: int | None = None

    def enter(self) -> None:
        with self._lock:
            if not self._users and (variable := self._found()):
                self._before, variable.value = variable.value, self._nowhere
            self._users += 1

    def leave(self) -> None:
        with self._lock:
            self._users -= 1
            if not self._users and self._variable is not None:
                self._variable.value = self._before

    def _found(self) -> ctypes.c_void_p | None:
        """Returns the variable, which is looked for once."""
        if self._nowhere is None and platform.libc_ver()[0] == "glibc":
            library = ctypes.CDLL(None)
            library.fopen.restype = ctypes.c_void_p
            library.fopen.argtypes = (ctypes.c_char_p, ctypes.c_char_p)
            self._nowhere = library.fopen(os.fsencode(os.devnull), b"w")
            if self._nowhere is not None:
                self._variable = ctypes.c_void_p.in_dll(library, "stderr")
        return self._variable


_C_STDERR = _CStderr()


@contextmanager
def silenced_c_stderr() -> Iterator[None]:
    """Silences C's ``stderr`` for as long as any thread is inside. Thread-safe."""
    _C_STDERR.enter()
    try:
        yield
    finally:
        _C_STDERR.leave()
