"""What a run of a cell leaves: one file, written at once when it has ended."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from enum import Enum
from pathlib import Path
from typing import Any

from inferometer.manifests.errors import OutputError


class Ended(str, Enum):
    """How a run ended."""

    COMPLETE = "complete"
    FAILED = "failed"
    TIMEOUT = "timeout"
    OUT_OF_MEMORY = "out of memory"
    INTERRUPTED = "interrupted"
    LEFT_OUT = "left out"
    """It did not run: a smaller batch ran out of memory."""


@dataclass(frozen=True, slots=True)
class Result:
    """How one run ended.

    Attributes:
        key: The run; see ``Run.key``.
        ended: How it ended.
        reason: Why it is not complete, in one line; empty if it is.
        exit_code: That of the command; None where it has none.
        host: The machine.
        start_ns: When the command began, on the epoch's clock.
        end_ns: When it had ended.
        evaluations: The ids of the evaluations that it published, in order.
        monitor: What was sampled beside it; None for nothing.
    """

    key: str
    ended: Ended
    reason: str = ""
    exit_code: int | None = None
    host: str = ""
    start_ns: int = 0
    end_ns: int = 0
    evaluations: tuple[str, ...] = ()
    monitor: Mapping[str, Any] | None = None

    def document(self) -> dict[str, Any]:
        """Returns it as JSON has it."""
        return {**asdict(self), "ended": self.ended.value, "evaluations": list(self.evaluations)}

    @classmethod
    def of(cls, document: Mapping[str, Any]) -> Result:
        """Returns the result of a document; what later versions add is left out.

        Raises:
            ValueError: It is no document of a result; also ``KeyError`` and ``TypeError``.
        """
        known = {each.name for each in fields(cls)}
        given = {name: value for name, value in document.items() if name in known}
        evaluations = tuple(given.pop("evaluations", ()))
        texts = (given["key"], given.get("reason", ""), given.get("host", ""), *evaluations)
        times = (given.get("start_ns", 0), given.get("end_ns", 0))
        if not (all(isinstance(t, str) for t in texts) and all(isinstance(t, int) for t in times)):
            raise TypeError("a value is of another type")
        return cls(**{**given, "ended": Ended(given["ended"]), "evaluations": evaluations})


def write_result(path: Path, result: Result) -> None:
    """Writes a result whole or not at all, and onto the disk.

    Raises:
        OutputError: It cannot be written.
    """
    beside = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with beside.open("w", encoding="utf-8") as file:
            json.dump(result.document(), file)
            file.flush()
            os.fsync(file.fileno())
        beside.replace(path)
    except OSError as error:
        raise OutputError(f"{path}: cannot be written: {error.strerror or error}") from error


def read_result(path: Path) -> Result | None:
    """Returns the result of a run; None where there is none, or none that is whole."""
    try:
        return Result.of(json.loads(path.read_text(encoding="utf-8")))
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return None
