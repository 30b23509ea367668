"""Atomic writing of an output file: it holds either its old content or all of the new content."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TypeAlias

from inferometer.agent.files import replacing
from inferometer.manifests.errors import OutputError, explained

Content: TypeAlias = str | bytes | Iterable[str]
"""The content of a file: text, bytes, or text in pieces, which are read one by one."""


class OutputFile:
    """A file of bytes or of UTF-8 text that is written in one step.

    If two programs append at the same time, only the content of the later one is kept.

    Args:
        path: The file; a link is followed.
        appendable: Whether errors about an existing file suggest appending to it.
        replaceable: Whether they suggest overwriting it.

    Its methods raise OutputError if the path is not that of a regular file, its folder does not exist, or the
    file cannot be read or written, is not text, or exists but must not be changed.
    """

    def __init__(self, path: Path, *, appendable: bool = True, replaceable: bool = True) -> None:
        self._path = path
        self._appendable = appendable
        self._replaceable = replaceable

    def __str__(self) -> str:
        return str(self._path)

    def exists(self) -> bool:
        """Returns whether the file exists; raises OutputError if it cannot be written or has no folder."""
        with self._refusing():
            if not self._path.exists():
                self._path.parent.stat()
                return False
            if self._path.is_dir():
                raise OutputError(f"{self}: is a folder; name a file")
            if not self._path.is_file():
                raise OutputError(f"{self}: is not a regular file; to write to the screen, name no file")
            if not os.access(self._path, os.W_OK):
                raise OutputError(f"{self}: cannot be written: it is read-only")
            return True

    def read(self) -> str:
        """Returns the text of the file."""
        try:
            with explained(OutputError, f"{self}: cannot be read"):
                return self._path.read_bytes().decode("utf-8-sig")
        except UnicodeDecodeError as error:
            raise OutputError(f"{self}: is not text in UTF-8; name another file") from error

    def create(self, content: Content) -> None:
        """Writes a new file."""
        with self._refusing():
            self._write(self._path, content, new=True)

    def replace(self, content: Content) -> None:
        """Writes the file, and replaces an existing one."""
        with self._refusing():
            # Path.resolve fails on links in a circle
            self._write(Path(os.path.realpath(self._path)), content, new=False)

    def write(self, content: Content, *, overwrite: bool) -> None:
        """Writes the file; see ``replace`` and, without ``overwrite``, ``create``."""
        (self.replace if overwrite else self.create)(content)

    def in_the_way(self) -> OutputError:
        """Returns the error for an existing file that must not be changed."""
        if not self._replaceable:
            return OutputError(f"{self} exists; name another file")
        remedy = "overwrite it (--overwrite)"
        if self._appendable:
            remedy = "append to it or overwrite it (--append, --overwrite)"
        return OutputError(f"{self} exists; {remedy}, or name another file")

    def refuse_existing(self) -> None:
        """Checks, before the content exists, that ``create`` can succeed."""
        if self.exists():
            raise self.in_the_way()

    def _write(self, target: Path, content: Content, *, new: bool) -> None:
        pieces = [content] if isinstance(content, str | bytes) else content
        try:
            with replacing(target, synced=True, new=new) as file:
                for piece in pieces:
                    file.write(piece.encode("utf-8") if isinstance(piece, str) else piece)
                if not new and target.exists():
                    os.fchmod(file.fileno(), target.stat().st_mode & 0o7777)
        except UnicodeEncodeError as error:
            raise OutputError(f"{self}: cannot be written: a value is not text in UTF-8") from error

    @contextmanager
    def _refusing(self) -> Iterator[None]:
        """Translates the system's errors into OutputError."""
        try:
            yield
        except FileExistsError as error:
            raise self.in_the_way() from error
        except FileNotFoundError as error:
            raise OutputError(f"{self}: the folder {self._path.parent} does not exist") from error
        except OSError as error:
            raise OutputError(f"{self}: cannot be written: {error.strerror or error}") from error
