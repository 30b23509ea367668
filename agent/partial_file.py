"""A file that is being downloaded: what of it is there, and which version of it that is."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path

_WEAK = "W/"


@dataclass(frozen=True, slots=True)
class FileVersion:
    """What a server says of the version of a file that it sends.

    Attributes:
        url: Where it is.
        etag: Its strong entity tag; empty without one.
        last_modified: When it was changed, as the server writes it; empty where it does not say.
        total_bytes: Its size; None where the server does not say.
    """

    url: str
    etag: str = ""
    last_modified: str = ""
    total_bytes: int | None = None

    @classmethod
    def of(cls, url: str, headers: Mapping[str, str], total_bytes: int | None) -> FileVersion:
        """Reads it from an answer's headers."""
        etag = headers.get("ETag", "")
        if etag.startswith(_WEAK):  # it does not promise the same bytes
            etag = ""
        return cls(url, etag, headers.get("Last-Modified", ""), total_bytes)

    @property
    def validator(self) -> str:
        """What ``If-Range`` takes; empty where a download cannot go on from where it was broken off."""
        return self.etag or self.last_modified

    def may_be(self, other: FileVersion) -> bool:
        """Whether nothing that both say is different."""
        pairs = (
            (self.etag, other.etag),
            (self.last_modified, other.last_modified),
            (self.total_bytes, other.total_bytes),
        )
        return all(not mine or not its or mine == its for mine, its in pairs)


class PartialFile:
    """The file ``<name>.part`` with what is there, and ``<name>.part.json`` with its version.

    Args:
        target: Where the whole file will be.
    """

    def __init__(self, target: Path) -> None:
        self.path = target.with_name(f"{target.name}.part")
        self._version_path = target.with_name(f"{target.name}.part.json")

    @property
    def size(self) -> int:
        """The bytes that are there."""
        try:
            return self.path.stat().st_size
        except OSError:
            return 0

    def version(self, url: str) -> FileVersion | None:
        """The version of what is there, if it is of that URL and can be continued."""
        try:
            found = FileVersion(**json.loads(self._version_path.read_text(encoding="utf-8")))
            fits = found.url == url and bool(found.validator) and self.size > 0
        except (OSError, ValueError, TypeError, AttributeError):  # not there, or not written by this program
            return None
        return found if fits else None

    def start(self, version: FileVersion) -> None:
        """Begins anew with another version.

        Raises:
            OSError: It cannot be written.
        """
        self.path.write_bytes(b"")
        self._version_path.write_text(json.dumps(asdict(version)), encoding="utf-8")

    def discard(self) -> None:
        """Removes it."""
        for path in (self.path, self._version_path):
            with suppress(FileNotFoundError):
                path.unlink()

    def finish(self, target: Path) -> None:
        """Gives the whole file its name, so that it is there as a whole or not at all.

        Raises:
            OSError: It cannot be written.
        """
        with self.path.open("rb") as file:
            os.fsync(file.fileno())
        self.path.replace(target)
        self.discard()
        folder = os.open(target.parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)
