"""The results of runs, a file each, and the journal of a plan, which events are only ever appended to."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, field, fields
from enum import Enum
from pathlib import Path
from typing import Any

from inferometer.manifests.errors import OutputError

IN_WORK, WAITING = "in work", "waiting"
"""The states of runs without a result: with a job, and without."""
_FILE = "journal.jsonl"
_TAIL = 64


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


class Event(str, Enum):
    """The kinds of lines."""

    SUBMITTED = "submitted"
    """A run was given to the place where it runs, with the job's id."""
    LOST = "lost"
    """A job ended without a result, with the reason."""
    RESTARTED = "restarted"
    """The place started a job again by itself, with the reason."""
    ENDED = "ended"
    """A run has its result."""


@dataclass(slots=True)
class RunHistory:
    """What the journal says of one run.

    Attributes:
        job: The id of its job that has not ended; empty for none.
        last_job: The id of its last job, whether or not it has ended; empty for none.
        losses: What happened to jobs of it that ended without a result, or began again, in order.
        lost: How many ended without a result since the last one, for a reason that may be the run's.
        restarts: How often the place has started its job again.
        result: Its last result; None if it has none.
    """

    job: str = ""
    losses: list[str] = field(default_factory=list)
    lost: int = 0
    restarts: int = 0
    result: Result | None = None
    last_job: str = ""

    @property
    def state(self) -> str:
        """``in work``, ``waiting``, or how it ended."""
        if self.job:
            return IN_WORK
        return WAITING if self.result is None else self.result.ended.value


class Journal:
    """The journal in the folder of a plan. One process at a time writes it.

    Args:
        folder: The folder of the plan.

    Raises:
        OutputError: The file cannot be written.
    """

    def __init__(self, folder: Path) -> None:
        self._path = journal_file(folder)
        self.runs: dict[str, RunHistory] = read_history(folder)
        try:
            _mend(self._path)
        except OSError as error:
            raise self._failure(error) from error

    def submitted(self, key: str, job: str) -> None:
        """Notes the job of a run; its earlier result, if it has one, does not count any more."""
        self._add(key, Event.SUBMITTED, {"job": job})

    def lost(self, key: str, reason: str, *, counts: bool) -> None:
        """Notes that the job of a run ended without a result, and whether that counts in ``lost``."""
        self._add(key, Event.LOST, {"reason": reason, "counts": counts})

    def restarted(self, key: str, reason: str) -> None:
        """Notes that the place has started the job of a run again."""
        self._add(key, Event.RESTARTED, {"reason": reason})

    def ended(self, result: Result) -> None:
        """Notes the result of a run."""
        self._add(result.key, Event.ENDED, {"result": result.document()})

    def _add(self, key: str, event: Event, content: Mapping[str, Any]) -> None:
        line = {"at_ns": time.time_ns(), "run": key, "event": event.value, **content}
        try:
            with self._path.open("ab", buffering=0) as file:
                file.write((json.dumps(line) + "\n").encode())
                os.fsync(file.fileno())
        except OSError as error:
            raise self._failure(error) from error
        _apply(self.runs, line)

    def _failure(self, error: OSError) -> OutputError:
        return OutputError(f"{self._path}: the journal cannot be written: {error.strerror or error}")


def journal_file(folder: Path) -> Path:
    """Returns the file of the journal in the folder of a plan."""
    return folder / _FILE


class JournalFollower:
    """Reads a journal that another process writes: each time only what was added to it.

    Args:
        folder: The folder of the plan.

    Attributes:
        changed_ns: When the journal had changed last, on the epoch's clock; 0 if there is none.
        runs: What it says of each run; damaged lines are left out.
    """

    def __init__(self, folder: Path) -> None:
        self._path = journal_file(folder)
        self.changed_ns = 0
        self.runs: dict[str, RunHistory] = {}
        self._read, self._tail, self._size = 0, b"", -1

    def look(self) -> bool:
        """Reads what was added; returns whether the journal has changed."""
        try:
            with self._path.open("rb") as file:
                status = os.fstat(file.fileno())
                if (status.st_mtime_ns, status.st_size) == (self.changed_ns, self._size):
                    return False
                self.changed_ns, self._size = status.st_mtime_ns, status.st_size
                file.seek(self._read - len(self._tail))
                if file.read(len(self._tail)) != self._tail:  # another file is in its place
                    file.seek(0)
                    self._read, self._tail, self.runs = 0, b"", {}
                self._take(file.read())
        except OSError:
            changed = self._size >= 0
            self.changed_ns, self.runs = 0, {}
            self._read, self._tail, self._size = 0, b"", -1
            return changed
        return True

    def _take(self, added: bytes) -> None:
        begin = self._read
        for line in added.splitlines(keepends=True):
            try:
                content = json.loads(line)
            except (ValueError, RecursionError):
                if not line.endswith(b"\n"):
                    break  # it is being written
            else:
                with suppress(LookupError, TypeError, ValueError):
                    _apply(self.runs, content)
            self._read += len(line)
        self._tail = (self._tail + added[: self._read - begin])[-_TAIL:]


def read_history(folder: Path) -> dict[str, RunHistory]:
    """Returns what the journal of a folder says of each run; damaged lines are left out."""
    journal = JournalFollower(folder)
    journal.look()
    return journal.runs


def _apply(runs: dict[str, RunHistory], line: Mapping[str, Any]) -> None:
    history = runs.setdefault(line["run"], RunHistory())
    match Event(line["event"]):
        case Event.SUBMITTED:
            history.job, history.result, history.restarts = str(line["job"]), None, 0
            history.last_job = history.job
        case Event.LOST:
            history.job = ""
            history.lost += line["counts"]
            history.losses.append(str(line["reason"]))
        case Event.RESTARTED:
            history.restarts += 1
            history.losses.append(str(line["reason"]))
        case Event.ENDED:
            history.job, history.lost, history.result = "", 0, Result.of(line["result"])


def _mend(path: Path) -> None:
    """Ends a line that was cut off, so that the next one stands alone."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("ab+") as file:
        if file.tell():
            file.seek(-1, os.SEEK_END)
            if file.read(1) != b"\n":
                file.write(b"\n")
