"""The file that a report goes to: it holds the old text or the whole new one, and no accident loses it."""

from __future__ import annotations

import os
import uuid
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TypeAlias

from manifests.errors import OutputError

Content: TypeAlias = str | bytes | Iterable[str]
"""What a file is to hold: text, bytes, or text in pieces, which are taken one by one."""


class OutputFile:
    """A file, of bytes or of text in UTF-8, that is written in one step.

    Two programs that append at the same time do not wait for each other: the later one wins.

    Args:
        path: Where it is, or will be. A link is followed.
        appendable: Whether who asks for it may also append to it, as an error then says.
        replaceable: Whether who asks for it may also overwrite it.
    """

    def __init__(self, path: Path, *, appendable: bool = True, replaceable: bool = True) -> None:
        self._path = path
        self._appendable = appendable
        self._replaceable = replaceable

    def __str__(self) -> str:
        return str(self._path)

    def exists(self) -> bool:
        """Whether the file is there.

        Raises:
            OutputError: There is something that is no file, or may not be written.
        """
        with self._refusing():
            if not self._path.exists():
                return False
            if self._path.is_dir():
                raise OutputError(f"{self}: is a folder; name a file")
            if not self._path.is_file():
                raise OutputError(f"{self}: is no regular file; to write to the screen name no file")
            if not os.access(self._path, os.W_OK):
                raise OutputError(f"{self}: cannot be written: it is read-only")
            return True

    def read(self) -> str:
        """Returns the text of the file.

        Raises:
            OutputError: It cannot be read, or is no text.
        """
        try:
            return self._path.read_bytes().decode("utf-8-sig")
        except OSError as error:
            raise OutputError(f"{self}: cannot be read: {error.strerror or error}") from error
        except UnicodeDecodeError as error:
            raise OutputError(f"{self}: is no text in UTF-8; name another file") from error

    def create(self, content: Content) -> None:
        """Writes a file that is not there yet.

        Raises:
            OutputError: It is there, or cannot be written.
        """
        with self._refusing(), self._beside(self._path, content) as written:
            try:
                os.link(written, self._path)  # unlike a rename, never takes the place of another file
            except FileExistsError:
                raise
            except OSError:  # a file system without links
                written.rename(self._path)

    def replace(self, content: Content) -> None:
        """Writes the file, which may be there.

        Raises:
            OutputError: It cannot be written.
        """
        with self._refusing():
            target = Path(os.path.realpath(self._path))  # Path.resolve fails on links in a circle
            with self._beside(target, content) as written:
                if target.exists():
                    written.chmod(target.stat().st_mode & 0o7777)
                written.replace(target)

    def in_the_way(self) -> OutputError:
        """The error for a file that is there and is not to be changed."""
        if not self._replaceable:
            return OutputError(f"{self} exists; name another file")
        remedy = (
            "append to it or overwrite it (--append, --overwrite)"
            if self._appendable
            else "overwrite it (--overwrite)"
        )
        return OutputError(f"{self} exists; {remedy}, or name another file")

    def refuse_existing(self) -> None:
        """Says before any work is done that ``create`` would fail, as far as that can be known.

        Raises:
            OutputError: The file is there, or the folder that it is to be in is not.
        """
        with self._refusing():
            if self.exists():
                raise self.in_the_way()
            self._path.parent.stat()

    @contextmanager
    def _beside(self, target: Path, content: Content) -> Iterator[Path]:
        """Writes a temporary file into the folder of ``target``, and removes it at the end if it is there."""
        pieces = [content] if isinstance(content, str | bytes) else content
        written = target.with_name(f".inferscope-{uuid.uuid4().hex}.tmp")
        try:
            with written.open("xb") as file:
                for piece in pieces:
                    file.write(piece.encode("utf-8") if isinstance(piece, str) else piece)
                file.flush()
                os.fsync(file.fileno())
            yield written
        except UnicodeEncodeError as error:
            raise OutputError(f"{self}: cannot be written: a value is no text in UTF-8") from error
        finally:
            with suppress(OSError):
                written.unlink(missing_ok=True)

    @contextmanager
    def _refusing(self) -> Iterator[None]:
        """Turns what the system refuses into one line."""
        try:
            yield
        except FileExistsError as error:
            raise self.in_the_way() from error
        except FileNotFoundError as error:
            raise OutputError(f"{self}: the folder {self._path.parent} does not exist") from error
        except OSError as error:
            raise OutputError(f"{self}: cannot be written: {error.strerror or error}") from error
