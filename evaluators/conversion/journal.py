"""The journal of a conversion: its progress, so that another process can continue it."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from inferometer.manifests.errors import OutputError

_VERSION = 1
FILE = "journal.json"


@dataclass(frozen=True, slots=True)
class Journal:
    """The state of a conversion when its files were last flushed.

    Attributes:
        task: The description of the conversion; another task cannot continue it.
        read: The samples of the source that were read.
        written: The samples that were written.
        payload_bytes: The bytes of their data.
        checksum: The sum of their digests in hexadecimal; see ``encoding.digest_of``.
        failures: The first failed samples, by their place in the source.
        failed: How many failed.
        writer: The state of the writer.
        is_checked: Whether the files are complete and were checked.
    """

    task: Mapping[str, Any]
    read: int = 0
    written: int = 0
    payload_bytes: int = 0
    checksum: str = "0"
    failures: tuple[str, ...] = ()
    failed: int = 0
    writer: Mapping[str, int] = field(default_factory=dict)
    is_checked: bool = False

    def save(self, folder: Path) -> None:
        """Replaces the journal of a folder; raises OSError if it cannot be written."""
        path = folder / FILE
        new = path.with_suffix(".new")
        with new.open("w", encoding="utf-8") as file:
            json.dump({"version": _VERSION, **asdict(self)}, file)
            file.flush()
            os.fsync(file.fileno())
        new.replace(path)


def open_journal(folder: Path, task: Mapping[str, Any]) -> Journal:
    """Returns the journal of a folder, or a new one.

    Raises:
        OutputError: It cannot be read, or is of another task.
    """
    path = folder / FILE
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        if content.pop("version") != _VERSION:
            raise ValueError("version")
        found = Journal(**content)
        found = replace(found, failures=tuple(found.failures))
        int(found.checksum, 16)
    except FileNotFoundError:
        return Journal(task)
    except OSError as error:
        raise OutputError(f"{path}: cannot be read: {error.strerror or error}") from error
    except (ValueError, TypeError, LookupError, AttributeError, RecursionError) as error:
        raise OutputError(f"{path}: is damaged; remove {folder} to begin again") from error
    if dict(found.task) != dict(task):
        differ = ", ".join(sorted(name for name in task if found.task.get(name) != task[name]))
        raise OutputError(
            f"{folder}: is what another conversion has left, with another {differ}; remove it to begin again"
        )
    return found


def is_finished(folder: Path) -> bool:
    """Returns whether all of a conversion has been written into a folder and checked."""
    try:
        return json.loads((folder / FILE).read_text(encoding="utf-8"))["is_checked"] is True
    except (OSError, ValueError, TypeError, LookupError, RecursionError):
        return False
