"""The journal of a benchmark in progress: its rows, so that the same request goes on after an end."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import TypeAlias

from inferometer.evaluators.kinds.operators.documents import row_document, row_from_document
from inferometer.evaluators.kinds.operators.measurement import OperatorRow
from inferometer.manifests.errors import OutputError

Place: TypeAlias = tuple[str, int, int]
"""A framework, the number of a cell in its plan, and the number of a process."""


class Journal:
    """A file of JSON lines, one for each row, that is removed when all are there.

    A line that was cut off when the program ended is not read.

    Args:
        path: The file; None to keep nothing.
        resume: Whether to go on with the rows that it has, instead of beginning anew.

    Raises:
        OutputError: The file cannot be written.
    """

    def __init__(self, path: Path | None, *, resume: bool) -> None:
        self._path = path
        self.rows: Mapping[Place, OperatorRow] = _read(path) if path is not None and resume else {}
        if path is not None:
            try:
                path.parent.mkdir(parents=True, exist_ok=True)
                if self.rows:
                    _mend(path)
                else:
                    path.write_bytes(b"")
            except OSError as error:
                raise OutputError(f"{path}: the journal cannot be written: {error.strerror}") from error

    def add(self, place: Place, row: OperatorRow) -> None:
        """Keeps a row.

        Raises:
            OutputError: The file cannot be written.
        """
        if self._path is None:
            return
        line = json.dumps({"place": list(place), "row": row_document(row)}) + "\n"
        try:
            with self._path.open("ab", buffering=0) as file:
                file.write(line.encode())
        except OSError as error:
            raise OutputError(f"{self._path}: the journal cannot be written: {error.strerror}") from error

    def remove(self) -> None:
        """Removes the file: all rows are there."""
        if self._path is not None:
            self._path.unlink(missing_ok=True)


def journal_path(folder: Path, plan: object) -> Path:
    """Returns the file of a plan, identified by its ``repr``; a run resumes only with an equal plan."""
    return folder / f"operators-{hashlib.sha256(repr(plan).encode()).hexdigest()[:16]}.jsonl"


def _read(path: Path) -> Mapping[Place, OperatorRow]:
    """Returns the rows of the lines that are whole."""
    found: dict[Place, OperatorRow] = {}
    try:
        lines = path.read_bytes().splitlines()
    except OSError:
        return found
    for line in lines:
        try:
            content = json.loads(line)
            framework, cell, process = content["place"]
            found[str(framework), int(cell), int(process)] = row_from_document(content["row"])
        except (ValueError, KeyError, TypeError, RecursionError):
            continue
    return found


def _mend(path: Path) -> None:
    """Ends the last line, in case it was cut off."""
    with path.open("rb+") as file:
        file.seek(-1, 2)
        if file.read() != b"\n":
            file.write(b"\n")
